"""The streaming source of Pulsar's topics. It is like that of logs, with partitions in place of logs.

An offset has, for each topic and partition, the entry to read next:

    {"topics": {"persistent://public/default/clicks": {"0": {"entry": 3, "ledger": 12}}}, "version": 1}

The partition of a topic that has no partitions is "-1"; ledger -1 means that there was no ledger yet. The end of a
ledger is written as the beginning of the next one as soon as that is listed, so that an offset does not name a ledger
that may be trimmed. "batch" exists if the query began within a batch, and "since", beside the version, if it began at a
time: messages published before are left out. Keys are in this order: Spark compares offsets as text.

A partition that appears while a query runs is read from its beginning. The end of a topic never decreases, although the
last confirmed entry may: some versions of bookies lose the explicit LAC of an idle topic when all of them restart.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from bkspark.errors import ConfigurationError, MetadataFormat, ReadFailed
from bkspark.ids import ENTRY_ID_MAX, LEDGER_ID_MAX
from bkspark.log.positions import LATEST, Position
from bkspark.pulsar.message_ids import MessageId
from bkspark.pulsar.metadata import EntryPosition
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.snapshots import SnapshotKeys
from bkspark.pulsar.transactions import Transactions
from bkspark.spark.following import CHECKPOINT, FollowingReader
from bkspark.spark.losses import Losses
from bkspark.spark.option_values import shown
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import ReadPartition
from bkspark.spark.ranges import Backlog, EntryRange, advance
from bkspark.spark.topic_ledgers import TopicLists
from bkspark.spark.topic_options import READ_COMMITTED
from bkspark.spark.topic_read import read_topics, with_schemas
from bkspark.spark.topic_rows import TopicRows
from bkspark.spark.topic_view import TopicView
from bkspark.spark.topics import TopicFacts, TopicPlanner, Unconfirmed
from bkspark.spark.versions import ReadLimit
from bkspark.tasks import each_of

_log = logging.getLogger(__name__)

VERSION = 1
_PARTITION = re.compile("-1|[0-9]{1,9}")
IDLE_MS = 60_000
"""How long the same entries of a topic are unconfirmed before a stream warns. A broker confirms the entries of a busy
topic with the next ones."""


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The next entry to read of one topic or partition; `batch`: the message of the entry's batch to begin with."""

    log: str
    """The topic or partition, under the name that a log would have."""
    position: Position
    batch: int = 0

    @property
    def subject(self) -> str:
        return f"topic {self.log}"

    @property
    def place(self) -> str:
        at = self.position
        if at.ledger_id < 0:
            return "the beginning"
        return f"message {MessageId(at.ledger_id, at.entry_id, self.batch or -1, TopicName.parse(self.log).partition)}"

    def to_json(self) -> dict[str, int]:
        found = {"entry": self.position.entry_id, "ledger": self.position.ledger_id}
        return {"batch": self.batch, **found} if self.batch else found

    @classmethod
    def from_json(cls, name: str, value: Any, source: str) -> TopicOffset:
        fields = {"entry": ENTRY_ID_MAX, "ledger": LEDGER_ID_MAX, "batch": ENTRY_ID_MAX}
        is_right = isinstance(value, Mapping) and {"entry", "ledger"} <= value.keys() <= fields.keys()
        if not is_right or not all(type(each) is int and -1 <= each <= fields[key] for key, each in value.items()):
            wrong = f"{shown(value)} is not a position of topic {name}"
            raise ConfigurationError(f"{source}: {wrong}: use a new checkpoint")
        ledger_id = value["ledger"]
        return cls(name, Position(max(ledger_id, 0), ledger_id, value["entry"]), value.get("batch", 0))


class ManyTopics:
    """Encodes and decodes the offsets of a stream of topics."""

    def __init__(self) -> None:
        self.since_ms: int | None = None
        """The member "since" of the offset that was decoded or made last, in ms since 1970; None if it had none."""

    def to_json(self, offsets: Mapping[str, TopicOffset]) -> dict[str, Any]:
        topics: dict[str, dict[str, Any]] = {}
        for name in sorted(offsets):
            topic = TopicName.parse(name)
            topics.setdefault(str(topic.whole), {})[str(topic.partition)] = offsets[name].to_json()
        since = {} if self.since_ms is None else {"since": self.since_ms}
        return {**since, "topics": topics, "version": VERSION}

    def from_json(self, value: Any, source: str) -> dict[str, TopicOffset]:
        """Return the offsets by topic or partition.

        Raises:
            ConfigurationError: it is not an offset of a stream of topics.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("topics"), Mapping):
            raise ConfigurationError(
                f"{source} is {shown(value)}, no offset of a stream of topics: use a new checkpoint"
            )
        if value.get("version") != VERSION:
            raise ConfigurationError(
                f"{source} has version {value.get('version')!r}, this bkspark reads version {VERSION}"
            )
        since = value.get("since")
        if value.keys() - {"since", "topics", "version"} or type(since) not in (int, type(None)):
            raise ConfigurationError(
                f"{source} has members {shown(sorted(value))}, since {shown(since)}, and was not made here: use a new "
                "checkpoint"
            )
        self.since_ms = since
        found = {}
        for name, partitions in value["topics"].items():
            _check_name(name, source)
            if not isinstance(partitions, Mapping) or not all(map(_PARTITION.fullmatch, partitions)):
                raise ConfigurationError(f"{source}: {shown(partitions)} are not partitions of topic {name}")
            for partition, position in partitions.items():
                topic = TopicName.parse(name)
                full = str(topic if int(partition) < 0 else topic.of_partition(int(partition)))
                if full in found:
                    raise ConfigurationError(f"{source} has two positions of topic {full}: use a new checkpoint")
                found[full] = TopicOffset.from_json(full, position, source)
        return found


def _check_name(name: str, source: str) -> None:
    try:
        TopicName.parse(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None


class _TopicAtTrigger:
    """One topic or partition as a trigger finds it."""

    def __init__(self, view: TopicView, losses: Losses) -> None:
        self.view = view
        self._losses = losses
        self._batches: dict[Position, int] = {}
        """The message in its batch where a read begins, by position; without an entry the first one."""

    def offset(self, position: Position) -> TopicOffset:
        return TopicOffset(str(self.view.name), position, self._batches.get(position, 0))

    @property
    def start(self) -> Position:
        return self.view.start

    async def wanted_start(self) -> Position:
        position, first = await self.view.wanted_start()
        position = self.view.normal(position)
        if first is not None:
            self._batches[position] = first.batch_index
        return position

    async def end(self) -> Position:
        return self.view.normal(self.view.end)

    async def begin(self, noted: TopicOffset) -> Position:
        position = self.view.first_after(noted.position)
        if position is None:
            self._losses.report(noted, "trimmed, or deleted and created again")
            return self.view.start
        if noted.batch and position == noted.position:
            self._batches[position] = noted.batch
        return position

    def is_another_than(self, noted: TopicOffset) -> bool:
        """Return False: topics have no ids. A topic that was created again looks like one that was trimmed."""
        return False

    async def amount(self, begin: Position, end: Position) -> Backlog:
        return self.view.extents.amount(begin, end) if begin < end else Backlog(0, 0)

    async def advance(self, begin: Position, end: Position, entries_max: int | None, bytes_max: int | None) -> Position:
        if end <= begin or entries_max == 0 or bytes_max == 0:
            return begin
        extents = self.view.extents.between(begin, end)
        return min(end, self.view.normal(advance(extents, begin, entries_max, bytes_max)))

    async def ranges(self, begin: Position, end: Position) -> list[EntryRange]:
        stop = None if self.view.transactions is None else self.view.transactions.stop
        # Offsets do not pass an open transaction: its end was confirmed when this one was recorded.
        if stop is not None and begin <= Position(stop.ledger_id, stop.ledger_id, stop.entry_id) < end:
            self.view.check_transactions()
            raise ReadFailed(
                f"topic {self.view.name}: message {stop} is of a transaction that was committed or aborted when the "
                "micro-batch was planned, which is not confirmed at present: start the query again after the topic's "
                "next message",
                ledger_id=stop.ledger_id,
                entry_id=stop.entry_id,
            )
        return self.view.ranges(begin, end)


class TopicStreamReader(FollowingReader[TopicOffset, TopicPlanner, _TopicAtTrigger]):
    """Follows topics up to the last confirmed entry, and not beyond the oldest open transaction."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._topics = ManyTopics()
        super().__init__(schema, options)
        self._lists = TopicLists()
        self._noted: Mapping[str, TopicOffset] = {}
        """The offset at which the present trigger begins."""
        self._planned_end: Mapping[str, TopicOffset] = {}
        """The offset at which the last planned micro-batch ends."""
        self._scans: dict[str, tuple[Position, Transactions]] = {}
        """How far each topic was scanned for transactions, and what was found."""
        self._warned: set[str] = set()
        """Keys of the warnings that were logged: each is logged once."""
        self._unconfirmed: dict[str, tuple[Unconfirmed, int]] = {}
        """By topic, the entries that were not confirmed at the last trigger, and since when, in ms since 1970."""
        self._is_fixing_end = False
        """Whether the end for Trigger.AvailableNow is being fixed, which does not depend on transactions."""
        self._snapshots: SnapshotKeys | None = None
        """Which topics have snapshots of transactions; None before the first look."""

    # ---- what differs from logs ----

    def _new_form(self) -> ManyTopics:
        return self._topics

    def _check_schema(self, schema: StructType) -> None:
        TopicRows(schema, self._options)

    def _new_planner(self) -> TopicPlanner:
        return TopicPlanner(self._options, is_stream=True, lists=self._lists)

    async def _refresh(self, planner: TopicPlanner) -> dict[str, _TopicAtTrigger]:
        # A topic that was deleted while the stream runs is handled by its offset.
        missing: list[TopicName] | None = None if self._is_new else []
        views = await planner.look(await planner.topics(missing=missing))
        await each_of(self._extend, list(views.values()))
        if self._options.isolation == READ_COMMITTED and not self._is_fixing_end:
            self._snapshots = self._snapshots or planner.snapshot_keys()
            names = [view.name for view in views.values()]
            for name in await self._snapshots.among(await planner.store(), names):
                await self._scan(views[str(name)])
        self._warn_of_missing(missing or ())
        await self._warn(planner, views)
        return {name: _TopicAtTrigger(view, self._losses) for name, view in views.items()}

    async def _extend(self, view: TopicView) -> None:
        """Extend what is known of a topic to where this trigger begins and the last planned micro-batch ends."""
        for noted in (self._noted, self._planned_end):
            offset = noted.get(str(view.name))
            if offset is not None:
                await view.extend_to(offset.position)

    async def _scan(self, view: TopicView) -> None:
        """Scan new entries for transactions. Offsets never pass an open one, so earlier entries need no scan."""
        name = str(view.name)
        noted = self._noted.get(name)
        start = None if noted is None else view.first_after(noted.position)
        start = view.start if start is None else start
        scanned, found = self._scans.get(name, (start, Transactions()))
        await view.extend_to(scanned)
        resumed = view.first_after(scanned)
        if resumed is None:
            resumed, found = view.start, Transactions()
        await view.scan_transactions(found, resumed)
        if (warning := view.unread_marker()) and warning not in self._warned:
            self._warned.add(warning)
            _log.warning("%s", warning)
        found.forget_before(EntryPosition(start.ledger_id, start.entry_id))
        self._scans[name] = (max(resumed, view.readable), found)

    async def _at_the_end(self, logs: Mapping[str, _TopicAtTrigger], names: Collection[str]) -> None:
        """Raise if what follows in one of these topics may never be read.

        Not before: a query delivers what is readable, and repeats the micro-batch that its checkpoint has recorded.

        Raises:
            MalformedPayload, DataLoss: as `TopicView.check_transactions`.
        """
        for name in names:
            logs[name].view.check_transactions()

    def _warn_of_missing(self, topics: Iterable[TopicName]) -> None:
        """Log a warning, once for each topic, that a topic does not exist."""
        for topic in topics:
            if f"missing {topic}" not in self._warned:
                self._warned.add(f"missing {topic}")
                _log.warning("topic %s does not exist: it is read from its beginning as soon as it is there", topic)

    def _warn_of_idle(self, planner: TopicPlanner) -> None:
        """Log a warning, once for each topic, that its last entries stay unconfirmed."""
        for name, entries in planner.unconfirmed.items():
            found, since_ms = self._unconfirmed.get(name, (None, planner.now_ms))
            if found != entries:
                self._unconfirmed[name] = entries, planner.now_ms
            elif planner.now_ms - since_ms >= IDLE_MS and f"idle {name}" not in self._warned:
                self._warned.add(f"idle {name}")
                entries.warn(name)

    async def _warn(self, planner: TopicPlanner, views: Mapping[str, TopicView]) -> None:
        """Log warnings, once for each topic: that nothing keeps its ledgers until this stream has read them; and that
        messages before them may be in its compacted ledger only, which the stream does not read."""
        self._warn_of_idle(planner)
        store = await planner.store()
        for name, view in views.items():
            if name in self._warned:
                continue
            self._warned.add(name)
            if self._is_new and not self._begins_at_the_end():
                await planner.warn_if_compacted(view)
            try:
                is_kept = await store.is_kept(view.name)
            except MetadataFormat as error:
                _log.warning("topic %s: whether a retention keeps its ledgers is not known: %s", name, error)
                continue
            if not is_kept:
                _log.warning(
                    "topic %s has no subscription, and its namespace has no retention: unless the brokers' defaults or "
                    "a policy of the topic keep them, ledgers are deleted as soon as the next one is begun, whether "
                    "they were read or not. Set a retention, or create a subscription",
                    name,
                )

    def _begins_at_the_end(self) -> bool:
        options = self._options
        others = (options.starting_timestamp, options.starting_subscription)
        return options.starting_offsets == LATEST and all(each is None for each in others)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends; see `FollowingReader.latestOffset`."""
        if start is not None:
            self._noted = self._form.from_json(start, CHECKPOINT)
        return super().latestOffset(start, limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end for a query with Trigger.AvailableNow: that of the entries which exist. Each trigger looks for
        open transactions from its beginning on; here the topics would be scanned completely."""
        self._is_fixing_end = True
        try:
            super().prepareForTriggerAvailableNow()
        finally:
            self._is_fixing_end = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without checkpoint begins; see `FollowingReader.initialOffset`."""
        moment = self._options.starting_timestamp
        if moment is not None:
            self._topics.since_ms = moment if moment >= 0 else self._new_planner().now_ms + moment
        return super().initialOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks between two offsets; see `FollowingReader.partitions`."""
        self._noted = self._form.from_json(start, CHECKPOINT)
        self._planned_end = self._form.from_json(end, CHECKPOINT)
        return super().partitions(start, end)

    async def _planned(
        self, planner: TopicPlanner, topics: Mapping[str, _TopicAtTrigger], ranges: list[EntryRange]
    ) -> list[ReadPartition]:
        views = {name: topic.view for name, topic in topics.items()}
        facts = {}
        for name, view in views.items():
            noted = self._noted.get(name)
            first = None
            if noted is not None and noted.batch:
                first = MessageId(noted.position.ledger_id, noted.position.entry_id, noted.batch)
            aborted = None if view.transactions is None else frozenset(view.transactions.aborted)
            facts[name] = TopicFacts(view.name.partition, {}, aborted, first, None, self._topics.since_ms)
        return list(await planner.partitions(ranges, views, await with_schemas(planner, views, facts)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_topics(partition, self._schema, self._options)
