"""The check of a stopped bookie's folder: does it still have everything that the bookie acknowledged?

    python -m bookie_service --check [--config FILE] [--set key=value]... [--json]

The check holds the directory locks, so no bookie can start meanwhile, and it changes nothing. It verifies that:

* every directory has a readable cookie, and all cookies are equal and name the configured directories in their order;
* the files that garbage collection wrote are readable;
* every mark is readable, and the journal file where replay begins exists;
* the journals can be replayed from there, and every ledger in them has a master key;
* the configured storage is the one that wrote the index;
* no index file is missing or shorter than it was, and the headers of ledgers without entries are whole; every header
  is readable, and every index position points to a whole entry of that id;
* entry logs are whole; a log without a ledgers map must be whole up to the last entry that an index points to;
* every entry of a ledger in the entry logs has a position in the index, or is still in the journal.

Entries of ledgers without an index file belong to deleted ledgers. They are counted, and are not damage. Memory: 8
bytes for each entry of the journal after the mark.

Exit code 0: everything is in order; 1: something is not, or the bookie runs; 2: wrong usage or configuration.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from bkspark.errors import ConfigurationError, MetadataFormat, StorageDamaged
from bkspark.metadata import cookies
from bkspark.metadata.cookies import Cookie
from bkspark.secret_files import password_from
from bookie_service.admin.index_building import FILES_OPEN_MAX, PAGE_BYTES
from bookie_service.admin.inspection import places
from bookie_service.admin.inspection.digests import DigestVerifier
from bookie_service.admin.inspection.entry_log import read_entry_log
from bookie_service.admin.inspection.findings import (
    UNVERIFIED,
    WRONG,
    Damage,
    Fact,
    Finding,
    FoundEntries,
    FoundPositions,
    Incomplete,
)
from bookie_service.admin.inspection.garbage import read_garbage_file
from bookie_service.admin.inspection.index import LogLookup, read_index
from bookie_service.admin.inspection.journal import file_ids, read_journal
from bookie_service.admin.inspection.key_value_index import read_key_value_index
from bookie_service.admin.inspection.marks import highest_mark, read_mark_file
from bookie_service.formats import entry_log as log_format
from bookie_service.formats import journal as journal_format
from bookie_service.formats import marks as mark_format
from bookie_service.formats.entry_log import OFFSET_BITS, OFFSET_MASK
from bookie_service.formats.index import POSITION_BYTES, STORED_ENTRY_ID_MAX, Layout
from bookie_service.formats.key_value_index import COMMIT_NAME, DIRECTORY_NAME
from bookie_service.settings.arguments import describe, fail
from bookie_service.settings.configuration import Configuration
from bookie_service.storage import layout, ledger_id_sets
from bookie_service.storage.index.index import IndexPaths, IndexReader
from bookie_service.storage.index.index_file import IndexFile
from bookie_service.storage.index.index_pages import IndexPages
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.index.manifest import IndexManifest
from bookie_service.storage.index.split_index import open_index_view
from bookie_service.storage.io.files import ReadOnlyFiles, is_disk_failure
from bookie_service.storage.io.framed_entries import rows_by_ledger
from bookie_service.storage.ledgers.factory import check_converted, check_written_by
from bookie_service.storage.ledgers.interface import IndexView

T = TypeVar("T")

_PROGRAM = "bookie"
_SHOWN_MAX = 1000
"""At most this many findings of damage are listed; all are counted."""
_NAMED_MAX = 20
"""At most this many ledgers are named in one note."""
_PAGES_BYTES = 1024 * 1024
"""How many bytes of the index are kept in memory while entry logs are compared with it."""
_GAP_MAX = 8192
"""Entry ids that are further apart than this are looked up separately."""
_COUNTS = (
    "cookies",
    "marks",
    "journal_files",
    "journal_records",
    "journal_entries",
    "entry_logs",
    "logged_entries",
    "unverified_entries",
    "unindexed_entries",
    "ledgers",
    "positions",
    "damaged",
)


@dataclass(slots=True)
class Report:
    """The result of the check."""

    directories: list[str]
    """The directories that were checked, as configured."""
    cookies: int = 0
    """Readable stamps (VERSION) of directories. The counts below, too, are of what was found whole."""
    marks: int = 0
    journal_files: int = 0
    """Files, and in them `journal_records` with `journal_entries`."""
    journal_records: int = 0
    journal_entries: int = 0
    entry_logs: int = 0
    """Entry logs, and in them `logged_entries`."""
    logged_entries: int = 0
    unverified_entries: int = 0
    """Entries in entry logs whose digests only a client with the password can check."""
    unindexed_entries: int = 0
    """Entries in entry logs of ledgers that the index does not have: as a rule, deleted ones."""
    ledgers: int = 0
    positions: int = 0
    """Positions in the index of `ledgers`."""
    damaged: int = 0
    """How many findings of damage there are. `damage` has the first of them."""
    damage: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines for people about what was found, apart from damage."""
    unverified_ledgers: list[int] = field(default_factory=list)
    """Ledgers whose digests only a client can check, ascending, at most `_SHOWN_MAX`."""

    def add(self, damage: Damage) -> None:
        self.damaged += 1
        if len(self.damage) < _SHOWN_MAX:
            self.damage.append(damage)


def run(configuration: Configuration, as_json: bool) -> int:
    """Check the configured directories and print what was found; return the exit code."""
    service = configuration.service
    files = ReadOnlyFiles()
    try:
        with locked(files, [*service.journal_directories, *service.ledger_directories], "check"):
            current = [layout.current(each) for each in service.ledger_directories]
            if all(map(files.is_directory, current)):
                check_converted(files, list(map(layout.current, service.journal_directories)), current)
                check_written_by(files, current, service.store.storage_class)
            report = BookieCheck(files, service.journal_directories, service.ledger_directories).run()
    except (ConfigurationError, StorageDamaged, OSError) as error:
        return fail(_PROGRAM, describe(error), 1)
    _print(report, as_json)
    return 1 if report.damaged else 0


@contextlib.contextmanager
def locked(
    files: ReadOnlyFiles, directories: Sequence[str], purpose: str, may_fail: Collection[str] = ()
) -> Iterator[None]:
    """Hold the locks of directories, so that no bookie runs on them.

    Args:
        purpose: a verb for messages.
        may_fail: directories that are left out if their disk fails. The other ones keep a bookie away.

    Raises:
        ConfigurationError: a directory does not exist, or a bookie runs on it.
        OSError: a disk fails.
    """
    with contextlib.ExitStack() as locks:
        # A journal directory and a ledger directory may be the same.
        for directory in dict.fromkeys(directories):
            try:
                if not files.is_directory(directory):
                    raise ConfigurationError(f"directory {directory} does not exist: there is no bookie to {purpose}")
                locks.callback(files.lock(directory).release)
            except BlockingIOError:
                raise ConfigurationError(
                    f"directory {directory} is in use by another process: stop that bookie, or use bkspark dump"
                ) from None
            except OSError as error:
                if directory not in may_fail or not is_disk_failure(error):
                    raise
        yield


class BookieCheck:
    """Checks one bookie's directories, which no other process may change meanwhile."""

    def __init__(self, files: ReadOnlyFiles, journals: Sequence[str], ledgers: Sequence[str]) -> None:
        """`journals`, `ledgers`: the configured directories, in order."""
        self._files = files
        self._configured = (tuple(journals), tuple(ledgers))
        self._journals = [layout.current(each) for each in journals]
        """The `current` directories of the journals. Constant."""
        self._ledgers = [layout.current(each) for each in ledgers]
        """The `current` directories of the ledgers. Constant."""
        self._report = Report(list(dict.fromkeys([*journals, *ledgers])))
        self._known = IndexManifest(files, self._ledgers)
        self._paths = IndexPaths(self._ledgers, self._known.moved())
        pages = IndexPages(PAGE_BYTES, _PAGES_BYTES)
        self._fileless = LedgerHeaders(files, self._ledgers, self._known.headers)
        self._index: IndexView = IndexReader(files, self._paths, pages, self._fileless, FILES_OPEN_MAX)
        """The index that is checked. Replaced by that of `DbLedgerStorage` if there is one."""
        self._index_place: str | None = None
        """The path of the key-value store that holds the index; None: files do."""
        self._closing = contextlib.ExitStack()
        """Closes what the check has opened."""
        self._closing.callback(self._index.close)
        self._indexed: set[int] = set()
        """Ledgers with a readable header in the index."""
        self._slot_damage: dict[int, list[Damage]] = {}
        """Damage of header slots by ledger, until `_settle_slot_damage` reports it."""
        self._unverified: set[int] = set()
        """Ledgers with entries in entry logs whose digest cannot be checked here."""
        self._indexed_to: dict[int, int] = {}
        """For each entry log, the highest offset that an index position points to."""
        self._journal = _JournalContents()

    def run(self) -> Report:
        """Return what was found."""
        with self._closing:
            if self._check_cookies():
                self._guard(self._check_marks)
                self._guard(self._check_garbage)
                self._guard(self._check_index_files)
                self._guard(self._check_indexes)
                for journal_index, directory in enumerate(self._journals):
                    self._guard(partial(self._check_journal, journal_index, directory))
                self._guard(self._settle_slot_damage)
                self._guard(self._check_entry_logs)
        return self._report

    def _guard(self, check: Callable[[], None]) -> None:
        """Do a check. If a disk fails in it, report that."""
        try:
            check()
        except OSError as error:
            self._note_unreadable(error)

    def _files_of(self, kind: str) -> Iterator[str]:
        """Yield the paths of all files of a kind in the ledger directories. Report a disk that does not list them."""
        for directory in self._ledgers:
            yield from self._guarded(places.files_of(self._files, [directory], kind, None))

    def _guarded(self, found: Iterator[T]) -> Iterator[T]:
        """Yield what is found. If a disk fails, report that, and end."""
        try:
            yield from found
        except OSError as error:
            self._note_unreadable(error)

    def _note_unreadable(self, error: OSError) -> None:
        if not is_disk_failure(error):
            raise error
        self._report.add(Damage(str(error.filename), None, None, f"it cannot be read: {error.strerror}"))

    # ---- cookies and marks ----

    def _check_cookies(self) -> bool:
        """Return whether all directories exist; otherwise the other checks make no sense."""
        missing = [each for each in self._directories() if not self._files.is_directory(each)]
        for directory in missing:
            self._report.add(Damage(directory, 0, None, "the directory is missing, and everything in it is lost"))
        if missing:
            return False
        found = {}
        for directory in self._directories():
            path = os.path.join(directory, layout.COOKIE_NAME)
            if not self._files.exists(path):
                self._report.add(Damage(path, 0, None, "the cookie is missing: the bookie will not start"))
                continue
            self._report.cookies += 1
            try:
                found[path] = cookies.decode(self._files.read_all(path), path)
            except MetadataFormat as error:
                self._report.add(Damage(path, 0, None, str(error)))
        self._compare_cookies(found)
        self._check_places()
        return True

    def _check_places(self) -> None:
        for directory in self._directories():
            path = os.path.join(directory, layout.PLACE_NAME)
            configured = os.path.dirname(directory)
            place = layout.decode_place(self._files.read_all(path)) if self._files.exists(path) else configured
            if place != configured:
                self._report.add(Damage(path, 0, None, f"this directory belongs at {place}: the bookie will not start"))

    def _compare_cookies(self, found: dict[str, Cookie]) -> None:
        first = next(iter(found.values()), None)
        if first is None:
            return
        expected = replace(first, journal_directories=self._configured[0], ledger_directories=self._configured[1])
        for path, cookie in found.items():
            differences = expected.differences(cookie)
            if differences:
                reason = f"not the cookie of this bookie: {'; '.join(differences)}"
                self._report.add(Damage(path, 0, None, reason))

    def _directories(self) -> list[str]:
        return list(dict.fromkeys([*self._journals, *self._ledgers]))

    def _check_garbage(self) -> None:
        for path in self._files_of("garbage"):
            for finding in self._guarded(read_garbage_file(self._files, path)):
                self._note(finding)

    def _check_marks(self) -> None:
        for path in self._files_of("marks"):
            for finding in self._guarded(read_mark_file(self._files, path)):
                self._note(finding)
                self._report.marks += isinstance(finding, Fact) and finding.kind == "mark"
        for journal_index in range(len(self._journals)):
            name = mark_format.file_name(journal_index)
            paths = [os.path.join(directory, name) for directory in self._ledgers]
            absent = [path for path in paths if not self._files.exists(path)]
            if len(absent) < len(paths):
                for path in absent:
                    self._report.add(Damage(path, 0, None, "the mark is missing here, other directories have it"))

    # ---- index ----

    def _check_indexes(self) -> None:
        lookup = LogLookup(self._files, self._ledgers)
        self._report.ledgers += len(ledger_id_sets.without(self._fileless.ledger_ids(), self._known.all()[0]))
        for path in self._files_of("index"):
            if places.is_key_value_index(path):
                findings = self._key_value_index(path, lookup)
            elif places.is_ledger_headers(path):
                continue
            elif not self._paths.counts(path):
                self._report.notes.append(f"{path}: left where a disk was full or failed, the ledger's index moved")
                continue
            else:
                self._report.ledgers += 1
                findings = read_index(self._files, path, lookup)
            for finding in self._guarded(findings):
                if isinstance(finding, FoundPositions):
                    self._count_positions(finding)
                elif isinstance(finding, Fact):
                    self._indexed.add(finding.values["ledger"])
                elif isinstance(finding, Damage) and finding.entry_id is None and finding.ledger_id is not None:
                    self._slot_damage.setdefault(finding.ledger_id, []).append(finding)
                else:
                    self._note(finding)
        lookup.close()
        self._guard(self._open_stores)

    def _open_stores(self) -> None:
        """Look positions up in the key-value stores from now on, if there are any. Damage in them is reported."""
        every = [os.path.join(each, name) for each in self._ledgers for name in (DIRECTORY_NAME, COMMIT_NAME)]
        if not (found := list(filter(self._files.exists, every))):
            return
        self._index_place = ", ".join(filter(places.is_key_value_index, found))
        try:
            self._index = held = open_index_view(self._files, self._journals[0], self._ledgers)
            self._closing.callback(held.close_store)
        except StorageDamaged as error:
            if not any(str(error) == damage.reason for damage in self._report.damage):
                self._report.add(Damage(found[0], None, None, str(error)))

    def _check_index_files(self) -> None:
        """Report index files that were durable and are missing or cut, because reads would not find their entries."""
        known = self._known
        if known.damaged_at is not None:
            place = f"{known.path} offset {known.damaged_at}"
            self._report.notes.append(f"{place}: torn or damaged; the next start writes it again")
        if self._fileless.damage:
            reason = f"{self._fileless.damage}; if the bookie starts, all its ledgers are in limbo"
            self._report.add(Damage(self._fileless.path, None, None, reason))
        for ledger_id, least_bytes in zip(*(column.tolist() for column in known.all())):
            path = self._paths.path(ledger_id)
            size = self._files.file_size(path)
            remedy = "`bkspark bookie --rebuild-index` rebuilds it; if the bookie starts, the ledger is in limbo"
            if size is None:
                self._report.add(Damage(path, 0, None, f"the index file is missing; {remedy}", ledger_id))
            elif size < least_bytes:
                reason = f"the index file was truncated here, it had {least_bytes} bytes at least; {remedy}"
                self._report.add(Damage(path, size, least_bytes - size, reason, ledger_id))

    def _key_value_index(self, path: str, lookup: LogLookup) -> Iterator[Finding]:
        """Yield the contents of one store."""
        for finding in read_key_value_index(self._files, path, lookup):
            self._report.ledgers += isinstance(finding, Fact)
            yield finding

    def _count_positions(self, run: FoundPositions) -> None:
        self._report.positions += len(run.positions)
        right = run.positions[run.states != WRONG]
        for log_id in np.unique(right >> OFFSET_BITS).tolist():
            offset = int((right[right >> OFFSET_BITS == log_id] & OFFSET_MASK).max())
            self._indexed_to[log_id] = max(offset, self._indexed_to.get(log_id, 0))

    def _settle_slot_damage(self) -> None:
        """Report unreadable headers, except those that replay writes again: a crash interrupted their writing."""
        for ledger_id, damages in self._slot_damage.items():
            for damage in damages:
                is_left = self._fileless.has(ledger_id) and not self._known.least_bytes(ledger_id)
                if is_left or ledger_id in self._journal.changed:
                    self._report.notes.append(f"{damage.place}: replay writes this header again")
                else:
                    self._report.add(damage)

    # ---- journals ----

    def _check_journal(self, journal_index: int, directory: str) -> None:
        mark = highest_mark(self._files, self._ledgers, journal_index)
        ids = file_ids(self._files, directory)
        if mark is not None:
            ids = [file_id for file_id in ids if file_id >= mark.file_id]
            if ids[:1] != [mark.file_id]:
                path = os.path.join(directory, journal_format.file_name(mark.file_id))
                self._report.add(Damage(path, 0, None, "the journal file where replay begins is missing"))
        follower = None
        for before, file_id in zip([None, *ids], ids):
            path = os.path.join(directory, journal_format.file_name(file_id))
            self._report.journal_files += 1
            start = mark.offset if mark is not None and mark.file_id == file_id else 0
            for finding in read_journal(self._files, path, mark, start):
                if isinstance(finding, Fact) and finding.kind == "journal":
                    self._check_link(path, before, finding)
                    follower = None
                if isinstance(finding, Fact) and finding.values.get("record") == "followed":
                    follower = os.path.join(directory, journal_format.file_name(file_id + 1))
                self._replay(finding)
        if follower is not None:
            self._report.add(Damage(follower, 0, None, "the file before it names it, but it has no header"))

    def _check_link(self, path: str, before: int | None, header: Fact) -> None:
        previous = header.values["previous"]
        if before is not None and previous != before:
            missing = journal_format.file_name(previous)
            self._report.add(Damage(path, 0, None, f"the file before it, {missing}, is missing"))

    def _replay(self, finding: Finding) -> None:
        if isinstance(finding, FoundEntries):
            self._report.journal_entries += len(finding.entry_ids)
            self._journal.add_entries(finding)
            self._need_keys(finding.path, int(finding.offsets[0]), np.unique(finding.ledger_ids).tolist())
        elif isinstance(finding, Fact) and finding.kind in ("ledger-key", "fence", "explicit-lac"):
            ledger_id = finding.values["ledger"]
            self._journal.changed.add(ledger_id)
            if finding.kind == "ledger-key":
                self._journal.keyed.add(ledger_id)
            self._need_keys(finding.path, finding.offset, [ledger_id])
        elif isinstance(finding, Fact):
            self._report.journal_records += finding.kind == "record"
        else:
            self._note(finding)

    def _need_keys(self, path: str, offset: int | None, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            known = (self._indexed, self._journal.keyed)
            if not any(ledger_id in some for some in known) and not self._fileless.has(ledger_id):
                reason = f"the master key of ledger {ledger_id} is neither in the journal before this nor in the index"
                self._report.add(Damage(path, offset, None, reason, ledger_id))

    # ---- entry logs ----

    def _check_entry_logs(self) -> None:
        verifier = DigestVerifier(password_from(os.environ))
        for path in self._files_of("entry-log"):
            self._report.entry_logs += 1
            end = self._indexed_to.get(log_format.parse_file_name(os.path.basename(path)) or 0, 0)
            for finding in self._guarded(read_entry_log(self._files, path, verifier)):
                if isinstance(finding, Fact) and finding.kind == "entry-log" and finding.values["map_offset"]:
                    # A log with a map was durable as a whole before the header named the map.
                    end = finding.values["bytes"] + 1
                elif isinstance(finding, FoundEntries):
                    self._report.logged_entries += len(finding.entry_ids)
                    unverified = finding.states == UNVERIFIED
                    self._report.unverified_entries += int(unverified.sum())
                    self._unverified.update(np.unique(finding.ledger_ids[unverified]).tolist())
                    self._check_indexed(finding)
                elif isinstance(finding, Incomplete) and finding.offset < end:
                    reason = f"the log was truncated or damaged here: it was durable as far as {end}"
                    self._report.add(Damage(path, finding.offset, finding.length, reason))
                elif isinstance(finding, Damage) and finding.offset is not None and finding.offset >= end:
                    self._report.notes.append(
                        f"{path} offset {finding.offset}: {finding.reason}; no index points there"
                    )
                else:
                    self._note(finding)

        self._name_unverified()

    def _name_unverified(self) -> None:
        if not self._unverified:
            return
        self._report.unverified_ledgers = sorted(self._unverified)[:_SHOWN_MAX]
        named = ", ".join(map(str, self._report.unverified_ledgers[:_NAMED_MAX]))
        rest = len(self._unverified) - _NAMED_MAX
        self._report.notes.append(
            f"ledgers {named}{f' and {rest} more' if rest > 0 else ''}: their entries have no digest, or a MAC with a "
            "password other than that of BKSPARK_PASSWORD or BKSPARK_PASSWORD_FILE; only a client that has it can tell "
            "whether they are damaged"
        )

    def _check_indexed(self, run: FoundEntries) -> None:
        """Report entries of a log that neither the index nor the journal has."""
        chosen = (run.states != WRONG) & (run.entry_ids <= STORED_ENTRY_ID_MAX)
        ledger_ids, entry_ids = run.ledger_ids[chosen], run.entry_ids[chosen]
        for ledger_id, rows in rows_by_ledger(ledger_ids) if len(ledger_ids) else ():
            held = np.unique(entry_ids[rows])
            if ledger_id not in self._indexed and ledger_id not in self._slot_damage:
                self._report.unindexed_entries += len(held)
                continue
            for part in np.split(held, np.flatnonzero(np.diff(held) > _GAP_MAX) + 1):
                missing = self._journal.without(ledger_id, part[~self._has_position(ledger_id, part)])
                for piece in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1):
                    self._report_unindexed(run.path, ledger_id, piece)

    def _has_position(self, ledger_id: int, entry_ids: np.ndarray) -> np.ndarray:
        first = int(entry_ids[0])
        positions = np.zeros(int(entry_ids[-1]) - first + 1, np.int64)
        stored = self._index.positions(ledger_id, first, len(positions))
        positions[: len(stored)] = stored
        return positions[entry_ids - first] != 0

    def _report_unindexed(self, log_path: str, ledger_id: int, entry_ids: np.ndarray) -> None:
        if not len(entry_ids):
            return
        first, last = int(entry_ids[0]), int(entry_ids[-1])
        reason = (
            f"no position of entries {first} to {last} of ledger {ledger_id}, which {log_path} holds and the journal "
            "no longer does: the file was truncated or damaged"
        )
        place, at, length = self._index_place, None, None
        if place is None:
            place = self._paths.path(ledger_id)
            layout = self._layout(place)
            if layout is not None:
                at, length = layout.position_at(first), POSITION_BYTES * len(entry_ids)
        self._report.add(Damage(place, at, length, reason, ledger_id, first))

    def _layout(self, path: str) -> Layout | None:
        """Return the layout of an index file; None: the file is missing, or its layout cannot be read."""
        try:
            with contextlib.closing(IndexFile(self._files.open(path))) as file:
                return file.layout
        except FileNotFoundError:
            return None

    def _note(self, finding: Finding) -> None:
        if isinstance(finding, Damage):
            self._report.add(finding)
        elif isinstance(finding, Incomplete):
            self._report.notes.append(f"{finding.path} offset {finding.offset}: {finding.reason}")


class _JournalContents:
    """What replay would restore."""

    def __init__(self) -> None:
        self.keyed: set[int] = set()
        """Ledgers whose key is in a journal."""
        self.changed: set[int] = set()
        """Ledgers whose header replay writes again."""
        self._entries: dict[int, list[np.ndarray]] = {}
        """Entry ids by ledger, in the order in which they were found."""

    def add_entries(self, run: FoundEntries) -> None:
        for ledger_id, rows in rows_by_ledger(run.ledger_ids):
            self._entries.setdefault(ledger_id, []).append(run.entry_ids[rows])

    def without(self, ledger_id: int, entry_ids: np.ndarray) -> np.ndarray:
        """Return those entry ids that the journal does not have."""
        held = self._entries.get(ledger_id)
        return entry_ids if held is None or not len(entry_ids) else np.setdiff1d(entry_ids, np.concatenate(held))


def _print(report: Report, as_json: bool) -> None:
    damage = [
        {
            "file": each.path,
            "offset": each.offset,
            "length": each.length,
            "reason": each.reason,
            "ledger": each.ledger_id,
            "entry": each.entry_id,
        }
        for each in report.damage
    ]
    counts = {name: getattr(report, name) for name in _COUNTS}
    if as_json:
        head = {"ok": not report.damaged, "directories": report.directories}
        found = {"damage": damage, "notes": report.notes, "unverified_ledgers": report.unverified_ledgers}
        print(json.dumps({**head, **counts, **found}), flush=True)
        return
    for each in report.damage:
        print(f"DAMAGED {each.place}: {each.reason}")
    for note in report.notes:
        print(f"note: {note}")
    for name, count in counts.items():
        print(f"{name.replace('_', ' '):<20} {count:>12}")
    print("the bookie's folder is damaged" if report.damaged else "the bookie's folder is undamaged", flush=True)
