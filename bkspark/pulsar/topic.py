"""PulsarStore: topics in Pulsar's metadata store: their names, partitions, ledgers, subscriptions and schemas.

This module never opens a ledger with recovery, and never writes.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from bkspark.errors import MetadataFormat, NoSuchEntry, NoSuchLedger, NoSuchLog, NoSuchNode
from bkspark.ledger.cluster import Cluster
from bkspark.metadata.tree import Tree
from bkspark.pulsar import metadata
from bkspark.pulsar.metadata import COMPACTED_LEDGER, Cursor, EntryPosition, ManagedLedger, SchemaVersion
from bkspark.pulsar.names import (
    MANAGED_LEDGERS,
    PARTITIONED_TOPICS,
    PERSISTENT,
    POLICIES,
    TRANSACTION_SNAPSHOTS,
    TopicName,
    decoded,
    encoded,
)
from bkspark.pulsar.schemas import Schema, decode_schema

COMPACTION = "__compaction"
"""The subscription of the process that compacts a topic."""
SCHEMA_VERSIONS_MAX = 1000
"""Limit of the versions that are read for one topic."""
_CLOSE_NAMES = 3

KnownSchemas = dict[EntryPosition, tuple[Schema, tuple[SchemaVersion, ...]]]
"""By the entry that has it: a schema, and where the versions before it are stored. Entries never change."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of one topic or partition, as it is stored."""

    topic: TopicName
    name: str
    cursor: Cursor


class PulsarStore:
    """Pulsar's metadata in a tree whose root is the chroot of Pulsar's metadata store.

    Args:
        tree: the store with /managed-ledgers and /schemas.
        configuration: the store with /admin, if that is another one.
        root: the chroot; empty for none.
    """

    def __init__(self, tree: Tree, configuration: Tree | None = None, root: str = "", admin_root: str = "") -> None:
        self._tree = tree
        self._configuration = configuration or tree
        self._root = root
        self._admin_root = admin_root
        """The chroot of the store with /admin."""

    async def catch_up(self) -> None:
        """Make what is read from now on at least as new as at this moment."""
        for tree in {self._tree, self._configuration}:
            await tree.catch_up()

    # ---- topics ----

    async def partitions(self, topic: TopicName) -> list[TopicName]:
        """Return the topics that a name means: its partitions, or itself.

        Raises:
            NoSuchLog: there is no such topic; the message names the nearest ones.
        """
        count = await self._partition_count(topic)
        if count:
            return [topic.of_partition(number) for number in range(count)]
        if await self._tree.exists(self._root + topic.managed_ledger_path) is not None:
            return [topic]
        if topic.partition >= 0 and topic.partition < await self._partition_count(topic.whole):
            return [topic]  # a partition that no broker has loaded yet
        others = [str(each) for each in await self.topics(topic) if each != topic]
        near = difflib.get_close_matches(str(topic), others, n=_CLOSE_NAMES)
        hint = f"; there are {', '.join(near)}" if near else ""
        raise NoSuchLog(f"topic {topic} does not exist at Pulsar's metadata store{hint}")

    async def _partition_count(self, topic: TopicName) -> int:
        path = self._admin_root + topic.partitions_path
        try:
            data, _ = await self._configuration.get(path)
        except NoSuchNode:
            return 0
        return metadata.decode_partitions(data, path)

    async def topics(self, of: TopicName, *, with_system: bool = False) -> list[TopicName]:
        """Return the topics of the namespace that `of` is in, partitioned ones once, sorted."""
        path = f"{of.namespace_path}/{PERSISTENT}"
        stored = await _children(self._tree, f"{self._root}{MANAGED_LEDGERS}/{path}")
        partitioned = await _children(self._configuration, f"{self._admin_root}{PARTITIONED_TOPICS}/{path}")
        wholes = {TopicName(of.tenant, of.namespace, decoded(name), of.cluster) for name in partitioned}
        found = set(wholes)
        for name in stored:
            topic = TopicName(of.tenant, of.namespace, decoded(name), of.cluster)
            # A topic may have the name of a partition, and a partition may remain of a topic that was deleted.
            found.add(topic.whole if topic.whole in wholes else topic)
        return sorted(topic for topic in found if with_system or not topic.is_system)

    async def namespaces(self) -> list[TopicName]:
        """Return a name of each namespace that has topics; their local part is empty."""
        found = []
        root = self._root + MANAGED_LEDGERS
        for tenant in await _children(self._tree, root):
            for second in await _children(self._tree, f"{root}/{tenant}"):
                for third in await _children(self._tree, f"{root}/{tenant}/{second}"):
                    if third == PERSISTENT:
                        found.append(TopicName(tenant, second, ""))
                    elif PERSISTENT in await _children(self._tree, f"{root}/{tenant}/{second}/{third}"):
                        found.append(TopicName(tenant, third, "", second))
        return found

    async def transaction_snapshots(self, topic: TopicName) -> list[TopicName]:
        """Return the topics and partitions in which brokers keep snapshots of transactions of the topic's namespace; []
        if no broker with transactions has ever loaded a topic of it."""
        path = f"{self._root}{MANAGED_LEDGERS}/{topic.namespace_path}/{PERSISTENT}"
        found = [replace(topic, local=decoded(name)) for name in await _children(self._tree, path)]
        return sorted(each for each in found if each.whole.local in TRANSACTION_SNAPSHOTS)

    # ---- one topic ----

    async def ledgers(self, topic: TopicName) -> ManagedLedger:
        """Return the ledgers of a topic or partition; no ledgers if no broker has loaded it yet.

        Raises:
            MetadataFormat: its node is not one of Pulsar's.
        """
        return self.decoded_list(topic, await self.stored_list(topic))

    async def stored_list(self, topic: TopicName) -> bytes:
        """Return the node with the ledgers of a topic or partition; empty if there is none, as for `ledgers`."""
        try:
            return (await self._tree.get(self._root + topic.managed_ledger_path))[0]
        except NoSuchNode:
            return b""

    def decoded_list(self, topic: TopicName, data: bytes) -> ManagedLedger:
        """Return the ledgers that such a node lists. Raises MetadataFormat as `ledgers`."""
        return metadata.decode_managed_ledger(data, self._root + topic.managed_ledger_path)

    async def exists(self, topic: TopicName) -> bool:
        """Return whether a topic or partition has a node."""
        return await self._tree.exists(self._root + topic.managed_ledger_path) is not None

    async def is_kept(self, topic: TopicName) -> bool:
        """Return whether a subscription or a retention of the namespace keeps a topic's ledgers. Brokers' defaults and
        policies of single topics are not known here."""
        if not all(map(_is_own, await self.subscription_names(topic))):
            return True
        path = f"{self._admin_root}{POLICIES}/{topic.namespace_path}"
        try:
            data, _ = await self._configuration.get(path)
        except NoSuchNode:
            return False
        return metadata.has_retention(data, path)

    async def subscription_names(self, topic: TopicName) -> list[str]:
        """Return the names of a topic's or partition's subscriptions, also Pulsar's own."""
        return [decoded(name) for name in await _children(self._tree, self._root + topic.managed_ledger_path)]

    async def subscription(self, topic: TopicName, name: str, cluster: Cluster) -> Subscription | None:
        """Return what a subscription has acknowledged; None if there is no subscription of that name.

        The last entry of a cursor's ledger is read although it may not be confirmed: a cursor lags by one
        acknowledgement otherwise, and the ledger that it names may have been deleted since.
        """
        path = f"{self._root}{topic.managed_ledger_path}/{encoded(name)}"
        gone: set[int] = set()
        while True:
            try:
                data, _ = await self._tree.get(path)
            except NoSuchNode:
                return None
            cursor = metadata.decode_cursor(data, path)
            if cursor.ledger_id < 0 or cursor.ledger_id in gone:
                return Subscription(topic, name, cursor)
            try:
                entry = await _last_entry(cluster, cursor.ledger_id)
            except NoSuchLedger:
                gone.add(cursor.ledger_id)  # closed, or replaced by another one, since: the node says so
                continue
            if entry is not None:
                source = f"ledger {cursor.ledger_id} of cursor {name} of {topic}"
                cursor = metadata.decode_cursor_entry(entry, cursor.ledger_id, source)
            return Subscription(topic, name, cursor)

    async def schemas(self, topic: TopicName, cluster: Cluster, known: KnownSchemas | None = None) -> dict[int, Schema]:
        """Return the schemas of a topic by version; empty for one of bytes.

        Args:
            cluster: with the empty password, which ledgers of schemas have.
            known: schemas that were read before, which are not read again. Those that are read now are added.

        Raises:
            MetadataFormat: a schema cannot be decoded.
        """
        known = {} if known is None else known
        path = self._root + topic.schema_path
        try:
            data, _ = await self._tree.get(path)
        except NoSuchNode:
            return {}
        named = metadata.decode_schema_locator(data, path)
        todo = {each.version: each.place for each in named}
        looked_at = set(todo)
        found: dict[int, Schema] = {}
        while todo and len(found) < SCHEMA_VERSIONS_MAX:
            version, place = todo.popitem()
            source = f"schema version {version} of {topic}, ledger {place.ledger_id}"
            if place not in known:
                entry = await _entry(cluster, place)
                if entry is None:
                    continue
                info, before = metadata.decode_schema_entry(entry, source)
                known[place] = decode_schema(version, info, source), before
            found[version], before = known[place]
            todo |= {each.version: each.place for each in before if each.version not in looked_at}
            looked_at |= todo.keys()
        if named and not found:
            raise MetadataFormat(
                f"schema version {named[-1].version} of {topic}: ledger {named[-1].place.ledger_id} does not have it: "
                "read the bytes with valueFormat=raw"
            )
        return found

    async def compacted_ledger(self, topic: TopicName, cluster: Cluster) -> int | None:
        """Return the compacted ledger of a topic; None if the topic was never compacted."""
        found = await self.subscription(topic, COMPACTION, cluster)
        ledger_id = -1 if found is None else found.cursor.properties.get(COMPACTED_LEDGER, -1)
        return ledger_id if ledger_id >= 0 else None


def _is_own(subscription: str) -> bool:
    """Return whether a subscription is one of Pulsar itself. Its position does not depend on what others have read."""
    return subscription in (COMPACTION, "pulsar.dedup") or subscription.startswith("pulsar.repl.")


async def _children(tree: Tree, path: str) -> list[str]:
    try:
        return await tree.children(path)
    except NoSuchNode:
        return []


async def _last_entry(cluster: Cluster, ledger_id: int) -> bytes | None:
    """Return the last entry that a ledger stores, confirmed or not; None if it is empty."""
    reader = await cluster.open(ledger_id)
    last = reader.last_entry if reader.is_closed else max(reader.last_entry, reader.last_unconfirmed)
    if last < 0:
        return None
    return (await reader.read(last, last, unconfirmed=not reader.is_closed))[0]


async def _entry(cluster: Cluster, place: EntryPosition) -> bytes | None:
    """Return an entry of a ledger that may still be open; None if there is no such ledger or entry."""
    try:
        reader = await cluster.open(place.ledger_id)
        return (await reader.read(place.entry_id, place.entry_id, unconfirmed=not reader.is_closed))[0]
    except (NoSuchLedger, NoSuchEntry, ValueError):
        return None
