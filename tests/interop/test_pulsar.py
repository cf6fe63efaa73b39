"""An unmodified Apache Pulsar broker on our bookies: produces, consumes, survives a killed bookie and its own end.

`make test-pulsar` fetches the broker (235 MB) and runs these; elsewhere they are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bkspark.blocking import Client
from tests.cluster import Cluster
from tests.interop.pulsar_broker import ANSWER_S, NEEDS_BROKER, PulsarBroker, ledgers_of, need_broker, running_broker

pytestmark = [pytest.mark.interop, pytest.mark.cluster, NEEDS_BROKER]

NAMESPACE = "persistent://public/default"


@pytest.fixture(scope="module")
def pulsar_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One bookie more than a topic's ensemble has, so that a dead one can be replaced."""
    need_broker()
    with Cluster(tmp_path_factory.mktemp("pulsar-cluster"), bookies=4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared_broker(pulsar_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarBroker]:
    directory = tmp_path_factory.mktemp("pulsar") / "broker"
    with running_broker(directory, pulsar_cluster.uri) as broker:
        yield broker


@pytest.fixture
def broker(shared_broker: PulsarBroker, pulsar_cluster: Cluster) -> PulsarBroker:
    pulsar_cluster.revive()
    return shared_broker


def test_item_10_messages_are_consumed_in_the_order_they_were_produced(broker: PulsarBroker) -> None:
    assert broker.run("produce", f"{NAMESPACE}/order", 0, 2000)[-1] == "sent 2000"
    assert broker.run("read", f"{NAMESPACE}/order", 2000) == ["read 2000"]


def test_item_10_bookie_killed_under_a_producer_costs_no_message(broker: PulsarBroker, pulsar_cluster: Cluster) -> None:
    """The broker replaces the dead bookie by the spare one and reads what it held from the others."""
    topic = f"{NAMESPACE}/killed-bookie"
    producer = broker.user("produce", topic, 0, 20_000)
    try:
        lines = producer.lines(time.monotonic() + ANSWER_S)
        assert next(lines) == "under way"
        with Client(pulsar_cluster.uri) as client:
            (ledger,) = ledgers_of(client, "killed-bookie")
            victim = client.metadata(ledger).fragments[-1].bookies[0]
        next(bookie for bookie in pulsar_cluster.bookies if bookie.id == victim).kill()
        assert list(lines) == ["sent 20000"]
    finally:
        producer.kill()
    assert broker.run("read", topic, 20_000) == ["read 20000"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_item_10_broker_that_starts_again_finds_every_message_and_goes_on(broker: PulsarBroker, end: str) -> None:
    """After SIGKILL it recovers its topics' open ledgers: fenced, read forward and closed on our bookies."""
    topic = f"{NAMESPACE}/{end}ped-broker"
    assert broker.run("produce", topic, 0, 500)[-1] == "sent 500"
    broker.stop() if end == "stop" else broker.kill()
    broker.start()
    assert broker.run("read", topic, 500) == ["read 500"]
    assert broker.run("produce", topic, 500, 1000)[-1] == "sent 500"
    assert broker.run("read", topic, 1000) == ["read 1000"]


def test_item_10_our_client_reads_the_ledgers_of_a_topic(broker: PulsarBroker, pulsar_cluster: Cluster) -> None:
    """Up to LAC while the broker has the ledger open: the last entry is confirmed only by the one after it."""
    assert broker.run("produce", f"{NAMESPACE}/ours", 0, 300)[-1] == "sent 300"
    assert broker.run("produce", f"{NAMESPACE}/ours", 300, 301)[-1] == "sent 1"
    with Client(pulsar_cluster.uri) as client:
        (ledger,) = ledgers_of(client, "ours")
        reader = client.open(ledger)
        batch = reader.read(0, reader.last_entry)
        assert reader.last_entry in (299, 300)
        for number in range(reader.last_entry + 1):
            assert bytes(batch[number]).endswith(b"message %d" % number)
