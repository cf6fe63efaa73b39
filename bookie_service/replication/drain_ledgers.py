"""The ledgers that a drain has still to move, and their sums.

A bookie may have a million ledgers, and the progress is reported every second, also by the process of a bookie that
serves requests. So every change of a ledger changes the sums: only ledgers that are being copied are looked at one by
one.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from bkspark.core.copies import CopyEstimate
from bkspark.core.metadata import Fragment
from bkspark.errors import BookKeeperError


class Copying(Protocol):
    """The part of a repair that counts."""

    @property
    def copied_bytes(self) -> int:
        """How many bytes it has copied."""


@dataclass(slots=True)
class DrainedLedger:
    """A ledger that names the bookie. `LedgersLeft` changes `share`, `run` and `error`."""

    share: CopyEstimate
    """How much there is to copy."""
    is_named: bool = True
    """Whether it still named the bookie when this process had its lock: others may have moved or deleted it."""
    run: Copying | None = None
    """The repair in progress, or None."""
    due_s: float = 0.0
    """When it may be tried again, by the monotonic clock."""
    failures: int = 0
    """How often its repair failed."""
    error: BookKeeperError | None = None
    """Why its repair last failed; None: it has not failed."""
    fragment: Fragment | None = None
    """Its open last fragment when it was last checked; None: its last fragment is closed."""
    since_s: float = 0.0
    """Since when `fragment` is unchanged."""

    @property
    def copied_bytes(self) -> int:
        """How many bytes the repair in progress has copied."""
        return 0 if self.run is None else self.run.copied_bytes

    @property
    def done_bytes(self) -> int:
        """How many bytes of the share are copied."""
        return min(self.share.bytes, self.copied_bytes)

    @property
    def is_movable(self) -> bool:
        """Whether the ledger neither waits for its writer nor failed when it was last tried."""
        return self.error is None and not self.share.is_growing


class LedgersLeft:
    """The ledgers that still name the bookie, by id."""

    def __init__(self, shares: Mapping[int, CopyEstimate]) -> None:
        self._ledgers = {ledger_id: DrainedLedger(share) for ledger_id, share in sorted(shares.items())}
        """The ledgers, by ascending id. They only become fewer."""
        self._running: dict[int, DrainedLedger] = {}
        """The ledgers that are being copied."""
        self._growing = {ledger_id for ledger_id, each in self._ledgers.items() if each.share.is_growing}
        """The ledgers that wait for their writers and have not failed."""
        self._failed: set[int] = set()
        """The ledgers that failed when they were last tried."""
        self._bytes = sum(each.share.bytes for each in self._ledgers.values())
        """The bytes of all shares."""
        self._movable_bytes = sum(each.share.bytes for each in self._ledgers.values() if each.is_movable)
        """The bytes of the shares of movable ledgers."""

    def __len__(self) -> int:
        return len(self._ledgers)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._ledgers

    def __getitem__(self, ledger_id: int) -> DrainedLedger:
        return self._ledgers[ledger_id]

    # ---- changes ----

    def begin(self, ledger_id: int, run: Copying) -> None:
        """A ledger is being copied."""
        left = self._running[ledger_id] = self._ledgers[ledger_id]
        left.run = run

    def end(self, ledger_id: int) -> int:
        """A ledger is not being copied any more; return how many bytes were copied."""
        left = self._running.pop(ledger_id, None)
        if left is None:
            return 0
        copied_bytes, left.run = left.copied_bytes, None
        return copied_bytes

    def remove(self, ledger_id: int) -> DrainedLedger:
        """A ledger names the bookie no more, or is gone; it is not being copied."""
        left = self._ledgers.pop(ledger_id)
        self._uncount(ledger_id, left)
        return left

    def change(self, ledger_id: int, share: CopyEstimate, error: BookKeeperError | None) -> None:
        """A ledger was tried, and still names the bookie; it is not being copied."""
        left = self._ledgers[ledger_id]
        self._uncount(ledger_id, left)
        left.share, left.error = share, error
        self._bytes += share.bytes
        self._movable_bytes += share.bytes if left.is_movable else 0
        if error is not None:
            self._failed.add(ledger_id)
        elif share.is_growing:
            self._growing.add(ledger_id)

    def _uncount(self, ledger_id: int, left: DrainedLedger) -> None:
        self._bytes -= left.share.bytes
        self._movable_bytes -= left.share.bytes if left.is_movable else 0
        self._growing.discard(ledger_id)
        self._failed.discard(ledger_id)

    # ---- facts ----

    def due(self, now_s: float) -> list[int]:
        """Return the ledgers that may be tried now."""
        return [ledger_id for ledger_id, each in self._ledgers.items() if each.due_s <= now_s]

    @property
    def bytes_left(self) -> int:
        """How many bytes are still to copy."""
        return self._bytes - self.done_bytes

    @property
    def movable_bytes_left(self) -> int | None:
        """How many bytes of movable ledgers are still to copy; None: no ledger is movable."""
        if len(self._growing) + len(self._failed) == len(self._ledgers):
            return None
        return self._movable_bytes - sum(each.done_bytes for each in self._running.values() if each.is_movable)

    @property
    def copied_bytes(self) -> int:
        """How many bytes the repairs in progress have copied."""
        return sum(each.copied_bytes for each in self._running.values())

    @property
    def done_bytes(self) -> int:
        """How many bytes of the shares the repairs in progress have copied."""
        return sum(each.done_bytes for each in self._running.values())

    def waiting(self, most: int) -> tuple[int, ...]:
        """Return the first ledgers that wait for their writers."""
        return tuple(heapq.nsmallest(most, self._growing))

    def blocked(self, most: int) -> dict[str, str]:
        """Return why the first ledgers that failed did so."""
        some = heapq.nsmallest(most, self._failed)
        return {str(ledger_id): str(self._ledgers[ledger_id].error) for ledger_id in some}

    def error_if_all_failed(self, failures: int) -> BookKeeperError | None:
        """Return the error of one ledger if every ledger has failed this often, and failed when it was last tried."""
        if not self._failed or len(self._failed) < len(self._ledgers):
            return None
        errors: Collection[BookKeeperError | None] = [
            each.error for each in self._ledgers.values() if each.failures >= failures
        ]
        return next(iter(errors)) if len(errors) == len(self._ledgers) else None
