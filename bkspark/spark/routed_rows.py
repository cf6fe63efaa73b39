"""Rows that name their log: the column, its checks, and rows grouped by log."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructType

from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.ids import LOG_NAME_RULE, NAME_LENGTH_MAX, is_log_name

LOG_COLUMN = "log"
"""The column that names the log of a row, in any case."""


def log_column(schema: StructType) -> str:
    """Return the name of the column that routes the rows of a write without option log.

    Raises:
        ConfigurationError: there is none, there are several, or it is not text; or the rows have no other column.
    """
    found = [column for column in schema if column.name.lower() == LOG_COLUMN]
    if not found:
        raise ConfigurationError(
            "option 'log' is missing, and no column 'log' names the log of each row: give option 'log', or that column"
        )
    if len(found) > 1:
        raise ConfigurationError(
            f"columns {', '.join(repr(column.name) for column in found)} could all name a row's log: rename all but one"
        )
    if not isinstance(found[0].dataType, StringType):
        raise ConfigurationError(
            f"column '{found[0].name}' is {found[0].dataType.simpleString()}, and the name of a row's log is a string: "
            "cast it, or set option 'log' to write all rows to one log, with this column as data"
        )
    if len(schema) == 1:
        raise ConfigurationError(
            f"the data has only column '{found[0].name}', which names the log of each row and is not written: select "
            "at least one more"
        )
    return found[0].name


def without(schema: StructType, name: str) -> StructType:
    """Return the columns that are written: all except the one that names the log."""
    return StructType([column for column in schema if column.name != name])


def by_log(batches: list[pa.RecordBatch], column: int) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each log, without the column that names it, in the order in which they came.

    Raises:
        MalformedPayload: a row names no log, or one that cannot exist.
    """
    table = pa.Table.from_batches(batches).combine_chunks()
    rows = table.remove_column(column)
    if not len(rows):
        return
    encoded = pc.dictionary_encode(table.column(column)).combine_chunks()
    # Spark's strings may hold any bytes. Those that are not UTF-8 get a backslash, which no name has.
    texts = [name.decode("utf-8", "backslashreplace") for name in encoded.dictionary.cast(pa.binary()).to_pylist()]
    names = _checked(texts, encoded.null_count)
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    if len(names) > 1:
        rows = rows.take(pa.array(order))
    (whole,) = rows.combine_chunks().to_batches() or [None]
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    for name, start, end in zip(names, [0, *ends], ends):
        yield name, whole.slice(start, end - start)


def _checked(names: list[str], nulls: int) -> list[str]:
    if nulls:
        raise MalformedPayload(
            f"{nulls} rows have null in column 'log', and a row without a log would be lost: filter them out, or give "
            "them a log (coalesce)"
        )
    for name in names:
        if not is_log_name(name):
            raise MalformedPayload(
                f"column 'log' names {name[: NAME_LENGTH_MAX + 1]!r}, which is not a valid log name ({LOG_NAME_RULE}): "
                "nothing of this write is published; correct the column"
            )
    return names
