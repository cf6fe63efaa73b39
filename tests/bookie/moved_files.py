"""A bookie whose file of the whole bookie moves to another directory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index_moves import DoubtCallbacks
from bookie_service.storage.index.per_ledger import PageOptions, PerLedgerIndex
from bookie_service.storage.io.files import LocalFiles


def at(names: str, *operations: str) -> Callable[[str, str], bool]:
    """Return a fault of these operations in some of the directories."""
    return lambda operation, path: operation in operations and any(f"/{name}/" in f"{path}/" for name in names)


class Moving:
    """An index over three directories, and the ledgers that it put into limbo."""

    def __init__(self, directories: list[str], files: LocalFiles | None = None) -> None:
        self.doubted: list[int] = []
        self.headers: dict[int, LedgerHeader] = {}
        self.index = PerLedgerIndex(
            files or LocalFiles(),
            directories,
            PageOptions(),
            4,
            DoubtCallbacks(self._doubt, header_of=lambda each: self.headers.get(each)),
        )

    def _doubt(self, ledger_ids: Collection[int]) -> None:
        self.doubted += ledger_ids

    def held(self, ledger_id: int, count: int = 10) -> list[int]:
        return self.index.positions(ledger_id, 0, count).tolist()


def files_of(directories: list[str]) -> list[str]:
    """Return each index file as its directory's name and its own."""
    found = [(Path(each).name, path) for each in directories for path in Path(each).rglob("*.idx")]
    return sorted(f"{name}/{path.name}" for name, path in found)
