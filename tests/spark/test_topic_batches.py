"""Batches of entries that a task decodes together: what is joined, and what is left as it is."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.spark import topic_read
from bkspark.spark.partitions import LedgerRead
from bkspark.spark.topic_read import _together

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
    assert [len(batch) for _, batch in _together((read, batch) for batch in batches(*sizes))] == counts


def test_entries_are_decoded_before_more_are_read():
    read, asked = read_of(1), 0

    def stored() -> Iterator[tuple[LedgerRead, EntryBatch]]:
        nonlocal asked
        for batch in batches(300, 300, 300, 300):
            asked += 1
            yield read, batch

    assert len(next(_together(stored()))[1]) == asked == 3


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
    found = [each for read, batch in _together(iter(stored)) for each in entries_of(read, batch)]
    assert found == [each for read, batch in stored for each in entries_of(read, batch)]
