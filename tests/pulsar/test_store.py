"""What is stored of topics, read on real bookies in this process: partitions, subscriptions and schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bkspark.client import Client, LedgerReader, LedgerWriter
from bkspark.errors import NoSuchLog
from bkspark.metadata.memory import MemoryTree
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar import topic as topics
from bkspark.pulsar.metadata import COMPACTED_LEDGER, Cursor, EntryPosition
from bkspark.pulsar.names import TopicName, encoded
from bkspark.pulsar.snapshots import SnapshotKeys
from bkspark.pulsar.topic import COMPACTION, PulsarStore
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.pulsar.entries import Message, compacted, single

TOPIC = TopicName.parse("clicks")
NODE = f"{TOPIC.managed_ledger_path}/{encoded('s')}"


class Brokers:
    """What brokers store: nodes in the metadata store, and entries on a bookie."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client()
        self.tree: MemoryTree = cluster.store.session()
        self.store = PulsarStore(self.tree)

    async def put(self, path: str, data: bytes = b"") -> None:
        await self.tree.create(path, data, make_parents=True)

    async def stored(self) -> bytes | None:
        """Return the node of the subscription; None if there is none."""
        return (await self.tree.get(NODE))[0] if await self.tree.exists(NODE) is not None else None

    async def ledger(self, *entries: bytes) -> LedgerWriter:
        """Return the writer of a ledger that is left open; its last entry is not confirmed."""
        writer = await self.client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        for entry in entries:
            await writer.append(entry)
        return writer

    async def closed(self, *entries: bytes) -> int:
        writer = await self.ledger(*entries)
        await writer.close()
        return writer.ledger_id


def with_brokers(directory: Path, test: Callable[[Brokers], Awaitable[None]]) -> None:
    async def call(cluster: InProcessCluster) -> None:
        await test(Brokers(cluster))

    run(directory, call, bookies=1)


def cursor(ledger_id: int, entry_id: int, **properties: int) -> bytes:
    """Return the node of a subscription whose state is in a ledger; -1: in the node itself."""
    found = formats.ManagedCursorInfo(cursorsLedgerId=ledger_id, markDeleteLedgerId=9, markDeleteEntryId=entry_id)
    for name, value in properties.items():
        found.properties.add(name=name, value=value)
    return bytes(found.SerializeToString())


def acknowledged(entry_id: int) -> bytes:
    """Return the entry of a cursor's ledger after this entry of ledger 9 was acknowledged."""
    return bytes(formats.PositionInfo(ledgerId=9, entryId=entry_id).SerializeToString())


def test_partitions_are_numbered_below_their_count(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.put(TOPIC.partitions_path, b'{"partitions": 2}')
        assert await brokers.store.partitions(TOPIC) == [TOPIC.of_partition(0), TOPIC.of_partition(1)]
        assert await brokers.store.partitions(TOPIC.of_partition(1)) == [TOPIC.of_partition(1)]
        with pytest.raises(NoSuchLog, match="clicks-partition-2 does not exist"):
            await brokers.store.partitions(TOPIC.of_partition(2))

    with_brokers(tmp_path, test)


def test_topics_of_pulsar_itself_are_listed_only_where_they_are_asked_for(tmp_path: Path) -> None:
    """A pattern such as .* is for the topics of users."""

    async def test(brokers: Brokers) -> None:
        for name in ("a", "__change_events", "a-my-sub__transaction_pending_ack", "__transaction_buffer_snapshot"):
            await brokers.put(TopicName.parse(name).managed_ledger_path)
        assert [each.local for each in await brokers.store.topics(TOPIC)] == ["a"]
        assert len(await brokers.store.topics(TOPIC, with_system=True)) == 4

    with_brokers(tmp_path, test)


def test_namespaces_are_those_with_persistent_topics(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        for path in ("t/n/persistent/a", "old/c/n/persistent/a", "old/c/n2/non-persistent/a"):
            await brokers.put(f"/managed-ledgers/{path}")
        found = await brokers.store.namespaces()
        assert sorted(each.namespace_path for each in found) == ["old/c/n", "t/n"]

    with_brokers(tmp_path, test)


def test_cursor_is_read_from_its_ledger_though_that_is_the_first_of_the_cluster_and_open(tmp_path: Path) -> None:
    """The last entry counts although it is not confirmed: otherwise the cursor lags by one acknowledgement."""

    async def test(brokers: Brokers) -> None:
        writer = await brokers.ledger(acknowledged(3), acknowledged(4))
        assert writer.ledger_id == 0
        await brokers.put(NODE, cursor(0, 1))
        found = await brokers.store.subscription(TOPIC, "s", brokers.client)
        assert found is not None
        assert found.cursor.mark_delete == EntryPosition(9, 4)
        await writer.close()
        found = await brokers.store.subscription(TOPIC, "s", brokers.client)
        assert found is not None
        assert found.cursor.mark_delete == EntryPosition(9, 4)

    with_brokers(tmp_path, test)


class ClientBesideABroker(Client):
    """Before it opens a cursor's ledger for the first time, a broker writes the cursor's node again, and then deletes
    the ledger."""

    brokers: Brokers
    node: bytes | None
    """What the broker writes; None: it deletes the subscription."""

    async def open(self, ledger_id: int, *arguments: Any, **named: Any) -> LedgerReader:
        tree = self.brokers.tree
        if await self.brokers.stored() != self.node:
            await (tree.delete(NODE) if self.node is None else tree.set(NODE, self.node, -1))
            await self.brokers.client.delete(ledger_id)
        return await super().open(ledger_id, *arguments, **named)


async def subscription_beside_a_broker(brokers: Brokers, node: bytes | None) -> Cursor | None:
    """Return a cursor whose node a broker changes to `node` while it is read."""
    await brokers.put(NODE, cursor(await brokers.closed(acknowledged(3)), 1))
    client = ClientBesideABroker(URI, tree=brokers.cluster.store.session())
    client.brokers, client.node = brokers, node
    try:
        found = await brokers.store.subscription(TOPIC, "s", client)
    finally:
        await client.close()
    return None if found is None else found.cursor


def test_cursor_that_is_closed_while_it_is_read_is_the_one_of_its_node_then(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        found = await subscription_beside_a_broker(brokers, cursor(-1, 7))
        assert found is not None
        assert found.mark_delete == EntryPosition(9, 7)

    with_brokers(tmp_path, test)


def test_cursor_that_gets_another_ledger_while_it_is_read_is_the_one_of_that_ledger(tmp_path: Path) -> None:
    """The node has what was acknowledged one by one only when the cursor is closed."""

    async def test(brokers: Brokers) -> None:
        state = formats.PositionInfo(ledgerId=9, entryId=7)
        partial = state.batchedEntryDeletionIndexInfo.add(deleteSet=[0b100])
        partial.position.ledgerId, partial.position.entryId = 9, 8
        other = await brokers.ledger(bytes(state.SerializeToString()))
        found = await subscription_beside_a_broker(brokers, cursor(other.ledger_id, 6))
        assert found is not None
        assert found.mark_delete == EntryPosition(9, 7)
        assert found.first_left_in(EntryPosition(9, 8)) == 2

    with_brokers(tmp_path, test)


def test_subscription_that_is_deleted_while_it_is_read_does_not_exist(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        assert await subscription_beside_a_broker(brokers, None) is None

    with_brokers(tmp_path, test)


def test_cursor_whose_ledger_is_lost_is_the_one_of_its_node(tmp_path: Path) -> None:
    """As a broker has it, which begins again at the position of the node."""

    async def test(brokers: Brokers) -> None:
        await brokers.put(NODE, cursor(await brokers.closed(acknowledged(3)) + 1, 1))
        found = await brokers.store.subscription(TOPIC, "s", brokers.client)
        assert found is not None
        assert found.cursor.mark_delete == EntryPosition(9, 1)

    with_brokers(tmp_path, test)


def test_topic_that_was_not_compacted_has_no_compacted_ledger(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        path = f"{TOPIC.managed_ledger_path}/{COMPACTION}"
        assert await brokers.store.compacted_ledger(TOPIC, brokers.client) is None
        await brokers.put(path, cursor(-1, 1))
        assert await brokers.store.compacted_ledger(TOPIC, brokers.client) is None
        await brokers.tree.set(path, cursor(-1, 1, **{COMPACTED_LEDGER: -1}), -1)
        assert await brokers.store.compacted_ledger(TOPIC, brokers.client) is None
        await brokers.tree.set(path, cursor(-1, 1, **{COMPACTED_LEDGER: 0}), -1)
        assert await brokers.store.compacted_ledger(TOPIC, brokers.client) == 0

    with_brokers(tmp_path, test)


# ---- schemas ----


def index(version: int, ledger_id: int) -> formats.IndexEntry:
    position = formats.SchemaPosition(ledgerId=ledger_id, entryId=0)
    return formats.IndexEntry(version=version, position=position, hash=b"")


def schema(*before: formats.IndexEntry) -> bytes:
    """Return the entry of one version, of type STRING; `before`: where other versions are."""
    info = formats.SchemaInfo(schema_id="s", user="", type=2, schema=b"", timestamp=1)
    entry = formats.SchemaEntry(schema_data=info.SerializeToString())
    entry.index.extend(before)
    return bytes(entry.SerializeToString())


async def put_locator(brokers: Brokers, *versions: formats.IndexEntry) -> None:
    locator = formats.SchemaLocator(index=versions)
    locator.info.CopyFrom(versions[-1])
    await brokers.put(TOPIC.schema_path, locator.SerializeToString())


def test_versions_of_a_schema_that_name_each_other_are_read_once(tmp_path: Path) -> None:
    """No broker writes a circle, but a damaged store may have one."""

    async def test(brokers: Brokers) -> None:
        one, two = await brokers.ledger(), await brokers.ledger()
        await one.append(schema(index(1, two.ledger_id)))
        await two.append(schema(index(0, one.ledger_id)))
        last = await brokers.closed(schema(index(0, one.ledger_id)))
        await put_locator(brokers, index(2, last))
        assert sorted(await brokers.store.schemas(TOPIC, brokers.client)) == [0, 1, 2]

    with_brokers(tmp_path, test)


def test_all_versions_that_the_entry_of_a_later_one_names_are_read(tmp_path: Path) -> None:
    """The locator names only the newest versions."""

    async def test(brokers: Brokers) -> None:
        zero, one = await brokers.closed(schema()), await brokers.closed(schema())
        last = await brokers.closed(schema(index(0, zero), index(1, one)))
        await put_locator(brokers, index(2, last))
        assert sorted(await brokers.store.schemas(TOPIC, brokers.client)) == [0, 1, 2]

    with_brokers(tmp_path, test)


def test_no_more_versions_of_a_schema_are_read_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "SCHEMA_VERSIONS_MAX", 2)

    async def test(brokers: Brokers) -> None:
        await put_locator(brokers, *[index(version, await brokers.closed(schema())) for version in range(3)])
        assert sorted(await brokers.store.schemas(TOPIC, brokers.client)) == [1, 2]

    with_brokers(tmp_path, test)


def test_versions_of_a_schema_that_bookies_do_not_have_are_left_out(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        lost = await brokers.closed(schema())
        (bookie,) = brokers.cluster.bookies
        await bookie.stop()
        bookie.wipe()
        await bookie.start()
        empty, found = await brokers.ledger(), await brokers.closed(schema())
        await put_locator(brokers, index(0, lost), index(1, empty.ledger_id), index(2, found))
        assert sorted(await brokers.store.schemas(TOPIC, brokers.client)) == [2]

    with_brokers(tmp_path, test)


# ---- snapshots of transactions ----


def snapshot_list(*ledger_ids: int) -> bytes:
    info = formats.ManagedLedgerInfo()
    for ledger_id in ledger_ids:
        info.ledgerInfo.add(ledgerId=ledger_id, entries=1, size=1, timestamp=1)
    return bytes(info.SerializeToString())


async def put_snapshots(brokers: Brokers, *ledger_ids: int) -> None:
    path = TopicName.parse("__transaction_buffer_snapshot").managed_ledger_path
    await brokers.put(path, snapshot_list(*ledger_ids))


def test_topics_that_have_snapshots_may_have_transactions(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        one, two = TopicName.parse("one"), TopicName.parse("two")
        await put_snapshots(brokers, await brokers.closed(single(Message(b"", str(one)))))
        snapshots = SnapshotKeys(brokers.client, brokers.client)
        for _ in range(2):
            assert await snapshots.among(brokers.store, [one, two]) == [one]

    with_brokers(tmp_path, test)


def test_snapshot_that_is_stored_between_two_looks_is_found(tmp_path: Path) -> None:
    """The second one is not confirmed when it is looked for, and the first one was not either."""

    async def test(brokers: Brokers) -> None:
        one, two = TopicName.parse("one"), TopicName.parse("two")
        writer = await brokers.ledger(single(Message(b"", str(one))))
        await put_snapshots(brokers, writer.ledger_id)
        snapshots = SnapshotKeys(brokers.client, brokers.client)
        assert await snapshots.among(brokers.store, [one, two]) == [one]
        await writer.append(single(Message(b"", str(two))))
        assert await snapshots.among(brokers.store, [one, two]) == [one, two]

    with_brokers(tmp_path, test)


def test_snapshot_that_is_compacted_between_two_looks_is_found_in_the_compacted_ledger(tmp_path: Path) -> None:
    """The ledger that had it may be trimmed before the next look, and each compaction makes another ledger."""

    async def test(brokers: Brokers) -> None:
        one, two, three = (TopicName.parse(name) for name in ("one", "two", "three"))
        topic = TopicName.parse("__transaction_buffer_snapshot")
        first = await brokers.closed(single(Message(b"", str(one))))
        await put_snapshots(brokers, first)
        snapshots = SnapshotKeys(brokers.client, brokers.client)
        assert await snapshots.among(brokers.store, [one, two]) == [one]
        path = f"{topic.managed_ledger_path}/{COMPACTION}"
        await brokers.put(path)
        last = await brokers.closed()
        await brokers.tree.set(topic.managed_ledger_path, snapshot_list(last), -1)
        for number, name in enumerate((two, three), 1):
            held = await brokers.closed(compacted(first, number, single(Message(b"", str(name)))))
            await brokers.tree.set(path, cursor(-1, 1, **{COMPACTED_LEDGER: held}), -1)
            assert await snapshots.among(brokers.store, [two, three]) == [two, three][:number]

    with_brokers(tmp_path, test)


def test_every_topic_may_have_transactions_once_a_snapshot_cannot_be_read(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        one, two = TopicName.parse("one"), TopicName.parse("two")
        gone, kept = await brokers.closed(b"x"), await brokers.closed(single(Message(b"", str(one))))
        await brokers.client.delete(gone)
        await put_snapshots(brokers, gone, kept)
        snapshots = SnapshotKeys(brokers.client, brokers.client)
        for _ in range(2):
            assert await snapshots.among(brokers.store, [one, two]) == [one, two]

    with_brokers(tmp_path, test)
