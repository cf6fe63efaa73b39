"""Random histories of a log's columns: whatever is added, widened, left out or has another case, all rows are read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from bkspark.entries import EntryBatch
from bkspark.errors import SchemaMismatch
from bkspark.spark.columns import arrow_schema
from bkspark.spark.evolution import Append, schema_of_text, schema_text
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.registry import decoder_of, encoder_of
from tests.spark.evolving import Author, same

HISTORIES = 150


class History:
    """A log in memory, to which columns and rows come: `rows` is what a read must return."""

    def __init__(self, payload_format: str, first: t.StructType) -> None:
        self.columns = self._entry_columns = first
        self.rows: list[dict[str, Any]] = []
        self.refused = 0
        self._format = payload_format
        self._entries: list[EntryBatch] = []

    def takes(self, rows: t.StructType) -> bool:
        """Whether rows with these columns may be appended with mergeSchema; if so, `append` adds such rows."""
        try:
            append = Append("log", self._format, self.columns, rows, merge=True)
        except SchemaMismatch:
            self.refused += 1
            return False
        self.columns = schema_of_text(schema_text(append.columns), "log")
        self._entry_columns = append.entries
        return True

    def append(self, author: Author) -> None:
        schema = arrow_schema(self._entry_columns)
        rows = [author.row(self._entry_columns) for _ in range(author.chance.randint(1, 4))]
        batch = pa.RecordBatch.from_pylist(rows, schema)
        self._entries += encoder_of(self._format, schema, 1 << 20, 4 << 20).encode(batch)
        self.rows += batch.to_pylist()

    def read(self) -> list[dict[str, Any]]:
        schema = arrow_schema(self.columns)
        decoder = decoder_of(self._format, schema, MalformedMode.FAILFAST, is_whole=True)
        found = []
        for entries in self._entries:
            for rows in decoder.decode(entries):
                found += pa.RecordBatch.from_arrays(rows.columns, schema=schema).to_pylist()
        return found


@pytest.mark.parametrize("payload_format", ["arrow", "json", "msgpack"])
def test_all_rows_are_read_back_after_any_history_of_columns(payload_format: str) -> None:
    taken = refused = 0
    for seed in range(HISTORIES):
        author = Author(seed)
        history = History(payload_format, author.first_columns())
        history.append(author)
        for _ in range(author.chance.randint(1, 4)):
            if history.takes(author.later_columns(history.columns)):
                taken += 1
                history.append(author)
        refused += history.refused
        assert same(history.read()) == same(history.rows), f"seed {seed}: {history.columns.simpleString()}"
    assert taken > HISTORIES / 2
    assert refused > HISTORIES / 2


@pytest.mark.parametrize("merge", [False, True])
def test_key_of_a_map_that_lacks_a_required_member_is_refused(merge: bool) -> None:
    """Its entries would have a null that the log does not allow, and no read would take them."""
    key = t.StructType([t.StructField("p", t.IntegerType(), False), t.StructField("q", t.IntegerType())])
    present = t.StructType([t.StructField("m", t.MapType(key, t.IntegerType()))])
    rows = t.StructType([t.StructField("m", t.MapType(t.StructType(key.fields[1:]), t.IntegerType()))])
    with pytest.raises(SchemaMismatch, match="column 'm' lacks 'p', which is NOT NULL in log x"):
        Append("x", "arrow", present, rows, merge=merge)


def test_columns_that_are_one_in_the_log_are_named() -> None:
    present = t.StructType([t.StructField("a", t.IntegerType())])
    rows = t.StructType([t.StructField(name, t.IntegerType()) for name in ("a", "A")])
    with pytest.raises(SchemaMismatch, match="'a' and 'A' of the data are both column 'a' of log x: rename one"):
        Append("x", "arrow", present, rows, merge=True)
