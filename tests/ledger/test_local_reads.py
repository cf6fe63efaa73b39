"""Scans of bookies on this host read their entry logs; whatever is odd there, the network decides."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import aclosing
from pathlib import Path

import pytest

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import ReadFailed
from bkspark.net import local_reads
from bkspark.net.local_reads import LocalReads, read_all
from bkspark.net.pool import NetOptions
from bkspark.wire.local_reads import NOT_HERE, REPLY_BYTES_MAX, LocalRead, socket_name
from bookie_service.network.local_reads import CONNECTIONS_MAX, LocalReadServer
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.ledger.in_process import InProcessBookie, InProcessCluster, run

PATIENT = NetOptions(read_timeout_s=120.0, speculative_read_s=120.0)
SMALL = [b"%06d" % number * 100 for number in range(3000)]
LARGE = [bytes([number]) * (200_000 + number) for number in range(20)]
MIXED = [bytes([number % 251]) * (number * 37 % 3000) for number in range(1500)]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[EntryBatch | None]:
    """What local reads gave, in order."""
    given: list[EntryBatch | None] = []
    read = LocalReads.read

    async def note(self: LocalReads, *arguments: object) -> EntryBatch | None:
        entries = await read(self, *arguments)
        given.append(entries)
        return entries

    monkeypatch.setattr(LocalReads, "read", note)
    return given


async def write(client: Client, payloads: list[bytes], copies: int = 1) -> int:
    async with await client.create(ensemble=copies, write_quorum=copies, ack_quorum=copies) as writer:
        await writer.append_many(payloads)
        return writer.ledger_id


async def scan(client: Client, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    return [payload async for batch in reader.batches() for payload in batch]


def count(given: list[EntryBatch | None]) -> int:
    return sum(len(entries) for entries in given if entries is not None)


def logs(bookie: InProcessBookie) -> list[Path]:
    return sorted(bookie.directory.rglob("*.log"))


def open_files(kind: str) -> list[str]:
    """Return what descriptors of this process, which is both sides, stand for, as far as `kind` is in the name."""
    links = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    return sorted(name for link in links if os.path.lexists(link) and kind in (name := os.readlink(link)))


@pytest.mark.parametrize("storage_class", StorageClass)
def test_entries_come_from_the_entry_log_and_are_those_of_the_network(tmp_path, spy, storage_class):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        other = cluster.client(net=NetOptions(local_reads=False))
        ledgers = [await write(client, payloads) for payloads in (SMALL, LARGE, MIXED)]
        await cluster.bookies[0].flush()
        for ledger_id, payloads in zip(ledgers, (SMALL, LARGE, MIXED)):
            spy.clear()
            assert await scan(client, ledger_id) == payloads
            # The rest, where it is too short for a scan, is asked for.
            assert count(spy) > 0.9 * len(payloads)
            spy.clear()
            assert await scan(other, ledger_id) == payloads
            assert not spy

    run(tmp_path, test, bookies=1, store=StoreOptions(storage_class))


def test_entries_of_many_interleaved_ledgers_are_distinguished(tmp_path, spy):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        writers = [await client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(3)]
        for first in range(0, len(SMALL), 100):
            await asyncio.gather(*(writer.append_many(SMALL[first : first + 100]) for writer in writers))
        await asyncio.gather(*(writer.close() for writer in writers))
        await cluster.bookies[0].flush()
        for writer in writers:
            spy.clear()
            assert await scan(client, writer.ledger_id) == SMALL
            assert count(spy) == len(SMALL)

    run(tmp_path, test, bookies=1, store=StoreOptions(StorageClass.INTERLEAVED))


def test_entries_in_the_write_cache_are_asked_for(tmp_path, spy):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        async with await client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append_many(SMALL[:2000])
            await cluster.bookies[0].service.flush()
            await writer.append_many(SMALL[2000:])
        assert await scan(client, writer.ledger_id) == SMALL
        assert count(spy) == 2000
        assert spy[-1] is None

    run(tmp_path, test, bookies=1)


def test_an_error_in_a_local_read_ends_its_connection_and_the_entries_are_asked_for(tmp_path, caplog, monkeypatch):
    """A read changes nothing, so an error in one leaves the bookie as it was."""

    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        ledger_id = await write(client, SMALL)
        await cluster.bookies[0].flush()
        with monkeypatch.context() as changed:
            changed.setattr(LocalReadServer, "_answer", broken)
            assert await scan(client, ledger_id) == SMALL
        assert not cluster.bookies[0].service.failed.done()
        assert sum("a local read failed" in record.message for record in caplog.records) == 1

    run(tmp_path, test, bookies=1)


@pytest.mark.parametrize("cut", [0, 1, 4])
@pytest.mark.parametrize("size", [0, 1, 9, 10])
def test_files_are_read_where_the_system_does_not_tell_what_is_in_memory(size, cut):
    """tmpfs refuses RWF_NOWAIT."""
    descriptor = os.memfd_create("log")
    try:
        os.write(descriptor, b"0123456789")
        memory = bytearray(size)
        with pytest.raises(OSError, match="not supported"):
            os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
        parts = [memoryview(memory)[:cut], memoryview(memory)[cut:]]
        assert read_all(descriptor, parts, 1) == (size < 10)
        assert bytes(memory) == b"123456789\0"[:size]
    finally:
        os.close(descriptor)


def test_few_entries_are_asked_for_at_once(tmp_path, spy):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        ledger_id = await write(client, SMALL)
        await cluster.bookies[0].flush()
        reader = await client.open(ledger_id)
        assert list(await reader.read(7, 9)) == SMALL[7:10]
        assert not spy

    run(tmp_path, test, bookies=1)


def test_a_bookie_that_is_not_to_do_it_is_asked(tmp_path, spy):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        ledger_id = await write(client, SMALL)
        await cluster.bookies[0].flush()
        assert await scan(client, ledger_id) == SMALL
        assert count(spy) == 0

    run(tmp_path, test, bookies=1, local_reads=False)


@pytest.mark.parametrize("piece_bytes", [50_000, local_reads.PIECE_BYTES])
@pytest.mark.parametrize(("payloads", "at"), [(SMALL, 1234), (LARGE, 12)], ids=["small", "large"])
def test_damage_in_an_entry_log_is_reported_and_read_elsewhere(
    tmp_path, spy, caplog, monkeypatch, payloads, at, piece_bytes
):
    monkeypatch.setattr(local_reads, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(local_reads, "BATCH_BYTES", 10 * piece_bytes)

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        ledger_id = await write(client, payloads, 2)
        for bookie in cluster.bookies:
            await bookie.flush()
        first, second = cluster.bookies
        flip(logs(first), payloads[at])
        reader = await client.open(ledger_id)
        reader._range.preferred = first.id
        assert [payload async for batch in reader.batches() for payload in batch] == payloads
        assert 0 < count(spy) < len(payloads)
        assert f"entry {at} at bookie {first.id}: the bytes do not match their digest" in caplog.text
        flip(logs(second), payloads[at])
        with pytest.raises(ReadFailed, match=rf"entry {at} .*do not match their digest"):
            await scan(client, ledger_id)

    run(tmp_path, test, bookies=2)


def flip(paths: list[Path], payload: bytes) -> None:
    """Change a byte in the middle of the one place of a payload in entry logs."""
    for path in paths:
        data = path.read_bytes()
        at = data.find(payload)
        if at >= 0:
            with path.open("r+b") as log:
                log.seek(at + 300)
                log.write(bytes([data[at + 300] ^ 1]))
            return
    raise AssertionError("no log has it")


@pytest.mark.slow
def test_a_bookie_that_stops_in_the_middle_is_left_for_another(tmp_path, spy):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        payloads = LARGE * 4
        ledger_id = await write(client, payloads, 2)
        for bookie in cluster.bookies:
            await bookie.flush()
        reader = await client.open(ledger_id)
        reader._range.preferred = cluster.bookies[0].id
        found: list[bytes] = []
        async for batch in reader.batches():
            found += batch
            if cluster.bookies[0].service is not None:
                assert count(spy)
                await cluster.bookies[0].stop()
        assert found == payloads

    run(tmp_path, test, bookies=2)


def test_removed_log_is_read_to_its_end_by_a_reader_that_has_it(tmp_path):
    """Garbage collection removes logs at any moment: also between the bookie's answer and the read."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        bookie = cluster.bookies[0]
        ledger_id = await write(client, LARGE)
        await bookie.flush()
        with peer(bookie) as asking:
            asking.send(request(bookie, ledger_id).encode())
            _, (descriptor,), _, _ = await asyncio.to_thread(socket.recv_fds, asking, REPLY_BYTES_MAX, 1)
            for path in logs(bookie):
                path.unlink()
            assert LARGE[3] in os.pread(descriptor, 5 << 20, 0)
            with pytest.raises(OSError):
                os.write(descriptor, b"it is for reading only")
            os.close(descriptor)
            # Nothing is known of it but what the index says: the network is to decide.
            bookie.service.storage.store.forget_log(0)
            asking.send(request(bookie, ledger_id).encode())
            assert await asyncio.to_thread(asking.recv, REPLY_BYTES_MAX) == NOT_HERE

    run(tmp_path, test, bookies=1)


def request(bookie: InProcessBookie, ledger_id: int, **changes: object) -> LocalRead:
    fields = {"bookie": bookie.id, "address": bytes([127, 0, 0, 1]), "first_entry": 0, "entries_max": 100}
    return LocalRead(**{**fields, "ledger_id": ledger_id, "bytes_max": 5 << 20, **changes})


def peer(bookie: InProcessBookie) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(60)
    peer.connect(socket_name(int(bookie.id.split(":")[1])))
    return peer


def test_client_that_sends_nonsense_or_names_another_bookie_or_does_not_read_is_disconnected(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        bookie = cluster.bookies[0]
        good = request(bookie, 7)
        for message in (
            b"nonsense",
            bytes(2048),
            good.encode() + b"0",
            request(bookie, 7, address=bytes([127, 0, 0, 2])).encode(),
        ):
            with peer(bookie) as asking:
                asking.send(good.encode())
                assert await asyncio.to_thread(asking.recv, REPLY_BYTES_MAX) == NOT_HERE
                asking.send(message)
                assert await asyncio.to_thread(asking.recv, REPLY_BYTES_MAX) == b""

    run(tmp_path, test, bookies=1)


def test_connections_are_limited_and_a_client_above_the_limit_reads_over_the_network(tmp_path, spy):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(net=PATIENT)
        bookie = cluster.bookies[0]
        ledger_id = await write(client, SMALL)
        await bookie.flush()
        peers = [peer(bookie) for _ in range(CONNECTIONS_MAX)]
        assert await scan(client, ledger_id) == SMALL
        assert count(spy) == 0
        for each in peers:
            each.close()
        assert await scan(client, ledger_id) == SMALL
        assert count(spy) == 0
        assert await scan(cluster.client(net=PATIENT), ledger_id) == SMALL
        assert count(spy) == len(SMALL)

    run(tmp_path, test, bookies=1)


def test_a_scan_that_is_broken_off_leaves_nothing_open(tmp_path, spy):
    async def test(cluster: InProcessCluster) -> None:
        ledger_id = await write(cluster.client(), LARGE)
        await cluster.bookies[0].flush()

        async def begin() -> None:
            client = cluster.client(net=PATIENT)
            reader = await client.open(ledger_id)
            async with aclosing(reader.batches(batch_bytes=1_000_000)) as batches:
                assert (await anext(batches))[0] == LARGE[0]
            await client.close()

        sockets = open_files("socket:")
        await begin()
        files = open_files(".log")
        for _ in range(5):
            await begin()
        assert count(spy) >= 6
        while len(open_files("socket:")) > len(sockets):
            await asyncio.sleep(0)  # the bookie closes its ends, too
        assert open_files(".log") == files

    run(tmp_path, test, bookies=1)


def test_local_reads_end_with_their_connection_and_with_the_client(tmp_path, spy):
    async def test(cluster: InProcessCluster) -> None:
        ledger_id = await write(cluster.client(), LARGE)
        await cluster.bookies[0].flush()
        client = cluster.client(net=PATIENT)
        pool = (await client.context()).pool
        assert await scan(client, ledger_id) == LARGE
        (first,) = pool._local_reads.values()
        assert first._bookie._socket is not None
        first.channel.close()
        assert await scan(client, ledger_id) == LARGE
        (second,) = pool._local_reads.values()
        assert second is not first
        assert (first._bookie._socket, first._bookie.is_off) == (None, True)
        await client.close()
        assert (second._bookie._socket, second._bookie.is_off) == (None, True)
        assert count(spy) == 2 * len(LARGE)

    run(tmp_path, test, bookies=1)


def test_bookie_whose_local_reads_are_slow_is_read_over_the_network_from_then_on(tmp_path, spy):
    async def test(cluster: InProcessCluster) -> None:
        ledger_id = await write(cluster.client(), LARGE)
        await cluster.bookies[0].flush()
        client = cluster.client(net=NetOptions(speculative_read_s=0.0))
        assert await scan(client, ledger_id) == LARGE
        (local,) = (await client.context()).pool._local_reads.values()
        assert local._bookie.is_off
        assert count(spy) == 0

    run(tmp_path, test, bookies=1)
