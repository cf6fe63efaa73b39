"""Batches of entries that a task decodes together: what is joined, and what is left as it is."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.spark import topic_read, topic_rows
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import LedgerRead
from bkspark.spark.topic_columns import topic_schema
from bkspark.spark.topic_read import together
from bkspark.spark.topic_rows import TopicRows
from bkspark.spark.topics import TopicFacts
from tests.pulsar.entries import Message
from tests.pulsar.entries import batch as batch_of

LIMIT = 1000
METADATA = LedgerMetadata(1, 1, 1, (Fragment(0, ("a:1",)),))


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_read, "DECODE_BYTES", LIMIT)


def read_of(ledger_id: int) -> LedgerRead:
    return LedgerRead(0, ledger_id, 0, 1, METADATA, 0, "topic")


def batches(*sizes: int, first_entry: int = 0) -> list[EntryBatch]:
    return [EntryBatch.of([bytes(size)], 1, place) for place, size in enumerate(sizes, first_entry)]


def entries_of(read: LedgerRead, batch: EntryBatch) -> list[tuple[int, int, bytes]]:
    return [(read.ledger_id, place, payload) for place, payload in enumerate(batch, batch.first_entry)]


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([300] * 7, [3, 3, 1]),
        ([250] * 5, [4, 1]),
        ([2000, 10, 10], [1, 2]),
        ([10, 2000, 10], [1, 1, 1]),
        ([600, 600], [1, 1]),
    ],
)
def test_batches_are_joined_up_to_the_limit(sizes, counts):
    read = read_of(1)
    assert [len(batch) for _, batch in together((read, batch) for batch in batches(*sizes))] == counts


def test_entries_are_decoded_before_more_are_read():
    read, asked = read_of(1), 0

    def stored() -> Iterator[tuple[LedgerRead, EntryBatch]]:
        nonlocal asked
        for batch in batches(300, 300, 300, 300):
            asked += 1
            yield read, batch

    assert len(next(together(stored()))[1]) == asked == 3


@pytest.mark.parametrize("seed", range(50))
def test_every_entry_stays_at_its_place(seed):
    chance = random.Random(seed)
    stored: list[tuple[LedgerRead, EntryBatch]] = []
    for ledger_id in range(3):
        read, first = read_of(ledger_id), 0
        for _ in range(10):
            first += chance.choice((0, 0, 0, 2))
            payloads = [chance.randbytes(chance.choice((0, 1, 90, 400, 1500))) for _ in range(chance.randint(1, 3))]
            stored.append((read, EntryBatch.of(payloads, ledger_id, first)))
            first += len(payloads)
    found = [each for read, batch in together(iter(stored)) for each in entries_of(read, batch)]
    assert found == [each for read, batch in stored for each in entries_of(read, batch)]


def test_messages_of_small_batches_are_made_a_limited_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is not cut."""
    monkeypatch.setattr(topic_rows, "MESSAGES_AT_ONCE", 10)
    sizes = [4, 4, 4, 25, 1, 1]
    stored = [batch_of([Message(b"%d" % place) for place in range(size)]) for size in sizes]
    rows = TopicRows(
        topic_schema(None, include_metadata=False), SourceOptions.parse({"uri": "zk://h:1/ledgers", "topic": "t"})
    )
    found = list(rows.for_topic("t", TopicFacts(), lambda _: iter(())).batches(EntryBatch.of(stored, 1, 0)))
    assert [each.num_rows for each in found] == [12, 25, 2]
    values = [value for each in found for value in each["value"].to_pylist()]
    assert values == [b"%d" % place for size in sizes for place in range(size)]
