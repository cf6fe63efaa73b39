"""Random topics between random positions: what Spark reads is what a slow reader of the whole topic gives between
them, however ledgers, batches and chunks lie."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from bkspark.blocking import Client
from bkspark.pulsar import pulsar_formats_pb2 as formats
from tests.pulsar.entries import PUBLISHED_MS
from tests.pulsar.generated import TopicAuthor
from tests.pulsar.slow_reader import Malformed, Row, SlowReader
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_reads import rows_of

pytestmark = pytest.mark.cluster

COLUMNS = "value binary, __messageId binary"
OPTIONS = {"isolation": "read_uncommitted", "encrypted": "skip", "mode": "DROPMALFORMED"}


@dataclass(frozen=True, order=True)
class Place:
    """The place of a message: `index` is that in its batch."""

    ledger_id: int
    entry_id: int
    index: int = 0


class RandomTopic:
    """A topic of random entries in random ledgers, and the messages in it."""

    def __init__(self, topic: StoredTopic, seed: int) -> None:
        self.topic = topic
        self._author = TopicAuthor(seed, has_odd_chunks=False)
        self.chance: random.Random = self._author.chance
        self.ledgers: list[tuple[int, int]] = []
        """Ids of the ledgers, and how many readable entries each has."""
        self.rows: list[tuple[Place, Row]] = []
        """The messages of the topic, in order."""
        reader = SlowReader()
        for number in range(self.chance.choice((1, 3, 5))):
            stored = self._author.entries(self.chance.choice((0, 1, 4, 12)))
            ledger_id = topic.ledger(stored)
            if self.chance.random() < 0.3 and number:
                # As brokers leave it that are killed: BookKeeper's metadata decide.
                listed = topic.info.ledgerInfo[-1]
                listed.timestamp = 0
                listed.ClearField("entries")
                listed.ClearField("size")
                topic.save()
            self.ledgers.append((ledger_id, len(stored)))
            for row in reader.read(ledger_id, 0, stored):
                if not isinstance(row, Malformed):
                    self.rows.append((Place(ledger_id, row["__entryId"], row["__batchIndex"] or 0), row))

    def a_place(self) -> tuple[str, Place] | None:
        """Return a message id as users give it, and the place that it names; None if there is no entry."""
        held = [each for each in self.ledgers if each[1]]
        if not held:
            return None
        ledger_id, count = self.chance.choice(held)
        entry_id = self.chance.randrange(count)
        if self.chance.random() < 0.5:
            return f"{ledger_id}:{entry_id}", Place(ledger_id, entry_id, -1)
        index = self.chance.choice((0, 1, 2, 39))
        return f"{ledger_id}:{entry_id}:-1:{index}", Place(ledger_id, entry_id, index)

    def before_the_end(self, count: int) -> Place:
        """Return the place `count` entries before the end."""
        for ledger_id, held in reversed(self.ledgers):
            if count <= held:
                return Place(ledger_id, held - count, -1)
            count -= held
        return Place(0, 0, -1)

    def is_single(self, place: Place) -> bool:
        """Whether the entry at a place is not a batch, so that an index in it names all of it."""
        return any(
            (at.ledger_id, at.entry_id) == (place.ledger_id, place.entry_id) and row["__batchIndex"] is None
            for at, row in self.rows
        )

    def from_place(self, place: Place) -> list[tuple[Place, Row]]:
        first = Place(place.ledger_id, place.entry_id, -1) if self.is_single(place) else place
        return [each for each in self.rows if each[0] >= first]

    def subscription(self, name: str) -> Place:
        """Store a subscription; return the place of the first message that it has not acknowledged in order."""
        ledger_id, count = self.chance.choice(self.ledgers)
        mark = self.chance.randrange(-1, count)
        cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=ledger_id, markDeleteEntryId=mark)
        index = self.chance.choice((0, 1, 2, 70))
        following = [(each, 0) for each, held in self.ledgers if each > ledger_id and held]
        at = (ledger_id, mark + 1) if mark + 1 < count else (following[0] if following else (ledger_id, mark + 1))
        if index:
            left = ((1 << 128) - 1) >> index << index
            words = [(left >> 64 * word) & ((1 << 64) - 1) for word in range(2)]
            partial = cursor.batchedEntryDeletionIndexInfo.add(
                deleteSet=[word - (1 << 64) if word >> 63 else word for word in words]
            )
            partial.position.ledgerId, partial.position.entryId = at
        self.topic.subscription(name, cursor)
        return Place(*at, index)


def compare(topic: StoredTopic, read: Callable, seed: int, reads: int) -> None:
    found = RandomTopic(topic, seed)
    chance = found.chance
    for _ in range(reads):
        options: dict[str, object] = dict(OPTIONS)
        wanted = found.rows
        start = chance.choice(("id", "count", "time", "subscription", "none"))
        place = found.a_place()
        first = None
        if start == "id" and place is not None:
            options["startingOffsets"], first = place
        elif start == "count":
            count = chance.choice((1, 3, 50))
            options["startingOffsets"], first = f"-{count}", found.before_the_end(count)
        elif start == "time":
            moment = chance.choice((1, 128, PUBLISHED_MS, PUBLISHED_MS + 1))
            options["startingTimestamp"] = moment
            wanted = [each for each in wanted if each[1]["__publishTime"] >= moment * 1000]
        elif start == "subscription":
            first = found.subscription("s")
            options["startingSubscription"] = "s"
        if first is not None:
            kept = {id(row) for _, row in found.from_place(first)}
            wanted = [each for each in wanted if id(each[1]) in kept]
        place = found.a_place()
        if chance.random() < 0.5 and place is not None and (first is None or start != "id" or place[1] > first):
            options["endingOffsets"], last = place
            whole = last.index < 0 or found.is_single(last)
            stop = Place(last.ledger_id, last.entry_id, 1 << 40) if whole else last
            wanted = [each for each in wanted if each[0] <= stop]
        if chance.random() < 0.5:
            options["maxEntriesPerPartition"] = chance.choice((1, 2, 5))
        ids = [(row["value"], row["__messageId"]) for _, row in wanted]
        rows = [(row["value"], row["__messageId"]) for row in read(COLUMNS, **options)]
        assert rows == ids, f"seed {seed}, {options}"


def test_reads_between_random_positions_are_what_a_slow_reader_gives(topic: StoredTopic, read: Callable) -> None:
    compare(topic, read, 1, 20)


@pytest.mark.long(reason="more seeds of an ordinary test")
def test_reads_between_many_random_positions_are_what_a_slow_reader_gives(client: Client, cluster: object) -> None:
    for seed in range(100, 160):
        topic = StoredTopic(client, f"public/default/positions-{seed}")
        compare(topic, lambda *a, topic=topic, **o: rows_of(cluster.uri, topic.name, *a, **o), seed, 20)
