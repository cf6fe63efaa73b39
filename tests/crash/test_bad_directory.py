"""A ledger directory that takes no writes, and crashes: nothing is lost, and the bookie starts.

The defects planted here are those that only show where index files move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookie_service.formats import index_files as file_format
from bookie_service.storage.index.index_moves import IndexMoves
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.io.placed_file import PlacedFile
from tests.crash.audit import Violation
from tests.crash.bad_directory import Case, cases, crash_everywhere
from tests.planting import Plant, changed, replaced


@pytest.mark.long_except(
    *map(str, list(cases())[::2]), reason="the same script with another error or another directory"
)
@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_crash_at_some_moments_while_one_directory_takes_no_writes_loses_nothing(case: Case) -> None:
    assert crash_everywhere(case, 0.15 if case.is_db else 0.06) > 50


def _unnoted_move() -> Plant:
    """It is not noted where a file moved to."""
    return changed(IndexManifestWriter, "note", lambda old: lambda self, changes, moved=None: old(self, changes))


def _early_removal() -> Plant:
    """The old file goes before it is durable where the new one is."""

    def make(old: Any) -> Any:
        def move(self: IndexMoves, *arguments: Any, **named: Any) -> Any:
            file = old(self, *arguments, **named)
            self.noted()
            return file

        return move

    return changed(IndexMoves, "move", make)


def _lists_in_the_first_directory() -> Plant:
    """The lists of the whole bookie lie in the first directory, whatever its disk says."""

    def make(old: Any) -> Any:
        def replace(self: PlacedFile, files: Any, encode: Any, *, elsewhere: bool = False) -> bytes:
            self._paths = self._paths[:1]
            return old(self, files, encode)

        return replace

    return changed(PlacedFile, "replace", make)


def _same_generation() -> Plant:
    """It is unknown which of two versions of a list is the later one."""
    return replaced(file_format, "encode_head", lambda generation, old=file_format.encode_head, **kind: old(1, **kind))


@pytest.mark.parametrize(
    "plant",
    [
        _unnoted_move,
        _early_removal,
        _lists_in_the_first_directory,
        _same_generation,
    ],
)
def test_planted_defect_is_found(plant: Callable[[], Plant]) -> None:
    with plant(), pytest.raises(Violation):
        _crash_all()


def _crash_all() -> None:
    for case in cases():
        crash_everywhere(case, 0.06)
