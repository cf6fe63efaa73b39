"""Parsers of option texts: each function returns the value, or raises ValueError that says what the text must be. PURE.

Numbers below 0 are relative: an offset of -1000 is 1000 entries before the end, a time of -600000 is ten minutes ago.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bkspark.errors import ConfigurationError
from bkspark.ids import ENTRY_ID_MAX, INT64_MAX, LEDGER_ID_MAX, LOG_NAME_RULE, PUBLISHER_RULE, is_log_name, is_publisher
from bkspark.log.positions import EARLIEST, LATEST
from bkspark.metadata.tree import milliseconds_of
from bkspark.metadata.uri import MetadataUri
from bkspark.one_line import SHOWN_CHARACTERS_MAX
from bkspark.options import MIB, SIZE_UNITS

INLINE_BYTES_MAX = 16 * MIB
"""Greatest size of rows that travel with a task's report: Spark's driver holds the reports of all tasks."""
ENTRY_BYTES_MAX = 4 * MIB
"""Greatest target for an entry of many rows: with head and digest it stays below Apache's default frame of 5 MiB."""
DURATION_MS_MAX = 36_500 * 86_400_000
"""Greatest time in an option, a hundred years: beyond it clocks and floats overflow."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENT_MS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
"""Greatest time in an option, the end of the year 9999: later ones, which a zone can make, cannot be shown."""
Offset = str | int | dict[str, Any]
"""`earliest`, `latest`, a number of entries before the end (below 0), or a JSON object: a position, or with
`logsPattern` such an offset for each named log."""

# Python refuses to read numbers of thousands of digits, in words of its own.
_DIGITS = r"[0-9]{1,30}"
_NUMBER = re.compile(_DIGITS)
_BEHIND = re.compile(f"-{_DIGITS}")
_SIZE = re.compile(rf"({_DIGITS})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_DURATION = re.compile(rf"({_DIGITS})\s*(ms|s|m|h|d)?", re.IGNORECASE)
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEDGERS = re.compile(rf"({_DIGITS})(?:\s*-\s*({_DIGITS}))?")
_ENTRIES = re.compile(rf"({_DIGITS})\s*:\s*({_DIGITS})\s*-\s*({_DIGITS})?")
_ID = rf"(?:-1:-1|{_DIGITS}:-1|{_DIGITS}:{_DIGITS})(?::-?{_DIGITS}){{0,2}}"
_MESSAGE_ID = re.compile(f"(?:{_ID};)?{_ID}")
_MISTAKABLE_MIN, _SECONDS_MIN, _MISTAKABLE_END = 10**7, 10**9, 10**11
"""Numbers that are times of 1970 to 1973 in milliseconds: dates without hyphens, and seconds since 1970, look so."""
_MICROS_MIN, _NANOS_MIN = 10**14, 10**17
"""Numbers that are times after the year 5000 in milliseconds: microseconds and nanoseconds since 1970 look so."""


@dataclass(frozen=True)
class IdRange:
    """Ledger ids [first, end), and the entries [first_entry, end_entry) of each ledger; None: to the last one."""

    first: int
    end: int
    first_entry: int = 0
    end_entry: int | None = None

    @property
    def is_one(self) -> bool:
        """Whether it names one ledger."""
        return self.end - self.first == 1


EVERY_LEDGER = IdRange(0, LEDGER_ID_MAX + 1)


def shown(value: object) -> str:
    """Return a value as shown in a message: on one line, and cut if long."""
    whole = repr(value)
    return whole if len(whole) <= SHOWN_CHARACTERS_MAX else f"{whole[:SHOWN_CHARACTERS_MAX]}…"


def text(value: str) -> str:
    """Return a text that is not empty."""
    if not value:
        raise ValueError("is empty")
    return value


def stored_text(value: str) -> str:
    """Return a text that is not empty and can be stored as UTF-8."""
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise ValueError("has half of a pair of UTF-16, which UTF-8 cannot store")
    return text(value)


def log_name(value: str) -> str:
    """Return the name of a log, checked: LOG_NAME_RULE."""
    if not is_log_name(text(value)):
        raise ValueError(f"is not a valid log name: {LOG_NAME_RULE}")
    return value


def consumer(value: str) -> str:
    """Return the name of a registered reader, checked: LOG_NAME_RULE."""
    if not is_log_name(text(value)):
        raise ValueError(f"is not a valid reader name: {LOG_NAME_RULE}")
    return value


def publisher(value: str) -> str:
    """Return the name of an application, checked: PUBLISHER_RULE."""
    if not is_publisher(text(value)):
        raise ValueError(f"is not a valid name: {PUBLISHER_RULE}")
    return value


def uri(value: str) -> str:
    """Return a metadata URI in its canonical form."""
    try:
        return str(MetadataUri.parse(value))
    except ConfigurationError as error:
        raise ValueError(f"is not a metadata URI: {short(error)}") from None


def flag(value: str) -> bool:
    """Return the value of true or false, in any case."""
    if value.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return value.lower() == "true"


def count(value: str) -> int:
    """Return a whole number of at least 1."""
    if not _NUMBER.fullmatch(value) or not 1 <= int(value) <= INT64_MAX:
        raise ValueError(f"is not a whole number of 1 to {INT64_MAX}")
    return int(value)


def version(value: str) -> int:
    """Return a whole number of at least 0."""
    if not _NUMBER.fullmatch(value) or int(value) > INT64_MAX:
        raise ValueError(f"is not a whole number of 0 to {INT64_MAX}")
    return int(value)


def size(value: str) -> int:
    """Return a size in bytes of at least 1; units are k, m and g."""
    match = _SIZE.fullmatch(value.strip())
    byte_count = int(match[1]) * SIZE_UNITS[(match[2] or "").lower()] if match else 0
    if not 1 <= byte_count <= INT64_MAX:
        raise ValueError("is not a size in bytes of at least 1, such as 1048576, 64k, 256m or 1g")
    return byte_count


def entry_size(value: str) -> int:
    """Return the size of an entry that every bookie accepts."""
    byte_count = size(value)
    if byte_count > ENTRY_BYTES_MAX:
        raise ValueError(f"is above {ENTRY_BYTES_MAX}, the largest entry that every bookie accepts")
    return byte_count


def inline_size(value: str) -> int:
    """Return how many bytes of a task's entries its report may hold; 0: none."""
    byte_count = 0 if value.strip() == "0" else size(value)
    if byte_count > INLINE_BYTES_MAX:
        raise ValueError(f"is above {INLINE_BYTES_MAX}, the maximum that the driver holds for each task")
    return byte_count


class OneOf:
    """A check that takes one of a few texts, in any case."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, value: str) -> str:
        for choice in self.choices:
            if value.lower() == choice.lower():
                return choice
        raise ValueError(f"is not one of {', '.join(self.choices)}")


def offset(value: str) -> Offset:
    """Return a place in a log or topic; see `Offset`. Which one it is in is not checked."""
    if value.lower() in (EARLIEST, LATEST):
        return value.lower()
    if _BEHIND.fullmatch(value.strip()) and 1 <= -int(value) <= INT64_MAX:
        return int(value)
    if _MESSAGE_ID.fullmatch(value.strip()):
        return value.strip()
    twice: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice.extend(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        return found

    try:
        parsed = json.loads(value, object_pairs_hook=members)
    except (ValueError, RecursionError):
        parsed = None
    if twice:
        raise ValueError(f"names {shown(twice[0])} twice")
    if not isinstance(parsed, dict):
        raise ValueError(
            "is neither earliest, latest, -N (entries before the end), the JSON of a position, nor the id of a message "
            "of a topic, such as 12:3"
        )
    return parsed


def offset_in_log(value: str) -> Offset:
    """Return a place in a log, which a message id of Pulsar is not."""
    found = offset(value)
    if isinstance(found, str) and found not in (EARLIEST, LATEST):
        raise ValueError("is a message id of Pulsar, and not earliest, latest, -N or the JSON of a position")
    return found


def pattern(value: str) -> str:
    """Return a regular expression, checked."""
    try:
        re.compile(text(value))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is not a regular expression: {str(error)[:SHOWN_CHARACTERS_MAX]}") from None
    return value


def short(error: Exception) -> str:
    """Return an error's message for another one."""
    return str(error)[-SHOWN_CHARACTERS_MAX:]


def moment(value: str) -> int:
    """Return milliseconds since the epoch, 0 for earlier times; below 0: before now. At most MOMENT_MS_MAX."""
    text = value.strip()
    relative = _DURATION.fullmatch(text[1:]) if text.startswith("-") else None
    if relative is not None and relative[2]:
        return -max(1, duration(text[1:]))
    if _NUMBER.fullmatch(text) and int(text) <= INT64_MAX:
        if _MISTAKABLE_MIN <= int(text) < _MISTAKABLE_END or int(text) >= _MICROS_MIN:
            raise ValueError(_mistaken(int(text)))
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "is neither milliseconds since 1970, nor ISO 8601 such as 2026-11-21T05:00:00Z, nor -10m (s, m, h, d ago)"
        ) from None
    # Rounded up, as `append_time >= T` compares: times of rows are rounded down.
    return min(max(0, milliseconds_of(parsed, rounds_up=True)), MOMENT_MS_MAX)


def moment_shown(ms: int) -> str:
    """Return a value of `moment` as shown in a message."""
    return f"{-ms} ms ago" if ms < 0 else time_shown(ms)


def time_shown(ms: int) -> str:
    """Return a time in ms since 1970, also one before that, as shown in a message."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


def _mistaken(number: int) -> str:
    """Return what is wrong with a number that is hardly a time in milliseconds."""
    if number >= _MICROS_MIN:
        unit, factor = ("nanoseconds", 1_000_000) if number >= _NANOS_MIN else ("microseconds", 1000)
        return f"is after the year 5000 in milliseconds: if it is in {unit}, give {number // factor}"
    found = (
        f"is {(datetime(1970, 1, 1) + timedelta(milliseconds=number)).isoformat(timespec='seconds')}Z in milliseconds"
    )
    if number >= _SECONDS_MIN:
        return f"{found}: if it is in seconds, give {number * 1000}"
    try:
        return f"{found}: if it is a date, give {datetime.strptime(str(number), '%Y%m%d').date()}"
    except ValueError:
        return f"{found}: give ISO 8601 such as 2026-11-21T05:00:00Z"


def duration(value: str) -> int:
    """Return milliseconds."""
    match = _DURATION.fullmatch(value.strip())
    milliseconds = int(match[1]) * _DURATION_MS[(match[2] or "ms").lower()] if match else 0
    if not match or milliseconds > DURATION_MS_MAX:
        raise ValueError("is not a time such as 500ms, 30s, 15m or 1h, up to 36500d")
    return milliseconds


def age(value: str) -> int:
    """Return milliseconds, at least one."""
    milliseconds = duration(value)
    if not milliseconds:
        raise ValueError("is not a time above 0, such as 30s, 15m or 1h")
    return milliseconds


def parse_ledgers(value: str) -> tuple[IdRange, ...]:
    """Return what "5", "5,7", "5-9" (9 included), "[5, 7]", "*" or "5:10-99" (entries 10 to 99) name, in that order.

    "5:10-" is ledger 5 from entry 10 to its end.

    Raises:
        ValueError: the text is something else, an id is out of range, or a ledger is named twice.
    """
    text = value.strip()
    if text == "*":
        return (EVERY_LEDGER,)
    if text.startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("is not a JSON list of ledger ids") from None
        if not all(type(item) is int for item in items):
            raise ValueError("is not a JSON list of ledger ids")
        parts = [str(item) for item in items]
    else:
        parts = [part.strip() for part in text.split(",")]
    ranges = tuple(_id_range(part) for part in parts)
    if not ranges:
        raise ValueError("names no ledger")
    ascending = sorted(ranges, key=lambda ids: ids.first)
    for before, after in itertools.pairwise(ascending):
        if after.first < before.end:
            raise ValueError(f"names ledger {after.first} twice")
    return ranges


def _id_range(part: str) -> IdRange:
    entries = _ENTRIES.fullmatch(part)
    if entries:
        ledger_id, first_entry = int(entries[1]), int(entries[2])
        end_entry = int(entries[3]) + 1 if entries[3] else None
        if ledger_id > LEDGER_ID_MAX or not first_entry < (end_entry or ENTRY_ID_MAX + 1) <= ENTRY_ID_MAX + 1:
            raise ValueError(f"holds {shown(part)}, which names no entry")
        return IdRange(ledger_id, ledger_id + 1, first_entry, end_entry)
    match = _LEDGERS.fullmatch(part)
    if not match:
        raise ValueError(
            f"holds {shown(part)}, which is neither a ledger id, nor a range such as 5-9, nor entries as 5:0-99"
        )
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    if last < first or last > LEDGER_ID_MAX:
        raise ValueError(f"holds {shown(part)}, which is empty or beyond the greatest ledger id")
    return IdRange(first, last + 1)
