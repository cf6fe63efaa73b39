"""Batch reads of Pulsar's topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, NoSuchLog
from bkspark.ledger.encryption import opening_metadata
from bkspark.memory import ReusedMemory
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.schemas import Schema
from bkspark.spark.columns import check_columns
from bkspark.spark.frozen import freeze_imported_modules
from bkspark.spark.look_back import entries_before
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import LedgerRead, ReadPartition
from bkspark.spark.ranges import EntryRange, PackedRanges
from bkspark.spark.read import BookKeeperReader, joined, scanned
from bkspark.spark.topic_columns import topic_schema
from bkspark.spark.topic_options import RAW, READ_COMMITTED, READ_UNCOMMITTED
from bkspark.spark.topic_rows import TopicDecoder, TopicRows
from bkspark.spark.topic_view import TopicView
from bkspark.spark.topics import TopicFacts, TopicPartition, TopicPlanner, scan_all

DECODE_BYTES = 8 << 20
"""Approximate bytes of entries that are decoded together: the cost of an array hardly depends on its length. Processor
time of decoding a GiB of batches: 1.8 s with 2 MiB, 1.3 s with 4, 1.0 s with 8, 0.9 s with 16."""

COMPACTED = b"compacted-ledger"
"""What the metadata of a compacted ledger have as `component`."""


def topics_schema(options: SourceOptions) -> StructType:
    """Return the columns of the topics that the options name.

    Raises:
        ConfigurationError: their schemas differ, or Spark has no type for one of them.
    """
    if not options.reads_topics:
        return topic_schema(None, include_metadata=options.include_metadata)
    planner = TopicPlanner(options)

    async def look() -> dict[str, Schema | None]:
        found: dict[str, Schema | None] = {}
        for topic in await planner.whole_topics():
            schemas = await planner.schemas(topic)
            found[str(topic)] = schemas[max(schemas)] if schemas else None
        return found

    found = run(look)
    schemas = {name: topic_schema(schema, include_metadata=options.include_metadata) for name, schema in found.items()}
    if not schemas:
        return topic_schema(None, include_metadata=options.include_metadata)
    (first, schema), *others = schemas.items()
    for name, other in others:
        if other != schema:
            raise ConfigurationError(
                f"topics {first} and {name} have different schemas: read them one by one, or their bytes with "
                "valueFormat=raw"
            )
    return schema


class TopicReader(DataSourceReader):
    """Reads topics as they were when the read was planned."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._options = options.for_batch_read()
        self._schema = schema
        """The columns that the query asks for. Constant."""
        check_columns(schema)
        TopicRows(schema, self._options)  # a wrong column is refused here, on the driver

    def partitions(self) -> list[InputPartition]:
        """Return the plan.

        Raises:
            NoSuchLog, UnauthorizedAccess, MetadataError: a topic cannot be read.
            ConfigurationError: a position is not one of the topic.
            DataLoss: requested entries are gone (failOnDataLoss).
        """
        planner = TopicPlanner(self._options)
        return list(run(lambda: self._plan(planner)))

    async def _plan(self, planner: TopicPlanner) -> list[TopicPartition]:
        topics = await planner.topics()
        if not topics:
            raise NoSuchLog(
                f"no topic matches option 'topicsPattern' {self._options.topics_pattern!r}: correct it, or create one"
            )
        planner.check_offsets([str(topic) for topic in topics])
        views = await planner.look(topics)
        for name, entries in planner.unconfirmed.items():
            entries.warn(name)
        await scan_all(planner, views)
        ranges: list[EntryRange] = []
        facts: dict[str, TopicFacts] = {}
        compacted: list[TopicPartition] = []
        for name, view in views.items():
            start, first = await view.wanted_start()
            end, last = await view.wanted_end()
            ledger_id = -1
            if self._options.read_compacted:
                ledger_id, start, tasks = await planner.compacted(view)
                compacted += tasks
            else:
                await planner.warn_if_compacted(view)
            ranges += view.ranges(start, end)
            facts[name] = TopicFacts(
                view.name.partition,
                {},
                _aborted(view, self._options),
                first,
                last,
                _absolute(view, self._options.starting_timestamp),
                _absolute(view, self._options.ending_timestamp),
                frozenset([ledger_id]),
            )
        facts = await with_schemas(planner, views, facts)
        rows = TopicRows(self._schema, self._options)
        # A topic without entries may not have its schema yet.
        for name in {views[each.log].name.whole: each.log for each in ranges}.values():
            rows.for_topic(name, facts[name], lambda _: iter(())).check_columns()
        for task in compacted:
            task.facts = {read.log: facts[read.log] for read in task.reads}
        return [*compacted, *await planner.partitions(ranges, views, facts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_topics(partition, self._schema, self._options)


class TopicLedgersReader(BookKeeperReader):
    """Reads ledgers of topics that option `ledgers` names (payloadFormat=pulsar): values as bytes, and all messages of
    transactions, also those of aborted and open ones."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(schema, replace(options, isolation=READ_UNCOMMITTED, value_format=RAW))

    def _check_schema(self, schema: StructType) -> None:
        TopicRows(schema, self._options)

    def partitions(self) -> list[InputPartition]:
        """Return the plan of one snapshot; see `BookKeeperReader.partitions`."""
        plans = self._plan(replace(self._options, include_metadata=True))
        return [self._of_topics(plan) for plan in plans]

    def _of_topics(self, plan: ReadPartition) -> TopicPartition:
        compacted = frozenset(read.ledger_id for read in plan.reads if _component_of(read) == COMPACTED)
        reads, facts = [], {}
        for read in plan.reads:
            topic = _topic_of(read)
            name = "" if topic is None else str(topic)
            facts[name] = TopicFacts(-1 if topic is None else topic.partition, compacted_ledgers=compacted)
            metadata = replace(read.metadata, custom_metadata=opening_metadata(read.metadata.custom_metadata))
            reads.append(replace(read, log=name, metadata=metadata))
        keys = plan.encryption_key_file
        reading = ReadPartition(tuple(reads), plan.addresses, plan.password, net=plan.net, encryption_key_file=keys)
        return TopicPartition(reading, facts, {})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_topics(partition, self._schema, self._options)


def _component_of(read: LedgerRead) -> bytes:
    return read.metadata.custom_metadata.get("component", b"")


def _topic_of(read: LedgerRead) -> TopicName | None:
    """Return the topic or partition that the metadata of one of its ledgers name; None if they name none."""
    custom = read.metadata.custom_metadata
    if _component_of(read) != COMPACTED:
        return TopicName.of_managed_ledger(custom.get("pulsar/managed-ledger", b"").decode("utf-8", "replace"))
    try:
        return TopicName.parse(custom.get("pulsar/compactedTopic", b"").decode("utf-8", "replace"))
    except ConfigurationError:
        return None


def _absolute(view: TopicView, moment_ms: int | None) -> int | None:
    return None if moment_ms is None else view.absolute(moment_ms)


def _aborted(view: TopicView, options: SourceOptions) -> frozenset[tuple[int, int]] | None:
    if options.isolation != READ_COMMITTED or view.transactions is None:
        return None
    return frozenset(view.transactions.aborted)


async def with_schemas(
    planner: TopicPlanner, views: Mapping[str, TopicView], facts: Mapping[str, TopicFacts]
) -> dict[str, TopicFacts]:
    """Return facts with the schemas that their topics have now. Call it after the entries to read were determined, so
    that the schemas of all of them are included."""
    known: dict[str, dict[int, Schema]] = {}
    found = {}
    for name, view in views.items():
        whole = str(view.name.whole)
        if whole not in known:
            known[whole] = await planner.schemas(view.name)
        found[name] = replace(facts[name], schemas=known[whole])
    return found


def together(found: Iterator[tuple[LedgerRead, EntryBatch]]) -> Iterator[tuple[LedgerRead, EntryBatch]]:
    """Yield the same entries, with consecutive small batches joined. A batch is yielded before the next one is read, so
    that few pieces of memory are in use."""
    memory = ReusedMemory()
    parts: list[EntryBatch] = []
    byte_count = 0
    last: LedgerRead | None = None
    for read, entries in found:
        follows = read is last and parts and entries.first_entry == parts[-1].end_entry
        if last is not None and parts and not (follows and byte_count + entries.payload_bytes <= DECODE_BYTES):
            yield last, _one_batch(parts, memory)
            parts, byte_count = [], 0
        parts.append(entries)
        byte_count += entries.payload_bytes
        last = read
        if byte_count + entries.payload_bytes > DECODE_BYTES:  # another one of this size does not fit
            yield read, _one_batch(parts, memory)
            parts, byte_count = [], 0
    if last is not None and parts:
        yield last, _one_batch(parts, memory)


def _one_batch(parts: list[EntryBatch], memory: ReusedMemory) -> EntryBatch:
    if len(parts) == 1:
        return parts[0]
    return EntryBatch.joined(parts, parts[0].ledger_id, parts[0].first_entry, memory.take)


def _opened_in_task(task: TopicPartition, unopened: PackedRanges, options: SourceOptions) -> TopicPartition:
    """Return the partition after reading the metadata of its ledgers. Raises as `TopicPlanner.partitions`."""
    planner = TopicPlanner(options)
    plan = run(lambda: planner.opened(unopened.unpacked()))
    found = TopicPartition(plan, task.facts, task.earlier, task.read_out)
    found.reads = tuple(map(found.to_its_end, found.reads))
    return found


def _entries_before(earlier: ReadPartition, options: SourceOptions) -> Iterator[EntryBatch]:
    """Yield the entries before those of a task, the last batch first."""
    yield from entries_before(earlier)
    unopened = earlier.unopened
    if unopened is not None:
        planner = TopicPlanner(options)
        yield from entries_before(run(lambda: planner.opened(unopened.unpacked(), must_exist=False)))


def read_topics(partition: InputPartition, schema: StructType, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition as record batches. Spark makes a partition of None when the plan is empty."""
    if not isinstance(partition, TopicPartition):
        return iter(())
    freeze_imported_modules()
    rows = TopicRows(schema, options)
    task = partition if partition.unopened is None else _opened_in_task(partition, partition.unopened, options)

    def look_back(topic: str) -> Iterator[EntryBatch]:
        earlier = task.earlier.get(topic)
        return iter(()) if earlier is None else _entries_before(earlier, options)

    def batches() -> Iterator[pa.RecordBatch]:
        decoders: dict[str, TopicDecoder] = {}
        for read, entries in together(scanned(task, fail_on_data_loss=options.fail_on_data_loss)):
            if read.log not in decoders:
                decoders[read.log] = rows.for_topic(read.log, task.facts[read.log], look_back)
            yield from decoders[read.log].batches(entries)

    return joined(batches())
