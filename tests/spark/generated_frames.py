"""DataFrames at random: columns of every type that Spark has, with any names, and rows with edge values."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import types as t

NAMES = (
    "a", "A", "a.b", "`", "a`b", "ü", "名", "😀", " ", " a ", "a b", "", "\n", "'", '"', "\\", "$", "%s", "{}", "value",
    "log", "position", "ledger_id", "append_time", "null", "select", "x" * 300, "é", "É", "ß", "ı",
    "1", "_1", "a/b", "\u0301", "key", "__key",
)  # fmt: skip
WHOLE = {t.ByteType: 7, t.ShortType: 15, t.IntegerType: 31, t.LongType: 63}
MOMENTS = (
    datetime.datetime(1, 1, 1),
    datetime.datetime(1582, 10, 15),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime.datetime(1970, 1, 1),
    datetime.datetime(2026, 11, 1, 1, 30, 0, 89),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),
)
TEXTS = ("", "x", "é😀", 'a"b\\c\n\0', "null", "1", "x" * 3000)


class FrameAuthor:
    """Makes columns and rows at random. The same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def often(self, share: float) -> bool:
        return self.chance.random() < share

    def columns(self) -> t.StructType:
        return self._struct(self.chance.choice((1, 3, 12)), 0)

    def _struct(self, count: int, depth: int) -> t.StructType:
        names = self.chance.sample(NAMES, min(count, len(NAMES)))
        found = t.StructType()
        for name in names:
            metadata = {"comment": "ü", "k": 1} if self.often(0.1) else None
            found.add(t.StructField(name, self.kind(depth + 1), self.often(0.7), metadata))
        return found

    def kind(self, depth: int = 0) -> t.DataType:
        nests = self.chance.random() if depth < 4 else 1.0
        if nests < 0.12:
            return self._struct(self.chance.choice((0, 1, 2, 3)), depth)
        if nests < 0.24:
            return t.ArrayType(self.kind(depth + 1), self.often(0.7))
        if nests < 0.36:
            return t.MapType(self._key(depth), self.kind(depth + 1), self.often(0.7))
        return self._simple()

    def _key(self, depth: int) -> t.DataType:
        """Return a type of map keys: one that can be compared."""
        if depth < 3 and self.often(0.1):
            return t.StructType([t.StructField("k", t.StringType(), False), t.StructField("n", t.IntegerType())])
        return self.chance.choice([t.StringType(), t.IntegerType(), t.DateType(), t.BinaryType(), t.DecimalType(9, 3)])

    def _simple(self) -> t.DataType:
        precision = self.chance.choice((1, 9, 18, 19, 38))
        return self.chance.choice(
            [
                *(kind() for kind in WHOLE),
                t.FloatType(),
                t.DoubleType(),
                t.DecimalType(precision, self.chance.choice((0, precision // 2, precision))),
                t.StringType(),
                t.StringType(),
                t.StringType("UTF8_LCASE"),
                t.BinaryType(),
                t.BooleanType(),
                t.DateType(),
                t.TimestampType(),
                t.TimestampNTZType(),
                t.DayTimeIntervalType(*self.chance.choice([(0, 3), (1, 2), (3, 3)])),
                t.NullType(),
                VectorUDT(),
            ]
        )

    # ---- rows ----

    def rows(self, columns: t.StructType, count: int) -> list[tuple[Any, ...]]:
        return [self._cells(columns) for _ in range(count)]

    def _cells(self, columns: t.StructType) -> tuple[Any, ...]:
        return tuple(self.value(each.dataType, can_be_null=each.nullable) for each in columns)

    def value(self, kind: t.DataType, *, can_be_null: bool) -> Any:
        if isinstance(kind, t.NullType) or (can_be_null and self.often(0.2)):
            return None
        if isinstance(kind, t.StructType):
            return self._cells(kind)
        if isinstance(kind, t.ArrayType):
            count = self.chance.choice((0, 1, 2, 5))
            return [self.value(kind.elementType, can_be_null=kind.containsNull) for _ in range(count)]
        if isinstance(kind, t.MapType):
            keys = {self.value(kind.keyType, can_be_null=False) for _ in range(self.chance.randrange(4))}
            return {key: self.value(kind.valueType, can_be_null=kind.valueContainsNull) for key in keys}
        return self._simple_value(kind)

    def _simple_value(self, kind: t.DataType) -> Any:
        chance = self.chance
        bits = WHOLE.get(type(kind))  # type: ignore[call-overload]
        if bits is not None:
            return chance.choice((0, 1, -1, -(1 << bits), (1 << bits) - 1))
        if isinstance(kind, t.DecimalType):
            most = 10**kind.precision - 1
            return Decimal(chance.choice((0, 1, -1, most, -most))).scaleb(-kind.scale)
        if isinstance(kind, t.DayTimeIntervalType):
            days = chance.choice((0, -1, 100_000))
            seconds = 3600 if kind.endField < 3 else chance.choice((0, 59, 86_399))
            micros = chance.randrange(10**6) if kind.endField == 3 else 0
            return datetime.timedelta(days, seconds, micros)
        return self._of_class(kind)

    def _of_class(self, kind: t.DataType) -> Any:
        chance, moment = self.chance, self.chance.choice(MOMENTS)
        if isinstance(kind, VectorUDT):
            return chance.choice((DenseVector([1.0, -0.0]), SparseVector(9, [1, 8], [0.5, 2.0])))
        if isinstance(kind, t.StringType):
            return chance.choice(TEXTS)
        if isinstance(kind, t.TimestampType):
            return moment.replace(year=min(max(moment.year, 1900), 9998), tzinfo=datetime.UTC)
        return {
            t.FloatType: chance.choice((0.0, -0.0, 0.1, float("nan"), float("inf"), 3.4e38)),
            t.DoubleType: chance.choice((0.0, -0.0, 5e-324, float("nan"), float("-inf"), 1.7e308)),
            t.BinaryType: chance.choice((b"", b"\0\xff", b"x" * 2000)),
            t.BooleanType: chance.random() < 0.5,
            t.DateType: moment.date(),
            t.TimestampNTZType: moment,
        }[type(kind)]
