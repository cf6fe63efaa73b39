"""Unreadable or unusable nodes of the metadata store: one line of the log each, and nothing else waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bkspark.client import Client
from bkspark.errors import BookieUnavailable
from bkspark.metadata import paths, registration
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions, RepairOptions
from tests.ledger.in_process import URI, InProcessCluster, run

ROOT = f"{MetadataUri.parse(URI).root}/underreplication"
OPTIONS = AutoRecoveryOptions(AuditOptions(ledger_check_interval_s=3600), RepairOptions(pause_s=0.01))
LOOKS = 5


async def put(store: MemoryStore, path: str, data: bytes) -> None:
    tree = store.session()
    if await tree.exists(path) is None:
        await tree.create(path, data, make_parents=True)
    else:
        await tree.set(path, data, -1)


async def written(client: Client) -> int:
    async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        await writer.append(b"an entry")
    return writer.ledger_id


@pytest.mark.parametrize("data", [b"", b"soon", b"\xff\xfe", b"9" * 400, b"1e3"])
def test_a_delay_that_is_not_a_number_counts_as_absent_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    async def test(cluster: InProcessCluster) -> None:
        ledger_id = await written(cluster.client())
        await cluster.bookies[0].stop()
        # Lost is who has a cookie and no registration.
        await put(cluster.store, f"{MetadataUri.parse(URI).root}/cookies/{cluster.bookies[0].id}", b"4\n")
        repaired = await RepairedCluster.of(cluster.client())
        await put(cluster.store, f"{ROOT}/lostBookieRecoveryDelay", data)
        auditor = repaired.auditor("an auditor", OPTIONS)
        for _ in range(LOOKS):
            await auditor.refresh()
        assert [listed async for listed in repaired.store.ids()] == [ledger_id]

    run(tmp_path, test)
    assert len([message for message in caplog.messages if "lostBookieRecoveryDelay" in message]) == 1


def test_a_time_of_the_last_check_that_cannot_be_read_is_replaced_by_the_next_check(tmp_path: Path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        repaired = await RepairedCluster.of(cluster.client())
        await put(cluster.store, f"{ROOT}/checkallledgersctime", b"\xff\xff")
        auditor = repaired.auditor("an auditor", OPTIONS)
        async with asyncio.timeout(60):
            while True:
                await auditor.refresh()
                await asyncio.sleep(0.01)
                if (await cluster.store.session().get(f"{ROOT}/checkallledgersctime"))[0] != b"\xff\xff":
                    break
        assert await repaired.store.all_checked_ms() is not None

    run(tmp_path, test)


def test_listed_ledgers_that_cannot_be_are_passed_over_and_the_others_repaired(tmp_path: Path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        good, unreadable = await written(client), await written(client)
        lost = (await client.metadata(good)).last_fragment.bookies[0]
        await cluster.bookie(lost).stop()
        repaired = await RepairedCluster.of(cluster.client())
        for ledger_id in (good, unreadable):
            await repaired.store.mark(ledger_id, [lost], 0)
        await put(cluster.store, f"{ROOT}/ledgers/0000/0000/0000/0001/urL{unreadable:010d}", b"nonsense {")
        await put(cluster.store, f"{ROOT}/ledgers/ffff/ffff/ffff/ffff/urL9999999999999999999", b"")
        await put(cluster.store, f"{ROOT}/ledgers/0000/0000/0000/0000/stray", b"")
        assert await repaired.worker("a worker", OPTIONS).repair_listed() == 1
        assert lost not in (await client.metadata(good)).last_fragment.bookies
        assert [listed async for listed in repaired.store.ids()] == [unreadable]

    run(tmp_path, test, bookies=4)


@pytest.mark.parametrize(("host", "port"), [("x" * 70, 3181), ("a..b", 3181), ("127.0.0.1", 70_000), ("\0", 3181)])
def test_a_bookie_registered_at_no_address_is_one_that_cannot_be_reached(tmp_path: Path, host: str, port: int) -> None:
    """What asyncio says of it is not an OSError: it ended autorecovery, and reads had a traceback."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        ledger_id = await written(client)
        registered = registration.encode(BookieAddress(host, port))
        await put(cluster.store, f"{MetadataUri.parse(URI).root}/{paths.AVAILABLE}/nowhere", registered)
        context = await cluster.client().context()
        with pytest.raises(BookieUnavailable, match="bookie nowhere cannot be reached"):
            await context.pool.channel("nowhere")
        lost = (await client.metadata(ledger_id)).last_fragment.bookies[0]
        await cluster.bookie(lost).stop()
        repaired = await RepairedCluster.of(cluster.client())
        await repaired.store.mark(ledger_id, [lost], 0)
        assert await repaired.worker("a worker", OPTIONS).repair_listed() == 1
        assert {lost, "nowhere"}.isdisjoint((await client.metadata(ledger_id)).last_fragment.bookies)

    run(tmp_path, test, bookies=4)


def test_a_vote_whose_name_only_looks_like_a_number_is_nobodys(tmp_path: Path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        repaired = await RepairedCluster.of(cluster.client())
        await put(cluster.store, f"{ROOT}/auditorelection/V_\N{SUPERSCRIPT TWO}", b"nobody")
        auditor = repaired.auditor("an auditor", OPTIONS)
        await auditor.refresh()
        assert (await cluster.store.session().get(f"{ROOT}/auditorelection"))[0] == b'bookieId: "an auditor"\n'

    run(tmp_path, test)
