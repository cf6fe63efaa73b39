"""Every Spark type through every payload format, as the table of docs/types.md.

    python -m tests.spark.type_matrix > docs/types.md      # starts a cluster and a Spark session of its own

What the table says was seen: each type is written, read with its schema and compared, and read without a schema.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import pyspark.sql.types
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from bkspark.errors import ConfigurationError
from bkspark.spark.columns import arrow_schema, inferred_columns
from bkspark.spark.formats.registry import columns_of, encoder_of
from bkspark.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Table

_OPTIONS = SourceOptions("zk://127.0.0.1:2181/ledgers", log="types")
FORMATS = ("arrow", "json", "msgpack")
VALUES = {
    "boolean": ("true", "false"),
    "tinyint": ("cast(-128 as tinyint)", "cast(127 as tinyint)"),
    "smallint": ("cast(-32768 as smallint)", "cast(32767 as smallint)"),
    "int": ("cast(-2147483648 as int)", "2147483647"),
    "bigint": ("cast(-9223372036854775808 as bigint)", "9223372036854775807L"),
    "float": ("cast('NaN' as float)", "cast(0.1 as float)"),
    "double": ("cast('-Infinity' as double)", "double(5e-324)"),
    "decimal(38,18)": ("12345678901234567890.123456789012345678BD", "cast(0 as decimal(38,18))"),
    "string": ("'Ω \"\\n'", "''"),
    "binary": ("x'00ff80'", "x''"),
    "date": ("date'0001-01-01'", "date'9999-12-31'"),
    "timestamp": ("timestamp'2026-11-01 05:30:00.000089Z'", "timestamp'1900-01-01 00:00:00Z'"),
    "timestamp_ntz": ("timestamp_ntz'1582-10-15 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"),
    "time(6)": ("time'00:00:00'", "time'23:59:59.999999'"),
    "interval day to second": ("interval '-5 00:00:00.000001' day to second", "interval '0 00:00:00' day to second"),
    "interval year to month": ("interval '1-2' year to month", "interval '0-0' year to month"),
    "array<int>": ("array(1, null, 3)", "cast(array() as array<int>)"),
    "map<string,double>": ("map('a', 1.5D, 'b', null)", "cast(map() as map<string,double>)"),
    "map<int,date>": ("map(1, date'2026-01-02', 2, null)", "cast(map() as map<int,date>)"),
    "struct<x:decimal(4,1),y:timestamp,z:struct<w:binary>>": (
        "named_struct('x', 1.5BD, 'y', timestamp'2026-11-01 06:30:00Z', 'z', named_struct('w', x'00'))",
        "named_struct('x', null, 'y', null, 'z', null)",
    ),
    "array<struct<m:map<string,array<timestamp_ntz>>>>": (
        "array(named_struct('m', map('k', array(timestamp_ntz'2026-11-01 01:30:00', null))), null)",
        "array()",
    ),
    "variant": ("parse_json('[1, null]')", "parse_json('null')"),
    "void": ("null", "null"),
}
"""Two values of each type, as SQL; a null is added to both."""
NEWER = frozenset() if hasattr(pyspark.sql.types, "TimeType") else frozenset({"time(6)"})
"""Types that this Spark does not have."""

HEAD = """# Spark's types in payload formats

Made by the tests (`python -m tests.spark.type_matrix > docs/types.md`), which fail where it is not what they see. Each
type is written with edge values, null, and, where it nests, empty and null inside, and is read again: with the schema
of what was written, and without a schema. *Same* means: type and values, to the last microsecond and digit.

`raw` holds one column, `value`, of type binary or string: the same comes back, and without a schema binary. A null is
refused. `bkspark/spark/formats/values.py` specifies how `json` and `msgpack` write each type; an entry of `arrow` is
an Arrow IPC stream. A type that is refused is refused when the write is planned, and the message names the column.
Spark has `time` since 4.1, with `spark.sql.timeType.enabled`.

"""


class Columns:
    """The types that one format takes, as one column each, and what became of them."""

    def __init__(self, spark: SparkSession, payload_format: str) -> None:
        self.format = payload_format
        self.refused: dict[str, str] = {}
        self.types: list[str] = []
        for kind in (kind for kind in VALUES if kind not in NEWER):
            reason = _refusal(spark, kind, payload_format)
            if reason is None:
                self.types.append(kind)
            else:
                self.refused[kind] = reason
        self.same: dict[str, bool] = {}
        self.inferred: dict[str, str] = {}

    def frame(self, spark: SparkSession) -> DataFrame:
        """Three rows: the two values of each type, and nulls."""
        rows = [[VALUES[kind][i] if i < 2 else "null" for kind in self.types] for i in range(3)]
        select = " union all ".join(
            "select "
            + ", ".join(f"cast({value} as {kind}) as c{i}" for i, (value, kind) in enumerate(self._pairs(row)))
            for row in rows
        )
        return spark.sql(select).coalesce(1)

    def _pairs(self, row: list[str]) -> list[tuple[str, str]]:
        return list(zip(row, self.types))

    def go_round(self, spark: SparkSession, table: Table) -> None:
        """Write them, read them, and note what came back."""
        frame = self.frame(spark)
        written = frame.collect()
        table.write(frame, "overwrite", payloadFormat=self.format, overwriteSchema="true")
        read = table.read(frame.schema, payloadFormat=self.format)
        found = read.collect()
        payloads = [bytes(row.value) for row in table.read("value binary").collect()]
        for i, kind in enumerate(self.types):
            # As text: nan is not equal to itself.
            values = repr([row[i] for row in found]) == repr([row[i] for row in written])
            self.same[kind] = values and read.schema[i] == frame.schema[i]
            self.inferred[kind] = self._inferred(payloads, f"c{i}")

    def _inferred(self, payloads: list[bytes], name: str) -> str | None:
        """Return the type that a column gets without schema, had it stood alone; None where it needs one."""
        if self.format == "json":
            payloads = [json.dumps({name: json.loads(payload)[name]}).encode() for payload in payloads]
        elif self.format == "msgpack":
            rows = [msgpack.unpackb(payload, timestamp=3, strict_map_key=False) for payload in payloads]
            payloads = [msgpack.packb({name: row[name]}, datetime=True) for row in rows]
        try:
            found = inferred_columns(columns_of(self.format, payloads))
        except ValueError:
            return None
        return found[name].dataType.simpleString()

    def cell(self, kind: str) -> str:
        if kind in self.refused:
            return "refused"
        shown = "same" if self.same[kind] else "**another**"
        inferred = self.inferred[kind]
        alone = "needs one" if inferred is None else "same" if inferred == kind else f"`{inferred}`"
        return f"{shown}; without schema {alone}"


def _refusal(spark: SparkSession, kind: str, payload_format: str) -> str | None:
    try:
        schema = spark.sql(f"select cast({VALUES[kind][0]} as {kind}) as c").schema
        encoder_of(payload_format, arrow_schema(StructType(schema.fields)), 1 << 20, 4 << 20)
    except (ConfigurationError, PySparkException) as error:
        return str(error)
    return None


def page(spark: SparkSession, table: Table) -> tuple[str, list[Columns]]:
    """Return the text of docs/types.md, and what it was made of."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    every = [Columns(spark, payload_format) for payload_format in FORMATS]
    for columns in every:
        columns.go_round(spark, table)
    lines = [f"| Spark type | {' | '.join(f'`{name}`' for name in FORMATS)} |", f"|{'---|' * (len(FORMATS) + 1)}"]
    known = [kind for kind in VALUES if kind not in NEWER]
    lines += [f"| `{kind}` | {' | '.join(columns.cell(kind) for columns in every)} |" for kind in known]
    return HEAD + "\n".join(lines) + "\n", every


def main() -> None:
    from tests.cluster import Cluster
    from tests.spark.conftest import Table, session

    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder) / "cluster") as cluster:
        spark = session(Path(folder))
        try:
            sys.stdout.write(page(spark, Table(spark, cluster.uri, "types"))[0])
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
