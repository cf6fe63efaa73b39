"""Entries that one bookie holds damaged are reported, and read from another one."""

from __future__ import annotations

import asyncio
import re

import pytest

from bkspark.client import Client, LedgerWriter
from bkspark.entries import EntryBatch
from bkspark.errors import ReadFailed
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from tests.ledger.in_process import InProcessCluster, run

DIGEST = EntryDigest(DigestType.CRC32C, b"")
PAYLOADS = [b"%04d" % number for number in range(30)]


async def damage(bookie: str, ledger_id: int, *entry_ids: int) -> None:
    """Have a bookie keep other bytes under these ids, as a recovery may."""
    host, port = bookie.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for entry_id in entry_ids:
        entry = EntryBatch.of([PAYLOADS[entry_id]], ledger_id, entry_id)
        frame = bytearray(v2.encode_adds(entry, -1, 0, DIGEST, master_key(b""), v2.RECOVERY_ADD).buffer)
        frame[-1] ^= 1
        writer.write(frame)
        await reader.readexactly(4 + v2.REPLY_BYTES)
    writer.close()


async def written(client: Client) -> LedgerWriter:
    writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
    await writer.append_many(PAYLOADS)
    return writer


def reported(caplog: pytest.LogCaptureFixture, ledger_id: int) -> set[tuple[str, int]]:
    """Return (bookie, entry id) of all that was reported of a ledger."""
    found = re.findall(rf"ledger {ledger_id} entry (-?\d+) at bookie (\S+): the bytes do not match", caplog.text)
    return {(bookie, int(entry_id)) for entry_id, bookie in found}


@pytest.mark.parametrize("wire_protocol", ["v2", "v3"])
def test_damaged_entries_are_reported_and_read_elsewhere(tmp_path, caplog, wire_protocol):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(wire_protocol=wire_protocol)
        writer = await written(client)
        first, second, third = writer.metadata.last_fragment.bookies
        await writer.close()
        await damage(first, writer.ledger_id, 3, 11)
        await damage(second, writer.ledger_id, 3, 12)
        for bookie in (first, second, third):
            reader = await client.open(writer.ledger_id)
            reader._range.preferred = bookie
            assert list(await reader.read(0, 29)) == PAYLOADS
        assert {(first, 3), (second, 3)} <= reported(caplog, writer.ledger_id)
        await damage(third, writer.ledger_id, 3)
        with pytest.raises(ReadFailed, match=r"entry 3 .*do not match their digest") as raised:
            await reader.read(0, 29)
        assert (raised.value.ledger_id, raised.value.entry_id) == (writer.ledger_id, 3)

    run(tmp_path, test)


def test_recovery_reports_damaged_entries_and_takes_them_from_elsewhere(tmp_path, caplog):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        writer = await written(client)
        bookies = writer.metadata.last_fragment.bookies
        await asyncio.gather(*(damage(bookie, writer.ledger_id, 6 + i) for i, bookie in enumerate(bookies)))
        await damage(bookies[0], writer.ledger_id, 29)
        assert (await client.recover(writer.ledger_id)).last_entry == 29
        assert (bookies[0], -1) in reported(caplog, writer.ledger_id)
        assert any(entry_id in (6, 7, 8) for _, entry_id in reported(caplog, writer.ledger_id))
        reader = await client.open(writer.ledger_id)
        assert list(await reader.read(0, 29)) == PAYLOADS

    run(tmp_path, test)
