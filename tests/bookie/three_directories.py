"""Adds to two ledgers of each of three ledger directories, a to c, and what the directories hold of them."""

from __future__ import annotations

from pathlib import Path

from bkspark.wire.status import Status
from tests.bookie.serving import Peer, Serving, stored
from tests.polling import wait_until

PAYLOADS = [bytes([i]) * 3000 for i in range(40)]
LEDGERS = range(12, 18)


def settle(serving: Serving) -> None:
    """Return when everything is flushed and the marks are after it. Until the next add, no flush begins."""
    store = serving.service.storage.store
    wait_until(lambda: serving.call(lambda: store.is_clean and not store.is_flushing), "the flush of everything")


def write_all(peer: Peer, first: int) -> None:
    """Add all payloads to each ledger, from entry `first` on."""
    for ledger_id in LEDGERS:
        assert set(peer.add(ledger_id, first, PAYLOADS)) == {Status.EOK}


def read_all(peer: Peer, end: int) -> None:
    """Check entries [0, end) of each ledger."""
    for ledger_id in LEDGERS:
        for entry_id in range(end):
            expected = stored(ledger_id, entry_id, PAYLOADS[entry_id % len(PAYLOADS)])
            assert peer.read(ledger_id, entry_id).body == expected


def marks(directory: Path) -> dict[str, bytes]:
    """Return the marks in each ledger directory."""
    return {name: (directory / name / "current" / "lastMark").read_bytes() for name in "abc"}
