"""Rows whose schema changes from write to write."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

from pyspark.sql import types as t

NAMES, LATER_NAMES = "abcdef", "uvwxyz"
SIMPLE: list[t.DataType] = [
    t.ByteType(),
    t.ShortType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
    t.DecimalType(5, 2),
    t.DecimalType(12, 4),
    t.StringType(),
    t.BinaryType(),
    t.BooleanType(),
    t.DateType(),
    t.TimestampNTZType(),
    t.TimestampType(),
]


class Author:
    """Makes types, what becomes of them, and values, at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def often(self, share: float) -> bool:
        return self.chance.random() < share

    def kind(self, depth: int = 0) -> t.DataType:
        nests = self.chance.random() if depth < 3 else 1.0
        if nests < 0.15:
            names = self.chance.sample(NAMES, self.chance.randint(1, 3))
            return t.StructType([t.StructField(name, self.kind(depth + 1), self.often(0.7)) for name in names])
        if nests < 0.25:
            return t.ArrayType(self.kind(depth + 1), self.often(0.7))
        if nests < 0.35:
            key = self.chance.choice([t.StringType(), t.IntegerType()])
            return t.MapType(key, self.kind(depth + 1), self.often(0.7))
        return self.chance.choice(SIMPLE)

    def evolved(self, kind: t.DataType) -> t.DataType:
        """Return what a later write may have in place of a type."""
        if isinstance(kind, t.StructType):
            return self._evolved_members(kind)
        if isinstance(kind, t.ArrayType):
            return t.ArrayType(self.evolved(kind.elementType), self.often(0.7))
        if isinstance(kind, t.MapType):
            return t.MapType(self.evolved(kind.keyType), self.evolved(kind.valueType), self.often(0.7))
        return self.chance.choice(SIMPLE) if self.often(0.3) else kind

    def _evolved_members(self, kind: t.StructType) -> t.StructType:
        members = [
            t.StructField(each.name, self.evolved(each.dataType), each.nullable or self.often(0.2))
            for each in kind
            if not each.nullable or self.often(0.85)
        ]
        free = [name for name in NAMES if name not in kind.names]
        if self.often(0.4):
            members.append(t.StructField(self.chance.choice(free), self.kind(2), self.often(0.7)))
        self.chance.shuffle(members)
        return t.StructType(members) if members else kind

    def first_columns(self) -> t.StructType:
        names = self.chance.sample(NAMES, self.chance.randint(1, 4))
        return t.StructType([t.StructField(name, self.kind(), self.often(0.6)) for name in names])

    def later_columns(self, log: t.StructType) -> t.StructType:
        columns = [
            t.StructField(
                each.name.upper() if self.often(0.2) else each.name,
                self.evolved(each.dataType),
                each.nullable or self.often(0.3),
            )
            for each in log
            if not each.nullable or self.often(0.9)
        ]
        free = [name for name in LATER_NAMES if name not in log.names]
        if free and (self.often(0.4) or not columns):
            columns.append(t.StructField(self.chance.choice(free), self.kind(), self.often(0.5)))
        return t.StructType(columns)

    def row(self, columns: t.StructType) -> dict[str, Any]:
        return {each.name: self.value(each.dataType, can_be_null=each.nullable) for each in columns}

    def value(self, kind: t.DataType, *, can_be_null: bool) -> Any:
        if can_be_null and self.often(0.2):
            return None
        if isinstance(kind, t.StructType):
            return self.row(kind)
        if isinstance(kind, t.ArrayType):
            count = self.chance.randint(0, 3)
            return [self.value(kind.elementType, can_be_null=kind.containsNull) for _ in range(count)]
        if isinstance(kind, t.MapType):
            keys = {self.value(kind.keyType, can_be_null=False) for _ in range(self.chance.randint(0, 3))}
            return [(key, self.value(kind.valueType, can_be_null=kind.valueContainsNull)) for key in sorted(keys)]
        return self._simple_value(kind)

    def _simple_value(self, kind: t.DataType) -> Any:
        chance = self.chance
        bits = {t.ByteType: 7, t.ShortType: 15, t.IntegerType: 31, t.LongType: 63}.get(type(kind))  # type: ignore[call-overload]
        if bits is not None:
            return chance.randint(-(1 << bits), (1 << bits) - 1)
        if isinstance(kind, t.DecimalType):
            return Decimal(chance.randint(-99_999, 99_999)).scaleb(-kind.scale)
        moment = datetime.datetime(chance.randint(1, 9999), 1, 1, 5, microsecond=7)
        return {
            "float": chance.randint(-1000, 1000) / 4,
            "double": chance.random() * 1e10,
            "string": chance.choice(["", "x", "é"]),
            "binary": bytes([chance.randrange(256)]),
            "boolean": chance.random() < 0.5,
            "date": moment.date(),
            "timestamp_ntz": moment,
            "timestamp": moment.replace(tzinfo=datetime.UTC),
        }[kind.simpleString()]


def same(value: Any) -> Any:
    """Return a value as it compares: a member that is null and one that is not there are the same, as 1 and 1.0."""
    if isinstance(value, dict):
        return {key: same(member) for key, member in value.items() if member is not None}
    if isinstance(value, (list, tuple)):
        return [same(each) for each in value]
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return datetime.datetime.combine(value, datetime.time())
    return value
