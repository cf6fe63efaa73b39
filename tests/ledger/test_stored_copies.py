"""Copies of stored entries to one bookie, and which entries a bookie lacks, on real sockets: docs/protocol.md §7.4."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.reader import AdaptiveReadSize
from bkspark.entries import EntryBatch
from bkspark.errors import BookieUnavailable, BookKeeperError, RequestTimeout, TooManyRequests, UnauthorizedAccess
from bkspark.ledger.replica_copies import ACK_TIMEOUT_S, PIECES_IN_FLIGHT_MAX, ReplicaReader, ReplicaWriter
from bkspark.ledger.replica_reads import ReplicaReads
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.digest import master_key
from bkspark.wire.entry_lists import EntryRuns, encode_entry_list
from bkspark.wire.status import Status
from tests.ledger.holders import PATIENT, Holder, adds_of, flags_of, with_bookies
from tests.ledger.hostile import DIGEST, Asked, HostileBookie, World, play, reply, sealed
from tests.simulation.full_cluster import URI, Cluster, FullBookie
from tests.simulation.full_links import Adds, Observer

LEDGER = 7
KEY = master_key(b"")


async def writer_to(world: World, bookie: HostileBookie) -> ReplicaWriter:
    await world.ledger(bookie)
    context = await world.client(net=PATIENT).context()
    connection_index = context.pool.reserve_connection(LEDGER)
    found = ReplicaWriter(context, LEDGER, bookie.id, connection_index)
    await found.connect()
    return found


async def send(writer: ReplicaWriter, ids: range, wanted: list[int] | None = None) -> None:
    """Send entries, or the wanted ones of them."""
    batch = EntryBatch.of([sealed(LEDGER, entry_id) for entry_id in ids], LEDGER, ids[0])
    frames, bounds = v2.encode_stored_adds(batch, KEY, v2.RECOVERY_ADD)
    chosen = np.isin(np.array(ids), ids if wanted is None else wanted)
    await writer.send(np.array(ids), chosen, frames, bounds)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.002)


def entries_at(bookie: HostileBookie) -> list[int]:
    return [asked.entry_id for asked in adds_of(bookie)]


def test_wanted_entries_are_written_byte_for_byte_as_recovery_adds() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        writer = await writer_to(world, bookie)
        await send(writer, range(3, 8), [4, 7])
        await send(writer, range(8, 10))
        await writer.drained(0)
        writer.close()
        assert entries_at(bookie) == [4, 7, 8, 9]
        for asked in adds_of(bookie):
            assert flags_of(asked) == v2.RECOVERY_ADD
            assert asked.body[v2.ADD_HEAD_BYTES :] == sealed(LEDGER, asked.entry_id)
            assert KEY in asked.body[: v2.ADD_HEAD_BYTES]

    with_bookies(Holder())(test)


def test_copies_that_a_bookie_refuses_because_of_its_load_are_sent_again_until_it_takes_them() -> None:
    left = {1: 2, 3: 1}

    def refuse(asked: Asked) -> int | None:
        if not left.get(asked.entry_id):
            return None
        left[asked.entry_id] -= 1
        return Status.ETOOMANYREQUESTS

    async def test(world: World, bookie: HostileBookie) -> None:
        writer = await writer_to(world, bookie)
        await send(writer, range(5))
        await writer.drained(0)
        assert writer._resending == set()
        writer.close()
        assert sorted(entries_at(bookie)) == [0, 1, 1, 1, 2, 3, 3, 4]

    with_bookies(Holder(refuse=refuse))(test)


def test_acknowledgement_that_comes_together_with_refusals_makes_room() -> None:
    """A copy would otherwise fail as not acknowledged in time, while its bookie takes one entry after the other."""
    came: list[Asked] = []

    def answer(asked: Asked) -> bytes | None:
        came.append(asked)
        if len(came) != PIECES_IN_FLIGHT_MAX:
            return None
        first, *others = came
        return reply(first) + b"".join(reply(each, Status.ETOOMANYREQUESTS) for each in others)

    async def test(world: World, bookie: HostileBookie) -> None:
        writer = await writer_to(world, bookie)
        async with asyncio.timeout(15):
            for entry_id in range(PIECES_IN_FLIGHT_MAX + 1):
                await send(writer, range(entry_id, entry_id + 1))
        writer.close()

    with_bookies(answer)(test)


def test_nothing_is_sent_again_after_the_end() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        writer = await writer_to(world, bookie)
        await send(writer, range(2))
        await until(lambda: len(writer._resending) > 0)
        timers, channel = list(writer._resending), writer._channel
        assert channel is not None
        writer.close()
        assert all(timer.cancelled() for timer in timers)
        assert channel._adds == {}
        await send(writer, range(2, 3))
        assert entries_at(bookie) == [0, 1]

    with_bookies(Holder(refuse=lambda asked: Status.ETOOMANYREQUESTS))(test)


def test_no_more_than_the_limit_of_pieces_waits_for_acknowledgements() -> None:
    takes = False

    def refuse(asked: Asked) -> int | None:
        return None if takes else Status.ETOOMANYREQUESTS

    async def test(world: World, bookie: HostileBookie) -> None:
        nonlocal takes
        writer = await writer_to(world, bookie)
        for entry_id in range(PIECES_IN_FLIGHT_MAX):
            await send(writer, range(entry_id, entry_id + 1))
        further = asyncio.ensure_future(send(writer, range(PIECES_IN_FLIGHT_MAX, PIECES_IN_FLIGHT_MAX + 1)))
        # Each was refused, and is sent again: the further one would have come by now.
        await until(lambda: len(entries_at(bookie)) >= 2 * PIECES_IN_FLIGHT_MAX)
        assert max(entries_at(bookie)) == PIECES_IN_FLIGHT_MAX - 1
        takes = True
        await further
        await writer.drained(0)
        writer.close()
        assert set(entries_at(bookie)) == set(range(PIECES_IN_FLIGHT_MAX + 1))

    with_bookies(Holder(refuse=refuse))(test)


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (Status.EUA, UnauthorizedAccess, f"refuses copies of ledger {LEDGER}: it has another password"),
        (Status.EIO, BookieUnavailable, f"refuses ledger {LEDGER} entry 2 with status {int(Status.EIO)}"),
    ],
)
def test_refusal_of_a_copy_fails_all_that_follows(status: int, kind: type[BookKeeperError], message: str) -> None:
    """No copy counts after it: the caller chooses another target."""

    def refuse(asked: Asked) -> int | None:
        return status if asked.entry_id == 2 else None

    async def test(world: World, bookie: HostileBookie) -> None:
        writer = await writer_to(world, bookie)
        await send(writer, range(4))
        with pytest.raises(kind, match=message) as raised:
            await writer.drained(0)
        assert (raised.value.bookie, raised.value.ledger_id) == (bookie.id, LEDGER)
        with pytest.raises(kind, match=message):
            await send(writer, range(4, 5))
        writer.close()
        assert entries_at(bookie) == [0, 1, 2, 3]

    with_bookies(Holder(refuse=refuse))(test)


def test_first_of_several_refusals_is_the_error() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        writer = await writer_to(world, bookie)
        assert writer._channel is not None
        listener = writer._channel._adds[LEDGER]
        listener.on_replies(np.array([3, 4, 5]), np.array([Status.EOK, Status.EIO, Status.EUA]), None)
        listener.on_replies(np.array([6]), np.array([Status.EUA]), None)
        with pytest.raises(BookieUnavailable, match="entry 4") as raised:
            await writer.drained(0)
        assert raised.value.entry_id == 4
        writer.close()

    with_bookies(Holder())(test)


def test_lost_connection_fails_a_copy_at_once() -> None:
    def breaks(asked: Asked) -> int | None:
        raise ConnectionError

    async def test(world: World, bookie: HostileBookie) -> None:
        writer = await writer_to(world, bookie)
        await send(writer, range(4))
        with pytest.raises(BookieUnavailable, match=bookie.id):
            await writer.drained(0)
        writer.close()

    with_bookies(Holder(refuse=breaks))(test)


class SentAdds(Observer):
    """Counts the adds that reach bookies."""

    def __init__(self) -> None:
        self.count = 0

    def on_adds(self, bookie: FullBookie, who: str, adds: Adds) -> None:
        self.count += len(adds.entry_ids)


@pytest.mark.parametrize("is_refusing", [False, True], ids=["silent", "refusing load"])
def test_bookie_that_acknowledges_nothing_in_time_fails_a_copy(is_refusing: bool) -> None:
    """Refusals because of load come in time, and the entries are sent again: a caller would wait for ever."""
    cluster = Cluster(Random(1), 1)
    cluster.observes, cluster.observer = True, SentAdds()
    (bookie,) = cluster.bookies

    async def copy() -> float:
        await cluster.start()
        async with Client(URI, tree=cluster.session()) as client:
            context = await client.context()
            writer = ReplicaWriter(context, LEDGER, bookie.id, context.pool.reserve_connection(LEDGER))
            await writer.connect()
            bookie.is_refusing, bookie.is_journal_hung = is_refusing, not is_refusing
            began_s = asyncio.get_running_loop().time()
            await send(writer, range(4))
            message = f"bookie {bookie.id} acknowledged nothing for {ACK_TIMEOUT_S:g} s"
            with pytest.raises(RequestTimeout, match=message) as raised:
                await writer.drained(0)
            assert raised.value.bookie == bookie.id
            writer.close()
            return asyncio.get_running_loop().time() - began_s

    assert cluster.run(copy()) == pytest.approx(ACK_TIMEOUT_S)
    assert (cluster.observer.count > 4) == is_refusing


def test_which_entries_are_wanted_is_the_callers_to_keep() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        writer = await writer_to(world, bookie)
        batch = EntryBatch.of([sealed(LEDGER, entry_id) for entry_id in range(3)], LEDGER, 0)
        wanted = np.array([True, False, True])
        await writer.send(np.arange(3), wanted, *v2.encode_stored_adds(batch, KEY, v2.RECOVERY_ADD))
        await writer.drained(0)
        assert wanted.tolist() == [True, False, True]
        writer.close()

    with_bookies(Holder())(test)


# ---- which entries a bookie lacks ----


def reader_of(context: object, bookie: HostileBookie) -> ReplicaReader:
    metadata = LedgerMetadata(1, 1, 1, (Fragment(0, (bookie.id,)),))
    return ReplicaReader(context, LEDGER, metadata, b"")


def test_entries_that_a_bookie_does_not_return_or_returns_damaged_are_missing() -> None:
    """30 entries take several requests: the first ones are for few entries."""
    held = set(range(30)) - {0, 11, 29}

    def answer(asked: Asked) -> bytes:
        if asked.entry_id == 20:
            return reply(asked, body=sealed(LEDGER, 21))
        if asked.entry_id not in held:
            return reply(asked, status=Status.ENOENTRY)
        return reply(asked, body=sealed(LEDGER, asked.entry_id))

    async def test(world: World, bookie: HostileBookie) -> None:
        reader = reader_of(await world.client(net=PATIENT).context(), bookie)
        assert (await reader.missing(bookie.id, np.arange(30))).tolist() == [0, 11, 20, 29]
        assert (await reader.missing(bookie.id, np.arange(12, 20))).tolist() == []
        assert (await reader.missing(bookie.id, np.arange(0))).tolist() == []
        assert len({asked.entry_id for asked in bookie.asked}) == 30

    with_bookies(answer)(test)


def test_sizes_that_a_caller_has_learned_decide_how_many_entries_are_requested() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        pool = (await world.client(net=PATIENT).context()).pool
        pace = AdaptiveReadSize(bytes_max=1_000_000, entries_max=100)
        for _ in range(4):
            pace.on_entries(10)
        reads = ReplicaReads(pool, LEDGER, DIGEST, pace)
        assert len((await reads.some(bookie.id, np.arange(200))).statuses) == 100
        assert len((await ReplicaReads(pool, LEDGER, DIGEST).some(bookie.id, np.arange(200))).statuses) < 100

    with_bookies(Holder(range(200)))(test)


def test_number_of_requested_entries_doubles_up_to_128_unless_a_caller_has_its_own_limits() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        reads = ReplicaReads((await world.client(net=PATIENT).context()).pool, LEDGER, DIGEST)
        found = [len((await reads.some(bookie.id, np.arange(200))).statuses) for _ in range(6)]
        assert found == [8, 16, 32, 64, 128, 128]

    with_bookies(Holder(range(200)))(test)


def test_bookie_of_a_striped_ledger_looks_up_256_entries_at_once_at_most() -> None:
    """It looks up each separately: the caller's own limit is for entries that lie together."""

    async def test(world: World, bookie: HostileBookie) -> None:
        pool = (await world.client(net=PATIENT).context()).pool
        pace = AdaptiveReadSize(bytes_max=1_000_000, entries_max=1000, entries_first=1000)
        entries, status = await ReplicaReads(pool, LEDGER, DIGEST, pace).prefix(
            bookie.id, np.arange(0, 900, 3), 3, 1 << 20
        )
        assert (len(entries), status, len(bookie.asked)) == (256, Status.EOK, 256)

    with_bookies(Holder(range(900)))(test)


def test_old_bookie_is_asked_for_as_many_consecutive_entries_as_a_caller_wants() -> None:
    holder = Holder(range(300))

    def answer(asked: Asked) -> bytes | None:
        if asked.opcode == v2.BATCH_READ:
            raise ConnectionError
        return holder(asked)

    async def test(world: World, bookie: HostileBookie) -> None:
        pool = (await world.client(net=PATIENT).context()).pool
        pace = AdaptiveReadSize(bytes_max=1_000_000, entries_max=1000, entries_first=1000)
        reads = ReplicaReads(pool, LEDGER, DIGEST, pace)
        for _ in range(2):
            entries, status = await reads.prefix(bookie.id, np.arange(300), 1, 1 << 20)
            assert (len(entries), status) == (300, Status.EOK)

    with_bookies(answer)(test)


def test_bookie_that_refuses_load_lacks_nothing_for_certain() -> None:
    def answer(asked: Asked) -> bytes:
        return reply(asked, status=Status.ETOOMANYREQUESTS if asked.entry_id == 3 else Status.ENOENTRY)

    async def test(world: World, bookie: HostileBookie) -> None:
        reader = reader_of(await world.client(net=PATIENT).context(), bookie)
        with pytest.raises(TooManyRequests) as raised:
            await reader.missing(bookie.id, np.arange(2, 6))
        assert raised.value.bookie == bookie.id

    with_bookies(answer)(test)


ALL_LISTED = encode_entry_list(EntryRuns.of(np.array([0, 2, 4])), 100)
"""The list of a bookie that has three of five entries: as many runs as a ledger of five entries may need, and less."""


async def listed(world: World, status: int, body: bytes | None, last_entry: int) -> list[int] | None:
    """Return the entries that a bookie lists, of a ledger that is closed at an entry; None: it sends no list."""

    def answer(request: protocol.Request) -> list[protocol.Response]:
        inner = protocol.GetListOfEntriesOfLedgerResponse(status=status, ledgerId=LEDGER)
        if body is not None:
            inner.availabilityOfEntriesOfLedger = body
        head = v3.header(request.header.operation, request.header.txnId)
        return [protocol.Response(header=head, status=status, getListOfEntriesOfLedgerResponse=inner)]

    async with HostileBookie(Holder(), answer) as bookie:
        metadata = LedgerMetadata(1, 1, 1, (Fragment(0, (bookie.id,)),)).closed(last_entry, 10)
        reader = ReplicaReader(await world.client(net=PATIENT).context(), LEDGER, metadata, b"")
        runs = await reader.listed(bookie.id)
        return None if runs is None else [entry_id for entry_id in range(9) if entry_id in runs]


@pytest.mark.parametrize(
    ("status", "body", "last_entry", "expected"),
    [
        (protocol.EOK, ALL_LISTED, 4, [0, 2, 4]),
        (protocol.EOK, ALL_LISTED, 2, [0, 2, 4]),
        (protocol.EOK, ALL_LISTED, 1, None),
        (protocol.EOK, encode_entry_list(EntryRuns.of(np.array([0])), 100), 0, [0]),
        (protocol.ENOENTRY, None, 4, []),
        (protocol.ENOLEDGER, None, 4, []),
        (protocol.EIO, None, 4, None),
        (protocol.EUA, None, 4, None),
        (protocol.EUNKNOWNLEDGERSTATE, None, 4, None),
        (protocol.ETOOMANYREQUESTS, None, 4, None),
        (protocol.EOK, b"no list", 4, None),
    ],
)
def test_list_of_entries_counts_only_if_it_is_certain(
    status: int, body: bytes | None, last_entry: int, expected: list[int] | None
) -> None:
    """If an error counts as "it has no entries", autorecovery copies what is there. An answer with more runs than the
    ledger has entries is an error."""

    async def test(world: World) -> None:
        assert await listed(world, status, body, last_entry) == expected

    play(test, 20)


def test_bookie_that_cannot_be_reached_lists_nothing() -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        reader = reader_of(await world.client(net=PATIENT).context(), bookie)
        assert await reader.listed("127.0.0.1:1") is None

    with_bookies(Holder())(test)
