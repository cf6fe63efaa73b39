"""Options classes: dataclasses whose fields declare their bounds, and which check their values when they are made.

    @dataclass(frozen=True, slots=True)
    class RetryOptions:
        retries_max: int = bounded(3, 0, 100)
        pause_s: float = bounded(0.5, 0.001, DAY_S)
        is_patient: bool = False

        def __post_init__(self) -> None:
            check(self)

A number has bounds, which `bounded` sets. Every other field is checked against its annotation: bool, a class,
`X | None`, or a sequence, set or mapping of these. The first wrong value raises a ConfigurationError that names the
class, the field, the value, and what would be right.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bkspark.errors import ConfigurationError
from bkspark.ids import LEDGER_ID_MAX

COUNT_MAX = 1_000_000_000
BYTES_MAX = 1 << 50
DAY_S = 86_400.0
"""The longest time-out of a client: a longer one is regarded as a mistake in the unit."""
YEARS_S = 10 * 366 * DAY_S
"""The longest time-out or interval of a server: no timer overflows below it."""

SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
"""Bytes of the units in which people write sizes."""
MIB = 1 << 20

_Default = TypeVar("_Default", int, float, int | None, float | None)
_BOUNDS = "bounds"


@dataclass(frozen=True, slots=True)
class Bounds:
    """`least`, `most`: the allowed values of a number. If both are `int`, it must be a whole number.

    unit: for messages, such as "s" or "bytes".
    """

    least: float
    most: float
    unit: str = ""

    @property
    def is_whole(self) -> bool:
        return isinstance(self.least, int) and isinstance(self.most, int)

    def check(self, name: str, value: object) -> None:
        """Raise a ConfigurationError that names `name` if `value` is not a number within these bounds."""
        if self.is_whole:
            whole_number(name, value, int(self.least), int(self.most), self.unit)
        else:
            number(name, value, self.least, self.most, self.unit)


def bounded(default: _Default, least: float, most: float, unit: str = "") -> _Default:
    """Return a dataclass field for a number from `least` to `most`; see `Bounds`. `X | None` also allows None."""
    field: Any = dataclasses.field(default=default, metadata={_BOUNDS: Bounds(least, most, unit)})
    return field


def required(least: float, most: float, unit: str = "") -> Any:
    """Return a dataclass field for a number from `least` to `most` that has no default."""
    return dataclasses.field(metadata={_BOUNDS: Bounds(least, most, unit)})


def bounds_of(options: type, name: str) -> Bounds | None:
    """Return the bounds of a field; None if it is not a number."""
    bounds: Bounds | None = _field(options, name).metadata.get(_BOUNDS)
    return bounds


def default_of(options: type, name: str) -> Any:
    """Return the default of a field; None if it has no default."""
    field = _field(options, name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


@functools.cache
def _field(options: type, name: str) -> dataclasses.Field[Any]:
    """Return a field by its name; a bookie asks for each of some hundred when it reads its configuration."""
    return {it.name: it for it in dataclasses.fields(options)}[name]


def check(options: object) -> None:
    """Raise ConfigurationError if a field of an options dataclass has a wrong value."""
    kind = type(options)
    for name, bounds, annotation in _fields(kind):
        value = getattr(options, name)
        if value is None and _allows_none(annotation):
            continue
        if bounds is not None:
            bounds.check(f"{kind.__name__}.{name}", value)
        elif not _is_of(value, annotation):
            raise ConfigurationError(f"{kind.__name__}.{name} must be {_named(annotation)}, not {value!r:.80}")


_Fields = tuple[tuple[str, Bounds | None, Any], ...]
_known: dict[type, _Fields] = {}
"""Name, bounds and annotation of each field, by options class; annotations are text, and slow to evaluate."""


def _fields(kind: Any) -> _Fields:
    found = _known.get(kind)
    if found is None:
        annotations = typing.get_type_hints(kind)
        found = _known[kind] = tuple(
            (field.name, field.metadata.get(_BOUNDS), annotations[field.name]) for field in dataclasses.fields(kind)
        )
    return found


def _allows_none(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def _is_of(value: object, annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is bytes:
        return isinstance(value, (bytes, bytearray, memoryview))
    if origin is None:
        return isinstance(value, annotation) and not (isinstance(value, bool) and annotation is not bool)
    if origin in (typing.Union, types.UnionType):
        return any(_is_of(value, each) for each in arguments)
    if not isinstance(value, origin) or isinstance(value, (str, bytes)):
        return False
    if isinstance(value, Mapping):
        key, item = arguments
        return all(_is_of(each, key) and _is_of(value[each], item) for each in value)
    return isinstance(value, Collection) and all(_is_of(each, arguments[0]) for each in value)


def _named(annotation: Any) -> str:
    if annotation is bool:
        return "True or False"
    return annotation.__name__ if typing.get_origin(annotation) is None else str(annotation)


def whole_number(name: str, value: object, least: int = 0, most: int = LEDGER_ID_MAX, unit: str = "") -> int:
    """Return a value that is a whole number in bounds, as `int`; without bounds, a ledger or entry id.

    Raises:
        ConfigurationError: it is not a whole number, or out of bounds.
    """
    try:
        # It raises TypeError for anything else; this is faster than checking the type first.
        whole = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigurationError(
            f"{name} must be a whole number from {least} to {most}{_of(unit)}, not {value!r:.80}"
        ) from None
    if isinstance(value, bool) or not least <= whole <= most:
        raise ConfigurationError(f"{name} must be from {least} to {most}{_of(unit)}, not {value!r:.80}")
    return whole


def number(name: str, value: object, least: float, most: float, unit: str = "") -> float:
    """Return a value that is a number in bounds, as `float`.

    Raises:
        ConfigurationError: it is not a number (nan is not one), or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ConfigurationError(
            f"{name} must be a number from {least:.12g} to {most:.12g}{_of(unit)}, not {value!r:.80}"
        )
    return float(value)


def flag(name: str, value: object) -> bool:
    """Return a value that is True or False: text such as "false" is neither.

    Raises:
        ConfigurationError: it is neither.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, not {value!r:.80}")
    return value


def instance(name: str, value: object, kind: type) -> None:
    """Raise ConfigurationError if a value is not of the given type."""
    if not isinstance(value, kind):
        raise ConfigurationError(f"{name} must be {kind.__name__}, not {value!r:.80}")


def _of(unit: str) -> str:
    return f" {unit}" if unit else ""
