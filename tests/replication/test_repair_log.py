"""What repairs log: nothing floods, and what was repaired is reported."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bkspark.errors import NotEnoughBookies, ReadFailed
from bkspark.failure_log import MINUTE_S
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AutoRecoveryOptions, RepairOptions
from bookie_service.replication.repair_log import CAUSES_MAX, RepairLog
from tests.clock import Clock
from tests.ledger.in_process import InProcessCluster, run


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def log(clock: Clock, caplog: pytest.LogCaptureFixture) -> RepairLog:
    caplog.set_level(logging.INFO)
    return RepairLog(clock)


def test_cause_has_one_line_a_minute_however_many_ledgers_fail(
    log: RepairLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """100,000 ledgers without a spare bookie, three attempts each: six million lines an hour before."""
    for attempt in range(3):
        for ledger_id in range(10_000):
            log.failed(ledger_id, NotEnoughBookies(f"no spare writable bookie for {ledger_id}: start more"), 1.0)
        log.tick(10_000)
        clock.now += MINUTE_S + 1
        log.tick(10_000)
        assert len(caplog.records) == attempt + 2
    assert caplog.messages[0] == "ledger 0 is not repaired yet: no spare writable bookie for 0: start more"
    assert caplog.messages[1] == (
        "9999 more repairs failed in 61 s for this cause, the last of them of ledger 9999: no spare writable bookie "
        "for 9999: start more"
    )


def test_causes_have_lines_of_their_own_up_to_a_limit(log: RepairLog, caplog: pytest.LogCaptureFixture) -> None:
    log.failed(1, NotEnoughBookies("no spare bookie"), 1.0)
    log.failed(2, ReadFailed("no bookie answers"), 1.0)
    assert len(caplog.records) == 2
    for number in range(3 * CAUSES_MAX):
        log.failed(3, ReadFailed("a" * number), 1.0)
    assert len(caplog.records) <= CAUSES_MAX + 1


def test_cause_that_is_over_has_a_line_at_once_when_it_returns(
    log: RepairLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log.failed(1, ReadFailed("x"), 1.0)
    clock.now += MINUTE_S
    log.tick(0)
    log.failed(2, ReadFailed("x"), 1.0)
    assert caplog.messages == ["ledger 1 is not repaired yet: x", "ledger 2 is not repaired yet: x"]


def test_repaired_ledgers_are_summed_up(log: RepairLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for ledger_id in range(50):
        log.repaired(ledger_id, 1 << 20, clock.now)
    log.tick(7)
    assert caplog.messages == []
    clock.now += MINUTE_S
    log.tick(7)
    log.tick(7, is_last=True)
    assert caplog.messages == ["repaired 50 ledgers, 52428800 bytes copied, 0.8 MiB/s; 7 are left"]
    log.repaired(1, 0, clock.now)
    log.tick(0, is_last=True)
    assert len(caplog.records) == 2


def test_rate_counts_from_the_beginning_of_the_repairs(
    log: RepairLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It counted from the end of the first one: a single ledger of 100 MiB had 100,000 MiB/s."""
    began_s, clock.now = clock.now, clock.now + 50
    log.repaired(1, 60 << 20, clock.now - 10)
    log.repaired(2, 40 << 20, began_s)
    log.tick(0, is_last=True)
    assert caplog.messages == ["repaired 2 ledgers, 104857600 bytes copied, 2.0 MiB/s; 0 are left"]


def test_ledgers_that_are_repaired_side_by_side_are_counted_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log said that 3 were left when all but one of 4 were repaired, and counted the bytes of the others with
    each."""
    caplog.set_level(logging.INFO)
    count, copied = 8, []

    async def test(cluster: InProcessCluster) -> None:
        client, listed = cluster.client(), []
        for _ in range(count):
            async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
                await writer.append(b"an entry")
            listed.append(writer.ledger_id)
        lost = cluster.bookies[0]
        await lost.stop()
        repaired = await RepairedCluster.of(cluster.client())
        for ledger_id in listed:
            await repaired.store.mark(ledger_id, [lost.id], 0)
        options = AutoRecoveryOptions(repair=RepairOptions(ledgers_at_once=4))
        worker = repaired.worker("a worker", options)
        assert await worker.repair_listed() == count
        copied.append(worker.copied_bytes)

    run(tmp_path, test, bookies=4)
    (line,) = (message for message in caplog.messages if message.startswith(f"repaired {count} "))
    assert line.startswith(f"repaired {count} ledgers, {copied[0]} bytes copied, ")
    assert line.endswith("0 are left")


@pytest.mark.parametrize("begun", [(10.0, 50.0), (50.0, 10.0)])
def test_line_about_repairs_is_due_a_minute_after_the_first_of_them_began(
    log: RepairLog, clock: Clock, caplog: pytest.LogCaptureFixture, begun: tuple[float, float]
) -> None:
    """Repairs run beside each other: the one that ends last may have begun first."""
    for ledger_id, began_s in enumerate(begun):
        log.repaired(ledger_id, 1 << 20, began_s)
    clock.now = 10.0 + MINUTE_S - 0.1
    log.tick(0)
    assert caplog.records == []
    clock.now = 10.0 + MINUTE_S
    log.tick(0)
    (record,) = caplog.records
    assert record.attributes == {"ledgers": 2, "bytes": 2 << 20, "seconds": MINUTE_S, "left": 0}  # type: ignore[attr-defined]
