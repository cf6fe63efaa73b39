"""The bookie connections that a Python worker of Spark keeps from one reading task to the next."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from bkspark.blocking.loop import run_unless_leaving
from bkspark.net.pool import BookiePool, NetOptions, resolver

KEPT_S = 10.0
"""Time after which connections to bookies are no longer reused from an earlier task: a silently dead connection is not
reported, and waiting for an answer on it takes longer than connecting."""

_Addresses = Mapping[str, tuple[str, int]]
_lock = threading.Lock()
_kept: tuple[_Addresses, BookiePool, float] | None = None


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist in the child; the connections are the parent's.
    global _lock, _kept
    _lock = threading.Lock()
    _kept = None


os.register_at_fork(after_in_child=_after_fork)


def new_pool(addresses: _Addresses, net: NetOptions) -> BookiePool:
    """Return a pool that finds bookies by the given addresses, (host, port) by id, without a metadata store."""
    return BookiePool(resolver(addresses), _over_network(net))


@functools.lru_cache
def _over_network(net: NetOptions) -> NetOptions:
    # Entries on this host are read locally by the task, not by the pool.
    return replace(net, local_reads=False)


@contextmanager
def task_pool(addresses: _Addresses, net: NetOptions) -> Iterator[BookiePool]:
    """Lend a task a pool as from `new_pool`: that of the process's last task, if it was recent and had the same
    bookies and settings. A task that ends early closes its connections."""
    pool, made_in = _take_kept(addresses, net) or new_pool(addresses, net), os.getpid()
    try:
        yield pool
    except BaseException:
        run_unless_leaving(pool.close, made_in)
        raise
    _keep(addresses, pool)


def _take_kept(addresses: _Addresses, net: NetOptions) -> BookiePool | None:
    global _kept
    with _lock:
        kept, _kept = _kept, None
    if kept is None:
        return None
    known, pool, since_s = kept
    is_alike = known == addresses and pool.options == _over_network(net)
    if is_alike and time.monotonic() - since_s < KEPT_S:
        return pool
    run_unless_leaving(pool.close, os.getpid())
    return None


def _keep(addresses: _Addresses, pool: BookiePool) -> None:
    global _kept
    with _lock:
        before, _kept = _kept, (addresses, pool, time.monotonic())
    if before is not None:
        run_unless_leaving(before[1].close, os.getpid())
