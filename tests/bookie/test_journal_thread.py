"""The journal's thread: order, marks, groups that the event loop commits itself, the end after an error (B1, S28)."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.journal.flush_policy import FlushLimits
from bookie_service.storage.journal.journal import Journal, JournalOptions, Record
from bookie_service.storage.journal.journal_thread import INLINE_BYTES_MAX, JournalEvents, JournalThread
from bookie_service.storage.journal.replay import replay_journal
from tests.bookie.faulty_files import FaultyFiles
from tests.polling import wait_until


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """An event loop stepped by hand: turns end, and time passes, when the test says so."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[_Timer] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Timer:
        self._timers.append(_Timer(callback))
        return self._timers[-1]

    def end_turn(self) -> None:
        while self._soon:
            self._soon.popleft()()

    def pass_time(self) -> None:
        """Let every timer that is set now ring."""
        timers, self._timers = self._timers, []
        for timer in timers:
            if timer.callback is not None:
                timer.callback()


class Running:
    """A journal thread over files that can fail, and what it reported."""

    def __init__(
        self,
        directory: Path,
        limits: FlushLimits,
        options: JournalOptions,
        inline: bool,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        **more: int,
    ) -> None:
        self.files = FaultyFiles()
        self.directory = str(directory)
        self.loop = Loop()
        self.durable = 0
        self.written = 0
        self.threads: set[str] = set()
        self.failures: list[BaseException] = []
        journal = Journal(self.files, self.directory, options, JournalPosition(0, 0))
        events = JournalEvents(
            self._on_durable,
            self._on_written,
            self.failures.append,
            lambda callback, *values: callback(*values),
        )
        self.journal = JournalThread(
            journal, limits, events, self.loop, "journal-0", commits_inline=inline, clock_ns=clock_ns, **more
        )
        self.files.operations.clear()

    def _on_durable(self, sequence: int) -> None:
        self.durable = max(self.durable, sequence)
        self.threads.add(threading.current_thread().name)

    def _on_written(self, sequence: int) -> None:
        self.written = max(self.written, sequence)
        self.threads.add(threading.current_thread().name)

    def submit(self, body: bytes, *, deferred: bool = False, is_patient: bool = False) -> int:
        record = Record.of(RecordKind.ENTRIES, 1, body)
        return self.journal.submit([record], deferred=deferred, is_patient=is_patient)

    def wait_for(self, sequence: int) -> None:
        wait_until(lambda: self.durable >= sequence, f"sequence {sequence}")

    def wait_for_force(self) -> None:
        sequence = self.journal.force()
        self.loop.end_turn()
        self.wait_for(sequence)

    @property
    def syncs(self) -> int:
        return self.files.operations.count(("sync_data", f"{self.directory}/0000000000000001.txn"))

    def bodies(self) -> list[bytes]:
        """Return the bodies of all records except padding."""
        found: list[bytes] = []

        def apply(kind: int, count: int, body: bytes) -> None:
            if kind != RecordKind.PADDING:
                found.append(body)

        replay_journal(self.files, self.directory, None, apply)
        return found


@contextmanager
def running(
    directory: Path,
    limits: FlushLimits | None = None,
    options: JournalOptions | None = None,
    *,
    inline: bool = True,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    **more: int,
) -> Iterator[Running]:
    options = options or JournalOptions(preallocate_bytes=4096)
    state = Running(directory, limits or FlushLimits(), options, inline, clock_ns, **more)
    state.journal.start()
    try:
        yield state
    finally:
        state.journal.stop()
        state.journal.join()


@pytest.mark.parametrize("inline", [True, False])
def test_records_become_durable_in_the_order_of_submission(tmp_path: Path, inline: bool) -> None:
    bodies = [bytes([i]) * (1 + 997 * i) for i in range(1, 60)]
    with running(tmp_path, inline=inline) as state:
        for number, body in enumerate(bodies):
            sequence = state.submit(body)
            if number % 3 == 0:
                state.loop.end_turn()
        state.loop.end_turn()
        state.wait_for(sequence)
        assert state.bodies() == bodies


def test_event_loop_commits_what_one_turn_brought_with_one_sync(tmp_path: Path) -> None:
    with running(tmp_path) as state:
        for i in range(5):
            sequence = state.submit(b"%d" % i)
        assert (state.durable, state.syncs) == (0, 0)
        state.loop.end_turn()
        assert (state.durable, state.syncs) == (sequence, 1)
        assert state.threads == {threading.current_thread().name}


def test_commit_is_durable_when_it_returns_and_refused_while_others_are_held(tmp_path: Path) -> None:
    with running(tmp_path) as state:
        first = state.journal.commit([Record.of(RecordKind.ENTRIES, 1, b"one")])
        assert (first, state.syncs) == (1, 1)
        state.submit(b"two")
        assert state.journal.commit([Record.of(RecordKind.ENTRIES, 1, b"three")]) == 0
        state.loop.end_turn()
        assert state.journal.commit([Record.of(RecordKind.ENTRIES, 1, b"three")]) == 3
        assert (state.durable, state.bodies()) == (2, [b"one", b"two", b"three"])


def test_failed_commit_is_reported_and_nothing_is_written_after_it(tmp_path: Path) -> None:
    with running(tmp_path) as state:
        state.files.fault = lambda what, path: what == "sync_data"
        with pytest.raises(OSError):
            state.journal.commit([Record.of(RecordKind.ENTRIES, 1, b"one")])
        state.files.fault = None
        with pytest.raises(OSError):
            state.journal.commit([Record.of(RecordKind.ENTRIES, 1, b"two")])
        assert (state.durable, state.bodies()) == (0, [b"one"])


def test_large_group_goes_to_the_thread_after_held_records(tmp_path: Path) -> None:
    with running(tmp_path) as state:
        state.submit(b"small")
        state.wait_for(state.submit(b"x" * INLINE_BYTES_MAX))
        state.loop.end_turn()
        assert state.threads == {"journal-0"}
        assert state.bodies() == [b"small", b"x" * INLINE_BYTES_MAX]


def test_patient_records_are_left_to_the_thread_after_held_ones(tmp_path: Path) -> None:
    """Adds of a recovery: its next read must not wait for their sync."""
    with running(tmp_path) as state:
        sequence = state.submit(b"patient", is_patient=True)
        state.journal.take_mark()
        state.wait_for(sequence)
        assert state.threads == {"journal-0"}
        assert state.bodies() == [b"patient"]


def test_slow_disk_is_left_to_the_thread(tmp_path: Path) -> None:
    with running(tmp_path, inline_sync_ns_max=-1) as state:
        sequence = state.submit(b"x")
        state.loop.end_turn()
        state.wait_for(sequence)
        assert state.threads == {"journal-0"}


def test_several_journals_sync_on_threads_of_their_own(tmp_path: Path) -> None:
    with running(tmp_path, inline=False) as state:
        state.wait_for(state.submit(b"x"))
        assert state.threads == {"journal-0"}


def test_mark_is_after_everything_submitted_before_it_in_the_same_turn_too(tmp_path: Path) -> None:
    with running(tmp_path) as state:
        state.submit(b"before")
        mark = state.journal.take_mark().result(10)
        sequence = state.submit(b"behind")
        state.loop.end_turn()
        state.wait_for(sequence)
        bodies: list[bytes] = []
        replay_journal(state.files, state.directory, mark, lambda kind, count, body: bodies.append(body))
        assert [body for body in bodies if body.strip(b"\0")] == [b"behind"]


def test_group_waits_for_others_when_configured(tmp_path: Path) -> None:
    """journalFlushWhenQueueEmpty=false, journalMaxGroupWaitMSec, journalBufferedEntriesThreshold."""
    limits = FlushLimits(age_ns_max=60_000_000_000, entries_max=3, flush_when_idle=False)
    with running(tmp_path, limits) as state:
        for _ in range(3):
            sequence = state.submit(b"x")
            state.loop.end_turn()
        state.wait_for(sequence)
        assert state.syncs == 1


@pytest.mark.parametrize("age_ns_max", [0, 1, 10_000, 1_000_000])
def test_group_that_waits_for_others_waits_no_longer_however_late_its_thread_gets_a_processor(
    tmp_path: Path, age_ns_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SimpleQueue.get` of CPython 3.11 waits without a limit if its time is over before it begins to wait.

    It does so only if nothing was asked of the queue since it was empty: each wait follows a call that does not wait.
    """
    calls: list[float | None] = []

    class Queue(queue.SimpleQueue[object]):
        def get(self, block: bool = True, timeout: float | None = None) -> object:
            calls.append(timeout)
            return super().get(block, timeout)

        def get_nowait(self) -> object:
            calls.append(0.0)
            return super().get_nowait()

    monkeypatch.setattr(queue, "SimpleQueue", Queue)
    limits = FlushLimits(age_ns_max=age_ns_max, flush_when_idle=False)
    with running(tmp_path, limits, clock_ns=lambda: 0) as state:
        state.wait_for(state.submit(b"x"))
        state.wait_for_force()
    assert all(before == 0.0 for before, timeout in itertools.pairwise(calls) if timeout)


def test_quiet_journal_is_settled_once_and_a_busy_one_is_not(tmp_path: Path) -> None:
    with running(tmp_path) as state:
        state.submit(b"one")
        state.loop.end_turn()
        state.submit(b"two")
        state.loop.end_turn()
        state.loop.pass_time()
        state.journal.take_mark().result(10)
        assert state.syncs == 2, "something came after the timer was set"
        state.loop.pass_time()
        state.journal.take_mark().result(10)
        assert state.syncs == 3
        state.loop.pass_time()
        state.journal.take_mark().result(10)
        assert state.syncs == 3


def test_journal_that_does_not_sync_its_groups_is_synced_in_a_while_and_for_marks(tmp_path: Path) -> None:
    """journalSyncData=false, journalPageCacheFlushIntervalMSec; a mark is set only where the journal is durable."""
    options = JournalOptions(preallocate_bytes=4096, sync_groups=False)
    with running(tmp_path, options=options) as state:
        sequence = state.submit(b"one")
        state.loop.end_turn()
        assert (state.durable, state.syncs) == (sequence, 0)
        state.journal.take_mark().result(10)
        assert state.syncs == 1
        state.submit(b"two")
        state.loop.end_turn()
        assert state.syncs == 1
        state.loop.pass_time()
        state.journal.take_mark().result(10)
        assert state.syncs > 1


@pytest.mark.parametrize("operation", ["write", "sync_data"])
@pytest.mark.parametrize("inline", [True, False])
def test_nothing_is_tried_again_or_reported_after_an_error(tmp_path: Path, operation: str, inline: bool) -> None:
    with running(tmp_path, inline=inline) as state:
        kept = state.submit(b"kept")
        state.loop.end_turn()
        state.wait_for(kept)
        state.files.fault = lambda what, path: what == operation
        state.submit(b"lost")
        state.loop.end_turn()
        wait_until(lambda: bool(state.failures), "the error")
        state.files.fault = None
        state.files.operations.clear()
        for _ in range(3):
            state.submit(b"never written")
            state.loop.end_turn()
        state.submit(b"x" * INLINE_BYTES_MAX)
        state.loop.pass_time()
    assert state.durable == kept
    assert state.files.operations == []
    assert all(isinstance(error, OSError) for error in state.failures)
    assert b"never written" not in state.bodies()


@pytest.mark.parametrize("inline", [True, False])
def test_deferred_records_are_reported_written_without_a_sync_and_durable_after_the_next_one(
    tmp_path: Path, inline: bool
) -> None:
    with running(tmp_path, inline=inline) as state:
        deferred = state.submit(b"deferred", deferred=True)
        state.loop.end_turn()
        wait_until(lambda: state.written >= deferred, "the deferred record")
        assert (state.durable, state.syncs) == (0, 0)
        synced = state.submit(b"synced")
        state.loop.end_turn()
        state.wait_for(synced)
        assert state.syncs == 1
        assert state.bodies() == [b"deferred", b"synced"]


@pytest.mark.parametrize("inline", [True, False])
def test_force_makes_all_deferred_records_durable(tmp_path: Path, inline: bool) -> None:
    with running(tmp_path, inline=inline) as state:
        state.submit(b"first", deferred=True)
        state.loop.end_turn()
        state.submit(b"second", deferred=True)
        state.wait_for_force()
        assert (state.syncs, state.bodies()) == (1, [b"first", b"second"])


def test_force_waits_for_no_record_beside_it(tmp_path: Path) -> None:
    """Groups are what arrived during the sync before, however long journalMaxGroupWaitMSec is."""
    with running(tmp_path, FlushLimits(age_ns_max=3600 * 10**9), inline=False) as state:
        first = state.submit(b"deferred", deferred=True)
        wait_until(lambda: state.written >= first, "the record to be written")
        state.wait_for_force()
        assert (state.syncs, state.bodies()) == (1, [b"deferred"])


def test_force_syncs_even_where_groups_are_not_synced(tmp_path: Path) -> None:
    options = JournalOptions(preallocate_bytes=4096, sync_groups=False)
    with running(tmp_path, options=options) as state:
        state.submit(b"record")
        state.wait_for_force()
        assert state.syncs == 1


def test_deferred_records_become_durable_in_a_while_though_more_keep_coming(tmp_path: Path) -> None:
    with running(tmp_path) as state:
        first = state.submit(b"first", deferred=True)
        state.loop.end_turn()
        state.submit(b"second", deferred=True)
        state.loop.pass_time()
        state.loop.end_turn()
        state.wait_for(first)


def test_quiet_journal_reports_deferred_records_durable(tmp_path: Path) -> None:
    with running(tmp_path) as state:
        only = state.submit(b"only", deferred=True)
        state.loop.end_turn()
        assert state.durable == 0
        state.loop.pass_time()
        state.wait_for(only)


def test_deferred_record_in_a_group_with_others_is_synced_with_them(tmp_path: Path) -> None:
    with running(tmp_path) as state:
        state.submit(b"deferred", deferred=True)
        sequence = state.submit(b"synced")
        state.loop.end_turn()
        assert (state.durable, state.written, state.syncs) == (sequence, 0, 1)
