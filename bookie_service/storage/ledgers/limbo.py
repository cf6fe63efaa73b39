"""Ledgers that may have lost entries here. No client may conclude anything from an entry that is missing in them (B2,
P29).

A bookie acknowledges from its journal. It cannot know what it acknowledged if it ran with an incomplete journal and was
not stopped in order, or if its journal is gone. From then on every ledger that it may have held is in limbo. The same
holds for a single ledger whose index file is lost, or shorter than it was (`manifest`). For a ledger in limbo:

* an entry that is held is served; a read of another entry is answered "unknown ledger state", not "no such entry";
* the bookie does not know the last entry;
* ordinary adds are refused, because the ledger may have been fenced; recovery adds and fences are accepted.

A ledger leaves limbo when the metadata say that it is deleted, or that it is closed and this bookie holds everything
that it should: because of recovery or autorecovery, or because nothing was missing. It is fenced then. Ledgers that are
created later are not in limbo.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.formats import limbo as limbo_format
from bookie_service.storage import ledger_id_sets
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles, is_disk_failure, refuses_writes
from bookie_service.storage.io.placed_file import PlacedFile


class Limbo:
    """Which ledgers are in limbo. For any thread."""

    def __init__(self, files: LocalFiles, directories: Sequence[str], places: FilePlaces | None = None) -> None:
        """`directories`: the `current` directories of all ledger directories. `places`: see `PlacedFile`.

        Raises:
            StorageDamaged: the file is unreadable.
        """
        self._files = files
        self._changing = threading.Lock()
        """Held while ledgers are added or removed, and the file is written."""
        name = limbo_format.LIMBO_NAME
        try:
            self._file = PlacedFile(files, directories, name, lambda data: limbo_format.decode_limbo(data)[1], places)
        except (ValueError, OSError) as error:
            path = getattr(error, "filename", None) or f"{name} in {', '.join(directories)}"
            raise StorageDamaged(
                f"{path}: {error}; without it this bookie cannot tell which ledgers lost entries. Restore it, or start "
                "a bookie with a new bookieId and empty directories"
            ) from error
        data = self._file.data
        self.ledger_ids = np.empty(0, np.int64) if data is None else limbo_format.decode_limbo(data)[0]
        """The ledgers in limbo, int64, ascending. Replaced as a whole by `begin` and `end`."""

    @property
    def is_lost(self) -> bool:
        """Whether the last version of the file was deleted, so that any ledger may have been in limbo."""
        return self._file.is_lost

    def __contains__(self, ledger_id: int) -> bool:
        ledgers = self.ledger_ids
        if not len(ledgers):
            return False
        at = int(ledgers.searchsorted(ledger_id))
        return at < len(ledgers) and ledgers.item(at) == ledger_id

    def __len__(self) -> int:
        return len(self.ledger_ids)

    def begin(self, ledger_ids: Collection[int] | np.ndarray) -> None:
        """Add ledgers, durably. Raises OSError if nothing was changed."""
        with self._changing:
            self._write(ledger_id_sets.union(self.ledger_ids, _array(ledger_ids)))

    def end(
        self, ledger_ids: Collection[int] | np.ndarray, staying: Callable[[], Collection[int]] = lambda: ()
    ) -> None:
        """Take ledgers out, durably, except those that `staying` returns. Raises OSError if nothing was changed.

        A `begin` that `staying` does not know of comes later, so its ledgers are in limbo after both.
        """
        with self._changing:
            ended = ledger_id_sets.without(ledger_id_sets.unique(_array(ledger_ids)), _array(staying()))
            self._write(ledger_id_sets.without(self.ledger_ids, ended))

    def keep(self) -> None:
        """Write the list to another directory if its disk fails. Raises OSError if it stays where it is."""
        with self._changing:
            self._write(self.ledger_ids)

    def _write(self, ledgers: np.ndarray) -> None:
        is_changed = self.is_lost or not np.array_equal(ledgers, self.ledger_ids)
        if is_changed or self._file.is_out_of_reach(self._files):
            self._file.replace(self._files, lambda generation: limbo_format.encode_limbo(ledgers, generation))
            self.ledger_ids = ledgers


def _array(ledger_ids: Collection[int] | np.ndarray) -> np.ndarray:
    return ledger_ids if isinstance(ledger_ids, np.ndarray) else np.array(list(ledger_ids), np.int64)


class DirtyMarker:
    """Shows the next start how this run ended: the files exist unless the bookie stopped in order."""

    def __init__(self, files: LocalFiles, directories: Sequence[str], journals: Sequence[str] = ()) -> None:
        """`directories`, `journals`: the `current` directories of all ledger directories and of all journals.

        A bookie that starts can read its journals. So it knows how the last run ended, whatever disk of the ledgers
        fails.
        """
        self._files = files
        self._journals = frozenset(journals)
        self._paths = [os.path.join(each, limbo_format.DIRTY_NAME) for each in dict.fromkeys((*directories, *journals))]

    def is_journal_incomplete(self) -> bool:
        """Return whether an earlier run did not stop in order and its journal may lack entries that it acknowledged."""
        answers = [self._answer(path) for path in self._paths]
        said = [answer for answer in answers if isinstance(answer, bool)]
        # All markers are equal, unless a crash interrupted the writing of them. The limbo step was already done then.
        is_unknown = not said and ("hidden" in answers or "absent" not in answers)
        return not all(said) or is_unknown

    def is_set(self) -> bool:
        """Return whether the last run did not stop in order. Raises OSError if a disk cannot say it."""
        return any(map(self._files.exists, self._paths))

    def _answer(self, path: str) -> bool | str:
        """Return what a marker says; "absent": there is none; "hidden": it cannot be read; "unknown": is there one?"""
        answer = "unknown"
        try:
            if not self._files.exists(path):
                return "absent"
            answer = "hidden"
            return limbo_format.decode_dirty(self._files.read_all(path))
        except OSError as error:
            if not is_disk_failure(error):
                raise
            return answer

    def set(self, *, journal_is_complete: bool) -> None:
        """Record durably that a run begins, in every directory that can be written.

        If the journal is incomplete, a marker is needed where the next start certainly finds it: without any, the
        journal counts as complete.

        Raises:
            OSError: no journal directory can be written, or no directory at all, and the journal is incomplete.
        """
        marker = limbo_format.encode_dirty(journal_is_complete=journal_is_complete)
        needed = [path for path in self._paths if not self._journals or os.path.dirname(path) in self._journals]
        errors: dict[str, OSError] = {}
        for path in self._paths:
            try:
                if self._files.exists(path) and self._files.read_all(path) == marker:
                    # A process that was killed left it, maybe before its name was durable. This works on a full disk,
                    # too.
                    self._files.sync_directory(os.path.dirname(path))
                else:
                    self._files.replace(path, marker)
            except OSError as error:
                if not refuses_writes(error):
                    raise
                errors[path] = error
        if errors.keys() >= set(needed) and not journal_is_complete:
            raise errors[needed[0]]

    def clear(self) -> None:
        """Record durably that the run stopped in order: everything it acknowledged is in entry logs and index.

        A marker that cannot be removed is pessimistic: it only costs a check at the next start.
        """
        for path in self._paths:
            try:
                if self._files.exists(path):
                    self._files.remove(path)
                    self._files.sync_directory(os.path.dirname(path))
            except OSError as error:
                if not refuses_writes(error):
                    raise
