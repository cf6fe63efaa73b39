"""Random topics: what Spark reads is what a slow reader on protobuf's classes reads, however tasks and runs are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from bkspark.blocking import Client
from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload
from bkspark.pulsar.message_columns import PROPERTIES
from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_columns import ALWAYS, ON_DEMAND, topic_schema
from bkspark.spark.topic_rows import TopicRows
from bkspark.spark.topics import TopicFacts
from tests.cluster import Cluster
from tests.pulsar.generated import TXNS, TopicAuthor
from tests.pulsar.slow_reader import Malformed, Row, SlowReader
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_queries import Query

TOPIC = "persistent://public/default/t"
LEDGER, FIRST_ENTRY = 300, 126
CORRUPT = "_corrupt_record"
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
_IN_MICROSECONDS = ("__publishTime", "__eventTime", "__brokerTime", "__deliverAt")


class Reading:
    """One way to read a topic: by the slow reader, and by the tasks of Spark's reads."""

    def __init__(self, seed: int, mode: str) -> None:
        self.chance = random.Random(seed)
        self.mode = mode
        self.partition = self.chance.choice((-1, 0, 200))
        self.aborted = self.chance.choice((None, frozenset(), frozenset(_signed(TXNS[::2]))))
        self.encrypted = self.chance.choice(("skip", "raw"))

    def expected(self, stored: Sequence[bytes]) -> list[Row] | Malformed:
        """Return the rows; in mode FAILFAST what is malformed, if anything is."""
        reader = SlowReader(self.partition, self.aborted, self.encrypted)
        found = list(reader.read(LEDGER, FIRST_ENTRY, stored))
        if self.mode == "FAILFAST":
            bad = [each for each in found if isinstance(each, Malformed)]
            if bad:
                return bad[0]
        rows = []
        for each in found:
            if not isinstance(each, Malformed):
                rows.append({**each, CORRUPT: None})
            elif self.mode == "PERMISSIVE":
                rows.append(self._nulls(reader, each))
        return rows

    def _nulls(self, reader: SlowReader, bad: Malformed) -> Row:
        identity = reader.plain_id(bad.ledger_id, bad.entry_id)
        identity.batch_size = 0
        return {
            **dict.fromkeys(["value", *ALWAYS, *ON_DEMAND]),
            "__messageId": identity.SerializeToString(),
            "__partition": self.partition if self.partition >= 0 else None,
            "__ledgerId": bad.ledger_id,
            "__entryId": bad.entry_id,
            CORRUPT: bad.stored,
        }

    def found(self, stored: Sequence[bytes], *, cuts_tasks: bool) -> list[Row]:
        options = SourceOptions.parse(
            {
                "uri": "zk://h:1/ledgers",
                "topic": "t",
                "mode": self.mode,
                "encrypted": self.encrypted,
                "isolation": "read_uncommitted" if self.aborted is None else "read_committed",
            },
            {},
        )
        schema = topic_schema(None, include_metadata=True).add(CORRUPT, "binary")
        rows = TopicRows(schema, options)
        facts = TopicFacts(self.partition, {}, self.aborted)
        ends = sorted({*self.chance.sample(range(len(stored)), 3 if cuts_tasks else 0), len(stored)})
        found: list[Row] = []
        for start, end in zip([0, *ends], ends):

            def look_back(topic: str, start: int = start) -> Iterator[EntryBatch]:
                yield from reversed(list(self._runs(stored, 0, start)))

            decoder = rows.for_topic(TOPIC, facts, look_back)
            for run in self._runs(stored, start, end):
                for batch in decoder.batches(run):
                    batch.validate(full=True)
                    found += _rows_of(batch)
        return found

    def _runs(self, stored: Sequence[bytes], start: int, end: int) -> Iterator[EntryBatch]:
        while start < end:
            stop = min(end, start + self.chance.choice((1, 2, 7, 1000)))
            yield EntryBatch.of(stored[start:stop], LEDGER, FIRST_ENTRY + start)
            start = stop


def _signed(txns: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(most - (1 << 64) if most >> 63 else most, least) for most, least in txns]


def _rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return rows as the slow reader has them."""
    columns: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns):
        plain = column.cast(pa.int64()) if name in _IN_MICROSECONDS else column
        columns[name] = plain.to_pylist()
        assert name != "__messageProperties" or column.type == PROPERTIES
    return [dict(zip(columns, cells)) for cells in zip(*columns.values())]


def compare(seed: int, damage: float) -> None:
    """Compare the reads of a topic by one task, and of another one by several: a task does not know of chunks of
    other messages before its entries."""
    for cuts_tasks in (False, True):
        author = TopicAuthor(seed, damage, has_odd_chunks=not cuts_tasks)
        stored = author.entries(author.chance.choice((4, 30, 60)))
        reading = Reading(seed, MODES[seed % 3])
        expected = reading.expected(stored)
        if isinstance(expected, Malformed):
            with pytest.raises(MalformedPayload, match=f"{expected.ledger_id}:{expected.entry_id}"):
                reading.found(stored, cuts_tasks=cuts_tasks)
            continue
        found = reading.found(stored, cuts_tasks=cuts_tasks)
        wanted = [{**row, "__topic": TOPIC, "__encryption": None} for row in expected]
        for row in found:
            row["__encryption"] = None
        assert found == wanted, f"seed {seed}, damage {damage}, cut {cuts_tasks}"


@pytest.mark.parametrize("damage", [0.0, 0.1])
def test_random_topics_are_read_as_a_slow_reader_reads_them(damage: float) -> None:
    for seed in range(30):
        compare(seed, damage)


def stream_of(cluster: Cluster, topic: StoredTopic, seed: int) -> None:
    """Follow a topic that is written and rolled over at random, by a stream that is restarted at random."""
    author = TopicAuthor(seed, has_odd_chunks=False)
    chance, stored = author.chance, {}
    topic.ledger([], is_open=True)
    options = {"isolation": "read_uncommitted", "encrypted": "skip", "mode": "DROPMALFORMED"}
    limit = {"maxEntriesPerTrigger": chance.choice((1, 3, 10))} if author.often(0.7) else {}
    query = Query(cluster, topic, startingOffsets="earliest", **options, **limit)
    found: list[bytes | None] = []

    def trigger() -> bool:
        values = query.next_values()
        found.extend(values or ())
        return values is not None

    for step in chance.choices(("append", "roll", "trigger", "restart"), (4, 1, 5, 2), k=30):
        if step == "append":
            entries = author.entries(chance.choice((1, 3, 10)))
            topic.writer.append_many(entries)
            stored.setdefault(topic.writer.ledger_id, []).extend(entries)
        elif step == "roll":
            topic.roll()
        elif step == "trigger":
            trigger()
        else:
            query.restart()
    topic.roll()
    while trigger():
        pass
    reader = SlowReader()
    rows = [row for ledger_id in sorted(stored) for row in reader.read(ledger_id, 0, stored[ledger_id])]
    assert found == [row["value"] for row in rows if not isinstance(row, Malformed)], f"seed {seed}"


@pytest.mark.cluster
@pytest.mark.admission_control
def test_random_topic_is_streamed_once(cluster: Cluster, topic: StoredTopic) -> None:
    stream_of(cluster, topic, 1)


@pytest.mark.cluster
@pytest.mark.admission_control
@pytest.mark.long(reason="more seeds of an ordinary test")
def test_random_topics_are_streamed_once(cluster: Cluster, client: Client) -> None:
    for seed in range(100, 150):
        stream_of(cluster, StoredTopic(client, f"public/default/generated-{seed}"), seed)


@pytest.mark.long(reason="more seeds of an ordinary test")
@pytest.mark.parametrize("damage", [0.0, 0.02, 0.3])
def test_many_random_topics_are_read_as_a_slow_reader_reads_them(damage: float) -> None:
    for seed in range(1_000, 1_300):
        compare(seed, damage)
