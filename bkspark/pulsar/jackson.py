"""Values in JSON that Java's producers write otherwise than the Avro schema says. PURE.

Pulsar's schema of a Java class is Avro's also where the values are JSON, which Jackson writes with its own forms:

Instant                             1577934245.678901000: seconds with nine digits after the point
LocalDate                           [2020, 1, 2]
LocalTime                           [3, 4, 5, 678901000]; seconds and nanoseconds may be left out
LocalDateTime                       [2020, 1, 2, 3, 4, 5, 678901000]
BigDecimal, BigInteger              a number, where the schema says string
char                                a text of one character, where the schema says int
java.util.Date, java.util.Calendar, java.sql.Date, java.sql.Timestamp
                                    milliseconds since 1970, where the schema says record without fields
java.sql.Time                       a text, 03:04:05, where the schema says record without fields

Other producers write the numbers that the schema says, which are accepted, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any

from bkspark.pulsar.avro import records_of

Converter = Callable[[Any], Any]
"""Returns the value that the Avro schema says. Values that have no form of Jackson are returned as they are."""

_INSTANT_DIGITS = 9
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_NANOS, _SECONDS_OF_DAY = 1_000_000_000, 86_400
# Decimal digits of a second, by the second part of a logical type's name.
_DIGITS = {"millis": 3, "micros": 6}
_INSTANTS = {"timestamp-millis": 3, "timestamp-micros": 6}
_NUMBERS_AS_TEXT = ("java.math.BigDecimal", "java.math.BigInteger")
_EXACT = ("decimal", *_NUMBERS_AS_TEXT)

_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
_CLASSES = {
    "java.util.Date": _MILLIS, "java.util.Calendar": _MILLIS, "java.sql.Date": _MILLIS, "java.sql.Timestamp": _MILLIS,
    "java.sql.Time": "string",
}  # fmt: skip
"""What Jackson writes for classes that are values, without fields in the schema."""


def with_dates(avro: Any) -> Any:
    """Return a schema with full names in which Java's classes of dates and times are what Jackson writes for them."""
    found = {each["name"] for each in records_of(avro) if each["name"] in _CLASSES and not each["fields"]}
    return _replaced(avro, {name: _CLASSES[name] for name in found}) if found else avro


def _replaced(avro: Any, types: dict[str, Any]) -> Any:
    if isinstance(avro, list):
        return [_replaced(each, types) for each in avro]
    if isinstance(avro, str):
        return copy(types.get(avro, avro))
    if avro["type"] != "record":
        # An array's items, or a map's values.
        return avro | {key: _replaced(avro[key], types) for key in ("items", "values") if key in avro}
    if avro["name"] in types:
        return copy(types[avro["name"]])  # types are distinguished by identity
    return {**avro, "fields": [{**each, "type": _replaced(each["type"], types)} for each in avro["fields"]]}


def number_of(avro: Any) -> Callable[[str], Any]:
    """Return what makes numbers that are not integers, in values of a schema, of their text: decimals where all digits
    count, otherwise floats, which cost less."""
    named = set(_names_in(avro))
    if named.intersection(_EXACT):
        return Decimal
    return _float_or_instant if named.intersection(_INSTANTS) else float


def _names_in(avro: Any) -> Iterator[Any]:
    """Yield the logical types and Java classes in a schema."""
    if isinstance(avro, dict):
        yield from (each for each in (avro.get("logicalType"), avro.get("java-class")) if isinstance(each, str))
    if isinstance(avro, (dict, list)):
        for each in avro.values() if isinstance(avro, dict) else avro:
            yield from _names_in(each)


def _float_or_instant(text: str) -> float | Decimal:
    # An instant near 1970 has an exponent: 1E-9.
    has_nine_digits = text[-1 - _INSTANT_DIGITS :][:1] == "."
    return Decimal(text) if has_nine_digits or "E" in text else float(text)


def converter_of(avro: dict[str, Any], *, has_reals: bool) -> Converter | None:
    """Return the converter of a type; None if Jackson writes it as the schema says.

    Args:
        has_reals: there are numbers that are not integers.
    """
    kind, logical, java = avro["type"], avro.get("logicalType"), avro.get("java-class")
    if kind == "long" and logical in _INSTANTS:
        return partial(_instant, _INSTANTS[logical]) if has_reals else None
    if kind == "int" and logical == "date":
        return _day
    prefix, _, unit = str(logical).rpartition("-")
    if prefix == "local-timestamp" and unit in _DIGITS:
        return partial(_local_time, _DIGITS[unit])
    if prefix == "time" and unit in _DIGITS:
        return partial(_time, _DIGITS[unit])
    if kind == "string" and java in _NUMBERS_AS_TEXT:
        return _text
    if kind == "int" and java == "java.lang.Character":
        return _code
    return _nothing if kind == "record" and not avro["fields"] else None


def _instant(digits: int, value: Any) -> Any:
    if isinstance(value, Decimal) and value.as_tuple().exponent == -_INSTANT_DIGITS:
        return math.floor(value.scaleb(digits))
    return value


def _day(value: Any) -> Any:
    return _days(value) if isinstance(value, list) else value


def _days(parts: list[Any]) -> int:
    _check_integers(parts, 3, 3)
    return date(*parts).toordinal() - _EPOCH_DAY


def _time(digits: int, value: Any) -> Any:
    return _nanos(value) // 10 ** (9 - digits) if isinstance(value, list) else value


def _local_time(digits: int, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    nanos = _days(value[:3]) * _SECONDS_OF_DAY * _NANOS + _nanos(value[3:])
    return nanos // 10 ** (9 - digits)


def _nanos(parts: list[Any]) -> int:
    """Return the nanoseconds of a time of day: hours, minutes, and seconds and nanoseconds if they are not zero."""
    _check_integers(parts, 2, 4)
    hours, minutes, seconds, nanos = (*parts, 0, 0)[:4]
    if not (0 <= hours < 24 and 0 <= minutes < 60 and 0 <= seconds < 60 and 0 <= nanos < _NANOS):
        raise ValueError(f"it holds the numbers {str(parts)[:40]}, which are not a time of day")
    return ((hours * 60 + minutes) * 60 + seconds) * _NANOS + nanos


def _check_integers(parts: list[Any], least: int, most: int) -> None:
    if not least <= len(parts) <= most or not all(type(each) is int for each in parts):
        raise ValueError(f"it holds the array {str(parts)[:40]} where a date or time is expected")


def _text(value: Any) -> Any:
    return str(value) if type(value) in (int, Decimal) else value


def _code(value: Any) -> Any:
    return ord(value) if isinstance(value, str) and len(value) == 1 else value


def _nothing(value: Any) -> Any:
    return {} if type(value) in (int, float, Decimal) else value
