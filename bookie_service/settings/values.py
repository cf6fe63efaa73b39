"""Values of configuration keys: from text to types, within bounds, with a line for each value that is not usable or not
used as given.

Texts are read as Apache's bookies read them (commons-configuration 2): whole numbers also as `0x10` and `0b10`, numbers
also as `.95f`, flags also as `1`, `t`, `y`. `${key}`, `${env:NAME}` and `${key:-default}` are replaced if they name
something; variables that only Java knows (`${sys:...}`) are refused.

Messages show a value as it is given, with its `${...}`: the variable that it names may hold a secret.

A number that Apache's bookies accept and this bookie cannot work with is raised or lowered to one that it can work
with, and `notes` gets a line about it. A number that Apache's bookies do not accept either is refused.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from bkspark import properties
from bkspark.configuration_files import named
from bkspark.errors import ConfigurationError
from bkspark.ids import INT64_MAX
from bkspark.metadata.uri import without_user
from bkspark.one_line import SHOWN_CHARACTERS_MAX
from bkspark.options import BYTES_MAX, COUNT_MAX, YEARS_S

_T = TypeVar("_T")
_WHOLE = re.compile("([+-]?)(?:0x([0-9a-fA-F]{1,16})|0b([01]{1,64})|([0-9]{1,19}))")
"""It excludes other digits and marks that int() accepts. Numbers that do not fit Java's long are refused afterwards."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?[fFdD]?", re.ASCII)
_PARTS = re.compile(r"\w{4,}")
TRUE, FALSE = ("true", "yes", "on", "y", "t", "1"), ("false", "no", "off", "n", "f", "0")
SECRET_WORDS = ("passwd", "password", "secret")
"""No message shows the value of a key whose name contains one of these."""
NULL = "null"
"""The text in Apache's files for a class or a name that is not set."""
MOST = {
    "ms": 1000 * int(YEARS_S),
    "s": int(YEARS_S),
    "bytes": BYTES_MAX,
    "MiB": BYTES_MAX >> 20,
    "bytes/s": BYTES_MAX,
    "entries/s": COUNT_MAX,
    "reads/s": COUNT_MAX,
    "adds": COUNT_MAX,
    "reads": COUNT_MAX,
    "entries": COUNT_MAX,
    "files": COUNT_MAX,
    "logs": COUNT_MAX,
    "connections": COUNT_MAX,
    "lists": COUNT_MAX,
}
"""The highest number of each unit, if a key sets no other. Timers, counters and file offsets made from it fit."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The values of a served key: its type, its default as text, its unit, and the bounds of a number.

    raises, lowers: a number below or above the bounds is raised or lowered to them; otherwise it is refused.
    """

    type: str
    default: str
    unit: str = ""
    least: float | None = None
    """The bounds are `least` and `most`; None: there is none."""
    most: float | None = None
    raises: bool = False
    lowers: bool = False


def refused(key: str, text: str, what_is_right: str) -> ConfigurationError:
    """Return the error for a value that is not usable: one line with key, value and what would be right."""
    return ConfigurationError(f"{key}={_shown(key, text)}: {what_is_right}")


def _is_utf8(text: str) -> bool:
    """Return whether a cookie and the metadata store can hold a text, which may come from bytes of other encodings."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(key: str, text: str) -> str:
    if any(word in key.lower() for word in SECRET_WORDS):
        return "***"
    text = without_user(text)
    return _shortened(text if text.isprintable() else ascii(text))


def _shortened(text: str) -> str:
    """Return the text without its middle if it is long, because its ends say most."""
    left_out = len(text) - SHOWN_CHARACTERS_MAX
    half = SHOWN_CHARACTERS_MAX // 2
    return text if left_out <= 0 else f"{text[:half]}...({left_out} characters)...{text[-half:]}"


def with_references(message: str, found: Mapping[str, str]) -> str:
    """Return a message with references in place of the words that they found (`Values.from_environment`)."""
    for text in sorted(found, key=len, reverse=True):
        message = found[text].join(re.split(rf"(?<!\w){re.escape(text)}(?!\w)", message))
    return message


class Values:
    """Returns values as types, and remembers which keys were read. An empty value counts as not set.

    Every method raises ConfigurationError for a value that is not usable.
    """

    def __init__(self, values: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
        self._values = values
        self._environment = environment
        """Variables that values may refer to."""
        self.asked: dict[str, Setting] = {}
        """The keys that were read, with their settings."""
        self.notes: list[str] = []
        """A line for each value that is not used as given."""
        self._named: dict[str, dict[str, str]] = {}
        """What was found by the references in values, by key: the text found, and the reference."""

    def text(self, key: str, *, default: str = "unset") -> str | None:
        """Return the value; None: it is not set. `default` says what that means."""
        return self._ask(key, Setting("text", default))

    def parsed(self, key: str, parse: Callable[[str], _T], *, default: str = "unset") -> _T | None:
        """Return the parsed value; None: it is not set. A ValueError of `parse` must say what is wrong."""
        text = self.text(key, default=default)
        try:
            return None if text is None else parse(text)
        except (ValueError, ConfigurationError) as error:
            raise self.refused(key, str(text), _shortened(self.without_named(key, str(error)))) from None

    def share(self, key: str, default: float, *, least: float = 0, unit: str, raises: bool = False) -> float:
        """Return a number from `least` to 1. With `raises`, a number below `least` means `least`."""
        most = 1
        text = self._ask(key, Setting("number", f"{default:g}", unit, least, most, raises))
        if text is None:
            return default
        value = float(text.rstrip("fFdD")) if _NUMBER.fullmatch(text) else math.nan
        if raises and value < least:
            return least
        # Written so that NaN is refused, too.
        if not least <= value <= most:
            raise self.refused(key, text, f"it must be a number from {least:g} to {most:g}")
        return value

    def number(
        self,
        key: str,
        default: int,
        *,
        least: int,
        most: int | None = None,
        unit: str = "",
        raises: bool = True,
        lowers: bool = True,
    ) -> int:
        """Return a whole number.

        Args:
            least: the lowest number. A number below -1 means the same as -1: "0 or less".
            most: the highest number; by default, the first word of `unit` determines it.
            raises, lowers: a number beyond the bounds is raised or lowered to them, and noted; otherwise it is refused.
        """
        most = MOST[unit.split(",")[0].split()[0]] if most is None else most
        text = self._ask(key, Setting("whole number", str(default), unit, least, most, raises, lowers))
        if text is None:
            return max(default, least)  # another key may have raised `least`
        value = _whole(text)
        if value is None or (value < least and not raises) or (value > most and not lowers):
            raise self.refused(key, text, f"it must be a whole number from {least} to {most}")
        if least <= value <= most:
            return value
        if value < least == -1:
            return least
        used = most if value > most else least
        self.note(key, text, f"this bookie takes {least} to {most}, and uses {used}")
        return used

    def refused(self, key: str, text: str, what_is_right: str) -> ConfigurationError:
        """Return the error for a value that is not usable, as `refused` does, with the value as it is given."""
        return refused(key, self._as_given(key, text), what_is_right)

    def without_named(self, key: str, message: str) -> str:
        """Return a message about a value without what its references name: it shows the references instead."""
        named = self._named.get(key, {})
        for found in sorted(named, key=len, reverse=True):
            message = message.replace(found, named[found])
        # A message may quote a part of the value.
        parts = {part for found in named for part in _PARTS.findall(found)}
        return "what it names is not usable here" if any(part in message for part in parts) else message

    def from_environment(self) -> dict[str, str]:
        """Return what references to variables of the environment found, with the references."""
        found = {text: reference for named in self._named.values() for text, reference in named.items()}
        return {text: reference for text, reference in found.items() if reference.startswith("${env:")}

    def as_given(self, key: str) -> str | None:
        """Return the value with its references, after it was read; None: it has no reference that was replaced."""
        return self._values.get(key, "").strip() if key in self._named else None

    def _as_given(self, key: str, text: str) -> str:
        given = self.as_given(key)
        return text if given is None else given

    def note(self, key: str, text: str, what: str) -> None:
        """Note that a value is not used as given. It is noted once, however many options follow a key."""
        line = f"{key}={_shown(key, self._as_given(key, text))}: {what}"
        if line not in self.notes:
            self.notes.append(line)

    def flag(self, key: str, default: bool, unit: str = "") -> bool:
        text = self._ask(key, Setting("true or false", str(default).lower(), unit))
        if text is None:
            return default
        if text.lower() not in TRUE + FALSE:
            raise self.refused(key, text, "it must be true or false")
        return text.lower() in TRUE

    def names(self, key: str) -> tuple[str, ...]:
        """Return the parts of a list with commas; (): it is not set."""
        return tuple(part.strip() for part in (self.text(key) or "").split(",") if part.strip())

    def directories(self, key: str, default: str) -> tuple[str, ...]:
        text = self._ask(key, Setting("directories", default)) or default
        paths = tuple(os.path.abspath(part.strip()) for part in text.split(",") if part.strip())
        if len(set(paths)) != len(paths) or not paths:
            raise self.refused(key, text, "it must name different directories, separated by commas")
        if "${" in text:
            raise self.refused(key, text, "it names a key or a variable that is not set")
        if not all(map(_is_utf8, paths)):
            raise self.refused(key, ",".join(paths), "its paths must be UTF-8, also that of the working directory")
        return paths

    def _ask(self, key: str, setting: Setting) -> str | None:
        self.asked[key] = setting
        self._named.pop(key, None)
        text = self._interpolated(key, self._values.get(key, "").strip()).strip()
        if "\0" in text:
            raise self.refused(key, text, "it must not hold a zero character")
        if not _is_utf8(text):
            raise self.refused(key, text, "it must be UTF-8")
        return text or None

    def _interpolated(self, key: str, text: str) -> str:
        """Return the text with each `${...}` replaced. An unknown name stays unchanged, as in Apache's bookies."""
        try:
            return properties.replaced(text, lambda reference: self._looked_up(key, text, reference))
        except ValueError as error:
            raise refused(key, text, str(error)) from None

    def _looked_up(self, key: str, text: str, reference: str) -> str | None:
        name, has_default, default = reference.partition(":-")
        if name == key:
            raise refused(key, text, "what it refers to refers to itself")
        if ":" in name and not name.startswith("env:"):
            raise refused(key, text, f"only Java can replace ${{{name}}}: write what it stands for")
        found = named(name, self._values, self._environment)
        if found is None:
            return default if has_default else None
        if found.strip():
            self._named.setdefault(key, {})[found.strip()] = f"${{{reference}}}"
        return found.strip()


def _whole(text: str) -> int | None:
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    sign, hexadecimal, binary, decimal = match.groups()
    value = int(hexadecimal, 16) if hexadecimal else int(binary, 2) if binary else int(decimal)
    value = -value if sign == "-" else value
    return value if -INT64_MAX - 1 <= value <= INT64_MAX else None
