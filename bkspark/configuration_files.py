"""Configuration files as Apache's bookies read them. Their syntax is `properties`; this adds included files, repeated
keys and references.

A repeated key has its first value, except keys with lists, whose values are joined. `include = FILE` is replaced by the
lines of that file, and `includeoptional = FILE` too, if the file exists. A relative path begins at the folder of the
file that names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from bkspark import properties
from bkspark.errors import ConfigurationError

INCLUDES_MAX = 16
"""How deep files may be nested. A deeper file includes itself."""

LISTS = frozenset(
    {
        "authorizedRoles",
        "extraServerComponents",
        "indexDirectories",
        "journalDirectories",
        "ledgerDirectories",
        "permittedStartupUsers",
        "zkServers",
    }
)
_INCLUDE, _INCLUDE_OPTIONAL = "include", "includeoptional"


def read(path: Path, option: str = "--config", *, is_read_again: bool = False) -> tuple[dict[str, str], list[str]]:
    """Return the keys and values of a file, and a line for each ignored value.

    Args:
        option: the option that names the file, for messages.
        is_read_again: a pipe, such as a shell's `<(...)`, is refused: reading waits until a program writes to it again.

    Raises:
        ConfigurationError: the file, or one that it includes, cannot be read or understood. The message names it.
    """
    values: dict[str, str] = {}
    notes = []
    for key, value in _pairs(path, f"{option} {str(path)!r}", 0, is_read_again=is_read_again):
        if key not in values:
            values[key] = value
        elif key in LISTS:
            values[key] = f"{values[key]},{value}"
        else:
            notes.append(f"{key} is set more than once in {option} {str(path)!r}: its first value is used")
    return values, list(dict.fromkeys(notes))


def named(name: str, values: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what a reference names: a variable of the environment (`env:NAME`), or another key; None: it is not
    set."""
    return environment.get(name.removeprefix("env:")) if name.startswith("env:") else values.get(name)


def resolved(values: Mapping[str, str]) -> dict[str, str]:
    """Return keys and values with their references replaced, without empty values, which count as not set.

    Raises:
        ConfigurationError: a value refers to itself.
    """
    found = {}
    for key, value in values.items():
        try:
            text = properties.replaced(value, lambda reference: _named_or_default(reference, values)).strip()
        except ValueError as error:
            raise ConfigurationError(f"{key}: {error}") from None
        if text:
            found[key] = text
    return found


def _named_or_default(reference: str, values: Mapping[str, str]) -> str | None:
    name, has_default, default = reference.partition(":-")
    found = named(name, values)
    return default if found is None and has_default else found


def _pairs(
    path: Path, name: str, depth: int, *, is_read_again: bool, is_optional: bool = False
) -> Iterator[tuple[str, str]]:
    if is_read_again and path.exists() and not path.is_file():
        raise ConfigurationError(f"{name} is not a file, and cannot be read again")
    try:
        pairs = properties.pairs(path.read_text(encoding="utf-8"))
    except OSError as error:
        if is_optional and isinstance(error, FileNotFoundError):
            return
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name} is not UTF-8 text: see its byte {error.start}") from None
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    for key, value in pairs:
        if key.lower() not in (_INCLUDE, _INCLUDE_OPTIONAL):
            yield key, value
            continue
        if "${" in value or depth == INCLUDES_MAX:
            why = "a name with ${...} cannot be replaced here" if depth < INCLUDES_MAX else "files include themselves"
            raise ConfigurationError(f"{name}: {key} = {value}: {why}")
        included = path.parent / value
        yield from _pairs(
            included,
            f"{str(included)!r}, which {name} includes,",
            depth + 1,
            is_read_again=is_read_again,
            is_optional=key.lower() == _INCLUDE_OPTIONAL,
        )
