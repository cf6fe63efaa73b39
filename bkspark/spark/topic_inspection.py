"""Tables about Pulsar's topics, from their metadata and the ledgers of cursors: no broker is asked.

topics         one row a topic, partitioned ones as one: ledgers, entries, bytes, subscriptions, newest schema
topicLedgers   one row a ledger of a topic or partition; `entries` and `size` of one that is open are null
subscriptions  one row a subscription of a topic or partition, Pulsar's own too: what it acknowledged, and its
               backlog, entries and bytes that are confirmed; an entry may be a batch of many messages. As in
               Pulsar's own statistics, an entry is in the backlog until all its messages are acknowledged:
               `partial_entries` are those of the backlog of which some are, and `partial_messages` the messages of
               these that are not. `oldest_unacknowledged` is the publish time of the first entry of the backlog

What cannot be read is a row that names it: `error` says why, and the columns that are not known are null.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa

from bkspark.errors import BookKeeperError, MetadataError, NoSuchLog
from bkspark.ids import INT64_MAX
from bkspark.log.positions import Position
from bkspark.pulsar import entries as entry_fields
from bkspark.pulsar.entries import decode_entries
from bkspark.pulsar.message_columns import times
from bkspark.pulsar.metadata import Cursor, EntryPosition
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.topic import Subscription
from bkspark.spark.ranges import Backlog
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
            "error": pa.string(),
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
            "error": pa.string(),
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
            "partial_entries": pa.int64(),
            "partial_messages": pa.int64(),
            "oldest_unacknowledged": _TIME,
            "error": pa.string(),
        }
    ),
}
NEVER_NULL = dict.fromkeys(SCHEMAS, frozenset({"topic"}))


def is_of_the_store(error: BookKeeperError) -> bool:
    """Return whether an error says that the metadata store cannot be reached, and not that one object cannot be
    read."""
    return isinstance(error, MetadataError) and error.is_outage


async def _whole_topics(planner: TopicPlanner) -> AsyncIterator[TopicName]:
    store = await planner.store()
    for namespace in await store.namespaces():
        for topic in await store.topics(namespace):
            yield topic


async def _views(planner: TopicPlanner) -> AsyncIterator[tuple[TopicName, TopicView | BookKeeperError]]:
    """Yield each topic or partition, or the error of a topic that cannot be read."""
    async for topic in _whole_topics(planner):
        found = await _parts(planner, topic)
        if isinstance(found, BookKeeperError):
            yield topic, found
            continue
        for view in found:
            yield view.name, view


async def _parts(planner: TopicPlanner, topic: TopicName) -> list[TopicView] | BookKeeperError:
    """Return the partitions of a topic, or the topic itself, or the error if it cannot be read. The result is empty if
    the topic was deleted since it was listed."""
    try:
        return list((await planner.look(await (await planner.store()).partitions(topic))).values())
    except NoSuchLog:
        return []
    except BookKeeperError as error:
        if is_of_the_store(error):
            raise
        return error


def _partition(name: TopicName) -> int | None:
    return name.partition if name.partition >= 0 else None


async def _topics(planner: TopicPlanner) -> AsyncIterator[Row]:
    store = await planner.store()
    async for topic in _whole_topics(planner):
        views = await _parts(planner, topic)
        if isinstance(views, BookKeeperError):
            yield {"topic": str(topic), "error": str(views)}
            continue
        if not views:
            continue
        extents = [extent for view in views for extent in view.extents]
        subscriptions = {each for view in views for each in await store.subscription_names(view.name)}
        yield {
            "topic": str(topic),
            "partitions": 0 if [view.name for view in views] == [topic] else len(views),
            "ledgers": len(extents),
            "entries": _bounded(sum(extent.end_entry for extent in extents)),
            "size": _bounded(sum(extent.length for extent in extents)),
            "subscriptions": len(subscriptions),
            **await _newest_schema(planner, topic),
        }


async def _newest_schema(planner: TopicPlanner, topic: TopicName) -> Row:
    """Return the columns about a topic's newest schema."""
    try:
        schemas = await planner.schemas(topic)
    except BookKeeperError as error:
        if is_of_the_store(error):
            raise
        return {"error": str(error)}
    newest = max(schemas, default=None)
    return {} if newest is None else {"schema_type": schemas[newest].kind, "schema_version": newest}


async def _topic_ledgers(planner: TopicPlanner) -> AsyncIterator[Row]:
    async for name, view in _views(planner):
        if isinstance(view, BookKeeperError):
            yield {"topic": str(name), "error": str(view)}
            continue
        for listed in view.managed.ledgers:
            yield {
                "topic": str(name),
                "partition": _partition(name),
                "ledger_id": listed.ledger_id,
                "entries": listed.entries,
                "size": listed.size,
                "closed": None if listed.closed_ms is None else listed.closed_ms * 1000,
                "offloaded_to": listed.offload,
                "is_on_bookies": listed.is_on_bookies,
            }


async def _subscriptions(planner: TopicPlanner) -> AsyncIterator[Row]:
    store = await planner.store()
    async for topic, view in _views(planner):
        if isinstance(view, BookKeeperError):
            yield {"topic": str(topic), "error": str(view)}
            continue
        for name in await store.subscription_names(topic):
            try:
                found = await store.subscription(topic, name, planner.client)
            except BookKeeperError as error:
                if is_of_the_store(error):
                    raise
                named = {"topic": str(topic), "partition": _partition(topic), "subscription": name}
                yield {**named, "error": str(error)}
                continue
            if found is not None:
                yield await _subscription(planner, view, found)


async def _subscription(planner: TopicPlanner, view: TopicView, found: Subscription) -> Row:
    mark = found.cursor.mark_delete
    begin = view.after(mark)
    unread = view.extents.amount(begin, view.readable)
    taken = _acknowledged_after(view, found.cursor)
    partial = [bits for place, bits in found.cursor.partial if begin <= _position(place) < view.readable]
    return {
        "topic": str(view.name),
        "partition": _partition(view.name),
        "subscription": found.name,
        "mark_delete_ledger": mark.ledger_id,
        "mark_delete_entry": mark.entry_id,
        "acknowledged_after": _bounded(taken.entries),
        "backlog_entries": _bounded(unread.entries - taken.entries),
        "backlog_bytes": _bounded(unread.byte_count - taken.byte_count),
        "partial_entries": len(partial),
        "partial_messages": sum(bits.bit_count() for bits in partial),
        "oldest_unacknowledged": await _published(planner, begin) if unread.entries else None,
    }


def _bounded(amount: int) -> int:
    """Return an amount as a column can hold it: lists of ledgers may claim more than there can be."""
    return min(max(0, amount), INT64_MAX)


def _position(place: EntryPosition) -> Position:
    return Position(place.ledger_id, place.ledger_id, place.entry_id)


def _acknowledged_after(view: TopicView, cursor: Cursor) -> Backlog:
    """Return how many of the confirmed entries after the mark-delete position are acknowledged."""
    entries, byte_count = 0, 0.0
    for extent in view.extents:
        if extent.ledger_id >= cursor.mark_delete.ledger_id:
            count = cursor.acknowledged_in(extent.ledger_id, extent.end_entry)
            entries += count
            byte_count += count * extent.entry_bytes
    return Backlog(entries, round(byte_count))


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
