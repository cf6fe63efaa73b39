"""The defects of `mutants` in garbage collection and compaction; see `planted`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bkspark.errors import BookKeeperError
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.compaction import SUFFIX
from bookie_service.gc import gc_policy
from bookie_service.gc.deletion_proofs import DeletionProofs
from bookie_service.gc.garbage_collector import GarbageCollector
from bookie_service.storage.index.per_ledger import PerLedgerIndex
from bookie_service.storage.ledgers.base import BaseLedgerStorage
from bookie_service.storage.ledgers.tombstones import Tombstones
from bookie_service.storage.ledgers.write_watch import WriteWatch
from bookie_service.storage.logs import compaction
from bookie_service.storage.logs.compaction import Compactor
from bookie_service.storage.logs.entry_log import EntryLogs
from tests.bookie.collecting import intended_copy
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.planting import skipping
from tests.crash.simulated_files import SimulatedFile
from tests.planting import Plant, both, changed, replaced

# ---- rewriting a log ----


def unsynced_copy() -> Plant:
    def make(old: Any) -> Any:
        return lambda self: None if self.path.endswith(SUFFIX) else old(self)

    return changed(SimulatedFile, "sync_data", make)


def removed_before_move() -> Plant:
    async def compact(self: GarbageCollector, log_id: int, report: Any) -> bool:
        intent = await self._in_thread(intended_copy, self._compactor, log_id)
        await self._in_thread(self._compactor.remove, log_id)
        if intent is not None:
            await self._in_thread(self._compactor.finish, intent, self._pace())
            await self._in_thread(self._compactor.forget_intent)
        self._store.forget_log(log_id)
        return True

    return replaced(GarbageCollector, "_compact", compact)


def unsynced_move() -> Plant:
    return skipping(Compactor, "_move", "sync_data")


def unsynced_adopted_name() -> Plant:
    return skipping(EntryLogs, "adopt", "sync_directory")


def kept_temporary() -> Plant:
    def make(old: Any) -> Any:
        def recover(self: Compactor) -> list[str]:
            with changed(compaction, "SUFFIX", lambda suffix: "of no file"):
                return old(self)

        return recover

    return changed(Compactor, "recover", make)


def kept_intent() -> Plant:
    return replaced(Compactor, "forget_intent", lambda self: None)


def moved_over_newer() -> Plant:
    return replaced(Compactor, "_is_replaced", lambda self, intent, ledger_id, ids, stored: np.ones(len(stored), bool))


def last_move_missing() -> Plant:
    def make(old: Any) -> Any:
        return lambda self, intent, moved, index: old(self, intent, moved[:, :-1], index) if moved.size > 3 else None

    return changed(Compactor, "_move", make)


def first_row_not_copied() -> Plant:
    def make(old: Any) -> Any:
        def live_rows(window: Any, index: Any) -> np.ndarray:
            live = old(window, index)
            live[: int(np.argmax(live)) + 1] = False
            return live

        return live_rows

    return changed(compaction, "live_rows", make)


# ---- which logs go ----


def short_map() -> Plant:
    def make(old: Any) -> Any:
        return lambda ledger_ids, ledger_bytes: old(ledger_ids[:-1], ledger_bytes[:-1])

    return changed(log_format, "encode_map", make)


def nearly_dead_is_dead() -> Plant:
    def make(old: Any) -> Any:
        def usage(*arguments: Any) -> gc_policy.LogUsage:
            found = old(*arguments)
            return found if found.share >= 0.5 else replace(found, live_bytes=0)

        return usage

    return changed(gc_policy, "usage", make)


def open_log_collected() -> Plant:
    return replaced(EntryLogs, "rotated", lambda self: sorted(self._paths))


# ---- which ledgers go ----


def one_proof() -> Plant:
    async def round_of_proofs(self: DeletionProofs, pace: Any, on_kept: Any, now_s: float) -> np.ndarray:
        unlisted = gc_policy.UnlistedLedgers(self._index.ledger_ids())
        async for page in self._metadata_view.listed():
            unlisted.note(page)
        return unlisted.ledger_ids()

    return replaced(DeletionProofs, "_round", round_of_proofs)


def failure_is_proof() -> Plant:
    class Trusting:
        """A view whose failures count as "deleted"."""

        def __init__(self, metadata_view: Any) -> None:
            self._metadata_view = metadata_view
            self.elsewhere = metadata_view.elsewhere

        async def listed(self) -> AsyncIterator[np.ndarray]:
            with contextlib.suppress(BookKeeperError):
                async for page in self._metadata_view.listed():
                    yield page

        async def catch_up(self) -> None:
            with contextlib.suppress(BookKeeperError):
                await self._metadata_view.catch_up()

        async def is_deleted(self, ledger_id: int) -> bool:
            try:
                return await self._metadata_view.is_deleted(ledger_id)
            except BookKeeperError:
                return True

    def make(old: Any) -> Any:
        def init(
            self: GarbageCollector, store: Any, compactor: Any, metadata_view: Any, *arguments: Any, **named: Any
        ) -> None:
            old(self, store, compactor, Trusting(metadata_view), *arguments, **named)

        return init

    return changed(GarbageCollector, "__init__", make)


def listed_before_own() -> Plant:
    def make(old: Any) -> Any:
        async def deleted(self: DeletionProofs, pace: Any, on_kept: Any, *, is_forced: bool) -> np.ndarray:
            listed = [page async for page in self._metadata_view.listed()]

            async def listing() -> AsyncIterator[np.ndarray]:
                for page in listed:
                    yield page

            with changed(type(self._metadata_view), "listed", lambda old: lambda metadata_view: listing()):
                return await old(self, pace, on_kept, is_forced=is_forced)

        return deleted

    return changed(DeletionProofs, "deleted", make)


def never_caught_up() -> Plant:
    """A server that lags behind is believed."""
    return _catching_up(lambda calls: False)


def caught_up_once() -> Plant:
    """The session catches up before the listing, and not before the direct reads."""
    return _catching_up(lambda calls: calls % 2 == 1)


def _catching_up(does: Callable[[int], bool]) -> Plant:
    def make(old: Any) -> Any:
        calls: Counter[Any] = Counter()

        async def catch_up(self: DoubtfulMetadataView) -> None:
            calls[self] += 1
            if does(calls[self]):
                await old(self)

        return catch_up

    return changed(DoubtfulMetadataView, "catch_up", make)


# ---- ledgers that were fenced ----


def no_tombstones() -> Plant:
    return replaced(Tombstones, "remember", lambda self, ledger_ids, now_s: None)


@contextlib.contextmanager
def late_tombstones() -> Iterator[None]:
    """The ledgers are dropped first, and the record that they were fenced comes later."""
    late: list[tuple[Any, ...]] = []

    def remembering(old: Any) -> Any:
        return lambda *arguments: late.append((old, *arguments))

    def dropping(old: Any) -> Any:
        async def drop(*arguments: Any) -> None:
            await old(*arguments)
            for remember, *rest in late:
                remember(*rest)
            late.clear()

        return drop

    with changed(Tombstones, "remember", remembering), changed(GarbageCollector, "_drop", dropping):
        yield


def unsynced_tombstones() -> Plant:
    return skipping(Tombstones, "remember", "sync_data")


def forgotten_fence() -> Plant:
    def make(old: Any) -> Any:
        return lambda self, ledger_ids: [(ledger_id, False) for ledger_id, _ in old(self, ledger_ids)]

    return changed(BaseLedgerStorage, "droppable", make)


def removed_without_a_note() -> Plant:
    return replaced(PerLedgerIndex, "disown", lambda self, ledger_ids: None)


def written_dropped() -> Plant:
    """A ledger that is written while its deletion is proven is dropped."""
    return replaced(WriteWatch, "note", lambda self, *ledger_ids: None)


def listed_last_and_dropped() -> Plant:
    """The bookie's own ledgers are listed after all ledgers; those that were written meanwhile are dropped, too."""
    return both(listed_before_own(), written_dropped())
