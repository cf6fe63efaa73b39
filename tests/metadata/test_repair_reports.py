"""Reports of repairs, and the rate for all processes: their form and their nodes."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.errors import MetadataFormat
from bkspark.metadata import repair_reports
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.repair_reports import NO_LIMIT, Postponed, Repairing, RepairReport, RepairReports
from bkspark.metadata.uri import MetadataUri

URI = MetadataUri.parse("zk://simulated:2181/ledgers")
REPORT = RepairReport(
    "10.0.0.1:3181", 17, 5, 3, 2, 100, 1, 1, (Repairing(7, 50, 20, 9),), (Postponed(8, "why", 2, 99),), {"why": 1}
)


def test_form_keeps_every_field() -> None:
    assert repair_reports.decode(repair_reports.encode(REPORT), "x") == REPORT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"worker": "a", "at_ms": 1, "repairs": [1]}',
        b"[" * 100_000,
        # Values that commands add up, format or iterate over.
        b'{"worker": 1, "at_ms": 1}',
        b'{"worker": "a", "at_ms": "1"}',
        b'{"worker": "a", "at_ms": true}',
        b'{"worker": "a", "at_ms": 1, "copied_bytes": "many"}',
        b'{"worker": "a", "at_ms": 1, "failures": 1e400}',
        b'{"worker": "a", "at_ms": 1, "causes": ["why"]}',
        b'{"worker": "a", "at_ms": 1, "causes": {"why": null}}',
        b'{"worker": "a", "at_ms": 1, "repairs": [{"ledger": "7", "bytes": 0, "copied_bytes": 0, "since_ms": 0}]}',
        b'{"worker": "a", "at_ms": 1, "postponements": [{"ledger": 7, "error": 1, "failures": 0, "next_try_ms": 0}]}',
    ],
)
def test_other_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(MetadataFormat, match="the report of x on its repairs"):
        repair_reports.decode(data, "x")


def test_reports_end_with_their_session_and_one_that_cannot_be_read_hides_no_other() -> None:
    async def run() -> None:
        store = MemoryStore()
        first, second = store.session(), store.session()
        reports = RepairReports(first, URI)
        assert await reports.all() == []
        await reports.put(REPORT)
        await reports.put(REPORT)
        await RepairReports(second, URI).put(REPORT)
        assert await reports.all() == [REPORT, REPORT]
        await first.create("/ledgers/underreplication/workers/other", b"?")
        assert await reports.all() == [REPORT, REPORT]
        await second.close()
        assert await reports.all() == [REPORT]

    asyncio.run(run())


def test_rate_is_set_replaced_removed_and_checked() -> None:
    async def run() -> None:
        tree = MemoryStore().session()
        reports = RepairReports(tree, URI)
        assert await reports.bytes_per_s() is None
        await reports.set_bytes_per_s(None)
        for value in (1000, NO_LIMIT, 0, 10**15 - 1):
            await reports.set_bytes_per_s(value)
            assert await reports.bytes_per_s() == value
        await tree.set("/ledgers/underreplication/replicationRateByBytes", b"fast", -1)
        with pytest.raises(MetadataFormat, match="fast"):
            await reports.bytes_per_s()
        await reports.set_bytes_per_s(None)
        assert await reports.bytes_per_s() is None

    asyncio.run(run())
