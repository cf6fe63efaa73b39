"""The shipped client against the real bookie storage, on virtual time: random schedules, and races of its shells."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

import pytest

from bkspark.client import Client, LedgerWriter
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, NotEnoughBookies
from bkspark.net.pool import NetOptions
from bkspark.wire.framing import LENGTH_BYTES, scan_frames
from tests.planting import around, changed
from tests.simulation.full_cluster import URI, Cluster, FullBookie
from tests.simulation.full_faults import Faults
from tests.simulation.full_links import Link
from tests.simulation.full_schedule import run_full
from tests.simulation.history import History, LedgerHistory
from tests.simulation.ranges import run_chunk
from tests.simulation.virtual_loop import VirtualLoop

SCHEDULES = 100
_PARTS = 4
_T = TypeVar("_T")


@pytest.mark.long_except("0", "1", reason="more seeds of the same schedules; each defect of a shell has its own hunt")
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_checker_complains_of_any_schedule_of_client_and_storage(part: int) -> None:
    acknowledged = 0
    for seed in range(1 + part, SCHEDULES + 1, _PARTS):
        outcome = run_full(seed)
        assert outcome.violations == [], f"seed {seed}"
        acknowledged += outcome.acknowledged
    assert acknowledged > 5 * SCHEDULES / _PARTS


def test_same_seed_is_the_same_schedule() -> None:
    first, second = run_full(11), run_full(11)
    assert first.history.faults == second.history.faults
    assert first.acknowledged == second.acknowledged


def test_ledger_whose_every_bookie_refuses_load_for_a_while_takes_every_entry() -> None:
    """TOOMANYREQUESTS fails no healthy ledger."""
    cluster = Cluster(Random(2), 3)
    assert cluster.run(_write_under_load(cluster)) == 299


async def _write_under_load(cluster: Cluster) -> int:
    """Append while all bookies refuse, then let them take it; return the last entry of the closed ledger."""
    await cluster.start()
    async with Client(URI, tree=cluster.session()) as client:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"before"] * 100)
        for bookie in cluster.bookies:
            bookie.is_refusing = True
        waiting = [await writer.submit([b"under load"] * 50) for _ in range(4)]
        await asyncio.sleep(20)
        assert not any(future.done() for future in waiting)
        for bookie in cluster.bookies:
            bookie.is_refusing = False
        before = asyncio.get_running_loop().time()
        await asyncio.gather(*waiting)
        # The pause between two tries is half a second at most.
        assert asyncio.get_running_loop().time() - before < 1
        return (await writer.close()).last_entry


def test_reader_may_learn_of_a_later_end_while_it_reads_to_an_earlier_one() -> None:
    """The checker asked for the entries up to the later end; a reading ends where it was to end when it began."""
    assert run_chunk("full", 4040980, 1).failing == {}


def test_reader_keeps_what_it_knows_of_the_end_when_a_reading_fails() -> None:
    """A reader opened later may know less: the entries that tell it more may be on a bookie that is down."""
    assert run_chunk("full", 4071513, 1).failing == {}


def test_copies_are_counted_when_what_was_sent_has_arrived() -> None:
    """The last add reached a bookie after the close and the last reading, which needed Qa others alone."""
    assert run_chunk("full", 4093147, 1).failing == {}


def test_sync_that_a_slow_journal_began_takes_no_longer_than_others_when_all_faults_have_ended() -> None:
    """C12 asks that everything ends soon after the faults: no disk may still be at a sync of many seconds."""
    cluster = Cluster(Random(3), 3)
    cluster.journal_s = 0.02
    assert cluster.run(_write_to_a_slow_journal(cluster)) < 0.5


async def _write_to_a_slow_journal(cluster: Cluster) -> float:
    """Append while the journals are slow, then end all faults; return how many seconds later all is acknowledged."""
    await cluster.start()
    async with Client(URI, tree=cluster.session()) as client:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=3)
        await writer.append(b"before")
        for bookie in cluster.bookies:
            bookie.slowness = 10_000.0
        waiting = await writer.submit([b"on a slow journal"])
        await asyncio.sleep(0.5)
        assert not waiting.done()
        for bookie in cluster.bookies:
            # The fault of a bookie may end before all do: its sync goes on.
            bookie.slowness = 1.0
        before = asyncio.get_running_loop().time()
        Faults(cluster, History(), LedgerHistory()).end_all()
        await waiting
        await writer.close()
        return asyncio.get_running_loop().time() - before


def test_bookie_that_comes_back_into_another_slot_gets_the_entries_of_that_slot() -> None:
    """Its connection may still listen for the slot it had: nothing was sent there since it was replaced."""
    cluster = Cluster(Random(1), 5)
    cluster.network_s = cluster.journal_s = cluster.metadata_s = 0.0001
    loop = VirtualLoop(cluster.connect)
    errors: list[object] = []
    loop.set_exception_handler(lambda loop, context: errors.append(context))
    assert loop.run_until_complete(_come_back(cluster)) == 2
    loop.close()
    assert errors == []


async def _come_back(cluster: Cluster) -> int:
    """Let two bookies fall silent at once while there is one spare, then write; return how many hold the entry.

    The spare takes the first slot, and then the bookie that had that slot is the one spare for the other.
    """
    await cluster.start()
    options = WriterOptions(add_timeout_s=0.1)
    async with Client(URI, tree=cluster.session(), writer=options) as client:
        writer = await client.create(ensemble=4, write_quorum=2, ack_quorum=1)
        first, _, third, _ = (_bookie(cluster, name) for name in writer.metadata.last_fragment.bookies)
        await writer.append_many([b"everybody answers"] * 4)
        for silent in (first, third):
            _cut(cluster, silent, True)
        await writer.append_many([b"for slots 0 and 1", b"for slots 1 and 2"])
        while third.id in writer.metadata.last_fragment.bookies:
            await asyncio.sleep(0.1)
        _cut(cluster, first, False)
        assert writer.metadata.last_fragment.bookies[2] == first.id
        await writer.append(b"for slots 2 and 3")
        await asyncio.sleep(0.05)
        last_entry = writer.last_entry
        held = 0
        for name in writer.metadata.last_fragment.bookies:
            twin = _bookie(cluster, name).twin
            assert twin is not None
            held += twin.read(writer.ledger_id, last_entry)[0] == 0
        writer.abandon()
        return held


HALF_OPEN_SEEDS = range(1, 13)


@pytest.mark.parametrize("seed", HALF_OPEN_SEEDS)
def test_connections_that_fell_silent_one_after_the_other_are_made_again(seed: int) -> None:
    """N7, half-open: two of three bookies are registered and reachable, and nothing comes through as it did before."""
    assert _on_new_cluster(seed, _goes_on_through_half_open_connections) == 3


@pytest.mark.parametrize("seed", HALF_OPEN_SEEDS)
def test_more_bookies_silent_at_once_than_the_quorum_bears_end_the_writer_in_one_time_out(seed: int) -> None:
    """N7: what is pending ends with its outcome unknown, and what was acknowledged is found by recovery."""
    error, seconds, last_entry = _on_new_cluster(seed, _ends_with_half_open_connections)
    assert isinstance(error, NotEnoughBookies)
    assert "unknown" in str(error)
    assert ADD_TIMEOUT_S <= seconds < 2 * ADD_TIMEOUT_S
    # The silent ones had the entry, or not: it is in the ledger if one of them kept it.
    assert last_entry in (0, 1)


ADD_TIMEOUT_S = 5.0


def _on_new_cluster(seed: int, work: Callable[[Cluster, LedgerWriter], Awaitable[_T]], patience_s: float = 60.0) -> _T:
    """Return what `work` does on three bookies with the writer of a new ledger, one entry of which is everywhere."""
    random = Random(seed)
    cluster = Cluster(random, 3)

    async def run() -> _T:
        await cluster.start()
        options = WriterOptions(add_timeout_s=ADD_TIMEOUT_S)
        async with Client(URI, tree=cluster.session(), writer=options) as client:
            writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await writer.append(b"everybody answers")
            await asyncio.sleep(1.0)
            async with asyncio.timeout(patience_s):
                return await work(cluster, writer)

    with changed(secrets, "randbits", lambda old: random.getrandbits):
        return cluster.run(run())


async def _goes_on_through_half_open_connections(cluster: Cluster, writer: LedgerWriter) -> int:
    # By slot: the client's choice of an order is its own.
    first, second, _ = (_bookie(cluster, name) for name in writer.metadata.last_fragment.bookies)
    _cut(cluster, first, True)
    await writer.append(b"two of three")
    await asyncio.sleep(ADD_TIMEOUT_S / 2)
    _cut(cluster, second, True)
    # The first one times out while the second is silent; on its new connection it is the second of two.
    await writer.append(b"on a new connection")
    await writer.append(b"on new connections")
    return (await writer.close()).last_entry


async def _ends_with_half_open_connections(
    cluster: Cluster, writer: LedgerWriter
) -> tuple[BookKeeperError | None, float, int]:
    for name in writer.metadata.last_fragment.bookies[:2]:
        _cut(cluster, _bookie(cluster, name), True)
    loop = asyncio.get_running_loop()
    began, error = loop.time(), None
    try:
        await writer.append(b"nobody hears of it")
    except BookKeeperError as ended:
        error = ended
    seconds = loop.time() - began
    async with Client(URI, tree=cluster.session()) as other:
        return error, seconds, (await other.recover(writer.ledger_id)).last_entry


def test_bookie_that_goes_on_answering_has_its_time_for_each_answer() -> None:
    """A recovery asks for thousands of entries at once: a busy bookie is not a silent one."""

    free_at: dict[Link, float] = {}

    def answer(old: Any, self: Link, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        frames = scan_frames(bytearray(data), len(data))
        for start, end in zip(frames.starts.tolist(), frames.ends.tolist()):
            free_at[self] = max(free_at.get(self, 0.0), loop.time()) + 0.7 * ADD_TIMEOUT_S
            loop.call_at(free_at[self], old, self, data[start - LENGTH_BYTES : end])

    async def read(cluster: Cluster, writer: LedgerWriter) -> int:
        await writer.append_many([b"%d" % number for number in range(30)])
        writer.abandon()
        with around(Link, "answer", answer):
            async with Client(URI, tree=cluster.session(), net=NetOptions(read_timeout_s=ADD_TIMEOUT_S)) as other:
                return (await other.recover(writer.ledger_id)).last_entry

    assert _on_new_cluster(1, read, patience_s=3600.0) == 30


def _bookie(cluster: Cluster, name: str) -> FullBookie:
    return next(bookie for bookie in cluster.bookies if bookie.id == name)


def _cut(cluster: Cluster, bookie: FullBookie, is_cut: bool) -> None:
    """Let no answer of a bookie through, or let them through again."""
    for link in cluster.links:
        if link.bookie is bookie:
            link.is_cut[1] = is_cut
