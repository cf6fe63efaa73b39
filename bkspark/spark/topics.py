"""TopicPlanner: plans reads of Pulsar's topics on the driver, from their metadata to tasks that ask only bookies.

The ledgers of a partition ascend by id and are trimmed at the front, so a ledger's id serves as its ordinal. The last
ledger is opened without recovery, because a broker is writing it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from bkspark.client import Client
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    DataLoss,
    MetadataFormat,
    NoSuchLedger,
    NoSuchLog,
    UnauthorizedAccess,
)
from bkspark.ledger.reader import LedgerReader
from bkspark.log.positions import Position
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.pulsar.message_ids import MessageId
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.schemas import Schema
from bkspark.pulsar.snapshots import SnapshotKeys
from bkspark.pulsar.topic import COMPACTION, PulsarStore
from bkspark.pulsar.transactions import Transactions, TxnId
from bkspark.spark.connection import connect
from bkspark.spark.local_files import NO_PASSWORD
from bkspark.spark.lost_times import reference_ms
from bkspark.spark.option_values import shown
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import LedgerRead, ReadPartition
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.ranges import EntryRange, PackedRanges, ReadableSegment
from bkspark.spark.topic_ledgers import Extents, TopicList, TopicLists
from bkspark.spark.topic_options import AUTO, READ_COMMITTED
from bkspark.spark.topic_view import TopicView, aliases, own_aliases, parsed_offset
from bkspark.tasks import each_of

_log = logging.getLogger(__name__)

LOOKS = 3
"""How often a topic's list is read if it names a ledger that is gone: brokers change the list before they delete
one."""
LOOK_BACK_ENTRIES = 20_000
"""Entries before a task's first one in which it may look for the beginning of a message in chunks."""

LOOK_BACK_LEDGERS = 8
"""Ledgers before a task's first entry whose metadata the driver reads for it. The task reads those of further ones when
it has to look there."""

_trees: dict[tuple[int, str, ZooKeeperOptions], Tree] = {}


async def pulsar_store(client: Client, options: SourceOptions) -> PulsarStore:
    """Return Pulsar's metadata as the options name them: by default beside BookKeeper's, at the root of the servers."""
    zookeeper = None if options.client is None else options.client.zookeeper
    tree, root = await _tree_of(client, options.uri, options.pulsar_uri, zookeeper)
    admin_uri = options.pulsar_configuration_uri or options.pulsar_uri
    admin_tree, admin_root = await _tree_of(client, options.uri, admin_uri, zookeeper)
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
    """What tasks need of one topic or partition, in addition to its ledgers.

    `aborted`: the aborted transactions, None if the topic was not scanned for them. `first` and `last`: the messages at
    which reading begins and ends within a batch.
    """

    partition: int = -1
    schemas: Mapping[int, Schema] = field(default_factory=dict)
    aborted: frozenset[TxnId] | None = frozenset()
    first: MessageId | None = None
    last: MessageId | None = None
    since_ms: int | None = None
    """Messages published before it are left out; with `until_ms`, those from then on. None: no limit."""
    until_ms: int | None = None
    compacted_ledgers: frozenset[int] = frozenset()
    """Ledgers of a compacted topic: the last message of each key."""
    is_searched_whole: bool = False
    """Whether the entries before the task's first one, which it may search for chunks, are all that bookies have of the
    topic."""
    offloaded: Sequence[int] = ()
    """Ledgers that only tiered storage has: those between the task's entries, and the last one before them, ascending.
    They may have the first chunks of messages, and cannot be searched."""


@dataclass(frozen=True)
class Unconfirmed:
    """Entries of an open ledger after the last confirmed one, up to the last one that a bookie has."""

    ledger_id: int
    confirmed: int
    last: int

    def warn(self, topic: str) -> None:
        """Log a warning with the remedy."""
        _log.warning(
            "topic %s: the last %d entries of ledger %d are not confirmed yet and are not read; if the topic is idle, "
            "set bookkeeperExplicitLacIntervalInMills=100 on its brokers",
            topic,
            self.last - self.confirmed,
            self.ledger_id,
        )


class TopicPartition(ReadPartition):
    """What one task reads of topics.

    `earlier`: by topic, reads of the entries before its first one, in log order; the `unopened` ones are before the
    `reads`. `read_out`: ledgers that are read to their own end, which may be after that of the topic's list.
    """

    def __init__(
        self,
        plan: ReadPartition,
        facts: Mapping[str, TopicFacts],
        earlier: Mapping[str, ReadPartition],
        read_out: Collection[int] = (),
    ) -> None:
        super().__init__(
            plan.reads,
            plan.addresses,
            plan.password,
            net=plan.net,
            encryption_key_file=plan.encryption_key_file,
            unopened=plan.unopened,
        )
        self.facts = facts
        self.earlier = earlier
        self.read_out = frozenset(read_out)

    def place_of(self, read: LedgerRead, entry_id: int) -> str:
        """Return the topic and the message id of an entry, to begin an error with; empty without a topic."""
        return f"topic {read.log}, message {read.ledger_id}:{entry_id}: " if read.log else ""

    def to_its_end(self, read: LedgerRead) -> LedgerRead:
        """Return a read, extended to the ledger's own end if it is one of `read_out`."""
        if read.ledger_id not in self.read_out:
            return read
        return replace(read, end_entry=max(read.end_entry, read.metadata.last_entry + 1))


class TopicPlanner:
    """Reads the state of topics once, and plans tasks. Made outside of the client's loop; its coroutines run there."""

    def __init__(self, options: SourceOptions, *, is_stream: bool = False, lists: TopicLists | None = None) -> None:
        self.client = connect(options).asynchronous
        # Ledgers of schemas and compacted ones have the empty password, whatever the topic's ledgers have.
        self._without_password = connect(replace(options, ledger_password=NO_PASSWORD)).asynchronous
        """A client for the ledgers of schemas and compacted ones. Constant."""
        self.options = options
        self.is_stream = is_stream
        """Whether the plan is for a streaming query. Constant."""
        self.now_ms = reference_ms(options)
        """The time to which relative times of the options refer, in ms since 1970. Constant."""
        self._lists = TopicLists() if lists is None else lists
        self._store: PulsarStore | None = None
        """None before the first look. Set once."""
        self.unconfirmed: dict[str, Unconfirmed] = {}
        """By topic, what bookies have of its open ledger after the last confirmed entry."""
        self._views: list[TopicView] = []
        """The topics as the last look found them."""

    async def store(self) -> PulsarStore:
        if self._store is None:
            self._store = await pulsar_store(self.client, self.options)
        return self._store

    async def catch_up(self) -> None:
        """Make the metadata that are read from now on at least as new as at this moment."""
        await (await self.client.tree()).catch_up()
        await (await self.store()).catch_up()

    def option_without(self, name: str) -> str | None:
        """Return the option that does not select a topic or partition, for messages; None if it is selected."""
        options, topic = self.options, TopicName.parse(name)
        if options.topics_pattern is not None:
            tenant, namespace, pattern = options.topics_pattern.split("/", 2)
            is_there = (topic.tenant, topic.namespace) == (tenant, namespace)
            is_selected = is_there and topic.whole.matches(pattern)
            return None if is_selected else f"option 'topicsPattern' ({options.topics_pattern})"
        named = self._named()
        if topic in named or topic.whole in named:
            return None
        return "option 'topic'" if options.topics is None else "option 'topics'"

    def _named(self) -> list[TopicName]:
        options = self.options
        named = options.topics if options.topics is not None else (options.topic or "",)
        return list(dict.fromkeys(map(TopicName.parse, named)))

    def snapshot_keys(self) -> SnapshotKeys:
        """Return the object that finds out which topics have snapshots of transactions."""
        return SnapshotKeys(self.client, self._without_password)

    async def whole_topics(self) -> list[TopicName]:
        """Return the topics that the options name, partitioned ones as one.

        Raises:
            ConfigurationError: a name is not the name of a topic.
        """
        options = self.options
        if options.topics_pattern is not None:
            parts = options.topics_pattern.split("/", 2)
            store = await self.store()
            found = await store.topics(TopicName.parse(f"{parts[0]}/{parts[1]}/x"))
            return [topic for topic in found if topic.matches(parts[2])]
        return self._named()

    async def topics(self, *, missing: list[TopicName] | None = None) -> list[TopicName]:
        """Return the topics and partitions to read, in order.

        Args:
            missing: topics that do not exist are added to it; None: they are an error.

        Raises:
            NoSuchLog: there is no such topic.
        """
        store = await self.store()
        found: list[TopicName] = []

        async def parts(topic: TopicName) -> list[TopicName]:
            try:
                return await store.partitions(topic)
            except NoSuchLog:
                if self.options.topics_pattern is not None:
                    return []  # deleted since it was listed
                if missing is None:
                    raise
                missing.append(topic)
                return []

        for names in await each_of(parts, await self.whole_topics()):
            found += names
        return list(dict.fromkeys(found))

    async def look(self, topics: Sequence[TopicName]) -> dict[str, TopicView]:
        """Return topics as they are now, by name."""
        self._views = views = await each_of(self._look_at, topics)
        self._lists.keep([str(view.name) for view in views])
        return {str(view.name): view for view in views}

    async def _look_at(self, topic: TopicName) -> TopicView:
        store = await self.store()
        for left in reversed(range(LOOKS)):
            listed = await self._lists.read(store, topic)
            try:
                return TopicView(self, topic, listed, await self._extents(topic, listed))
            except NoSuchLedger as error:
                if not left and self.options.fail_on_data_loss:
                    raise self._gone(error, str(topic)) from None
            except UnauthorizedAccess as error:
                raise _wrong_password(error, str(topic)) from None
        return TopicView(self, topic, listed, await self._extents(topic, listed, must_exist=False))

    def _gone(self, error: NoSuchLedger, topic: str) -> DataLoss:
        new = ", with a new checkpoint" if self.is_stream else ""
        return DataLoss(
            f"ledger {error.ledger_id} of topic {topic} does not exist any more: start after it with startingOffsets"
            f"{new}, or allow the loss (failOnDataLoss=false)",
            ledger_id=error.ledger_id,
        )

    async def _extents(self, topic: TopicName, known: TopicList, *, must_exist: bool = True) -> Extents:
        found = []
        for listed in known.others:
            # The topic lists the ledger as open, but it may be closed by now: BookKeeper's metadata decide.
            try:
                reader = await self.client.open(listed.ledger_id)
            except NoSuchLedger:
                if must_exist:
                    raise
                self._lists.warn_of_gone(listed.ledger_id, topic)
                continue
            last_entry = reader.last_entry
            if not reader.is_closed and reader.last_unconfirmed > last_entry:
                if self.options.unconfirmed:
                    last_entry = reader.last_unconfirmed
                else:
                    self.unconfirmed[str(topic)] = Unconfirmed(listed.ledger_id, last_entry, reader.last_unconfirmed)
            found.append(
                ReadableSegment(
                    listed.ledger_id,
                    listed.ledger_id,
                    last_entry + 1,
                    reader.length,
                    reader.is_closed,
                    str(topic),
                )
            )
        return known.closed.with_open(found)

    def owner_of(self, ledger_id: int) -> TopicName | None:
        """Return the topic or partition, of those looked at last, that has a ledger; None if none has it."""
        return next((view.name for view in self._views if view.has_ledger(ledger_id)), None)

    def check_offsets(self, names: Collection[str]) -> None:
        """Raise ConfigurationError if an offset option names a topic or partition that is not among those to read, or
        names one twice."""
        topics = list(map(TopicName.parse, names))
        for option, offset in (
            ("startingOffsets", self.options.starting_offsets),
            ("endingOffsets", self.options.ending_offsets),
        ):
            if not isinstance(offset, dict):
                _check_partition(option, offset, topics)
                continue
            for name, wanted in offset.items():
                named = [topic for topic in topics if name in aliases(topic)]
                if not named:
                    raise ConfigurationError(
                        f"option '{option}' names topic {name!r}, which is not one that is read: give a JSON object of "
                        "names of topics and offsets"
                    )
                _check_partition(option, wanted, named)
            _check_names(option, offset, topics)

    async def schemas(self, topic: TopicName) -> dict[int, Schema]:
        """Return the schemas of a topic by version; empty where the options ask for bytes."""
        if self.options.value_format != AUTO:
            return {}
        return await (await self.store()).schemas(topic, self._without_password, self._lists.schemas)

    async def partitions(
        self, ranges: Sequence[EntryRange], views: Mapping[str, TopicView], facts: Mapping[str, TopicFacts]
    ) -> list[TopicPartition]:
        """Return tasks that cover the ranges once, in order.

        Raises:
            DataLoss: a ledger is gone (failOnDataLoss).
        """
        planner = ReadPlanner(self.client, self.options, is_stream=self.is_stream)
        with self._explained(ranges):
            plans = await planner.partitions(ranges)
        found = []
        for plan in plans:
            parts: Sequence[LedgerRead | EntryRange] = plan.reads if plan.unopened is None else plan.unopened.unpacked()
            first: dict[str, LedgerRead | EntryRange] = {}
            last = {part.log: part.ledger_id for part in parts}
            for part in parts:
                first.setdefault(part.log, part)
            read_out = [each.ledger_id for each in parts if views[each.log].is_read_out(each.ledger_id, each.end_entry)]
            earlier, own_facts = {}, {}
            for name, part in first.items():
                earlier[name], known = await self._earlier(planner, views[name], part, facts[name])
                between = views[name].offloaded_between(part.ledger_id, last[name])
                own_facts[name] = replace(known, offloaded=[*known.offloaded, *between])
            task = TopicPartition(plan, own_facts, earlier, read_out)
            task.reads = tuple(map(task.to_its_end, task.reads))
            found.append(task)
        return found

    async def opened(self, ranges: Sequence[EntryRange], *, must_exist: bool = True) -> ReadPartition:
        """Return a partition of the ranges, in order, after reading the metadata of their ledgers. Raises as
        `partitions`."""
        planner = ReadPlanner(self.client, self.options, is_stream=self.is_stream)
        with self._explained(ranges):
            return await planner.one_partition(ranges, must_exist=must_exist)

    @contextmanager
    def _explained(self, ranges: Sequence[EntryRange]) -> Iterator[None]:
        """Raise errors of ledgers with the topic's name."""
        try:
            yield
        except NoSuchLedger as error:
            raise self._gone(error, _owner(ranges, error)) from None
        except UnauthorizedAccess as error:
            raise _wrong_password(error, _owner(ranges, error)) from None

    async def warn_if_compacted(self, view: TopicView) -> None:
        """Log a warning that a topic or partition was compacted, if it was: its own ledgers may not have all
        messages."""
        if COMPACTION in await (await self.store()).subscription_names(view.name):
            _log.warning(
                "topic %s was compacted: messages whose ledgers were trimmed are in the compacted ledger only, which "
                "%s with readCompacted=true reads",
                view.name,
                "a batch read" if self.is_stream else "a read",
            )

    async def compacted(self, view: TopicView) -> tuple[int, Position, list[TopicPartition]]:
        """Return (compacted ledger, compaction horizon, tasks that read the ledger); (-1, the topic's beginning, []) if
        the topic was never compacted.

        The horizon is the one in the ledger's metadata: the cursor's position moves back while a compaction runs.

        Raises:
            DataLoss: the ledger is gone (failOnDataLoss).
            MetadataFormat: the ledger's metadata do not have the horizon.
        """
        found = await self._compacted_ledger(view.name)
        if found is None:
            return -1, view.start, []
        ledger_id, reader = found
        noted = reader.metadata.custom_metadata.get("pulsar/compactedTo", b"")
        try:
            horizon = MessageId.parse(noted)
        except ValueError:
            raise MetadataFormat(
                f"ledger {ledger_id}, which topic {view.name} names as its compacted one, does not say up to which "
                f"message (pulsar/compactedTo is {shown(noted)}): compact the topic again, or read it without "
                "readCompacted"
            ) from None
        ranges = [EntryRange(ledger_id, ledger_id, 0, reader.last_entry + 1, reader.length, str(view.name))]
        options = replace(self.options, ledger_password=NO_PASSWORD)
        planner = ReadPlanner(self._without_password, options, is_stream=self.is_stream)
        plans = await planner.partitions([each for each in ranges if len(each)])
        after = view.normal(Position(horizon.ledger_id, horizon.ledger_id, horizon.entry_id + 1))
        return ledger_id, after, [TopicPartition(plan, {}, {}) for plan in plans]

    async def _compacted_ledger(self, topic: TopicName) -> tuple[int, LedgerReader] | None:
        """Return the id and a reader of a topic's compacted ledger; None if there is none.

        Raises:
            DataLoss: it is gone (failOnDataLoss).
        """
        store = await self.store()
        for left in reversed(range(LOOKS)):
            ledger_id = await store.compacted_ledger(topic, self.client)
            if ledger_id is None:
                return None
            try:
                return ledger_id, await self._without_password.open(ledger_id)
            except NoSuchLedger as error:
                # Brokers delete it as soon as another one replaces it: read the topic again.
                if not left and self.options.fail_on_data_loss:
                    raise DataLoss(
                        f"the compacted ledger {ledger_id} of topic {topic} does not exist any more: compact "
                        "the topic again, read it without readCompacted, or allow the loss (failOnDataLoss=false)",
                        ledger_id=error.ledger_id,
                    ) from None
        _log.warning("the compacted ledger of topic %s is gone: the topic's own ledgers are read", topic)
        return None

    async def _earlier(
        self, planner: ReadPlanner, view: TopicView, first: LedgerRead | EntryRange, facts: TopicFacts
    ) -> tuple[ReadPartition, TopicFacts]:
        """Return reads of the entries before a task's first one, as far as it may look back, and its facts, which say
        what these reads lack. Most tasks never look back, so only the metadata of the nearest ledgers are read here."""
        room = LOOK_BACK_ENTRIES
        offloaded: list[int] = []
        ranges: list[EntryRange] = []
        for extent in view.extents.back_from(first.ledger_id):
            if not view.is_on_bookies(extent.ledger_id):
                offloaded = offloaded or [extent.ledger_id]
                continue
            end = first.first_entry if extent.ledger_id == first.ledger_id else extent.end_entry
            start = max(0, end - room)
            if start < end:
                ranges.insert(0, EntryRange(extent.ordinal, extent.ledger_id, start, end, 0, extent.log))
            room -= end - start
            if room <= 0:
                break
        far, near = ranges[:-LOOK_BACK_LEDGERS], ranges[-LOOK_BACK_LEDGERS:]
        with self._explained(near):
            found = await planner.one_partition(near, must_exist=False)
        found.unopened = PackedRanges.of(far) if far else None
        return found, replace(facts, is_searched_whole=room > 0, offloaded=offloaded)


def _check_partition(option: str, wanted: object, topics: Sequence[TopicName]) -> None:
    """Raise ConfigurationError if `wanted` is the id of a message of a partition that is not one of these topics."""
    try:
        found = parsed_offset(wanted)
    except ValueError:
        return  # reported with the topic's name
    if not isinstance(found, MessageId) or found.partition < 0:
        return
    numbers = sorted(topic.partition for topic in topics)
    if found.partition in numbers:
        return
    wholes = {str(topic.whole) for topic in topics}
    if len(wholes) > 1:
        why = "none of the topics that are read has this partition: correct the id"
    elif numbers == [-1]:
        why = f"topic {topics[0]} has no partitions: give {replace(found, partition=-1)}"
    else:
        shown_numbers = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        why = f"of topic {topics[0].whole} the offset is for partition {shown_numbers}: correct the id"
    raise ConfigurationError(f"option '{option}' is message {found}, of partition {found.partition}, but {why}")


def _check_names(option: str, names: Collection[str], topics: Sequence[TopicName]) -> None:
    """Raise ConfigurationError if two of the names are those of one topic or partition."""
    used: set[str] = set()
    others: dict[str, tuple[TopicName, str]] = {}
    for topic in (each for name in topics for each in (name, name.whole)):
        first, *more = [alias for alias in own_aliases(topic) if alias in names] or [""]
        used.add(first)
        others.update(dict.fromkeys(more, (topic, first)))
    for alias, (topic, first) in others.items():
        # A short name may be that of another topic.
        if alias not in used:
            raise ConfigurationError(
                f"option '{option}' names topic {topic} twice, as '{first}' and as '{alias}': remove one of them"
            )


def _owner(ranges: Sequence[EntryRange], error: BookKeeperError) -> str:
    return next(entries.log for entries in ranges if entries.ledger_id == error.ledger_id)


def _wrong_password(error: UnauthorizedAccess, topic: str) -> UnauthorizedAccess:
    return UnauthorizedAccess(
        f"option 'password': it does not open ledger {error.ledger_id} of topic {topic}: give the brokers' "
        "managedLedgerPassword",
        ledger_id=error.ledger_id,
    )


async def scan_all(planner: TopicPlanner, views: Mapping[str, TopicView]) -> None:
    """Scan the topics that may have transactions, if option `isolation` is read_committed."""
    if planner.options.isolation != READ_COMMITTED:
        return
    names = await planner.snapshot_keys().among(await planner.store(), [view.name for view in views.values()])
    for name in names:
        view = views[str(name)]
        await view.scan_transactions(Transactions(), view.start)
