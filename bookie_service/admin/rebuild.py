"""Rebuilds the index of a stopped bookie from its entry logs, when index files or the key-value store are lost.

    python -m bookie_service --rebuild-index [LEDGER... | all] [--config FILE] [--set key=value]... [--json]

It corresponds to Apache's `regenerate-interleaved-storage-index-file`, `rebuild-db-ledger-locations-index` and
`rebuild-db-ledgers-index`. The argument chooses the ledgers:

* none named: ledgers whose index file is lost or cut, whose header is unreadable, or that are in limbo; with
  DbLedgerStorage all ledgers, if a key-value store is damaged or missing;
* named ones, whatever their index is like;
* `all`: every ledger that entry logs or journals name. This is also for a folder that lost `indexFiles`, without which
  it is unknown which index files existed. Deleted ledgers come back, and garbage collection drops them again.

The new index has:

* every entry that has a whole copy in the logs. A copy whose digest fails is left out. If there are several copies, the
  one that the old index names counts, otherwise the last one;
* master key, fence and explicit LAC: from the old index if its header is readable, otherwise from the remaining journal
  files (including those kept as backups); a fence also from `fencedDeleted`. Information that is in no such file is
  lost: the next key that a client sends is accepted, no fence is set, no explicit LAC is known. (Apache's tools know
  none of the three: they take a password or leave the key unknown, and fence what they rebuild in RocksDB.)

A rebuild cannot prove that nothing is missing. So it durably puts the ledgers into limbo before their index changes:
the bookie then gives no certain answer about missing entries, and refuses ordinary adds because a fence may be lost.
With `all`, and if a whole store was lost, the next start puts every ledger into limbo that this bookie has according to
the metadata. Ledgers leave limbo when they are closed and whole; autorecovery achieves that.

The command holds the directory locks, so no bookie runs meanwhile. It refuses directories that do not belong together
according to their cookies. A crash at any moment loses nothing: run it again.

Exit code 0: done; 1: not done, or the bookie runs; 2: wrong usage or configuration.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from bkspark.errors import BookKeeperError, ConfigurationError, StorageDamaged
from bkspark.secret_files import password_from
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.layout import MASTER_KEY_BYTES
from bookie_service.admin.index_building import (
    FILES_OPEN_MAX,
    PAGE_BYTES,
    IndexBuilder,
    KeyValueIndexBuilder,
    PerLedgerIndexBuilder,
)
from bookie_service.admin.inspection import places
from bookie_service.admin.inspection.digests import DigestVerifier
from bookie_service.admin.inspection.entry_log import read_entry_log
from bookie_service.admin.inspection.findings import WRONG, Fact, FoundEntries
from bookie_service.admin.inspection.journal import read_journal
from bookie_service.admin.stopped_bookie import StoppedBookie, check_directories, holding, show_progress
from bookie_service.admin.store_swap import StoreSwap
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import OFFSET_BITS
from bookie_service.formats.index import STORED_ENTRY_ID_MAX, UNKNOWN_KEY, LedgerHeader, decode_lac
from bookie_service.formats.journal import LAC_HEAD_BYTES
from bookie_service.settings.arguments import describe, fail
from bookie_service.settings.configuration import Configuration
from bookie_service.storage import layout
from bookie_service.storage.index.index import IndexPaths, IndexReader
from bookie_service.storage.index.index_pages import IndexPages
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.index.manifest import IndexManifest
from bookie_service.storage.index.split_index import open_index_view
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import ReadOnlyFiles
from bookie_service.storage.io.framed_entries import rows_by_ledger
from bookie_service.storage.ledgers.factory import check_converted, check_written_by
from bookie_service.storage.ledgers.interface import IndexView
from bookie_service.storage.ledgers.limbo import DirtyMarker, Limbo
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.ledgers.tombstones import Tombstones

ALL = "all"
_PROGRAM = "bookie"
_POSITIONS_HELD_MAX = 4 * 1024 * 1024
"""How many positions are kept in memory before they are written. Each takes 16 bytes."""
_PROGRESS_S = 10.0


@dataclass(slots=True)
class RebuildReport:
    """What was rebuilt.

    damaged_entries: records of these ledgers whose digest fails. They are left out.
    unknown_keys: ledgers whose master key is lost.
    everything: the next start puts every ledger into limbo that this bookie has according to the metadata.
    """

    ledgers: int = 0
    entries: int = 0
    entry_logs: int = 0
    """Entry logs that were read, and the `ledgers` and `entries` in the new index."""
    damaged_entries: int = 0
    unknown_keys: int = 0
    everything: bool = False
    notes: list[str] = field(default_factory=list)
    """Lines for the operator."""


@dataclass(slots=True)
class _Known:
    """What the journals have about one ledger."""

    master_key: bytes | None = field(default=None, repr=False)
    """The master key; None: the journals do not have it."""
    is_fenced: bool = False
    """Whether the journals have a fence. Set once."""
    explicit_lac: bytes = b""
    """The newest packet; empty: there is none."""


def run(configuration: Configuration, named: Sequence[str], as_json: bool) -> int:
    """Rebuild the index in the configured directories and print the result; return the exit code."""
    try:
        wanted = _wanted(named)
        check_directories(configuration, "--rebuild-index")
    except ConfigurationError as error:
        return fail(_PROGRAM, error, 2)
    except OSError as error:
        return fail(_PROGRAM, describe(error), 1)
    try:
        with holding(configuration, "rebuild") as bookie:
            report = Rebuild(bookie, show_progress).run(wanted)
    except (BookKeeperError, OSError) as error:
        return fail(_PROGRAM, describe(error), 1)
    _print(report, as_json)
    return 0


def _wanted(named: Sequence[str]) -> frozenset[int] | str | None:
    """Return the named ledgers, ALL, or None: the ledgers that have lost something."""
    if not named:
        return None
    if list(named) == [ALL]:
        return ALL
    if not all(name.isascii() and name.isdigit() and int(name) < 1 << 63 for name in named):
        raise ConfigurationError(f"--rebuild-index {' '.join(named)}: name ledger ids, or {ALL} alone, or nothing")
    return frozenset(map(int, named))


class Rebuild:
    """Rebuilds the index of one bookie, whose directories no other process may change meanwhile."""

    def __init__(self, bookie: StoppedBookie, progress: Callable[[str], None]) -> None:
        """Raises ConfigurationError if the directories belong to another storage class, or the index is being
        converted."""
        self._files = bookie.files
        self._journals = bookie.journals
        self._ledgers = bookie.ledgers
        self._is_db = bookie.storage_class is StorageClass.DB
        self._options = bookie.key_values
        self._progress = progress
        """Called with a line for people now and then."""
        self._report = RebuildReport()
        self._known: dict[int, _Known] = {}
        """What the journals say, by ledger."""
        self._held: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        """Positions that were found and are not written to the index yet, by ledger."""
        self._positions_held = 0
        """How many positions `_held` has; at most _POSITIONS_HELD_MAX plus those of one log."""
        self._swap = StoreSwap(bookie.files, bookie.journals, bookie.ledgers)
        """Gives every directory its new store."""
        if self._swap.finish(layout.REBUILDING):
            self._report.notes.append("a rebuild that was interrupted has ended first")
        check_converted(bookie.files, bookie.journals, bookie.ledgers)
        check_written_by(bookie.files, bookie.ledgers, bookie.storage_class)

    def run(self, wanted: frozenset[int] | str | None) -> RebuildReport:
        """Rebuild the index of the named ledgers, of ALL, or (None) of the ledgers that have lost something.

        Raises:
            ConfigurationError: the directories belong to another storage class.
            StorageDamaged: a file has a version that this bookie does not read.
            OSError: a file cannot be read or written.
        """
        from_scratch = self._is_db and self._is_store_lost()
        chosen: frozenset[int] | None = None
        if isinstance(wanted, frozenset):
            if from_scratch:
                raise ConfigurationError(
                    f"a key-value store in {', '.join(self._ledgers)} is damaged or gone, and with it the index of "
                    "unknown ledgers: run --rebuild-index without naming any"
                )
            chosen = wanted
        elif wanted is None and not from_scratch:
            chosen = frozenset(self._lost())
        self._begin_doubt(chosen)
        if chosen is None or chosen:
            self._read_journals(chosen)
            builder = self._builder(from_scratch)
            self._read_logs(chosen, builder)
            self._finish(chosen, builder)
            self._swap.finish(layout.REBUILDING)
        return self._report

    # ---- which ledgers ----

    def _is_store_lost(self) -> bool:
        try:
            open_index_view(self._files, self._journals[0], self._ledgers).close_store()
        except (StorageDamaged, FileNotFoundError):
            return True
        return False

    def _lost(self) -> set[int]:
        """Return the ledgers whose index is lost or cut, whose header is unreadable, or that are in limbo."""
        found = set(Limbo(self._files, self._ledgers).ledger_ids.tolist())
        if self._is_db:
            view = open_index_view(self._files, self._journals[0], self._ledgers)
            try:
                return found | set(_without_header(view, view.ledger_ids()))
            finally:
                view.close_store()
        known = IndexManifest(self._files, self._ledgers)
        paths = IndexPaths(self._ledgers, known.moved())
        if not known.is_complete:
            self._report.notes.append(
                f"{known.path} is missing or damaged, so it is unknown which index files there were: those that are "
                f"lost are found by --rebuild-index {ALL} only"
            )
        fileless = LedgerHeaders(self._files, self._ledgers, known.headers)
        if fileless.damage:
            self._report.notes.append(
                f"{fileless.damage}. Fences of ledgers without entries may be lost: the next start puts every ledger "
                "into limbo"
            )
        found.update(cut_files(self._files, known, paths))
        reader = IndexReader(self._files, paths, IndexPages(PAGE_BYTES, PAGE_BYTES), fileless, FILES_OPEN_MAX)
        try:
            return found | set(_without_header(reader, paths.ledgers(self._files)))
        finally:
            reader.close()

    def _begin_doubt(self, chosen: frozenset[int] | None) -> None:
        """Record durably that these ledgers may lack entries, before the index loses any other sign of it."""
        if chosen is None:
            self._report.everything = True
            DirtyMarker(self._files, self._ledgers).set(journal_is_complete=False)
        else:
            Limbo(self._files, self._ledgers).begin(chosen)

    def _builder(self, from_scratch: bool) -> IndexBuilder:
        if self._is_db:
            return KeyValueIndexBuilder(
                self._files,
                self._ledgers,
                self._options,
                from_scratch=from_scratch,
                begin_swap=lambda: self._swap.begin(layout.REBUILDING),
                places=FilePlaces(self._files, self._journals[0]),
            )
        return PerLedgerIndexBuilder(self._files, self._ledgers)

    # ---- what the files have ----

    def _read_journals(self, chosen: Collection[int] | None) -> None:
        for directory in self._journals:
            for path in places.files_of(self._files, [directory], "journal", None):
                for finding in read_journal(self._files, path, None):
                    if isinstance(finding, FoundEntries):
                        for ledger_id in np.unique(finding.ledger_ids).tolist():
                            self._learn(chosen, ledger_id)
                    elif isinstance(finding, Fact) and "ledger" in finding.values:
                        known = self._learn(chosen, finding.values["ledger"])
                        if known is not None:
                            self._take(known, finding)

    def _learn(self, chosen: Collection[int] | None, ledger_id: int) -> _Known | None:
        if chosen is not None and ledger_id not in chosen:
            return None
        return self._known.setdefault(ledger_id, _Known())

    def _take(self, known: _Known, fact: Fact) -> None:
        """Apply a journal record."""
        assert fact.offset is not None
        assert fact.length is not None
        if fact.kind == "fence":
            known.is_fenced = True
        elif fact.kind == "ledger-key":
            known.master_key = self._bytes(fact.path, fact.offset + fact.length - MASTER_KEY_BYTES, MASTER_KEY_BYTES)
        elif fact.kind == "explicit-lac":
            packet = self._bytes(fact.path, fact.offset + LAC_HEAD_BYTES, fact.length - LAC_HEAD_BYTES)
            if not known.explicit_lac or decode_lac(packet)[1] > decode_lac(known.explicit_lac)[1]:
                known.explicit_lac = packet

    def _bytes(self, path: str, offset: int, size: int) -> bytes:
        with contextlib.closing(self._files.open(path)) as file:
            return file.read(size, offset)

    def _read_logs(self, chosen: frozenset[int] | None, builder: IndexBuilder) -> None:
        wanted = None if chosen is None else np.array(sorted(chosen), np.int64)
        verifier = DigestVerifier(password_from(os.environ))
        paths = sorted(places.files_of(self._files, self._ledgers, "entry-log", None), key=_log_id)
        reported_s = time.monotonic()
        for path in paths:
            for finding in read_entry_log(self._files, path, verifier):
                if isinstance(finding, FoundEntries):
                    self._take_entries(finding, wanted)
                    if self._positions_held > _POSITIONS_HELD_MAX:
                        self._write(builder)
            self._report.entry_logs += 1
            if time.monotonic() - reported_s >= _PROGRESS_S:
                reported_s = time.monotonic()
                self._progress(f"{self._report.entry_logs} of {len(paths)} entry logs read")
        self._write(builder)

    def _take_entries(self, run: FoundEntries, wanted: np.ndarray | None) -> None:
        is_wanted = np.ones(len(run.ledger_ids), bool) if wanted is None else np.isin(run.ledger_ids, wanted)
        is_wrong = (run.states == WRONG) | (run.entry_ids > STORED_ENTRY_ID_MAX)
        self._report.damaged_entries += int((is_wanted & is_wrong).sum())
        chosen = np.flatnonzero(is_wanted & ~is_wrong)
        if not len(chosen):
            return
        positions = (_log_id(run.path) << OFFSET_BITS) + run.offsets[chosen] + LENGTH_BYTES
        entry_ids = run.entry_ids[chosen]
        for ledger_id, rows in rows_by_ledger(run.ledger_ids[chosen]):
            self._held.setdefault(ledger_id, []).append((entry_ids[rows], positions[rows]))
        self._positions_held += len(chosen)

    def _write(self, builder: IndexBuilder) -> None:
        for ledger_id, pieces in self._held.items():
            entry_ids, positions = (np.concatenate(column) for column in zip(*pieces))
            # If an entry occurs several times in the log, its last position counts.
            order = np.lexsort((positions, entry_ids))
            entry_ids, positions = entry_ids[order], positions[order]
            is_last = np.append(np.diff(entry_ids) > 0, True)
            builder.hold(ledger_id, entry_ids[is_last], positions[is_last])
            self._known.setdefault(ledger_id, _Known())
        self._held.clear()
        self._positions_held = 0

    # ---- the new index ----

    def _finish(self, chosen: frozenset[int] | None, builder: IndexBuilder) -> None:
        traced = set(self._known)
        if chosen is not None and not self._is_db:
            noted = IndexManifest(self._files, self._ledgers)
            paths = IndexPaths(self._ledgers, noted.moved())
            fileless = LedgerHeaders(self._files, self._ledgers, noted.headers)
            traced |= {
                each
                for each in chosen
                if noted.least_bytes(each) or fileless.has(each) or self._files.exists(paths.path(each))
            }
        tombstones = Tombstones(self._files, self._ledgers)

        def header_of(ledger_id: int, old: LedgerHeader | None) -> LedgerHeader:
            if old is not None:
                return LedgerHeader(ledger_id, old.generation + 1, old.fenced, old.master_key, old.explicit_lac)
            known = self._known.get(ledger_id, _Known())
            self._report.unknown_keys += known.master_key is None
            is_fenced = known.is_fenced or ledger_id in tombstones
            return LedgerHeader(ledger_id, 1, is_fenced, known.master_key or UNKNOWN_KEY, known.explicit_lac)

        self._report.entries = builder.finish(sorted(traced), header_of)
        self._report.ledgers = len(traced)
        for ledger_id in sorted((chosen or frozenset()) - traced):
            self._report.notes.append(f"ledger {ledger_id}: there is no trace of it in entry logs, journals or index")


def cut_files(files: ReadOnlyFiles, known: IndexManifest, paths: IndexPaths) -> list[int]:
    """Return the ledgers whose index file is missing, or shorter than it was."""
    return [
        ledger_id
        for ledger_id, least_bytes in zip(*(column.tolist() for column in known.all()))
        if (files.file_size(paths.path(ledger_id)) or 0) < least_bytes
    ]


def _log_id(path: str) -> int:
    return log_format.parse_file_name(os.path.basename(path)) or 0


def _without_header(index: IndexView, ledger_ids: np.ndarray) -> Iterator[int]:
    for ledger_id in ledger_ids.tolist():
        try:
            index.header(ledger_id)
        except StorageDamaged:
            yield ledger_id


def _print(report: RebuildReport, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(report)), flush=True)
        return
    for note in report.notes:
        print(f"note: {note}")
    print(
        f"{report.ledgers} ledgers with {report.entries} entries rebuilt from {report.entry_logs} entry logs; "
        f"{report.damaged_entries} damaged entries left out, {report.unknown_keys} master keys unknown"
    )
    if report.everything:
        print("the next start puts every ledger into limbo that the metadata say this bookie has")
    elif report.ledgers:
        print("these ledgers are in limbo until they are closed and complete; autorecovery completes them")
    sys.stdout.flush()
