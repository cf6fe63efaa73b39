"""Retention and registered readers: the decision as a pure core, and expiry on bookies in this process."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from bkspark.errors import BookKeeperError, ConfigurationError, DataLoss, MetadataFormat, NoSuchLedger
from bkspark.log import Log
from bkspark.log.consumer_nodes import Consumer, decode_consumer, encode_consumer
from bkspark.log.consumers import CONSUMERS_MAX, consumer_path
from bkspark.log.expiry import Expiry, first_by_bytes
from bkspark.log.formats import SegmentFacts, SegmentOwner
from bkspark.log.positions import Position
from bkspark.log.retention import AGE_MS_MAX, Retention, cutoff_ms, first_kept
from bkspark.log.writer import LedgerOptions, delete_ledger
from tests.ledger.in_process import InProcessCluster, run
from tests.log.clocks import Clock, at, log_of, without_times
from tests.log.logs import ONE, numbers, publish, read_all
from tests.log.paged_logs import snapshot_of

# ---- the decision ----


@pytest.mark.parametrize("seed", range(20))
def test_what_is_needed_is_never_removed(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(500):
        first = chance.randrange(10)
        end = first + chance.randrange(1, 10)
        open_ordinals = [each for each in range(first, end) if chance.random() < 0.1]
        needed = [chance.randrange(0, end + 1) for _ in range(chance.randrange(3))]
        wanted = chance.randrange(0, end + 2)
        kept = first_kept(wanted, first_ordinal=first, end_ordinal=end, open_ordinals=open_ordinals, needed=needed)
        assert first <= kept <= max(first, end - 1)  # the newest stays
        assert all(each >= kept for each in open_ordinals)
        assert all(each >= kept or each < first for each in needed)
        assert kept <= max(first, wanted)
        if not open_ordinals and not needed:
            assert kept == max(first, min(wanted, end - 1))


@pytest.mark.parametrize("seed", range(20))
def test_a_limit_of_bytes_keeps_that_much_and_no_ledger_more(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.randrange(100) for _ in range(chance.randrange(1, 30))]
    limit = chance.randrange(1, 2000)
    kept = asyncio.run(first_by_bytes(snapshot_of(sizes, limit)))
    assert kept == 0 or sum(sizes[kept:]) >= limit
    assert sum(sizes[kept + 1 :]) < limit


def test_a_limit_of_age_is_a_time() -> None:
    assert cutoff_ms(None, 100) is None
    assert cutoff_ms(30, 100) == 70
    assert cutoff_ms(300, 100) == 0


def test_limits_are_checked() -> None:
    for limits in ({"age_ms": 0}, {"age_ms": -5}, {"bytes": 0}, {"bytes": 1.5}, {"age_ms": 10**15}):
        with pytest.raises(ConfigurationError):
            Retention(**limits)


def test_a_consumers_node_is_read_back_and_damage_is_noticed() -> None:
    consumer = Consumer("etl", Position(3, 12, 5), 1000, "00000000000000aa", 77, 4)
    for expiry_ms in (1000, 1, AGE_MS_MAX):
        given = replace(consumer, expiry_ms=expiry_ms)
        assert decode_consumer(encode_consumer(given), "/p/etl", 77, 4) == given
    for wrong in (
        b"",
        b"[]",
        b"{}",
        b'{"version":2}',
        b'{"expiry_ms":1,"position":[1,2],"reader":"a","version":1}',
        b'{"expiry_ms":1,"position":[1,2,"3"],"reader":"a","version":1}',
        b'{"expiry_ms":1,"position":5,"reader":"a","version":1}',
        b'{"expiry_ms":0,"position":[1,2,3],"reader":"a","version":1}',
        b'{"expiry_ms":9223372036854775807,"position":[1,2,3],"reader":"a","version":1}',
    ):
        with pytest.raises(MetadataFormat, match="/p/etl is not a registered reader"):
            decode_consumer(wrong, "/p/etl", 0, 0)


# ---- expiry ----

DAY_MS = 86_400_000


async def days(log: Log, clock: Clock, count: int) -> list[int]:
    """Publish a ledger of ten entries of six bytes a day; return the ledgers."""
    await log.create(exist_ok=True)
    found = []
    for day in range(count):
        clock.now_ms += DAY_MS
        found += await publish(log, numbers(day * 10, day * 10 + 10))
    return found


async def exists(cluster: InProcessCluster, ledger_id: int) -> bool:
    try:
        await cluster.client().metadata(ledger_id)
    except NoSuchLedger:
        return False
    return True


def with_log(test):
    """Run a test of a cluster, a clock and a log of one ledger a day for ten days."""

    def call(tmp_path) -> None:
        async def inside(cluster: InProcessCluster) -> None:
            clock = Clock()
            log = log_of(cluster.client(), clock)
            await test(cluster, clock, log, await days(log, clock, 10))

        run(tmp_path, inside)

    call.__name__ = test.__name__
    return call


@with_log
async def test_ledgers_whose_entries_are_all_old_expire(cluster, clock, log, ledgers) -> None:
    assert await log.expire() == 0  # no limit is set
    await log.set_retention(age_s=3.5 * 86_400)
    assert (await log.retention()) == Retention(int(3.5 * DAY_MS))
    assert await log.expire() == 6
    assert await read_all(log) == numbers(60, 100)
    assert [await exists(cluster, each) for each in ledgers] == [False] * 6 + [True] * 4
    assert await log.expire() == 0
    clock.now_ms += 100 * DAY_MS
    assert await log.expire() == 3
    assert await read_all(log) == numbers(90, 100)  # the newest ledger stays
    assert await log.at_time(at(clock.now_ms)) == await log.latest()


@with_log
async def test_ledgers_beyond_a_limit_of_bytes_expire(cluster, clock, log, ledgers) -> None:
    await log.set_retention(bytes=150)
    assert await log.expire() == 7
    assert await read_all(log) == numbers(70, 100)
    await log.set_retention(bytes=1)
    assert await log.expire() == 2
    await log.set_retention()
    assert (await log.show())["retention"] == {"age_ms": None, "bytes": None}


@with_log
async def test_an_open_ledger_does_not_expire(cluster, clock, log, ledgers) -> None:
    writer = await log.open_for_writing(**ONE)
    await writer.append_many(numbers(100, 110))
    clock.now_ms += 100 * DAY_MS
    await log.set_retention(age_s=1)
    assert await log.expire() == 10
    await writer.append_many(numbers(110, 120))
    await writer.roll()  # expires by itself; the ledger's entries are not old enough
    await writer.append_many(numbers(120, 130))
    await writer.close()
    assert (await read_all(log))[-20:] == numbers(110, 130)


@with_log
async def test_a_commit_removes_what_has_expired(cluster, clock, log, ledgers) -> None:
    await log.set_retention(age_s=2.5 * 86_400)
    other = log_of(cluster.client(), clock)  # another process, which has not looked yet
    await publish(other, numbers(100, 110))
    assert await read_all(log) == numbers(70, 110)


@with_log
async def test_ledgers_without_times_stay_until_the_first_known_time_is_old(cluster, clock, log, ledgers) -> None:
    heads = (await log.store()).heads
    await heads.change("clicks", without_times)
    await log.set_retention(age_s=86_400)
    clock.now_ms += 50 * DAY_MS
    assert await log.expire() == 0  # it is not known how old they are
    await publish(log, numbers(100, 110))
    await publish(log, numbers(110, 120))
    assert await log.expire() == 0
    clock.now_ms += 2 * DAY_MS
    assert await log.expire() == 11
    assert await read_all(log) == numbers(110, 120)


@with_log
async def test_a_reader_lacks_all_bytes_of_a_ledger_with_one_entry(cluster, clock, log, ledgers) -> None:
    cluster.store.now_ms = clock.now_ms
    ends = [batch.end async for batch in log.read()]
    await log.register_consumer("etl", ends[-1], expiry_s=86_400)
    await publish(log, numbers(100, 101))
    (state,) = await log.consumers()
    assert (state.entries_behind, state.bytes_behind) == (1, 6)


@with_log
async def test_a_registered_reader_keeps_what_it_has_not_read(cluster, clock, log, ledgers) -> None:
    cluster.store.now_ms = clock.now_ms
    await log.set_retention(age_s=86_400 * 0.5)
    ends = [batch.end async for batch in log.read()]
    reader = await log.register_consumer("etl", ends[3], expiry_s=86_400)
    (state,) = await log.consumers()
    assert (state.name, state.position, state.entries_behind, state.bytes_behind) == ("etl", ends[3], 60, 360)
    assert not state.is_expired
    assert await log.expire() == 4
    assert await read_all(log) == numbers(40, 100)
    await reader.move(ends[5])
    assert await log.expire() == 2
    await reader.move(ends[4])  # not back
    assert reader.position == ends[5]
    assert await read_all(log) == numbers(60, 100)
    cluster.store.now_ms = clock.now_ms = clock.now_ms + 2 * DAY_MS
    assert (await log.consumers())[0].is_expired
    assert await log.expire() == 3  # its registration has expired
    with pytest.raises(DataLoss, match="consumer etl cannot be registered: log clicks begins at"):
        await (await log.store()).consumers.register("clicks", "etl", ends[5], 1000)
    assert await log.remove_consumer("etl")
    assert not await log.remove_consumer("etl")
    assert await log.consumers() == []


@with_log
async def test_a_reader_keeps_what_a_truncation_beyond_its_position_left(cluster, clock, log, ledgers) -> None:
    """A query moves its registration after it has read: it loses nothing by a truncation up to what it has read."""
    cluster.store.now_ms = clock.now_ms
    await log.set_retention(age_s=86_400 * 0.5)
    ends = [batch.end async for batch in log.read()]
    reader = await log.register_consumer("etl", ends[3], expiry_s=86_400)
    await log.truncate(ends[4])
    assert await log.expire() == 0
    assert await read_all(log) == numbers(50, 100)
    await reader.move(ends[6])
    assert await log.expire() == 2


@with_log
async def test_a_limit_out_of_bounds_is_refused_by_its_argument(cluster, clock, log, ledgers) -> None:
    for limit in ({"bytes": 0}, {"bytes": -1}, {"bytes": "10g"}, {"bytes": 1.5}, {"age_s": 0}, {"age_s": "7d"}):
        (name,) = limit
        with pytest.raises(ConfigurationError, match=f"^{name} must be"):
            await log.set_retention(**limit)


@with_log
async def test_what_is_unread_of_a_ledger_that_is_written_counts(cluster, clock, log, ledgers) -> None:
    await log.register_consumer("etl", await log.latest())
    async with await log.open_for_writing(**ONE) as writer:
        await writer.append_many([b"x" * 10] * 20)
        await writer.append_many([b"x" * 10])
        (state,) = await log.consumers()
        assert state.entries_behind in (20, 21)
        assert state.bytes_behind == 10 * state.entries_behind


@with_log
async def test_one_reader_at_a_time_has_a_name(cluster, clock, log, ledgers) -> None:
    first = await log.register_consumer("etl")
    second = await log.register_consumer("etl")
    await second.move(await log.latest())
    with pytest.raises(ConfigurationError, match="another reader has registered under this name"):
        await first.move(await log.latest())
    with pytest.raises(ConfigurationError, match="'a/b' is not usable"):
        await log.register_consumer("a/b")
    await second.end()
    assert await log.consumers() == []


@with_log
async def test_a_reader_that_cannot_be_read_is_listed_with_its_error_and_keeps_all(
    cluster, clock, log, ledgers
) -> None:
    for name in "abc":
        await log.register_consumer(name, await log.latest())
    store = await log.store()
    path = consumer_path("clicks", "b")
    await store.heads.tree.set(path, b"damaged", 0)
    await store.heads.tree.create(f"{path} no name", b"")
    states = {state.name: state for state in await log.consumers()}
    assert list(states) == ["a", "b", "b no name", "c"]
    assert (states["a"].error, states["c"].entries_behind) == (None, 0)
    assert path in states["b"].error
    assert "bkspark log consumers LOG --remove NAME" in states["b"].error
    assert "not usable" in states["b no name"].error
    assert states["b"].position is states["b"].expires is states["b"].entries_behind is None
    await log.set_retention(bytes=1)
    # What it needs is not known.
    with pytest.raises(MetadataFormat, match="clicks/consumers/b is not a registered reader"):
        await log.expire()
    await log.remove_consumer("b")
    await store.heads.tree.delete(f"{path} no name")
    assert await log.expire() == 9


@with_log
async def test_a_reader_whose_position_is_not_in_the_log_has_no_lag_or_all_of_it(cluster, clock, log, ledgers) -> None:
    """A node from a restored backup, or of a log that was overwritten since."""
    await log.register_consumer("far", await log.latest())
    path = consumer_path("clicks", "far")
    tree = (await log.store()).heads.tree
    for place, entries in ([99, 99, 0], 0), ([0, 0, 1 << 62], 90), ([-1, -1, 0], 100):
        members = {"expiry_ms": 1000, "position": place, "reader": "a", "version": 1}
        _, stat = await tree.get(path)
        await tree.set(path, json.dumps(members).encode(), stat.version)
        (state,) = await log.consumers()
        assert (state.error, place, state.entries_behind) == (None, place, entries)


@with_log
async def test_a_full_log_takes_a_reader_again_that_it_has(cluster, clock, log, ledgers) -> None:
    position = (await log.snapshot()).start
    for number in range(CONSUMERS_MAX):
        await log.register_consumer(f"reader-{number}", position)
    with pytest.raises(ConfigurationError, match="the limit: remove some"):
        await log.register_consumer("another", position)
    # A query that is started again registers again.
    assert (await log.register_consumer("reader-7", position)).position == position


@with_log
async def test_an_expiry_that_was_interrupted_is_finished_by_the_next(cluster, clock, log, ledgers) -> None:
    """The process ends after the change of the head, and after some deletions."""
    await log.set_retention(age_s=86_400 * 1.5)
    store = await log.store()
    left = 3

    async def delete_some(ledger_id: int) -> None:
        nonlocal left
        if not left:
            raise asyncio.CancelledError
        left -= 1
        await delete_ledger(cluster.client(), "clicks", ledger_id)

    with pytest.raises(asyncio.CancelledError):
        await Expiry(cluster.client(), store, "clicks", delete_some).now()
    assert await read_all(log) == numbers(80, 100)
    assert sum([await exists(cluster, each) for each in ledgers[:8]]) == 5
    # The next change that removes something, or a vacuum, deletes the rest.
    clock.now_ms += DAY_MS
    await log.expire()
    assert not any([await exists(cluster, each) for each in ledgers[:8]])
    assert await read_all(log) == numbers(90, 100)


@with_log
async def test_expiries_at_the_same_time_remove_a_ledger_once(cluster, clock, log, ledgers) -> None:
    await log.set_retention(age_s=86_400 * 4.5)
    others = [log_of(cluster.client(), clock) for _ in range(3)]
    counts = await asyncio.gather(*(each.expire() for each in others))
    assert sum(counts) == 5
    assert await read_all(log) == numbers(50, 100)
    assert [await exists(cluster, each) for each in ledgers] == [False] * 5 + [True] * 5


@with_log
async def test_a_reader_that_registers_during_an_expiry_is_honoured_or_refused(cluster, clock, log, ledgers) -> None:
    """A reader registers at each step of an expiry: what it was promised is there, or it was refused."""
    outcomes = [await _raced(cluster, clock, f"race{step}", step) for step in range(12)]
    assert True in outcomes


async def _raced(cluster: InProcessCluster, clock: Clock, name: str, step: int) -> bool:
    """Let a reader register before the call of an expiry of this number; return whether it was registered."""
    log = log_of(cluster.client(), clock, name)
    await days(log, clock, 4)
    cluster.store.now_ms = clock.now_ms
    await log.set_retention(age_s=86_400 * 0.5)
    start, store = await log.earliest(), await log.store()
    tree = store._tree
    originals = {each: getattr(tree, each) for each in ("get", "children", "transaction", "create")}
    registered: list[Position] = []
    left = step + 1

    def restore() -> None:
        for each, original in originals.items():
            setattr(tree, each, original)

    def stepping(call):
        async def stepped(*arguments, **named):
            nonlocal left
            left -= 1
            if not left:
                restore()
                with suppress(DataLoss):
                    reader = await log_of(cluster.client(), clock, name).register_consumer("late", start)
                    registered.append(reader.position)
            return await call(*arguments, **named)

        return stepped

    for each, original in originals.items():
        setattr(tree, each, stepping(original))
    await Expiry(cluster.client(), store, name, partial(delete_ledger, cluster.client(), name)).now()
    restore()
    for position in registered:
        assert await read_all(log, position) == numbers(0, 40), step
    return bool(registered)


def test_a_renewal_of_an_expired_registration_is_honoured_or_too_late(tmp_path):
    """The expiry checks in its transaction that what it took for expired is unchanged."""

    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        await days(log, clock, 3)
        await log.set_retention(age_s=1)
        cluster.store.now_ms = clock.now_ms
        reader = await log.register_consumer("etl", expiry_s=60)
        clock.now_ms += 61_000
        store = await log.store()
        cut = store.cut

        async def renewed_before_the_change(name, choose):
            async def choosing(head):
                chosen = await choose(head)
                if chosen is not None:
                    cluster.store.now_ms = clock.now_ms
                    await reader.move(reader.position)
                return chosen

            return await cut(name, choosing)

        object.__setattr__(store, "cut", renewed_before_the_change)
        expiry = Expiry(cluster.client(), store, "clicks", partial(delete_ledger, cluster.client(), "clicks"))
        assert await expiry.now() == 0
        assert await read_all(log, reader.position) == numbers(0, 30)

    run(tmp_path, test)


def test_slices_of_a_shared_ledger_expire_when_none_of_it_is_needed(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        clock = Clock()
        log = log_of(cluster.client(), clock)
        await log.create()
        writer = await log.create_attempt(SegmentOwner("query", "q1"), LedgerOptions(1, 1, 1))
        for epoch in range(4):
            clock.now_ms += DAY_MS
            await writer.append_many(numbers(epoch * 5, epoch * 5 + 5))
            facts = SegmentFacts(writer.ledger_id, epoch * 5 + 4, 30, epoch * 5)
            await log.publish([facts], publisher=("q1", epoch), shared=[writer.ledger_id])
            if epoch % 2:
                await publish(log, numbers(100 + epoch, 101 + epoch))
        await log.set_retention(age_s=86_400 * 1.5)
        assert await log.expire() == 1  # the ledger published between the slices
        assert await exists(cluster, writer.ledger_id)
        assert await read_all(log) == [*numbers(10, 20), *numbers(103, 104)]
        with pytest.raises(BookKeeperError):
            await log.truncate(Position(99, 99, 1))
        await writer.close()

    run(tmp_path, test)
