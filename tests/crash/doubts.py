"""Limbo meets garbage collection: an index file is lost, and everything is collected, crashed and rebuilt around it.

`python -m tests.crash.doubts [--seed S] [--processes P]` takes a stopped bookie whose entry logs hold a ledger together
with others, alone, and twice. It takes the index file of that ledger, or cuts it, in each way of `Damage`. Then the
bookie starts, another ledger is deleted, garbage is collected, every log is compacted, and the ledger leaves limbo.
Before and after each operation of that, the bookie crashes in each of `LOSSES`, and is started again:

* no entry of the ledger in doubt is denied, and none is wrong: EIO is right;
* nothing else is lost;
* what a rebuild of the index finds in the logs then is everything. The first rebuild is crashed, too, before each of
  its operations, and done again;
* once the ledger is not in limbo any more, it is fenced: the fence was in its header, which is lost. So it is when it
  was deleted and dropped.

It prints one JSON line of counts.
"""

from __future__ import annotations

import asyncio
import enum
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random

from bkspark.wire.status import Status
from bookie_service.admin.rebuild import Rebuild
from bookie_service.admin.stopped_bookie import StoppedBookie
from bookie_service.cluster.ledger_shares import HeldShare, LedgerShare
from bookie_service.cluster.limbo_check import LimboCheck
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.formats.index import LAYOUT, POSITION_BYTES
from bookie_service.storage import layout
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.audit import Violation, audit
from tests.crash.campaign import reopened
from tests.crash.history import NEVER, History
from tests.crash.images import Fingerprint, Loss, crash_image, fingerprint
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.parallel import campaign_parser, counts_of, report
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.twins import BookieTwin, Setup

DOUBTFUL, DELETED, OTHER = 1, 2, 3
STORAGES = (StorageClass.SORTED, StorageClass.INTERLEAVED)
"""DbLedgerStorage has no index files; what its store lost is in doubt as a whole, and it does not start."""
LOSSES = (Loss.KEPT, Loss.LOST, Loss.REORDERED)
_ENTRIES = 8


class Damage(enum.Enum):
    """What is left of the index file: None is nothing, not even the name."""

    REMOVED = None
    EMPTIED = 0
    HEADER_ONLY = LAYOUT.positions_at
    CUT = LAYOUT.positions_at + 3 * POSITION_BYTES


def doubt_setup(storage_class: StorageClass) -> Setup:
    """Return a configuration in which a log takes a few entries."""
    return Setup(
        ledger_directories=2,
        store=StoreOptions(
            storage_class=storage_class, cache_half_bytes=6144, append=AppendOptions(HEADER_BYTES + 300)
        ),
        journal=JournalOptions(file_bytes_max=1000, preallocate_bytes=512, backups_max=0),
    )


def damaged(storage_class: StorageClass, damage: Damage, seed: int) -> tuple[SimulatedDisk, Setup, History]:
    """Return the disk of a stopped bookie of which an index file is damaged."""
    random = Random(seed)
    setup = doubt_setup(storage_class)
    twin = BookieTwin(setup.new_disk(), setup, History())

    def put(ledger_id: int, first: int, count: int) -> None:
        twin.add(ledger_id, [(entry_id, random.randbytes(40)) for entry_id in range(first, first + count)])
        twin.settle()

    for first in range(0, 4, 2):
        for ledger_id in (DOUBTFUL, DELETED, OTHER):
            put(ledger_id, first, 2)
        twin.checkpoint()
    # Alone in its logs, and with an older version of an entry in a log before.
    put(DOUBTFUL, 4, _ENTRIES - 5)
    twin.checkpoint()
    put(DOUBTFUL, 1, 1)
    put(DOUBTFUL, _ENTRIES - 1, 1)
    twin.fence(DOUBTFUL)
    twin.checkpoint()
    twin.store.seal_logs()
    twin.stop()
    files = SimulatedFiles(twin.disk)
    (path,) = (path for path in twin.disk.visible_files() if path.endswith(f"/{DOUBTFUL:x}.idx"))
    if damage.value is None:
        files.remove(path)
        files.sync_directory(path.rpartition("/")[0])
    else:
        file = files.open(path)
        file.truncate(damage.value)
        file.sync_data()
    return twin.disk, setup, twin.history.after_crash()


class _Whole:
    """A metadata store that says that the ledger is closed, and that all of it must be here."""

    async def share(self, ledger_id: int) -> LedgerShare:
        return LedgerShare((HeldShare(0, _ENTRIES, 0, 1, 1),))

    async def report(self, ledger_id: int, now_ms: int) -> None:
        """Autorecovery would copy what is missing."""


def leave_limbo(twin: BookieTwin) -> None:
    """Look once at the ledgers in limbo, as the service does."""

    async def flush() -> None:
        twin.checkpoint()

    async def run() -> None:
        check = LimboCheck(twin.store, _Whole(), 3600.0, 0, flush)
        try:
            await check._find_lost()
            await check.check()
        finally:
            check.cancel()

    with ThreadPoolExecutor(1) as apart:
        apart.submit(asyncio.run, run()).result()


class Doubts:
    """Counts what was done."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._seen: set[tuple[Fingerprint, int]] = set()
        self._rebuilt: set[int] = set()

    def run(self, storage_class: StorageClass, damage: Damage, seed: int) -> None:
        """Crash everywhere in what is done around one damaged file.

        Raises:
            Violation: naming the storage, the damage, the act, the operation and the policy.
        """
        disk, setup, history = damaged(storage_class, damage, seed)
        random = Random(seed)
        what = f"{storage_class.short_name}, index file {damage.name}, seed {seed}"
        twin = reopened(disk, setup, history)
        at = 0
        now = ""

        def crash(operation: str, path: str) -> None:
            nonlocal at
            at += 1
            self.counts["boundaries"] += 1
            for loss in LOSSES:
                try:
                    self._crash(disk, setup, twin.history.after_crash(), loss, random)
                except Violation as violation:
                    where = f"{now}, operation {at} ({operation} {path}), {loss.value}"
                    raise Violation(f"{what}, {where}: {violation}") from violation

        disk.before_operation = crash
        for name, act in self._acts(twin):
            now = name
            act()
            twin.settle()
        crash("end", "")
        self.counts["scripts"] += 1

    def _acts(self, twin: BookieTwin) -> Iterator[tuple[str, Callable[[], object]]]:
        yield "collect at once", lambda: self._collect(twin, (DOUBTFUL, DELETED, OTHER))
        yield "read", lambda: twin.read(DOUBTFUL, 0)
        yield "delete and collect", lambda: self._delete(twin, DELETED)
        for log_id in twin.store.logs.rotated():
            yield f"compact {log_id:x}", partial(twin.compact, log_id)
        yield "add", lambda: twin.add(OTHER, [(4, bytes(40))])
        yield "collect again", lambda: self._collect(twin, (DOUBTFUL, OTHER))
        # Not whole, so it stays; where nothing is missing, it leaves limbo.
        yield "look at limbo", lambda: leave_limbo(twin)
        yield "delete it and collect", lambda: self._delete(twin, DOUBTFUL)

    def _delete(self, twin: BookieTwin, ledger_id: int) -> None:
        twin.history.delete(ledger_id)
        self._collect(twin, tuple(twin.history.ledgers))

    def _collect(self, twin: BookieTwin, existing: tuple[int, ...]) -> None:
        twin.collect(DoubtfulMetadataView(existing))

    def _crash(self, disk: SimulatedDisk, setup: Setup, history: History, loss: Loss, random: Random) -> None:
        image = crash_image(disk, loss, random)
        found = fingerprint(image)
        if (found, history.promises) in self._seen:
            return
        self._seen.add((found, history.promises))
        self.counts["images"] += 1
        untouched = crash_image(image, Loss.KEPT, random)
        twin = reopened(image, setup, history)
        audit_doubtful(twin, history)
        if DOUBTFUL in history.ledgers and found.seen not in self._rebuilt:
            self._rebuilt.add(found.seen)
            self._rebuild(untouched, setup, history, random, is_crashed=len(self._rebuilt) == 1)

    def _rebuild(
        self, disk: SimulatedDisk, setup: Setup, history: History, random: Random, *, is_crashed: bool
    ) -> None:
        """Rebuild what is lost; everything is there then, and the ledger is in limbo or fenced."""
        # What killed processes left in the journal is in entry logs then.
        reopened(disk, setup, history).stop()

        def crash(operation: str, path: str) -> None:
            self.counts["rebuilds crashed"] += 1
            for loss in LOSSES:
                image = crash_image(disk, loss, random)
                audit_doubtful(reopened(crash_image(image, Loss.KEPT, random), setup, history), history)
                rebuild(image, setup)
                audit_doubtful(reopened(image, setup, history), history, is_rebuilt=True)

        disk.before_operation = crash if is_crashed else None
        rebuild(disk, setup)
        disk.before_operation = None
        self.counts["rebuilds"] += 1
        twin = reopened(disk, setup, history)
        audit_doubtful(twin, history, is_rebuilt=True)
        leave_limbo(twin)
        if DOUBTFUL in twin.store.limbo:
            raise Violation("the ledger is whole and closed, and is still in limbo")
        audit_doubtful(
            reopened(crash_image(disk, Loss.LOST, random), setup, history.after_crash()), history, is_rebuilt=True
        )


def rebuild(disk: SimulatedDisk, setup: Setup) -> None:
    """Do what `bkspark bookie --rebuild-index` does."""
    Rebuild(stopped_bookie(disk, setup), lambda line: None).run(None)


def stopped_bookie(disk: SimulatedDisk, setup: Setup) -> StoppedBookie:
    """Return the files of a bookie on a simulated disk, as its setup has them."""
    return StoppedBookie(
        SimulatedFiles(disk),
        [layout.current(path) for path in setup.journal_paths],
        [layout.current(path) for path in setup.ledger_paths],
        setup.store.storage_class,
        setup.store.key_values,
    )


def audit_doubtful(twin: BookieTwin, history: History, *, is_rebuilt: bool = False) -> None:
    """Audit a bookie that is in doubt about a ledger.

    Raises:
        Violation: an entry of it is denied or wrong, or, when its index `is_rebuilt`, not there; it takes an ordinary
            add, which its fence forbids; or a promise of another ledger is broken.
    """
    others = history.after_crash()
    doubtful = others.ledgers.pop(DOUBTFUL, None)
    audit(twin, others)
    if doubtful is None:
        return
    for entry_id, entry in doubtful.entries.items():
        if entry.acknowledged == NEVER:
            continue
        status, _, content = twin.read(DOUBTFUL, entry_id)
        if status == Status.EOK:
            # An older version may be what a rebuild finds; the client wrote the same entry each time.
            if not any(content == version for version in entry.versions):
                raise Violation(f"ledger {DOUBTFUL} entry {entry_id}: wrong bytes {content[:40]!r}")
        elif status != Status.EIO or is_rebuilt:
            raise Violation(f"ledger {DOUBTFUL} entry {entry_id}: in doubt, and answered {status}")
    if not twin.refuses_adds(DOUBTFUL, doubtful.master_key):
        raise Violation(f"ledger {DOUBTFUL}: was fenced, and takes an add")


@dataclass(frozen=True, slots=True)
class _Part:
    seed: int
    storage_class: StorageClass
    damage: Damage

    def run(self) -> Counter[str]:
        doubts = Doubts()
        doubts.run(self.storage_class, self.damage, self.seed)
        return doubts.counts


def run(seed: int, processes: int = 1) -> Counter[str]:
    """Run every damage of every storage; return the counts.

    Raises:
        Violation: of the first that has one.
    """
    parts = [_Part(seed, storage_class, damage) for storage_class in STORAGES for damage in Damage]
    return sum(counts_of(parts, processes), Counter())


def main(arguments: list[str] | None = None) -> int:
    options = campaign_parser("doubts", __doc__).parse_args(arguments)
    return report(options.seed, lambda: run(options.seed, options.processes))


if __name__ == "__main__":
    sys.exit(main())
