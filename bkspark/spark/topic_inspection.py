"""Tables about Pulsar's topics, from their metadata and the ledgers of cursors: no broker is asked.

topics         one row a topic, partitioned ones as one: ledgers, entries, bytes, subscriptions, newest schema
topicLedgers   one row a ledger of a topic or partition; `entries` and `size` of one that is open are null
subscriptions  one row a subscription of a topic or partition, Pulsar's own too: what it acknowledged, and its
               backlog, entries and bytes that are confirmed; an entry may be a batch of many messages.
               `oldest_unacknowledged` is the publish time of the first entry of the backlog
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa

from bkspark.errors import BookKeeperError, NoSuchLog
from bkspark.log.positions import Position
from bkspark.pulsar import entries as entry_fields
from bkspark.pulsar.entries import MalformedEntry, decode_entries
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.topic import PulsarStore, Subscription
from bkspark.spark.ranges import amount
from bkspark.spark.topic_view import TopicView
from bkspark.spark.topics import TopicPlanner

Row = dict[str, Any]
_TIME = pa.timestamp("us", "UTC")
SCHEMAS = {
    "topics": pa.schema(
        {
            "topic": pa.string(),
            "partitions": pa.int32(),
            "ledgers": pa.int64(),
            "entries": pa.int64(),
            "size": pa.int64(),
            "subscriptions": pa.int32(),
            "schema_type": pa.string(),
            "schema_version": pa.int64(),
        }
    ),
    "topicLedgers": pa.schema(
        {
            "topic": pa.string(),
            "partition": pa.int32(),
            "ledger_id": pa.int64(),
            "entries": pa.int64(),
            "size": pa.int64(),
            "closed": _TIME,
            "offloaded_to": pa.string(),
            "is_on_bookies": pa.bool_(),
        }
    ),
    "subscriptions": pa.schema(
        {
            "topic": pa.string(),
            "partition": pa.int32(),
            "subscription": pa.string(),
            "mark_delete_ledger": pa.int64(),
            "mark_delete_entry": pa.int64(),
            "acknowledged_after": pa.int64(),
            "backlog_entries": pa.int64(),
            "backlog_bytes": pa.int64(),
            "oldest_unacknowledged": _TIME,
        }
    ),
}
MAY_BE_NULL = frozenset(
    {"partition", "entries", "size", "closed", "offloaded_to", "schema_type", "schema_version", "oldest_unacknowledged"}
)


async def _whole_topics(planner: TopicPlanner) -> AsyncIterator[TopicName]:
    store = await planner.store()
    for namespace in await store.namespaces():
        for topic in await store.topics(namespace):
            yield topic


async def _views(planner: TopicPlanner) -> AsyncIterator[TopicView]:
    store = await planner.store()
    async for topic in _whole_topics(planner):
        for view in (await planner.look(await _parts(store, topic))).values():
            yield view


async def _parts(store: PulsarStore, topic: TopicName) -> list[TopicName]:
    """Return the partitions of a topic, or the topic itself; [] if it was deleted since it was listed."""
    try:
        return await store.partitions(topic)
    except NoSuchLog:
        return []


def _partition(name: TopicName) -> int | None:
    return name.partition if name.partition >= 0 else None


async def _topics(planner: TopicPlanner) -> AsyncIterator[Row]:
    store = await planner.store()
    async for topic in _whole_topics(planner):
        parts = await _parts(store, topic)
        if not parts:
            continue
        views = await planner.look(parts)
        extents = [extent for view in views.values() for extent in view.extents]
        schemas = await planner.schemas(topic)
        newest = max(schemas) if schemas else None
        subscriptions = {each for part in parts for each in await store.subscription_names(part)}
        yield {
            "topic": str(topic),
            "partitions": 0 if parts == [topic] else len(parts),
            "ledgers": len(extents),
            "entries": sum(extent.end_entry for extent in extents),
            "size": sum(extent.length for extent in extents),
            "subscriptions": len(subscriptions),
            "schema_type": None if newest is None else schemas[newest].kind,
            "schema_version": newest,
        }


async def _topic_ledgers(planner: TopicPlanner) -> AsyncIterator[Row]:
    async for view in _views(planner):
        for listed in view.managed.ledgers:
            yield {
                "topic": str(view.name),
                "partition": _partition(view.name),
                "ledger_id": listed.ledger_id,
                "entries": listed.entries,
                "size": listed.size,
                "closed": None if listed.closed_ms is None else listed.closed_ms * 1000,
                "offloaded_to": listed.offload,
                "is_on_bookies": listed.is_on_bookies,
            }


async def _subscriptions(planner: TopicPlanner) -> AsyncIterator[Row]:
    store = await planner.store()
    async for view in _views(planner):
        for found in await store.subscriptions(view.name, planner.client):
            yield await _subscription(planner, view, found)


async def _subscription(planner: TopicPlanner, view: TopicView, found: Subscription) -> Row:
    mark = found.cursor.mark_delete
    begin = view.normal(max(view.start, Position(mark.ledger_id, mark.ledger_id, mark.entry_id + 1)))
    behind = amount(view.extents, begin, view.readable)
    return {
        "topic": str(view.name),
        "partition": _partition(view.name),
        "subscription": found.name,
        "mark_delete_ledger": mark.ledger_id,
        "mark_delete_entry": mark.entry_id,
        "acknowledged_after": found.cursor.acknowledged_after,
        "backlog_entries": max(0, behind.entries - found.cursor.acknowledged_after),
        "backlog_bytes": behind.octets,
        "oldest_unacknowledged": await _published(planner, begin) if behind.entries else None,
    }


async def _published(planner: TopicPlanner, position: Position) -> int | None:
    """Return when an entry was published, in µs; None where it cannot be read."""
    try:
        reader = await planner.client.open(position.ledger_id)
        batch = await reader.read(position.entry_id, position.entry_id)
        return int(decode_entries(batch).metadata.value(entry_fields.PUBLISH_TIME)[0]) * 1000
    except (BookKeeperError, MalformedEntry, ValueError):
        return None


VIEWS: dict[str, Callable[[TopicPlanner], AsyncIterator[Row]]] = {
    "topics": _topics,
    "topicLedgers": _topic_ledgers,
    "subscriptions": _subscriptions,
}
