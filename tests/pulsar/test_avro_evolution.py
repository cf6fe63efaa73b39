"""Random AVRO schemas whose newest version has everything in another order: values are those that were written."""

from __future__ import annotations

import io
import json
import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from bkspark.pulsar.schemas import Schema
from bkspark.pulsar.values import decoder_of

fastavro = pytest.importorskip("fastavro")

ROOT, ENUM = "Root", "E"
SYMBOLS = ("X", "Y")


@dataclass(frozen=True)
class Union:
    members: tuple[str, ...]


@dataclass(frozen=True)
class Items:
    of: Any


class RandomRecords:
    """Records that contain each other, alone, in unions and in arrays. Many of them have the same fields."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._fields: dict[str, dict[str, Any]] = {}
        """The fields of each record, whose types are names, unions and arrays."""
        for name in ("A", "B", "C", "D", ROOT):
            count = 4 if name == ROOT else self._chance.choice((1, 1, 2))
            self._fields[name] = {f"f{number}": self._type([*self._fields]) for number in range(count)}
        self._grown = {name for name in self._fields if self._chance.random() < 0.3}
        """Records that get another field in the newest version."""
        self._dropped = {
            (name, field) for name, fields in self._fields.items() for field in fields if self._chance.random() < 0.1
        }
        """Fields that the newest version lacks."""

    def _type(self, names: list[str]) -> Any:
        kind = self._chance.choice(("int", "string", ENUM, "record", "union", "array"))
        if not names or kind in ("int", "string", ENUM):
            return kind if kind in ("string", ENUM) else "int"
        if kind == "record":
            return self._chance.choice(names)
        members = self._chance.sample(names, min(len(names), self._chance.choice((1, 2, 3))))
        union = Union((*members, *(each for each in ("string", ENUM) if self._chance.random() < 0.3)))
        return Items(union) if kind == "array" else union

    def schema(self, version: int) -> Schema:
        """Return the first version of the schema, or a newest one in which fields and members are in reverse order, and
        some fields are new or gone. The first place that names a record has its definition."""
        defined: set[str] = set()

        def avro(kind: Any) -> Any:
            if isinstance(kind, Items):
                return {"type": "array", "items": avro(kind.of)}
            if isinstance(kind, Union):
                return ["null", *map(avro, self.members(kind, version))]
            if kind not in (*self._fields, ENUM) or kind in defined:
                return kind
            defined.add(kind)
            if kind == ENUM:
                return {"type": "enum", "name": ENUM, "symbols": SYMBOLS[::-1] if version else SYMBOLS}
            return {"type": "record", "name": kind, "fields": fields(kind)}

        def fields(kind: str) -> list[dict[str, Any]]:
            if not version:
                return [{"name": name, "type": avro(each)} for name, each in self._fields[kind].items()]
            kept = {name: each for name, each in self._fields[kind].items() if (kind, name) not in self._dropped}
            new = [{"name": "new", "type": "int", "default": 7}] if kind in self._grown else []
            return [*new, *({"name": name, "type": avro(each)} for name, each in reversed(kept.items()))]

        return Schema(version, "AVRO", json.dumps(avro(ROOT)).encode())

    def members(self, union: Union, version: int) -> tuple[str, ...]:
        return union.members[::-1] if version else union.members

    def value(self, kind: Any, version: int) -> tuple[Any, Any]:
        """Return a value as fastavro takes it, and as it is read by a version of the schema."""
        if isinstance(kind, Items):
            pairs = [self.value(kind.of, version) for _ in range(self._chance.randrange(3))]
            return [written for written, _ in pairs], [read for _, read in pairs]
        if isinstance(kind, Union):
            if self._chance.random() < 0.2:
                return None, None
            name = self._chance.choice(kind.members)
            written, read = self.value(name, version)
            named = written if name == "string" else (name, written)
            members = self.members(kind, version)
            if len(members) == 1:
                return named, read
            return named, {f"member{at}": read if each == name else None for at, each in enumerate(members)}
        if kind in self._fields:
            cells = {name: self.value(each, version) for name, each in self._fields[kind].items()}
            kept = {name for name in cells if not version or (kind, name) not in self._dropped}
            new = {"new": 7} if version and kind in self._grown else {}
            return (
                {name: written for name, (written, _) in cells.items()},
                {name: read for name, (_, read) in cells.items() if name in kept} | new,
            )
        one = self._chance.randrange(100) if kind == "int" else self._chance.choice(SYMBOLS)
        return one, one


@pytest.mark.parametrize("newest", [0, 1], ids=["same", "reordered"])
def test_values_of_random_schemas_are_those_that_were_written(newest: int) -> None:
    for seed in range(150):
        records = RandomRecords(seed)
        first, last = records.schema(0), records.schema(newest)
        value, wanted = records.value(ROOT, newest)
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(first.definition)), value)
        assert decoder_of(first, last)(pa.array([stream.getvalue()])).to_pylist() == [wanted], f"seed {seed}"
