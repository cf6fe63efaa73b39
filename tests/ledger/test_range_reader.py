"""Which bookies a range is read from, and in what pieces, on real sockets: docs/protocol.md §5.9."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.reader import EntrySpan
from bkspark.core.speeds import (
    KNOWN_ANSWERS_MIN,
    SPECULATIVE_DELAY_FACTOR,
    SPECULATIVE_SAVED_MAX,
    TRY_AGAIN_S,
    ReadSpeeds,
)
from bkspark.errors import ClientClosed, NoSuchEntry, ReadFailed
from bkspark.ledger.range_reader import (
    READ_AHEAD_SPANS,
    SCAN_BYTES_MIN,
    SPAN_ENTRIES_FIRST,
    RangeReader,
    mean_entry_bytes,
    planned_reader,
)
from bkspark.net.pool import BookiePool, NetOptions, resolver
from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.ledger.hostile import DIGEST, Asked, HostileBookie, reply, sealed
from tests.planting import around

LEDGER = 7
FOR_EVER_S = 3600.0
"""A time that no test waits for."""
Answer = Callable[[Asked], bytes | None]


def payload_of(entry_id: int) -> bytes:
    return b"%010d" % entry_id


def entry_of(entry_id: int, payload: bytes | None = None) -> bytes:
    payload = payload_of(entry_id) if payload is None else payload
    return sealed(LEDGER, entry_id, payload=payload, length=len(payload))


def holds(end_entry: int, first_entry: int = 0, *, beyond: int = Status.ENOENTRY, at_once: int = 1 << 30) -> Answer:
    """A bookie that has the entries from one to another; `at_once`: how many it returns in a batch."""

    def answer(asked: Asked) -> bytes:
        if not first_entry <= asked.entry_id < end_entry:
            return reply(asked, status=beyond)
        if asked.opcode == v2.READ:
            return reply(asked, body=entry_of(asked.entry_id))
        end = min(end_entry, asked.entry_id + min(asked.entries_max, at_once))
        items = [entry_of(entry_id) for entry_id in range(asked.entry_id, end)]
        return reply(asked, body=b"".join(len(item).to_bytes(4, "big") + item for item in items))

    return answer


def fails(asked: Asked) -> bytes:
    return reply(asked, status=Status.EIO)


def silent(asked: Asked) -> None:
    return None


def metadata_of(bookies: list[HostileBookie], write_quorum: int | None = None) -> LedgerMetadata:
    size = len(bookies)
    return LedgerMetadata(size, write_quorum or size, 1, (Fragment(0, tuple(bookie.id for bookie in bookies)),))


def pool_of(bookies: list[HostileBookie], **net: Any) -> BookiePool:
    addresses = {bookie.id: ("127.0.0.1", int(bookie.id.rpartition(":")[2])) for bookie in bookies}
    options = {"read_timeout_s": FOR_EVER_S, "speculative_read_s": FOR_EVER_S, "local_reads": False, **net}
    return BookiePool(resolver(addresses), NetOptions(**options))


def play(answers: list[Answer], test: Callable[[BookiePool, list[HostileBookie]], Awaitable[None]], **net: Any) -> None:
    async def call() -> None:
        bookies = [HostileBookie(answer) for answer in answers]
        for bookie in bookies:
            await bookie.__aenter__()
        pool = pool_of(bookies, **net)
        try:
            async with asyncio.timeout(20):
                await test(pool, bookies)
        finally:
            await pool.close()
            for bookie in bookies:
                await bookie.__aexit__()

    asyncio.run(call())


def reader_of(
    pool: BookiePool, bookies: list[HostileBookie], preferred: int | None = 0, **metadata: Any
) -> RangeReader:
    name = None if preferred is None else bookies[preferred].id
    return RangeReader(pool, LEDGER, metadata_of(bookies, **metadata), DIGEST, name)


async def read(reader: RangeReader, first_entry: int, end_entry: int, **options: Any) -> list[bytes]:
    return [bytes(entry) async for batch in reader.batches(first_entry, end_entry, **options) for entry in batch]


def entries(first_entry: int, end_entry: int) -> list[bytes]:
    return [payload_of(entry_id) for entry_id in range(first_entry, end_entry)]


# ---- which bookie ----


def test_bookie_that_answers_takes_the_place_of_the_preferred_one_that_does_not() -> None:
    """The next one is asked at once, without a pause, and first from then on."""

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = reader_of(pool, bookies)
        for _ in range(5):
            assert await read(reader, 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [1, 5, 0]

    play([fails, holds(9), holds(9)], test)


def test_reader_without_a_preference_keeps_the_order_of_the_ensemble() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = reader_of(pool, bookies, preferred=None)
        for _ in range(3):
            assert await read(reader, 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [3, 3]

    play([fails, holds(9)], test)


def test_slow_bookies_answer_counts_when_the_next_one_has_nothing() -> None:
    """The first bookie answers when the second one has said that it has no entry."""
    asked_second: list[Asked] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not asked_second:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        first_entry, request_id, entries_max = (int.from_bytes(body[at : at + 8], "big") for at in (12, 20, 24))
        request = Asked(v2.BATCH_READ, LEDGER, first_entry, body, request_id, entries_max & 0xFFFFFFFF)
        writer.write(holds(9)(request) or b"")
        await writer.drain()

    def second(asked: Asked) -> bytes:
        asked_second.append(asked)
        return reply(asked, status=Status.ENOENTRY)

    async def call() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with HostileBookie(second) as other:
            slow = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            names = {name: ("127.0.0.1", int(name.rpartition(":")[2])) for name in (slow, other.id)}
            options = NetOptions(read_timeout_s=FOR_EVER_S, speculative_read_s=0.05, local_reads=False)
            pool = BookiePool(resolver(names), options)
            metadata = LedgerMetadata(2, 2, 1, (Fragment(0, (slow, other.id)),))
            async with asyncio.timeout(20):
                assert await read(RangeReader(pool, LEDGER, metadata, DIGEST, slow), 0, 9) == entries(0, 9)
            assert len(other.asked) == 1
            await pool.close()
        server.close()

    asyncio.run(call())


def test_silent_bookies_delay_a_read_by_the_speculative_time_each_and_fail_none() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        assert await read(reader_of(pool, bookies), 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [1, 1, 1]

    play([silent, silent, holds(9)], test, speculative_read_s=0.05)


def test_failure_of_a_further_bookie_is_followed_by_the_next_one_while_the_first_is_silent() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        assert await read(reader_of(pool, bookies), 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [1, 1, 1]

    play([silent, fails, holds(9)], test, speculative_read_s=0.05)


def test_next_bookie_is_asked_for_what_the_first_one_lacks_and_for_no_more() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        assert await read(reader_of(pool, bookies), 0, 9) == entries(0, 9)
        assert [each.entry_id for each in bookies[0].asked] == [0, 5]
        assert [(each.entry_id, each.entries_max) for each in bookies[1].asked] == [(5, 4)]

    play([holds(5), holds(9)], test)


@pytest.mark.parametrize(("second", "error"), [(holds(5), NoSuchEntry), (fails, ReadFailed), (holds(3), NoSuchEntry)])
def test_entry_is_missing_only_if_every_bookie_says_so(second: Answer, error: type[Exception]) -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        for preferred in (0, 1):
            with pytest.raises(error) as raised:
                await read(reader_of(pool, bookies, preferred), 0, 9)
            assert (raised.value.ledger_id, raised.value.entry_id) == (LEDGER, 5)
            for bookie in bookies:
                assert bookie.id in str(raised.value)

    play([holds(5), second], test)


def test_error_names_the_entry_that_could_not_be_read() -> None:
    """The first batch ends with the error of its next entry: the reader's error is about that one."""

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        with pytest.raises(ReadFailed, match=f"ledger {LEDGER} entry 5 .*answered with status {int(Status.EIO)}"):
            await read(reader_of(pool, bookies), 2, 9)

    play([holds(5, beyond=Status.EIO)], test)


def test_error_names_the_entry_of_a_striped_ledger_that_could_not_be_read() -> None:
    """The first bookie has every third entry: after entries 0 and 3 comes entry 6, and not entry 2."""

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        with pytest.raises(ReadFailed) as raised:
            await read(reader_of(pool, bookies, write_quorum=1), 0, 9)
        assert raised.value.entry_id == 6
        assert f"ledger {LEDGER} entry 6 at bookie {bookies[0].id}: answered with status" in str(raised.value)

    play([holds(6, beyond=Status.EIO), holds(9), holds(9)], test)


@pytest.mark.parametrize("nothing", [Status.ENOENTRY, Status.ENOLEDGER])
def test_bookie_that_does_not_know_the_ledger_does_not_have_the_entry(nothing: Status) -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        with pytest.raises(NoSuchEntry):
            await read(reader_of(pool, bookies), 0, 9)

    play([holds(0, beyond=nothing), holds(0)], test)


def test_planned_readers_of_different_ledgers_begin_with_different_bookies() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        metadata = metadata_of(bookies)
        for ledger_id, first in ((6, 0), (7, 1), (8, 2), (10, 1)):
            before = len(bookies[first].asked)
            with pytest.raises(NoSuchEntry):
                await read(planned_reader(pool, ledger_id, metadata, b""), 0, 1)
            assert bookies[first].asked[before].ledger_id == ledger_id
            order = [number for number, bookie in enumerate(bookies) if bookie.asked[-1].ledger_id == ledger_id]
            assert order == [0, 1, 2]
            assert planned_reader(pool, ledger_id, metadata, b"").preferred == bookies[first].id

    play([holds(0), holds(0), holds(0)], test)


def know(pool: BookiePool, bookie: HostileBookie, seconds: float) -> None:
    """Let a client know a bookie that takes so long to answer: much longer than any answer here, so that the client is
    patient."""
    for _ in range(KNOWN_ANSWERS_MIN):
        pool.speeds.on_answer(bookie.id, 90, seconds, asyncio.get_running_loop().time())


def test_reader_that_reads_much_asks_the_other_bookies_once_to_compare() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = reader_of(pool, bookies)
        know(pool, bookies[0], 1000.0)
        assert await read(reader, 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [0, 1, 0]
        assert await read(reader, 0, 9) == entries(0, 9)
        assert len(bookies[2].asked) == 1

    play([holds(9), holds(9), holds(9)], test)


def test_bookie_that_could_not_be_reached_is_not_asked_to_compare() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        (reader, later), gone = (reader_of(pool, bookies, preferred=1) for _ in range(2)), bookies[1]
        others, name = [bookies[0], bookies[2]], gone.id
        await gone.__aexit__()
        assert await read(reader, 0, 9) == entries(0, 9)
        for bookie in others:
            know(pool, bookie, 1000.0)
        asked: list[str] = []

        async def noted(old: Any, pool: BookiePool, bookie: str, *more: Any) -> Any:
            asked.append(bookie)
            return await old(pool, bookie, *more)

        with around(BookiePool, "channel", noted):
            for _ in range(3):
                assert await read(later, 0, 9) == entries(0, 9)
        assert name not in asked, "nor first, as the preferred one"
        assert sorted(len(bookie.asked) for bookie in others) == [0, 4]

    play([holds(9), holds(9), holds(9)], test)


def test_comparison_passes_over_a_bookie_that_could_not_be_reached_and_moves_no_preference() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = reader_of(pool, bookies)
        await bookies[0].__aexit__()
        assert await read(reader, 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [0, 1, 0]
        know(pool, bookies[1], 1000.0)
        assert await read(reader, 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [0, 1, 1]
        assert reader.preferred == bookies[1].id

    play([holds(9), holds(9), holds(9)], test)


def test_slow_bookie_is_asked_last_though_it_is_preferred() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        for bookie, seconds in zip(bookies, (9000.0, 1000.0, 2000.0)):
            know(pool, bookie, seconds)
        assert await read(reader_of(pool, bookies), 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [0, 1, 0]

    play([holds(9), holds(9), holds(9)], test)


def test_slow_bookie_is_asked_first_when_its_speed_is_to_be_learned_again() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader, now_s = reader_of(pool, bookies, preferred=1), asyncio.get_running_loop().time()
        for bookie, seconds, at_s in zip(bookies, (9000.0, 1000.0), (now_s - TRY_AGAIN_S - 1.0, now_s)):
            for _ in range(KNOWN_ANSWERS_MIN):
                pool.speeds.on_answer(bookie.id, 90, seconds, at_s)
        assert bookies[0].id in pool.speeds.slow([bookie.id for bookie in bookies], 90, now_s)
        assert await read(reader, 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [1, 0]

    play([holds(9), holds(9)], test)


def test_further_bookie_is_asked_when_an_answer_takes_longer_than_usual() -> None:
    """Not only after the speculative time, which is for ever here."""

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        metadata = metadata_of(bookies).closed(8, 90)
        for bookie in bookies:
            know(pool, bookie, 0.01)
        assert await read(RangeReader(pool, LEDGER, metadata, DIGEST, bookies[0].id), 0, 9) == entries(0, 9)
        assert [len(bookie.asked) for bookie in bookies] == [1, 1]

    play([silent, holds(9)], test)


@pytest.mark.parametrize(("first", "further"), [(silent, 1), (fails, 0), (holds(9), 0)])
def test_only_requests_beside_one_that_is_not_answered_count_as_further_ones(first: Answer, further: int) -> None:
    """Their share of all requests is limited."""
    counted: list[object] = []

    def noted(old: Any, speeds: ReadSpeeds) -> None:
        counted.append(speeds)
        old(speeds)

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        assert await read(reader_of(pool, bookies), 0, 9) == entries(0, 9)
        assert len(counted) == further

    with around(ReadSpeeds, "on_speculative_read", noted):
        play([first, holds(9)], test, speculative_read_s=0.05 if further else FOR_EVER_S)


def test_read_of_a_bookie_that_another_one_overtakes_is_given_up() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        assert await read(reader_of(pool, bookies), 0, 9) == entries(0, 9)
        await asyncio.sleep(0)
        reading = [task for task in asyncio.all_tasks() if "ReplicaReads" in repr(task.get_coro())]
        assert not reading

    play([silent, holds(9)], test, speculative_read_s=0.001)


def test_bookie_that_another_one_overtakes_is_as_slow_as_it_was_waited_for() -> None:
    """Its answer never comes, so that it would stay the first to be asked."""
    waited_s = 0.05

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        assert await read(reader_of(pool, bookies), 0, 9) == entries(0, 9)
        known_s = pool.speeds.speculative_delay_s([bookies[0].id], 90, asyncio.get_running_loop().time())
        assert known_s is not None
        assert known_s > SPECULATIVE_DELAY_FACTOR * 0.9 * waited_s  # a timer may be a little early
        assert bookies[0].id in pool.speeds.slow(
            [bookie.id for bookie in bookies], 90, asyncio.get_running_loop().time()
        )

    play([silent, holds(9)], test, speculative_read_s=waited_s)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_speed_of_a_bookie_is_learned_where_there_is_another_one_to_ask(count: int) -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        assert await read(reader_of(pool, bookies), 0, 9) == entries(0, 9)
        is_known = pool.speeds.speculative_delay_s([bookies[0].id], 90, asyncio.get_running_loop().time()) is not None
        assert is_known == (count > 1)

    play([holds(9)] * count, test)


def test_requests_that_needed_no_further_bookie_do_not_count_as_such() -> None:
    """Otherwise none would be asked when one is slow: their number is limited."""

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = reader_of(pool, bookies)
        know(pool, bookies[0], 1000.0)
        know(pool, bookies[1], 1000.0)
        for _ in range(int(2 * SPECULATIVE_SAVED_MAX)):
            assert await read(reader, 0, 9) == entries(0, 9)
        now_s = asyncio.get_running_loop().time()
        assert pool.speeds.speculative_delay_s([bookies[0].id], 90, now_s) is not None
        assert len(bookies[0].asked) == int(2 * SPECULATIVE_SAVED_MAX)

    play([holds(9), holds(9)], test)


def test_local_read_is_tried_only_for_entries_that_no_bookie_was_asked_for_yet() -> None:
    """The first bookie's entry 5 is damaged: what follows comes from the next bookie, over the network."""
    tried: list[tuple[str, int]] = []

    def last_damaged(asked: Asked) -> bytes:
        answer = bytearray(holds(9, at_once=6)(asked) or b"")
        answer[-1] ^= 1
        return bytes(answer)

    async def noted(old: Any, pool: BookiePool, bookie: str, ledger_id: int, first_entry: int, *more: Any) -> Any:
        tried.append((bookie, first_entry))
        return await old(pool, bookie, ledger_id, first_entry, *more)

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        one, other = bookies
        metadata = metadata_of(bookies).closed(8, 9 * SCAN_BYTES_MIN)
        reader = RangeReader(pool, LEDGER, metadata, DIGEST, one.id)
        span = EntrySpan(0, 9, (one.id, other.id))
        assert list(await reader.read_span(span, 1 << 30)) == entries(0, 9)
        assert tried == [(one.id, 0)]
        assert [each.entry_id for each in other.asked] == [5]

    with around(BookiePool, "read_local", noted):
        play([last_damaged, holds(9)], test, local_reads=True)


def test_bookie_that_a_local_read_could_not_reach_is_not_asked_over_the_network_as_well() -> None:
    """That would take as long again; and its failure is the first cause if no other bookie answers."""
    asked: list[str] = []

    async def noted(old: Any, pool: BookiePool, bookie: str, *more: Any) -> Any:
        asked.append(bookie)
        return await old(pool, bookie, *more)

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        names = tuple(bookie.id for bookie in bookies)
        metadata, span = metadata_of(bookies).closed(8, 9 * SCAN_BYTES_MIN), EntrySpan(0, 9, names)
        for bookie in bookies:
            await bookie.__aexit__()
        with pytest.raises(ReadFailed) as raised:
            await RangeReader(pool, LEDGER, metadata, DIGEST, names[0]).read_span(span, 1 << 30)
        assert asked == [*names]
        assert raised.value.bookie == names[0]

    with around(BookiePool, "channel", noted):
        play([holds(9), holds(9)], test, local_reads=True)


def test_read_under_which_the_client_is_closed_says_so() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reading = asyncio.ensure_future(read(reader_of(pool, bookies), 0, 9))
        while not bookies[0].asked:
            await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(ClientClosed):
            await reading

    play([silent, holds(9)], test)


def test_planned_reader_takes_copies_that_apaches_repair_has_sealed() -> None:
    """In a closed ledger they may carry its last entry as their LAC, and nothing above."""

    def copies(lac: int) -> Answer:
        def answer(asked: Asked) -> bytes:
            items = [sealed(LEDGER, entry_id, lac=lac, payload=payload_of(entry_id)) for entry_id in range(9)]
            return reply(asked, body=b"".join(len(item).to_bytes(4, "big") + item for item in items))

        return answer

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        right, wrong = bookies
        for bookie, error in ((right, None), (wrong, ReadFailed)):
            metadata = metadata_of([bookie]).closed(8, 90)
            with pytest.raises(error) if error else contextlib.nullcontext():
                assert await read(planned_reader(pool, LEDGER, metadata, b""), 0, 9) == entries(0, 9)

    play([copies(8), copies(9)], test)


# ---- in what pieces ----


def test_spans_of_entries_of_known_size_have_about_the_bytes_that_the_caller_wants() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        metadata = metadata_of(bookies).closed(99, 1000)
        reader = RangeReader(pool, LEDGER, metadata, DIGEST, bookies[0].id)
        batches = [batch async for batch in reader.batches(0, 100, batch_bytes=125)]
        assert [len(batch) for batch in batches] == [12] * 8 + [4]
        assert [each.entries_max for each in bookies[0].asked] == [12] * 8 + [4]
        # Entries that are larger than that come one by one.
        assert [len(batch) async for batch in reader.batches(0, 3, batch_bytes=1)] == [1, 1, 1]

    play([holds(100)], test)


def test_spans_begin_small_where_the_size_is_unknown_and_follow_the_entries() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = reader_of(pool, bookies)
        end = (READ_AHEAD_SPANS + 1) * SPAN_ENTRIES_FIRST + 700
        assert await read(reader, 0, end, batch_bytes=10 * 600) == entries(0, end)
        first, later = READ_AHEAD_SPANS, [each.entries_max for each in bookies[0].asked]
        assert later[:first] == [SPAN_ENTRIES_FIRST] * first
        assert later[first:] == [600, 356]

    play([holds(1 << 20)], test)


def test_short_answers_are_followed_by_reads_of_the_rest_in_order() -> None:
    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = reader_of(pool, bookies)
        batches = [batch async for batch in reader.batches(0, 20, batch_bytes=30)]
        assert [bytes(entry) for batch in batches for entry in batch] == entries(0, 20)
        # A read ends when it has twice the bytes that its span was planned for.
        assert [(batch.first_entry, len(batch)) for batch in batches[:2]] == [(0, 6), (6, 6)]
        assert [each.entry_id for each in bookies[0].asked][:4] == [0, 3, 6, 9]

    play([holds(20, at_once=3)], test)


def test_groups_of_a_striped_span_give_the_entries_up_to_the_first_that_one_lacks() -> None:
    """300 entries at each of three bookies; those of the second are small, so that its group reads all of them."""
    sizes = [10, 9, 20]

    def stripe(residue: int) -> Answer:
        return lambda asked: reply(asked, body=entry_of(asked.entry_id, bytes([residue]) * sizes[residue]))

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = reader_of(pool, bookies, None, write_quorum=1)
        span = EntrySpan(0, 900, tuple(bookie.id for bookie in bookies))
        batch = await reader.read_span(span, 3 * 2560)
        assert [len(bookie.asked) for bookie in bookies] == [256, 300, 256]
        assert (batch.first_entry, batch.ledger_id) == (0, LEDGER)
        assert [bytes(entry) for entry in batch] == [bytes([i % 3]) * sizes[i % 3] for i in range(768)]
        whole = await reader.read_span(EntrySpan(3, 10, span.bookies), 1 << 20)
        assert (whole.first_entry, [bytes(entry) for entry in whole]) == (
            3,
            [bytes([i % 3]) * sizes[i % 3] for i in range(3, 10)],
        )

    play([stripe(0), stripe(1), stripe(2)], test)


def test_rest_of_a_span_comes_before_the_spans_that_are_read_ahead() -> None:
    """The entries are ten times as large as the metadata's mean: each span of five is given in pieces."""

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = RangeReader(pool, LEDGER, metadata_of(bookies).closed(39, 40), DIGEST, bookies[0].id)
        assert await read(reader, 0, 40, batch_bytes=5) == entries(0, 40)

    play([holds(40, at_once=2)], test)


@pytest.mark.parametrize("batch_bytes", [1, 2, 3])
def test_striped_ledger_is_read_in_batches_of_less_bytes_than_it_has_stripes(batch_bytes: int) -> None:
    """A batch has an entry nevertheless. The size of entries is unknown at first: the first span has all stripes."""

    async def test(pool: BookiePool, bookies: list[HostileBookie]) -> None:
        reader = reader_of(pool, bookies, write_quorum=1)
        assert await read(reader, 0, 30, batch_bytes=batch_bytes) == entries(0, 30)

    play([holds(30)] * 7, test)


@pytest.mark.parametrize(
    ("last_entry", "length", "mean"),
    [(-1, 0, 0), (-1, 5, 0), (5, 0, 0), (0, 5, 5), (9, 100, 10), (9, 119, 11), (9, 5, 1)],
)
def test_mean_size_of_entries_is_what_the_metadata_say_of_a_closed_ledger(
    last_entry: int, length: int, mean: int
) -> None:
    assert mean_entry_bytes(LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),)).closed(last_entry, length)) == mean


def test_mean_size_of_an_open_ledgers_entries_is_unknown() -> None:
    assert mean_entry_bytes(LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),))) == 0
