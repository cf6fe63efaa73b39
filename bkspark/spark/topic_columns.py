"""Columns of a read of Pulsar's topics: the payload's, by the topic's schema, and those that describe a message.

    value              binary              the payload, where the topic has no schema of a record; else its fields
    key, value         of the schema       of KEY_VALUE
    __key              binary              the message's key
    __topic            string              the topic, or its partition
    __messageId        binary              as Java's MessageId.toByteArray
    __publishTime      timestamp           by the producer's clock
    __eventTime        timestamp           what the producer set, or null
    __messageProperties map<string,string>

With includeMetadata, or named in the schema given to Spark: __partition, __ledgerId, __entryId, __batchIndex,
__sequenceId, __producerName, __orderingKey, __schemaVersion, __index, __brokerTime, __replicatedFrom, __deliverAt,
__txnId and __encryption. Columns that are not in the schema are not built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from bkspark.errors import ConfigurationError
from bkspark.pulsar import entries as entry_fields
from bkspark.pulsar import message_columns as columns
from bkspark.pulsar import messages as single_fields
from bkspark.pulsar.entries import Entries, MalformedEntry
from bkspark.pulsar.malformed import MalformedValues
from bkspark.pulsar.messages import Messages
from bkspark.pulsar.schemas import RAW, Schema
from bkspark.pulsar.slices import text_array
from bkspark.spark.formats import decimal_casts
from bkspark.spark.formats.nested import without_hidden

VALUE = "value"
_TIME = pa.timestamp("us", "UTC")
ALWAYS: dict[str, pa.DataType] = {
    "__key": pa.binary(),
    "__topic": pa.string(),
    "__messageId": pa.binary(),
    "__publishTime": _TIME,
    "__eventTime": _TIME,
    "__messageProperties": columns.PROPERTIES,
}
ON_DEMAND: dict[str, pa.DataType] = {
    "__partition": pa.int32(),
    "__ledgerId": pa.int64(),
    "__entryId": pa.int64(),
    "__batchIndex": pa.int32(),
    "__sequenceId": pa.int64(),
    "__producerName": pa.string(),
    "__orderingKey": pa.binary(),
    "__schemaVersion": pa.int64(),
    "__index": pa.int64(),
    "__brokerTime": _TIME,
    "__replicatedFrom": pa.string(),
    "__deliverAt": _TIME,
    "__txnId": pa.string(),
    "__encryption": columns.ENCRYPTION,
}
DESCRIBING = {name.lower(): (name, kind) for name, kind in (ALWAYS | ON_DEMAND).items()}
"""Columns that describe a message, by lower-cased name."""
FROM_ENTRIES = frozenset(
    [
        "__topic",
        "__messageid",
        "__publishtime",
        "__partition",
        "__ledgerid",
        "__entryid",
        "__batchindex",
        "__producername",
        "__schemaversion",
        "__index",
        "__brokertime",
        "__replicatedfrom",
        "__deliverat",
        "__txnid",
    ]
)
"""The describing columns that can be built without decompressing payloads."""


@dataclass(frozen=True, slots=True)
class RequestedColumns:
    """The columns that Spark asked for, by index in `schema`.

    describing: the lower-case name of what a column says of a message. corrupt: the column for malformed entries; -1 if
    there is none. payload: the columns that come from the values of messages.
    """

    schema: pa.Schema
    describing: Mapping[int, str]
    corrupt: int
    payload: Sequence[int]

    @property
    def need_values(self) -> bool:
        """Whether a column needs the values of messages."""
        return bool(self.payload) or self.corrupt >= 0

    @property
    def are_of_entries(self) -> bool:
        """Whether all columns come from entries as a whole, so that no message is looked at."""
        return not self.need_values and set(self.describing.values()) <= FROM_ENTRIES


def payload_type(schema: Schema | None) -> pa.DataType:
    """Return the payload's columns as a struct, of the topic's newest schema.

    Raises:
        ConfigurationError: Spark has no type for it, or a field has the name of a describing column.
    """
    schema = schema or RAW
    found = schema.arrow_type()
    if not pa.types.is_struct(found):
        return pa.struct({VALUE: found})
    for place in range(found.num_fields):
        name = found.field(place).name
        if name.lower() in DESCRIBING:
            raise ConfigurationError(
                f"the topic's schema has a field '{name}', which is the name of a column that describes messages: read "
                "the bytes with valueFormat=raw, or name other columns by .schema()"
            )
    return found


def topic_schema(schema: Schema | None, *, include_metadata: bool) -> StructType:
    """Return the columns of a topic. Raises as `payload_type`."""
    payload = payload_type(schema)
    fields = [payload.field(place) for place in range(payload.num_fields)]
    describing = ALWAYS | ON_DEMAND if include_metadata else ALWAYS
    return StructType(
        [StructField(each.name, _spark_type(each)) for each in fields]
        + [StructField(name, from_arrow_type(kind)) for name, kind in describing.items()]
    )


def _spark_type(column: pa.Field) -> DataType:
    try:
        return from_arrow_type(column.type, prefer_timestamp_ntz=True)
    except Exception as error:  # pyspark's error types differ between its versions
        raise ConfigurationError(
            f"field '{column.name}' of the topic's schema is {column.type}, which Spark has no type for ({error}): "
            "read the bytes with valueFormat=raw"
        ) from None


def check_describing(name: str, kind: pa.DataType) -> None:
    """Raise ConfigurationError if a describing column was requested with another type."""
    wanted = DESCRIBING[name.lower()][1]
    is_same_map = pa.types.is_map(kind) and pa.types.is_map(wanted) and _of_map(kind) == _of_map(wanted)
    if kind != wanted and not is_same_map:
        shown = from_arrow_type(wanted).simpleString()
        raise ConfigurationError(f"column '{name}' is {shown}, but the schema says {kind}: correct it")


def _of_map(kind: pa.MapType) -> tuple[pa.DataType, pa.DataType]:
    """Return the types of keys and values; maps are unequal if the names of their fields differ."""
    return kind.key_type, kind.item_type


def converted(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, np.ndarray, str]:
    """Return a column in another type, which of its values do not fit, and why the first of these does not.

    Values that do not fit become null. The reason is empty if all fit.

    Raises:
        pa.ArrowException: no value of the one type has the other.
    """
    try:
        return of_type(column, kind), np.zeros(len(column), bool), ""
    except pa.ArrowInvalid:
        return _converted_in_parts(column, kind)


def _converted_in_parts(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, np.ndarray, str]:
    """As `converted`, for a column that cannot be converted as it is."""
    column = without_hidden(column)  # Arrow converts these, too
    try:
        return of_type(column, kind), np.zeros(len(column), bool), ""
    except pa.ArrowInvalid as error:
        if column.null_count == len(column):
            raise  # a null has every type that values of this one can have
        if len(column) == 1:
            return pa.nulls(1, kind), np.ones(1, bool), str(error)
    middle = len(column) // 2
    (first, is_first_wrong, reason), (second, is_second_wrong, other) = (
        _converted_in_parts(half, kind) for half in (column[:middle], column[middle:])
    )
    return pa.concat_arrays([first, second]), np.concatenate([is_first_wrong, is_second_wrong]), reason or other


def of_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else decimal_casts.converted(column, kind)


def describing_column(name: str, messages: Messages, topic: str, partition: int) -> pa.Array:
    """Return a column that describes messages, by its lower-cased name.

    Raises:
        MalformedEntry, ValueError: what is stored cannot be such a column.
    """
    count = len(messages)
    if name == "__topic":
        return pa.repeat(pa.scalar(topic), count)
    if name == "__partition":
        return pa.repeat(pa.scalar(partition if partition >= 0 else None, pa.int32()), count)
    if name == "__messageid":
        return columns.message_ids(messages, partition)
    return of_messages(_COLUMNS[name], messages)


def of_messages(column: Callable[[Messages], pa.Array], messages: Messages) -> pa.Array:
    """Return a column of messages. Raises MalformedEntry for the entries whose messages have malformed values of it."""
    try:
        return column(messages)
    except MalformedValues as error:
        raise MalformedEntry(np.unique(messages.entry[error.rows]), str(error)) from None


def _of_entry(number: int) -> Callable[[Messages], pa.Array]:
    return lambda messages: text_array(columns.spans(messages, number, None), "metadata")


def _batch_index(messages: Messages) -> pa.Array:
    return pa.array(messages.batch_index.astype(np.int32), mask=messages.batch_index < 0)


def _nullable(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers, pa.int64(), mask=numbers < 0)


def _entry_times(values: Callable[[Entries], np.ndarray], messages: Messages) -> pa.Array:
    found = values(messages.entries)[messages.entry]
    return columns.times(np.maximum(found, 0), found > 0)


_COLUMNS: dict[str, Callable[[Messages], pa.Array]] = {
    "__key": columns.keys,
    "__publishtime": lambda messages: columns.times(columns.publish_times(messages)),
    "__eventtime": columns.event_times,
    "__messageproperties": columns.properties,
    "__ledgerid": lambda messages: pa.array(messages.entries.ledger_ids[messages.entry]),
    "__entryid": lambda messages: pa.array(messages.entries.entry_ids[messages.entry]),
    "__batchindex": _batch_index,
    "__sequenceid": lambda messages: pa.array(messages.sequence_ids),
    "__producername": _of_entry(entry_fields.PRODUCER),
    "__orderingkey": lambda messages: columns.spans(messages, entry_fields.ORDERING_KEY, single_fields.ORDERING_KEY),
    "__schemaversion": lambda messages: _nullable(columns.schema_versions(messages)),
    "__index": lambda messages: _nullable(messages.indexes),
    "__brokertime": lambda messages: _entry_times(lambda entries: entries.broker_times, messages),
    "__replicatedfrom": _of_entry(entry_fields.REPLICATED_FROM),
    "__deliverat": lambda messages: _entry_times(
        lambda entries: entries.metadata.value(entry_fields.DELIVER_AT), messages
    ),
    "__txnid": columns.transactions,
    "__encryption": columns.encryptions,
}


def target_of(schemas: Mapping[int, Schema], wanted: pa.StructType) -> Schema:
    """Return the schema to whose columns the values are decoded: the newest version, or if it lacks one of the columns
    or of their fields, the newest version of its type that has them all. A stream has the columns with which it began,
    which a later version may lack."""
    newest = schemas[max(schemas)] if schemas else RAW
    all_paths = _lowered(paths_of(wanted))
    for paths in (all_paths, {path for path in all_paths if len(path) == 1}):
        for version in sorted(schemas, reverse=True):
            if schemas[version].kind == newest.kind and paths <= _columns_of(schemas[version]):
                return schemas[version]
    return newest


def _columns_of(schema: Schema) -> set[tuple[str, ...]]:
    """Return the paths of a schema's columns and of their fields, in lower case; none if it cannot be used."""
    try:
        return _lowered(paths_of(payload_type(schema)))
    except ConfigurationError:
        return set()


def _lowered(paths: Set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    return {tuple(map(str.lower, path)) for path in paths}


def paths_of(kind: pa.DataType) -> set[tuple[str, ...]]:
    """Return the paths of all fields in a type."""
    if pa.types.is_list(kind):
        return paths_of(kind.value_type)
    if pa.types.is_map(kind):
        return paths_of(kind.item_type)
    found: set[tuple[str, ...]] = set()
    for field in kind if pa.types.is_struct(kind) else ():
        found |= {(field.name,), *((field.name, *path) for path in paths_of(field.type))}
    return found
