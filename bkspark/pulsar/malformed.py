"""Errors about values, among many, that are not what they should be. PURE.

A topic may have as many malformed values as others. Therefore an error names as many of them as one look at all values
finds: the others can be decoded together, and not one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import pyarrow as pa

# All errors that the parsers and Arrow raise for hostile bytes.
MALFORMED = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    EOFError,
    RecursionError,
    AttributeError,
    pa.ArrowException,
)

T = TypeVar("T")
U = TypeVar("U")


class MalformedValues(ValueError):
    """Some of the values are malformed; `rows` are their indexes, ascending. `first`: what is wrong with the first."""

    def __init__(self, rows: np.ndarray, first: Exception | str) -> None:
        super().__init__(str(first))
        self.rows = rows
        self.first = first


def refuse(is_wrong: np.ndarray, reason: str) -> None:
    """Raise MalformedValues if there are wrong ones, bool (n,)."""
    if is_wrong.any():
        raise MalformedValues(np.flatnonzero(is_wrong), reason)


def each(parse: Callable[[T], U], values: Iterable[T | None]) -> list[U | None]:
    """Return what `parse` makes of each value; None of None.

    Raises:
        MalformedValues: for all values for which `parse` raises one of MALFORMED.
    """
    given = list(values)
    try:
        return [None if value is None else parse(value) for value in given]
    except MALFORMED:
        # Usually there is none; then a `try` for each value would be for nothing.
        raise malformed_among(parse, given) from None


def malformed_among(parse: Callable[[T], object], values: Iterable[T | None]) -> MalformedValues:
    """Return the error that names the values for which `parse` raises one of MALFORMED; there is at least one."""
    rows: list[int] = []
    first: Exception | None = None
    for place, value in enumerate(values):
        try:
            if value is not None:
                parse(value)
        except MALFORMED as error:
            rows.append(place)
            first = first or error
    assert first is not None, "parsing a value again gives the same"
    return MalformedValues(np.array(rows), first)
