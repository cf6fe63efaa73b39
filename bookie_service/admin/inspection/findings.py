"""What the readers of a bookie's files report: facts, runs of entries or positions, and damage.

A reader is a generator of findings in the order of the file. It changes nothing and needs no lock. It may read a file
that a bookie is writing: unfinished parts are `Incomplete`, and never `Damage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

UNVERIFIED, VERIFIED, WRONG = 0, 1, -1
"""The state of an entry or position: it cannot be checked here; it passed its check; it failed its check."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One header, record, mark or other single thing. `checksum_ok` None: it carries no checksum.

    offset, length: None in a key-value store, which has no file offsets.
    """

    kind: str
    """What it is, as people read it, such as "mark"."""
    path: str
    offset: int | None
    length: int | None
    checksum_ok: bool | None
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FoundEntries:
    """Stored entries: item i, `i32 length, entry`, is bytes offsets[i] .. offsets[i] + sizes[i] - 1 of the file."""

    path: str
    offsets: np.ndarray
    sizes: np.ndarray
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    states: np.ndarray
    """VERIFIED, UNVERIFIED or WRONG, for each."""


@dataclass(frozen=True, slots=True)
class FoundPositions:
    """Positions of entries of one ledger in an index. No position is 0.

    offsets: where the positions themselves are in the file; None in a key-value store.
    """

    path: str
    ledger_id: int
    entry_ids: np.ndarray
    positions: np.ndarray
    states: np.ndarray
    """VERIFIED, UNVERIFIED or WRONG, for each."""
    offsets: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that were once whole and are damaged now. `length` None: their number is unknown. `offset` None: their
    place is unknown, too."""

    path: str
    offset: int | None
    length: int | None
    reason: str
    """One line for people."""
    ledger_id: int | None = None
    entry_id: int | None = None

    @property
    def place(self) -> str:
        """The file, with the offset if there is one."""
        return self.path if self.offset is None else f"{self.path} offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Bytes of a write that is running or was interrupted. Nothing in them was acknowledged."""

    path: str
    offset: int
    """They are `length` bytes from here on."""
    length: int
    reason: str
    """One line for people."""


Finding = Fact | FoundEntries | FoundPositions | Damage | Incomplete
