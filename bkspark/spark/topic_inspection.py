"""Tables about Pulsar's topics, from their metadata and the ledgers of cursors: no broker is asked.

topics         one row a topic, partitioned ones as one: ledgers, entries, bytes, subscriptions, newest schema
topicLedgers   one row a ledger of a topic or partition; `entries` and `size` of one that is open are null
subscriptions  one row a subscription of a topic or partition, Pulsar's own too: what it acknowledged, and its
               backlog, entries and bytes that are confirmed; an entry may be a batch of many messages.
               `oldest_unacknowledged` is the publish time of the first entry of the backlog
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa

from bkspark.errors import BookKeeperError, MetadataFormat, NoSuchLog
from bkspark.log.positions import Position
from bkspark.pulsar import entries as entry_fields
from bkspark.pulsar.entries import decode_entries
from bkspark.pulsar.message_columns import times
from bkspark.pulsar.metadata import Cursor
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.schemas import Schema
from bkspark.pulsar.topic import Subscription
from bkspark.spark.ranges import Backlog
from bkspark.spark.topic_view import TopicView
from bkspark.spark.topics import TopicPlanner

_log = logging.getLogger(__name__)

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
    async for topic in _whole_topics(planner):
        for view in (await _parts(planner, topic)).values():
            yield view


async def _parts(planner: TopicPlanner, topic: TopicName) -> dict[str, TopicView]:
    """Return the partitions of a topic, or the topic itself. The result is empty if the topic was deleted since it was
    listed, or if its metadata are malformed: that is logged, and does not prevent the rows of other topics."""
    try:
        return await planner.look(await (await planner.store()).partitions(topic))
    except NoSuchLog:
        return {}
    except MetadataFormat as error:
        _log.warning("topic %s is left out of the table: %s", topic, error)
        return {}


def _partition(name: TopicName) -> int | None:
    return name.partition if name.partition >= 0 else None


async def _topics(planner: TopicPlanner) -> AsyncIterator[Row]:
    store = await planner.store()
    async for topic in _whole_topics(planner):
        views = await _parts(planner, topic)
        if not views:
            continue
        extents = [extent for view in views.values() for extent in view.extents]
        schemas = await _schemas(planner, topic)
        newest = max(schemas) if schemas else None
        subscriptions = {each for view in views.values() for each in await store.subscription_names(view.name)}
        yield {
            "topic": str(topic),
            "partitions": 0 if list(views) == [str(topic)] else len(views),
            "ledgers": len(extents),
            "entries": sum(extent.end_entry for extent in extents),
            "size": sum(extent.length for extent in extents),
            "subscriptions": len(subscriptions),
            "schema_type": None if newest is None else schemas[newest].kind,
            "schema_version": newest,
        }


async def _schemas(planner: TopicPlanner, topic: TopicName) -> dict[int, Schema]:
    """Return the schemas of a topic by version; {} if they are malformed, which is logged."""
    try:
        return await planner.schemas(topic)
    except MetadataFormat as error:
        _log.warning("the schema of topic %s is left out of the table: %s", topic, error)
        return {}


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
        for name in await store.subscription_names(view.name):
            try:
                found = await store.subscription(view.name, name, planner.client)
            except MetadataFormat as error:
                _log.warning("subscription %s of topic %s is left out of the table: %s", name, view.name, error)
                continue
            if found is not None:
                yield await _subscription(planner, view, found)


async def _subscription(planner: TopicPlanner, view: TopicView, found: Subscription) -> Row:
    mark = found.cursor.mark_delete
    begin = view.normal(max(view.start, Position(mark.ledger_id, mark.ledger_id, mark.entry_id + 1)))
    behind = view.extents.amount(begin, view.readable)
    taken = _acknowledged_after(view, found.cursor)
    return {
        "topic": str(view.name),
        "partition": _partition(view.name),
        "subscription": found.name,
        "mark_delete_ledger": mark.ledger_id,
        "mark_delete_entry": mark.entry_id,
        "acknowledged_after": taken.entries,
        "backlog_entries": max(0, behind.entries - taken.entries),
        "backlog_bytes": max(0, behind.octets - taken.octets),
        "oldest_unacknowledged": await _published(planner, begin) if behind.entries else None,
    }


def _acknowledged_after(view: TopicView, cursor: Cursor) -> Backlog:
    """Return how many of the confirmed entries after the mark-delete position are acknowledged."""
    entries, octets = 0, 0.0
    for extent in view.extents:
        if extent.ledger_id >= cursor.mark_delete.ledger_id:
            count = cursor.acknowledged_in(extent.ledger_id, extent.end_entry)
            entries += count
            octets += count * extent.entry_bytes
    return Backlog(entries, round(octets))


async def _published(planner: TopicPlanner, position: Position) -> int | None:
    """Return when an entry was published, in µs; None if it cannot be read."""
    try:
        reader = await planner.client.open(position.ledger_id)
        entries = decode_entries(await reader.read(position.entry_id, position.entry_id))
        moment: int | None = times(entries.metadata.value(entry_fields.PUBLISH_TIME)).cast(pa.int64())[0].as_py()
    except (BookKeeperError, ValueError):
        return None
    return moment


VIEWS: dict[str, Callable[[TopicPlanner], AsyncIterator[Row]]] = {
    "topics": _topics,
    "topicLedgers": _topic_ledgers,
    "subscriptions": _subscriptions,
}
