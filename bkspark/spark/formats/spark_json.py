"""JSON as Spark's own source reads it (jsonDialect spark), where that differs from `values`.

    string        a number, true, an object or an array is its text as it was written
    binary        base64, also with blanks and line breaks before each four characters
    whole number  5.0 is 5 (Spark's own source has null there); 5.5 and "5" are malformed
    float         also the words "+INF", "-INF", "+Infinity"
    decimal       rounded half up to the column's scale; a text may have commas between its thousands
    timestamp     a whole number is seconds since 1970; a text as Spark casts it: 2024-2-9 1:2:3.5 Europe/Berlin, also
                  without the time, the day or the month
    date          the date of such a text, whatever follows it
    an entry      its first JSON object, whatever follows; a byte order mark before it is ignored

In mode PERMISSIVE a cell that does not fit is null, the entry's other cells stay, and the entry is in the column of
corrupt records. The same holds for members of structs; an element of an array, or a value of a map, that does not fit
makes the array or map null.

Otherwise than in Spark's own source

* a text without zone is UTC; there it is the session's zone;
* a number beyond a tinyint does not fit;
* columns are found in the order in which they appear, an empty text is text, and no column is left out; of a member
  that an object has twice, the last one decides whether the entry is malformed;
* these are malformed: single quotes, INF and +Infinity without quotes, text that is not UTF-8 and half a surrogate
  pair, an array of objects (an entry is one row), an empty entry, years beyond 9999 and below 1, a time without a date,
  a date as a number of days, zones such as PST or +01:30:15, an interval as text, a value of type void, and base64
  that continues after its padding;
* an entry that is not JSON has only nulls; there it has what comes before the error. There base64 whose end is missing
  makes all columns null;
* these are read: ISO 8601 in its other forms, a map as an array of [key, value], an interval as a number of
  microseconds, and a member with the name of the column of corrupt records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
_WHOLE_DIGITS_MAX = 20
_DIGITS = Context(prec=76)
"""Precision above that of any decimal: Python's default of 28 would refuse longer ones."""
_LOSSY = frozenset((dict, list, float))
"""Types of parsed values that may not be what was written."""
_WORDS_OF_FLOATS = {"+INF": "Infinity", "-INF": "-Infinity", "+Infinity": "Infinity"}
_DAY = r"\+?(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
_DATE = re.compile(_DAY + r"(?:[ T].*)?)?)?", re.DOTALL | re.ASCII)
_MOMENT = re.compile(_DAY + r"(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d*+))?(.*))?)?)?", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", re.ASCII)
_BLANKS = re.compile(r"[\0- ]+")
"""White space and line breaks in base64."""


class Number:
    """A JSON number with a fraction or an exponent, as it was written: a double would lose digits."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def parser(schema: pa.Schema) -> Callable[[bytes], Any]:
    """Return a function that parses the first JSON value of a payload, for columns of a schema.

    An object or array in a string column is its text.
    """
    whole = pa.struct(list(schema))
    places = _places_of(whole)
    as_written = json.JSONDecoder(parse_float=Number)
    # Doubles are cheaper. A decimal usually needs the digits, other columns rarely.
    first = as_written if values.has_decimal(whole) else json.JSONDecoder()

    def parse(payload: bytes) -> Any:
        text = payload.removeprefix(_BYTE_ORDER_MARK).decode().lstrip(_WHITESPACE)
        value = first.raw_decode(text)[0]
        if places is None or not _loses(places, value):
            return value
        value = as_written.raw_decode(text)[0]
        return _with_texts(places, text, 0, as_written)[0] if _loses(places, value) else value

    return parse


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a type needs what is written: itself, members of a struct, or each `element` of a list or value of a map.

    is_text: a string, which may be the text of any value. has_digits: a string or integer, which a double may round.
    pair: the elements of a map that is an array of [key, value], of which `second` is the value.
    """

    is_text: bool = False
    has_digits: bool = False
    members: Mapping[str, _Places] = field(default_factory=dict)
    element: _Places | None = None
    pair: _Places | None = None
    second: _Places | None = None

    def at(self, index: int) -> _Places | None:
        """Return the places of an element of an array."""
        if self.second is not None:
            return self.second if index == 1 else None
        return self.element if self.pair is None else self.pair


def _places_of(kind: pa.DataType) -> _Places | None:
    if kinds.is_string(kind) or kinds.is_integer(kind):
        return _Places(is_text=kinds.is_string(kind), has_digits=True)
    if kinds.is_struct(kind):
        members = {member.name: place for member in kind if (place := _places_of(member.type)) is not None}
        return _Places(members=members) if members else None
    if not kinds.is_nested(kind):
        return None
    element = _places_of(kind.item_type if kinds.is_map(kind) else kind.value_type)
    if element is None:
        return None
    return _Places(element=element, pair=_Places(second=element) if kinds.is_map(kind) else None)


def _loses(places: _Places, value: Any) -> bool:
    """Return whether there is an object or array where the type has a string, or a double where it has digits."""
    if type(value) is dict:
        if places.is_text:
            return True
        for name, place in places.members.items():
            part = value.get(name)
            if (type(part) in _LOSSY or part == 0) and _loses(place, part):
                return True
        element = places.element
        return element is not None and any(_loses(element, part) for part in value.values())
    if type(value) is list:
        found = ((places.at(index), part) for index, part in enumerate(value))
        return places.is_text or any(place is not None and _loses(place, part) for place, part in found)
    if type(value) is int:
        return places.is_text and not value  # -0
    return type(value) is float and places.has_digits


def _with_texts(places: _Places | None, text: str, at: int, decoder: json.JSONDecoder) -> tuple[Any, int]:
    """Return the value that begins at a place of a well-formed text, with texts for objects and arrays where the type
    has a string; and its end."""
    value, end = decoder.raw_decode(text, at)
    if places is None or type(value) not in (dict, list, int):
        return value, end
    if places.is_text:
        return text[at:end], end
    if type(value) is int:
        return value, end
    found: dict[str, Any] = {}
    elements: list[Any] = []
    at = _next(text, at + 1)
    while text[at] not in "}]":
        at = _next(text, at + (text[at] == ","))
        if isinstance(value, list):
            element, at = _with_texts(places.at(len(elements)), text, at, decoder)
            elements.append(element)
        else:
            name, at = decoder.raw_decode(text, at)
            place = places.members.get(name, places.element)
            found[name], at = _with_texts(place, text, _next(text, _next(text, at) + 1), decoder)
        at = _next(text, at)
    return found if isinstance(value, dict) else elements, end


def _next(text: str, at: int) -> int:
    """Return the place of the next character that is not white space."""
    while text[at] in _WHITESPACE:
        at += 1
    return at


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
    if kinds.is_binary(kind):
        return _binary
    if kinds.is_date(kind):
        return _date
    if kinds.is_timestamp(kind):
        return _timestamp if kind.tz is not None else _local_time
    return values.reader_of(kind, is_json=True, is_whole=is_whole)


def fitting(kind: pa.DataType, value: Any) -> Any:
    """Return a JSON value without the members of structs that do not fit their types: they are null."""
    if kinds.is_struct(kind) and isinstance(value, dict):
        return {member.name: _fitting_member(member.type, value.get(member.name)) for member in kind}
    if kinds.is_list(kind) and isinstance(value, list):
        return [fitting(kind.value_type, element) for element in value]
    if kinds.is_map(kind) and isinstance(value, dict):
        return {key: fitting(kind.item_type, item) for key, item in value.items()}
    return value


def _fitting_member(kind: pa.DataType, value: Any) -> Any:
    value = fitting(kind, value)
    convert = reader_of(kind)
    try:
        pa.array([value if value is None or convert is None else convert(value)], kind)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        return None
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return value.text if isinstance(value, Number) else json.dumps(value)


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, Number):
        number = Decimal(value.text)
        # 1e999999999 is a whole number of a billion digits.
        if number.adjusted() <= _WHOLE_DIGITS_MAX and number == number.to_integral_value(context=_DIGITS):
            return int(number)
    if isinstance(value, float) and value == int(value):
        return int(value)
    raise TypeError(f"{value!r} is not a whole number")


def _float(value: Any) -> float:
    if isinstance(value, Number):
        return float(value.text)
    return values.float_of(_WORDS_OF_FLOATS.get(value, value) if isinstance(value, str) else value)


def _rounded(scale: int) -> Convert:
    unit = Decimal(1).scaleb(-scale)

    def rounded(value: Any) -> Decimal:
        text = value.replace(",", "") if isinstance(value, str) else getattr(value, "text", value)
        number = values.decimal_of(text)
        return number.quantize(unit, ROUND_HALF_UP, _DIGITS)

    return rounded


def _binary(value: Any) -> bytes:
    """Return the bytes of a base64 text. Blanks are skipped before each four characters, as Jackson does, which Spark
    uses."""
    if not isinstance(value, str):
        return values.bytes_of_base64(value)
    *parts, last = _BLANKS.split(value)
    if any(len(part) % 4 for part in parts):
        raise ValueError("it has a blank within four characters of base64")
    return values.bytes_of_base64("".join(parts) + last)


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
