"""Defects of tails, explicit LACs and relaxed durability in the shipped client and bookie, each a context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bkspark.core.explicit_lac import ExplicitLac
from bkspark.core.tail import Tail
from bkspark.ledger.tail import TailWatch
from bkspark.wire.status import Status
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.deferrals import Deferrals, TakenAdds
from bookie_service.network.v3_long_poll import LongPollRead
from tests.planting import Plant, around, both


@dataclass(frozen=True, slots=True)
class TailMutant:
    """A defect; `plant()` is a context in which the product has it."""

    name: str
    plant: Callable[[], Plant]


def _poll_that_tells_one_more_is_believed() -> Plant:
    def believe(old: Any, self: Tail, bookie: str, hint: int | None, now_ns: int) -> Any:
        todo = old(self, bookie, hint, now_ns)
        if hint is not None and hint > self.lac:
            self._learn(hint)
        return todo

    def answer(old: Any, self: LongPollRead) -> Any:
        self._lac += 1
        return old(self)

    return both(around(LongPollRead, "_answer", answer), around(Tail, "on_polled", believe))


def _explicit_lac_of_what_comes_next() -> Plant:
    return around(ExplicitLac, "on_interval", lambda old, self, lac, ensemble: old(self, lac + 3, ensemble))


def _entry_handed_out_twice() -> Plant:
    def take(old: Any, self: TailWatch, entry_id: int) -> Any:
        early = self._early
        return early if early is not None and early.first_entry <= self._core.lac else None

    return around(TailWatch, "take_entry", take)


def _ends_with_the_first_news() -> Plant:
    def wait(old: Any, self: TailWatch, lac: int) -> Any:
        async def waited() -> None:
            await old(self, lac)
            self._reader._metadata = self._reader._metadata.closed(self._core.lac, 0)  # type: ignore[attr-defined]

        return waited()

    return around(TailWatch, "wait_beyond", wait)


def _counted_when_taken() -> Plant:
    def take(old: Any, self: Deferrals, ledgers: Any) -> TakenAdds:
        taken: TakenAdds = old(self, ledgers)
        taken.count()
        return taken

    return around(Deferrals, "take", take)


def _force_answered_at_once() -> Plant:
    def force(old: Any, self: Bookie, client: Any, ledger_id: int, encode: Any) -> None:
        client.send(encode(Status.EOK))

    return around(Bookie, "force", force)


def _force_leaves_the_write_cache() -> Plant:
    """A force of what bypassed the journal syncs the journal, where nothing of it is."""

    def force(old: Any, self: Bookie, client: Any, ledger_id: int, encode: Any) -> None:
        self._force_journal(client, ledger_id, encode)

    return around(Bookie, "force", force)


TAIL_MUTANTS = (
    TailMutant("a long poll tells a LAC one too high, and it is believed", _poll_that_tells_one_more_is_believed),
    TailMutant("the explicit LAC is above the writer's", _explicit_lac_of_what_comes_next),
    TailMutant("an entry that came with the news is handed out twice", _entry_handed_out_twice),
    TailMutant("a tail ends where it hears something", _ends_with_the_first_news),
    TailMutant("deferred adds count as synced when taken", _counted_when_taken),
    TailMutant("a force is answered at once", _force_answered_at_once),
    TailMutant("a force leaves what bypassed the journal in the write cache", _force_leaves_the_write_cache),
)
