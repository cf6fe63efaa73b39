"""Failing calls and damaged bytes: what must not come of them.

Errors: a script runs once for every call that it makes of the file interface, and that call fails, with ENOSPC, EIO or
EMFILE, once, or from then on, or, for want of space, from then on in all ledger directories. The process ends, as the
real one does, and starts again on a disk that works, as the kill left it and as a power cut leaves it: every
acknowledged entry is there. Or, where only a checkpoint found no space, it goes on read-only, and is writable again
when there is space.

Flips: every byte that a script left on disk is changed in three ways. The bookie must refuse to start, naming the file,
or answer EIO, or serve the right bytes or such as the client's digest refuses; never another entry, never "no such
entry". Killed bookies had a quiet moment before: until then, damage in the last group looks like a torn write.

`python -m tests.crash.faults --seed S [--seeds N] [--share F] [--storage CLASS] [--processes P]` does all of it for
each storage, in processes of its own: one that hangs is ended with a traceback of its threads, and is a violation. It
prints one JSON line of counts; `coverage` says which part of all calls and of all bytes had its faults.
"""

from __future__ import annotations

import enum
import errno
import faulthandler
import gc
import itertools
import json
import logging
import multiprocessing
import os
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from random import Random

from bkspark.errors import StorageDamaged
from bookie_service.formats import index as index_format
from bookie_service.formats.index import POSITION_BYTES
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.audit import Violation, audit
from tests.crash.campaign import reopened
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.parallel import campaign_parser
from tests.crash.scripts import Script
from tests.crash.simulated_files import Fault, SimulatedDisk
from tests.crash.twins import BookieTwin, Setup

CODES = (errno.ENOSPC, errno.EIO, errno.EMFILE)
ERROR_STEPS = 12
TAKING_SPACE = frozenset({"write", "create", "create_directory", "preallocate", "reserve", "rename", "sync_data"})
FLIP_STEPS = 25
HANG_S = 300
"""A fault that takes longer hangs: it takes milliseconds, and on a loaded machine a second."""
_PARTS = 16
"""Tasks that the faults of one script make: each runs that script again."""
_CHANGES = {"bit": lambda byte, random: byte ^ 1 << random.randrange(8), "00": lambda *_: 0, "ff": lambda *_: 255}


class Duration(enum.Enum):
    """How long calls fail."""

    ONCE = "once"
    LASTING = "from then on"
    NO_SPACE = "from then on, writes in ledger directories"

    def includes(self, at: int, first: int, operation: str, path: str) -> bool:
        """Return whether the call number `at` fails, where `first` is the first that does."""
        if self is Duration.NO_SPACE:
            return at >= first and "/ledgers" in path and operation in TAKING_SPACE
        return at == first or (self is Duration.LASTING and at > first)


WAYS = [
    (code, duration)
    for code, duration in itertools.product(CODES, Duration)
    if duration is not Duration.NO_SPACE or code == errno.ENOSPC
]
"""In which a call fails."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which of the faults of one script are tried: every `of`th from `number` on, of these `share`, by the seed.

    A call fails in this number of `ways` of all, the next call in the ways that follow; None: in every way.
    """

    share: float = 1.0
    number: int = 0
    of: int = 1
    ways: int | None = None

    def takes(self, ordinal: int, random: Random) -> bool:
        """Say whether the fault with this number is tried; asked in order."""
        return random.random() < self.share and ordinal % self.of == self.number

    def takes_way(self, way: int, ordinal: int) -> bool:
        """Say whether a call fails in the way with this number, too."""
        return self.ways is None or (way - ordinal * self.ways) % len(WAYS) < self.ways


_ALL = Part()
_watches_for_hangs = False


def _watch() -> None:
    """Have the process ended in a while, if it is one for faults; each call begins again."""
    if _watches_for_hangs:
        faulthandler.dump_traceback_later(HANG_S, exit=True)


def fail_every_call(
    seed: int,
    counts: Counter[str],
    part: Part = _ALL,
    storage_class: StorageClass | None = None,
    kind: type[Script] = Script,
) -> None:
    """Run a script once per call and way with that call failing.

    Raises:
        Violation: an acknowledged entry is lost, or the bookie does not start again.
    """
    random = Random(seed)
    calls = 0

    def count(operation: str, path: str) -> OSError | None:
        nonlocal calls
        calls += 1
        return None

    make = partial(kind, seed, ERROR_STEPS, lambda script: None, storage_class)
    _run_failing(make(), count)
    for index in range(calls):
        is_tried = False
        for way, (code, duration) in enumerate(WAYS):
            if part.takes_way(way, index) and part.takes(index, random):
                _watch()
                is_tried = True
                counts["calls failed"] += 1
                _fail_call(make(), seed, index, code, duration, counts)
        counts["calls with a fault"] += is_tried
        counts["calls"] += index % part.of == part.number


def _fail_call(script: Script, seed: int, index: int, code: int, duration: Duration, counts: Counter[str]) -> None:
    at = -1

    def fault(operation: str, path: str) -> OSError | None:
        nonlocal at
        at += 1
        return OSError(code, os.strerror(code), path) if duration.includes(at, index, operation, path) else None

    died = _run_failing(script, fault)
    counts["processes ended"] += died
    script.disk.before_operation = script.disk.fault = None
    what = f"seed {seed}, call {index} fails with {errno.errorcode[code]}, {duration.value}"
    if not died:
        _audit_living(script, counts, what)
    # What a store that failed lacks is in limbo, durably, before the marks advance (docs/db-index.md).
    may_lack = not died and script.twin is not None and script.twin.store.index.has_hidden
    for loss in (Loss.KEPT, Loss.LOST):
        counts["images"] += 1
        try:
            again = reopened(crash_image(script.disk, loss, Random(seed)), script.setup, script.history)
            audit(again, script.history, errors_allowed=may_lack)
        except Violation as violation:
            raise Violation(f"{what}, then {loss.value}: {violation}") from violation


def _audit_living(script: Script, counts: Counter[str], what: str) -> None:
    """Hold a process that went on against what it promised, before there is space again and after."""
    twin = script.twin
    assert twin is not None
    counts["processes without space"] += twin.disks.is_stuck

    def audit_now() -> None:
        # Ledgers whose store failed once are answered EIO until the next start (docs/db-index.md).
        is_closed = twin.store.index.has_hidden
        audit(twin, script.history, errors_allowed=is_closed, may_hide_unknown=is_closed)

    try:
        audit_now()
        twin.settle()
        twin.bookie.look_at_disks()
        if twin.disks.is_read_only:
            raise Violation(f"still read-only: {twin.disks.verdict.refusal}")
        audit_now()
    except Violation as violation:
        raise Violation(f"{what}; the process goes on: {violation}") from violation


def _run_failing(script: Script, fault: Fault) -> bool:
    """Run a script to its end or its process's; return whether an error ended it."""
    script.fault = fault
    try:
        script.run()
    except (OSError, StorageDamaged):
        return True
    twin = script.twin
    return twin is None or twin.loop.failure is not None


def flip_bytes(
    seed: int,
    counts: Counter[str],
    part: Part = _ALL,
    storage_class: StorageClass | None = None,
    *,
    clean: bool = True,
    steps: int = FLIP_STEPS,
    files: str = "",
) -> None:
    """Change every byte that a script leaves, in three ways, and audit.

    Args:
        clean: the bookie was stopped; otherwise it was killed, a moment after the last add.
        files: only in files whose names end so.

    Raises:
        Violation: wrong bytes, a false negative, or a refusal that names no file.
    """
    script = Script(seed, steps, lambda script: None, storage_class)
    script.run()
    assert script.twin is not None
    script.disk.before_operation = None
    if clean:
        script.twin.stop()
    else:
        for entry_id in range(2):
            for ledger_id in (0x70, 0x71):
                script.twin.add(ledger_id, [(entry_id, b"behind the mark")])
            script.twin.settle()
        for journal in script.twin.journals:
            journal.settle()
    history = script.history.after_crash()
    disk = crash_image(script.disk, Loss.LOST, script.random)
    random = Random(seed)
    inodes = {path: inode for path, inode in sorted(disk.visible_files().items()) if path.endswith(files)}
    places = [(path, i) for path, inode in inodes.items() for i in range(len(inode.cached))]
    for ordinal, (path, offset) in enumerate(places):
        byte = inodes[path].cached[offset]
        is_tried = False
        for name, change in _CHANGES.items():
            new = change(byte, random)
            if new != byte and part.takes(ordinal, random):
                _watch()
                is_tried = True
                counts["flips"] += 1
                what = f"seed {seed}, {path} {offset} {name}"
                _audit_flipped(script, disk, history, path, offset, new, what, counts)
        counts["bytes with a fault"] += is_tried
        counts["bytes"] += ordinal % part.of == part.number


def misdirect_position() -> None:
    """Make the index say of one entry where another lies, and audit.

    Raises:
        Violation: the other entry is served.
    """
    setup = Setup()
    twin = BookieTwin(setup.new_disk(), setup, History())
    twin.add(1, [(0, b"first"), (1, b"other")])
    twin.checkpoint()
    (index,) = (inode for path, inode in twin.disk.visible_files().items() if path.endswith("/1.idx"))
    first, other = (index_format.LAYOUT.position_at(entry_id) for entry_id in (0, 1))
    index.cached[first : first + POSITION_BYTES] = index.cached[other : other + POSITION_BYTES]
    audit(
        reopened(crash_image(twin.disk, Loss.KEPT, Random(0)), setup, twin.history), twin.history, errors_allowed=True
    )


def _audit_flipped(
    script: Script,
    disk: SimulatedDisk,
    history: History,
    path: str,
    offset: int,
    new: int,
    what: str,
    counts: Counter[str],
) -> None:
    image = crash_image(disk, Loss.LOST, Random(0))
    inode = image.visible_files()[path]
    inode.cached[offset] = inode.durable[offset] = new
    try:
        twin = BookieTwin(image, script.setup, history)
    except StorageDamaged as error:
        if path.rpartition("/")[2] not in str(error):
            raise Violation(f"{what}: the refusal names no file: {error}") from error
        return
    except Exception as error:
        raise Violation(f"{what}: did not start: {type(error).__name__}: {error}") from error
    counts["starts in doubt"] += twin.is_in_doubt
    try:
        twin.begin_run(history.ledgers)
        audit(twin, history, errors_allowed=True)
    except Violation as violation:
        raise Violation(f"{what}: {violation}") from violation


class Kind(enum.Enum):
    """What goes wrong."""

    CALL = "a call fails"
    FLIP = "a byte changes"
    FLIP_AFTER_KILL = "a byte changes after a kill"


@dataclass(frozen=True, slots=True)
class Task:
    """A share of the faults of one script, for a process of its own."""

    kind: Kind
    seed: int
    storage_class: StorageClass
    part: Part

    def run(self) -> Counter[str] | str:
        """Return the counts, or the violation."""
        counts: Counter[str] = Counter()
        try:
            if self.kind is Kind.CALL:
                fail_every_call(self.seed, counts, self.part, self.storage_class)
            else:
                flip_bytes(self.seed, counts, self.part, self.storage_class, clean=self.kind is Kind.FLIP)
        except Violation as violation:
            return f"{self.storage_class.short_name}: {violation}"
        finally:
            faulthandler.cancel_dump_traceback_later()
        gc.collect()
        return counts


def run(tasks: Sequence[Task], processes: int) -> Counter[str]:
    """Run tasks in processes; return the sum of their counts.

    Raises:
        Violation: the first one found; or a process hung, or died.
    """
    total: Counter[str] = Counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _begin_process) as pool:
        for task, future in [(task, pool.submit(task.run)) for task in tasks]:
            try:
                counts = future.result()
            except BrokenProcessPool:
                raise Violation(f"{task}, or one beside it: hung for {HANG_S} s, or died") from None
            if isinstance(counts, str):
                pool.shutdown(cancel_futures=True)
                raise Violation(counts)
            total += counts
    return total


def _begin_process() -> None:
    global _watches_for_hangs
    _watches_for_hangs = True
    # The bookie logs each EIO that it answers.
    logging.disable()


def main(arguments: list[str] | None = None) -> int:
    parser = campaign_parser("faults", __doc__, share_of="all faults")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--storage", type=StorageClass.parse, help="one ledgerStorageClass only (default: all)")
    options = parser.parse_args(arguments)
    storages = [options.storage] if options.storage else list(StorageClass)
    seeds = range(options.seed, options.seed + options.seeds)
    numbers = range(_PARTS)
    tasks = [
        Task(kind, seed, storage, Part(options.share, number, _PARTS))
        for kind, seed, storage, number in itertools.product(Kind, seeds, storages, numbers)
    ]
    try:
        counts = run(tasks, options.processes)
    except Violation as violation:
        print(violation, file=sys.stderr)
        return 1
    coverage = {kind: round(counts[f"{kind} with a fault"] / counts[kind], 4) for kind in ("calls", "bytes")}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = {"seed": options.seed, "storages": [storage.short_name for storage in storages], **counts}
    report |= {"coverage": coverage, "violations": 0, "processor_seconds": round(used.ru_utime + used.ru_stime, 1)}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
