"""LedgerWriter: appends to one open ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from bkspark.core.explicit_lac import ExplicitLac
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.writer import WriterCore, WriterState
from bkspark.core.writer_errors import client_closed
from bkspark.core.writer_options import WriterOptions
from bkspark.entries import EntryBatch, as_batch
from bkspark.errors import BookKeeperError, LedgerClosed, RequestTimeout
from bkspark.ledger.explicit_lac import tell_lac
from bkspark.ledger.services import Services
from bkspark.ledger.turns import Singles, Turn, Turns
from bkspark.ledger.writer_run import WriterRun
from bkspark.wire.adds import AddFlags, AddSealer
from bkspark.wire.digest import EntryDigest, master_key

PIECE_ENTRIES_MAX = 1024
PIECE_BYTES_MAX = 512 * 1024
"""A batch is sent in pieces, so that bookies journal the first while the next is sealed."""


class LedgerWriter:
    """Appends to one open ledger; the only writer it has.

    An entry is acknowledged when Qa bookies hold it durably and all entries before it are acknowledged. After an error
    that ends the writer (fenced, not enough bookies, ...) entries not acknowledged may or may not be stored.
    """

    def __init__(
        self,
        services: Services,
        core: WriterCore,
        password: bytes,
        options: WriterOptions,
        *,
        lane: int = 0,
        flags: AddFlags = AddFlags(),
        sealed_lac: int | None = None,
    ) -> None:
        pool, metadata, key = services.pool, core.metadata, master_key(password)
        digest = EntryDigest(metadata.digest, password)
        self._core = core
        """The decisions."""
        self._options = options
        """Constant."""
        self._sealed_lac = sealed_lac
        """The LAC that all entries carry, in a recovery; None: the current LAC. Constant."""
        self._sealer = AddSealer(pool.protocol, digest, key, pool.txn_ids, flags)
        """Makes the frames of adds. Constant."""
        self.entry_bytes_max = self._sealer.entry_bytes_max(pool.options.frame_bytes_max)
        """The largest entry that is accepted: its frames fit into nettyMaxFrameSizeBytes. Constant."""
        self._explicit_lac = ExplicitLac(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        """Decides when to send an explicit LAC."""
        self._run = WriterRun(
            services.ledgers,
            services.view,
            pool,
            core,
            options,
            protocol=self._sealer.protocol,
            lane=lane,
            is_recovery=flags.is_recovery,
        )
        """Runs the core, until the writer ends."""
        self._window = self._run.window
        """What is in flight."""
        self._turns = Turns()
        """The order of calls: they are served one at a time."""
        self._singles: Singles[int] | None = None
        """Entries that `append` gathers, until something is submitted after them."""
        self._is_closing = False
        """Whether `close` was called: no more entries are accepted. Set once."""
        if options.explicit_lac_interval_s > 0:
            interval_s = options.explicit_lac_interval_s
            self._run.driver.spawn(tell_lac(pool, core, self._explicit_lac, digest, key, interval_s))

    # ---- facts ----

    @property
    def ledger_id(self) -> int:
        return self._core.ledger_id

    @property
    def last_entry(self) -> int:
        """The LAC: the last entry that is acknowledged and durable on Qa bookies; -1 when there is none.

        With relaxed durability `append` returns earlier: entries above the LAC are acknowledged, and not yet synced.
        """
        return self._core.lac

    @property
    def length(self) -> int:
        """Payload bytes of every entry submitted so far."""
        return self._core.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._core.metadata

    @property
    def core(self) -> WriterCore:
        """The decisions; recovery looks at its fragments."""
        return self._core

    def on_silent(self, bookies: Mapping[int, str]) -> None:
        """Bookies, by slot, let other requests time out; see the core's."""
        driver = self._run.driver
        driver.perform(self._core.on_silent(bookies, driver.now_ns()))

    async def reach_others_than(self, bookies: Collection[str]) -> None:
        """Return when nothing waits for a connection to a bookie that is not one of `bookies`, or REACH_S are over."""
        await self._run.fanout.reach(bookies)

    def on_failed(self, callback: Callable[[BookKeeperError], None]) -> None:
        """Call `callback(error)` when the writer ends for another reason than `close`; the last one set is called."""
        self._run.on_failed = callback

    # ---- appending ----

    async def append(self, entry: bytes) -> int:
        """Append one entry; return its id once it is acknowledged.

        An entry is sent at once if no other is in flight; calls made while others are in flight are sent together.
        Calls of `append`, `append_many` and `submit` are served in their order.

        Raises:
            LedgerFenced, LedgerClosed, NotEnoughBookies, UnauthorizedAccess, MetadataError: the writer has ended;
            whether the entry is stored is unknown.
        """
        if not isinstance(entry, (bytes, bytearray, memoryview)):
            raise TypeError(f"an entry is bytes, not {type(entry).__name__}")
        data = bytes(entry)
        if self._is_quiet():
            return await self.append_many([data])
        self._check_open()
        # Checked here, because it would fail all entries that are sent with it.
        check_entry_size(len(data), self.entry_bytes_max)
        singles = self._singles
        if singles is None or singles.is_closed:
            singles = self._singles = Singles(self._turns.take(), self._send_singles)
        position = len(singles.entries)
        singles.entries.append(data)
        return await asyncio.shield(singles.sent) + position

    def _is_quiet(self) -> bool:
        """Return whether there is nothing to send an entry with, and so nothing to wait for."""
        return not (self._turns.is_taken or self._core.pending_count)

    def _take_turn(self) -> Turn:
        """Return the turn after all calls so far; entries of later `append` calls come after it."""
        if self._singles is not None:
            self._singles.is_closed = True
        return self._turns.take()

    def _check_open(self) -> None:
        if self._is_closing:
            raise self._core.error or LedgerClosed(f"ledger {self.ledger_id} is closed", ledger_id=self.ledger_id)

    async def _send_singles(self, turn: Turn, entries: list[bytes]) -> int:
        async with turn:
            sent = await self._submit_in_turn(as_batch(entries), None)
        return await sent - len(entries) + 1

    async def append_many(self, entries: Any) -> int:
        """Append entries (iterable of bytes, EntryBatch or Arrow binary array); return the last one's id.

        They get consecutive ids; the call returns once all are acknowledged. Raises as `append`.
        """
        return await (await self.submit(entries))

    async def submit(self, entries: Any) -> asyncio.Future[int]:
        """Send entries as soon as there is room in the window; return a future of the last one's id, done when
        acknowledged.

        Raises as `append`; so does the future.
        """
        batch = as_batch(entries)
        self._check_open()
        return await self.submit_batch(batch, None)

    async def submit_batch(self, batch: EntryBatch, length_before: int | None) -> asyncio.Future[int]:
        """`submit`, with the cumulative length before the batch set by the caller (recovery knows the original one)."""
        check_entry_sizes(batch, self.entry_bytes_max)
        async with self._take_turn():
            return await self._submit_in_turn(batch, length_before)

    async def _submit_in_turn(self, batch: EntryBatch, length_before: int | None) -> asyncio.Future[int]:
        for piece in batch.split(PIECE_ENTRIES_MAX, PIECE_BYTES_MAX):
            await self._window.wait_for_room()
            if length_before is not None:
                self._core.length = length_before
                length_before = length_before + piece.payload_bytes
            self._add(piece)
        return self._window.wait_for(self._core.next_entry - 1)

    def _add(self, piece: EntryBatch) -> None:
        core, run = self._core, self._run
        core.check_open()
        numbered = EntryBatch(piece.buffer, piece.offsets, core.ledger_id, core.next_entry)
        lac = core.lac if self._sealed_lac is None else self._sealed_lac
        sealed = self._sealer.seal(numbered, lac, core.length)
        self._explicit_lac.on_sealed(lac)
        todo = core.add(sealed, piece.payload_bytes, run.driver.now_ns())
        self._window.add(core.next_entry - 1, piece.payload_bytes)
        run.driver.perform(todo)

    async def sync(self) -> int:
        """Wait until everything appended so far is acknowledged, and durable on Qa bookies; return the last such entry.

        With relaxed durability this makes bookies sync; otherwise acknowledged entries are durable. Raises as `append`.
        """
        singles = self._singles
        async with self._take_turn():
            waiting = self._window.wait_for(self._core.next_entry - 1)
        target = await waiting
        if singles is not None:
            await asyncio.wait([singles.sent])  # calls of `append` before this one return first
        if target > self._core.lac:
            synced = self._window.wait_for_sync(target)
            self._run.driver.perform(self._core.sync())
            await synced
        return self._core.lac

    # ---- the end ----

    async def close(self) -> LedgerMetadata:
        """Wait for pending entries, then close the ledger at its last acknowledged entry. Closing twice is harmless.

        After the call no more entries are accepted.

        Raises:
            LedgerFenced, LedgerClosed: the ledger was not closed by us at our last entry.
            RequestTimeout: it took longer than `close_timeout_s`. If entries or ensemble changes were pending, the
                ledger is left open, for recovery. If its closing write was pending, it is unknown whether it is closed.
                The message says which.
            MetadataError: whether it is closed is unknown.
        """
        core = self._core
        if core.state is WriterState.CLOSED:
            return core.metadata
        self._is_closing = True
        try:
            async with asyncio.timeout(self._options.close_timeout_s):
                await self.sync()
                await self._run.fanout.reach()
                while core.state is not WriterState.CLOSED:
                    # An ensemble change may begin in the turn of the event loop in which another one ends, and another
                    # call may have begun to close.
                    if core.state not in (WriterState.CHANGING, WriterState.CLOSING):
                        self._run.driver.perform(core.close())
                    await self._run.settled.wait()
        except TimeoutError:
            outcome = (
                f"whether it was closed at entry {core.lac} is unknown: its metadata could not be written for certain"
                if core.state is WriterState.CLOSING
                else f"it is left open, its last acknowledged entry is {core.lac}"
            )
            raise RequestTimeout(
                f"ledger {core.ledger_id} did not settle in {self._options.close_timeout_s:g} s; {outcome}",
                ledger_id=core.ledger_id,
                entry_id=core.lac + 1,
            ) from None
        finally:
            if core.state is not WriterState.CLOSED:
                self.abandon()
        if core.error is not None:
            raise core.error
        self._run.stop()
        return core.metadata

    def abandon(self) -> None:
        """Stop without closing the ledger: pending entries end with an error, recovery finds the end."""
        why = f"the writer of ledger {self.ledger_id} went away"
        self._run.driver.perform(self._core.give_up(client_closed(self.ledger_id, self._core.lac, why)))
        self._run.stop()

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()


def check_entry_sizes(batch: EntryBatch, limit: int) -> None:
    """Raise ValueError if an entry of the batch is above `limit` bytes."""
    if batch.payload_bytes > limit:
        check_entry_size(int(np.diff(batch.offsets).max()), limit)


def check_entry_size(octets: int, limit: int) -> None:
    """Raise ValueError if an entry of this size is above `limit`."""
    if octets > limit:
        raise ValueError(f"an entry of {octets} bytes is above the limit of {limit} (nettyMaxFrameSizeBytes)")
