"""A kill, and then a power cut in the recovery: enumerated, not sampled.

`python -m tests.crash.recoveries [--seed S] [--share F] [--kind KIND] [--act ACT] [--processes P]` kills a rich script
at every operation boundary, starts the bookie on what the killed process left, and cuts the power at every operation of
that start, and after it, under every loss policy. Each disk that comes of it is started and audited; those that are
alike count once. It prints one JSON line of counts; `coverage` says which part of all pairs of a kill and a cut was
tried.

What a killed process wrote is there and not durable: a start that builds upon it without syncing it loses it to the
power cut. That takes two crashes at exact places, so campaigns that sample second crashes seldom see it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random

from bkspark.wire import v2
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.audit import Violation, audit
from tests.crash.campaign import LOG_PER_LEDGER, Starts, reopened
from tests.crash.images import Fingerprint, Loss, crash_image, every_image, fingerprint
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.parallel import campaign_parser, counts_of, report
from tests.crash.scripts import Script
from tests.crash.twins import BookieTwin, Setup

ONE_STORE = "one store for two directories"
KINDS: dict[str, tuple[StorageClass, bool]] = {
    **{storage.short_name: (storage, False) for storage in StorageClass},
    LOG_PER_LEDGER: (StorageClass.SORTED, True),
    ONE_STORE: (StorageClass.DB, False),
}
"""Each kind of script, as the storage that it runs on, and whether each ledger has a log of its own."""
_LOG_BYTES = HEADER_BYTES + 400
_OPENED_MAX = 2000


def rich_setup(storage_class: StorageClass, log_per_ledger: bool) -> Setup:
    """Return a configuration in which a few entries fill a journal file, a log and an index page."""
    return Setup(
        ledger_directories=2,
        store=StoreOptions(
            storage_class=storage_class,
            cache_half_bytes=6144,
            append=AppendOptions(_LOG_BYTES, log_per_ledger=log_per_ledger, active_logs_max=2),
            open_files_max=4,
            pages=PageOptions(page_bytes=64, pages_max=1),
        ),
        journal=JournalOptions(
            file_bytes_max=1000, preallocate_bytes=512, alignment_bytes=1, backups_max=0, reuse_files=log_per_ledger
        ),
    )


class RichScript(Script):
    """A fixed sequence in which everything happens that a start may have to finish; the seed makes the payloads."""

    # Everything has its turn; what happens at the same time is for campaigns.
    concurrency = (0.0,)
    lateness = (0.0,)

    def _configuration(self, storage_class: StorageClass | None, log_per_ledger: bool | None) -> Setup:
        assert storage_class is not None
        return rich_setup(storage_class, bool(log_per_ledger))

    def run(self) -> None:
        """Run to the end; a Violation of the hook ends it."""
        self._open()
        assert self.twin is not None
        for name, act in self._acts(self.twin):
            self.act = name
            act()
            self.twin.settle()
        self._hook(self)

    act = "first start"
    """What the script does now."""

    def _acts(self, twin: BookieTwin) -> Iterator[tuple[str, Callable[[], object]]]:
        yield "add", lambda: self._put(1, 3, 60)
        yield "add", lambda: self._put(2, 1, 60)
        yield "fence", lambda: twin.fence(2)
        yield "checkpoint", twin.checkpoint
        # A ledger that is flushed, and not before the marks.
        yield "add", lambda: self._put(4, 2, 60)
        yield "flush", lambda: twin.bookie.checkpoint(advances_checkpoint=False)
        yield "add", lambda: self._put(1, 2, 400)
        yield "roll", lambda: self._put(1, 1, 60)
        yield "LAC", lambda: twin.write_lac(1, 4)
        yield "rewrite", lambda: self._send(1, [(1, self.random.randbytes(50))], 0)
        yield "checkpoint", twin.checkpoint
        # One log more, so that each compaction goes to the other directory: their new logs take turns.
        yield "add", lambda: self._put(4, 1, 400)
        yield "checkpoint", twin.checkpoint
        yield "seal", twin.store.seal_logs
        yield "drop", lambda: self._drop(2)
        yield "compact", lambda: twin.compact(twin.store.logs.rotated()[0])
        yield "compact", lambda: twin.compact(twin.store.logs.rotated()[0])
        yield "add", lambda: self._put(4, 1, 60)
        # Ledgers without an entry have no index file; one of them gets one, and one is dropped.
        yield "headers", lambda: self._begin_without_entries(5, 6, 7)
        yield "header checkpoint", twin.checkpoint
        yield "first entry", lambda: self._send(5, [(0, self.random.randbytes(60))], v2.RECOVERY_ADD)
        yield "header checkpoint", twin.checkpoint
        yield "header drop", lambda: self._drop(6)

    def _begin_without_entries(self, *ledger_ids: int) -> None:
        assert self.twin is not None
        for ledger_id in ledger_ids:
            self._ledgers.append(ledger_id)
            self.twin.fence(ledger_id)
            self.twin.write_lac(ledger_id, 0)

    def _put(self, ledger_id: int, count: int, size: int) -> None:
        first = self._next_entry.get(ledger_id, 0)
        self._next_entry[ledger_id] = first + count
        if ledger_id not in self._ledgers:
            self._ledgers.append(ledger_id)
        self._send(ledger_id, [(entry_id, self.random.randbytes(size)) for entry_id in range(first, first + count)], 0)

    def _drop(self, ledger_id: int) -> None:
        assert self.twin is not None
        self._ledgers.remove(ledger_id)
        self.history.delete(ledger_id)
        self.twin.collect(DoubtfulMetadataView(self._ledgers), is_forced=False)


class OneStoreScript(RichScript):
    """One of a bookie that an earlier build made, whose one store has the index of both directories."""

    def _configuration(self, storage_class: StorageClass | None, log_per_ledger: bool | None) -> Setup:
        return replace(super()._configuration(storage_class, log_per_ledger), has_one_store=True)


def script_of(kind: str, seed: int, hook: Callable[[Script], None]) -> RichScript:
    """Return the script of one of `KINDS`."""
    storage_class, log_per_ledger = KINDS[kind]
    made = OneStoreScript if kind == ONE_STORE else RichScript
    return made(seed, 0, hook, storage_class, log_per_ledger=log_per_ledger)


class Recoveries:
    """Counts what was done; `images` are those audited, without those that are like another of their script."""

    def __init__(self, share: float = 1.0, act: str | None = None) -> None:
        """`share`: of the pairs of a kill and a cut, chosen by the seed. `act`: kills come in the middle of such."""
        self._share = share
        self._act = act
        self.counts: Counter[str] = Counter()
        self.operations: set[tuple[str, str]] = set()
        """What the starts did to files, as (operation, kind of file)."""
        self._states: set[tuple[Fingerprint, int]] = set()

    @property
    def images(self) -> int:
        return self.counts["images"]

    def run_script(self, seed: int, kind: str) -> None:
        """Kill one script at every boundary.

        Raises:
            Violation: naming kind, seed, kill, operation and policy.
        """
        self._states.clear()
        starts = Starts(self.counts, _OPENED_MAX)
        random = Random(seed)
        kills = 0

        def hook(script: Script) -> None:
            nonlocal kills
            assert isinstance(script, RichScript)
            kills += 1
            if self._act in (None, script.act):
                self.counts["kills"] += 1
                self._recover(script, starts, random, f"{kind}, seed {seed}, kill {kills} ({script.act})")

        script_of(kind, seed, hook).run()
        self.counts["scripts"] += 1

    def _recover(self, script: Script, starts: Starts, random: Random, what: str) -> None:
        """Start the bookie on what a kill leaves now, and cut the power at every operation of that."""
        killed = crash_image(script.disk, Loss.KEPT, random)
        history = script.history.after_crash()
        cuts = 0

        def cut(operation: str, path: str) -> None:
            nonlocal cuts
            cuts += 1
            self.counts["due"] += 1
            if self._share < 1 and random.random() >= self._share:
                return
            self.counts["cuts"] += 1
            state = (fingerprint(killed), history.promises)
            if state in self._states:
                return
            self._states.add(state)
            self.counts["states"] += 1
            self.operations.add((operation, path.rpartition(".")[2] if "." in path else path.rpartition("/")[2]))
            for survived, image in every_image(killed, random):
                self.counts["attempts"] += 1
                try:
                    self.counts["images"] += starts.audit(image, script.setup, history)
                except Violation as violation:
                    where = f"{what}, then the power was cut at operation {cuts} of the start ({operation} {path})"
                    raise Violation(f"{where}, {survived}: {violation}") from violation

        killed.before_operation = cut
        try:
            twin = reopened(killed, script.setup, history)
        except Violation as violation:
            raise Violation(f"{what}: {violation}") from violation
        cut("end", "")
        audit(twin, history)


@dataclass(frozen=True, slots=True)
class _Part:
    """One script."""

    seed: int
    kind: str
    share: float
    act: str | None

    def run(self) -> Counter[str]:
        recoveries = Recoveries(self.share, self.act)
        recoveries.run_script(self.seed, self.kind)
        return recoveries.counts


def run(seed: int, share: float, kinds: Iterable[str], act: str | None = None, processes: int = 1) -> Counter[str]:
    """Run one script of each kind; return the counts.

    Raises:
        Violation: of the first kind that has one.
    """
    return sum(counts_of([_Part(seed, kind, share, act) for kind in kinds], processes), Counter())


def main(arguments: list[str] | None = None) -> int:
    parser = campaign_parser("recoveries", __doc__, share_of="all pairs of a kill and a cut")
    parser.add_argument("--kind", choices=KINDS, help="one kind of script only (default: all)")
    parser.add_argument("--act", help="kill in the middle of such acts of the script only, such as 'compact'")
    options = parser.parse_args(arguments)
    kinds = [options.kind] if options.kind else list(KINDS)
    return report(
        options.seed, lambda: run(options.seed, options.share, kinds, options.act, options.processes), done="cuts"
    )


if __name__ == "__main__":
    sys.exit(main())
