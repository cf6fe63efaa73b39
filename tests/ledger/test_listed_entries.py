"""Which stored entry is next, by the lists of bookies: what a read with losses asks (docs/spark.md)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.ledger.listed import ListedEntries
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from tests.ledger.hostile import Asked, HostileBookie, V3Answer, World, lists, play
from tests.log.logs import until


def says_nothing(asked: Asked) -> None:
    """Leave a V2 request unanswered."""


class Asking:
    """The V3 answers of a bookie that lists entries; counts the requests."""

    def __init__(self, answer: V3Answer) -> None:
        self.requests = 0
        self._answer = answer

    def __call__(self, request: protocol.Request) -> Iterable[protocol.Response]:
        self.requests += 1
        return self._answer(request)


class Late(Asking):
    """The same, but the first answer is sent together with the second."""

    def __call__(self, request: protocol.Request) -> Iterable[protocol.Response]:
        found = list(super().__call__(request))
        if self.requests == 1:
            self._first = found
            return []
        return [*(self._first if self.requests == 2 else []), *found]


def closed_at(last_entry: int, *fragments: tuple[int, tuple[str, ...]]) -> LedgerMetadata:
    size = len(fragments[0][1])
    return LedgerMetadata(
        size,
        size,
        1,
        tuple(Fragment(*each) for each in fragments),
        state=LedgerState.CLOSED,
        last_entry=last_entry,
        length=10,
    )


def test_next_entry_is_the_first_that_any_bookie_of_its_fragment_lists() -> None:
    async def test(world: World) -> None:
        async with (
            HostileBookie(says_nothing, lists([3, 70, 900])) as one,
            HostileBookie(says_nothing, lists([5, 60, 120])) as two,
            HostileBookie(says_nothing, lists([110, 130])) as three,
        ):
            pool = (await world.client().context()).pool
            metadata = closed_at(999, (0, (one.id, two.id)), (100, (two.id, three.id)))
            listed = ListedEntries(pool, 7, metadata)
            found = [await listed.next_from(first, 1_000) for first in (0, 3, 4, 6, 61, 71, 100, 111, 121, 131)]
            # The first bookie lists entry 900, too, but is not named for it.
            assert found == [3, 3, 5, 60, 70, 110, 110, 120, 130, 1_000]
            assert await listed.next_from(6, 60) == 60
            assert await listed.next_from(6, 50) == 50

    play(test)


def test_each_bookie_is_asked_for_its_list_once_and_only_if_it_is_needed() -> None:
    async def test(world: World) -> None:
        first, second = Asking(lists([3])), Asking(lists([100]))
        async with HostileBookie(says_nothing, first) as one, HostileBookie(says_nothing, second) as two:
            pool = (await world.client().context()).pool
            listed = ListedEntries(pool, 7, closed_at(999, (0, (one.id,)), (50, (two.id,))))
            assert [await listed.next_from(0, 1_000) for _ in range(3)] == [3, 3, 3]
            assert (first.requests, second.requests) == (1, 0)
            assert [await listed.next_from(60, 1_000) for _ in range(3)] == [100, 100, 100]
            assert (first.requests, second.requests) == (1, 1)

    play(test)


@pytest.mark.parametrize("refuses", [True, False])
def test_next_entry_is_unknown_if_one_bookie_sends_no_list(refuses: bool) -> None:
    """An entry that it alone has may come before those that the others list."""

    async def test(world: World) -> None:
        async with HostileBookie(says_nothing, lists([3])) as one, HostileBookie(says_nothing, lists(None)) as two:
            pool = (await world.client().context()).pool
            bookies = (one.id, two.id if refuses else "127.0.0.1:1")
            assert await ListedEntries(pool, 7, closed_at(9, (0, bookies))).next_from(0, 10) is None

    play(test)


def test_bookie_that_sent_no_list_in_time_is_asked_again_once_its_list_has_come() -> None:
    """Until then no read waits for it. A bookie that was late once was never asked again, as if it sent no lists."""

    async def test(world: World) -> None:
        answers = Late(lists([3]))
        async with HostileBookie(says_nothing, answers) as bookie:
            pool = (await world.client().context()).pool
            metadata = closed_at(9, (0, (bookie.id,)))
            assert await ListedEntries(pool, 7, metadata).next_from(0, 10) is None
            assert await ListedEntries(pool, 8, metadata).next_from(0, 10) is None
            assert answers.requests == 1
            await (await pool.v3_channel(bookie.id)).entry_list(9)

            async def is_forgiven() -> bool:
                return not pool.without_lists

            await until(is_forgiven, "the late list")
            assert await ListedEntries(pool, 8, metadata).next_from(0, 10) == 3

    play(test)
