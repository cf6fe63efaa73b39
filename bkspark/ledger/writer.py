"""LedgerWriter: appends to one open ledger."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from bkspark import metrics, tracing
from bkspark.core import writer_errors
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.writer import WriterCore
from bkspark.core.writer_options import WriterOptions
from bkspark.entries import EntryBatch, as_batch
from bkspark.ledger import arguments
from bkspark.ledger.call_order import CallOrder, Ticket
from bkspark.ledger.closing import ClosedAtExit
from bkspark.ledger.context import ClientContext
from bkspark.ledger.explicit_lac import send_explicit_lac
from bkspark.ledger.writer_run import WriterRun
from bkspark.wire.adds import AddSealer, WireProtocol
from bkspark.wire.digest import EntryDigest, SealedEntries, master_key
from bkspark.wire.encrypted_entries import EntrySealer
from bkspark.wire.flags import AddFlags
from bkspark.wire.v3_context import encode_context

PIECE_ENTRIES_MAX = 1024
PIECE_BYTES_MAX = 512 * 1024
"""Limits of the pieces that a batch is sent in, so that bookies journal one piece while the next is sealed."""
NO_SPAN: tuple[tracing.AppendSpan | None, bytes] = (None, b"")
"""What `_begin_span` returns while tracing is off."""


class LedgerWriter(ClosedAtExit):
    """Appends to one open ledger, as its only writer; `Cluster.create` makes it.

    An entry is acknowledged when Qa bookies have it durably and all entries before it are acknowledged. After an error
    that ends the writer (fenced, not enough bookies, ...), entries that were not acknowledged may or may not be stored.
    """

    def __init__(
        self,
        context: ClientContext,
        core: WriterCore,
        password: bytes,
        options: WriterOptions,
        *,
        connection_index: int = 0,
        flags: AddFlags = AddFlags(),
        sealed_lac: int | None = None,
        encryption: EntrySealer | None = None,
    ) -> None:
        pool, metadata, key = context.pool, core.metadata, master_key(password)
        digest = EntryDigest(metadata.digest, password)
        self.core = core
        """The decisions. Recovery and AdvancedLedgerWriter read its state."""
        self._sealed_lac = sealed_lac
        """The LAC that all entries carry in a recovery; None: they carry the current LAC. Constant."""
        self._sealer = AddSealer(pool.protocol, digest, key, pool.txn_ids, flags, encryption)
        """Makes the frames of adds. Constant. A recovery does not encrypt: it copies entries as they are stored."""
        self.entry_bytes_max = self._sealer.entry_bytes_max(pool.options.frame_bytes_max)
        """The largest entry that is accepted, in payload bytes: its frame fits `frame_bytes_max`. Constant."""
        channel = pool.channel if self._sealer.protocol is WireProtocol.V2 else pool.v3_channel
        connect = partial(channel, connection_index=connection_index)
        self.run = WriterRun(context, core, options, connect, is_recovery=flags.is_recovery)
        """Runs the core until the writer ends. The user of the writer may set its `on_failed`."""
        self._window = self.run.window
        """The window of `run`, in which the number and the bytes of entries in flight are bounded. Constant."""
        self._calls = CallOrder(self._send_singles)
        """The order of calls: they are served one at a time."""
        self._is_closing = False
        """Whether `close` was called: no more entries are accepted. Set once."""
        if options.explicit_lac_interval_s > 0:
            interval_s = options.explicit_lac_interval_s
            self.run.spawn(send_explicit_lac(pool, core, self._sealer, digest, key, interval_s))

    # ---- facts ----

    @property
    def ledger_id(self) -> int:
        return self.core.ledger_id

    @property
    def last_entry(self) -> int:
        """The LAC: the last entry that is acknowledged and durable on Qa bookies; -1 when there is none.

        With relaxed durability `append` returns before its entry is durable: acknowledged entries may be above the LAC.
        """
        return self.core.lac

    @property
    def length(self) -> int:
        """Payload bytes of every entry submitted so far, as they are stored."""
        return self.core.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self.core.metadata

    # ---- appending ----

    async def append(self, entry: bytes) -> int:
        """Append one entry; return its id once it is acknowledged.

        If nothing is in flight, the entry is sent at once; otherwise entries of concurrent calls are sent together.
        Calls of `append`, `append_many` and `submit` are served in their order. Cancelling a call does not withdraw its
        entry.

        Raises:
            TypeError: the entry is not bytes-like.
            ValueError: it has more than `entry_bytes_max` bytes.
            LedgerFenced, LedgerClosed, NotEnoughBookies, UnauthorizedAccess, MetadataError: the writer has ended;
                whether the entry is stored is unknown.
        """
        if not isinstance(entry, (bytes, bytearray, memoryview)):
            raise TypeError(f"an entry is bytes, not {type(entry).__name__}")
        data = bytes(entry)
        if self._is_closing:
            raise self.core.error or writer_errors.closed(self.ledger_id)
        if len(data) > self.entry_bytes_max:
            # Checked before it joins others: as part of a batch it would fail all entries of the batch.
            raise arguments.too_large(len(data), self.entry_bytes_max)
        if not self._calls.lock.is_taken and self._window.is_idle():
            return await self._send_single(data)
        first_entry, place = await self._calls.send_single(data)
        return first_entry + place

    async def _send_singles(self, ticket: Ticket, entries: list[bytes]) -> int:
        async with ticket:
            sent = await self._send_in_turn(as_batch(entries), None)
        return await sent - len(entries) + 1

    def _send_single(self, data: bytes) -> asyncio.Future[int]:
        """Send one entry while nothing else is in flight; return a future of its id, done when acknowledged.

        Not for a recovery, which sends batches.
        """
        core, sealer, entry_id = self.core, self._sealer, self.core.pending.next_entry
        if sealer.added_bytes:
            core.check_open()  # raise before sealing: an entry id is encrypted once, and the next call gets the same id
        size = len(data) + sealer.added_bytes
        span, context = NO_SPAN if tracing.tracer is None else self._begin_span(entry_id, 1, size)
        sealed = sealer.seal_single(data, core.ledger_id, entry_id, core.lac, core.length, context)
        self._send(sealed, size, span)
        return self._window.wait_for(entry_id)

    async def append_many(self, entries: Any) -> int:
        """Append entries (iterable of bytes, EntryBatch or Arrow binary array); return the last one's id.

        They get consecutive ids; the call returns once all are acknowledged. Without entries it returns the last id so
        far. Raises as `append`.
        """
        return await (await self.submit(entries))

    async def submit(self, entries: Any) -> asyncio.Future[int]:
        """Send entries as soon as the window has room; return a future of the last id, done when all are acknowledged.

        Call and future raise as `append`.
        """
        batch = as_batch(entries)
        if self._is_closing:
            raise self.core.error or writer_errors.closed(self.ledger_id)
        return await self.submit_batch(batch, None)

    async def submit_batch(self, batch: EntryBatch, length_before: int | None) -> asyncio.Future[int]:
        """As `submit`. `length_before`: the ledger's length before the batch, which a recovery knows from the entries
        that it has read; None: the writer's own."""
        arguments.check_entry_sizes(batch, self.entry_bytes_max)
        async with self._calls.take():
            return await self._send_in_turn(batch, length_before)

    async def _send_in_turn(self, batch: EntryBatch, length_before: int | None) -> asyncio.Future[int]:
        core, window, added_bytes = self.core, self._window, self._sealer.added_bytes
        for piece in batch.split(PIECE_ENTRIES_MAX, PIECE_BYTES_MAX):
            await window.wait_for_room()
            if length_before is not None:
                core.length = length_before
                length_before = length_before + piece.payload_bytes
            numbered = EntryBatch(piece.buffer, piece.offsets, core.ledger_id, core.pending.next_entry)
            if added_bytes:
                core.check_open()  # as in `_send_single`
            lac = core.lac if self._sealed_lac is None else self._sealed_lac
            entries, size = len(numbered), numbered.payload_bytes + added_bytes * len(numbered)
            is_traced = tracing.tracer is not None
            span, context = self._begin_span(numbered.first_entry, entries, size) if is_traced else NO_SPAN
            self._send(self._sealer.seal(numbered, lac, core.length, context), size, span)
        return window.wait_for(core.pending.next_entry - 1)

    def _begin_span(self, first_entry: int, entries: int, size: int) -> tuple[tracing.AppendSpan | None, bytes]:
        """Return the tracing span of entries that are about to be sent, and the context that their requests carry."""
        facts = {"ledger": self.ledger_id, "first_entry": first_entry, "entries": entries, "bytes": size}
        span = tracing.AppendSpan(facts)
        return span, encode_context(tracing.TRACEPARENT, span.place) if span.place else b""

    def _send(self, sealed: SealedEntries, payload_bytes: int, span: tracing.AppendSpan | None = None) -> None:
        first_entry = self.core.pending.next_entry
        todo = self.core.add(sealed, payload_bytes, self.run.now_ns())
        self._window.add(sealed.end_entry - 1, payload_bytes)
        self.run.perform(todo)
        if span is not None:
            span.end_with(self._window.wait_for(sealed.end_entry - 1))
        if metrics.recorder is not None:
            done = self._window.wait_for(sealed.end_entry - 1)
            metrics.recorder.record_when_done(done, sealed.end_entry - first_entry, payload_bytes)

    async def sync(self) -> int:
        """Wait until everything appended so far is acknowledged and durable on Qa bookies; return the LAC.

        With relaxed durability this makes bookies sync; otherwise acknowledged entries are durable already. Raises as
        `append`.
        """
        sent = self._calls.last_sent
        async with self._calls.take():
            waiting = self._window.wait_for(self.core.pending.next_entry - 1)
        target = await waiting
        if sent is not None:
            await asyncio.wait([sent])  # so that earlier calls of `append` return before this call
        lac = self.core.lac
        if target <= lac:
            return lac
        synced = self._window.wait_for_sync(target)
        self.run.perform(self.core.sync())
        await synced
        return self.core.lac

    # ---- the end ----

    async def close(self) -> LedgerMetadata:
        """Wait for pending entries, then close the ledger at its last acknowledged entry; return its closed metadata.

        From the call on, no more entries are accepted. A second call returns the same.

        Raises:
            LedgerFenced, LedgerClosed: another client recovered or closed the ledger.
            RequestTimeout: it took longer than `close_timeout_s`. If entries or ensemble changes were pending, the
                ledger stays open, for recovery. If the closing write was pending, it is unknown whether the ledger is
                closed. The message says which.
            MetadataError: it is unknown whether the ledger is closed.
        """
        return await self.close_until(self.run.close_deadline_s())

    async def close_until(self, deadline_s: float) -> LedgerMetadata:
        """As `close`, which may take until `deadline_s` by the event loop's clock."""
        self._is_closing = True
        try:
            await self.run.close(self.sync, deadline_s)
        finally:
            self.abandon()  # what is closed stays closed: its connections and timers are released
        return self.core.metadata

    def abandon(self) -> None:
        """Stop without closing the ledger: pending entries fail with ClientClosed, and recovery finds the end."""
        why = f"the writer of ledger {self.ledger_id} went away"
        self.run.perform(self.core.give_up(writer_errors.client_closed(self.ledger_id, self.core.lac, why)))
        self.run.stop()
