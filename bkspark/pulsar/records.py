"""Decodes values of AVRO and JSON schemas: each is parsed by itself, all together become an Arrow array.

AVRO is Avro's binary form without a header; JSON is UTF-8 text of one value, which Java's Jackson wrote by the Avro
schema: an object, if the schema is a record.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from bkspark.decimals import for_arrow
from bkspark.errors import ConfigurationError
from bkspark.ids import INT64_MAX
from bkspark.pulsar.avro import (
    are_numbers,
    arrow_of_avro,
    as_written,
    check_written,
    decimal_conflict,
    has_choices,
    is_decimal,
    other_units,
    plain,
    single_members,
    stored_type,
    with_definitions,
)
from bkspark.pulsar.jackson import converter_of, number_of
from bkspark.pulsar.malformed import MALFORMED, MalformedValues, each
from bkspark.pulsar.schemas import AVRO_READ_OFFSET, Schema

ValueDecoder = Callable[[pa.Array], pa.Array]
"""Takes binary, returns as many values; null for null. Raises ValueError if a value is malformed: MalformedValues if it
finds out which ones are."""
Converter = Callable[[Any], Any]
"""Converts a parsed value for Arrow."""

T = TypeVar("T")

_INT_MAX = (1 << 31) - 1


class JsonDecoder:
    """Decodes JSON values that were written with a schema to the type of another; a field that an object lacks is null.
    It is a ValueDecoder."""

    def __init__(self, schema: Schema, target: Schema) -> None:
        avro = target.avro()
        self._stored, self._wanted = stored_type(avro), arrow_of_avro(avro)
        """The Arrow type that values are parsed to, and the one that they are cast to (`_wanted`)."""
        units = _units_of_json(schema, avro)
        self._convert = _Converters(is_json=True, units=units).of(avro)
        """Turns a parsed value into one of the stored type; `_convert_reals`: if a number in it is not an integer."""
        self._convert_reals = _Converters(is_json=True, has_reals=True, units=units).of(avro)
        self._number = number_of(avro)
        self._parse = json.JSONDecoder(parse_float=self._real).decode
        """Parses the text of a value, and notes whether it has such numbers."""
        self._has_reals = False
        """Whether one of the values being parsed has a number that is not an integer."""

    def _real(self, text: str) -> Any:
        self._has_reals = True
        return self._number(text)

    def __call__(self, values: pa.Array) -> pa.Array:
        self._has_reals = False
        rows: list[Any] = each(self._value, values.to_pylist())
        convert = self._convert_reals if self._has_reals else self._convert
        if convert is not None:
            rows = each(convert, rows)
        return _array(rows, self._stored, self._wanted)

    def _value(self, value: bytes) -> Any:
        return self._parse(value.decode(json.detect_encoding(value), "surrogatepass"))


def _units_of_json(schema: Schema, target: Any) -> dict[int, tuple[str, int, int]]:
    try:
        return other_units(schema.avro(), target)
    except ConfigurationError:
        return {}  # very old versions are JSON Schemas


def _checked(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"it holds a {type(value).__name__} where JSON's {_NAMES[kind]} is expected")
    return value


_NAMES: dict[type, str] = {dict: "object", list: "array", str: "string"}


def avro_decoder(schema: Schema, target: Schema) -> ValueDecoder:
    """Return the decoder of Avro values that were written with a schema, to the columns of another.

    Raises:
        ConfigurationError: the package for it is not installed.
        ValueError: nothing can be read by these schemas.
    """
    read = _fastavro().schemaless_reader
    writer, reader = schema.avro(), target.avro()
    check_written(writer)
    parsed = _parsed(plain(writer), schema)
    # Resolving costs ten times as much, so it is done only if the schemas differ.
    is_same = plain(writer) == plain(reader)
    resolved = None if is_same else _parsed(plain(as_written(reader, writer)), target)
    if resolved is not None:
        parsed, resolved = with_definitions(parsed), with_definitions(resolved)
    is_named = has_choices(reader)
    stored, wanted = stored_type(reader), arrow_of_avro(reader)
    # Not by `is_same`: plain types have no units.
    is_equal = writer == reader
    units, singles = (None, None) if is_equal else (other_units(writer, reader), single_members(writer, reader))
    convert = _Converters(is_json=False, is_named=is_named, units=units, singles=singles).of(reader)
    skipped = _read_offset(schema)

    def row(value: bytes) -> Any:
        stream = io.BytesIO(value)
        stream.seek(skipped)
        try:
            found = read(stream, parsed, resolved, return_named_type=is_named)
        except Exception as error:  # bytes of another schema can cause errors of any type
            raise ValueError(f"it is not a record of its schema: {type(error).__name__}: {str(error)[:200]}") from None
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes follow its record: another schema wrote it")
        return found if convert is None else convert(found)

    def decode(values: pa.Array) -> pa.Array:
        try:
            return _array(each(row, values.to_pylist()), stored, wanted)
        except MalformedValues as error:
            conflict = decimal_conflict(writer, reader) if isinstance(error.first, _Unfit) else None
            if conflict is None:
                raise
            field, was, is_now = conflict
            reason = (
                f"its field '{field}' is {was} in version {schema.version} of the topic's schema, with which it was "
                f"written, and {is_now} in version {target.version}; use valueFormat=raw"
            )
            raise MalformedValues(error.rows, reason) from None

    return decode


def _parsed(avro: Any, schema: Schema) -> Any:
    try:
        return _fastavro().parse_schema(avro, _ignore_default_error=True)
    except Exception as error:  # its errors have no class of their own
        raise ValueError(
            f"version {schema.version} of the topic's schema cannot be used ({type(error).__name__}: "
            f"{str(error)[:200]}); use valueFormat=raw"
        ) from None


class _Unfit(ValueError):
    """A parsed value is not one of its type."""


def _array(rows: Sequence[Any], stored: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """Return values as an array. Raises MalformedValues for those that do not fit."""
    try:
        return _made(rows, stored, wanted)
    except MALFORMED:
        pass
    wrong = _misfits(rows, stored, wanted)
    if not wrong:
        raise ValueError("together they are more than an array holds")
    raise MalformedValues(np.array(wrong), _unfit(rows[wrong[0]], stored, wanted))


def _made(rows: Sequence[Any], stored: pa.DataType, wanted: pa.DataType) -> pa.Array:
    found = pa.array(rows, stored)
    return found if stored == wanted else found.cast(wanted)


def _misfits(rows: Sequence[Any], stored: pa.DataType, wanted: pa.DataType, first: int = 0) -> list[int]:
    """Return the places of the values that do not fit, where rows[0] is at place `first`. Most values usually fit, so
    they are tried together."""
    try:
        _made(rows, stored, wanted)
    except MALFORMED:
        if len(rows) == 1:
            return [first]
        middle = len(rows) // 2
        after = _misfits(rows[middle:], stored, wanted, first + middle)
        return _misfits(rows[:middle], stored, wanted, first) + after
    return []


def _unfit(row: Any, stored: pa.DataType, wanted: pa.DataType) -> _Unfit:
    """Return the error for a value that does not fit, with the field that does not."""
    if isinstance(row, dict) and pa.types.is_struct(stored):
        for place, field in enumerate(stored):
            value, kind = row.get(field.name), wanted.field(place).type
            if _misfits([value], field.type, kind):
                return _Unfit(f"its field '{field.name}' is {str(value)[:40]!r}, which cannot be {kind}")
    return _Unfit(f"it is {str(row)[:40]!r}, which cannot be {wanted}")


def _read_offset(schema: Schema) -> int:
    found = schema.properties.get(AVRO_READ_OFFSET, "0")
    return int(found) if found.isdecimal() else 0


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise ConfigurationError(
            "the topic's schema is AVRO: install bkspark[avro], or read the bytes with valueFormat=raw"
        ) from None
    return fastavro


# ---- parsed values to those that Arrow takes ----


class _Converters:
    """Converters of the types of one schema.

    Args:
        is_json: values were parsed from JSON, which has no bytes, and are checked where Arrow accepts other ones.
        has_reals: numbers of JSON may have a fraction, which Arrow would drop from an integer.
        is_named: a value of a named type that is a member of a union comes as a pair, with its name.
        units: types whose values are in another unit, as `other_units` has them.
        singles: unions whose values are of one member, as `single_members` has them.
    """

    def __init__(
        self,
        *,
        is_json: bool,
        has_reals: bool = False,
        is_named: bool = False,
        units: Mapping[int, tuple[str, int, int]] | None = None,
        singles: Mapping[int, str] | None = None,
    ) -> None:
        self._is_json = is_json
        self._has_reals = has_reals
        self._is_named = is_named
        self._units = units or {}
        self._singles = singles or {}
        self._named: dict[str, Converter | None] = {}
        """Converters of named types."""
        self._definitions: dict[str, Any] = {}
        """Named types."""

    def of(self, avro: Any) -> Converter | None:
        """Return the converter of a type; None if Arrow accepts its values as they are."""
        if isinstance(avro, dict) and id(avro) in self._units:
            logical, *factors = self._units[id(avro)]
            as_written = self.of({**avro, "logicalType": logical})
            in_unit = partial(_in_unit, *factors)
            return in_unit if as_written is None else partial(_both, as_written, in_unit)
        made = self._of_avro(avro)
        if not self._is_json or not isinstance(avro, dict):
            return made
        of_java = converter_of(avro, has_reals=self._has_reals)
        if of_java is None:
            return made
        both = of_java if made is None else partial(_both, of_java, made)
        if "name" in avro:
            self._named[avro["name"]] = both
        return both

    def _of_avro(self, avro: Any) -> Converter | None:
        if isinstance(avro, list):
            return self._of_union([each for each in avro if each != "null"], self._singles.get(id(avro)))
        if isinstance(avro, str):
            return self._named[avro] if avro in self._named else self._of_primitive(avro)
        kind = avro["type"]
        if kind == "array":
            item = self.of(avro["items"])
            if self._is_json:
                return partial(_items_of_json, item)
            return None if item is None else partial(_converted_items, item)
        if kind == "map":
            return partial(_pairs, self.of(avro["values"]))
        if kind == "record":
            inner = {each["name"]: self.of(each["type"]) for each in avro["fields"]}
            changing = {name: convert for name, convert in inner.items() if convert is not None}
            made: Converter | None = partial(_converted_record, changing) if changing or self._is_json else None
        else:
            made = _decimal if is_decimal(avro) else self._of_primitive(kind)
        if "name" in avro:
            made = partial(_without_name, made) if self._is_named else made
            self._named[avro["name"]], self._definitions[avro["name"]] = made, avro
        return made

    def _of_primitive(self, kind: str) -> Converter | None:
        if self._has_reals and kind in ("int", "long"):
            return _whole
        return _OF_JSON.get(kind) if self._is_json else None

    def _of_union(self, others: list[Any], name: str | None) -> Converter | None:
        converters = [self.of(each) for each in others]
        if len(others) <= 1 or are_numbers(others):
            return converters[0] if converters else None
        members = [self._definitions.get(each, {"type": each}) if isinstance(each, str) else each for each in others]
        return partial(self._member, members, converters, name)

    def _member(
        self, members: list[Any], converters: list[Converter | None], name: str | None, value: Any
    ) -> dict[str, Any]:
        if isinstance(value, tuple):
            name, value = value
        if name is not None:
            place = next((place for place, member in enumerate(members) if member.get("name") == name), None)
        else:
            place = self._place_of(members, value)
        if place is None:
            raise ValueError(f"it holds a {type(value).__name__}, which is not a member of its union")
        convert = converters[place]
        return {f"member{place}": value if convert is None else convert(value)}

    def _place_of(self, members: list[Any], value: Any) -> int | None:
        """Return the place of the member that a value without a name is of; None if it is of none of them."""
        fits = partial(_fits_json if self._is_json else _fits, value=value)
        # Only a default is of a named type and has no name.
        for may_be_named in (False, True) if self._is_named else (True,):
            for is_exact in (True, False):
                for place, member in enumerate(members):
                    if (may_be_named or "name" not in member) and fits(member, is_exact=is_exact):
                        return place
        return None


def _fits(member: Any, *, value: Any, is_exact: bool) -> bool:
    """Whether a value read from Avro is one of a type: exactly, so that no other member has to be tried first."""
    kind = member["type"]
    if kind == "record":
        return isinstance(value, dict) and (not is_exact or value.keys() == {each["name"] for each in member["fields"]})
    if is_decimal(member):
        return isinstance(value, Decimal)
    if kind in ("bytes", "fixed"):
        return isinstance(value, bytes)
    if kind in ("float", "double"):
        return isinstance(value, float) and (not is_exact or kind == "double" or _is_single(value))
    if kind in ("int", "long"):
        return type(value) is int and (not is_exact or kind == "long" or -_INT_MAX - 1 <= value <= _INT_MAX)
    if kind == "enum":
        return isinstance(value, str) and (not is_exact or value in member["symbols"])
    return isinstance(value, _PYTHON.get(kind, ()))


def _fits_json(member: Any, *, value: Any, is_exact: bool) -> bool:
    """The same of a value read from JSON, which has no bytes, and leaves out fields that are null."""
    kind = member["type"]
    if kind == "record":
        return isinstance(value, dict) and (not is_exact or value.keys() <= {each["name"] for each in member["fields"]})
    if not is_decimal(member) and kind in ("bytes", "fixed"):
        return isinstance(value, str)
    if is_decimal(member) or kind in ("float", "double"):
        is_number = isinstance(value, (float, Decimal)) or (type(value) is int and not is_exact)
        return is_number and (not is_exact or kind != "float" or _is_single(float(value)))
    return _fits(member, value=value, is_exact=is_exact)


_PYTHON = {"boolean": bool, "string": str, "array": list, "map": dict}


def _is_single(value: float) -> bool:
    """Whether four bytes hold a number as it is."""
    try:
        return bool(value != value or struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False


def _both(first: Converter, second: Converter, value: Any) -> Any:
    return second(first(value))


def _without_name(convert: Converter | None, value: Any) -> Any:
    if isinstance(value, tuple):
        value = value[1]
    return value if convert is None or value is None else convert(value)


def _converted_record(changing: dict[str, Converter], record: dict[str, Any]) -> dict[str, Any]:
    found = dict(_checked(dict, record))
    for name, convert in changing.items():
        if found.get(name) is not None:
            found[name] = convert(found[name])
    return found


def _converted_items(item: Converter, values: list[Any]) -> list[Any]:
    return [None if value is None else item(value) for value in values]


def _items_of_json(item: Converter | None, values: Any) -> list[Any]:
    found = _checked(list, values)
    return found if item is None else _converted_items(item, found)


def _pairs(item: Converter | None, value: dict[str, Any]) -> list[tuple[str, Any]]:
    pairs = _checked(dict, value).items()
    return [(name, each if item is None or each is None else item(each)) for name, each in pairs]


def _in_unit(factor: int, divisor: int, value: Any) -> Any:
    return value * factor // divisor if type(value) is int else value


def _decimal(value: Any) -> Decimal:
    try:
        return for_arrow(value if isinstance(value, Decimal) else Decimal(str(value)))
    except ArithmeticError:
        raise _Unfit(f"it holds {str(value)[:40]!r} where a decimal is expected") from None


def _float(value: Any) -> float:
    """Return a float from JSON, which lacks some numbers: Jackson writes "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(f"it holds the text {value[:40]!r} where a number is expected")
    if isinstance(value, bool):
        raise ValueError("it holds a boolean where a number is expected")
    return float(value)


def _whole(value: Any) -> Any:
    """Return a number of JSON as an integer, which it may be though it is written as 1.0."""
    if not isinstance(value, (float, Decimal)):
        return value
    if not -INT64_MAX <= value <= INT64_MAX or value != int(value):
        raise ValueError(f"it holds the number {str(value)[:40]} where an integer is expected")
    return int(value)


def _symbol(value: Any) -> Any:
    """Return the symbol of an enum. Pulsar's Python client writes a number that the schema does not have: its text."""
    return str(value) if type(value) is int else value


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(_checked(str, value), validate=True)
    except binascii.Error:
        raise ValueError("it holds a text that is not Base64") from None


_OF_JSON: dict[str, Converter] = {
    "bytes": _base64, "fixed": _base64, "float": _float, "double": _float, "enum": _symbol,
}  # fmt: skip
