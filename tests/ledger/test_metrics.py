"""Metrics of the client: what its operations count, and that nothing is counted while they are off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bkspark import metrics
from bkspark.blocking import Client
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, ClientClosed, NoSuchLedger
from tests.cluster import Cluster
from tests.ledger.holders import FOR_EVER_S, PATIENT, Holder, register, with_bookies
from tests.ledger.hostile import HostileBookie, World


@pytest.fixture
def counting() -> Iterator[None]:
    """Metrics are on while the test runs, from 0."""
    metrics.stop()
    metrics.start()
    yield
    metrics.stop()


def sample(name: str, **labels: str) -> float:
    """Return one number of the text, 0 if it is not there; read by Prometheus's own parser."""
    families = text_string_to_metric_families(metrics.text())
    found = [each.value for family in families for each in family.samples if (each.name, each.labels) == (name, labels)]
    return found[0] if found else 0.0


def count(operation: str, success: str = "true") -> float:
    return sample("bkspark_client_seconds_count", operation=operation, success=success)


@pytest.mark.cluster
def test_operations_entries_and_bytes_are_counted(cluster: Cluster, counting: None) -> None:
    with Client(cluster.uri) as client:
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append(b"one")
            writer.append_many([b"x" * 100] * 50)
        reader = client.open(writer.ledger_id)
        assert sum(len(batch) for batch in reader.batches()) == 51
        left = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        left.append(b"left open")
        left.abandon()
        client.recover(left.ledger_id)
        client.delete(left.ledger_id)
        with pytest.raises(NoSuchLedger):
            client.open(1 << 40)
    # The recovery wrote the entry of the open ledger once more.
    assert (count("create"), count("open"), count("recover"), count("delete")) == (2, 1, 1, 1)
    assert (count("open", "false"), count("append", "false")) == (1, 0)
    assert count("append") >= 3
    assert count("read") >= 1
    for what, operation, value in (("entries", "append", 53), ("bytes", "append", 5021), ("entries", "read", 51)):
        assert sample(f"bkspark_client_{what}_total", operation=operation) == value, (what, operation)
    assert sample("bkspark_client_seconds_bucket", operation="append", success="true", le="+Inf") == count("append")


@pytest.mark.cluster
def test_adds_that_fail_are_counted_as_failed(cluster: Cluster, counting: None) -> None:
    with Client(cluster.uri) as client:
        writer = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        writer.append(b"one")
        client.recover(writer.ledger_id)
        with pytest.raises(BookKeeperError, match="recovered by another client"):
            writer.append(b"two")
        writer.abandon()
    # The recovery's copy succeeded, too.
    assert (count("append"), count("append", "false")) == (2, 1)


@pytest.mark.cluster
def test_nothing_is_counted_while_metrics_are_off(cluster: Cluster) -> None:
    metrics.stop()
    with Client(cluster.uri) as client, client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        writer.append(b"one")
    assert metrics.text() == ""


def test_entries_that_were_sent_together_count_when_the_last_one_is_acknowledged(counting: None) -> None:
    async def test(world: World, bookie: HostileBookie) -> None:
        await register(world, bookie)
        client = world.client(net=PATIENT, writer=WriterOptions(add_timeout_s=FOR_EVER_S))
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        done = await writer.submit([b"0", b"1"])
        while writer.last_entry < 0:
            await asyncio.sleep(0.001)
        assert (count("append"), count("append", "false")) == (0, 0)
        writer.abandon()
        with pytest.raises(ClientClosed):
            await done
        while not count("append", "false"):
            await asyncio.sleep(0)
        assert count("append") == 0

    with_bookies(Holder(hears=lambda asked: asked.entry_id != 1))(test)


def test_a_program_serves_them(counting: None) -> None:
    recorder = metrics.recorder
    assert recorder is not None
    recorder.record("append", 0.0, 3, 30)
    with metrics.serve(0) as port, urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        assert reply.headers["Content-Type"] == metrics.CONTENT_TYPE
        assert b'bkspark_client_entries_total{operation="append"} 3' in reply.read()
