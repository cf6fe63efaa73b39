"""Seeded workloads: adds in and out of order, again, in recovery, refused; fences, LACs, checkpoints, stops, kills."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import ClassVar

import numpy as np

from bkspark.wire import v2
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.journal.flush_policy import FlushLimits
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.journal.journal_thread import INLINE_SYNC_NS_MAX
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.read_ahead import ReadAheadOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.crash.audit import Violation, audit
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.simulated_files import Fault
from tests.crash.twins import SILENT, BookieTwin, Setup, add_frame, sealed

WRONG_KEY = b"a key of another one"
_SIZES = (0, 1, 30, 100, 500)
_AUDIT_SHARE = 0.05
"""Part of the operation boundaries at which the living bookie is read, too."""
_ONE_STORE_SHARE = 0.5
"""Part of the bookies with DbLedgerStorage and several directories that an earlier build made, with one store."""
_DEPTH_MAX = 2
"""So many threads may be in the middle of something while another goes on."""
_FULL_BUFFER_BYTES = 600
"""A flush puts more into a key-value store than its memory takes. No random number decides that: it would change the
scripts of all seeds."""
_ENTRY_COST_BYTES = 1000
"""More than what an entry takes in a write cache beside its payload, a new ledger included."""


def random_setup(
    random: Random, storage_class: StorageClass | None = None, *, log_per_ledger: bool | None = None
) -> Setup:
    """Return a configuration; extreme values are likely. What is None has its share of all values.

    Files of a few records each go with a small write cache: in a large one they would be so many that each start takes
    long, and shows nothing that a small one does not.
    """
    half_bytes = random.choice((4096, 6144, 16384))
    return Setup(
        journals=random.choice((1, 1, 2)),
        ledger_directories=random.choice((1, 2, 3)),
        store=StoreOptions(
            storage_class=storage_class or random.choice(list(StorageClass)),
            read_ahead=random.choice((ReadAheadOptions(), ReadAheadOptions(2000, 3, 1000))),
            cache_half_bytes=half_bytes,
            append=AppendOptions(
                random.choice((half_bytes // 3, half_bytes // 2, half_bytes, 1 << 20)),
                log_per_ledger=random.random() < 0.3 if log_per_ledger is None else log_per_ledger,
                active_logs_max=random.choice((1, 2, 100)),
                idle_s=random.choice((0, 1e8)),
                reserves=random.random() < 0.5,
            ),
            open_files_max=random.choice((2, 4, 100)),
            key_values=KeyValueOptions(write_buffer_bytes=_FULL_BUFFER_BYTES)
            if half_bytes == 6144
            else KeyValueOptions(),
            pages=PageOptions(
                page_bytes=random.choice((16, 64, 8192)),
                pages_max=random.choice((1, 100)),
                files_synced_singly_max=random.choice((0, 2, 128)),
            ),
        ),
        journal=JournalOptions(
            file_bytes_max=random.choice((half_bytes // 6, half_bytes // 3, half_bytes, 1 << 20)),
            preallocate_bytes=random.choice((0, 1024, 4096)),
            backups_max=random.choice((0, 0, 2)),
            reuse_files=random.random() < 0.3,
            alignment_bytes=random.choice((1, 512)),
        ),
        flush=FlushLimits(
            bytes_max=random.choice((1, 800, 1 << 19)),
            entries_max=random.choice((0, 0, 2)),
            # No time passes while a group is gathered; 0 ends it after the first submission.
            age_ns_max=random.choice((0, 1)),
        ),
        operation_ns=random.choice((0, 0, INLINE_SYNC_NS_MAX)),
    )


class Script:
    """Drives one bookie through random steps, restarts included. All randomness comes from one seed."""

    weights: ClassVar[dict[str, int]] = {
        "add": 30,
        "alone": 8,
        "resend": 5,
        "journal": 16,
        "quiet": 4,
        "checkpoint": 8,
        "fence": 5,
        "lac": 5,
        "again": 6,
        "wrong key": 2,
        "compact": 3,
        "collect": 4,
        "drop unmarked": 1,
        "revive": 1,
        "stop": 2,
        "kill": 2,
        "power cut": 2,
    }
    """How likely each kind of step is."""
    eagerness = (0.3, 0.7)
    """How likely the event loop's turn ends with a step, else it goes on in the next: one of these for a script."""
    concurrency = (0.0, 0.1, 0.3)
    """How likely another thread goes on between two operations of one: one of these for a script."""
    lateness = (0.0, 0.2, 0.5)
    """How likely a disk of several is late with what it does in a flush: one of these for a script."""
    ledger_ids: tuple[int, ...] = (1, 2, 0x1_0203)
    """Those at the beginning."""

    def __init__(
        self,
        seed: int,
        steps: int,
        hook: Callable[[Script], None],
        storage_class: StorageClass | None = None,
        *,
        log_per_ledger: bool | None = None,
    ) -> None:
        """`hook(script)` is called at every operation boundary, while `script.disk` is as a crash would find it."""
        self._seed = seed
        self.random = Random(seed)
        self.setup = self._configuration(storage_class, log_per_ledger)
        self.history = History()
        self.disk = self.setup.new_disk()
        self._operations_before = -self.disk.operations
        self._hook = hook
        self._steps = steps
        self._ledgers = list(self.ledger_ids)
        self._known_to_lagging = list(self._ledgers)
        """What a server of the metadata store knows that lags behind: nothing of ledgers since the last collection."""
        self._next_entry: dict[int, int] = {}
        self._concurrency = self.random.choice(self.concurrency)
        self._eagerness = self.random.choice(self.eagerness)
        # From numbers of its own, so that it changes nothing else in the script of a seed.
        self._lateness = Random(f"lateness {seed}").choice(self.lateness)
        self._depth = 0
        self._last_adds: tuple[int, list[tuple[int, bytes]], int] | None = None
        self.twin: BookieTwin | None = None
        self.fault: Fault | None = None
        """Fails calls of every disk that the script uses."""

    def _configuration(self, storage_class: StorageClass | None, log_per_ledger: bool | None) -> Setup:
        setup = random_setup(self.random, storage_class, log_per_ledger=log_per_ledger)
        is_divisible = setup.store.storage_class is StorageClass.DB and setup.ledger_directories > 1
        # From numbers of its own, so that it changes nothing else in the script of a seed.
        has_one_store = is_divisible and Random(f"one store {self._seed}").random() < _ONE_STORE_SHARE
        return replace(setup, has_one_store=has_one_store)

    @property
    def operations(self) -> int:
        """How often the script has changed its disks: there is a boundary before each of these, and one at the end."""
        return self._operations_before + self.disk.operations

    def run(self) -> None:
        """Run to the end; a Violation of the hook ends it."""
        self._open()
        for _ in range(self._steps):
            self._step()
        assert self.twin is not None
        self.twin.settle()
        self._hook(self)

    def _open(self) -> None:
        self.twin = None
        self.disk.lateness = self._lateness
        self.disk.before_operation = self._before_operation
        self.disk.fault = self.fault
        self.twin = BookieTwin(self.disk, self.setup, self.history)

    def _before_operation(self, operation: str, path: str) -> None:
        self._hook(self)
        if self.twin is not None and self.fault is None and self.random.random() < _AUDIT_SHARE:
            audit(self.twin, self.history)
        if self.twin is not None and self._depth < _DEPTH_MAX and self.random.random() < self._concurrency:
            self._depth += 1
            self._meanwhile(self.twin)
            self._depth -= 1

    def _meanwhile(self, twin: BookieTwin) -> None:
        """Between two operations of one thread the others go on: the event loop, a journal's, or the checkpoints'."""
        others: list[Callable[[], object]] = [each.run_group for each in twin.journals if each.can_run]
        if twin.checkpoints.can_run and self.random.random() < 0.5:
            others = [twin.checkpoints.run]
        elif twin.loop.can_serve:
            others += [self._add_some, self._add_some, twin.loop.turn, self._serve]
        if not others:
            return
        try:
            self.random.choice(others)()
        except OSError as error:
            # The loop knows of it and ends the process; the thread in the middle of which this is goes on meanwhile.
            twin.loop.failure = twin.loop.failure or error

    def _serve(self) -> None:
        """Take a request beside adds."""
        assert self.twin is not None
        if self.twin.store.active.room < _ENTRY_COST_BYTES:
            # The real connection would wait for the checkpoint that runs now.
            return
        if self.random.random() < 0.5:
            self.twin.fence(self._ledger())
        else:
            self._write_lac()

    def _step(self) -> None:
        self._do(self.random.choices(list(self.weights), list(self.weights.values()))[0])
        assert self.twin is not None
        if self.random.random() < self._eagerness:
            self.twin.loop.turn()
        if self.fault is None and all(journal.is_idle for journal in self.twin.journals):
            self._check_answered()

    def _check_answered(self) -> None:
        """Raise a Violation when an add waits although the journals have nothing to do."""
        for ledger_id, ledger in self.history.ledgers.items():
            waiting = [entry_id for entry_id, entry in ledger.entries.items() if entry.waiting]
            if waiting:
                raise Violation(f"ledger {ledger_id}: adds of entries {waiting} are never answered")

    def _do(self, kind: str) -> None:
        assert self.twin is not None
        if kind == "add":
            self._add_some()
        elif kind == "journal":
            self._journal_step()
        elif kind == "quiet":
            self.random.choice(self.twin.journals).settle()
        elif kind == "checkpoint":
            self.twin.bookie.checkpoint(advances_checkpoint=self.random.random() < 0.5)
            if not self.twin.checkpoints.is_idle and self.random.random() < 0.7:
                self.twin.checkpoints.step()
        elif kind == "fence":
            ledger_id = self._ledger()
            for _ in range(self.random.choice((1, 2))):  # two recoveries at once
                self.twin.fence(ledger_id)
        elif kind == "lac":
            self._write_lac()
        elif kind == "alone":
            self._add_single()
        elif kind == "resend":
            self._resend()
        elif kind == "again":
            self._add_again()
        elif kind == "wrong key":
            self._use_wrong_key()
        elif kind == "compact":
            self._compact()
        elif kind == "collect":
            self._collect()
        elif kind == "drop unmarked":
            self._drop_unmarked()
        elif kind == "revive":
            self._revive()
        else:
            self._restart(kind)

    def _restart(self, kind: str) -> None:
        assert self.twin is not None
        if kind == "stop":
            self._depth = _DEPTH_MAX
            self.twin.stop()
            self._depth = 0
        elif kind == "kill":
            self.disk.before_operation = None
        else:
            self._operations_before += self.disk.operations
            self.disk = crash_image(self.disk, self.random.choice(list(Loss)), self.random)
        self.history = self.history.after_crash()
        self._last_adds = None
        self._open()

    def _ledger(self) -> int:
        return self.random.choice(self._ledgers)

    def _payload(self) -> bytes:
        return self.random.randbytes(self.random.choice(_SIZES))

    def _add_some(self) -> None:
        self._add_to(self._ledger())

    def _add_to(self, ledger_id: int) -> None:
        assert self.twin is not None
        first = self._next_entry.get(ledger_id, 0)
        count = self.random.randint(1, 4)
        step = self.random.choice((1, 1, 1, 1, 1, 1, 1, 2))
        ids = range(first, first + count * step, step)
        self._next_entry[ledger_id] = ids[-1] + 1
        flags = v2.RECOVERY_ADD if self.history.ledger(ledger_id).fence_asked and self.random.random() < 0.5 else 0
        if self._depth and self.twin.store.active.room < count * (max(_SIZES) + _ENTRY_COST_BYTES):
            # The real connection would wait for the checkpoint that runs now.
            return
        self._send(ledger_id, [(entry_id, self._payload()) for entry_id in ids], flags)

    def _send(self, ledger_id: int, entries: list[tuple[int, bytes]], flags: int) -> None:
        assert self.twin is not None
        self._last_adds = ledger_id, entries, flags
        self.twin.add(ledger_id, entries, flags)

    def _resend(self) -> None:
        """Send the last adds again, byte for byte, as a writer does whose connection broke (N4)."""
        assert self.twin is not None
        if self._last_adds is None or self.random.random() < 0.3:
            self._add_some()
        assert self._last_adds is not None
        ledger_id, entries, flags = self._last_adds
        if ledger_id in self.history.ledgers:
            for _ in range(self.random.choice((1, 2))):
                self.twin.add(ledger_id, entries[self.random.randrange(len(entries)) :], flags)

    def _add_single(self) -> None:
        """Add with one add in flight: each comes alone, and the turn ends after it."""
        assert self.twin is not None
        ledger_id = self._ledger()
        for _ in range(self.random.randint(2, 4)):
            entry_id = self._next_entry.get(ledger_id, 0)
            self._next_entry[ledger_id] = entry_id + 1
            self._send(ledger_id, [(entry_id, self._payload())], 0)
            self.twin.loop.turn()

    def _write_lac(self) -> None:
        assert self.twin is not None
        ledger_id = self._ledger()
        for _ in range(self.random.choice((1, 2))):  # the second may be lower: it came late
            self.twin.write_lac(ledger_id, self.random.randrange(1 + self._next_entry.get(ledger_id, 0)))

    def _add_again(self) -> None:
        """Write entries a second time, in any order, as recoveries do."""
        assert self.twin is not None
        ledger_id = self._ledger()
        ids = list(range(self._next_entry.get(ledger_id, 0)))
        self.random.shuffle(ids)
        if ids:
            self.twin.add(ledger_id, [(entry_id, self._payload()) for entry_id in ids[:3]], v2.RECOVERY_ADD)

    def _use_wrong_key(self) -> None:
        assert self.twin is not None
        ledger_id = self._ledger()
        known = self.twin.store.ledger(ledger_id)
        if known is None:
            return
        fenced = known.fenced
        first = self._next_entry.get(ledger_id, 0)
        self.twin.add(ledger_id, [(first, self._payload())], key=WRONG_KEY)
        if not self.history.ledger(ledger_id).entries[first].refused:
            raise Violation(f"ledger {ledger_id} entry {first}: an add with a wrong master key was taken")
        lac = known.explicit_lac
        self.twin.write_lac(ledger_id, 1 << 30, key=WRONG_KEY)
        if known.explicit_lac != lac:
            raise Violation(f"ledger {ledger_id}: an explicit LAC with a wrong master key was taken")
        self.twin.fence(ledger_id, key=WRONG_KEY)
        if known.fenced != fenced:
            raise Violation(f"ledger {ledger_id}: a fence with a wrong master key was taken")

    def _compact(self) -> None:
        """Rewrite one of all entry logs that are rotated; mostly the newest is made so before."""
        assert self.twin is not None
        if self.random.random() < 0.7:
            self.twin.store.seal_logs()
        settled = self.twin.store.logs.rotated()
        if settled:
            self.twin.compact(self.random.choice(settled))

    def _collect(self) -> None:
        """Delete a ledger, mostly, and collect garbage; what the metadata store tells may be too little, or nothing.

        A deleted ledger's id never returns.
        """
        assert self.twin is not None
        lagging = self._known_to_lagging
        self._known_to_lagging = list(self._ledgers)
        if self.random.random() < 0.8:
            self._delete(self._ledger())
        metadata_view = DoubtfulMetadataView(self._ledgers, self.random, lagging=lagging)
        self.twin.collect(metadata_view, is_forced=self.random.random() < 0.7)

    def _delete(self, ledger_id: int) -> None:
        """Delete a ledger in the metadata store; another takes its place."""
        self._ledgers[self._ledgers.index(ledger_id)] = ledger_id + 0x10
        self.history.delete(ledger_id)

    def _drop_unmarked(self) -> None:
        """Collect garbage when the entries of a deleted ledger are in entry logs, and in the journal after the mark.

        What the journal had of the ledger before, its key for one, is gone.
        """
        assert self.twin is not None
        ledger_id = self._ledger()
        self._add_to(ledger_id)
        self.twin.checkpoint()
        self._add_to(ledger_id)
        self.twin.settle()
        self.twin.bookie.checkpoint(advances_checkpoint=False)
        self.twin.settle()
        self._delete(ledger_id)
        self.twin.collect(DoubtfulMetadataView(self._ledgers), is_forced=False)

    def _revive(self) -> None:
        """Ask for something in a deleted ledger, as who has not heard of that: its writer, or a repair."""
        assert self.twin is not None
        if not self.history.deleted:
            return
        ledger_id = self.random.choice(sorted(self.history.deleted))
        key = self.history.deleted[ledger_id].master_key
        kind = self.random.randrange(3)
        if kind == 0:
            content = sealed(struct.pack(">qqq", ledger_id, self.random.randrange(3), -1) + self._payload())
            flags = self.random.choice((v2.RECOVERY_ADD, v2.RECOVERY_ADD, 0))
            self.twin.serve(SILENT, add_frame(key, content, flags))
        elif kind == 1:
            self.twin.serve_lac(SILENT, ledger_id, self.random.randrange(3), key)
        else:
            self.twin.serve(SILENT, v2.encode_reads(ledger_id, np.array([0]), v2.DO_FENCING, key))

    def _journal_step(self) -> None:
        """Have a journal's thread write a group, the checkpoints' do its own, or the event loop end its turn."""
        assert self.twin is not None
        journal = self.random.choice(self.twin.journals)
        if journal.can_run:
            journal.run_group()
        elif self.twin.checkpoints.can_run:
            self.twin.checkpoints.run()
        else:
            self.twin.loop.turn()


class CollectingScript(Script):
    """One that collects garbage at every third step or so."""

    weights: ClassVar[dict[str, int]] = {
        **dict.fromkeys(Script.weights, 0),
        "add": 24,
        "checkpoint": 8,
        "fence": 8,
        "again": 4,
        "compact": 4,
        "collect": 12,
        "drop unmarked": 4,
        "revive": 4,
        "power cut": 1,
    }


class CommittingScript(Script):
    """One in which the event loop and the journal's thread take turns to commit."""

    weights: ClassVar[dict[str, int]] = {
        **dict.fromkeys(Script.weights, 0),
        "add": 20,
        "alone": 20,
        "journal": 20,
        "checkpoint": 8,
        "commit behind group": 20,
        "quiet": 4,
    }
    eagerness = (0.1, 0.5)

    def _do(self, kind: str) -> None:
        if kind == "commit behind group":
            self._commit_behind_group()
        else:
            super()._do(kind)

    def _commit_behind_group(self) -> None:
        """Have the journal's thread write a group, and the event loop commit an add before it hears of that."""
        assert self.twin is not None
        self._add_some()
        self.twin.bookie.checkpoint(advances_checkpoint=self.random.random() < 0.5)
        (journal,) = self.twin.journals
        while journal.can_run:
            journal.run_group()
        self._add_single()

    def _configuration(self, storage_class: StorageClass | None, log_per_ledger: bool | None) -> Setup:
        found = super()._configuration(storage_class, log_per_ledger)
        return replace(found, journals=1, operation_ns=0, serial_writer_after=0)


class DirectoriesScript(Script):
    """One with several ledger directories, which are often late."""

    lateness = (0.2, 0.5, 0.8)

    def _configuration(self, storage_class: StorageClass | None, log_per_ledger: bool | None) -> Setup:
        found = super()._configuration(storage_class, log_per_ledger)
        return replace(found, ledger_directories=self.random.choice((2, 3)))


class FencingScript(Script):
    """One of more ledgers that have fences and explicit LACs, mostly without entries."""

    weights: ClassVar[dict[str, int]] = {
        **dict.fromkeys(Script.weights, 0),
        "add": 4,
        "again": 2,
        "fence": 14,
        "lac": 8,
        "checkpoint": 14,
        "collect": 4,
        "drop unmarked": 1,
        "revive": 2,
        "stop": 2,
        "kill": 2,
        "power cut": 2,
    }
    ledger_ids = (1, 2, 3, 4, 5, 0x1_0203)


def write_more(twin: BookieTwin, random: Random) -> None:
    """Use a restarted bookie a little: adds, a fence, a checkpoint, a group that is not synced."""
    ledger_id = random.choice([*twin.history.ledgers, 0x77])
    first = 1 + max(twin.history.ledger(ledger_id).entries, default=-1)
    twin.add(ledger_id, [(first, random.randbytes(20)), (first + 1, random.randbytes(300))], v2.RECOVERY_ADD)
    twin.settle()
    if random.random() < 0.5:
        twin.fence(ledger_id)
        twin.settle()
    if random.random() < 0.5:
        twin.write_lac(ledger_id, first)
        twin.settle()
    if random.random() < 0.5:
        twin.checkpoint()
    twin.add(ledger_id, [(first + 2, random.randbytes(20))], v2.RECOVERY_ADD)
    twin.settle()
