"""JSON as Spark's own source reads it (jsonDialect spark), where that differs from `values`.

    string        a number, true or false is its text; an object or array is its compact JSON text
    whole number  5.0 is 5 (Spark's own source has null there); 5.5 and "5" are malformed
    decimal       rounded half up to the column's scale
    timestamp     a whole number is seconds since 1970; a date is its midnight
    date          the date of a timestamp's text
    an entry      its first JSON object, whatever follows

In mode PERMISSIVE a cell that does not fit is null, the entry's other cells stay, and the entry is in the column of
corrupt records. A text without zone is UTC, where Spark takes the session's zone. Single quotes are malformed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from bkspark.spark.formats import values
from bkspark.spark.formats.values import Convert

_WHITESPACE = " \t\n\r"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN_MIN, _PLAIN_MAX = 1e-3, 1e7
"""Java writes a double between these without an exponent."""


def parser(decoder: json.JSONDecoder) -> Callable[[bytes], Any]:
    """Return a function that parses the first JSON value of a payload."""

    def parse(payload: bytes) -> Any:
        return decoder.raw_decode(payload.decode().lstrip(_WHITESPACE))[0]

    return parse


def reader_of(kind: pa.DataType, *, is_whole: bool = False) -> Convert | None:
    """Return what `values.reader_of` does for JSON, as Spark reads it."""
    if kinds.is_nested(kind):
        return values.nested_reader(kind, lambda part: reader_of(part, is_whole=is_whole), is_whole=is_whole)
    if kinds.is_string(kind):
        return _text
    if kinds.is_integer(kind):
        return _whole
    if kinds.is_decimal(kind):
        return _rounded(kind.scale)
    if kinds.is_date(kind):
        return _date
    if kinds.is_timestamp(kind) and kind.tz is not None:
        return _timestamp
    return values.reader_of(kind, is_json=True, is_whole=is_whole)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (float, Decimal)):
        return _double_text(float(value))
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)


def _double_text(value: float) -> str:
    """Return a double as Java writes it."""
    if value == 0 or _PLAIN_MIN <= abs(value) < _PLAIN_MAX or value - value != 0:
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    sign = "-" if value < 0 else ""
    return f"{sign}{shown[0]}.{shown[1:] or '0'}E{len(digits) - 1 + exponent}"


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, (float, Decimal)) and value == int(value):
        return int(value)
    raise TypeError(f"{value!r} is not a whole number")


def _rounded(scale: int) -> Convert:
    unit = Decimal(1).scaleb(-scale)
    return lambda value: values.decimal_of(value).quantize(unit, ROUND_HALF_UP)


def _date(value: Any) -> date:
    return datetime.fromisoformat(_string(value)).date()


def _timestamp(value: Any) -> datetime:
    if type(value) is int:
        return _EPOCH + timedelta(seconds=value)
    moment = datetime.fromisoformat(_string(value))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
