"""Files of Apache's client configuration: each part of a client reads its own keys, and ignores those of others."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bkspark import properties
from bkspark.errors import ConfigurationError

OFF = ("", "null")
"""Values, in lower case, with which a key counts as not set."""
_NEARLY = 0.9
"""Similarity to a known key, as difflib measures it, from which on a key is regarded as misspelt. Keys of other
programs, also those of bookies, are less similar."""
T = TypeVar("T")


def flag(text: str) -> bool:
    """Return the value of true or false. Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def read_keys(path: str, known: Iterable[str]) -> dict[str, str]:
    """Return the keys that a client's configuration file sets, with their texts.

    Args:
        known: the keys that the caller uses.

    Raises:
        ConfigurationError: the file cannot be read or understood, or a key is a misspelt one of these, which would have
            no effect.
    """
    try:
        pairs = properties.pairs(Path(path).read_text())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"the client's configuration {path} cannot be read: {why}") from None
    given = {key: text for key, text in reversed(pairs) if text.lower() not in OFF}
    by_lower = {key.lower(): key for key in known}
    for key in given:
        near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=_NEARLY)
        if near and key != by_lower[near[0]]:
            raise ConfigurationError(f"{path}: the key {key!r:.80} does not exist; did you mean {by_lower[near[0]]}?")
    return given


def options_of(
    given: Mapping[str, str], parse: Callable[[str, str], Any], make: Callable[[Mapping[str, Any]], T], *, where: str
) -> T:
    """Return the options that keys set.

    Args:
        parse: returns the value of a key's text; raises ValueError.
        make: returns the options of the parsed values; raises ConfigurationError.
        where: what messages begin with.

    Raises:
        ConfigurationError: a value is wrong, or `make` raised it.
    """
    parsed = {}
    for key, text in given.items():
        try:
            parsed[key] = parse(key, text)
        except ValueError as error:
            raise ConfigurationError(f"{where}{key}={text:.200}: {error}") from None
    try:
        return make(parsed)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}{error}") from None
