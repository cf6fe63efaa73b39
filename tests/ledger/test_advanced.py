"""Writing under the caller's entry ids: any order, no duplicates, gaps hold back, within limits."""

from __future__ import annotations

import asyncio
import random

import pytest

from bkspark import blocking
from bkspark.client import AdvancedLedgerWriter
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import (
    ClientClosed,
    ConfigurationError,
    DuplicateEntryId,
    LedgerClosed,
    LedgerFenced,
    TooManyRequests,
)
from bkspark.ledger import advanced
from bkspark.ledger.advanced import AHEAD_BYTES_MAX, AHEAD_ENTRIES_MAX
from tests.cluster import Cluster
from tests.ledger.in_process import read_all, run


def payload(entry_id):
    return b"entry %d" % entry_id


@pytest.mark.parametrize("seed", range(3))
def test_entries_given_in_any_order_are_read_in_the_order_of_their_ids(tmp_path, seed):
    async def test(cluster):
        client = cluster.client(writer=WriterOptions(pending_entries_max=64))
        writer = AdvancedLedgerWriter(await client.create())
        runs = []
        source = random.Random(seed)
        first = 0
        while first < 500:
            count = source.choice((1, 1, 2, 7))
            runs.append(range(first, first + count))
            first += count
        source.shuffle(runs)
        appends = [asyncio.ensure_future(writer.append_many(ids[0], map(payload, ids))) for ids in runs]
        assert await asyncio.gather(*appends) == [ids[-1] for ids in runs]
        assert writer.last_entry == first - 1
        await writer.close()
        assert await read_all(await client.open(writer.ledger_id)) == [payload(entry_id) for entry_id in range(first)]

    run(tmp_path, test)


def test_gap_holds_back_every_acknowledgement_above_it(tmp_path):
    async def test(cluster):
        client = cluster.client()
        async with AdvancedLedgerWriter(await client.create()) as writer:
            assert await writer.append(0, payload(0)) == 0
            above = await writer.submit(2, [payload(2), payload(3)])
            assert await writer.sync() == 0
            assert not above.done()
            assert await writer.append(1, payload(1)) == 1
            assert await above == 3

    run(tmp_path, test)


def test_id_given_twice_is_refused_and_the_first_entry_is_kept(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = AdvancedLedgerWriter(await client.create())
        await writer.append_many(0, [payload(0), payload(1)])
        ahead = await writer.submit(5, [payload(5), payload(6)])
        for first, count, taken in ((0, 1, 0), (1, 3, 1), (6, 1, 6), (5, 9, 5), (4, 2, 5), (2, 4, 5)):
            with pytest.raises(DuplicateEntryId) as caught:
                await writer.submit(first, [b"other"] * count)
            assert (caught.value.entry_id, caught.value.ledger_id) == (taken, writer.ledger_id)
            assert caught.value.code == -22
        await writer.append_many(2, map(payload, range(2, 5)))
        await ahead
        await writer.close()
        assert await read_all(await client.open(writer.ledger_id)) == [payload(entry_id) for entry_id in range(7)]

    run(tmp_path, test)


def test_no_id_below_above_or_within_what_waits_above_a_gap_can_be_given_again(tmp_path):
    async def test(cluster):
        writer = AdvancedLedgerWriter(await cluster.client().create(ensemble=1, write_quorum=1, ack_quorum=1))
        ahead = [await writer.submit(first, [b"first"] * 2) for first in (1, 4, 8)]
        for entry_id in (1, 2, 4, 5, 8, 9):
            with pytest.raises(DuplicateEntryId) as caught:
                await writer.submit(entry_id, [b"second"])
            assert caught.value.entry_id == entry_id
        for first, count in ((3, 1), (6, 2), (0, 1)):
            ahead.append(await writer.submit(first, [b"first"] * count))
        assert sorted(await asyncio.gather(*ahead)) == [0, 2, 3, 5, 7, 9]
        await writer.close()

    run(tmp_path, test, bookies=1)


def test_what_waits_above_a_gap_is_bounded_in_ids_and_bytes(tmp_path):
    async def test(cluster):
        writer = AdvancedLedgerWriter(await cluster.client().create())
        last = AHEAD_ENTRIES_MAX - 1
        with pytest.raises(TooManyRequests, match="entry 0"):
            await writer.submit(last + 1, [b""])
        at_the_limit = await writer.submit(last, [b""])
        piece = bytes(AHEAD_BYTES_MAX // 16)
        for number in range(16):
            await writer.submit(10 + number, [piece])
        with pytest.raises(TooManyRequests, match=str(AHEAD_BYTES_MAX)):
            await writer.submit(50, [b"x"])
        # What fills the gap is taken, however much waits above it.
        assert await writer.append_many(0, [bytes(1000)] * 10) == 9
        assert not at_the_limit.done()
        writer.abandon()

    run(tmp_path, test)


def test_bytes_of_entries_whose_gap_was_filled_make_room_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(advanced, "AHEAD_BYTES_MAX", 10)

    async def test(cluster):
        writer = AdvancedLedgerWriter(await cluster.client().create(ensemble=1, write_quorum=1, ack_quorum=1))
        for entry_id in range(0, 10, 2):
            later = await writer.submit(entry_id + 1, [bytes(10)])
            await writer.append(entry_id, b"the gap")
            assert await later == entry_id + 1
        await writer.close()

    run(tmp_path, test, bookies=1)


def test_closing_ends_the_ledger_before_the_gap_and_fails_the_entries_above(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = AdvancedLedgerWriter(await client.create())
        await writer.submit(0, [payload(0)])
        above = await writer.submit(2, [payload(2)])
        metadata = await writer.close()
        assert metadata.last_entry == 0
        with pytest.raises(LedgerClosed, match="entry 1") as raised:
            await above
        assert raised.value.entry_id == 2, "it is the error of the entry above the gap"
        for entry_id in (1, 5):  # also one that would wait above a gap
            with pytest.raises(LedgerClosed):
                await asyncio.wait_for(writer.submit(entry_id, [payload(entry_id)]), 60)
        assert await read_all(await client.open(writer.ledger_id)) == [payload(0)]

    run(tmp_path, test)


def test_call_that_was_cancelled_above_a_gap_hinders_no_close(tmp_path):
    async def test(cluster):
        writer = AdvancedLedgerWriter(await cluster.client().create())
        await writer.append(0, payload(0))
        waiting = asyncio.ensure_future(writer.append(2, payload(2)))
        await asyncio.sleep(0)
        above = await writer.submit(3, [payload(3)])
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await writer.close()).last_entry == 0
        with pytest.raises(LedgerClosed, match="entry 1"):
            await above

    run(tmp_path, test)


def test_writer_that_ends_fails_what_waits_above_a_gap_too(tmp_path):
    async def test(cluster):
        client = cluster.client()
        writer = AdvancedLedgerWriter(await client.create())
        await writer.append(0, payload(0))
        above = await writer.submit(2, [payload(2)])
        await cluster.client().recover(writer.ledger_id)
        with pytest.raises(LedgerFenced):
            await writer.append(1, payload(1))
        with pytest.raises(LedgerFenced):
            await above
        with pytest.raises(LedgerFenced):
            await writer.submit(5, [payload(5)])
        other = AdvancedLedgerWriter(await client.create())
        waiting = await other.submit(7, [b"x"])
        other.abandon()
        with pytest.raises(ClientClosed):
            await waiting

    run(tmp_path, test)


def test_cancelled_append_leaves_no_gap(tmp_path):
    async def test(cluster):
        client = cluster.client(writer=WriterOptions(pending_entries_max=1))
        writer = AdvancedLedgerWriter(await client.create())
        tasks = [asyncio.ensure_future(writer.append(entry_id, payload(entry_id))) for entry_id in range(20)]
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert done[1::2] == list(range(1, 20, 2))
        assert (await writer.close()).last_entry == 19
        assert reported == []

    run(tmp_path, test)


def test_future_that_was_cancelled_before_its_entries_are_acknowledged_is_left_alone(tmp_path):
    async def test(cluster):
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        writer = AdvancedLedgerWriter(await cluster.client().create())
        (await writer.submit(0, [payload(0)])).cancel()
        assert await writer.append(1, payload(1)) == 1
        await writer.close()
        assert reported == []

    run(tmp_path, test)


def test_sync_waits_for_all_that_has_no_gap_below_it_though_the_window_is_full(tmp_path):
    """§5.5: what was submitted before the call is durable when it returns, also what the writer has not taken yet."""

    async def test(cluster):
        client = cluster.client(writer=WriterOptions(pending_entries_max=1))
        writer = AdvancedLedgerWriter(await client.create())
        assert await writer.sync() == -1, "nothing was submitted yet"
        submitting = [asyncio.ensure_future(writer.submit(entry_id, [payload(entry_id)])) for entry_id in range(20)]
        await asyncio.sleep(0)
        assert await writer.sync() == writer.last_entry == 19
        await asyncio.gather(*submitting)
        await writer.close()

    run(tmp_path, test)


def test_entry_that_comes_while_the_ledger_is_being_closed_is_refused(tmp_path):
    """Above the gap it would wait for ever; below it, the ledger's end would not be where `close` returns it."""

    async def test(cluster):
        writer = AdvancedLedgerWriter(await cluster.client().create(ensemble=1, write_quorum=1, ack_quorum=1))
        pending = await writer.submit(0, [payload(0)])
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0)
        assert not closing.done()
        for entry_id in (1, 9):
            with pytest.raises(LedgerClosed):
                await writer.submit(entry_id, [payload(entry_id)])
        assert (await closing).last_entry == await pending == 0

    run(tmp_path, test, bookies=1)


@pytest.mark.parametrize("call", ["sync", "close"])
def test_sync_or_close_that_is_cancelled_takes_no_entry_with_it(tmp_path, call):
    """The entries wait for the window, and are the callers' that submitted them."""

    async def test(cluster):
        client = cluster.client(writer=WriterOptions(pending_entries_max=1))
        writer = AdvancedLedgerWriter(await client.create(ensemble=1, write_quorum=1, ack_quorum=1))
        submitting = [asyncio.ensure_future(writer.submit(entry_id, [payload(entry_id)])) for entry_id in range(20)]
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(getattr(writer, call)())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        async with asyncio.timeout(5):
            assert [await submitted for submitted in await asyncio.gather(*submitting)] == list(range(20))
        assert (await writer.close()).last_entry == 19

    run(tmp_path, test, bookies=1)


@pytest.mark.parametrize("entry_id", [-1, "1", None, 1.0, True, 2**63])
def test_invalid_id_is_named(tmp_path, entry_id):
    async def test(cluster):
        writer = AdvancedLedgerWriter(await cluster.client().create())
        with pytest.raises(ConfigurationError, match="first_entry"):
            await writer.append(entry_id, b"x")
        with pytest.raises(TypeError, match="bytes"):
            await writer.append(0, "text")
        with pytest.raises(ValueError, match="no entries"):
            await writer.append_many(0, [])
        writer.abandon()

    run(tmp_path, test)


def test_blocking_twin_writes_under_chosen_ids(cluster: Cluster) -> None:
    with blocking.Client(cluster.uri) as client:
        with blocking.AdvancedLedgerWriter(client.create()) as writer:
            above = writer.submit(1, [b"one"])
            assert writer.append(0, b"zero") == 0
            assert above.result(60) == 1
            assert writer.append_many(2, [b"two", b"three"]) == 3
            assert writer.sync() == writer.last_entry == 3
        batch = client.open(writer.ledger_id).read(0, 3)
        assert list(batch) == [b"zero", b"one", b"two", b"three"]
