"""How the columns of a log may change, in Spark's types.

    a log has     a write brings           without an option       with mergeSchema
    column a      no a                     rows have null in a     the same
    a NOT NULL    no a                     refused                 refused
    a NOT NULL    a that may be null       a null fails the task   the same
    no b          b                        refused                 b is added, null in earlier rows
    a bigint      a int                    stored as int, read     the same
                                           as bigint
    a int         a bigint                 refused                 a becomes bigint
    a string      a int                    refused                 refused

Types widen where no value changes: whole numbers to larger ones, to decimals with room for them, and up to int to
double; float to double; decimals to more digits; date to timestamp_ntz; void to any type; structs by members; arrays
and maps by what they hold. In `raw`, where text is bytes, string widens to binary. Columns are found by name, in any
case if only one has it; members of structs by the exact name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    UserDefinedType,
)

from bkspark.decimals import PRECISION_MAX
from bkspark.errors import ConfigurationError, MetadataFormat, SchemaMismatch

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_DIGITS = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 20}
"""Digits of whole numbers, as Spark and Delta count them for decimals."""
_DAYS = (DateType, TimestampNTZType)
_IN_DOUBLE = (ByteType, ShortType, IntegerType, FloatType, DoubleType)
SHOWN_COLUMNS_MAX = 20
SCHEMAS_CACHED_MAX = 64
"""Schemas that a process keeps parsed: each epoch of a stream needs its log's."""
_REMEMBERED_TYPES = tuple(
    (f"pyspark.ml.linalg.{name}", f"org.apache.spark.ml.linalg.{name}") for name in ("VectorUDT", "MatrixUDT")
)
"""User defined types that a log can record: Spark's own, as classes in Python and in the JVM. A reader of a schema
imports the classes that it names, so if others were allowed, its writer could choose what code a reader runs."""


def schema_text(schema: StructType) -> str:
    """Return a schema as one text: the same for equal schemas.

    Raises:
        ConfigurationError: a column has a user defined type that is not Spark's own.
    """
    for column in schema:
        if (foreign := _foreign_type(column.dataType)) is not None:
            raise ConfigurationError(
                f"column '{column.name}' has a user defined type ({type(foreign).__name__}), and a log remembers those "
                "of Spark itself only (vectors and matrices of pyspark.ml): cast it to "
                f"{foreign.sqlType().simpleString()[:200]}"
            )
    return json.dumps(schema.jsonValue(), sort_keys=True, separators=(",", ":"))


def schema_of_text(text: str, log: str) -> StructType:
    """Return the schema of a text. Raises MetadataFormat, which names the log."""
    try:
        return _schema_of(text)
    except Exception as error:  # pyspark's own errors, and those of any member that is missing
        raise MetadataFormat(
            f"the schema that log {log} remembers is not a schema of Spark ({error}): name the columns by .schema()"
        ) from None


@functools.lru_cache(SCHEMAS_CACHED_MAX)
def _schema_of(text: str) -> StructType:
    tree = json.loads(text)
    _refuse_foreign_types(tree)
    return StructType.fromJson(tree)


def _refuse_foreign_types(tree: Any) -> None:
    """Raise ValueError if the JSON of a schema names a class that is not Spark's own: reading it would import that."""
    if isinstance(tree, list):
        for each in tree:
            _refuse_foreign_types(each)
    if not isinstance(tree, dict):
        return
    if tree.get("type") == "udt":
        name = tree.get("pyClass")
        if (name, tree.get("class")) not in _REMEMBERED_TYPES:
            raise ValueError(f"it has the user defined type {name!r}, which is not Spark's own")
        return
    for key, value in tree.items():
        if key != "metadata":
            _refuse_foreign_types(value)


def _foreign_type(kind: DataType) -> UserDefinedType | None:
    if isinstance(kind, UserDefinedType):
        name = f"{kind.module()}.{type(kind).__name__}"
        return None if (name, kind.scalaUDT()) in _REMEMBERED_TYPES else kind
    parts: list[DataType] = []
    if isinstance(kind, StructType):
        parts = [member.dataType for member in kind]
    elif isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    return next((found for part in parts if (found := _foreign_type(part)) is not None), None)


def columns_text(columns: StructType) -> str:
    """Return columns as people write them: "id bigint NOT NULL, name string"."""
    return ", ".join(
        f"{column.name} {column.dataType.simpleString()}{'' if column.nullable else ' NOT NULL'}" for column in columns
    )


class Finder:
    """Finds columns by name: the exact one, otherwise the only one that differs in case alone."""

    def __init__(self, columns: StructType) -> None:
        self._exact = {column.name: column for column in columns}
        self._alike = _by_lower(self._exact)
        """The columns that have a name in lower case. Constant."""

    def find(self, name: str) -> StructField | None:
        exact = self._exact.get(name)
        if exact is not None:
            return exact
        alike = self._alike.get(name.lower(), ())
        return self._exact[alike[0]] if len(alike) == 1 else None


def widened(one: DataType, other: DataType) -> DataType | None:
    """Return the narrowest type that holds every value of both, None if there is none; null inside if either has it."""
    if one == other or isinstance(other, NullType):
        return one
    if isinstance(one, NullType):
        return other
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _widened_members(one, other)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        element = widened(one.elementType, other.elementType)
        return None if element is None else ArrayType(element, one.containsNull or other.containsNull)
    if isinstance(one, MapType) and isinstance(other, MapType):
        key, value = widened(one.keyType, other.keyType), widened(one.valueType, other.valueType)
        has_null = one.valueContainsNull or other.valueContainsNull
        return None if key is None or value is None else MapType(key, value, has_null)
    if isinstance(one, _DAYS) and isinstance(other, _DAYS):
        return TimestampNTZType()  # a day is its midnight
    return _widened_number(one, other)


def _widened_members(one: StructType, other: StructType) -> StructType | None:
    members = []
    theirs = {member.name: member for member in other}
    for member in one:
        match = theirs.pop(member.name, None)
        kind = member.dataType if match is None else widened(member.dataType, match.dataType)
        if kind is None:
            return None
        nullable = member.nullable or match is None or match.nullable
        members.append(StructField(member.name, kind, nullable, member.metadata))
    added = [StructField(member.name, member.dataType, True, member.metadata) for member in theirs.values()]
    names = [member.name.lower() for member in [*members, *added]]
    return StructType([*members, *added]) if len(set(names)) == len(names) or not added else None


def _widened_number(one: DataType, other: DataType) -> DataType | None:
    if isinstance(one, _WHOLE) and isinstance(other, _WHOLE):
        return max(one, other, key=lambda kind: _DIGITS[type(kind)])
    if isinstance(one, _IN_DOUBLE) and isinstance(other, _IN_DOUBLE):
        return DoubleType()
    if isinstance(one, DecimalType) or isinstance(other, DecimalType):
        both = [_as_decimal(one), _as_decimal(other)]
        decimals = [kind for kind in both if kind is not None]
        if len(decimals) < 2:
            return None
        scale = max(kind.scale for kind in decimals)
        precision = max(kind.precision - kind.scale for kind in decimals) + scale
        return DecimalType(precision, scale) if precision <= PRECISION_MAX else None
    return None


def _as_decimal(kind: DataType) -> DecimalType | None:
    if isinstance(kind, DecimalType):
        return kind
    return DecimalType(_DIGITS[type(kind)], 0) if isinstance(kind, _WHOLE) else None


def fits(found: DataType, wanted: DataType) -> bool:
    """Return whether every value of `found` can be read as `wanted`; nullability is ignored."""
    wide = widened(wanted, found)
    return wide is not None and _plain(wide) == _plain(wanted)


def reads_as(stored: DataType, wanted: DataType) -> bool:
    """Return whether values of `stored` can be read as `wanted`. Members that `wanted` lacks are left out, members that
    `stored` lacks are null.
    """
    if isinstance(stored, StructType) and isinstance(wanted, StructType):
        has = {member.name: member.dataType for member in stored}
        return all(
            reads_as(has[member.name], member.dataType) if member.name in has else member.nullable for member in wanted
        )
    if isinstance(stored, ArrayType) and isinstance(wanted, ArrayType):
        return reads_as(stored.elementType, wanted.elementType)
    if isinstance(stored, MapType) and isinstance(wanted, MapType):
        return reads_as(stored.keyType, wanted.keyType) and reads_as(stored.valueType, wanted.valueType)
    return fits(stored, wanted)


def is_beyond(stored: StructField, wanted: StructField | None) -> bool:
    """Return whether a read with `wanted` leaves out `stored`, or members of it."""
    return wanted is None or not fits(stored.dataType, wanted.dataType)


def _plain(kind: DataType) -> DataType:
    """Return the type with nulls allowed everywhere, and without metadata."""
    if isinstance(kind, StructType):
        return StructType([StructField(member.name, _plain(member.dataType)) for member in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_plain(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_plain(kind.keyType), _plain(kind.valueType))
    return kind


def merged(schemas: Sequence[StructType], names: Sequence[str]) -> StructType:
    """Return the columns of several logs: all of them, null where one lacks a column.

    Args:
        names: of what has them, for the message.

    Raises:
        SchemaMismatch: no type holds a column's values in all of them.
    """
    columns: dict[str, StructField] = {column.name: column for column in schemas[0]}
    for index, schema in enumerate(schemas[1:], 1):
        names_here = _names_among(schema.names, columns)
        for column in schema:
            name = names_here[column.name]
            before = columns.get(name)
            kind = column.dataType if before is None else widened(before.dataType, column.dataType)
            if kind is None:
                assert before is not None
                raise SchemaMismatch(
                    f"column '{column.name}' is {column.dataType.simpleString()} in {names[index]} and "
                    f"{before.dataType.simpleString()} elsewhere, and no type holds both: read them one by one, or "
                    "name the columns by .schema()"
                )
            nullable = True if before is None else before.nullable or column.nullable
            columns[name] = StructField(name, kind, nullable, (before or column).metadata)
        for name in columns.keys() - set(names_here.values()):
            columns[name] = StructField(name, columns[name].dataType, True, columns[name].metadata)
    return StructType(list(columns.values()))


def completed(rows: StructType, found: StructType) -> StructType:
    """Return the columns of rows, and after them those that `found` has and the rows lack; members of structs likewise.

    What both have has the type of the rows, and a column the name that it has in `found`.
    """
    names = _names_among(rows.names, found.names)
    theirs = {column.name: column.dataType for column in found}
    columns = [
        StructField(name, _completed(column.dataType, theirs.pop(name, None)), column.nullable, column.metadata)
        for column in rows
        for name in [names[column.name]]
    ]
    return StructType([*columns, *(StructField(name, kind) for name, kind in theirs.items())])


def _completed(kind: DataType, found: DataType | None) -> DataType:
    if isinstance(kind, NullType):
        return found or kind
    if isinstance(kind, ArrayType) and isinstance(found, ArrayType):
        return ArrayType(_completed(kind.elementType, found.elementType), kind.containsNull)
    if not isinstance(kind, StructType) or not isinstance(found, StructType):
        return kind
    theirs = {member.name: member.dataType for member in found}
    members = [
        StructField(member.name, _completed(member.dataType, theirs.get(member.name)), member.nullable, member.metadata)
        for member in kind
    ]
    taken = {member.name.lower() for member in kind}
    more = [StructField(name, each) for name, each in theirs.items() if name.lower() not in taken]
    return StructType([*members, *more])


def _names_among(names: Sequence[str], present: Collection[str]) -> dict[str, str]:
    """Return the name in `present` for each of `names`: the same name, otherwise the only one that differs in case
    alone.

    A name in `present` that matches exactly is not matched with another one: columns that differ in case alone stay
    apart. A name without a match stays as it is.
    """
    found = {name: name for name in names}
    ours = _by_lower(name for name in present if name not in found)
    for lower, alike in _by_lower(name for name in names if name not in present).items():
        if len(alike) == len(ours.get(lower, ())) == 1:
            found[alike[0]] = ours[lower][0]
    return found


def _by_lower(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.lower(), []).append(name)
    return found


class Append:
    """The effect of an append on a log's columns.

    `columns` are those of the log afterwards. `entries` are the columns that are written, with the log's names; they
    are NOT NULL (also inside) if they are so in the log or in the data.

    Args:
        log: its name, for messages.
        present: the log's columns.
        added: the columns of the rows.
        merge: mergeSchema is set.

    Raises:
        SchemaMismatch: the rows do not fit; the message names each column and the remedy.
    """

    def __init__(self, log: str, payload_format: str, present: StructType, added: StructType, *, merge: bool) -> None:
        self._log = log
        self._is_raw = payload_format == "raw"
        """Whether entries are values without a schema: then no column can be added."""
        self._merge = merge
        self._present = present
        columns = {column.name: column for column in present}
        entries: list[StructField] = []
        unknown: list[StructField] = []
        matched: dict[str, str] = {}
        finder = Finder(present)
        for column in added:
            match = finder.find(column.name)
            if match is None:
                entries.append(column)
                unknown.append(column)
                continue
            if match.name in matched:
                raise SchemaMismatch(
                    f"'{matched[match.name]}' and '{column.name}' of the data are both column '{match.name}' of log "
                    f"{log}: rename one"
                )
            matched[match.name] = column.name
            columns[match.name] = self._matched(match, column)
            kind = _required(column.dataType, match.dataType)
            entries.append(StructField(match.name, kind, column.nullable and match.nullable))
        self._check_unknown(unknown)
        self._check_missing(present, {entry.name for entry in entries})
        new = [StructField(column.name, column.dataType, True, column.metadata) for column in unknown]
        self.columns = StructType([*columns.values(), *new])
        self.entries = StructType(entries)

    def _matched(self, match: StructField, column: StructField) -> StructField:
        wide = self._widened(match.dataType, column.dataType)
        shown, stored = column.dataType.simpleString(), match.dataType.simpleString()
        if wide is None:
            raise SchemaMismatch(
                f"column '{column.name}' is {shown}, but log {self._log} has it as {stored}: cast it, write it under "
                "another name with mergeSchema=true, or replace the log (mode overwrite with overwriteSchema=true)"
            )
        if (lost := _missing_member(column.dataType, match.dataType)) is not None:
            raise SchemaMismatch(
                f"column '{column.name}' lacks '{lost}', which is NOT NULL in log {self._log}: add it, or replace the "
                "log (mode overwrite with overwriteSchema=true)"
            )
        if _plain(wide) == _plain(match.dataType):
            return match
        if not self._merge:
            raise SchemaMismatch(
                f"column '{column.name}' is {shown}, and log {self._log} has it as {stored}: set mergeSchema=true to "
                f"make it {wide.simpleString()}, or cast it"
            )
        return StructField(match.name, _kept_required(wide, match.dataType), match.nullable, match.metadata)

    def _widened(self, present: DataType, added: DataType) -> DataType | None:
        if (
            self._is_raw
            and isinstance(present, (StringType, BinaryType))
            and isinstance(added, (StringType, BinaryType))
        ):
            return present if present == added else BinaryType()
        return widened(present, added)

    def _check_unknown(self, unknown: Sequence[StructField]) -> None:
        if unknown and not self._merge:
            raise SchemaMismatch(
                f"{shown_columns(unknown)} not in log {self._log}, which has "
                f"{', '.join(self._present.names[:SHOWN_COLUMNS_MAX])}: set mergeSchema=true to add what is new, "
                "leave it out, or replace the log (mode overwrite with overwriteSchema=true)"
            )

    def _check_missing(self, present: StructType, written: set[str]) -> None:
        missing = [column for column in present if not column.nullable and column.name not in written]
        if missing:
            raise SchemaMismatch(
                f"{shown_columns(missing)} missing, but NOT NULL in log {self._log}: add what is missing, or replace "
                "the log (mode overwrite with overwriteSchema=true)"
            )


def shown_columns(columns: Sequence[StructField]) -> str:
    """Return "column 'a int' is" or "columns 'a int', 'b string' are", not too long."""
    shown = [f"'{column.name} {column.dataType.simpleString()}'"[:200] for column in columns[:SHOWN_COLUMNS_MAX]]
    more = len(columns) - len(shown)
    text = ", ".join(shown) + (f" and {more} more" if more else "")
    return f"column {text} is" if len(columns) == 1 else f"columns {text} are"


def _required(found: DataType, stored: DataType) -> DataType:
    """Return `found` with NOT NULL inside where it or `stored` says so."""
    if isinstance(found, StructType) and isinstance(stored, StructType):
        theirs = {member.name: member for member in stored}
        return StructType(
            [
                member
                if (match := theirs.get(member.name)) is None
                else StructField(
                    member.name, _required(member.dataType, match.dataType), member.nullable and match.nullable
                )
                for member in found
            ]
        )
    if isinstance(found, ArrayType) and isinstance(stored, ArrayType):
        kind = _required(found.elementType, stored.elementType)
        return ArrayType(kind, found.containsNull and stored.containsNull)
    if isinstance(found, MapType) and isinstance(stored, MapType):
        has_null = found.valueContainsNull and stored.valueContainsNull
        key, value = _required(found.keyType, stored.keyType), _required(found.valueType, stored.valueType)
        return MapType(key, value, has_null)
    return found


def _kept_required(wide: DataType, stored: DataType) -> DataType:
    """Return `wide` with the NOT NULL that `stored` has inside: rows that break it are not written."""
    if isinstance(wide, StructType) and isinstance(stored, StructType):
        theirs = {member.name: member for member in stored}
        return StructType(
            [
                member
                if (match := theirs.get(member.name)) is None
                else StructField(
                    member.name,
                    _kept_required(member.dataType, match.dataType),
                    match.nullable,
                    match.metadata,
                )
                for member in wide
            ]
        )
    if isinstance(wide, ArrayType) and isinstance(stored, ArrayType):
        return ArrayType(_kept_required(wide.elementType, stored.elementType), stored.containsNull)
    if isinstance(wide, MapType) and isinstance(stored, MapType):
        key = _kept_required(wide.keyType, stored.keyType)
        value = _kept_required(wide.valueType, stored.valueType)
        return MapType(key, value, stored.valueContainsNull)
    return wide


def _missing_member(found: DataType, stored: DataType) -> str | None:
    """Return a member of a struct that `stored` requires and `found` lacks."""
    if isinstance(found, StructType) and isinstance(stored, StructType):
        has = {member.name: member for member in found}
        for member in stored:
            if member.name not in has:
                if not member.nullable:
                    return member.name
            elif (lost := _missing_member(has[member.name].dataType, member.dataType)) is not None:
                return f"{member.name}.{lost}"
    if isinstance(found, ArrayType) and isinstance(stored, ArrayType):
        return _missing_member(found.elementType, stored.elementType)
    if isinstance(found, MapType) and isinstance(stored, MapType):
        pairs = ((found.keyType, stored.keyType), (found.valueType, stored.valueType))
        return next((lost for pair in pairs if (lost := _missing_member(*pair)) is not None), None)
    return None
