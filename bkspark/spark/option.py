"""Option: the declaration of one option of `format("bookkeeper")`: name, check, default, and where it has effect.
PURE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bkspark.spark.option_values import OneOf

READ, STREAM, WRITE = "a batch read", "a stream read", "a write"
BATCHES, STREAMS, WRITES = frozenset({READ}), frozenset({STREAM}), frozenset({WRITE})
READS = frozenset({READ, STREAM})
ANY = frozenset({READ, STREAM, WRITE})


@dataclass(frozen=True)
class Option:
    """One option: its name as users write it, the field of SourceOptions that it fills, its check, its uses.

    default: as users would write it; None if there is no default, or no constant one.
    """

    name: str
    field: str
    check: Callable[[str], Any]
    uses: frozenset[str]
    meaning: str
    """One line, for the documentation and error messages."""
    default: str | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, if the option has a fixed list of them; otherwise ()."""
        return self.check.choices if isinstance(self.check, OneOf) else ()

    @property
    def places(self) -> str:
        """Where the option has an effect, in words."""
        return " or ".join(sorted(self.uses))
