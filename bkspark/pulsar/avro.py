"""Avro schemas: the Arrow types of their values, and what is done before values are read by them. PURE.

int + date is date, bytes or fixed + decimal decimal, long + timestamp-millis or -micros timestamp, enum string,
[null, T] a T that may be null, [int, long] long, [float, double] double, another union a struct of member0, member1, …
A record that holds itself has no type in Spark, and is refused. As in Java, a decimal that cannot be is its bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from bkspark.decimals import PRECISION_MAX
from bkspark.errors import ConfigurationError

DEPTH_MAX = 100
"""Types within each other; a record that may be null is two."""
TYPES_MAX = 10_000
"""Types of one schema. One that is named counts at each place that names it: there Spark has it whole."""

_UTC_US = pa.timestamp("us", "UTC")
PRIMITIVES = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_TIMES = {"timestamp-millis": pa.timestamp("ms", "UTC"), "timestamp-micros": _UTC_US}
_FACTORS = {("millis", "micros"): (1000, 1), ("micros", "millis"): (1, 1000)}
"""What times are multiplied by and divided by, by the units that they have and are to have."""
_NAMED = ("record", "enum", "fixed")
_OCTETS = {"bytes", "fixed", "string"}
"""Types of which one may be read as another, but not as a decimal."""
_NUMBERS = ({"int", "long"}, {"float", "double"})


def with_full_names(avro: Any) -> Any:
    """Return the same schema, in which each named type is called, and named elsewhere, by its full name.

    Raises:
        ConfigurationError: it is not an Avro schema, or nested too deeply.
    """
    try:
        return _complete(avro, "", set(), 0)
    except (KeyError, TypeError, AttributeError) as error:
        raise refused(f"is not an Avro schema ({type(error).__name__}: {str(error)[:80]})") from None


def _complete(avro: Any, namespace: str, known: set[str], depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise refused(f"has more than {DEPTH_MAX} types within each other")
    again = partial(_complete, known=known, depth=depth + 1)
    if isinstance(avro, list):
        return [again(each, namespace) for each in avro]
    if isinstance(avro, str):
        full = f"{namespace}.{avro}"
        return full if full in known else avro
    kind = avro["type"]
    if kind == "array":
        return {**avro, "items": again(avro["items"], namespace)}
    if kind == "map":
        return {**avro, "values": again(avro["values"], namespace)}
    if not isinstance(kind, str) or kind not in (*_NAMED, *PRIMITIVES):
        return again(kind, namespace)
    if kind in PRIMITIVES:
        return avro
    name = avro["name"]
    if "." not in name:
        space = avro.get("namespace", namespace)
        name = f"{space}.{name}" if space else name
    known.add(name)
    found = {key: value for key, value in avro.items() if key != "namespace"} | {"name": name}
    if kind == "record":
        inner = name.rpartition(".")[0]
        found["fields"] = [{**each, "type": again(each["type"], inner)} for each in avro.get("fields", [])]
    return found


def refused(what: str) -> ConfigurationError:
    """Return the error for a schema that cannot be the columns of a table."""
    return ConfigurationError(f"the topic's schema {what}: read the bytes with valueFormat=raw")


# ---- types ----


def arrow_of_avro(avro: Any) -> pa.DataType:
    """Return the type of values of a schema with full names, timestamps in microseconds. Raises as `stored_type`."""
    return _in_microseconds(stored_type(avro))


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return _UTC_US
    if pa.types.is_struct(kind):
        return pa.struct(
            [kind.field(i).with_type(_in_microseconds(kind.field(i).type)) for i in range(kind.num_fields)]
        )
    if pa.types.is_list(kind):
        return pa.list_(_in_microseconds(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_microseconds(kind.item_type))
    return kind


def stored_type(avro: Any) -> pa.DataType:
    """Return the type of values of a schema with full names, timestamps as they are stored, in ms or µs.

    Raises:
        ConfigurationError: Spark has no type for it, or it is not an Avro schema.
    """
    try:
        return _Types().of(avro)
    except (KeyError, TypeError, AttributeError, ValueError, pa.ArrowException) as error:
        raise refused(f"is not an Avro schema ({type(error).__name__}: {str(error)[:80]})") from None


class _Types:
    """The types of one schema."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}
        """Named types; None while one is being made."""
        self._sizes: dict[str, int] = {}
        """How many types each named one has."""
        self._count = 0
        """Types so far; only grows."""

    def of(self, avro: Any) -> pa.DataType:
        self._take(1)
        if isinstance(avro, list):
            return self._union([each for each in avro if each != "null"])
        if isinstance(avro, str):
            return PRIMITIVES[avro] if avro in PRIMITIVES else self._of_name(avro)
        kind = avro["type"]
        if kind == "array":
            return pa.list_(self.of(avro["items"]))
        if kind == "map":
            return pa.map_(pa.string(), self.of(avro["values"]))
        if kind == "record":
            return self._record(avro)
        made = _of_one(avro)
        if kind in _NAMED:
            self._named[avro["name"]], self._sizes[avro["name"]] = made, 1
        return made

    def _take(self, count: int) -> None:
        self._count += count
        if self._count > TYPES_MAX:
            raise refused(f"has more than {TYPES_MAX} types")

    def _of_name(self, name: str) -> pa.DataType:
        if name not in self._named:
            raise refused(f"holds {name[:80]!r}, which is not an Avro type")
        found = self._named[name]
        if found is None:
            raise refused(f"has a record {name!r} that holds itself, which Spark has no type for")
        self._take(self._sizes[name])
        return found

    def _record(self, avro: Any) -> pa.DataType:
        name, before = avro["name"], self._count
        self._named[name] = None
        made = pa.struct([pa.field(each["name"], self.of(each["type"])) for each in avro["fields"]])
        self._named[name], self._sizes[name] = made, self._count - before
        return made

    def _union(self, others: list[Any]) -> pa.DataType:
        types = [self.of(each) for each in others]
        if len(types) <= 1:
            return types[0] if types else pa.null()
        if are_numbers(others):
            return pa.int64() if pa.int64() in types else pa.float64()
        return pa.struct({f"member{place}": kind for place, kind in enumerate(types)})


def _of_one(avro: Any) -> pa.DataType:
    """Return the type of a primitive, an enum or a fixed."""
    kind, logical = avro["type"], avro.get("logicalType")
    if kind == "enum":
        return pa.string()
    if is_decimal(avro):
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if kind == "fixed":
        return pa.binary()
    if kind == "int" and logical == "date":
        return pa.date32()
    if kind == "long" and logical in _TIMES:
        return _TIMES[logical]
    return PRIMITIVES[kind]


def is_decimal(avro: Any) -> bool:
    """Whether values are decimals, and not the bytes that hold them."""
    if not isinstance(avro, dict) or avro.get("logicalType") != "decimal" or avro["type"] not in ("bytes", "fixed"):
        return False
    precision, scale = avro.get("precision"), avro.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision <= PRECISION_MAX:
        return False
    digits = PRECISION_MAX
    if avro["type"] == "fixed":
        digits = math.floor(math.log10(2) * (8 * avro["size"] - 1)) if avro["size"] > 0 else 0
    return 0 < precision <= digits


def are_numbers(others: list[Any]) -> bool:
    """Whether a union of these members, null left out, is a number: the larger of two kinds."""
    kinds = {each if isinstance(each, str) else each["type"] for each in others}
    return kinds in _NUMBERS and all(
        isinstance(each, str) or _of_one(each) == PRIMITIVES[each["type"]] for each in others
    )


# ---- before values are read ----


def plain(avro: Any) -> Any:
    """Return a schema whose dates and times are plain numbers, which Arrow takes as they are, and whose defaults are
    the values that they name: bytes, and decimals."""
    return _plain(avro, {})


def _plain(avro: Any, named: dict[str, Any]) -> Any:
    if isinstance(avro, list):
        return [_plain(each, named) for each in avro]
    if isinstance(avro, str):
        return avro
    found = {key: value for key, value in avro.items() if key != "logicalType" or is_decimal(avro)}
    if isinstance(avro.get("name"), str):
        named[avro["name"]] = avro
    for key in ("items", "values"):
        if key in found:
            found[key] = _plain(found[key], named)
    if avro["type"] == "record":
        found["fields"] = [_plain_field(each, named) for each in avro["fields"]]
    return found


def _plain_field(field: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    found = {**field, "type": _plain(field["type"], named)}
    if "default" in field:
        found["default"] = _default(field["type"], field["default"], named)
    return found


def _default(avro: Any, value: Any, named: dict[str, Any]) -> Any:
    """Return the value that a default's JSON names. Bytes are text there, a character each."""
    if isinstance(avro, list):
        others = [each for each in avro if each != "null"]
        return None if value is None or not others else _default(others[0], value, named)
    if isinstance(avro, str):
        avro = named.get(avro, {"type": avro})
    kind = avro["type"]
    if kind in ("bytes", "fixed") and isinstance(value, str):
        octets = value.encode("latin-1", "replace")
        return _decimal_of(octets, avro) if is_decimal(avro) else octets
    if kind == "array" and isinstance(value, list):
        return [_default(avro["items"], each, named) for each in value]
    if kind == "map" and isinstance(value, dict):
        return {key: _default(avro["values"], each, named) for key, each in value.items()}
    if kind == "record" and isinstance(value, dict):
        given = {each["name"]: value.get(each["name"], each.get("default")) for each in avro["fields"]}
        return {each["name"]: _default(each["type"], given[each["name"]], named) for each in avro["fields"]}
    return value


def _decimal_of(octets: bytes, avro: dict[str, Any]) -> Decimal:
    sign, digits, _ = Decimal(int.from_bytes(octets, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -avro.get("scale", 0)))


def as_written(reader: Any, writer: Any) -> Any:
    """Return a reader's schema that also takes records that the writer calls otherwise, as Java does, and records
    without a field that has no default: it is null then.

    The writer's names that the reader lacks are aliases of those of its own that the writer lacks.
    """
    written = list(records_of(writer))
    own = {_short(each["name"]) for each in records_of(reader)}
    foreign = [each for each in written if _short(each["name"]) not in own]

    def adapted(avro: Any) -> Any:
        if isinstance(avro, list):
            return [adapted(each) for each in avro]
        if isinstance(avro, str):
            return avro
        found = dict(avro)
        for key in ("items", "values"):
            if key in found:
                found[key] = adapted(found[key])
        if avro["type"] == "record":
            same = [each for each in written if _short(each["name"]) == _short(avro["name"])]
            if not same:
                found["aliases"] = [*avro.get("aliases", []), *(each["name"] for each in foreign)]
            may_be = [*(same or foreign), *([writer] if avro is reader and writer in written else [])]
            fields = [{**each, "type": adapted(each["type"])} for each in avro["fields"]]
            found["fields"] = [_nullable(each) if _is_missing(each, may_be) else each for each in fields]
        return found

    found = adapted(reader)
    if isinstance(found, dict) and isinstance(writer, dict) and "record" == found["type"] == writer["type"]:
        found["aliases"] = [*found.get("aliases", []), writer["name"]]
    return found


def _is_missing(field: dict[str, Any], records: list[dict[str, Any]]) -> bool:
    """Return whether a field has no default and one of these records lacks it."""
    if "default" in field:
        return False
    return any(field["name"] not in {each["name"] for each in record["fields"]} for record in records)


def _nullable(field: dict[str, Any]) -> dict[str, Any]:
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return {**field, "type": ["null", *(each for each in kinds if each != "null")], "default": None}


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def records_of(avro: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of a schema, each once."""
    return (each for each in _within(avro) if isinstance(each, dict) and each["type"] == "record")


def _within(avro: Any) -> Iterator[Any]:
    """Yield a schema and all in it, what is named once."""
    yield avro
    if isinstance(avro, list):
        inner = avro
    elif isinstance(avro, str):
        inner = []
    else:
        inner = [avro[key] for key in ("items", "values") if key in avro]
        inner += [each["type"] for each in avro.get("fields", [])] if avro["type"] == "record" else []
    for each in inner:
        yield from _within(each)


def has_choices(avro: Any) -> bool:
    """Whether a union has a named type beside other ones: then the value that was read must show its type."""
    unions = (each for each in _within(avro) if isinstance(each, list))
    return any(any(map(_is_named, union)) and len(set(map(str, union)) - {"null"}) > 1 for union in unions)


def _is_named(avro: Any) -> bool:
    return avro not in PRIMITIVES if isinstance(avro, str) else isinstance(avro, dict) and avro["type"] in _NAMED


def with_definitions(parsed: Any) -> Any:
    """Return a schema that fastavro has parsed, which has named types themselves wherever it had their names.

    Only so fastavro finds, with a writer's and a reader's schema, which member of a union was written.
    """
    named = parsed.get("__named_schemas", {}) if isinstance(parsed, dict) else {}

    def whole(avro: Any) -> Any:
        return named.get(avro, avro) if isinstance(avro, str) else avro

    for each in list(_within(parsed)):
        if isinstance(each, list):
            each[:] = map(whole, each)
        elif isinstance(each, dict):
            each.update({key: whole(each[key]) for key in ("items", "values") if key in each})
            for field in each.get("fields", []):
                field["type"] = whole(field["type"])
    return parsed


def check_written(avro: Any) -> None:
    """Check that a value cannot make its reader work without end: a few bytes may say that an array has 2**60 items,
    and items of no bytes, such as nulls, do not end with the value.

    Raises:
        ValueError: it can.
    """
    try:
        stored_type(avro)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    _is_of_no_bytes(avro, {})


def _is_of_no_bytes(avro: Any, known: dict[str, bool]) -> bool:
    """Whether a value takes no bytes. Raises ValueError where it does and is an item of an array."""
    if isinstance(avro, list):
        for each in avro:
            _is_of_no_bytes(each, known)
        return False  # it says which member follows
    if isinstance(avro, str):
        return avro == "null" or known.get(avro, False)
    kind = avro["type"]
    if kind == "array" and _is_of_no_bytes(avro["items"], known):
        raise ValueError("its schema has an array whose items take no bytes, so that nothing ends it")
    if kind == "map":
        _is_of_no_bytes(avro["values"], known)
    if kind == "record":
        fields = [_is_of_no_bytes(each["type"], known) for each in avro["fields"]]
        known[avro["name"]] = all(fields)
        return known[avro["name"]]
    if kind == "fixed":
        known[avro["name"]] = avro["size"] <= 0
        return known[avro["name"]]
    return bool(kind == "null")


# ---- values that cannot be read by another version ----


def decimal_conflict(writer: Any, reader: Any) -> tuple[str, str, str] | None:
    """Return a field that is a decimal in one of two schemas and bytes or text in the other: its path and its types in
    both; None if there is none. Names of types in the schemas must be full."""
    for path, written, wanted in _Pairs(writer, reader).leaves():
        if is_decimal(written) != is_decimal(wanted) and {written["type"], wanted["type"]} <= _OCTETS:
            return path, _shown_type(written), _shown_type(wanted)
    return None


def other_units(writer: Any, reader: Any) -> dict[int, tuple[str, int, int]]:
    """Return the types in the reader's schema, by their ids, whose values are times in another unit than the writer's
    type has: that type, and what to multiply and to divide by. Avro does not convert them. Names of types in the
    schemas must be full."""
    found = {}
    for _, written, wanted in _Pairs(writer, reader).leaves():
        (kind, unit), (wanted_kind, wanted_unit) = map(_time_of, (written, wanted))
        if kind == wanted_kind and (unit, wanted_unit) in _FACTORS:
            found[id(wanted)] = (f"{kind}-{unit}", *_FACTORS[unit, wanted_unit])
    return found


def _time_of(avro: dict[str, Any]) -> tuple[str, str]:
    """Return the kind and the unit of a logical type such as local-timestamp-millis."""
    kind, _, unit = str(avro.get("logicalType")).rpartition("-")
    return kind, unit


def single_members(writer: Any, reader: Any) -> dict[int, str]:
    """Return the unions in the reader's schema, by their ids, for which the writer has one named type, and its name:
    its values do not show which member of the union they are. Names of types in the schemas must be full."""
    pairs = _Pairs(writer, reader)
    return {
        id(wanted): member["name"]
        for _, written, wanted in pairs.all()
        if isinstance(wanted, list) and not isinstance(written, list)
        for _, member in pairs.members(written, wanted)
        if "name" in member
    }


_Pair = tuple[str, Any, Any]
"""A path, and the types in both schemas."""


class _Pairs:
    """The types of two schemas that are of the same field, item or value."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self._schemas = writer, reader
        self._named = [{each["name"]: each for each in _within(avro) if _defines(each)} for avro in (writer, reader)]
        """The named types of each schema, by name. Constant."""

    def all(self) -> Iterator[_Pair]:
        return self._below(("", *self._schemas))

    def leaves(self) -> Iterator[_Pair]:
        """Yield the pairs of members that are of no further types."""
        for path, writer, reader in self.all():
            for written, wanted in self.members(writer, reader):
                if not _inner_pairs(path, written, wanted):
                    yield path, written, wanted

    def members(self, writer: Any, reader: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the types of a pair as objects; of unions, the members but null that are the same."""
        pairs = list(itertools.product(_members(writer, self._named[0]), _members(reader, self._named[1])))
        return [pair for pair in pairs if len(pairs) == 1 or _kind(pair[0]) == _kind(pair[1])]

    def _below(self, pair: _Pair) -> Iterator[_Pair]:
        yield pair
        path, writer, reader = pair
        for written, wanted in self.members(writer, reader):
            for inner in _inner_pairs(path, written, wanted):
                yield from self._below(inner)


def _inner_pairs(path: str, written: dict[str, Any], wanted: dict[str, Any]) -> list[_Pair]:
    found = [(path, written[key], wanted[key]) for key in ("items", "values") if key in written and key in wanted]
    if written["type"] == wanted["type"] == "record":
        before = {each["name"]: each["type"] for each in written["fields"]}
        for each in wanted["fields"]:
            if each["name"] in before:
                name = f"{path}.{each['name']}" if path else each["name"]
                found.append((name, before[each["name"]], each["type"]))
    return found


def _defines(avro: Any) -> bool:
    return isinstance(avro, dict) and avro["type"] in _NAMED


def _members(avro: Any, known: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a type as an object; of a union all members but null."""
    others = [each for each in avro if each != "null"] if isinstance(avro, list) else [avro]
    return [known.get(each, {"type": each}) if isinstance(each, str) else each for each in others]


def _kind(avro: dict[str, Any]) -> str:
    """Return what a union has one of: a name, a kind of time, or a type."""
    if avro["type"] in _NAMED:
        return _short(avro["name"])
    return _time_of(avro)[0] or str(avro["type"])


def _shown_type(avro: dict[str, Any]) -> str:
    return f"decimal({avro['precision']}, {avro.get('scale', 0)})" if is_decimal(avro) else str(avro["type"])
