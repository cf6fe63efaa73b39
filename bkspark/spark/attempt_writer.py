"""AttemptWriter: writes the entries of a task attempt for one log: to its own ledgers, or few of them to its report."""

from __future__ import annotations

import numpy as np

from bkspark.blocking import LedgerWriter, run
from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload, NoSuchLedger
from bkspark.log.formats import SegmentFacts, SegmentOwner
from bkspark.log.reading import deleted_meanwhile
from bkspark.spark.targets import ENTRY_LIMIT_BYTES, LogTarget


class AttemptWriter:
    """The ledgers of one task attempt. A context manager: after an error, it abandons open ledgers.

    Args:
        inline_bytes: entries up to this many bytes in total create no ledger; `held` returns them at the end.
        make_log: the log may not exist; it is created with the first ledger.
    """

    def __init__(self, target: LogTarget, owner: SegmentOwner, inline_bytes: int, *, make_log: bool = False) -> None:
        self._target = target
        self._owner = owner
        self._inline_bytes = inline_bytes
        """Entries up to this many bytes in total are held for the report; -1 when entries go to ledgers."""
        self._make_log = make_log
        """Whether the log may not exist yet. Cleared by the first ledger."""
        self._held: list[EntryBatch] = []
        """Entries that are held for the report. Emptied by `spill`."""
        self._held_bytes = 0
        """Bytes of all entries that were ever held; not reset by `spill`."""
        self._writer: LedgerWriter | None = None
        """The writer of the open ledger; None if no ledger is open."""
        self._closed: list[SegmentFacts] = []
        """Closed ledgers, in order. `_close` adds to it."""

    def append(self, entries: EntryBatch) -> None:
        """Send entries; the client's window bounds what is in flight.

        Raises:
            MalformedPayload: an entry is larger than a bookie accepts.
        """
        if not len(entries):
            return
        largest = int(np.diff(entries.offsets).max())
        if largest > ENTRY_LIMIT_BYTES:
            raise MalformedPayload(
                f"a row makes an entry of {largest} bytes, above the limit of {ENTRY_LIMIT_BYTES}: "
                "split its largest column, or store it elsewhere and write a reference"
            )
        if self._hold(entries):
            return
        self._send_held()
        self._send(entries)

    def _send_held(self) -> None:
        for held in self._held:
            self._send(held)
        self._held = []

    def spill(self) -> None:
        """Write the held entries to a ledger; from now on all entries go to ledgers."""
        self._inline_bytes = -1
        self._send_held()

    @property
    def held_bytes(self) -> int:
        """Bytes of the entries that were not sent."""
        return self._held_bytes if self._held else 0

    @property
    def is_open(self) -> bool:
        """Whether a ledger is being written."""
        return self._writer is not None

    def _hold(self, entries: EntryBatch) -> bool:
        """Hold entries for the report if all so far fit `inline_bytes`; return whether they were held."""
        self._held_bytes += entries.payload_bytes + entries.offsets.nbytes
        if self._held_bytes <= self._inline_bytes:
            self._held.append(entries)
        return self._held_bytes <= self._inline_bytes

    def held(self) -> EntryBatch | None:
        """Return the entries that are left to the report; None if there are none."""
        return EntryBatch.joined(self._held) if self._held else None

    def _send(self, entries: EntryBatch) -> None:
        ledger_bytes_max = self._target.options.ledger_bytes_max
        while len(entries):
            if self._writer is None:
                self._writer = self._new_ledger()
            room = max(1, ledger_bytes_max - self._writer.length)
            piece = next(entries.split(len(entries), room))
            self._writer.submit(piece)
            if self._writer.length >= ledger_bytes_max:
                self._close()
            entries = entries.slice(len(piece), len(entries))

    def finish(self) -> tuple[SegmentFacts, ...]:
        """Close the last ledger; return all of them. Every entry is then durable on ackQuorum bookies.

        Closing syncs: with relaxed durability each ledger once, before the task reports it.
        """
        self.close_ledger()
        return tuple(self._closed)

    def close_ledger(self) -> None:
        """Close the ledger that is being written, if there is one; the next entries go to another."""
        if self._writer is not None:
            self._close()

    def _new_ledger(self) -> LedgerWriter:
        options, log = self._target.ledger_options(self._owner), self._target.named_log()
        if self._make_log:
            run(lambda: log.create(exist_ok=True))
            self._make_log = False
        return LedgerWriter(run(lambda: log.create_attempt(self._owner, options)))

    def _close(self) -> None:
        assert self._writer is not None
        try:
            closed = self._writer.close()
        except NoSuchLedger as error:
            raise deleted_meanwhile(error, self._target.log) from None
        self._closed.append(SegmentFacts(self._writer.ledger_id, closed.last_entry, closed.length))
        self._writer = None

    def __enter__(self) -> AttemptWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Abandon the open ledger, if there is one; it stays pending until it is discarded."""
        if self._writer is not None:
            self._writer.abandon()
