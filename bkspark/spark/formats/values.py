"""Spark's types as JSON and MessagePack values: the specification of the cells of both formats.

| Arrow type (Spark type)        | JSON                                 | MessagePack                    |
|--------------------------------|--------------------------------------|--------------------------------|
| bool, int8 to int64            | true, false; number                  | bool; int                      |
| float32, float64               | number; "NaN" "Infinity" "-Infinity" | float                          |
| decimal128                     | string, as "12.50": exact everywhere | string                         |
| string                         | string                               | str                            |
| binary                         | string, base64                       | bin                            |
| date32                         | string, "2026-11-21"                 | string                         |
| timestamp with zone            | string, ISO 8601 in UTC with Z       | timestamp extension (-1)       |
| timestamp without zone         | string, ISO 8601 without zone        | string                         |
| time of day, to microseconds   | string, "05:06:07.000089"            | string                         |
| duration (day-time interval)   | number of microseconds               | int                            |
| list                           | array                                | array                          |
| map with string keys           | object                               | map                            |
| map with other keys            | array of [key, value]                | array of [key, value]          |
| struct                         | object                               | map                            |
| null                           | null                                 | nil                            |

Reading is lenient where nothing can be misread: a missing member is null, unknown members are ignored, a decimal may be
a number, a number is accepted for a float, a timestamp without zone in a column with zone is UTC, MessagePack accepts
the JSON text of a timestamp and JSON's three words for a float.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from bkspark.decimals import for_arrow
from bkspark.errors import ConfigurationError
from bkspark.spark.formats.decoding import BeyondInferredError

Convert = Callable[[Any], Any]
WORDS_OF_FLOATS = ("NaN", "Infinity", "-Infinity")
_MICROSECOND = timedelta(microseconds=1)
_DECIMAL = re.compile(r"[+-]?(?:\d++\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def has_decimal(kind: pa.DataType) -> bool:
    """Return whether a type is a decimal or has one inside: then a JSON number must not be read as a double."""
    return kinds.is_decimal(kind) or any(has_decimal(kind.field(i).type) for i in range(kind.num_fields))


def check_types(schema: pa.Schema, format_name: str) -> None:
    """Raise ConfigurationError unless every column's type is in the table above, and names are unique."""
    if len(set(schema.names)) != len(schema.names):
        raise ConfigurationError(f"column names {schema.names} repeat, which payloadFormat {format_name} cannot hold")
    for column in schema:
        unknown = _unknown_type(column.type)
        if unknown is not None:
            raise ConfigurationError(
                f"column '{column.name}' has type {unknown}, which payloadFormat {format_name} cannot hold: "
                "cast it, or use payloadFormat arrow"
            )


def _unknown_type(kind: pa.DataType) -> pa.DataType | None:
    if kinds.is_list(kind):
        return _unknown_type(kind.value_type)
    if kinds.is_map(kind):
        return _unknown_type(kind.key_type) or _unknown_type(kind.item_type)
    if kinds.is_struct(kind):
        return next((unknown for field in kind if (unknown := _unknown_type(field.type))), None)
    known = (
        kinds.is_boolean(kind)
        or kinds.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.duration("us"), pa.null())
        or kinds.is_decimal128(kind)
        or kind == pa.time64("ns")
        or (kinds.is_timestamp(kind) and kind.unit == "us")
    )
    return None if known else kind


def writer_of(kind: pa.DataType, *, is_json: bool) -> Convert | None:
    """Return a function that converts a value from Arrow's `to_pylist` into the format's value; None if no conversion
    is needed."""
    if kinds.is_list(kind):
        return _each(writer_of(kind.value_type, is_json=is_json))
    if kinds.is_map(kind):
        pairs = _pairs(writer_of(kind.key_type, is_json=is_json), writer_of(kind.item_type, is_json=is_json))
        return (lambda value: dict(pairs(value))) if kind.key_type == pa.string() else pairs
    if kinds.is_struct(kind):
        return _members({field.name: writer_of(field.type, is_json=is_json) for field in kind})
    if kinds.is_decimal(kind):
        return lambda value: format(value, "f")
    if kinds.is_date(kind):
        return date.isoformat
    if kinds.is_time(kind):
        return time.isoformat
    if kinds.is_timestamp(kind):
        if kind.tz is None:
            return datetime.isoformat
        return _utc_text if is_json else None
    if kinds.is_duration(kind):
        return lambda value: value // _MICROSECOND
    if is_json and kinds.is_floating(kind):
        return _json_float
    if is_json and kinds.is_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    return None


def reader_of(kind: pa.DataType, *, is_json: bool, is_whole: bool = False) -> Convert | None:
    """Return a function that converts the format's value into one that `pa.array` accepts for `kind`; None if no
    conversion is needed.

    Args:
        is_whole: a member of an object that `kind` lacks is an error; otherwise it is ignored.

    The function raises ValueError, TypeError or ArithmeticError for a value that is not of the type.
    """
    if kinds.is_nested(kind):
        return nested_reader(kind, lambda part: reader_of(part, is_json=is_json, is_whole=is_whole), is_whole=is_whole)
    if kinds.is_decimal(kind):
        return lambda value: for_arrow(decimal_of(value))
    if kinds.is_date(kind):
        return _date
    if kinds.is_time(kind):
        return _time
    if kinds.is_timestamp(kind):
        return _naive_timestamp if kind.tz is None else _utc_timestamp
    if kinds.is_duration(kind) or kinds.is_integer(kind):
        return _whole
    if kinds.is_floating(kind):
        return float_of
    if kinds.is_boolean(kind):
        return _boolean
    if kinds.is_binary(kind):
        return bytes_of_base64 if is_json else _bytes
    if kinds.is_string(kind):
        return _string
    return None


def nested_reader(
    kind: pa.DataType, reader: Callable[[pa.DataType], Convert | None], *, is_whole: bool
) -> Convert | None:
    """Return the function of a list, map or struct, made of those of its parts."""
    if kinds.is_list(kind):
        return _each(reader(kind.value_type))
    if kinds.is_map(kind):
        return _map_reader(reader(kind.key_type), reader(kind.item_type))
    return _members({field.name: reader(field.type) for field in kind}, is_whole=is_whole)


def _each(convert: Convert | None) -> Convert:
    def convert_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not an array")
        if convert is None:
            return value
        return [None if item is None else convert(item) for item in value]

    return convert_list


def _pairs(key: Convert | None, item: Convert | None) -> Convert:
    def convert_pairs(value: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return [(k if key is None else key(k), v if item is None or v is None else item(v)) for k, v in value]

    return convert_pairs


def _map_reader(key: Convert | None, item: Convert | None) -> Convert:
    pairs = _pairs(key, item)

    def convert_map(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, dict):
            return pairs(list(value.items()))
        if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            return pairs(value)
        raise TypeError(f"{value!r} is neither an object nor an array of [key, value]")

    return convert_map


def _members(converts: dict[str, Convert | None], *, is_whole: bool = False) -> Convert:
    def convert_struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is not an object")
        if is_whole and not value.keys() <= converts.keys():
            raise BeyondInferredError(next(name for name in value if name not in converts))
        return {
            name: None if (member := value.get(name)) is None else member if convert is None else convert(member)
            for name, convert in converts.items()
        }

    return convert_struct


def _json_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _utc_text(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _typed(value: Any, *types: type) -> Any:
    # bool is an int to isinstance, and not to any format.
    if type(value) not in types:
        raise TypeError(f"{value!r} is not {' or '.join(kind.__name__ for kind in types)}")
    return value


def _whole(value: Any) -> int:
    return _typed(value, int)


def _boolean(value: Any) -> bool:
    return _typed(value, bool)


def _bytes(value: Any) -> bytes:
    return _typed(value, bytes)


def _string(value: Any) -> str:
    return _typed(value, str)


def bytes_of_base64(value: Any) -> bytes:
    """Return the bytes of a base64 text. Raises ValueError or TypeError if it is not one."""
    return base64.b64decode(_typed(value, str), validate=True)


def float_of(value: Any) -> float:
    """Return a floating point number. Raises ValueError or TypeError if it is not such a value."""
    if type(value) is str and value not in WORDS_OF_FLOATS:
        raise ValueError(f"{value!r} is not a number")
    return float(_typed(value, float, int, str, Decimal))


def decimal_of(value: Any) -> Decimal:
    """Return a decimal number. Raises ValueError, TypeError or ArithmeticError if it is not such a value."""
    text = str(_typed(value, str, int, float, Decimal))
    # Python takes more: spaces, underscores, digits of other scripts, and words.
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{value!r} is not a decimal number")
    return Decimal(text)


def _date(value: Any) -> date:
    return date.fromisoformat(_typed(value, str))


def _time(value: Any) -> time:
    found = time.fromisoformat(_typed(value, str))
    if found.tzinfo is not None:
        raise ValueError(f"{value!r} has a zone, but the column's type has no zone")
    return found


def _utc_timestamp(value: Any) -> datetime:
    moment = value if type(value) is datetime else datetime.fromisoformat(_typed(value, str))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _naive_timestamp(value: Any) -> datetime:
    moment = datetime.fromisoformat(_typed(value, str))
    if moment.tzinfo is not None:
        raise ValueError(f"{value!r} has a zone, but the column's type has no zone")
    return moment
