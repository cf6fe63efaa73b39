"""What an append, or a read of several logs, keeps of columns: comments, metadata, NOT NULL at every depth."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from bkspark.errors import SchemaMismatch
from bkspark.spark.evolution import Append, merged, widened

INT, LONG, TEXT = t.IntegerType(), t.LongType(), t.StringType()


def column(name: str, kind: t.DataType, *, nullable: bool = True, comment: str | None = None) -> t.StructField:
    return t.StructField(name, kind, nullable, None if comment is None else {"comment": comment, "unit": "mm"})


def struct(*members: t.StructField) -> t.StructType:
    return t.StructType(list(members))


def append(present: t.StructType, added: t.StructType, *, merge: bool = False) -> Append:
    return Append("clicks", "arrow", present, added, merge=merge)


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        (column("a", INT, comment="first"), column("a", INT, comment="second"), "first"),
        (column("a", INT, comment="first"), column("a", LONG), "first"),
        (column("b", INT), column("a", INT, comment="second"), "second"),
    ],
)
def test_columns_of_several_logs_keep_the_first_comment(one: t.StructField, other: t.StructField, kept: str) -> None:
    found = merged([struct(one), struct(other)], ["log one", "log other"])
    assert found["a"].metadata == {"comment": kept, "unit": "mm"}


def test_column_that_only_the_first_of_several_logs_has_keeps_its_comment_and_may_be_null() -> None:
    one = struct(column("a", INT, nullable=False, comment="first"), column("b", INT, nullable=False))
    found = merged([one, struct(column("b", INT, nullable=False))], ["log one", "log other"])
    assert found == struct(column("a", INT, comment="first"), column("b", INT, nullable=False))


def test_column_that_one_of_several_logs_lets_be_null_may_be_null() -> None:
    required, optional = struct(column("a", INT, nullable=False)), struct(column("a", INT))
    for logs in ([required, optional], [optional, required]):
        assert merged(logs, ["log one", "log other"]) == optional


def test_added_columns_and_members_may_be_null_and_keep_their_comments() -> None:
    member = column("new", INT, nullable=False, comment="of a member")
    present = struct(column("s", struct(column("old", INT, nullable=False, comment="old")), comment="of a struct"))
    rows = struct(
        column("s", struct(column("old", INT, nullable=False), member)),
        column("more", TEXT, nullable=False, comment="of a column"),
    )
    changed = append(present, rows, merge=True)
    inside = struct(
        column("old", INT, nullable=False, comment="old"), column("new", INT, nullable=True, comment="of a member")
    )
    assert changed.columns == struct(
        column("s", inside, comment="of a struct"), column("more", TEXT, comment="of a column")
    )
    # What these rows have must be there in each of them.
    assert not changed.entries["more"].nullable


@pytest.mark.parametrize("kind", [INT, LONG])
def test_column_keeps_its_comment_and_not_null_whatever_an_append_brings(kind: t.DataType) -> None:
    present = struct(column("a", INT, nullable=False, comment="kept"))
    changed = append(present, struct(column("A", kind, comment="other")), merge=True)
    assert changed.columns == struct(column("a", kind, nullable=False, comment="kept"))
    assert changed.entries == struct(column("a", kind, nullable=False))


REQUIRED = struct(column("m", INT, nullable=False))
OPTIONAL = struct(column("m", INT))


@pytest.mark.parametrize(
    ("required", "optional"),
    [
        (t.ArrayType(INT, False), t.ArrayType(INT, True)),
        (t.MapType(TEXT, INT, False), t.MapType(TEXT, INT, True)),
        (REQUIRED, OPTIONAL),
        (t.ArrayType(REQUIRED), t.ArrayType(OPTIONAL)),
        (t.MapType(TEXT, REQUIRED), t.MapType(TEXT, OPTIONAL)),
        (t.MapType(REQUIRED, TEXT), t.MapType(OPTIONAL, TEXT)),
    ],
)
def test_rows_must_hold_not_null_within_a_column_as_the_log_or_the_data_says(
    required: t.DataType, optional: t.DataType
) -> None:
    for log, data in ((required, optional), (optional, required)):
        changed = append(struct(column("a", log)), struct(column("a", data)))
        assert changed.entries["a"].dataType == required
        assert changed.columns["a"].dataType == log


@pytest.mark.parametrize(
    "outer",
    [
        lambda kind: kind,
        lambda kind: t.ArrayType(kind),
        lambda kind: t.MapType(TEXT, kind),
        lambda kind: t.MapType(kind, TEXT),
        lambda kind: struct(column("inner", kind)),
    ],
    ids=["column", "array", "map's value", "map's key", "struct"],
)
def test_rows_without_a_member_that_is_not_null_are_refused_at_every_depth(outer) -> None:
    present = struct(column("a", outer(struct(column("keep", INT), column("must", INT, nullable=False)))))
    rows = struct(column("a", outer(struct(column("keep", INT)))))
    for merge in (False, True):
        with pytest.raises(SchemaMismatch, match=r"'a' lacks '.*must', which is NOT NULL in log clicks: add it"):
            append(present, rows, merge=merge)


def test_rows_without_a_column_that_is_not_null_are_refused() -> None:
    present = struct(column("id", INT, nullable=False), column("a", INT))
    for merge in (False, True):
        with pytest.raises(
            SchemaMismatch, match="'id int' is missing, but NOT NULL in log clicks: add what is missing"
        ):
            append(present, struct(column("a", INT)), merge=merge)


def test_wider_type_needs_an_option() -> None:
    with pytest.raises(SchemaMismatch, match="'a' is bigint, and log clicks has it as int: set mergeSchema=true"):
        append(struct(column("a", INT)), struct(column("a", LONG)))


def test_decimal_with_the_values_of_a_bigint_has_room_for_twenty_digits() -> None:
    assert widened(LONG, t.DecimalType(10, 5)) == t.DecimalType(25, 5)
    assert widened(t.DecimalType(38, 18), LONG) == t.DecimalType(38, 18)
    assert widened(t.DecimalType(38, 19), LONG) is None
