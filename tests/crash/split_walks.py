"""Random walks of an index in key-value stores, one store for each ledger directory or one for all.

`python -m tests.crash.split_walks --seeds 1000 --first 1 --processes 2` walks with each seed, and prints the counts or
the violation with its last steps.

A walk adds, fences, sets explicit LACs, moves positions, removes ledgers and flushes, while disks are late, full or
failing, the journal's disk may be full, and threads of slow disks go on between any two steps of the others. At a
random change of the disk there is a crash of one of six kinds, and then a start with all disks, or with one that fails
or is full. A start can be crashed, too. Every change that was acknowledged must be there then, or its ledger is in
limbo, or has its home on a disk that failed. A reader must find exactly what is held, at any step.
"""

from __future__ import annotations

import argparse
import copy
import errno
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from bkspark.errors import StorageDamaged
from bookie_service.formats.kept_changes import file_name
from bookie_service.storage.index import key_value_index
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.index.split_index import SplitIndex
from bookie_service.storage.index.split_layout import find_layout
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import is_out_of_space
from bookie_service.storage.io.key_values import KeyValueOptions
from tests.crash.audit import Violation
from tests.crash.images import Loss, crash_image
from tests.crash.parallel import counts_of, report
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles, os_error
from tests.crash.stepped_disks import SteppedDisks, SteppedFiles
from tests.crash.walk_model import HEADER, LedgerModel, Rows, header_of, rows_of, update_of
from tests.planting import both, changed

CYCLES = 5
"""How many crashes a walk has."""
STEPS = 45
"""At most this many steps come before each."""
SHOWN_STEPS = 40
"""How many of the last steps a violation shows."""
JOURNAL = -1
"""The number of the journal's disk."""
_JOURNAL_CURRENT = "/journal0/current"
_ENTRY_IDS = (0, 1, 2, 255, 256, 257, 600)
_TAKES_SPACE = frozenset(("write", "create", "create_directory", "preallocate", "reserve"))


@dataclass(slots=True)
class State:
    """What a crash does not change in the model.

    limbo: ledgers in limbo. journal: changes that the journal has.
    """

    ledgers: dict[int, LedgerModel] = field(default_factory=dict)
    limbo: set[int] = field(default_factory=set)
    journal: list[LedgerUpdate] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Crash:
    """What a crash left of the disk, and of the model."""

    disk: SimulatedDisk
    state: State


class _Ended(Exception):
    """A disk failed without which the process ends."""


class Walk:
    """One walk. `directories`: how many have a store; 1: one store has all ledgers."""

    def __init__(self, seed: int, directories: int | None = None) -> None:
        self.random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.steps: list[str] = []
        """What was done, for who looks for the cause of a violation."""
        homes = directories or self.random.choice((1, 2, 2, 3, 4))
        self.directories = [f"/ledgers{place}/current" for place in range(homes)]
        self.state = State()
        self.disk = SimulatedDisk()
        for path in (_JOURNAL_CURRENT, *self.directories):
            SimulatedFiles(self.disk).make_directory(path)
        for directory in self.disk.directories():
            directory.durable, directory.pending = dict(directory.cached), []
        self.disks = SteppedDisks(homes)
        self.index: SplitIndex | KeyValueIndex | None = None
        self.full: set[int] = set()
        """The disks that have no space."""
        self.failing: set[int] = set()
        """The disks each of whose calls fails."""
        self.pending: list[LedgerUpdate] = []
        """Changes of a flush that waits for space: some of them may be held."""
        self._value = 0
        self._crash_at: int | None = None
        """At which change of the disk a crash comes; None: at none."""
        self._crash: Crash | None = None

    def run(self) -> None:
        """Walk. Raises Violation."""
        try:
            self._start()
            for _ in range(CYCLES):
                self._walk_until_crash()
                self._go_on_after_crash()
        except (OSError, StorageDamaged, AssertionError) as error:
            raise Violation(f"{type(error).__name__}: {error}") from error
        finally:
            self.disks.abandon()

    def _note(self, what: str, details: object = "") -> None:
        self.counts[what] += 1
        self.steps.append(f"{what} {details}")

    # ---- disks and threads ----

    def _fault(self, operation: str, path: str) -> OSError | None:
        place = JOURNAL if path.startswith("/journal0") else int(path.removeprefix("/ledgers").split("/")[0])
        # A real store abandons a file whose sync failed. The simulated one cuts it, which must succeed.
        if place in self.failing and operation != "truncate":
            return os_error(errno.EIO, path)
        if place in self.full and operation in _TAKES_SPACE:
            return os_error(errno.ENOSPC, path)
        return None

    def _before(self, operation: str, path: str) -> None:
        if self._crash_at is not None and self.disk.operations >= self._crash_at:
            self._take_crash(f"before {operation} {path}")
        self._between()

    def _take_crash(self, where: str) -> None:
        self._crash_at = None
        loss = self.random.choice(list(Loss))
        self._crash = Crash(crash_image(self.disk, loss, self.random), copy.deepcopy(self.state))
        self._note("crash", f"{loss.value} {where}")

    def _between(self) -> None:
        """Let a late disk go on, or a reader read, while another thread is between two steps."""
        if self.disks.stop_here():
            return
        for place in self.disks.busy():
            if self.random.random() < 0.2:
                self.counts["step between"] += 1
                self.disks.step(place)
        if self.index is not None and self.state.ledgers and self.random.random() < 0.1:
            self.counts["read between"] += 1
            self._check_reader(self.random.choice(list(self.state.ledgers)))

    # ---- starts and crashes ----

    def _start(self) -> None:
        self.disk.before_operation, self.disk.fault = self._before, self._fault
        files = SteppedFiles(self.disk, self._between, self.random)
        self.index, self.disks = None, SteppedDisks(len(self.directories))
        options = KeyValueOptions(write_buffer_bytes=self.random.choice((256, 2000, 100_000)))
        if len(self.directories) == 1:
            self.index = KeyValueIndex(files, self.directories[0], options, disks=self.disks)
            return
        places = FilePlaces(files, _JOURNAL_CURRENT)
        layout = find_layout(files, self.directories, lambda: not self.state.ledgers)
        assert layout is not None, "a store for each directory is taken for one store"
        self.index = SplitIndex(
            files,
            self.directories,
            options,
            layout,
            disks=self.disks,
            places=places,
            begin_doubt=self._begin_doubt,
        )
        places.settle()

    def _begin_doubt(self, ledger_ids: Collection[int]) -> None:
        self._note("limbo", sorted(ledger_ids))
        self.state.limbo.update(ledger_ids)

    def _walk_until_crash(self) -> None:
        self.disks.waits = False
        if self._crash is None and self._crash_at is None:
            self._crash_at = self.disk.operations + self.random.randint(1, 600)
        try:
            for _ in range(self.random.randint(5, STEPS)):
                self._step()
                if self._crash is not None and self.random.random() < 0.5:
                    break
        except _Ended:
            self._note("process ended")

    def _go_on_after_crash(self) -> None:
        """Start with what a crash left, with all disks or without one, and check and replay."""
        if self._crash is None:
            self._take_crash("at the end")
        assert self._crash is not None
        self.disks.abandon()
        self.disk, self.state, self._crash = self._crash.disk, self._crash.state, None
        self.pending = []
        self._choose_disks()
        self._crash_at = self.random.randint(1, 80) if self.random.random() < 0.3 else None
        self._note("start", f"failing {sorted(self.failing)} full {sorted(self.full)}")
        try:
            self._start_without_disks()
            self._check_after_crash()
            self._replay()
        except _Ended:
            self._note("process ended at a start")
        if self._crash is not None:
            self._note("crash of a start")
        if self.random.random() < 0.7:
            self.failing.clear()
        if self.random.random() < 0.5:
            self.full.clear()

    def _choose_disks(self) -> None:
        self.full, self.failing = set(), set()
        chosen = self.random.random()
        place = self.random.randrange(len(self.directories))
        if chosen < 0.3:
            self.failing = {place}
        elif chosen < 0.5:
            self.full = {place}

    def _start_without_disks(self) -> None:
        try:
            self._start()
        except OSError as error:
            if not self._needs_failing(error):
                raise
            self._note("start needs the disk")
            self.failing, self.full = set(), set()
            self._start()
        if not self.failing and self.index is not None and self.index.has_hidden:
            raise Violation("a home is closed, and no disk fails")

    def _needs_failing(self, error: OSError) -> bool:
        """Return whether a start may be refused: no home is whole without the disk that fails."""
        if len(self.directories) == 1:
            return bool(self.failing) or (bool(self.full) and is_out_of_space(error))
        self.disk.before_operation = self.disk.fault = None
        places = FilePlaces(SimulatedFiles(self.disk), _JOURNAL_CURRENT)
        others = set(range(len(self.directories))) - self.failing
        return bool(self.failing) and all(places.place(file_name(home)) in self.failing for home in others)

    def _replay(self) -> None:
        """Hold again what the journal has, as a start does: one change for each ledger."""
        found: dict[int, Rows] = {}
        for update in self.state.journal:
            if not self.state.ledgers[update.ledger_id].is_removed:
                found.setdefault(update.ledger_id, {}).update(rows_of(update))
        for ledger_id, rows in found.items():
            self.state.ledgers[ledger_id].change(rows, is_journaled=True)
        updates = [update_of(ledger_id, rows) for ledger_id, rows in sorted(found.items())]
        if updates and self._hold(updates):
            self._flush()

    # ---- checks ----

    def _read(self, ledger_id: int) -> Rows:
        assert self.index is not None
        header = self.index.header(ledger_id)
        rows = {} if header is None else {HEADER: header.generation}
        if header is not None and header != header_of(ledger_id, header.generation):
            raise Violation(f"ledger {ledger_id}: wrong header {header}")
        for first, positions in self.index.extents(ledger_id):
            rows.update({first + at: each for at, each in enumerate(positions.tolist()) if each})
        return rows

    def _is_unknown(self, ledger_id: int) -> bool:
        assert self.index is not None
        return self.index.is_hidden(ledger_id) or ledger_id in self.state.limbo

    def _check_after_crash(self) -> None:
        for ledger_id, ledger in self.state.ledgers.items():
            if self._is_unknown(ledger_id):
                self.counts["ledgers unknown after a crash"] += 1
                continue
            found = self._read(ledger_id)
            if wrong := ledger.wrong(found):
                raise Violation(f"ledger {ledger_id} after a crash: {wrong}")
            self.counts["ledgers found after a crash"] += 1
            ledger.accept(found)

    def _check_reader(self, ledger_id: int) -> None:
        """Check that a reader finds what is held of a ledger, unless its disk fails or a flush is not done."""
        ledger = self.state.ledgers[ledger_id]
        if self._is_unknown(ledger_id) or any(update.ledger_id == ledger_id for update in self.pending):
            return
        try:
            found = self._read(ledger_id)
        except OSError:
            return
        expected = {} if ledger.is_removed else ledger.rows
        if found != expected:
            raise Violation(f"a reader of ledger {ledger_id} finds {found}, not {expected}")

    def _check_readers(self) -> None:
        for ledger_id in self.state.ledgers:
            self._check_reader(ledger_id)
        assert self.index is not None
        with self._disk_errors("list"):
            listed = {each for each in self.index.ledger_ids().tolist() if self._is_certain(each)}
            held = {each for each, ledger in self.state.ledgers.items() if HEADER in ledger.rows}
            expected = {each for each in held if not self.state.ledgers[each].is_removed and self._is_certain(each)}
            if listed != expected:
                raise Violation(f"ledgers {sorted(listed)} are listed, not {sorted(expected)}")

    def _is_certain(self, ledger_id: int) -> bool:
        return not self._is_unknown(ledger_id) and all(update.ledger_id != ledger_id for update in self.pending)

    # ---- steps ----

    def _step(self) -> None:
        for place in self.disks.busy():
            if self.random.random() < 0.5:
                for _ in range(self.random.randint(1, 4)):
                    if self.disks.is_busy(place):
                        self.disks.step(place)
        if self.pending and self.random.random() < 0.6:
            if self._hold(self.pending) and self.random.random() < 0.7:
                self._flush()
            return
        steps, weights = zip(*_STEPS)
        self.random.choices(steps, weights)[0](self)

    def _add(self) -> None:
        """Hold entries, fences and explicit LACs that the journal has."""
        if self.pending:
            return
        ledgers = self.state.ledgers
        # There are as many again for each that is of no more use.
        others = sum(ledger.is_removed for ledger in ledgers.values()) + len(self.state.limbo)
        ids = [each for each in range(1, 14 + others) if each not in ledgers or not ledgers[each].is_removed]
        updates = []
        for ledger_id in sorted(self.random.sample(ids, self.random.randint(1, 4))):
            ledger = ledgers.setdefault(ledger_id, LedgerModel())
            rows = {entry: self._next() for entry in self.random.sample(_ENTRY_IDS, self.random.randint(0, 3))}
            if HEADER not in ledger.rows or self.random.random() < 0.3:
                rows[HEADER] = self._next()
            ledger.change(rows, is_journaled=True)
            updates.append(update_of(ledger_id, rows))
        self.state.journal += updates
        if self._hold(updates) and self.random.random() < 0.6:
            self._flush()

    def _move(self) -> None:
        """Move the entries of a ledger, as compaction does. The journal does not have that."""
        assert self.index is not None
        held = [
            each
            for each, ledger in self.state.ledgers.items()
            if not ledger.is_removed and ledger.rows.keys() - {HEADER} and not self.index.is_hidden(each)
        ]
        if not held or self.pending:
            return
        updates = []
        for ledger_id in self.random.sample(held, min(2, len(held))):
            ledger = self.state.ledgers[ledger_id]
            rows = {entry: self._next() for entry in ledger.rows if entry != HEADER}
            ledger.change(rows, is_journaled=False)
            updates.append(update_of(ledger_id, rows))
        if self._hold(updates):
            self._flush()

    def _next(self) -> int:
        self._value += 1
        return self._value

    def _hold(self, updates: list[LedgerUpdate]) -> bool:
        """Hold changes; return whether all are held. If not, the flush waits for space."""
        assert self.index is not None
        self._note("hold", [update.ledger_id for update in updates])
        self.pending = updates
        if not self._done("hold", lambda index: index.hold(updates)):
            return False
        for update in updates:
            self.state.ledgers[update.ledger_id].rows.update(rows_of(update))
        self.pending = []
        return True

    def _flush(self) -> None:
        """Make durable what is held, and let the marks advance."""
        if self.pending or not self._done("flush", lambda index: index.sync()):
            return
        self._note("flushed")
        assert self.index is not None
        for ledger_id, ledger in self.state.ledgers.items():
            if self.index.is_hidden(ledger_id):
                ledger.leave_journal()
            elif not ledger.is_removed:
                ledger.become_durable()
        self.state.journal = []

    def _remove(self) -> None:
        """Remove a ledger whose rows are durable, as garbage collection does."""
        ids = [each for each, ledger in self.state.ledgers.items() if self._is_removable(each, ledger)]
        if not ids:
            return
        ledger_id = self.random.choice(ids)
        ledger = self.state.ledgers[ledger_id]
        # Before the call, because a crash may come within it.
        ledger.is_removed = True
        self._note("remove", ledger_id)
        if not self._done("remove", lambda index: index.remove(ledger_id)):
            ledger.is_removed = False
        elif self.random.random() < 0.5:
            self._sync_removed(ledger_id)

    def _is_removable(self, ledger_id: int, ledger: LedgerModel) -> bool:
        is_held = HEADER in ledger.rows and not ledger.is_removed
        return is_held and ledger.is_durable and self._is_certain(ledger_id)

    def _sync_removed(self, ledger_id: int) -> None:
        assert self.index is not None
        with self._disk_errors("sync removed"):
            work = self.index.sync_removed([ledger_id])
            is_done = all(future.done() and future.exception() is None for future in work)
            if is_done and not self.index.may_come_back([ledger_id]):
                self.counts["removed for good"] += 1
                self.state.ledgers[ledger_id].is_gone = True

    def _change_lateness(self) -> None:
        place = self.random.randrange(len(self.directories))
        self.disks.late ^= {place}
        self._note("late", sorted(self.disks.late))
        if place not in self.disks.late and self.random.random() < 0.5:
            self.disks.finish(place)

    def _change_space(self) -> None:
        is_journal = self.random.random() < 0.05
        self.full ^= {JOURNAL if is_journal else self.random.randrange(len(self.directories))}
        self._note("full", sorted(self.full))

    def _fail(self) -> None:
        if not self.failing:
            self.failing = {self.random.randrange(len(self.directories))}
            self._note("failing", sorted(self.failing))

    def _done(self, what: str, act: Callable[[SplitIndex | KeyValueIndex], None]) -> bool:
        """Return whether something was done; False: a disk is full, late, or closed."""
        assert self.index is not None
        with self._disk_errors(what):
            act(self.index)
            return True
        return False

    @contextmanager
    def _disk_errors(self, what: str) -> Iterator[None]:
        """Let the walk go on after an error of a disk that has it, or raise _Ended if the process would not."""
        try:
            yield
        except OSError as error:
            self._note(f"{what} waits", error)
            if error.errno is None or is_out_of_space(error):
                # Late, or full.
                return
            if len(self.directories) == 1 and self.failing:
                raise _Ended from error
            if what not in ("remove", "sync removed", "list"):
                raise


_STEPS: tuple[tuple[Callable[[Walk], None], int], ...] = (
    (Walk._add, 35),
    (Walk._move, 7),
    (Walk._flush, 13),
    (Walk._remove, 13),
    (Walk._change_lateness, 12),
    (Walk._change_space, 12),
    (Walk._fail, 2),
    (Walk._check_readers, 6),
)
"""The steps of a walk, and how likely each is."""


@dataclass(frozen=True, slots=True)
class WalkPart:
    """The walk of one seed."""

    seed: int
    directories: int | None = None

    def run(self) -> Counter[str]:
        """Walk; return the counts. Raises Violation, with the last steps."""
        random = Random(self.seed)
        kept_bytes, puts = random.choice((500, 2000, 20_000, 1 << 20)), random.choice((2, 1024))
        walk = Walk(self.seed, self.directories)
        with both(
            changed(key_value_index, "_KEPT_BYTES_MAX", lambda old: kept_bytes),
            changed(key_value_index, "_PUTS_PER_WRITE", lambda old: puts),
        ):
            try:
                walk.run()
            except Violation as violation:
                steps = "\n  ".join(walk.steps[-SHOWN_STEPS:])
                raise Violation(f"seed {self.seed}: {violation}\n  {steps}") from violation
        return walk.counts + Counter(walks=1)


def run(first: int, seeds: int, directories: int | None = None, processes: int = 1) -> Counter[str]:
    """Walk with each seed; return the counts.

    `directories`: of each walk; None: as its seed says.

    Raises:
        Violation: of the lowest seed that has one.
    """
    parts = (WalkPart(seed, directories) for seed in range(first, first + seeds))
    return sum(counts_of(parts, processes), Counter())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.split_walks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many walks (default 1000)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument(
        "--directories", type=int, help="ledger directories, 1 for one store (default as the seed says)"
    )
    parser.add_argument("--processes", type=int, default=1, help="processes that share the work (default 1)")
    options = parser.parse_args(arguments)
    return report(options.first, lambda: run(options.first, options.seeds, options.directories, options.processes))


if __name__ == "__main__":
    sys.exit(main())
