"""Planning of reads of Pulsar's topics, on the driver: from their metadata to tasks that ask bookies alone.

A partition's ledgers ascend by id, and are trimmed from the front: so the ordinal of a ledger is its id. The last one
is opened without recovery: a broker is writing it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError, ConfigurationError, DataLoss, NoSuchLedger, NoSuchLog, UnauthorizedAccess
from bkspark.log.attempts import CALLS_AT_ONCE, chunks
from bkspark.log.positions import EARLIEST, LATEST, Position
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.pulsar.entries import MalformedEntry, decode_entries
from bkspark.pulsar.message_ids import MessageId
from bkspark.pulsar.metadata import ListedLedger, ManagedLedger
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.schemas import Schema
from bkspark.pulsar.snapshots import SnapshotKeys
from bkspark.pulsar.topic import COMPACTION, PulsarStore
from bkspark.pulsar.transactions import Transactions, TxnId
from bkspark.spark.connection import connect
from bkspark.spark.local_files import NO_PASSWORD
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import LedgerRead, ReadPartition
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.ranges import EntryRange, ReadableSegment, between
from bkspark.spark.topic_options import AUTO, READ_COMMITTED

_log = logging.getLogger(__name__)

LOOKS = 3
"""Times that a topic is looked at which names a ledger that is gone: brokers change the list first."""
LOOK_BACK_ENTRIES = 20_000
"""Entries before a task's first one in which it may look for the beginning of a message in chunks."""

_trees: dict[tuple[int, str, ZooKeeperOptions], Tree] = {}


async def pulsar_store(client: Client, options: SourceOptions) -> PulsarStore:
    """Return Pulsar's metadata as the options name them: by default beside BookKeeper's, at the root of the servers."""
    tree, root = await _tree_of(client, options.uri, options.pulsar_uri, options.zookeeper)
    admin_uri = options.pulsar_configuration_uri or options.pulsar_uri
    admin_tree, admin_root = await _tree_of(client, options.uri, admin_uri, options.zookeeper)
    return PulsarStore(tree, admin_tree, root, admin_root)


async def _tree_of(
    client: Client, uri: str, pulsar_uri: str | None, zookeeper: ZooKeeperOptions | None
) -> tuple[Tree, str]:
    if pulsar_uri is None:
        return await client.tree(), ""
    authority, _, chroot = pulsar_uri.removeprefix("zk://").partition("/")
    parsed = MetadataUri.parse(f"zk://{authority}/ledgers")
    root = f"/{chroot}" if chroot else ""
    if parsed.hosts == MetadataUri.parse(uri).hosts:
        return await client.tree(), root
    zookeeper = zookeeper or ZooKeeperOptions()
    key = (os.getpid(), parsed.connect_string, zookeeper)
    if key not in _trees:
        _trees[key] = await open_tree(parsed, zookeeper)
    return _trees[key], root


@dataclass(frozen=True)
class TopicFacts:
    """What tasks must know of one topic or partition, beside its ledgers.

    `aborted` is None where nothing is known of transactions; `first` and `last` are bounds within batches.
    """

    partition: int = -1
    schemas: Mapping[int, Schema] = field(default_factory=dict)
    aborted: frozenset[TxnId] | None = frozenset()
    first: MessageId | None = None
    last: MessageId | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    compacted_ledger: int = -1


class TopicPartition(ReadPartition):
    """What one task reads of topics. `earlier` has, by topic, what lies before its first entry, the nearest last."""

    def __init__(
        self, plan: ReadPartition, facts: Mapping[str, TopicFacts], earlier: Mapping[str, ReadPartition]
    ) -> None:
        keys = plan.encryption_key_file
        super().__init__(plan.reads, plan.addresses, plan.password, net=plan.net, encryption_key_file=keys)
        self.facts = facts
        self.earlier = earlier


class TopicPlanner:
    """Looks at topics once, and plans who reads what. Made outside of the client's loop; its coroutines run there."""

    def __init__(self, options: SourceOptions, *, is_stream: bool = False) -> None:
        self.client = connect(options).asynchronous
        # Ledgers of schemas and compacted ones have the empty password, whatever the topic's ledgers have.
        self._without_password = connect(replace(options, ledger_password=NO_PASSWORD)).asynchronous
        self.options = options
        self.is_stream = is_stream
        self.now_ms = time.time_ns() // 1_000_000
        self._store: PulsarStore | None = None

    async def store(self) -> PulsarStore:
        if self._store is None:
            self._store = await pulsar_store(self.client, self.options)
        return self._store

    def snapshot_keys(self) -> SnapshotKeys:
        """Return what finds out which topics have transactions."""
        return SnapshotKeys(self.client, self._without_password)

    async def whole_topics(self) -> list[TopicName]:
        """Return the topics that the options name, partitioned ones as one.

        Raises:
            ConfigurationError: a name is not the name of a topic.
        """
        options = self.options
        if options.topics_pattern is not None:
            parts = options.topics_pattern.removeprefix("persistent://").split("/", 2)
            store = await self.store()
            found = await store.topics(TopicName.parse(f"{parts[0]}/{parts[1]}/x"))
            return [topic for topic in found if re.fullmatch(parts[2], topic.local)]
        named = options.topics if options.topics is not None else (options.topic or "",)
        return list(dict.fromkeys(map(TopicName.parse, named)))

    async def topics(self, *, missing: list[TopicName] | None = None) -> list[TopicName]:
        """Return the topics and partitions to read, in order.

        Args:
            missing: takes the topics that do not exist, which are an error without it.

        Raises:
            NoSuchLog: there is no such topic.
        """
        store = await self.store()
        found: list[TopicName] = []

        async def parts(topic: TopicName) -> list[TopicName]:
            try:
                return await store.partitions(topic)
            except NoSuchLog:
                if missing is None:
                    raise
                missing.append(topic)
                return []

        for some in chunks(await self.whole_topics(), CALLS_AT_ONCE):
            for names in await asyncio.gather(*map(parts, some)):
                found += names
        return list(dict.fromkeys(found))

    async def look(self, topics: Sequence[TopicName]) -> dict[str, TopicView]:
        """Return topics as they are now, by name."""
        views: list[TopicView] = []
        for some in chunks(list(topics), CALLS_AT_ONCE):
            views += await asyncio.gather(*(self._look_at(topic) for topic in some))
        return {str(view.name): view for view in views}

    async def _look_at(self, topic: TopicName) -> TopicView:
        store = await self.store()
        for left in reversed(range(LOOKS)):
            managed = await store.ledgers(topic)
            try:
                return TopicView(self, topic, managed, await self._extents(topic, managed))
            except NoSuchLedger as error:
                if not left and self.options.fail_on_data_loss:
                    raise self._gone(error, str(topic)) from None
            except UnauthorizedAccess as error:
                raise _wrong_password(error, str(topic)) from None
        return TopicView(self, topic, managed, await self._extents(topic, managed, must_exist=False))

    def _gone(self, error: NoSuchLedger, topic: str) -> DataLoss:
        new = ", with a new checkpoint" if self.is_stream else ""
        return DataLoss(
            f"ledger {error.ledger_id} of topic {topic} does not exist any more: start after it with startingOffsets"
            f"{new}, or allow the loss (failOnDataLoss=false)",
            ledger_id=error.ledger_id,
        )

    async def _extents(
        self, topic: TopicName, managed: ManagedLedger, *, must_exist: bool = True
    ) -> list[ReadableSegment]:
        extents = []
        for place, listed in enumerate(managed.ledgers):
            is_last = place == len(managed.ledgers) - 1
            if listed.entries is not None and listed.size is not None and not (is_last and not listed.entries):
                extents.append(
                    ReadableSegment(listed.ledger_id, listed.ledger_id, listed.entries, listed.size, True, str(topic))
                )
                continue
            # It is listed as open, which it may no longer be: BookKeeper's metadata decide.
            try:
                reader = await self.client.open(listed.ledger_id)
            except NoSuchLedger:
                if must_exist:
                    raise
                continue
            if not reader.is_closed and reader.last_unconfirmed > reader.last_entry:
                self._tell_unconfirmed(topic, listed, reader.last_unconfirmed - reader.last_entry)
            extents.append(
                ReadableSegment(
                    listed.ledger_id,
                    listed.ledger_id,
                    reader.last_entry + 1,
                    reader.length,
                    reader.is_closed,
                    str(topic),
                )
            )
        return extents

    def _tell_unconfirmed(self, topic: TopicName, listed: ListedLedger, count: int) -> None:
        if not self.is_stream:
            _log.warning(
                "topic %s: the last %d entries of ledger %d are not confirmed yet and are not read; if the topic is "
                "idle, set bookkeeperExplicitLacIntervalInMills=100 on its brokers",
                topic,
                count,
                listed.ledger_id,
            )

    def check_offsets(self, names: Collection[str]) -> None:
        """Raise ConfigurationError where an offset option names a topic that is not among those to read."""
        known = {alias for name in names for alias in _aliases(TopicName.parse(name))}
        for option, offset in (
            ("startingOffsets", self.options.starting_offsets),
            ("endingOffsets", self.options.ending_offsets),
        ):
            for name in offset if isinstance(offset, dict) else ():
                if name not in known:
                    raise ConfigurationError(
                        f"option '{option}' names topic {name!r}, which is not one that is read: give a JSON object of "
                        "names of topics and offsets"
                    )

    async def schemas(self, topic: TopicName) -> dict[int, Schema]:
        """Return the schemas of a topic by version; empty where the options ask for bytes."""
        if self.options.value_format != AUTO:
            return {}
        return await (await self.store()).schemas(topic, self._without_password)

    async def partitions(
        self, ranges: Sequence[EntryRange], views: Mapping[str, TopicView], facts: Mapping[str, TopicFacts]
    ) -> list[TopicPartition]:
        """Return tasks that cover the ranges once, in order.

        Raises:
            DataLoss: a ledger is gone (failOnDataLoss).
        """
        planner = ReadPlanner(self.client, self.options, is_stream=self.is_stream)
        try:
            plans = await planner.partitions(ranges)
        except NoSuchLedger as error:
            raise self._gone(error, _owner(ranges, error)) from None
        except UnauthorizedAccess as error:
            raise _wrong_password(error, _owner(ranges, error)) from None
        found = []
        for plan in plans:
            plan.reads = tuple(views[read.log].to_its_end(read) for read in plan.reads)
            first: dict[str, LedgerRead] = {}
            for read in plan.reads:
                first.setdefault(read.log, read)
            earlier = {
                name: await self._earlier(planner, views[name], read) for name, read in first.items() if name in views
            }
            found.append(TopicPartition(plan, {name: facts[name] for name in first}, earlier))
        return found

    async def is_compacted(self, view: TopicView) -> bool:
        """Whether a topic or partition has ever been compacted."""
        return COMPACTION in await (await self.store()).subscription_names(view.name)

    async def compacted(self, view: TopicView) -> tuple[int, Position, list[TopicPartition]]:
        """Return the ledger that holds a topic compacted, the position from where it does not, and the tasks that read
        it; -1, the topic's beginning and no task where it never was.

        The horizon is what the ledger itself says: while a compaction runs, its cursor goes back.
        """
        store = await self.store()
        client = self._without_password
        for attempt in range(3):
            ledger_id = await store.compacted_ledger(view.name, self.client)
            if ledger_id is None:
                return -1, view.start, []
            try:
                reader = await client.open(ledger_id)
            except NoSuchLedger:
                # Brokers delete it as soon as another one takes its place: look again.
                if attempt == 2:
                    raise
                continue
            horizon = MessageId.parse(reader.metadata.custom_metadata.get("pulsar/compactedTo", b""))
            ranges = [EntryRange(ledger_id, ledger_id, 0, reader.last_entry + 1, reader.length, str(view.name))]
            planner = ReadPlanner(client, replace(self.options, ledger_password=NO_PASSWORD), is_stream=self.is_stream)
            plans = await planner.partitions([each for each in ranges if len(each)])
            after = Position(horizon.ledger_id, horizon.ledger_id, horizon.entry_id + 1)
            first = view.normal(after) if view.first_after(after) else view.start
            return ledger_id, first, [TopicPartition(plan, {}, {}) for plan in plans]
        raise AssertionError("unreachable")

    async def _earlier(self, planner: ReadPlanner, view: TopicView, first: LedgerRead) -> ReadPartition:
        """Return reads of the entries before a task's first one, as far as it may look back."""
        room = LOOK_BACK_ENTRIES
        ranges: list[EntryRange] = []
        for extent in reversed(view.extents):
            if extent.ledger_id > first.ledger_id or not view.is_on_bookies(extent.ledger_id):
                continue
            end = first.first_entry if extent.ledger_id == first.ledger_id else extent.end_entry
            start = max(0, end - room)
            if start < end:
                ranges.insert(0, EntryRange(extent.ordinal, extent.ledger_id, start, end, 0, extent.log))
            room -= end - start
            if room <= 0:
                break
        return await planner.one_partition(ranges, must_exist=False)


class TopicView:
    """One topic or partition as it was looked at."""

    def __init__(
        self, planner: TopicPlanner, name: TopicName, managed: ManagedLedger, extents: Sequence[ReadableSegment]
    ) -> None:
        self._planner = planner
        self._options = planner.options
        self.name = name
        self.managed = managed
        self.extents = extents
        self.transactions: Transactions | None = None
        self._listed = {listed.ledger_id: listed for listed in managed.ledgers}
        self._read_out: set[int] = set()

    # ---- positions ----

    @property
    def start(self) -> Position:
        """The first entry that there is."""
        return _beginning(self.extents[0]) if self.extents else Position.beginning()

    @property
    def readable(self) -> Position:
        """The position after the last entry that is confirmed."""
        if not self.extents:
            return Position.beginning()
        last = self.extents[-1]
        return Position(last.ordinal, last.ledger_id, last.end_entry)

    @property
    def end(self) -> Position:
        """The position to which it may be read now: not past the oldest transaction that is open."""
        stop = None if self.transactions is None else self.transactions.stop
        if stop is None:
            return self.readable
        return min(self.readable, Position(stop.ledger_id, stop.ledger_id, stop.entry_id))

    def normal(self, position: Position) -> Position:
        """Return the position with the end of a closed ledger as the beginning of the next one that is listed."""
        for extent, following in zip(self.extents, self.extents[1:]):
            if extent.ledger_id == position.ledger_id and position.entry_id >= extent.end_entry and extent.is_closed:
                return self.normal(_beginning(following))
        return position

    def first_after(self, noted: Position) -> Position | None:
        """Return where reading from a noted position begins; None if what follows it is gone."""
        if noted.ledger_id < 0:
            return self.start
        listed = [extent.ledger_id for extent in self.extents]
        if noted.ledger_id in listed:
            return self.normal(noted)
        # Ledgers are trimmed from the front: one that is gone while an older one is there was dropped as empty.
        later = [extent for extent in self.extents if extent.ledger_id > noted.ledger_id]
        if noted.entry_id == 0 and listed and listed[0] < noted.ledger_id:
            return _beginning(later[0]) if later else self.readable
        return None

    async def wanted_start(self) -> tuple[Position, MessageId | None]:
        """Return where the options let reading begin, and which messages of the first batch are passed over.

        Raises:
            ConfigurationError, DataLoss: it is not a position of the topic, or what follows it is gone.
        """
        options = self._options
        if options.starting_subscription is not None:
            return await self._after_subscription(options.starting_subscription), None
        if options.starting_timestamp is not None:
            return self._since(self.absolute(options.starting_timestamp)), None
        wanted = self._offset("startingOffsets", options.starting_offsets)
        if isinstance(wanted, int):
            return self._before(-wanted), None
        if isinstance(wanted, MessageId):
            return self._located("startingOffsets", wanted), wanted if wanted.batch_index > 0 else None
        if wanted is None:
            return self.start, None
        return (self.end if wanted == LATEST else self.start), None

    async def wanted_end(self) -> tuple[Position, MessageId | None]:
        """Return where the options let a batch read end: a message that they name is the last one. Raises likewise."""
        wanted = self._offset("endingOffsets", self._options.ending_offsets)
        if isinstance(wanted, int):
            return min(self.end, self._before(-wanted)), None
        if isinstance(wanted, MessageId):
            located = self._located("endingOffsets", wanted)
            if located.ledger_id != wanted.ledger_id:
                return located, None
            end = Position(located.ordinal, located.ledger_id, located.entry_id + 1)
            return min(self.end, end), wanted if wanted.batch_index >= 0 else None
        return (self.start if wanted == EARLIEST else self.end), None

    def absolute(self, moment_ms: int) -> int:
        return moment_ms if moment_ms >= 0 else self._planner.now_ms + moment_ms

    def _offset(self, option: str, wanted: object) -> str | int | MessageId | None:
        if isinstance(wanted, dict):
            named = [wanted[alias] for alias in _aliases(self.name) if alias in wanted]
            if not named:
                return None
            wanted = named[0]
        if isinstance(wanted, str) and wanted.lower() in (EARLIEST, LATEST):
            return wanted.lower()
        if wanted is None or isinstance(wanted, int):
            return wanted
        try:
            return MessageId.parse(wanted)
        except ValueError as error:
            raise ConfigurationError(
                f"option '{option}': the offset of topic {self.name} is {str(wanted)[:100]!r}, which {error}"
            ) from None

    def _located(self, option: str, wanted: MessageId) -> Position:
        position = Position(wanted.ledger_id, wanted.ledger_id, wanted.entry_id)
        if (self.extents and wanted.ledger_id > self.extents[-1].ledger_id) or not self.extents:
            raise ConfigurationError(
                f"option '{option}' is message {wanted}, but topic {self.name} ends before: use latest"
            )
        for extent in self.extents:
            if extent.ledger_id == wanted.ledger_id:
                return position
        if wanted.ledger_id < self.extents[0].ledger_id:
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"option '{option}' is message {wanted}, but topic {self.name} now begins with ledger "
                    f"{self.extents[0].ledger_id}: use earliest, or allow the loss (failOnDataLoss=false)"
                )
            return self.start
        return _beginning(next(extent for extent in self.extents if extent.ledger_id > wanted.ledger_id))

    def _before(self, count: int) -> Position:
        """Return the position `count` entries before the end."""
        position, left = self.end, count
        for extent in reversed(self.extents):
            if extent.ordinal > position.ordinal:
                continue
            held = position.entry_id if extent.ordinal == position.ordinal else extent.end_entry
            if left <= held:
                return Position(extent.ordinal, extent.ledger_id, held - left)
            left -= held
        return self.start

    def _since(self, moment_ms: int) -> Position:
        """Return the first ledger that may hold a message published at a time or later.

        Publish times are by producers' clocks: a ledger was closed after it was written, but their clocks may be ahead.
        """
        closed = {listed.ledger_id: listed.closed_ms for listed in self.managed.ledgers}
        for extent in self.extents:
            closed_ms = closed.get(extent.ledger_id)
            if closed_ms is None or closed_ms + self._options.publish_time_slack_ms >= moment_ms:
                return _beginning(extent)
        return self.readable

    async def _after_subscription(self, name: str) -> Position:
        store = await self._planner.store()
        found = await store.subscription(self.name, name, self._planner.client)
        if found is None and self.name.partition >= 0 and not await store.exists(self.name):
            return self.start  # a partition that no broker has loaded yet
        if found is None:
            raise NoSuchLog(f"option 'startingSubscription': topic {self.name} has no subscription {name!r}")
        mark = found.cursor.mark_delete
        if not self.extents or mark.ledger_id < self.extents[0].ledger_id:
            return self.start
        after = Position(mark.ledger_id, mark.ledger_id, mark.entry_id + 1)
        following = [extent for extent in self.extents if extent.ledger_id > mark.ledger_id]
        if any(extent.ledger_id == mark.ledger_id for extent in self.extents):
            return self.normal(after)
        return _beginning(following[0]) if following else self.readable

    # ---- what to read ----

    def is_on_bookies(self, ledger_id: int) -> bool:
        return self._listed[ledger_id].is_on_bookies

    def ranges(self, start: Position, end: Position) -> list[EntryRange]:
        """Return the entries to read between two positions.

        Raises:
            DataLoss: some are in tiered storage only (failOnDataLoss).
        """
        found = self._on_bookies(start, end)
        self._read_out |= {
            entries.ledger_id
            for entries in found
            if entries.ordinal < end.ordinal and entries.end_entry == self._listed[entries.ledger_id].entries
        }
        return found

    def _on_bookies(self, start: Position, end: Position) -> list[EntryRange]:
        found = []
        for entries in between(self.extents, start, end):
            listed = self._listed[entries.ledger_id]
            if listed.is_on_bookies:
                found.append(entries)
                continue
            what = f"ledger {listed.ledger_id} of topic {self.name} was offloaded to {listed.offload}, and bookies"
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{what} deleted it: tiered storage cannot be read here; begin after it (startingOffsets), or "
                    "leave it out (failOnDataLoss=false)",
                    ledger_id=listed.ledger_id,
                )
            _log.warning("%s deleted it: it is left out", what)
        return found

    def to_its_end(self, read: LedgerRead) -> LedgerRead:
        """Return a read of a closed ledger to the ledger's own end, where `ranges` went on after it.

        The list may say less: a repair beside the close may have found more entries, and brokers read those, too.
        """
        is_end = read.ledger_id in self._read_out and read.end_entry == self._listed[read.ledger_id].entries
        return replace(read, end_entry=max(read.end_entry, read.metadata.last_entry + 1)) if is_end else read

    async def scan_transactions(self, found: Transactions, start: Position) -> None:
        """Look at the entries from `start` to the end for transactions, and let `end` respect what was found."""
        for entries in self._on_bookies(start, self.readable):
            reader = await self._planner.client.open(entries.ledger_id)
            end = max(entries.end_entry, reader.last_entry + 1) if reader.is_closed else entries.end_entry
            async for batch in reader.batches(entries.first_entry, end):
                _take_transactions(found, batch)
        self.transactions = found


def _take_transactions(found: Transactions, batch: EntryBatch) -> None:
    """Look at a batch; the tasks that read malformed entries report them."""
    try:
        found.take(decode_entries(batch))
    except MalformedEntry as error:
        if len(batch) == 1:
            return
        middle = min(max(1, error.row), len(batch) - 1)
        _take_transactions(found, batch.slice(0, middle))
        _take_transactions(found, batch.slice(middle, len(batch)))


def _aliases(name: TopicName) -> list[str]:
    """Return what users may call a topic or partition, the narrowest first."""
    return [
        alias for each in (name, name.whole) for alias in (str(each), f"{each.namespace_path}/{each.local}", each.local)
    ]


def _owner(ranges: Sequence[EntryRange], error: BookKeeperError) -> str:
    return next(entries.log for entries in ranges if entries.ledger_id == error.ledger_id)


def _wrong_password(error: UnauthorizedAccess, topic: str) -> UnauthorizedAccess:
    return UnauthorizedAccess(
        f"option 'password': it does not open ledger {error.ledger_id} of topic {topic}: give the brokers' "
        "managedLedgerPassword",
        ledger_id=error.ledger_id,
    )


def _beginning(extent: ReadableSegment) -> Position:
    return Position(extent.ordinal, extent.ledger_id, 0)


async def scan_all(planner: TopicPlanner, views: Mapping[str, TopicView]) -> None:
    """Scan the topics that may have transactions, where these are read committed."""
    if planner.options.isolation != READ_COMMITTED:
        return
    names = await planner.snapshot_keys().among(await planner.store(), [view.name for view in views.values()])
    for name in names:
        view = views[str(name)]
        await view.scan_transactions(Transactions(), view.start)
