"""Plans of topics with many ledgers: what the driver looks at, and what it leaves to tasks."""

from __future__ import annotations

import asyncio
import pickle
import random

import pytest

from bkspark.blocking import Client, run
from bkspark.errors import DataLoss, UnauthorizedAccess
from bkspark.log.positions import Position
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.topic import PulsarStore
from bkspark.spark import plan, topics
from bkspark.spark.options import SourceOptions
from bkspark.spark.ranges import ReadableSegment, amount
from bkspark.spark.topic_ledgers import Extents, TopicList, TopicLists
from bkspark.spark.topic_read import TopicReader
from bkspark.spark.topics import TopicPartition, TopicPlanner
from tests.cluster import Cluster
from tests.pulsar.entries import Message, chunked
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_reads import VALUE, columns_of, numbered


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of more than two ledgers count as large."""
    monkeypatch.setattr(plan, "OPENED_LEDGERS_MAX", 2)


class Read:
    """A batch read of a topic."""

    def __init__(self, cluster: Cluster, topic: StoredTopic, **given: str) -> None:
        options = SourceOptions.parse({"uri": cluster.uri, "topic": str(topic.name), **given})
        self.reader = TopicReader(columns_of(VALUE), options)

    def tasks(self) -> list[TopicPartition]:
        found = pickle.loads(pickle.dumps(self.reader.partitions()))
        assert all(isinstance(task, TopicPartition) for task in found)
        return found

    def values(self, tasks: list[TopicPartition]) -> list[bytes]:
        return [value for task in tasks for rows in self.reader.read(task) for value in rows["value"].to_pylist()]


@pytest.mark.cluster
def test_tasks_of_a_large_plan_look_up_their_own_ledgers(cluster: Cluster, topic: StoredTopic, large: None) -> None:
    whole = b"a message in chunks"
    chunks = chunked(Message(whole), 8, 1)
    for number, chunk in enumerate(chunks):
        topic.ledger([*numbered(number), chunk])
    topic.ledger([], is_open=True)
    for entry in numbered(8, 9):
        topic.writer.append(entry)
    read = Read(cluster, topic, minPartitions="4")
    tasks = read.tasks()
    assert len(tasks) == 4
    assert not any(task.reads for task in tasks)
    assert read.values(tasks) == [b"0", b"1", b"2", whole, b"8"]


@pytest.mark.cluster
def test_task_of_a_large_plan_finds_the_end_of_a_ledger_that_the_list_lacks(
    cluster: Cluster, topic: StoredTopic, large: None
) -> None:
    for first in (0, 2, 4):
        topic.ledger(numbered(first, first + 1))
    topic.info.ledgerInfo[1].entries -= 1
    topic.info.ledgerInfo[2].entries -= 1
    topic.save()
    read = Read(cluster, topic)
    assert read.values(read.tasks()) == [b"0", b"1", b"2", b"3", b"4"], "the last one may be read further later"


@pytest.mark.cluster
def test_ledger_that_is_gone_from_a_large_plan_is_lost_data(
    cluster: Cluster, client: Client, topic: StoredTopic, large: None
) -> None:
    _, gone, _ = (topic.ledger(numbered(number)) for number in range(3))
    client.delete(gone)
    read = Read(cluster, topic)
    with pytest.raises(DataLoss, match=f"ledger {gone} of topic {topic.name} does not exist any more"):
        read.values(read.tasks())
    lenient = Read(cluster, topic, failOnDataLoss="false")
    assert lenient.values(lenient.tasks()) == [b"0", b"2"]


@pytest.mark.cluster
def test_wrong_password_of_a_large_plan_is_named_by_its_task(cluster: Cluster, topic: StoredTopic, large: None) -> None:
    for number in range(3):
        topic.ledger(numbered(number))
    read = Read(cluster, topic, password="wrong")
    with pytest.raises(UnauthorizedAccess, match=f"of topic {topic.name}: give the brokers' managedLedgerPassword"):
        read.values(read.tasks())


@pytest.mark.cluster
def test_task_looks_up_far_ledgers_only_when_it_searches_them_for_a_chunk(
    cluster: Cluster, topic: StoredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "LOOK_BACK_LEDGERS", 2)
    first, last = chunked(Message(b"ab"), 1, 1)
    topic.ledger([first])
    for number in range(3):
        topic.ledger(numbered(number))
    ledger = topic.ledger([last])
    read = Read(cluster, topic, startingOffsets=f"{ledger}:0")
    (task,) = read.tasks()
    (earlier,) = task.earlier.values()
    assert len(earlier.reads) == 2
    assert earlier.unopened is not None
    assert len(earlier.unopened.unpacked()) == 2
    assert read.values([task]) == [b"ab"]


@pytest.mark.cluster
@pytest.mark.parametrize(("limit", "wanted"), [(4, (1, 2)), (5, (0, 2))])
def test_task_searches_a_bounded_number_of_entries_for_a_chunk(
    cluster: Cluster, topic: StoredTopic, monkeypatch: pytest.MonkeyPatch, limit: int, wanted: tuple[int, int]
) -> None:
    monkeypatch.setattr(topics, "LOOK_BACK_ENTRIES", limit)
    for number in range(4):
        topic.ledger(numbered(2 * number, 2 * number + 1))
    ledger = topic.ledger(numbered(8, 9))
    (task,) = Read(cluster, topic, startingOffsets=f"{ledger}:1").tasks()
    (earlier,) = task.earlier.values()
    assert [(each.first_entry, each.end_entry) for each in earlier.reads] == [wanted, (0, 2), (0, 1)]


@pytest.mark.cluster
def test_list_of_a_topic_is_decoded_again_only_after_a_change(client: Client, topic: StoredTopic) -> None:
    topic.ledger(numbered(0))
    topic.ledger([], is_open=True)
    lists = TopicLists()

    async def read() -> object:
        return await lists.read(PulsarStore(await client.asynchronous.tree()), topic.name)

    before = run(read)
    assert run(read) is before
    topic.roll()
    after = run(read)
    assert after is not before
    assert run(read) is after


def test_amounts_between_positions_are_those_of_the_ledgers_between_them() -> None:
    source = random.Random(1)
    for _ in range(200):
        ids = sorted(source.sample(range(30), source.randint(0, 8)))
        segments = [ReadableSegment(id, id, count := source.randint(0, 3), 7 * count, True, "t") for id in ids]
        is_open = source.randint(0, 1)
        closed = Extents(segments[: len(segments) - is_open])
        extents = closed.with_open(segments[len(segments) - is_open :])
        assert list(extents) == segments
        start, end = sorted(Position(id, id, source.randint(0, 3)) for id in source.choices(range(30), k=2))
        assert extents.amount(start, end) == amount(segments, start, end)
        assert [each for each in segments if start.ordinal <= each.ordinal <= end.ordinal] == extents.between(
            start, end
        )


def test_ledgers_that_a_list_calls_open_are_in_the_order_of_their_ids() -> None:
    segments = [ReadableSegment(id, id, 1, 10, True, "t") for id in range(5)]
    extents = Extents([segments[0], segments[3]]).with_open([segments[1], segments[4]])
    assert [each.ledger_id for each in extents] == [0, 1, 3, 4]
    assert [each.ledger_id for each in extents.back_from(3)] == [3, 1, 0]
    assert extents.of_ledger(2) is None
    assert extents.first_from(2) == segments[3]


class ListsOfABusyBroker(TopicLists):
    """After the first look at the topic's list, a broker replaces the open ledger, which is empty."""

    def __init__(self, topic: StoredTopic) -> None:
        super().__init__()
        self._topic = topic
        self.looks = 0

    async def read(self, store: PulsarStore, topic: TopicName) -> TopicList:
        found = await super().read(store, topic)
        self.looks += 1
        if self.looks == 1:
            await asyncio.to_thread(self._replace)
        return found

    def _replace(self) -> None:
        gone = self._topic.info.ledgerInfo.pop().ledgerId
        self._topic.ledger(numbered(1))
        self._topic.client.delete(gone)


@pytest.mark.cluster
def test_ledger_that_a_broker_replaces_while_its_list_is_read_is_not_lost(cluster: Cluster, topic: StoredTopic) -> None:
    first = topic.ledger(numbered(0))
    topic.ledger([], is_open=True)
    lists = ListsOfABusyBroker(topic)
    planner = TopicPlanner(SourceOptions.parse({"uri": cluster.uri, "topic": str(topic.name)}), lists=lists)
    view = run(lambda: planner.look([topic.name]))[str(topic.name)]
    assert [(each.ledger_id, each.end_entry) for each in view.extents] == [
        (first, 1),
        (topic.info.ledgerInfo[-1].ledgerId, 1),
    ]
    assert lists.looks == 2
