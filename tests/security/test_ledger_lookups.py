"""Look-ups of ledgers for authorization: shared, few at once, in turns, and without waits for a silent store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bkspark.errors import MetadataError, MetadataFormat
from bkspark.security.authorization import LedgerFacts
from bookie_service.cluster.ledger_lookups import LOOKUPS_AT_ONCE, LedgerLookups
from bookie_service.engine.authorization import Found, Unfound

HOST, OTHER_HOST = "10.0.0.1", "10.0.0.2"


class HeldView:
    """Answers about ledgers when a test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._answers: dict[int, asyncio.Future[LedgerFacts | None]] = {}

    async def facts(self, ledger_id: int) -> LedgerFacts | None:
        self.asked.append(ledger_id)
        self._answers[ledger_id] = asyncio.get_running_loop().create_future()
        return await self._answers[ledger_id]

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


class SilentView:
    """Answers after `answers` is set, and not before."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers = asyncio.Event()
        self.error: Exception | None = None

    async def facts(self, ledger_id: int) -> LedgerFacts | None:
        self.asked.append(ledger_id)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return LedgerFacts(ledger_id)


def with_silent_store(test: Callable[[SilentView, Callable[[int], asyncio.Future[Found]]], Awaitable[None]]) -> None:
    """Run a test with a store that does not answer, and a function that looks a ledger up."""

    async def run() -> None:
        view = SilentView()
        lookups = LedgerLookups(view, seconds_max=0.01)

        def look_up(ledger_id: int) -> asyncio.Future[Found]:
            answered: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
            lookups.look_up(ledger_id, answered.set_result, HOST)
            assert not answered.done(), "the answer must come in a later turn"
            return answered

        await test(view, look_up)

    asyncio.run(run())


def test_requests_do_not_wait_for_a_silent_store_one_after_the_other() -> None:
    """With ZooKeeper stopped, the last of 200 reads of one connection was answered after 28 s."""

    async def test(view: SilentView, look_up: Callable[[int], asyncio.Future[Found]]) -> None:
        many = 20 * LOOKUPS_AT_ONCE
        assert set(await asyncio.gather(*map(look_up, range(many)))) == {Unfound.UNKNOWN}
        assert view.asked == list(range(LOOKUPS_AT_ONCE))
        for ledger_id in range(many, 2 * many):
            assert await look_up(ledger_id) is Unfound.UNKNOWN
        # Only one of the first ones is asked for again, so that the return of the store is noticed.
        assert set(view.asked[LOOKUPS_AT_ONCE:]) <= {view.asked[0]}

    with_silent_store(test)


def test_store_that_answers_again_is_asked_again_for_every_ledger() -> None:
    async def test(view: SilentView, look_up: Callable[[int], asyncio.Future[Found]]) -> None:
        assert await look_up(1) is Unfound.UNKNOWN
        view.answers.set()
        while await look_up(1) is Unfound.UNKNOWN:
            pass
        assert await look_up(1) == LedgerFacts(1)
        ledger_ids = range(2, 2 + 2 * LOOKUPS_AT_ONCE)
        assert await asyncio.gather(*map(look_up, ledger_ids)) == list(map(LedgerFacts, ledger_ids))

    with_silent_store(test)


@pytest.mark.parametrize("error", [MetadataFormat("it is damaged"), ValueError("a defect")], ids=str)
def test_store_that_answers_with_an_error_is_asked_again(error: Exception) -> None:
    async def test(view: SilentView, look_up: Callable[[int], asyncio.Future[Found]]) -> None:
        assert await look_up(1) is Unfound.UNKNOWN
        view.error = error
        view.answers.set()
        while 2 not in view.asked:
            assert await look_up(2) is Unfound.UNKNOWN
        assert await look_up(1) is Unfound.UNKNOWN

    with_silent_store(test)


def test_store_that_answers_others_meanwhile_is_not_taken_for_a_silent_one() -> None:
    """One slow look-up says nothing about the next ones."""

    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for ledger_id in (1, 2):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        await settled()
        await view.answer(2, LedgerFacts(2))
        await view.answer(1, TimeoutError())
        assert found == [(0, LedgerFacts(2)), (0, Unfound.UNKNOWN)]
        for ledger_id in (3, 4):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        await settled()
        assert view.asked == [1, 2, 3, 4]

    with_lookups(test)
