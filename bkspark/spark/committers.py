"""The committers of a process: one for each log and owner, kept from epoch to epoch, because each has an open ledger.

Spark makes a new writer for every commit, but runs them in Python workers, which end when they are idle for a minute.
When a worker ends, its ledger stays open, and the next worker begins another one.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from bkspark.blocking import run
from bkspark.errors import BookKeeperError
from bkspark.log.epochs import EpochCommitter
from bkspark.log.log import Log
from bkspark.log.routed_epochs import RoutedCommitter
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.spark.connection import connect
from bkspark.spark.options import SourceOptions

Committer = TypeVar("Committer", EpochCommitter, RoutedCommitter)

COMMITTERS_MAX = 16
"""Number of committers that a process keeps; the least recently used one closes its ledger for a new one."""

_committers: OrderedDict[Hashable, EpochCommitter | RoutedCommitter] = OrderedDict()


def forget_committers() -> None:
    """Begin as a new process: the ledgers of the committers stay open, and are not written by this process."""
    _committers.clear()


os.register_at_fork(after_in_child=forget_committers)


def committer_of(log: Log, owner_id: str, ledger: LedgerOptions, options: SourceOptions) -> EpochCommitter:
    """Return this process's committer for a log, a query or application, and options of its ledgers."""
    limits = RollLimits(options.ledger_bytes_max, options.ledger_age_ms / 1000)
    made = (ledger.ensemble, ledger.write_quorum, ledger.ack_quorum, ledger.ledger_type, options.digest, limits)
    metadata = tuple(sorted((ledger.metadata or {}).items()))
    credentials = (options.client, options.password, options.encryption)
    key = (options.uri, credentials, log.name, owner_id, made, metadata)
    return _kept(key, lambda: EpochCommitter(log, owner_id, ledger, limits))


def routed_committer_of(owner_id: str, options: SourceOptions, *, is_kept: bool) -> RoutedCommitter:
    """Return this process's committer for a query or application whose rows name their logs.

    Args:
        is_kept: it is for epochs that follow each other; otherwise a new one is made.
    """
    limits = RollLimits(options.ledger_bytes_max, options.ledger_age_ms / 1000)
    cluster = connect(options).asynchronous
    if not is_kept:
        return RoutedCommitter(cluster, owner_id, limits)
    credentials = (options.client, options.password, options.encryption)
    key = (options.uri, credentials, owner_id, options.digest, limits)
    return _kept(key, lambda: RoutedCommitter(cluster, owner_id, limits))


def _kept(key: Hashable, make: Callable[[], Committer]) -> Committer:
    committer = cast("Committer | None", _committers.pop(key, None))
    if committer is None:
        while len(_committers) >= COMMITTERS_MAX:
            _close(_committers.popitem(last=False)[1])
        committer = make()
    _committers[key] = committer
    return committer


def _close(committer: EpochCommitter | RoutedCommitter) -> None:
    try:
        run(committer.close)
    except BookKeeperError:
        return  # left open and registered: a vacuum finds it by its age
