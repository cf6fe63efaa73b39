"""Rules by which columns of logs and of rows are matched, where random histories rarely meet the case."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from bkspark.errors import SchemaMismatch
from bkspark.spark.evolution import Append, Finder, completed, merged, widened

INT, LONG, TEXT = t.IntegerType(), t.LongType(), t.StringType()


def struct(*members: tuple[str, t.DataType, bool]) -> t.StructType:
    return t.StructType([t.StructField(name, kind, nullable) for name, kind, nullable in members])


def test_member_that_one_of_two_structs_lacks_may_be_null_in_both() -> None:
    """docs/spark.md: entries that lack a named column have null there."""
    found = widened(struct(("a", INT, False), ("b", TEXT, True)), struct(("b", TEXT, True)))
    assert found == struct(("a", INT, True), ("b", TEXT, True))
    logs = [struct(("s", struct(("a", INT, False)), False)), struct(("s", struct(("b", TEXT, False)), False))]
    assert merged(logs, ["log x", "log y"]) == struct(("s", struct(("a", INT, True), ("b", TEXT, True)), False))


@pytest.mark.parametrize(
    ("present", "added", "after"),
    [
        pytest.param(
            struct(("a", INT, False)),
            struct(("a", LONG, True), ("b", TEXT, False)),
            struct(("a", LONG, False), ("b", TEXT, True)),
            id="struct",
        ),
        pytest.param(t.ArrayType(INT, False), t.ArrayType(LONG, True), t.ArrayType(LONG, False), id="array"),
        pytest.param(t.MapType(TEXT, INT, False), t.MapType(TEXT, LONG), t.MapType(TEXT, LONG, False), id="map"),
    ],
)
def test_widening_keeps_not_null_within_a_column(present: t.DataType, added: t.DataType, after: t.DataType) -> None:
    """docs/spark.md: "After the first write, only overwriteSchema removes NOT NULL"."""
    append = Append("log", "arrow", struct(("c", present, True)), struct(("c", added, True)), merge=True)
    assert append.columns == struct(("c", after, True))


def test_column_is_not_guessed_where_several_differ_from_its_name_in_case_alone() -> None:
    columns = struct(("aB", INT, True), ("Ab", INT, True), ("c", INT, True))
    finder = Finder(columns)
    assert [finder.find(name) for name in ("aB", "AB", "C", "d")] == [columns["aB"], None, columns["c"], None]
    with pytest.raises(SchemaMismatch, match=r"column 'AB int' is not in log log, which has aB, Ab, c"):
        Append("log", "arrow", columns, struct(("AB", INT, True)), merge=False)


def test_member_that_differs_in_case_alone_from_one_of_the_rows_is_not_added_to_them() -> None:
    """A struct whose members differ in case alone is ambiguous in Spark."""
    rows = struct(("s", struct(("A", INT, True)), True))
    found = struct(("s", struct(("a", LONG, True), ("b", TEXT, True)), True))
    assert completed(rows, found) == struct(("s", struct(("A", INT, True), ("b", TEXT, True)), True))
