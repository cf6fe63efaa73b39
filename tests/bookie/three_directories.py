"""Adds to two ledgers of each of three ledger directories, a to c, and what the directories hold of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.bookie.serving import Peer, Serving, stored
from tests.polling import wait_until

PAYLOADS = [bytes([i]) * 3000 for i in range(40)]
LEDGERS = range(12, 18)

_stored = functools.cache(stored)


def make_only_store(directory: Path) -> None:
    """Begin as an earlier build does whose bookie has one key-value store for all directories, in the first one."""
    (directory / "a/current/positions").mkdir(parents=True)


def settle(serving: Serving) -> None:
    """Return when everything is flushed and the marks are after it. Until the next add, no flush begins."""
    store = serving.service.storage.store
    wait_until(lambda: serving.call(lambda: store.is_clean and not store.is_flushing), "the flush of everything")


def write_all(peer: Peer, first: int) -> None:
    """Add all payloads to each ledger, from entry `first` on."""
    for ledger_id in LEDGERS:
        assert set(peer.add(ledger_id, first, PAYLOADS)) == {Status.EOK}


def write_more(peer: Peer, failing: str) -> set[int]:
    """Add all payloads to each ledger, from entry 40 on, after a directory failed; return the ledgers that are refused.

    Only ledgers whose index is there are: they are in limbo by then, and their writers go on with another bookie.
    """
    refused = set()
    for ledger_id in LEDGERS:
        answers = set(peer.add(ledger_id, 40, PAYLOADS))
        if "abc"[ledger_id % 3] == failing and Status.EIO in answers:
            refused.add(ledger_id)
        else:
            assert answers == {Status.EOK}
    return refused


def read_all(peer: Peer, end: int, ledger_ids: Sequence[int] = LEDGERS) -> None:
    """Check entries [0, end) of each ledger; `end` is a multiple of what `write_all` adds."""
    for ledger_id in ledger_ids:
        for first in range(0, end, len(PAYLOADS)):
            entries = range(first, first + len(PAYLOADS))
            peer.send(v2.encode_reads(ledger_id, np.array(entries)))
            bodies = {reply.entry_id: reply.body for reply in peer.replies(len(entries))}
            assert bodies == {entry: _stored(ledger_id, entry, PAYLOADS[entry - first]) for entry in entries}


def marks(directory: Path) -> dict[str, bytes]:
    """Return the marks in each ledger directory."""
    return {name: (directory / name / "current" / "lastMark").read_bytes() for name in "abc"}
