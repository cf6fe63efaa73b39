"""Converts the index of a stopped bookie to the kind that `ledgerStorageClass` names.

    python -m bookie_service --convert-index [--config FILE] [--set key=value]... [--json]

It corresponds to Apache's `convert-to-db-storage` and `convert-to-interleaved-storage`. There are two kinds of index: a
file per ledger (`SortedLedgerStorage`, `InterleavedLedgerStorage`) and a key-value store (`DbLedgerStorage`). All other
files are the same with every class and stay as they are: entry logs, journals, marks, limbo, fences of deleted ledgers.
The new index has the master key, the fence, the explicit LAC and every position of each ledger.

It is refused for a bookie that did not stop in order, because the journal may then have more than the index; after a
rebuild, until the bookie has run; and for an index that is damaged or has lost a file: `rebuild` comes first. The
command holds the directory locks.

The steps, each of them durable before the next one:

1. The file `conversion` is made in the first journal directory. Every class refuses to start while it is there. It is
   beside a journal, because a bookie may start without a ledger directory whose disk fails.
2. The new index is made beside the old one. While the store of the first directory has its final name, `positions`, the
   store counts; otherwise the index files count. So the rename of the store decides. If there are several ledger
   directories, a store is made in each, and the file `conversion` decides (`store_swap`).
3. The old index is removed, and then the file `conversion`.

A bookie that has one store for several ledger directories gets one in each.

A crash at any moment loses nothing: run it again, with the same class to finish or with the other one to undo. If the
old index turns out to be damaged, the command undoes its own steps, and also if the only store is divided and a disk
does not take the new ones. Once the new index is made, and to undo, only the
index that does not count is removed. What a ledger disk that fails has of it stays there, so that the bookie can start
without this disk. With this disk, the command removes a store there, if index files count.

Exit code 0: done, or there was nothing to do; 1: not done, or the bookie runs; 2: wrong usage or configuration.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from bkspark.errors import BookKeeperError, ConfigurationError, StorageDamaged
from bookie_service.admin.index_building import (
    FILES_OPEN_MAX,
    PAGE_BYTES,
    SUFFIX,
    IndexBuilder,
    KeyValueIndexBuilder,
    PerLedgerIndexBuilder,
)
from bookie_service.admin.rebuild import cut_files
from bookie_service.admin.stopped_bookie import StoppedBookie, check_directories, holding, show_progress
from bookie_service.admin.store_swap import REBUILT_NAME, StoreSwap, remove_tree, remove_unfinished
from bookie_service.formats import index_files, key_value_index, ledger_headers
from bookie_service.formats.index import LedgerHeader
from bookie_service.settings.arguments import describe, fail
from bookie_service.settings.configuration import Configuration
from bookie_service.storage import layout, ledger_id_sets
from bookie_service.storage.index.index import IndexPaths, IndexReader
from bookie_service.storage.index.index_pages import IndexPages
from bookie_service.storage.index.kept_files import forget_kept_files
from bookie_service.storage.index.key_value_index import ONE_STORE, open_view
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.index.manifest import IndexManifest
from bookie_service.storage.index.split_index import open_index_view
from bookie_service.storage.index.split_layout import find_layout
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import is_disk_failure
from bookie_service.storage.ledgers.interface import IndexView
from bookie_service.storage.ledgers.limbo import DirtyMarker
from bookie_service.storage.ledgers.storage_class import StorageClass

_PROGRAM = "bookie"
_PROGRESS_S = 10.0
_GENERATION = 1
"""The generation of each header in the new index, where it is the first one."""
_RECORDS = (index_files.FILE_NAME, ledger_headers.FILE_NAME)
"""The names of the records about index files."""


@dataclass(slots=True)
class ConversionReport:
    """What was converted.

    storage_class: the class whose index there is now.
    is_converted: False: the index already was of this kind, or there was none.
    was_interrupted: an earlier conversion was interrupted, and is finished or undone now.
    ledgers, entries: how many the new index has; 0 if an earlier conversion had made it.
    """

    storage_class: str
    is_converted: bool = False
    was_interrupted: bool = False
    ledgers: int = 0
    entries: int = 0
    notes: list[str] = field(default_factory=list)
    """Lines for the operator."""


def run(configuration: Configuration, as_json: bool) -> int:
    """Convert the index in the configured directories and print the result; return the exit code."""
    try:
        check_directories(configuration, "--convert-index")
    except ConfigurationError as error:
        return fail(_PROGRAM, error, 2)
    except OSError as error:
        return fail(_PROGRAM, describe(error), 1)
    try:
        # What is needed of a disk that fails ends the conversion. Undoing one may need nothing of it.
        with holding(configuration, "convert", leaves_out_failing=True) as bookie:
            report = Conversion(bookie, show_progress).run()
    except (BookKeeperError, OSError) as error:
        return fail(_PROGRAM, describe(error), 1)
    _print(report, as_json)
    return 0


class Conversion:
    """Converts the index of one bookie, whose directories no other process may change meanwhile."""

    def __init__(self, bookie: StoppedBookie, progress: Callable[[str], None]) -> None:
        """`bookie.storage_class`: the class that is to read the new index.

        Raises:
            ConfigurationError: the bookie did not stop in order, or has not run since a rebuild.
            StorageDamaged: the record of the places of files has a version that this bookie does not read.
        """
        self._files = bookie.files
        self._journal = bookie.journals[0]
        """The `current` directory of the first journal."""
        self._ledgers = bookie.ledgers
        self._to_store = bookie.storage_class is StorageClass.DB
        self._options = bookie.key_values
        self._progress = progress
        """Called with a line for people now and then."""
        self._report = ConversionReport(bookie.storage_class.short_name)
        self._store = os.path.join(bookie.ledgers[0], key_value_index.DIRECTORY_NAME)
        self._marker = os.path.join(bookie.journals[0], layout.CONVERSION_NAME)
        self._old_marker = os.path.join(bookie.ledgers[0], layout.CONVERSION_NAME)
        """The marker of an earlier build. Without the disk of this directory a bookie may have run beside it."""
        has_run = not bookie.files.exists(self._marker)
        """Whether a bookie may have run since an earlier conversion began that did not end, or there is none."""
        if has_run and DirtyMarker(bookie.files, bookie.ledgers, bookie.journals).is_set():
            raise ConfigurationError(
                f"the bookie in {', '.join(bookie.ledgers)} did not stop in order, or has not run since its index was "
                "rebuilt, so the index may lack something: start it with the class that it had, stop it with SIGTERM, "
                "and then convert"
            )
        self._is_interrupted = not has_run or bookie.files.exists(self._old_marker)
        """Whether an earlier conversion did not end."""
        if not has_run and bookie.files.read_all(self._marker).startswith(layout.REBUILDING):
            raise ConfigurationError(f"{self._marker}: a rebuild was interrupted: run --rebuild-index again")
        self._swap = StoreSwap(bookie.files, bookie.journals, bookie.ledgers)
        """Gives every directory its new store."""
        self._purpose = f"{StorageClass.DB.short_name}\n".encode()
        """The beginning of the marker while stores are made."""
        self._places = FilePlaces(bookie.files, bookie.journals[0])

    def run(self) -> ConversionReport:
        """Convert the index, or finish a conversion that was interrupted.

        Raises:
            ConfigurationError: there are indexes of both kinds.
            StorageDamaged: the old index is damaged, or a file of it is lost. It is as it was.
            OSError: a file cannot be read or written. Run it again. If the only store was to be divided, it counts as
                before.
        """
        self._swap.finish(self._purpose, keeps_marker=True)
        has_store = self._files.is_directory(self._store)
        is_divided = self._to_store and has_store and self._is_divided()
        if self._is_interrupted:
            self._report.was_interrupted = True
        else:
            if not has_store and not self._to_store:
                self._remove_left_stores()
            has_files = self._has_files(has_store)
            if has_store and has_files:
                raise ConfigurationError(
                    f"{', '.join(self._ledgers)}: there are {key_value_index.DIRECTORY_NAME} and index files, and no "
                    "conversion was interrupted, so it is unknown which of them counts: move what the bookie did not "
                    "use last to another place"
                )
            if (has_store == self._to_store and not is_divided) or not (has_store or has_files):
                return self._report
            self._files.replace(self._marker, f"{self._report.storage_class}\n".encode())
        self._report.is_converted = True
        if is_divided or has_store != self._to_store:
            self._remove_unfinished()
            make = self._divide_store if is_divided else self._make_store if self._to_store else self._make_files
            try:
                make()
            except StorageDamaged:
                self._end(store_counts=has_store)
                raise
            except OSError:
                # To divide a store there is no other class that undoes it. A disk that fails keeps what it has of it.
                if is_divided and not self._swap.has_begun(self._purpose):
                    self._end(store_counts=True)
                raise
        self._end(store_counts=self._to_store)
        return self._report

    def _is_divided(self) -> bool:
        """Return whether the only store must be divided: each ledger directory gets its own."""
        return 1 < len(self._ledgers) <= key_value_index.STORES_MAX and find_layout(self._files, self._ledgers) is None

    def _divide_store(self) -> None:
        """Make a store in each directory from the only one."""
        view = open_view(self._files, self._ledgers[0], ONE_STORE)
        try:
            builder = self._store_builder()
            try:
                self._fill(builder, view, view.ledger_ids())
            except StorageDamaged:
                builder.close()
                raise
            except OSError:
                with contextlib.suppress(OSError):
                    builder.close()
                raise
        finally:
            view.close_store()
        self._swap.finish(self._purpose, keeps_marker=True)

    def _store_builder(self) -> KeyValueIndexBuilder:
        return KeyValueIndexBuilder(
            self._files,
            self._ledgers,
            self._options,
            from_scratch=True,
            begin_swap=lambda: self._swap.begin(self._purpose),
            places=self._places,
        )

    def _end(self, *, store_counts: bool) -> None:
        """Remove the index that does not count, and then the marker. A ledger disk that fails may keep index files."""
        if store_counts:
            for directory in self._remove_files(leaves_out_failing=True):
                self._report.notes.append(
                    f"directory {directory} may still have index files, because its disk fails: remove its *.idx "
                    "before the bookie uses this directory again"
                )
        self._remove_unfinished()
        if not store_counts:
            forget_kept_files(self._files, self._places, self._ledgers, leaves_out_failing=True)
        for marker in filter(self._files.exists, (self._old_marker, self._marker)):
            self._files.remove(marker)
            self._files.sync_directory(os.path.dirname(marker))

    def _has_files(self, has_store: bool) -> bool:
        """Return whether there are index files or headers beside the store; without a store, or records about them."""
        if IndexPaths(self._ledgers).has_any(self._files):
            return True
        if has_store:
            # Empty records may remain of a bookie that had index files once.
            headers = LedgerHeaders(self._files, self._ledgers, None, self._places)
            return bool(len(headers) or headers.damage)
        return any(map(self._files.exists, self._records()))

    def _records(self) -> list[str]:
        """Return the paths where records about index files may be."""
        return [os.path.join(directory, name) for directory in self._ledgers for name in _RECORDS]

    # ---- the new index ----

    def _make_store(self) -> None:
        """Make the store from the index files."""
        known = IndexManifest(self._files, self._ledgers, places=self._places)
        if not known.is_complete:
            raise StorageDamaged(
                f"{known.path} is missing or damaged, so it is unknown which index files there must be: start the "
                "bookie with the class that it had and stop it, which records them, and then convert"
            )
        fileless = LedgerHeaders(self._files, self._ledgers, known.headers, self._places)
        paths = IndexPaths(self._ledgers, known.moved())
        lost = cut_files(self._files, known, paths)
        if lost or fileless.damage:
            what = fileless.damage or f"the index file of ledger {lost[0]} is missing or too short"
            raise StorageDamaged(f"{what}: run --rebuild-index, start and stop the bookie, and then convert")
        filed = ledger_id_sets.union(paths.ledgers(self._files), known.all()[0])
        reader = IndexReader(
            self._files, paths, IndexPages(PAGE_BYTES, PAGE_BYTES), fileless, FILES_OPEN_MAX, keeps_pages=False
        )
        with contextlib.closing(reader):
            builder = self._store_builder()
            try:
                self._fill(builder, reader, ledger_id_sets.union(filed, fileless.ledger_ids()))
            except StorageDamaged:
                builder.close()
                raise
        self._swap.finish(self._purpose, keeps_marker=True)

    def _make_files(self) -> None:
        """Make the index files from the store, and then take its name from the store."""
        self._remove_files(leaves_out_failing=False)
        view = open_index_view(self._files, self._journal, self._ledgers)
        try:
            self._fill(PerLedgerIndexBuilder(self._files, self._ledgers), view, view.ledger_ids())
        finally:
            view.close_store()
        self._files.rename(self._store, os.path.join(self._ledgers[0], REBUILT_NAME))
        self._files.sync_directory(self._ledgers[0])

    def _fill(self, builder: IndexBuilder, old: IndexView, ledger_ids: np.ndarray) -> None:
        reported_s = time.monotonic()
        for done, ledger_id in enumerate(ledger_ids.tolist()):
            for first, positions in old.extents(ledger_id):
                rows = np.flatnonzero(positions)
                builder.hold(ledger_id, first + rows, positions[rows])
            if time.monotonic() - reported_s >= _PROGRESS_S:
                reported_s = time.monotonic()
                self._progress(f"{done} of {len(ledger_ids)} ledgers converted")

        def header_of(ledger_id: int, new: LedgerHeader | None) -> LedgerHeader:
            header = old.header(ledger_id)
            if header is None:
                raise StorageDamaged(f"ledger {ledger_id} has positions and no header: run --rebuild-index {ledger_id}")
            return replace(header, generation=_GENERATION)

        self._report.entries = builder.finish(ledger_ids.tolist(), header_of)
        self._report.ledgers = len(ledger_ids)

    # ---- the old index ----

    def _remove_files(self, *, leaves_out_failing: bool) -> list[str]:
        """Remove all index files and the records about them, durably; return the directories that may still have some.

        `leaves_out_failing`: leave out directories whose disks fail, except for the first one.
        """
        left_out = []
        for number, directory in enumerate(self._ledgers):
            try:
                self._remove_files_in(directory)
            except OSError as error:
                if not (leaves_out_failing and number) or not is_disk_failure(error):
                    raise
                left_out.append(directory)
        # The record of their places must not name a file that is gone: it would count as lost.
        for name in _RECORDS:
            self._places.forget(name)
        return left_out

    def _remove_files_in(self, directory: str) -> None:
        paths, inner = IndexPaths((directory,)), set()
        index_paths = (paths.path_in(place, ledger_id) for place, ledger_id in paths.places_of_all(self._files))
        for path in itertools.chain(index_paths, paths.leftovers(self._files, SUFFIX)):
            self._files.remove(path)
            inner.add(os.path.dirname(path))
        for each in sorted(inner):
            self._remove_if_empty(each)
        for each in sorted({os.path.dirname(each) for each in inner}):
            self._remove_if_empty(each)
        for path in filter(self._files.exists, (os.path.join(directory, name) for name in _RECORDS)):
            self._files.remove(path)
        self._files.sync_directory(directory)

    def _remove_if_empty(self, directory: str) -> None:
        self._files.sync_directory(directory)
        if not self._files.names(directory):
            self._files.remove_directory(directory)
            self._files.sync_directory(os.path.dirname(directory))

    def _remove_unfinished(self) -> None:
        """Remove what is left of stores that do not count, durably."""
        has_store = self._files.is_directory(self._store)
        for directory in self._ledgers:
            try:
                if not has_store:
                    self._remove_store_in(directory)
                remove_unfinished(self._files, [directory])
            except OSError as error:
                # With a store in each directory, all disks are needed. The only store is in the first directory.
                if directory == self._ledgers[0] or not is_disk_failure(error):
                    raise

    def _remove_left_stores(self) -> None:
        """Remove stores that an earlier conversion left on disks that failed, if a record says that index files count.

        A bookie that uses stores has no such record. Without it the store of the first directory may be lost.
        """
        if IndexManifest(self._files, self._ledgers, places=self._places).is_complete:
            self._remove_unfinished()

    def _remove_store_in(self, directory: str) -> None:
        """Remove the store of a directory, whose name was taken from the store in the first directory."""
        remove_tree(self._files, os.path.join(directory, key_value_index.DIRECTORY_NAME))
        commit = os.path.join(directory, key_value_index.COMMIT_NAME)
        if self._files.exists(commit):
            self._files.remove(commit)
            self._files.sync_directory(directory)


def _print(report: ConversionReport, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(report)), flush=True)
        return
    for note in report.notes:
        print(f"note: {note}")
    if report.was_interrupted and not report.ledgers:
        print(f"an interrupted conversion has ended: {report.storage_class} reads the index now", flush=True)
    elif report.is_converted:
        print(
            f"{report.ledgers} ledgers with {report.entries} entries converted: {report.storage_class} reads the index "
            "now. Start the bookie with this ledgerStorageClass",
            flush=True,
        )
    else:
        print(f"nothing to convert: {report.storage_class} reads the index as it is", flush=True)
