"""What an option of `format("bookkeeper")` is: its name, its check, and the uses that it has an effect on. PURE."""

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
    """One option: its name as users write it, the SourceOptions field it fills, its check, where it has effect.

    default: as users would write it; None where there is none, or none that is always the same.
    """

    name: str
    field: str
    check: Callable[[str], Any]
    uses: frozenset[str]
    meaning: str
    default: str | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that there are, where they are few."""
        return self.check.choices if isinstance(self.check, OneOf) else ()

    @property
    def places(self) -> str:
        """Where it has an effect, in words."""
        return " or ".join(sorted(self.uses))
