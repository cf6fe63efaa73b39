"""Records of changes that commands make in the metadata store: kept in order, bounded, read whatever they hold."""

from __future__ import annotations

import asyncio

from bkspark.metadata import change_records
from bkspark.metadata.change_records import RECORDS_MAX, ChangeRecord, ChangeRecords
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from tests.metadata.meanwhile import Meanwhile

URI = MetadataUri.parse("zk://h:2181/ledgers")
AT = "/ledgers/underreplication/changes"


def test_records_come_back_the_latest_first_and_the_oldest_are_removed() -> None:
    async def run() -> None:
        tree = MemoryStore().session()
        records = ChangeRecords(tree, URI)
        assert await records.latest(10) == []
        for number in range(RECORDS_MAX + 5):
            await records.add(ChangeRecord(number, "command:amy@host", f"delete ledger {number}"))
        assert len(await tree.children(AT)) == RECORDS_MAX
        found = await records.latest(2)
        assert [each.change for each in found] == [f"delete ledger {RECORDS_MAX + n}" for n in (4, 3)]
        assert found[0] == ChangeRecord(RECORDS_MAX + 4, "command:amy@host", f"delete ledger {RECORDS_MAX + 4}")

    asyncio.run(run())


def test_a_record_that_cannot_be_read_hides_no_other() -> None:
    async def run() -> None:
        tree = MemoryStore().session()
        records = ChangeRecords(tree, URI)
        await records.add(ChangeRecord(1, "command:amy@host", "x" * 5000))
        late = b'{"at_ms": 9999999999999999999, "who": "", "change": ""}'
        for data in (b"\xff", b"[]", b'{"at_ms": true, "who": "", "change": ""}', b"[" * 100_000, late):
            await tree.create(f"{AT}/change-", data, sequential=True)
        found = await records.latest(10)
        assert len(found) == 6
        assert all("cannot be read" in each.change for each in found[:5])
        assert found[5].change == "x" * change_records.CHANGE_CHARACTERS_MAX

    asyncio.run(run())


def test_another_command_may_remove_an_old_record_at_that_moment() -> None:
    async def run() -> None:
        store = MemoryStore()
        records = ChangeRecords(store.session(), URI)
        for number in range(RECORDS_MAX):
            await records.add(ChangeRecord(number, "command:amy@host", "change"))

        async def removed() -> None:
            await store.session().delete(f"{AT}/change-{0:010d}")

        await ChangeRecords(Meanwhile(store, delete=removed), URI).add(ChangeRecord(1, "command:amy@host", "change"))
        assert len(await store.session().children(AT)) == RECORDS_MAX

    asyncio.run(run())
