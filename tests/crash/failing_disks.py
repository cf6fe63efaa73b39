"""The disk of one ledger directory of several fails in one kind of call or in all, with every error that means so.

`python -m tests.crash.failing_disks [--seed S] [--share F] [--processes P]` runs a short script in three ledger
directories, for each of them and each kind of call, and for each error of `files.DISK_FAILURES`. The disk begins to
fail at each of its calls, one after the other. From then on:

* the bookie goes on: it takes and keeps adds and fences of ledgers on the other disks, also new ones, collects garbage,
  and stops in order;
* it serves what is on the other disks. It denies nothing of the rest, and serves nothing wrong: EIO is right;
* it starts on what a kill and a power cut leave, at the end and at some moment before, while the disk fails: only if
  the disk hides the files of the whole bookie is the start refused, by their name;
* it starts when the disk works again, and serves everything that was acknowledged. Ledgers may be in limbo then.

It prints one JSON line of counts; `coverage` says which part of all moments was tried.
"""

from __future__ import annotations

import errno
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bookie_service.formats import index_files
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.files import DISK_FAILURES
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.audit import UNKNOWN_LEDGER, Violation, audit
from tests.crash.history import NEVER, History
from tests.crash.images import Loss, crash_image
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.parallel import campaign_parser, counts_of, report
from tests.crash.simulated_files import SimulatedDisk, os_error
from tests.crash.twins import BookieTwin, Setup

CODES = tuple(getattr(errno, name) for name in DISK_FAILURES)
_KINDS: dict[str, frozenset[str]] = {
    "open": frozenset({"open"}),
    "stat": frozenset({"stat"}),
    "statfs": frozenset({"space"}),
    "list": frozenset({"names"}),
    "read": frozenset({"read"}),
    "create": frozenset({"create", "create_directory"}),
    "write": frozenset({"write", "preallocate", "reserve", "truncate"}),
    "fdatasync": frozenset({"sync_data"}),
    "fsync of names": frozenset({"sync_directory"}),
    "syncfs": frozenset({"sync_file_system"}),
    "rename": frozenset({"rename"}),
    "unlink": frozenset({"remove"}),
}
CALLS: dict[str, frozenset[str]] = {
    **_KINDS,
    "every change": frozenset().union(*(_KINDS[name] for name in list(_KINDS)[5:])),
    "every call": frozenset().union(*_KINDS.values()),
}
"""Which calls fail, by the name of their kind."""
DIRECTORIES = 3
_KEY_VALUES = "key-value store"
_SMALL_TABLES = "key-value store with small memory tables"
_ONE_STORE = "one store for all directories"
KINDS = {
    "files synced singly": (StorageClass.SORTED, 128),
    "file systems synced": (StorageClass.INTERLEAVED, 0),
    _KEY_VALUES: (StorageClass.DB, 128),
    _SMALL_TABLES: (StorageClass.DB, 128),
    _ONE_STORE: (StorageClass.DB, 128),
}
"""Each kind of script: its storage, and up to how many index files are synced one by one. A small memory table takes
less than one flush has for it, so a flush syncs midway. An earlier build made the bookie that has one store."""
_SMALL_TABLE_BYTES = 256
_HELD = range(1, 7)
_DELETED = 6
_FENCED, _FENCED_ALONE, _LAC_ALONE = 2, 7, 8
_NEW = range(20, 23)
_Act = Callable[[], object]
_OPERATIONS = 300
"""About how many operations a run makes while the disk fails."""
_RECORD_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Case:
    """Which directory fails, in which calls, and how. `kind`: of the script."""

    kind: str
    place: int
    calls: str
    code: int

    def __str__(self) -> str:
        return f"{self.kind}, directory {self.place}, {self.calls} fails with {errno.errorcode[self.code]}"

    @property
    def has_stores(self) -> bool:
        """Whether each directory has the index of its ledgers in a key-value store."""
        return KINDS[self.kind][0] is StorageClass.DB and self.kind != _ONE_STORE

    @property
    def setup(self) -> Setup:
        storage_class, singly_max = KINDS[self.kind]
        return Setup(
            ledger_directories=DIRECTORIES,
            has_one_store=self.kind == _ONE_STORE,
            store=StoreOptions(
                storage_class=storage_class,
                cache_half_bytes=6144,
                append=AppendOptions(HEADER_BYTES + 500),
                open_files_max=4,
                pages=PageOptions(page_bytes=64, pages_max=6, files_synced_singly_max=singly_max),
                key_values=KeyValueOptions(write_buffer_bytes=_SMALL_TABLE_BYTES)
                if self.kind == _SMALL_TABLES
                else KeyValueOptions(),
            ),
            journal=JournalOptions(file_bytes_max=4000, preallocate_bytes=512, backups_max=0),
        )


def cases(codes: tuple[int, ...] = CODES) -> Iterator[Case]:
    """Yield every case. An only store is in the first directory, and the bookie needs it."""
    for kind, place, calls, code in itertools.product(KINDS, range(DIRECTORIES), CALLS, codes):
        if kind != _ONE_STORE or place:
            yield Case(kind, place, calls, code)


class FailingDisk:
    """Makes calls fail from the moment on at which `calls` of them were made; -1: no call fails."""

    def __init__(self, case: Case, first: int) -> None:
        self._case = case
        self.first = first
        self.calls = 0

    @property
    def has_begun(self) -> bool:
        return self.calls > self.first >= 0

    def fault(self, operation: str, path: str) -> OSError | None:
        if operation not in CALLS[self._case.calls] or not f"{path}/".startswith(f"/ledgers{self._case.place}/"):
            return None
        self.calls += 1
        return os_error(self._case.code, path) if self.has_begun else None


def run_case(case: Case, random: Random, counts: Counter[str], share: float = 1.0) -> None:
    """Run the script once per call of the kind, which fails from then on.

    Args:
        share: of these moments, chosen by the seed; the first one is always tried.

    Raises:
        Violation: naming the case and the number of the call.
    """
    disk = FailingDisk(case, -1)
    Run(case, disk, random).run()
    for first in range(disk.calls):
        counts["due"] += 1
        if first and random.random() >= share:
            continue
        counts["moments"] += 1
        try:
            counts.update(Run(case, FailingDisk(case, first), random).run())
        except Violation as violation:
            raise Violation(f"{case}, from call {first} on: {violation}") from violation


class Run:
    """One run of the script, its crashes and the starts after them."""

    def __init__(self, case: Case, failing: FailingDisk, random: Random) -> None:
        self._case = case
        self._failing = failing
        self._random = random
        self._counts: Counter[str] = Counter()
        self._operations = 0
        self._crash_at = random.randrange(_OPERATIONS)
        self._crashed: tuple[str, SimulatedDisk, History] | None = None
        """What a crash in the middle of the run left: how, the disk, what was promised by then."""
        self._twin = BookieTwin(case.setup.new_disk(), case.setup, History())
        self._put(_HELD, 0)
        self._twin.fence(_FENCED)
        self._twin.fence(_FENCED_ALONE)
        self._twin.write_lac(_LAC_ALONE, 0)
        self._twin.checkpoint()

    def run(self) -> Counter[str]:
        """Raises Violation."""
        twin = self._twin
        twin.disk.fault = self._failing.fault
        twin.disk.before_operation = self._crash
        for name, act in self._acts():
            try:
                act()
                twin.settle()
            except (OSError, StorageDamaged) as error:
                raise Violation(f"the bookie ended at {name!r}: {error!r}") from error
        twin.disk.before_operation = None
        self._audit(twin, "while it runs")
        killed = [(loss, crash_image(twin.disk, loss, self._random)) for loss in (Loss.KEPT, Loss.LOST)]
        is_failing = self._failing.has_begun
        try:
            twin.store.keep_records()
            twin.stop()
        except (OSError, StorageDamaged) as error:
            raise Violation(f"the stop failed: {error!r}") from error
        for loss, disk in killed:
            self._start(loss.value, disk, twin.history)
        self._start("stopped", twin.disk, twin.history, has_moved=is_failing)
        if self._crashed is not None:
            self._start(*self._crashed)
        return self._counts

    def _crash(self, operation: str, path: str) -> None:
        """Crash at one operation of the run, chosen by the seed; the record of index files is often torn."""
        self._operations += 1
        is_record = operation == "sync_data" and path.endswith(index_files.FILE_NAME)
        if self._operations == self._crash_at or (is_record and self._random.random() < _RECORD_SHARE):
            loss = self._random.choice((Loss.TORN, Loss.REORDERED))
            image = crash_image(self._twin.disk, loss, self._random)
            self._crashed = f"{loss.value} before {operation} {path}", image, self._twin.history.after_crash()

    def _acts(self) -> Iterator[tuple[str, _Act]]:
        twin = self._twin
        yield "add", lambda: self._put(_HELD[:-1], 4)
        yield "look at disks", twin.bookie.look_at_disks
        yield "add to new ledgers", lambda: self._put(_NEW, 0)
        yield "fence", lambda: (twin.fence(_NEW[0]), twin.fence(_FENCED_ALONE + 2), twin.write_lac(_LAC_ALONE + 2, 0))
        yield "checkpoint", twin.checkpoint
        yield "collect", self._collect
        yield "add more", lambda: self._put((*_HELD[:-1], *_NEW), 8)

    def _put(self, ledger_ids: tuple[int, ...] | range, first: int) -> None:
        for ledger_id in ledger_ids:
            payload = b"%d" % ledger_id * 40
            self._twin.add(ledger_id, [(entry_id, payload) for entry_id in range(first, first + 4)])
        self._twin.checkpoint()

    def _collect(self) -> None:
        self._twin.history.delete(_DELETED)
        self._twin.collect(DoubtfulMetadataView(self._twin.history.ledgers))

    def _start(self, how: str, disk: SimulatedDisk, promised: History, *, has_moved: bool = False) -> None:
        """Start while the disk fails, and when it works again. `has_moved`: the files of the whole bookie left it."""
        setup, history = self._case.setup, promised.after_crash()
        failing = FailingDisk(self._case, min(self._failing.first, 0))
        disk.fault = failing.fault
        what = f"{how}, started"
        self._counts["starts"] += 1
        try:
            twin = BookieTwin(disk, setup, history)
        except StorageDamaged as error:
            if has_moved or "cannot be read" not in str(error) or "Repair the disk" not in str(error):
                raise Violation(f"{what}: {error}") from error
            self._counts["refused"] += 1
        except OSError as error:
            raise Violation(f"{what}: did not start: {error!r}") from error
        else:
            self._counts["starts in doubt"] += twin.is_in_doubt
            self._use(twin, what)
        disk.fault = None
        history = history.after_crash()
        try:
            twin = BookieTwin(crash_image(disk, Loss.LOST, self._random), setup, history)
        except (OSError, StorageDamaged) as error:
            raise Violation(f"{what}, then the disk works: did not start: {error!r}") from error
        twin.begin_run(history.ledgers)
        self._audit(twin, f"{what}, then the disk works", works=True)

    def _use(self, twin: BookieTwin, what: str) -> None:
        twin.begin_run(twin.history.ledgers)
        self._audit(twin, what)
        try:
            end = {each: 1 + max(ledger.entries, default=-1) for each, ledger in twin.history.ledgers.items()}
            for ledger_id in (*_HELD[:-1], 30, 31, 32):
                twin.add(ledger_id, [(end.get(ledger_id, 0), b"after the start")])
            twin.settle()
            twin.checkpoint()
        except (OSError, StorageDamaged) as error:
            raise Violation(f"{what}, then the bookie ended: {error!r}") from error
        self._audit(twin, f"{what} and used")

    def _audit(self, twin: BookieTwin, what: str, *, works: bool = False) -> None:
        """Audit a bookie one of whose disks fails, or `works` again."""
        try:
            is_hidden = not works and self._case.place == UNKNOWN_LEDGER % DIRECTORIES
            audit(twin, twin.history, errors_allowed=True, may_hide_unknown=is_hidden and self._case.has_stores)
            for ledger_id in twin.history.ledgers:
                self._audit_ledger(twin, ledger_id, works=works)
        except Violation as violation:
            raise Violation(f"{what}: {violation}") from violation

    def _audit_ledger(self, twin: BookieTwin, ledger_id: int, *, works: bool) -> None:
        ledger = twin.history.ledgers[ledger_id]
        is_elsewhere = ledger_id % DIRECTORIES != self._case.place
        if is_elsewhere and twin.is_in_limbo(ledger_id) and not twin.is_in_doubt:
            raise Violation(f"ledger {ledger_id}: in limbo, though its index is on another disk")
        for entry_id, entry in ledger.entries.items():
            if entry.refused and is_elsewhere and not ledger.fence_asked and not twin.is_in_doubt:
                raise Violation(f"ledger {ledger_id} entry {entry_id}: refused, though it is on another disk")
            if entry.acknowledged == NEVER:
                continue
            status = twin.read(ledger_id, entry_id)[0]
            may_fail = not works and self._is_on_the_disk(twin, ledger_id, entry_id)
            if status != Status.EOK and not may_fail and not (works and twin.is_in_limbo(ledger_id)):
                raise Violation(f"ledger {ledger_id} entry {entry_id}: on another disk, and answered {status}")

    def _is_on_the_disk(self, twin: BookieTwin, ledger_id: int, entry_id: int) -> bool:
        """Return whether the failing disk has an entry, or its position."""
        if twin.is_in_limbo(ledger_id) or self._has_index(ledger_id):
            return True
        positions = twin.store.index.positions(ledger_id, entry_id, 1)
        if not len(positions) or not positions[0]:
            return False
        path = twin.store.logs.path(int(positions[0]) >> OFFSET_BITS)
        return path is None or path.startswith(f"/ledgers{self._case.place}/")

    def _has_index(self, ledger_id: int) -> bool:
        return self._case.kind != _ONE_STORE and ledger_id % DIRECTORIES == self._case.place


@dataclass(frozen=True, slots=True)
class _Part:
    seed: int
    case: Case
    share: float

    def run(self) -> Counter[str]:
        counts = Counter({"cases": 1})
        run_case(self.case, Random(f"{self.seed} {self.case}"), counts, self.share)
        return counts


def run(seed: int, share: float, processes: int = 1) -> Counter[str]:
    """Run every case; return the counts.

    Raises:
        Violation: of the first case that has one.
    """
    return sum(counts_of((_Part(seed, case, share) for case in cases()), processes), Counter())


def main(arguments: list[str] | None = None) -> int:
    options = campaign_parser("failing_disks", __doc__, share_of="the moments").parse_args(arguments)
    return report(options.seed, lambda: run(options.seed, options.share, options.processes), done="moments")


if __name__ == "__main__":
    sys.exit(main())
