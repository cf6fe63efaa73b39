"""Groups of the journal that its thread and the event loop commit, step by step on a simulated disk and clock."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.journal.flush_policy import FlushLimits, FlushReason, flush_reason
from bookie_service.storage.journal.journal import Journal, JournalOptions, Record
from bookie_service.storage.journal.journal_thread import (
    INLINE_BYTES_MAX,
    INLINE_SYNC_NS_MAX,
    INLINE_SYNCS,
    SLOW_SYNC_NS,
    JournalEvents,
    JournalThread,
)
from bookie_service.storage.journal.replay import replay_journal
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.stepped import Loop

HOUR_NS = 3600 * 10**9


class Bench:
    """A journal whose thread never runs by itself, on a disk whose syncs take as long as a test says."""

    def __init__(self, limits: FlushLimits | None = None, options: JournalOptions | None = None) -> None:
        self.disk = SimulatedDisk()
        self.files = SimulatedFiles(self.disk)
        self.files.make_directory("/journal")
        self.now_ns = 0
        self.sync_ns = 0
        self.syncs = 0
        self.loop = Loop()
        self.reports: list[tuple[str, int]] = []
        self.failures: list[BaseException] = []
        options = options or JournalOptions(preallocate_bytes=4096, alignment_bytes=512)
        self.journal = Journal(self.files, "/journal", options, JournalPosition(0, 0))
        events = JournalEvents(
            lambda sequence: self.reports.append(("durable", sequence)),
            lambda sequence: self.reports.append(("written", sequence)),
            self.failures.append,
            self.loop.post,
        )
        self.thread = JournalThread(
            self.journal, limits or FlushLimits(), events, self.loop, "journal-0", clock_ns=lambda: self.now_ns
        )
        self.disk.before_operation = self._note

    def _note(self, operation: str, path: str) -> None:
        if operation == "sync_data":
            self.syncs += 1
            self.now_ns += self.sync_ns

    def submit(self, size: int = 10, *, deferred: bool = False, is_patient: bool = False) -> int:
        return self.thread.submit([record(size)], deferred=deferred, is_patient=is_patient)

    def turn(self) -> list[tuple[str, int]]:
        """End the turn of the event loop; return what was reported."""
        self.loop.turn()
        found, self.reports = self.reports, []
        return found

    def group(self) -> list[tuple[str, int]]:
        """Let the thread do a group; return what the event loop hears of it."""
        assert not self.thread.is_idle
        assert self.thread.run_group()
        return self.turn()

    def bodies(self) -> int:
        """Return how many entries a start would find."""
        found: list[int] = []
        replay_journal(
            self.files,
            "/journal",
            None,
            lambda kind, count, body: found.append(count) if kind == RecordKind.ENTRIES else None,
        )
        return len(found)


def record(size: int = 10, count: int = 1) -> Record:
    return Record.of(RecordKind.ENTRIES, count, bytes(size))


def test_event_loop_commits_until_each_of_the_last_syncs_was_slow_and_again_after_a_fast_one() -> None:
    bench = Bench()
    bench.sync_ns = INLINE_SYNC_NS_MAX + 1
    for number in range(1, INLINE_SYNCS + 1):
        bench.submit()
        assert bench.turn() == [("durable", number)]
    bench.submit()
    assert bench.turn() == []
    bench.sync_ns = INLINE_SYNC_NS_MAX
    assert bench.group() == [("durable", INLINE_SYNCS + 1)]
    for number in range(INLINE_SYNCS + 2, 2 * INLINE_SYNCS):
        bench.submit()
        assert bench.turn() == [("durable", number)], "such a sync is just fast enough"


def test_quiet_after_many_commits_of_the_event_loop_brings_one_marker() -> None:
    bench = Bench()
    assert [bench.thread.commit([record()]) for _ in range(3)] == [1, 2, 3]
    for waiting in (0, 1):
        bench.loop.pass_time()
        assert bench.thread.waiting == waiting


@pytest.mark.parametrize("sizes", [(INLINE_BYTES_MAX,), (INLINE_BYTES_MAX - 1, 1)])
def test_event_loop_commits_bytes_up_to_its_limit_and_leaves_one_more_to_the_thread(sizes: tuple[int, ...]) -> None:
    bench = Bench()
    for size in sizes:
        bench.submit(size)
    assert bench.turn() == [("durable", len(sizes))]
    for size in (*sizes, 1):
        bench.submit(size)
    assert bench.turn() == []
    assert bench.thread.waiting == len(sizes) + 1
    assert bench.group() == [("durable", 2 * len(sizes) + 1)]
    bench.submit(INLINE_BYTES_MAX)
    assert bench.turn() == [("durable", 2 * len(sizes) + 2)], "what the thread got does not count any more"


def test_bytes_of_earlier_turns_do_not_count_towards_the_limit_of_one() -> None:
    bench = Bench()
    for number in range(1, 40):
        bench.submit(INLINE_BYTES_MAX // 8)
        assert bench.turn() == [("durable", number)]
    assert bench.thread.waiting == 0


def test_nothing_is_committed_beside_a_thread_that_is_busy() -> None:
    bench = Bench()
    bench.submit(INLINE_BYTES_MAX + 1)
    assert bench.thread.commit([record()]) == 0
    bench.submit()
    assert bench.turn() == []
    assert (bench.group(), bench.bodies()) == ([("durable", 2)], 2)
    assert bench.thread.commit([record()]) == 3
    assert bench.turn() == []


def test_sync_of_more_than_a_second_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.sync_ns = SLOW_SYNC_NS
    bench.submit()
    bench.turn()
    assert caplog.text == ""
    bench.sync_ns = SLOW_SYNC_NS + 500_000_000
    bench.submit()
    bench.turn()
    assert "/journal: a sync took 1.5 s" in caplog.text


def test_times_of_a_group_have_its_entries_and_bytes_on_thread_and_event_loop() -> None:
    bench = Bench()
    bench.sync_ns = 7
    bench.thread.submit([record(10, 3), Record.of(RecordKind.FENCE, 5, bytes(8)), record(20, 4)])
    bench.submit(1)
    bench.turn()
    bench.thread.commit([record(30, 2)])
    bench.submit(INLINE_BYTES_MAX + 1)
    bench.group()
    bench.submit(deferred=True)
    bench.turn()
    assert list(bench.thread.group_times) == [
        (2, 0, 0, 7, 8, 39),
        (3, 7, 7, 14, 2, 30),
        (4, 14, 14, 21, 1, INLINE_BYTES_MAX + 1),
        (5, 21, 21, 0, 1, 10),
    ]


def test_deferred_records_are_written_and_synced_by_the_next_of_any_kind() -> None:
    bench = Bench()
    bench.submit(deferred=True)
    assert (bench.turn(), bench.syncs) == ([("written", 1)], 0)
    bench.submit(deferred=True)
    bench.submit()
    assert (bench.turn(), bench.syncs) == ([("durable", 3)], 1)
    bench.submit(deferred=True)
    bench.thread.force()
    assert (bench.turn(), bench.syncs) == ([("durable", 5)], 2)
    bench.thread.force()
    assert (bench.turn(), bench.syncs) == ([("durable", 6)], 2), "nothing is left to be synced"
    bench.submit(deferred=True)
    mark = bench.thread.take_mark()
    assert not mark.done()
    assert (bench.group(), bench.syncs) == ([("durable", 7)], 3)
    assert mark.result() == bench.journal.end


def test_quiet_journal_writes_one_marker_and_a_busy_one_none() -> None:
    bench = Bench()
    bench.submit()
    bench.turn()
    bench.submit()
    bench.turn()
    bench.loop.pass_time()
    assert bench.thread.is_idle, "a record came meanwhile, and is durable"
    bench.loop.pass_time()
    end = bench.journal.end
    assert bench.group() == [("durable", 2)]
    assert bench.journal.end > end
    assert not bench.loop.has_timers
    bench.submit()
    assert bench.loop.has_timers


def test_records_that_were_committed_at_once_get_a_marker_when_the_journal_is_quiet() -> None:
    """Without it, damage to the last record would look like a write that a crash interrupted."""
    bench = Bench()
    assert bench.thread.commit([record()]) == 1
    end = bench.journal.end
    bench.loop.pass_time()
    assert bench.group() == [("durable", 1)]
    assert bench.journal.end > end


def test_deferred_records_are_synced_in_a_while_though_others_keep_coming() -> None:
    bench = Bench()
    bench.submit(deferred=True)
    bench.turn()
    bench.submit(deferred=True)
    bench.turn()
    bench.loop.pass_time()
    end = bench.journal.end
    assert (bench.group(), bench.syncs) == ([("durable", 2)], 1)
    assert bench.journal.end == end, "that is no marker"
    bench.submit()
    bench.turn()
    bench.loop.pass_time()
    assert bench.thread.is_idle, "everything deferred is durable already"


@pytest.mark.parametrize("inline", [True, False])
def test_group_is_synced_for_any_record_in_it_that_is_not_deferred(inline: bool) -> None:
    """Also if it comes first: it must not be acknowledged from the page cache."""
    for deferred in ((False, True), (True, False), (True, False, True)):
        bench = Bench()
        if not inline:
            bench.thread._syncs_ns.extend([INLINE_SYNC_NS_MAX + 1] * INLINE_SYNCS)
        for each in deferred:
            bench.submit(deferred=each)
        assert (bench.turn() if inline else bench.group(), bench.syncs) == ([("durable", len(deferred))], 1)


def test_force_holds_though_a_deferred_record_follows_it_in_its_group() -> None:
    bench = Bench()
    bench.sync_ns = 5
    bench.submit(deferred=True)
    bench.thread.force()
    bench.submit(deferred=True)
    assert (bench.turn(), bench.syncs) == ([("durable", 3)], 1)
    _, _, _, synced_ns, *_ = bench.thread.group_times[-1]
    assert synced_ns == 0, "it is the force that was synced, and not the group of deferred records"


def test_marker_makes_everything_deferred_durable_so_that_no_force_follows() -> None:
    bench = Bench()
    bench.submit(deferred=True)
    bench.turn()
    bench.loop.pass_time()
    assert bench.group() == [("durable", 1)]
    for _ in range(2):
        bench.submit()
        bench.turn()
    bench.loop.pass_time()
    assert bench.thread.is_idle


def test_journal_that_does_not_sync_its_groups_is_settled_each_time() -> None:
    bench = Bench(options=JournalOptions(preallocate_bytes=4096, alignment_bytes=512, sync_groups=False))
    bench.submit()
    assert (bench.turn(), bench.syncs) == ([("durable", 1)], 0)
    bench.submit()
    bench.turn()
    bench.loop.pass_time()
    assert bench.group() == [("durable", 2)]
    assert bench.syncs == 2
    bench.submit(deferred=True)
    bench.thread.force()
    assert (bench.turn(), bench.syncs) == ([("durable", 4)], 3)


def test_patient_records_share_the_sync_of_an_ordinary_one() -> None:
    """Adds of a recovery by Apache's client, and fences of ledgers that this bookie never had, wait for others."""
    bench = Bench()
    bench.submit(is_patient=True)
    bench.submit(is_patient=True)
    assert bench.turn() == []
    bench.submit()
    assert (bench.turn(), bench.syncs) == ([("durable", 3)], 1)
    bench.submit()
    bench.submit(is_patient=True)
    assert (bench.turn(), bench.syncs) == ([("durable", 5)], 2), "an ordinary one came before it in this turn"


def test_patient_record_is_not_committed_before_the_records_that_the_thread_has() -> None:
    """A number that is reported says that all before it is durable, too."""
    bench = Bench()
    bench.submit()
    bench.submit(INLINE_BYTES_MAX + 1)
    bench.submit(is_patient=True)
    assert bench.turn() == []
    assert bench.group() == [("durable", 3)]


def test_patient_records_that_stay_alone_are_left_to_the_thread_after_their_time() -> None:
    """The event loop does not wait for the disk because of them: the next read of a recovery must not wait."""
    bench = Bench()
    bench.submit(is_patient=True)
    bench.submit(is_patient=True)
    bench.turn()
    assert bench.thread.is_idle
    bench.loop.pass_time()
    assert (bench.thread.waiting, bench.syncs) == (2, 0)
    assert (bench.group(), bench.syncs) == ([("durable", 2)], 1)
    bench.submit(is_patient=True)
    bench.loop.pass_time()
    assert bench.group() == [("durable", 3)], "later ones wait for as long"


def test_patient_records_wait_neither_for_more_than_a_small_group_nor_for_a_force_or_the_end() -> None:
    bench = Bench()
    bench.submit(INLINE_BYTES_MAX, is_patient=True)
    assert bench.turn() == []
    bench.submit(1, is_patient=True)
    assert bench.group() == [("durable", 2)]
    bench.submit(is_patient=True)
    bench.thread.force()
    assert bench.turn() == [("durable", 4)]
    bench.submit(is_patient=True)
    bench.thread.stop()
    assert not bench.loop.has_timers
    assert not bench.thread.run_group()
    assert bench.turn() == [("durable", 5)]


def test_patient_records_wait_no_longer_than_a_group_may() -> None:
    bench = Bench(FlushLimits(age_ns_max=1000, patience_ns=HOUR_NS))
    bench.submit(is_patient=True)
    bench.loop.pass_time(1e-6)
    assert bench.group() == [("durable", 1)]


def test_patient_records_wait_as_others_where_every_group_waits_for_its_age() -> None:
    bench = Bench(FlushLimits(flush_when_idle=False, age_ns_max=0))
    bench.submit(is_patient=True)
    assert bench.group() == [("durable", 1)]


@pytest.mark.parametrize("deferred", [False, True])
def test_failure_reaches_every_mark_that_waits_and_every_later_one(deferred: bool) -> None:
    """Also if it is the sync for the mark that fails: the mark must not be known before."""
    bench = Bench()
    bench.submit(INLINE_BYTES_MAX + 1, deferred=deferred)
    marks = [bench.thread.take_mark(), bench.thread.take_mark()]
    bench.disk.fault = lambda operation, path: (
        OSError(errno.EIO, "Input/output error", path) if operation == "sync_data" else None
    )
    assert not bench.thread.run_group()
    bench.turn()
    (failure,) = bench.failures
    bench.disk.fault = None
    assert [mark.exception() for mark in (*marks, bench.thread.take_mark())] == [failure] * 3
    assert bench.reports == []


def test_mark_that_is_asked_for_after_a_journal_could_not_be_closed_gets_the_reason() -> None:
    """A checkpoint would wait for it for ever."""
    bench = Bench()
    bench.submit()
    bench.turn()
    bench.thread.stop()
    bench.disk.fault = lambda operation, path: (
        OSError(errno.EIO, "Input/output error", path) if operation == "truncate" else None
    )
    assert not bench.thread.run_group()
    bench.turn()
    (failure,) = bench.failures
    mark = bench.thread.take_mark()
    assert mark.done()
    assert mark.exception() is failure


def test_stopped_journal_makes_everything_durable_and_ends() -> None:
    bench = Bench()
    bench.submit(deferred=True)
    bench.thread.stop()
    assert not bench.loop.has_timers
    assert not bench.thread.run_group()
    assert bench.turn() == [("written", 1)]
    assert (bench.syncs, bench.bodies()) == (2, 1), "the second one is of the record that says that the file is closed"


@pytest.mark.parametrize(
    ("limits", "size", "entries", "age_ns", "is_empty", "reason"),
    [
        ({}, 0, 0, 0, True, FlushReason.IDLE),
        ({}, 1, 0, 0, True, FlushReason.IDLE),
        ({}, 1, 0, 0, False, None),
        ({"bytes_max": 10}, 9, 0, 0, False, None),
        ({"bytes_max": 10}, 10, 0, 0, False, FlushReason.BYTES),
        ({"entries_max": 2}, 1, 1, 0, False, None),
        ({"entries_max": 2}, 1, 2, 0, False, FlushReason.ENTRIES),
        ({"entries_max": 0}, 1, 0, 0, False, None),
        ({"flush_when_idle": False}, 1, 1, 0, True, None),
        ({"flush_when_idle": False, "age_ns_max": 5}, 1, 1, 4, True, None),
        ({"flush_when_idle": False, "age_ns_max": 5}, 1, 1, 5, True, FlushReason.AGE),
        ({"age_ns_max": 5}, 1, 1, 5, False, FlushReason.AGE),
    ],
)
def test_group_is_flushed_at_exactly_its_limits(
    limits: dict[str, int], size: int, entries: int, age_ns: int, is_empty: bool, reason: FlushReason | None
) -> None:
    assert flush_reason(FlushLimits(**limits), size, entries, age_ns, is_empty) == reason


def bodies_in(directory: Path) -> list[bytes]:
    found: list[bytes] = []
    replay_journal(LocalFiles(), str(directory), None, lambda kind, count, body: found.append(body))
    return found


def journal_path(directory: Path) -> Path:
    return directory / journal_format.file_name(1)


def test_journal_stops_on_a_full_disk_whatever_its_last_group_left_free(tmp_path: Path) -> None:
    """A group reserves room for the next marker and for what the stop writes."""
    options = JournalOptions(preallocate_bytes=64, alignment_bytes=512)
    for length in range(0, 1100, 50):
        directory = tmp_path / str(length)
        directory.mkdir()
        journal = Journal(LocalFiles(), str(directory), options, JournalPosition(0, 0))
        journal.append([Record.of(RecordKind.ENTRIES, 1, b"x" * length)])
        size = journal_path(directory).stat().st_size
        journal.write_durability_marker()
        journal.close()
        assert journal_path(directory).stat().st_size <= size
        assert b"x" * length in bodies_in(directory)


def test_event_loop_does_not_wait_for_a_thread_that_writes() -> None:
    bench, committed = Bench(), []
    with bench.thread._writing:
        other = threading.Thread(target=lambda: committed.append(bench.thread.commit([record()])), daemon=True)
        other.start()
        other.join(60)
        assert committed == [0]
