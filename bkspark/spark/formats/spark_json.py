"""JSON as Spark's own source reads it (jsonDialect spark), where that differs from `values`.

    string        a number, true or false is its text; an object or array is its compact JSON text
    whole number  5.0 is 5 (Spark's own source has null there); 5.5 and "5" are malformed
    float         also the words "+INF", "-INF", "+Infinity"
    decimal       rounded half up to the column's scale; a text may have commas between its thousands
    timestamp     a whole number is seconds since 1970; a text as Spark casts it: 2024-2-9 1:2:3.5 Europe/Berlin, also
                  without the time, the day or the month
    date          the date of such a text, whatever follows it
    an entry      its first JSON object, whatever follows; a byte order mark before it is ignored

In mode PERMISSIVE a cell that does not fit is null, the entry's other cells stay, and the entry is in the column of
corrupt records.

Otherwise than in Spark's own source

* a text without zone is UTC; there it is the session's zone;
* what does not fit inside an array, map or struct makes the whole cell null; a number beyond a tinyint does not fit;
* these are malformed: single quotes, an array of objects (an entry is one row), an empty entry, years beyond 9999, a
  time without a date, and base64 with line breaks;
* these are read: ISO 8601 in its other forms, a map as an array of [key, value], and an interval as a number of
  microseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.types as kinds

from bkspark.spark.formats import values
from bkspark.spark.formats.values import Convert

_WHITESPACE = " \t\n\r"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN_MIN, _PLAIN_MAX = 1e-3, 1e7
"""Java writes a double between these without an exponent."""
_DIGITS = Context(prec=76)
"""Precision above that of any decimal: Python's default of 28 would refuse longer ones."""
_WORDS_OF_FLOATS = {"+INF": "Infinity", "-INF": "-Infinity", "+Infinity": "Infinity"}
_DAY = r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})"
_DATE = re.compile(_DAY + r"(?:[ T].*)?)?)?", re.DOTALL | re.ASCII)
_MOMENT = re.compile(_DAY + r"(?:[ T](?:(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d*))?(.*))?)?)?)?", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", re.ASCII)


def parser(decoder: json.JSONDecoder) -> Callable[[bytes], Any]:
    """Return a function that parses the first JSON value of a payload."""

    def parse(payload: bytes) -> Any:
        return decoder.raw_decode(payload.removeprefix(_BYTE_ORDER_MARK).decode().lstrip(_WHITESPACE))[0]

    return parse


def reader_of(kind: pa.DataType, *, is_whole: bool = False) -> Convert | None:
    """Return what `values.reader_of` does for JSON, as Spark reads it."""
    if kinds.is_nested(kind):
        return values.nested_reader(kind, lambda part: reader_of(part, is_whole=is_whole), is_whole=is_whole)
    if kinds.is_string(kind):
        return _text
    if kinds.is_integer(kind):
        return _whole
    if kinds.is_floating(kind):
        return _float
    if kinds.is_decimal(kind):
        return _rounded(kind.scale)
    if kinds.is_date(kind):
        return _date
    if kinds.is_timestamp(kind):
        return _timestamp if kind.tz is not None else _local_time
    return values.reader_of(kind, is_json=True, is_whole=is_whole)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> str:
    """Return the JSON text of a value as Java writes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_compact(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    if isinstance(value, (float, Decimal)):
        return _double_text(float(value))
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _double_text(value: float) -> str:
    """Return a double as Java writes it into JSON."""
    if value == 0 or _PLAIN_MIN <= abs(value) < _PLAIN_MAX or value - value != 0:
        return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}.get(repr(value), repr(value))
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


def _float(value: Any) -> float:
    return values.float_of(_WORDS_OF_FLOATS.get(value, value) if isinstance(value, str) else value)


def _rounded(scale: int) -> Convert:
    unit = Decimal(1).scaleb(-scale)

    def rounded(value: Any) -> Decimal:
        number = values.decimal_of(value.replace(",", "") if isinstance(value, str) else value)
        return number.quantize(unit, ROUND_HALF_UP, _DIGITS)

    return rounded


def _date(value: Any) -> date:
    text = _string(value)
    found = _DATE.fullmatch(text)
    return date(*_day(found)) if found is not None else datetime.fromisoformat(text).date()


def _timestamp(value: Any) -> datetime:
    if type(value) is int:
        return _EPOCH + timedelta(seconds=value)
    moment = _moment(_string(value))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _local_time(value: Any) -> datetime:
    moment = _moment(_string(value))
    if moment.tzinfo is not None:
        raise ValueError(f"{value!r} has a zone, but the column's type has no zone")
    return moment


def _moment(text: str) -> datetime:
    """Return the time of a text: as Spark casts texts, else ISO 8601."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return datetime.fromisoformat(text)
    hour, minute, second = (int(each or 0) for each in found.group(4, 5, 6))
    microseconds = int((found[7] or "").ljust(6, "0")[:6])
    return datetime(*_day(found), hour, minute, second, microseconds, _zone((found[8] or "").strip()))


def _day(found: re.Match[str]) -> tuple[int, int, int]:
    year, month, day = found.group(1, 2, 3)
    return int(year), int(month or 1), int(day or 1)


def _zone(text: str) -> tzinfo | None:
    """Return the time zone of a text; None if it is empty. Raises ValueError if it is not one."""
    if not text:
        return None
    if text in ("Z", "UTC", "GMT", "UT"):
        return UTC
    offset = _OFFSET.fullmatch(text)
    if offset is not None:
        sign = -1 if offset[1] == "-" else 1
        return timezone(sign * timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0)))
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, OSError):
        raise ValueError(f"{text!r} is not a time zone") from None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value.strip()
