"""Defects of the shipped client's shells, which run the cores on sockets: each a context in which the product has one.

All that they reach into is imported here, so that a change of the client's structure moves plants in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bkspark.core import effects
from bkspark.core.last_confirmed import LastConfirmed, LastEntries
from bkspark.core.reader import GroupRead
from bkspark.core.recovery import RecoveryCore
from bkspark.core.recovery_window import Response
from bkspark.core.writer import WriterCore
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError, DigestMismatch, MetadataVersion, ReadFailed
from bkspark.ledger import fanout as fanout_shell
from bkspark.ledger import range_reader as range_reader_shell
from bkspark.ledger import reader as reader_shell
from bkspark.ledger import recovery as recovery_shell
from bkspark.ledger import window as window_shell
from bkspark.ledger import writer_run as writer_shell
from bkspark.ledger.fanout import Fanout
from bkspark.ledger.range_reader import RangeReader
from bkspark.ledger.reader import LedgerReader
from bkspark.ledger.replica_reads import ReplicaReads
from bkspark.ledger.window import AppendWindow
from bkspark.ledger.writer import LedgerWriter
from bkspark.ledger.writer_run import WriterRun
from bkspark.net.channel import BookieChannel
from bkspark.net.responses import BAD_DIGEST, LastEntryResponse
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import v2
from bkspark.wire.adds import AddSealer
from bkspark.wire.digest import EntryDigest, OpenedEntry, SealedEntries
from bkspark.wire.flags import AddFlags
from tests.planting import Plant, around, both, changed, replaced

# ---- recovery: what it asks bookies ----


def _on_both_channels(name: str, wrap: Callable[..., Any]) -> Plant:
    return both(around(BookieChannel, name, wrap), around(BookieV3Channel, name, wrap))


def recovery_reads_do_not_fence() -> Plant:
    def read(old: Any, self: Any, ledger_id: int, ids: Any, digest: Any, flags: int = 0, *rest: Any) -> Any:
        return old(self, ledger_id, ids, digest, flags & ~v2.DO_FENCING, *rest)

    return _on_both_channels("read_entries", read)


def first_request_does_not_fence() -> Plant:
    def read(old: Any, self: Any, ledger_id: int, digest: Any, flags: int = 0, *rest: Any) -> Any:
        return old(self, ledger_id, digest, flags & ~v2.DO_FENCING, *rest)

    return _on_both_channels("read_last_entry", read)


# ---- recovery: what it makes of answers ----


def _negative_too(status: v2.Status) -> Callable[[], Plant]:
    return lambda: changed(recovery_shell, "_NEGATIVE", lambda old: (*old, status))


error_is_negative = _negative_too(v2.Status.EIO)
unknown_state_is_negative = _negative_too(v2.Status.EUNKNOWNLEDGERSTATE)


def _read_as_negative(status: int) -> Plant:
    def make(old: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        def answers_of(statuses: np.ndarray) -> np.ndarray:
            answers = old(statuses)
            answers[statuses == status] = Response.NEGATIVE
            return answers

        return answers_of

    return changed(recovery_shell, "_answers_of", make)


def refusal_is_negative() -> Plant:
    return both(_negative_too(v2.Status.ETOOMANYREQUESTS)(), _read_as_negative(v2.Status.ETOOMANYREQUESTS))


def damaged_entry_is_negative() -> Plant:
    return _read_as_negative(BAD_DIGEST)


def fence_answered_with_an_error_counts() -> Plant:
    def answered(old: Any, self: RecoveryCore, slot: int, answer: Response, *rest: Any, **named: Any) -> Any:
        if answer is Response.FAILED and type(named.get("error")) is ReadFailed:
            return old(self, slot, Response.NEGATIVE)
        return old(self, slot, answer, *rest, **named)

    return around(RecoveryCore, "on_fence_answer", answered)


# ---- recovery: what it writes back, and the close ----


def rewritten_as_an_owner() -> Plant:
    return replaced(recovery_shell, "AddFlags", lambda **flags: AddFlags(is_urgent=True))


def rewritten_with_a_moving_lac() -> Plant:
    def make(*arguments: Any, sealed_lac: int, **named: Any) -> LedgerWriter:
        return LedgerWriter(*arguments, **named)

    return replaced(recovery_shell, "LedgerWriter", make)


def rewritten_length_begins_at_zero() -> Plant:
    def submit(old: Any, self: LedgerWriter, batch: Any, length_before: int | None) -> Any:
        return old(self, batch, None if length_before is None else 0)

    return around(LedgerWriter, "submit_batch", submit)


def rewriting_not_awaited() -> Plant:
    async def submit(old: Any, self: LedgerWriter, batch: Any, length_before: int | None) -> Any:
        future = await old(self, batch, length_before)
        if length_before is None:
            return future
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(0)
        return done

    return around(LedgerWriter, "submit_batch", submit)


def changes_of_recovery_forgotten() -> Plant:
    return replaced(RecoveryCore, "on_ensemble_changed", lambda self, fragments: None)


def taken_in_bookie_not_awaited() -> Plant:
    async def reach(old: Any, self: Fanout, but: Any = ()) -> None:
        if not but:
            await old(self)

    return around(Fanout, "drain_backlogs", reach)


def length_of_no_answer() -> Plant:
    async def length_at(self: ReplicaReads, bookie: str, entry_id: int) -> int:
        return 0

    return replaced(ReplicaReads, "length_at", length_at)


def _lost_write_is_done(shell: Any) -> Callable[[], Plant]:
    async def write(ledgers: Any, core: Any, ledger_id: int, effect: effects.WriteMetadata, *_: Any) -> Any:
        try:
            written = await ledgers.write(ledger_id, effect.metadata, effect.expected_version)
            return core.on_metadata_written(written.metadata, written.version)
        except MetadataVersion:
            return core.on_metadata_written(effect.metadata, effect.expected_version + 1)
        except BookKeeperError as error:
            return core.on_metadata_failed(error)

    return lambda: replaced(shell, "write_metadata", write)


recovery_takes_a_lost_write_for_done = _lost_write_is_done(recovery_shell)
owner_takes_a_lost_write_for_done = _lost_write_is_done(writer_shell)


# ---- the writer's links ----


def answers_of_a_dropped_link() -> Plant:
    def drop(self: Fanout, slot: int) -> None:
        self._links.pop(slot)

    def replies(old: Any, self: WriterCore, slot: int, bookie: str, *rest: Any) -> Any:
        return old(self, slot, self.slots.all[slot].bookie, *rest)

    return both(replaced(Fanout, "_drop", drop), around(WriterCore, "on_add_replies", replies))


def lost_connection_not_reported() -> Plant:
    def listener(old: Any) -> Any:
        return lambda on_replies, on_lost: old(on_replies, lambda error: None)

    return changed(fanout_shell, "AddListener", listener)


class _Nothing(list[Any]):
    """Keeps nothing."""

    def append(self, item: Any) -> None:
        """Forget the item."""


def backlog_forgotten() -> Plant:
    def make(old: Any) -> Any:
        def link(bookie: str) -> Any:
            made = old(bookie)
            made.backlog = _Nothing()
            return made

        return link

    return changed(fanout_shell, "BookieLink", make)


def close_does_not_wait_for_connections() -> Plant:
    async def reach(self: Fanout, but: Any = ()) -> None:
        return None

    return replaced(Fanout, "drain_backlogs", reach)


def last_of_chosen_entries_not_sent() -> Plant:
    return around(SealedEntries, "frames", lambda old, self, positions: old(self, positions[:-1]))


def silence_not_noticed() -> Plant:
    def tick(self: WriterRun) -> None:
        self._ticker = self._loop.call_later(writer_shell.TICK_S, self._tick)

    return replaced(WriterRun, "_tick", tick)


# ---- what the writer seals and tells ----


def _sealed(change: Callable[[Any, int, int], tuple[int, int]]) -> Callable[[], Plant]:
    """Seal an owner's batches with another (LAC, length before)."""

    def seal(old: Any, self: AddSealer, batch: Any, lac: int, length_before: int, *context: bytes) -> Any:
        if self._flags.is_recovery:
            return old(self, batch, lac, length_before, *context)
        return old(self, batch, *change(batch, lac, length_before), *context)

    def seal_single(
        old: Any,
        self: AddSealer,
        payload: bytes,
        ledger_id: int,
        entry_id: int,
        lac: int,
        length_before: int,
        *context: bytes,
    ) -> Any:
        if not self._flags.is_recovery:
            lac, length_before = change(EntryBatch.of([payload], ledger_id, entry_id), lac, length_before)
        return old(self, payload, ledger_id, entry_id, lac, length_before, *context)

    return lambda: both(around(AddSealer, "seal", seal), around(AddSealer, "seal_single", seal_single))


lac_sent_too_high = _sealed(lambda batch, lac, length: (batch.first_entry - 1, length))
lac_never_sent = _sealed(lambda batch, lac, length: (-1, length))
lac_sent_one_late = _sealed(lambda batch, lac, length: (max(-1, lac - 1), length))
length_sealed_one_batch_late = _sealed(lambda batch, lac, length: (lac, max(0, length - batch.payload_bytes)))


def reported_one_too_many() -> Plant:
    return changed(window_shell, "settle", lambda old: lambda waits, last_entry: old(waits, last_entry + 1))


def reported_when_sent() -> Plant:
    def wait_for(old: Any, self: AppendWindow, last_entry: int) -> Any:
        future = old(self, last_entry)
        if not future.done():
            future.set_result(last_entry)
        return future

    return around(AppendWindow, "wait_for", wait_for)


def room_never_given_back() -> Plant:
    def acknowledge(old: Any, self: AppendWindow, last_entry: int) -> None:
        before = self._pending_bytes
        old(self, last_entry)
        self._pending_bytes = before

    return around(AppendWindow, "acknowledge", acknowledge)


def waiting_for_room_forgotten() -> Plant:
    return replaced(AppendWindow, "look_for_room", lambda self: None)


# ---- readers ----


def reader_takes_the_lac_heard_last() -> Plant:
    def joined(old: Any, self: LastEntries, other: LastEntries) -> LastEntries:
        return replace(old(self, other), lac=other.lac)

    return around(LastEntries, "joined", joined)


def refreshed_lac_may_fall() -> Plant:
    heard: list[LastEntries] = []

    async def ask(old: Any, *arguments: Any) -> LastEntries:
        heard.append(await old(*arguments))
        return heard[-1]

    def adopt(old: Any, self: LedgerReader, stored: Any) -> None:
        old(self, stored)
        if heard:
            self._last = heard.pop()

    return both(
        changed(reader_shell, "last_entries", lambda old: lambda *arguments: ask(old, *arguments)),
        around(LedgerReader, "_adopt", adopt),
    )


def reader_is_content_with_one_answer() -> Plant:
    return changed(LastConfirmed, "is_covered", lambda old: property(lambda self: bool(self._known)))


def failed_answer_covers_a_reader() -> Plant:
    def failed(old: Any, self: LastConfirmed, error: BookKeeperError) -> None:
        old(self, error)
        bookies = self._metadata.last_fragment.bookies
        if isinstance(error, (DigestMismatch, ReadFailed)) and error.bookie in bookies:
            self.on_nothing(bookies.index(error.bookie))

    return around(LastConfirmed, "on_failure", failed)


def moved_entries_not_looked_for() -> Plant:
    async def batches(self: LedgerReader, first_entry: int, end_entry: int, batch_bytes: int) -> Any:
        async for batch in self._range.batches(first_entry, end_entry, batch_bytes):
            yield batch

    return replaced(LedgerReader, "_batches", batches)


def one_replica_asked() -> Plant:
    def next_replica(old: Any, self: GroupRead) -> str | None:
        return None if self.is_asked else old(self)

    return around(GroupRead, "next_replica", next_replica)


def rest_of_a_span_forgotten() -> Plant:
    async def read_span(old: Any, self: RangeReader, span: Any, bytes_max: int) -> EntryBatch:
        batch = await old(self, span, bytes_max)

        class Whole(EntryBatch):
            """Says that it ends with its span."""

            @property
            def end_entry(self) -> int:
                return span.end_entry

        return Whole(batch.buffer, batch.offsets, batch.ledger_id, batch.first_entry)

    return around(RangeReader, "read_span", read_span)


def striped_entries_out_of_order() -> Plant:
    def interleave(old: Any) -> Any:
        def mixed(parts: Sequence[Any], span: Any) -> Any:
            is_even = len({len(part) for part in parts}) == 1
            return old([*parts[1:], parts[0]] if is_even else parts, span)

        return mixed

    return changed(range_reader_shell, "_interleave", interleave)


# ---- digests ----


def digests_not_checked() -> Plant:
    def fault_of(old: Any, self: EntryDigest, *entry: Any) -> str | None:
        fault = old(self, *entry)
        return None if fault == "does not match its digest" else fault

    return both(
        around(EntryDigest, "_matching", lambda old, self, view, fronts, starts, ends: np.ones(len(starts), bool)),
        around(EntryDigest, "fault_of", fault_of),
    )


def last_entry_believed() -> Plant:
    def of(old: Any) -> Any:
        def answer(kind: type[LastEntryResponse], status: int, body: bytes, ledger_id: int, digest: Any) -> Any:
            checked = old.__func__(kind, status, body, ledger_id, digest)
            if checked.status != BAD_DIGEST:
                return checked
            numbers = [int.from_bytes(body[at : at + 8], "big", signed=True) for at in (8, 16, 24)]
            return kind(v2.EOK, OpenedEntry(*numbers, bytes(body[digest.overhead_bytes :])))

        return classmethod(answer)

    return changed(LastEntryResponse, "of", of)
