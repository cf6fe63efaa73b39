"""The headers of ledgers that have no entry, and so no index file (`formats.ledger_headers`).

The index writer adds rows when it syncs index files, so the journal keeps each change until it is durable here. When
such a ledger gets its first entry, its index file is created, synced and recorded, and then its row is dropped. Memory:
46 bytes per ledger, and its explicit LAC.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.formats import ledger_headers as file_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.formats.ledger_headers import HeaderRows
from bookie_service.storage import ledger_id_sets
from bookie_service.storage.index.manifest import ROWS_BESIDE, IndexManifestWriter
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles
from bookie_service.storage.io.placed_file import PlacedFile
from bookie_service.storage.io.placed_log import PlacedLog


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The last row of each ledger.

    ledger_ids: int64, ascending. rows: one per ledger. is_removed: one bool per ledger; only this array changes.
    """

    ledger_ids: np.ndarray
    rows: HeaderRows
    is_removed: np.ndarray

    @classmethod
    def of(cls, found: HeaderRows) -> _Table:
        """Return the table of the last row of each ledger, without rows that say that there is no header."""
        ledger_ids = found.rows["ledger_id"].astype(np.int64)
        last = ledger_id_sets.last_of_each(ledger_ids)
        last = last.compress((found.rows["bits"].take(last) & file_format.DROPPED) == 0)
        return cls(ledger_ids.take(last), found.chosen(last), np.zeros(len(last), bool))

    def __len__(self) -> int:
        return len(self.ledger_ids)

    def find(self, ledger_id: int) -> int | None:
        """Return the row of a ledger; None: there is no row, or it was removed."""
        if not len(self.ledger_ids):
            return None
        at = int(self.ledger_ids.searchsorted(ledger_id))
        is_found = at < len(self.ledger_ids) and self.ledger_ids.item(at) == ledger_id
        return at if is_found and not self.is_removed.item(at) else None

    def are_in(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return which rows are of these ledgers, bool each. The ledgers are ascending."""
        if not len(ledger_ids):
            return np.zeros(len(self), bool)
        at = np.minimum(ledger_ids.searchsorted(self.ledger_ids), len(ledger_ids) - 1)
        return ledger_ids.take(at) == self.ledger_ids


class LedgerHeaders:
    """The headers of ledgers without an index file. Changed by one thread at a time, read by any."""

    def __init__(
        self,
        files: ReadOnlyFiles,
        directories: Sequence[str],
        noted: tuple[int, int] | None,
        places: FilePlaces | None = None,
    ) -> None:
        """Read the file.

        `directories`: the `current` directories of all ledger directories. `noted`: the generation and the least bytes
        of the file according to the manifest. `places`: see `PlacedFile`.

        Raises:
            StorageDamaged: a later version wrote the file.
            OSError: it cannot be read.
        """
        try:
            self._file = PlacedFile(files, directories, file_format.FILE_NAME, file_format.generation, places)
            found, end = file_format.decode(self._file.data or b"")
        except ValueError as error:
            raise StorageDamaged(f"{file_format.FILE_NAME} in {', '.join(directories)}: {error}") from error
        self.damage = self._damage(end, noted or (0, 0))
        """What is damaged or missing, and then rows may be missing; "": nothing."""
        self._is_whole = end == len(self._file.data or b"") > 0
        """Whether the file exists and every byte of it was decoded."""
        # From now on only the path and the generation are needed.
        self._file.data = None
        self._rows_written = len(found)
        """How many rows the file has, obsolete ones included."""
        self.table = _Table.of(found)
        """The rows. Replaced as a whole by `LedgerHeadersWriter`, except that `remove` marks rows."""

    def _damage(self, end: int, noted: tuple[int, int]) -> str:
        data, path = self._file.data, self._file.path
        generation, least_bytes = noted
        if data is None:
            return f"{path} is missing" if least_bytes else ""
        if not end:
            return f"{path} offset 0: the head fails its checksum"
        if self._file.generation < generation:
            return f"{path}: a later version of it is missing"
        if self._file.generation > generation:
            least_bytes = len(data)
        if end >= least_bytes:
            return ""
        return f"{path} offset {end}: truncated or damaged here, it had {least_bytes} bytes at least"

    @property
    def path(self) -> str:
        return self._file.path

    def __len__(self) -> int:
        return len(self.table) - int(np.count_nonzero(self.table.is_removed))

    def header(self, ledger_id: int) -> LedgerHeader | None:
        """Return the header of a ledger, with generation 0; None: there is no header here."""
        table = self.table
        at = table.find(ledger_id)
        return None if at is None else table.rows.header(at)

    def has(self, ledger_id: int) -> bool:
        """Return whether a ledger has a header here."""
        return self.table.find(ledger_id) is not None

    def ledger_ids(self) -> np.ndarray:
        """Return the ledgers that have a header here, int64, ascending."""
        table = self.table
        return table.ledger_ids.compress(~table.is_removed)

    def remove(self, ledger_id: int) -> None:
        """Forget a ledger, which may be unknown. The next `write` makes it durable. For any thread."""
        while True:
            table = self.table
            at = table.find(ledger_id)
            if at is not None:
                table.is_removed[at] = True
            # A writer that took the removed rows before this looks again after it has replaced the table.
            if table is self.table:
                return


class LedgerHeadersWriter(LedgerHeaders):
    """Records headers durably, and in the manifest up to where the file is whole."""

    def __init__(
        self,
        files: LocalFiles,
        directories: Sequence[str],
        known: IndexManifestWriter,
        rows_beside: int = ROWS_BESIDE,
        places: FilePlaces | None = None,
    ) -> None:
        """`rows_beside`: see `IndexManifestWriter`. Raises StorageDamaged and OSError as `LedgerHeaders`."""
        super().__init__(files, directories, known.headers, places)
        self._files = files
        self._known = known
        """Records durably that the file exists."""
        self._rows_beside = rows_beside
        self._noted_generation = None if known.headers is None else known.headers[0]
        """The generation that is durable in the manifest; None: it names no generation."""
        self._log = PlacedLog(files, self._file, is_whole=self._is_whole and not self.damage)

    def settle(self, filed: np.ndarray) -> None:
        """Drop ledgers that also have a file, because a crash may have left both; end a loss that the caller recorded.

        If no header is left, the manifest records that, and earlier versions of the bookie accept the directories
        again.

        Args:
            filed: ledgers with a recorded index file, int64, ascending.

        Raises:
            OSError: the next start finds the same state again.
        """
        table = self.table
        table.is_removed[table.are_in(filed)] = True
        is_needless = not len(self) and self._known.headers is not None
        if is_needless or self.damage or table.is_removed.any():
            self._write([], is_replaced=is_needless or bool(self.damage))
            self._note(is_needed=not is_needless)
        elif len(self) and self._log.end and self._file.generation != self._noted_generation:
            # A crash came before this was recorded, or the manifest was lost.
            self._note()

    def write(self, headers: Sequence[LedgerHeader], filed: Collection[int] = ()) -> None:
        """Set headers, and drop those of removed ledgers and of ledgers that now have a recorded file.

        All of it is durable on return.

        Raises:
            OSError: not all of it is durable. The next call must get the same headers and ledgers again.
        """
        if len(self.table):
            for ledger_id in filed:
                self.remove(ledger_id)
        if headers or self.table.is_removed.any():
            self._write(headers)
            self._note()

    def keep(self) -> None:
        """Write the headers to another directory if their disk fails. Raises OSError if they stay where they are."""
        if self._file.is_out_of_reach(self._files):
            self._write([], is_replaced=True)
            self._note()

    def _write(self, headers: Sequence[LedgerHeader], *, is_replaced: bool = False) -> None:
        """Append rows for headers and removals, or rewrite the whole file."""
        old = self.table
        was_removed = old.is_removed.copy()
        # A header that is set counts, even if its ledger was removed before.
        changes = file_format.joined(
            [file_format.rows_of([], old.ledger_ids[was_removed]), file_format.rows_of(headers)]
        )
        table = _Table.of(file_format.joined([old.rows, changes]))
        is_replaced = self._log.write(
            file_format.encode_rows(changes),
            lambda generation: file_format.encode_head(generation) + file_format.encode_rows(table.rows),
            # A torn record of a generation that is not recorded would count as a loss.
            is_replaced=is_replaced
            or self._file.generation != self._noted_generation
            or self._rows_written > 2 * len(table) + self._rows_beside,
        )
        self._rows_written = len(table) if is_replaced else self._rows_written + len(changes)
        self.table = table
        for ledger_id in old.ledger_ids[old.is_removed & ~was_removed].tolist():
            self.remove(ledger_id)

    def _note(self, *, is_needed: bool = True) -> None:
        """Record in the manifest that there is such a file, or that no such file is needed."""
        if is_needed:
            self._known.note_headers(self._file.generation, self._log.end)
            self._noted_generation = self._file.generation
        else:
            self._known.forget_headers()
            self._noted_generation = None
