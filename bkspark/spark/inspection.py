"""Tables about the cluster: `option("inspect", ...)`. Everything is looked up on the driver, when the read is planned.

    ledgers    one row a ledger, from its metadata; `last_entry` and `length` of an open one are null
    fragments  one row a fragment of a ledger; `last_entry` of the last fragment of an open ledger is null
    logs       one row a log; `published` has the last version of each name (txnAppId, or the id of a streaming query
               without one) that published there, the latest last, and its query, null if unknown. `payload_format`
               and `schema` are those of the next append, null if Spark has not written there; `schemas` has all that
               apply in the log, from which ordinal of its list each, and as Spark's JSON. `retention_ms` and
               `retention_bytes` are its limits; `first_append` and `last_append` the first and last time that its list
               has: an open ledger may have later ones
    consumers  one row a registered reader of a log (option `consumer`): its position, how much lies between that and
               the log's end, when its registration ends or ended
    bookies    one row a bookie that ever had a cookie: `state` is available, readonly or down, as `bkspark cluster
               bookies` says; `address` is null while it is not registered

    topics     and topicLedgers, subscriptions: tables about Pulsar's topics, in `topic_inspection`

Objects that are deleted during the look-up, and logs of other clusters, are left out. An object that cannot be read
is a row that names it: `error` says why, and the columns that are not known are null.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.client import Client
from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    DataLoss,
    MetadataAccessDenied,
    MetadataFormat,
    NoSuchLog,
)
from bkspark.ledger.reader import LedgerTimes
from bkspark.log import own_logs
from bkspark.log.log import Log
from bkspark.log.snapshot import LogSnapshot
from bkspark.spark import topic_inspection
from bkspark.spark.columns import arrow_schema, check_columns
from bkspark.spark.connection import connect
from bkspark.spark.evolution import columns_text, schema_of_text
from bkspark.spark.options import SourceOptions
from bkspark.spark.stored_ledgers import every_ledger
from bkspark.spark.topic_inspection import is_of_the_store
from bkspark.spark.topics import TopicPlanner

ROWS_PER_PARTITION = 10_000

Row = dict[str, Any]
_TIME = pa.timestamp("us", "UTC")
SCHEMAS = {
    "ledgers": pa.schema(
        {
            "ledger_id": pa.int64(),
            "state": pa.string(),
            "ensemble_size": pa.int32(),
            "write_quorum": pa.int32(),
            "ack_quorum": pa.int32(),
            "digest": pa.string(),
            "last_entry": pa.int64(),
            "length": pa.int64(),
            "fragments": pa.int32(),
            "created": _TIME,
            "changed": _TIME,
            "custom_metadata": pa.map_(pa.string(), pa.binary()),
            "error": pa.string(),
        }
    ),
    "fragments": pa.schema(
        {
            "ledger_id": pa.int64(),
            "first_entry": pa.int64(),
            "last_entry": pa.int64(),
            "bookies": pa.list_(pa.string()),
            "error": pa.string(),
        }
    ),
    "logs": pa.schema(
        {
            "log": pa.string(),
            "log_id": pa.string(),
            "ledgers": pa.int64(),
            "open_ledgers": pa.int32(),
            "start": pa.string(),
            "version": pa.int64(),
            "published": pa.list_(
                pa.struct({"name": pa.string(), "version": pa.int64(), "query": pa.string()}),
            ),
            "payload_format": pa.string(),
            "schema": pa.string(),
            "schemas": pa.list_(
                pa.struct(
                    {"number": pa.int32(), "first_ordinal": pa.int64(), "format": pa.string(), "schema": pa.string()}
                ),
            ),
            "retention_ms": pa.int64(),
            "retention_bytes": pa.int64(),
            "first_append": _TIME,
            "last_append": _TIME,
            "error": pa.string(),
        }
    ),
    "consumers": pa.schema(
        {
            "log": pa.string(),
            "consumer": pa.string(),
            "position": pa.string(),
            "entries_behind": pa.int64(),
            "bytes_behind": pa.int64(),
            "expires": _TIME,
            "is_expired": pa.bool_(),
            "error": pa.string(),
        }
    ),
    "bookies": pa.schema({"bookie": pa.string(), "state": pa.string(), "address": pa.string()}),
    **topic_inspection.SCHEMAS,
}

NEVER_NULL = {
    "ledgers": frozenset({"ledger_id"}),
    "fragments": frozenset({"ledger_id"}),
    "logs": frozenset({"log"}),
    "consumers": frozenset({"log"}),
    "bookies": frozenset({"bookie", "state"}),
    **topic_inspection.NEVER_NULL,
}
"""The columns that each row of a table has, also that of an object that cannot be read."""


def schema_of_view(view: str) -> StructType:
    """Return the columns of a table about the cluster."""
    return from_arrow_schema(SCHEMAS[view])


class ViewPartition(InputPartition):
    """Rows of a view, as an Arrow IPC stream."""

    def __init__(self, rows: bytes) -> None:
        super().__init__(None)
        self.rows = rows


class ViewReader(DataSourceReader):
    """Reads a table about the cluster, as of the time when the read was planned.

    Raises:
        ConfigurationError: the given schema has a column that the view lacks, or declares a nullable one NOT NULL.
    """

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        options.for_batch_read()
        check_columns(schema)
        self._options = options
        self._view = options.inspect or ""
        self._schema = arrow_schema(schema)
        offered = schema_of_view(self._view)
        types = {field.name: field.dataType for field in offered}
        for field in schema:
            is_known = field.name.lower() in types.keys() - NEVER_NULL[self._view]
            if is_known and not field.nullable:
                raise ConfigurationError(
                    f"column '{field.name}' of the view '{self._view}' is null where the value is not known: leave out "
                    "NOT NULL"
                )
            if types.get(field.name.lower()) != field.dataType:
                raise ConfigurationError(
                    f"column '{field.name} {field.dataType.simpleString()}' is not in the view '{self._view}', which "
                    f"has {', '.join(f'{each.name} {each.dataType.simpleString()}' for each in offered)}"
                )

    def partitions(self) -> list[InputPartition]:
        """Return the view's rows, ROWS_PER_PARTITION a task. Raises MetadataError if the cluster cannot be reached."""
        client = connect(self._options).asynchronous
        of_topics = topic_inspection.VIEWS.get(self._view)
        # A missing ledger of one topic must not prevent the table of all others.
        options = replace(self._options, fail_on_data_loss=False)
        planner = None if of_topics is None else TopicPlanner(options)

        async def look() -> list[InputPartition]:
            pieces: list[InputPartition] = []
            rows: list[Row] = []
            found = _VIEWS[self._view](client) if of_topics is None or planner is None else of_topics(planner)
            async for row in found:
                rows.append(row)
                if len(rows) == ROWS_PER_PARTITION:
                    pieces.append(self._partition(rows))
                    rows = []
            return [*pieces, self._partition(rows)] if rows else pieces

        return run(look)

    def _partition(self, rows: list[Row]) -> ViewPartition:
        schema = SCHEMAS[self._view]
        batch = pa.RecordBatch.from_pylist(rows, schema).select([name.lower() for name in self._schema.names])
        # Named, and NOT NULL, as the user wrote it: Spark takes no other.
        batch = batch.rename_columns(self._schema.names).cast(self._schema) if len(self._schema) else batch
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return ViewPartition(sink.getvalue().to_pybytes())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; the partition is None if there are no rows."""
        if isinstance(partition, ViewPartition):
            with pa.ipc.open_stream(partition.rows) as stream:
                yield from stream


async def _ledgers(client: Client) -> AsyncIterator[Row]:
    async for ledger_id, stored in every_ledger(client):
        if isinstance(stored, BookKeeperError):
            yield {"ledger_id": ledger_id, "error": str(stored)}
            continue
        metadata = stored.metadata
        yield {
            "ledger_id": ledger_id,
            "state": metadata.state.name,
            "ensemble_size": metadata.ensemble_size,
            "write_quorum": metadata.write_quorum,
            "ack_quorum": metadata.ack_quorum,
            "digest": metadata.digest.name.lower(),
            "last_entry": metadata.last_entry if metadata.is_closed else None,
            "length": metadata.length if metadata.is_closed else None,
            "fragments": len(metadata.fragments),
            "created": LedgerTimes.of(stored).created_ms * 1000,
            "changed": stored.mtime_ms * 1000,
            "custom_metadata": sorted(metadata.custom_metadata.items()),
        }


async def _fragments(client: Client) -> AsyncIterator[Row]:
    async for ledger_id, stored in every_ledger(client):
        if isinstance(stored, BookKeeperError):
            yield {"ledger_id": ledger_id, "error": str(stored)}
            continue
        metadata = stored.metadata
        for fragment, last_entry in zip(metadata.fragments, _last_entries(metadata)):
            yield {
                "ledger_id": ledger_id,
                "first_entry": fragment.first_entry,
                "last_entry": last_entry,
                "bookies": list(fragment.bookies),
            }


def _last_entries(metadata: LedgerMetadata) -> list[int | None]:
    ends: list[int | None] = [fragment.first_entry - 1 for fragment in metadata.fragments[1:]]
    return [*ends, metadata.last_entry if metadata.is_closed else None]


async def _logs(client: Client) -> AsyncIterator[Row]:
    async for name, found in own_logs(client):
        if isinstance(found, BookKeeperError):
            yield {"log": name, "error": str(found)}
            continue
        try:
            schemas = await _schemas(found)
        except DataLoss:  # deleted, or overwritten, since it was listed
            continue
        except (MetadataFormat, MetadataAccessDenied) as error:
            schemas = {"error": str(error)}
        head = found.head
        yield {
            "log": name,
            "log_id": head.log_id,
            "ledgers": len(found),
            "open_ledgers": len(found.open_ordinals),
            "start": str(found.start),
            "version": found.version,
            "published": [publisher._asdict() for publisher in found.publishers],
            **schemas,
            "retention_ms": head.retention.age_ms,
            "retention_bytes": head.retention.bytes,
            "first_append": None if head.times.first is None else head.times.first.ms * 1000,
            "last_append": None if head.times.last is None else head.times.last.ms * 1000,
        }


async def _schemas(snapshot: LogSnapshot) -> Row:
    """Return the columns about a log's schemas. Raises DataLoss, MetadataFormat, MetadataAccessDenied."""
    schemas = [(ref, await snapshot.schema(ref)) for ref in snapshot.schemas]
    newest = schemas[-1][1] if schemas else None
    return {
        "payload_format": None if newest is None else newest.payload_format,
        "schema": None if newest is None else columns_text(schema_of_text(newest.schema, snapshot.name)),
        "schemas": [
            {
                "number": ref.number,
                "first_ordinal": ref.first_ordinal,
                "format": stored.payload_format,
                "schema": stored.schema,
            }
            for ref, stored in schemas
        ],
    }


async def _consumers(client: Client) -> AsyncIterator[Row]:
    async for name, snapshot in own_logs(client):
        if isinstance(snapshot, BookKeeperError):
            yield {"log": name, "error": str(snapshot)}
            continue
        try:
            found = await Log(client, name).consumers()
        except (NoSuchLog, DataLoss):  # deleted, or truncated, since it was listed
            continue
        except BookKeeperError as error:
            if is_of_the_store(error):
                raise
            yield {"log": name, "error": str(error)}
            continue
        for each in found:
            yield {
                "log": name,
                "consumer": each.name,
                "position": None if each.position is None else str(each.position),
                "entries_behind": each.entries_behind,
                "bytes_behind": each.bytes_behind,
                "expires": each.expires,
                "is_expired": each.is_expired,
                "error": each.error,
            }


async def _bookies(client: Client) -> AsyncIterator[Row]:
    registry = (await client.context()).registry
    addresses = await registry.read_only() | await registry.writable()
    for bookie, state in (await registry.states()).items():
        address = addresses.get(bookie)
        yield {
            "bookie": bookie,
            "state": state,
            "address": None if address is None else f"{address.host}:{address.port}",
        }


_VIEWS: dict[str, Callable[[Client], AsyncIterator[Row]]] = {
    "ledgers": _ledgers,
    "fragments": _fragments,
    "logs": _logs,
    "consumers": _consumers,
    "bookies": _bookies,
}
