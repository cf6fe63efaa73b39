"""When entries entered a log: commits and append calls, on bookies in this process."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bkspark.log import Log, Position, reading
from bkspark.log.writer import LedgerOptions, LogWriter, RollLimits
from bkspark.metadata.memory import Fault
from tests.ledger.in_process import InProcessCluster, run
from tests.log.clocks import Clock, at, log_of, without_times
from tests.log.logs import ONE, numbers, publish, read_all, until


async def since(log: Log, ms: int) -> list[bytes]:
    return await read_all(log, await log.at_time(at(ms)))


async def times_of(log: Log) -> list[tuple[int, int, int | None]]:
    """Return (ordinal, entry, time) of each run of entries with one time."""
    snapshot = await log.snapshot()
    timeline = await snapshot.times((0, 0), (snapshot.end_ordinal, 0))
    found = []
    for listed in await snapshot.ledgers():
        end = 1_000_000 if listed.last_entry is None else listed.last_entry + 1
        found += [(listed.ordinal, *each) for each in timeline.of_entries(listed.ordinal, listed.first_entry, end)]
    return found


def test_a_time_is_exact_to_one_commit(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        await log.create()
        for commit in range(5):
            clock.now_ms = 1_000_000 + commit * 10
            await publish(log, numbers(commit * 10, commit * 10 + 3), numbers(commit * 10 + 3, commit * 10 + 5))
        everything = await read_all(log)
        for commit in range(5):
            assert await since(log, 1_000_000 + commit * 10) == everything[commit * 5 :]
            assert await since(log, 1_000_000 + commit * 10 - 9) == everything[commit * 5 :]
        assert await since(log, 1_000_041) == []
        assert await since(log, 0) == everything
        assert [ms for _, _, ms in await times_of(log)][::2] == [1_000_000 + 10 * commit for commit in range(5)]

    run(tmp_path, test)


def test_a_time_is_exact_to_one_append_call(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        writer = await log.open_for_writing(**ONE)
        for call in range(6):
            clock.now_ms = 1_000_000 + call * 10
            await writer.append_many(numbers(call * 3, call * 3 + 3))
            if call == 3:
                await writer.roll()
        clock.now_ms += 1
        await writer.append(b"later")  # confirms the entries before it
        everything = numbers(0, 18)

        async def is_exact() -> bool:
            return await since(log, 1_000_050) == everything[15:]

        await until(is_exact, "the times of an open ledger")
        for _ in range(2):
            for call in range(1, 6):
                assert await since(log, 1_000_000 + call * 10) == everything[call * 3 :]
                assert await since(log, 1_000_000 + call * 10 - 9) == everything[call * 3 :]
            await writer.close()
            everything = [*numbers(0, 18), b"later"]
            assert await since(log, 1_000_052) == []
        assert (await log.snapshot()).open_ordinals == ()

    run(tmp_path, test)


def test_times_of_a_writer_that_died_are_kept(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        writer = await log.open_for_writing(**ONE)
        await writer.append_many(numbers(0, 3))
        clock.now_ms += 10
        await writer.append_many(numbers(3, 6))

        async def is_noted() -> bool:
            return [ms for _, _, ms in await times_of(log)] == [1_000_000, 1_000_010]

        await until(is_noted, "the writer's times")
        await log.vacuum()
        assert await is_noted(), "a vacuum leaves the times of a ledger that is written"
        writer.abandon()
        # A new writer, whose clock is ten minutes slow.
        clock.now_ms -= 600_000
        async with await log.open_for_writing(**ONE) as second:
            await second.append_many(numbers(6, 9))
        assert await times_of(log) == [(0, 0, 1_000_000), (0, 3, 1_000_010), (1, 0, 1_000_010)]
        assert await since(log, 1_000_010) == numbers(3, 9)
        tree = await cluster.client().tree()
        assert await tree.children("/bkspark/logs/clicks/times") == []

    run(tmp_path, test)


async def writer_that_dies(cluster: InProcessCluster, clock: Clock, log: Log) -> None:
    """Append three entries at 1,000,000 ms, whose time is recorded, and three at 1,005,000 ms, whose time is not."""
    writer = await log.open_for_writing(**ONE)
    await writer.append_many(numbers(0, 3))

    async def is_recorded() -> bool:
        return (await (await log.snapshot()).first_at(1_000_001)) == (0, 3)

    await until(is_recorded, "the writer's times")
    # The metadata store is away. Appends do not need it.
    writes = cluster.store.writes
    cluster.store.faults.update(dict.fromkeys(range(writes, writes + 1_000), Fault.LOST_BEFORE))
    clock.now_ms = 1_005_000
    await writer.append_many(numbers(3, 6))
    writer.abandon()
    cluster.store.faults.clear()


def test_entries_that_a_writer_did_not_record_before_it_died_are_neither_missed_nor_removed_early(tmp_path):
    """A read from a time on has all entries from then on (docs/spark.md), and retention keeps what is not that old."""

    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        await writer_that_dies(cluster, clock, log)
        clock.now_ms = 1_010_000
        async with await log.open_for_writing(**ONE) as second:
            await second.append_many(numbers(6, 9))
        assert await since(log, 1_003_000) == numbers(3, 9)
        await log.set_retention(age_s=7.0)
        assert await log.expire() == 0
        clock.now_ms = 1_017_001
        assert await log.expire() == 1

    run(tmp_path, test)


def test_time_of_what_a_dead_writer_did_not_record_is_no_later_than_that_of_what_follows(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        await writer_that_dies(cluster, clock, log)
        clock.now_ms = 1_007_000
        await publish(log, numbers(6, 9))
        clock.now_ms = 1_010_000
        async with await log.open_for_writing(**ONE) as second:
            await second.append_many(numbers(9, 12))
        assert await since(log, 1_007_000) == numbers(3, 12)
        assert await since(log, 1_007_001) == numbers(9, 12)

    run(tmp_path, test)


def test_an_old_log_has_times_from_the_first_new_entry_on(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        now_ms = cluster.store.now_ms = 1_000_000_000
        log = log_of(cluster.client(), clock)
        await log.create()
        await publish(log, numbers(0, 3))
        await publish(log, numbers(3, 6))
        heads = (await log.store()).heads
        await heads.change("clicks", without_times)
        assert await times_of(log) == [(0, 0, None), (1, 0, None)]
        assert await since(log, now_ms - 3_600_000) == numbers(0, 6)  # by the times of the ledgers
        assert await since(log, now_ms + 3_600_000) == []
        clock.now_ms = now_ms + 10
        await publish(log, numbers(6, 9))
        assert await times_of(log) == [(0, 0, None), (1, 0, None), (2, 0, now_ms + 10)]
        assert await since(log, now_ms + 10) == numbers(6, 9)
        assert await since(log, now_ms - 3_600_000) == numbers(0, 9)

    run(tmp_path, test)


def test_truncating_and_overwriting_keep_times_in_order(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        await log.create()
        for commit in range(4):
            clock.now_ms = 1_000_000 + commit
            await publish(log, numbers(commit, commit + 1))
        assert await log.truncate(at(1_000_002)) == 2
        assert await read_all(log) == numbers(2, 4)
        assert [ms for _, _, ms in await times_of(log)] == [1_000_002, 1_000_003]
        clock.now_ms = 5
        await log.overwrite([])
        await publish(log, numbers(9, 10))
        assert [ms for _, _, ms in await times_of(log)] == [1_000_003]
        await log.delete()
        assert await (await cluster.client().tree()).exists("/bkspark/logs/clicks") is None

    run(tmp_path, test)


def test_entries_after_the_recorded_ones_are_not_missed(tmp_path):
    """The writer writes its times once a second: until then, what it appended counts as later than any time."""

    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        client = cluster.client()
        log = log_of(client, clock)
        store = await log.store()
        await store.create("clicks")

        async def keep_nothing(*_: object) -> None:
            pass

        store.note_times = keep_nothing  # type: ignore[method-assign]
        writer = await LogWriter(client, store, "clicks", LedgerOptions(1, 1, 1), RollLimits()).open()
        clock.now_ms += 100
        await writer.append_many(numbers(0, 3))
        await writer.append(b"later")  # confirms the entries before it
        assert await since(log, 1_000_050) == numbers(0, 3)
        assert [ms for _, _, ms in await times_of(log)] == [1_000_000]
        writer.abandon()

    run(tmp_path, test)


def test_what_is_not_confirmed_yet_is_after_every_time(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        async with await log.open_for_writing(**ONE) as writer:
            await writer.append_many(numbers(0, 3))
            clock.now_ms += 10
            await writer.append_many(numbers(3, 6))  # confirms the entries before it

            async def is_noted() -> bool:
                return len(await times_of(log)) == 2

            await until(is_noted, "the writer's times")
            assert await log.at_time(at(clock.now_ms + 1)) == await log.latest()
            assert await log.truncate(at(clock.now_ms + 1)) == 0
        assert await read_all(log) == numbers(3, 6)

    run(tmp_path, test)


def test_a_page_that_is_replaced_while_it_is_read_is_found_again(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bkspark.log.times.RECENT_MAX", 4)

    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        client = cluster.client()
        log = log_of(client, clock)
        await log.create()
        for commit in range(8):
            clock.now_ms = 1_000_000 + commit
            await publish(log, numbers(commit, commit + 1))
        old = await log_of(client, clock).snapshot()
        assert old.head.times.pages
        for commit in range(8, 16):
            clock.now_ms = 1_000_000 + commit
            await publish(log, numbers(commit, commit + 1))
        assert await old.first_at(1_000_002) == (2, 0)
        timeline = await old.times((0, 0), (8, 0))
        assert [timeline.of_entries(ordinal, 0, 1)[0][1] for ordinal in range(8)] == [1_000_000 + i for i in range(8)]

    run(tmp_path, test)


def test_a_part_of_a_millisecond_is_rounded_up_for_reading_and_down_for_truncating(tmp_path):
    """`at_time` returned an entry of an earlier time. A truncation must not delete an entry that may be later."""

    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        await log.create()
        clock.now_ms = 1_000_001
        await publish(log, numbers(0, 3))
        moment = at(1_000_001) + timedelta(microseconds=500)
        assert await log.at_time(at(1_000_001)) == await log.earliest()
        assert await log.at_time(moment) == await log.latest()
        await log.truncate(moment)
        assert await read_all(log) == numbers(0, 3)
        await log.truncate(at(1_000_002))
        assert await read_all(log) == []

    run(tmp_path, test)


def test_a_log_is_read_up_to_a_time_and_never_beyond_what_was_readable(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        await log.create()
        for commit in range(4):
            clock.now_ms = 1_000_000 + commit * 10
            await publish(log, numbers(commit * 3, commit * 3 + 3))
        snapshot, end, now_ms = await log.snapshot(), await log.latest(), 1_000_100

        async def until(ms: int, readable: Position = end, now_ms: int = now_ms) -> Position:
            return await reading.until(log._open_listed, snapshot, ms, readable, now_ms)

        second, third, fourth = [await log.at_time(at(1_000_000 + 10 * commit)) for commit in (1, 2, 3)]
        assert await until(0) == await until(1_000_000) == await log.earliest()
        assert await until(1_000_001) == await until(1_000_010) == second
        assert await until(1_000_020) == third
        assert await until(1_000_020, second) == second
        assert await until(1_000_030, end, 1_000_030) == fourth, "what was written at this moment is not before it"
        assert await until(1_000_031) == await until(now_ms) == await until(now_ms + 1) == end
        await (await log.store()).heads.change("clicks", without_times)
        snapshot = await log.snapshot()
        assert await until(0, third) == third

    run(tmp_path, test)
