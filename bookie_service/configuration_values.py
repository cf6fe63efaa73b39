"""Values of configuration keys: text to types, within bounds, and one line for what is not usable."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from bkspark.errors import ConfigurationError

_T = TypeVar("_T")
_WHOLE = re.compile("[+-]?[0-9]{1,18}")
"""What is below Java's largest long without counting; and none of the digits and marks that int() takes besides."""
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")
_SHOWN_CHARACTERS_MAX = 200
_YEARS_S = 10 * 366 * 86_400
_COUNT_MAX = 1_000_000_000
_BYTES_MAX = 1 << 50
MOST = {
    "ms": 1000 * _YEARS_S,
    "s": _YEARS_S,
    "bytes": _BYTES_MAX,
    "MiB": _BYTES_MAX >> 20,
    "bytes/s": _BYTES_MAX,
    "entries/s": _COUNT_MAX,
    "reads/s": _COUNT_MAX,
    "adds": _COUNT_MAX,
    "reads": _COUNT_MAX,
    "entries": _COUNT_MAX,
    "files": _COUNT_MAX,
    "logs": _COUNT_MAX,
    "connections": _COUNT_MAX,
    "lists": _COUNT_MAX,
}
"""The highest number that is taken of a unit, where a key sets no other: more is a mistake, and no timer, counter or
file offset that is made of one overflows below it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a key that is served takes: its type, its default as text, its unit, and its bounds where it is a number."""

    type: str
    default: str
    unit: str = ""
    least: float | None = None
    most: float | None = None


def refused(key: str, text: str, what_is_right: str) -> ConfigurationError:
    """Return the error for a value that is not usable: one line with key, value and what would be right."""
    shown = _shortened(text if text.isprintable() else ascii(text))
    return ConfigurationError(f"{key}={shown}: {what_is_right}")


def _shortened(text: str) -> str:
    """Return the text without its middle when it is long: both ends say most."""
    left_out = len(text) - _SHOWN_CHARACTERS_MAX
    half = _SHOWN_CHARACTERS_MAX // 2
    return text if left_out <= 0 else f"{text[:half]}...({left_out} characters)...{text[-half:]}"


class Values:
    """Typed access that remembers which keys were asked for; an empty value counts as not set.

    Every method raises ConfigurationError for a value that is not usable.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.asked: dict[str, Setting] = {}

    def text(self, key: str, *, default: str = "unset") -> str | None:
        """Return the value, None when it is not set; `default` says what that means."""
        return self._ask(key, Setting("text", default))

    def parsed(self, key: str, parse: Callable[[str], _T], *, default: str = "unset") -> _T | None:
        """Return what `parse` makes of the value, None when it is not set; a ValueError of it says what is wrong."""
        text = self.text(key, default=default)
        try:
            return None if text is None else parse(text)
        except (ValueError, ConfigurationError) as error:
            raise refused(key, str(text), _shortened(str(error))) from None

    def share(self, key: str, default: float, *, least: float = 0, unit: str) -> float:
        text = self._ask(key, Setting("number", f"{default:g}", unit, least, 1))
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = math.nan
        # Written so that nan is refused, too.
        if not least <= value <= 1:
            raise refused(key, str(text), f"it must be a number from {least:g} to 1")
        return value

    def number(self, key: str, default: int, *, least: int = -1, most: int | None = None, unit: str = "") -> int:
        """Return a number; without `most`, the first word of `unit` says what is too much."""
        most = MOST[unit.split(",")[0].split()[0]] if most is None else most
        text = self._ask(key, Setting("whole number", str(default), unit, least, most))
        if text is None:
            return default
        value = int(text) if _WHOLE.fullmatch(text) else None
        if value is None or not least <= value <= most:
            raise refused(key, text, f"it must be a whole number from {least} to {most}")
        return value

    def flag(self, key: str, default: bool, unit: str = "") -> bool:
        text = self._ask(key, Setting("true or false", str(default).lower(), unit))
        if text is None:
            return default
        if text.lower() not in TRUE + FALSE:
            raise refused(key, text, "it must be true or false")
        return text.lower() in TRUE

    def directories(self, key: str, default: str) -> tuple[str, ...]:
        text = self._ask(key, Setting("directories", default)) or default
        paths = tuple(os.path.abspath(part.strip()) for part in text.split(",") if part.strip())
        if len(set(paths)) != len(paths) or not paths:
            raise refused(key, text, "it must name different directories, commas between")
        return paths

    def _ask(self, key: str, setting: Setting) -> str | None:
        self.asked[key] = setting
        text = self._values.get(key, "").strip()
        if "\0" in text:
            raise refused(key, text, "it must not hold a zero character")
        return text or None
