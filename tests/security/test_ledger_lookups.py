"""Look-ups of ledgers for authorization: shared, few at once, in turns, and without waits for a silent store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bkspark.errors import MetadataError, MetadataFormat
from bkspark.security.authorization import LedgerFacts
from bookie_service.cluster.ledger_lookups import LOOKUP_S_MAX, LOOKUPS_AT_ONCE, PROBE_PAUSE_S, LedgerLookups
from bookie_service.engine.authorization import Found, Unfound
from tests.simulation.virtual_loop import run_in_virtual_time

HOST, OTHER_HOST = "10.0.0.1", "10.0.0.2"
ABSENT_FROM = 1_000_000
"""The ledgers of a `TimedView` with this id, or a larger one, do not exist."""


class HeldView:
    """Answers about ledgers when a test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._answers: dict[int, asyncio.Future[LedgerFacts | None]] = {}

    async def facts(self, ledger_id: int, on_answer: Callable[[], None]) -> LedgerFacts | None:
        self.asked.append(ledger_id)
        self._answers[ledger_id] = asyncio.get_running_loop().create_future()
        return await self._answers[ledger_id]

    async def ping(self) -> None:
        raise AssertionError("the store is not silent")

    def is_cancelled(self, ledger_id: int) -> bool:
        return self._answers[ledger_id].cancelled()

    async def answer(self, ledger_id: int, found: LedgerFacts | Exception | None) -> None:
        if isinstance(found, Exception):
            self._answers[ledger_id].set_exception(found)
        else:
            self._answers[ledger_id].set_result(found)
        await settled()


async def settled() -> None:
    """Let everything that is ready have its turn."""
    for _ in range(10):
        await asyncio.sleep(0)


def with_lookups(test: Callable[[HeldView, LedgerLookups, list[tuple[int, Found]]], Awaitable[None]]) -> None:
    async def run() -> None:
        view = HeldView()
        await test(view, LedgerLookups(view), [])

    asyncio.run(run())


def test_ledger_is_looked_up_once_for_all_that_ask_together() -> None:
    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for number in range(3):
            lookups.look_up(7, lambda answer, number=number: found.append((number, answer)), HOST)  # type: ignore[misc]
        await settled()
        # This one asks while the look-up runs: that the ledger exists is true for it, too.
        lookups.look_up(7, lambda answer: found.append((9, answer)), HOST)
        facts = LedgerFacts(7)
        await view.answer(7, facts)
        assert found == [(0, facts), (1, facts), (2, facts), (9, facts)]
        assert view.asked == [7]

    with_lookups(test)


def test_request_during_a_look_up_does_not_share_the_result_that_the_ledger_is_missing() -> None:
    """The ledger may have been created after the look-up read."""

    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        lookups.look_up(7, lambda answer: found.append((0, answer)), HOST)
        await settled()
        lookups.look_up(7, lambda answer: found.append((1, answer)), HOST)
        await view.answer(7, None)
        assert found == [(0, Unfound.ABSENT)]
        assert view.asked == [7, 7]
        await view.answer(7, LedgerFacts(7))
        assert found[1:] == [(1, LedgerFacts(7))]

    with_lookups(test)


def test_few_look_ups_run_at_once() -> None:
    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for ledger_id in range(LOOKUPS_AT_ONCE + 5):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        await settled()
        assert view.asked == list(range(LOOKUPS_AT_ONCE))
        await view.answer(3, None)
        assert view.asked == list(range(LOOKUPS_AT_ONCE + 1))

    with_lookups(test)


def test_host_that_asks_for_very_many_ledgers_does_not_delay_another_one() -> None:
    """Also if the first host has asked for the ledger of the other one, to make it wait."""

    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for ledger_id in range(10 * LOOKUPS_AT_ONCE):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        theirs = (9999, 10 * LOOKUPS_AT_ONCE - 1)
        for ledger_id in theirs:
            lookups.look_up(ledger_id, lambda answer: found.append((1, answer)), OTHER_HOST)
        await settled()
        for ledger_id in range(4):
            await view.answer(ledger_id, None)
        assert set(theirs) < set(view.asked[LOOKUPS_AT_ONCE:])
        await view.answer(theirs[1], LedgerFacts(theirs[1]))
        assert found[4:] == [(0, LedgerFacts(theirs[1])), (1, LedgerFacts(theirs[1]))]

    with_lookups(test)


def test_defect_in_one_request_that_waits_is_logged_and_the_others_are_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others waited for ever, and the error was reported when Python forgot the task."""

    def fail(answer: Found) -> None:
        raise ValueError("a defect")

    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        lookups.look_up(7, fail, HOST)
        lookups.look_up(7, lambda answer: found.append((1, answer)), HOST)
        for ledger_id in range(8, LOOKUPS_AT_ONCE + 8):
            lookups.look_up(ledger_id, lambda answer: found.append((2, answer)), HOST)
        await settled()
        await view.answer(7, LedgerFacts(7))
        assert found == [(1, LedgerFacts(7))]
        assert len(view.asked) == LOOKUPS_AT_ONCE + 1

    with_lookups(test)
    (record,) = caplog.records
    assert "ledger 7" in record.getMessage()
    assert record.exc_info is not None


def test_no_request_is_answered_after_the_look_ups_are_closed() -> None:
    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for ledger_id in range(LOOKUPS_AT_ONCE + 1):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        await settled()
        lookups.close()
        for ledger_id in (3, 4):
            if not view.is_cancelled(ledger_id):
                await view.answer(ledger_id, LedgerFacts(ledger_id))
        await settled()
        assert found == []
        assert view.asked == list(range(LOOKUPS_AT_ONCE))
        assert all(map(view.is_cancelled, view.asked))

    with_lookups(test)


@pytest.mark.parametrize("error", [MetadataError("the session is gone"), ValueError("a defect")], ids=str)
def test_failed_look_up_says_that_nothing_is_known(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        lookups.look_up(7, lambda answer: found.append((0, answer)), HOST)
        await settled()
        await view.answer(7, error)
        assert found == [(0, Unfound.UNKNOWN)]

    with_lookups(test)
    assert len(caplog.records) == 1


def test_look_up_that_takes_too_long_says_that_nothing_is_known() -> None:
    async def run() -> None:
        answered: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        LedgerLookups(HeldView(), seconds_max=0.01).look_up(7, answered.set_result, HOST)
        assert await answered is Unfound.UNKNOWN

    asyncio.run(run())


class TimedView:
    """A store, in virtual time, whose answers come `answer_s` after they are asked for; math.inf: never.

    A look-up of a ledger that does not exist takes three answers.
    """

    def __init__(self) -> None:
        self.answer_s = math.inf
        self.asked: list[int] = []
        self.pings = 0
        self.error: Exception | None = None
        """What the store answers in place of facts."""
        self.outage: MetadataError | None = None
        """What every call fails with at the end of `answer_s`; None: nothing."""

    async def facts(self, ledger_id: int, on_answer: Callable[[], None]) -> LedgerFacts | None:
        self.asked.append(ledger_id)
        await self._answer()
        if self.error is not None:
            raise self.error
        if ledger_id < ABSENT_FROM:
            return LedgerFacts(ledger_id)
        for _ in range(2):
            on_answer()
            await self._answer()
        return None

    async def ping(self) -> None:
        self.pings += 1
        await self._answer()
        if self.error is not None:
            raise self.error

    async def _answer(self) -> None:
        if math.isinf(self.answer_s):
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(self.answer_s)
        if self.outage is not None:
            raise self.outage


class TimedLookups:
    """Looks ledgers up in a `TimedView`, and notes when they are answered."""

    def __init__(self) -> None:
        self.view = TimedView()
        self.lookups = LedgerLookups(self.view)

    def look_up(self, ledger_id: int) -> asyncio.Future[tuple[Found, float]]:
        """Return (result, seconds until it came)."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[tuple[Found, float]] = loop.create_future()
        began = loop.time()
        self.lookups.look_up(ledger_id, lambda found: answered.set_result((found, loop.time() - began)), HOST)
        assert not answered.done(), "the answer must come in a later turn"
        return answered

    async def many(self, ledger_ids: Sequence[int]) -> tuple[list[Found], float]:
        """Return (all results, seconds until the last one)."""
        answers = await asyncio.gather(*map(self.look_up, ledger_ids))
        return [found for found, _ in answers], max(seconds for _, seconds in answers)


def in_virtual_time(test: Callable[[TimedLookups], Awaitable[None]]) -> None:
    async def run() -> None:
        timed = TimedLookups()
        await test(timed)
        timed.lookups.close()
        await settled()

    run_in_virtual_time(run())


def test_requests_do_not_wait_for_a_silent_store_one_after_the_other() -> None:
    """With ZooKeeper stopped, the last of 200 reads of one connection was answered after 44 s."""

    async def test(timed: TimedLookups) -> None:
        many = 20 * LOOKUPS_AT_ONCE
        assert await timed.many(range(many)) == (many * [Unfound.UNKNOWN], LOOKUP_S_MAX)
        assert await timed.many(range(many, 2 * many)) == (many * [Unfound.UNKNOWN], 0)
        assert timed.view.asked == list(range(LOOKUPS_AT_ONCE))

    in_virtual_time(test)


def test_requests_do_not_wait_twice_for_a_store_that_falls_silent_in_a_burst() -> None:
    async def test(timed: TimedLookups) -> None:
        timed.view.answer_s = 0.01
        first = [timed.look_up(each) for each in range(3)]
        await asyncio.sleep(0.005)
        rest = [timed.look_up(each) for each in range(3, 10 * LOOKUPS_AT_ONCE)]
        await asyncio.gather(*first)
        timed.view.answer_s = math.inf
        assert max(seconds for _, seconds in await asyncio.gather(*rest)) < LOOKUP_S_MAX + 0.1

    in_virtual_time(test)


def test_store_that_answers_again_is_asked_again_for_every_ledger() -> None:
    async def test(timed: TimedLookups) -> None:
        await timed.look_up(1)
        timed.view.answer_s = 0.01
        await asyncio.sleep(LOOKUP_S_MAX + 2 * PROBE_PAUSE_S)
        ledger_ids = range(2, 2 + 2 * LOOKUPS_AT_ONCE)
        assert (await timed.many(ledger_ids))[0] == list(map(LedgerFacts, ledger_ids))
        pings = timed.view.pings
        await asyncio.sleep(60)
        assert timed.view.pings == pings

    in_virtual_time(test)


def test_answer_to_a_look_up_that_still_runs_ends_the_silence() -> None:
    async def test(timed: TimedLookups) -> None:
        timed.look_up(1)
        await asyncio.sleep(3)
        timed.view.answer_s = 2
        late = timed.look_up(2)
        await asyncio.sleep(1.5)
        assert await timed.look_up(3) == (Unfound.UNKNOWN, 0)
        timed.view.answer_s = 0.1
        assert (await late)[0] == LedgerFacts(2)
        assert (await timed.look_up(3))[0] == LedgerFacts(3)

    in_virtual_time(test)


@pytest.mark.parametrize("error", [MetadataFormat("it is damaged"), ValueError("a defect")], ids=str)
def test_store_that_answers_with_an_error_is_asked_again(error: Exception) -> None:
    async def test(timed: TimedLookups) -> None:
        await timed.look_up(1)
        timed.view.answer_s, timed.view.error = 0.01, error
        await asyncio.sleep(LOOKUP_S_MAX + 2 * PROBE_PAUSE_S)
        found, seconds = await timed.look_up(2)
        assert (found, seconds > 0) == (Unfound.UNKNOWN, True)
        assert 2 in timed.view.asked

    in_virtual_time(test)


@pytest.mark.parametrize("answer_s", [0.7, 1.4, 1.9, 2.1, 3.0, 3.9])
def test_slow_store_is_not_taken_for_a_silent_one(answer_s: float) -> None:
    """One request for a ledger that does not exist made the bookie refuse all others while ZooKeeper was slow."""

    async def test(timed: TimedLookups) -> None:
        timed.view.answer_s = answer_s
        for ledger_id in range(20):
            # It needs three answers, for which there may be no time.
            await timed.look_up(ABSENT_FROM + ledger_id)
            assert (await timed.look_up(ledger_id))[0] == LedgerFacts(ledger_id)

    in_virtual_time(test)


def test_lost_session_is_not_taken_for_silence() -> None:
    """The client connects again at once."""

    async def test(timed: TimedLookups) -> None:
        timed.view.answer_s, timed.view.outage = 0.1, MetadataError("the connection is lost")
        assert (await timed.look_up(1))[0] is Unfound.UNKNOWN
        timed.view.outage = None
        assert (await timed.look_up(2))[0] == LedgerFacts(2)

    in_virtual_time(test)


def test_store_stays_silent_while_it_cannot_be_reached() -> None:
    async def test(timed: TimedLookups) -> None:
        timed.view.answer_s, timed.view.outage = 3.0, MetadataError("the connection is lost")
        assert (await timed.look_up(1))[0] is Unfound.UNKNOWN
        timed.view.answer_s = 0.1
        for _ in range(20):
            await asyncio.sleep(PROBE_PAUSE_S)
            assert await timed.look_up(2) == (Unfound.UNKNOWN, 0)
        assert timed.view.pings > 10

    in_virtual_time(test)


def test_negative_ids_are_absent_and_do_not_count_as_answers_of_the_store() -> None:
    """A client that asked for one again and again kept all others waiting for a silent store."""

    async def test(timed: TimedLookups) -> None:
        waiting = asyncio.ensure_future(timed.many(range(10 * LOOKUPS_AT_ONCE)))
        while not waiting.done():
            assert await timed.look_up(-5) == (Unfound.ABSENT, 0)
            await asyncio.sleep(0.02)
        assert (await waiting)[1] == LOOKUP_S_MAX

    in_virtual_time(test)


def test_look_ups_that_are_closed_ask_a_silent_store_no_more() -> None:
    async def test(timed: TimedLookups) -> None:
        await timed.look_up(1)
        timed.lookups.close()
        await asyncio.sleep(60)
        assert timed.view.pings <= 1

    in_virtual_time(test)
