"""Retention: how long a log keeps its ledgers. PURE.

The head's member `retention`, from version 5 on: null, or `{"age_ms":604800000,"bytes":null}`; null: no limit.
A ledger is removed when all its entries are older than `age_ms`, or when the ledgers after it have at least `bytes`.
The newest ledger always stays. An open ledger, and one that a registered reader has not read to its end, stays with all
ledgers after it. Entries without a known time are regarded as being as old as the first known time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bkspark.ids import ENTRY_ID_MAX
from bkspark.options import bounded, check

AGE_MS_MAX = 10**13
"""Three hundred years."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits of what a log keeps; None means no limit.

    age_ms: how long it keeps its ledgers. bytes: how many bytes of them it keeps.

    Raises:
        ConfigurationError: a limit is out of bounds.
    """

    age_ms: int | None = bounded(None, 1, AGE_MS_MAX, "ms")
    bytes: int | None = bounded(None, 1, ENTRY_ID_MAX, "bytes")

    def __post_init__(self) -> None:
        check(self)

    def to_json(self) -> dict[str, Any]:
        return {"age_ms": self.age_ms, "bytes": self.bytes}

    @classmethod
    def from_json(cls, value: Any) -> Retention:
        """Raises ValueError or ConfigurationError, which say what is wrong."""
        if not isinstance(value, dict) or sorted(value) != ["age_ms", "bytes"]:
            raise ValueError("retention is not an object of age_ms and bytes")
        return cls(value["age_ms"], value["bytes"])


UNLIMITED = Retention()


def cutoff_ms(age_ms: int | None, now_ms: int) -> int | None:
    """Return the time, in ms since 1970, before which entries have expired; None without a limit."""
    return None if age_ms is None else max(0, now_ms - age_ms)


def first_kept(
    wanted: int, *, first_ordinal: int, end_ordinal: int, open_ordinals: Collection[int], needed: Collection[int]
) -> int:
    """Return the ordinal of the first ledger that stays, if those before `wanted` have expired.

    Args:
        needed: for each registered reader, the ordinal of the first ledger that it still needs.
    """
    limits = (wanted, end_ordinal - 1, *open_ordinals, *needed)
    return max(first_ordinal, min(limits))
