"""What a bookie decides after each check of its disks, and what it reports; the disks and the clock are simulated."""

from __future__ import annotations

import logging

import pytest

from bookie_service.engine.disk_watch import DiskOptions, DiskWatch
from bookie_service.storage.disks import DiskLimits, DiskRoom, FileSystemSpace
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles

LIMITS = DiskLimits(low_share=0.9, warn_share=0.8)
TOTAL = 1 << 40


class Disks:
    """Two ledger directories and a journal directory on disks of their own, and the bookie's watch of them."""

    def __init__(self, options: DiskOptions) -> None:
        self.disk, self.now = SimulatedDisk(), 100.0
        self.files = SimulatedFiles(self.disk)
        for number, name in enumerate(("/a", "/b", "/j")):
            self.files.create_directory(name)
            self.use(name, 0.5, number)
        self.watch = DiskWatch(self.files, ["/a", "/b"], ["/j"], options, lambda: self.now)
        self.changes: list[bool] = []
        self.watch.on_change = lambda: self.changes.append(self.watch.is_read_only)

    def use(self, name: str, share: float, device: int | None = None) -> None:
        number = self.disk.spaces[name].device if device is None else device
        self.disk.spaces[name] = FileSystemSpace(number, TOTAL, TOTAL - int(share * TOTAL))

    def check_now(self, waiting_bytes: int = 0) -> None:
        self.watch.check_now(waiting_bytes)


@pytest.fixture
def disks() -> Disks:
    return Disks(DiskOptions(limits=LIMITS))


def test_bookie_reports_each_change_once_and_only_when_adds_are_concerned(disks: Disks) -> None:
    disks.check_now()
    disks.use("/a", 0.97)
    disks.check_now()
    assert (disks.watch.is_read_only, disks.changes) == (False, [])
    disks.use("/b", 0.97)
    for _ in range(3):
        disks.check_now()
    assert (disks.watch.is_read_only, disks.changes) == (True, [True])
    disks.use("/a", 0.5)
    for _ in range(3):
        disks.check_now()
    assert (disks.watch.is_read_only, disks.changes) == (False, [True, False])


def test_room_is_that_of_the_directory_with_the_most(disks: Disks) -> None:
    found = []
    for first, second in ((0.5, 0.5), (0.85, 0.5), (0.97, 0.5), (0.85, 0.85), (0.97, 0.85), (0.97, 0.97)):
        disks.use("/a", first)
        disks.use("/b", second)
        disks.check_now()
        found.append(disks.watch.room)
    enough, scarce, full = DiskRoom.ENOUGH, DiskRoom.SCARCE, DiskRoom.FULL
    assert found == [enough, enough, enough, scarce, scarce, full]


def test_flush_that_waits_for_space_leaves_no_room_and_refuses_adds(disks: Disks) -> None:
    disks.watch.is_stuck = True
    disks.check_now()
    assert (disks.watch.room, disks.watch.is_read_only, disks.watch.takes_recovery_adds) == (DiskRoom.FULL, True, True)
    disks.use("/a", 1.0)
    disks.use("/b", 1.0)
    disks.check_now()
    assert not disks.watch.takes_recovery_adds


def test_entries_that_wait_in_memory_count_at_each_check(disks: Disks) -> None:
    disks.check_now(2 * TOTAL)
    assert disks.watch.is_read_only
    disks.check_now(0)
    assert not disks.watch.is_read_only


def test_operator_and_plan_each_make_the_bookie_read_only_by_themselves(disks: Disks) -> None:
    disks.watch.set_planned("a restart is planned")
    assert not disks.watch.is_read_only, "it counts from the next check on"
    disks.check_now()
    assert (disks.watch.reason, disks.watch.is_set_read_only) == ("a restart is planned", False)
    disks.watch.set_read_only("an operator wants it")
    assert (disks.watch.reason, disks.watch.is_set_read_only) == ("an operator wants it", True)
    disks.watch.set_planned("")
    disks.check_now()
    assert disks.watch.is_read_only
    disks.use("/j", 0.97)
    disks.watch.set_read_only("")
    disks.check_now()
    assert (disks.watch.reason, disks.watch.is_read_only) == ("journal directory /j is full", True)
    assert not disks.watch.is_set_read_only
    assert disks.changes == [True]


def test_configuration_can_make_a_bookie_read_only_for_good() -> None:
    disks = Disks(DiskOptions(limits=LIMITS, is_forced_read_only=True))
    assert disks.watch.is_read_only, "also before the first check"
    disks.check_now()
    assert (disks.watch.is_forced, disks.watch.reason) == (True, "forceReadOnlyBookie is true")
    assert (disks.watch.is_read_only, disks.changes) == (True, [])


def test_usage_of_each_directory_is_in_percent(disks: Disks) -> None:
    disks.use("/a", 0.25)
    disks.use("/j", 0.75)
    disks.check_now()
    assert disks.watch.usage == pytest.approx({"/a": 25.0, "/b": 50.0, "/j": 75.0})
    assert list(disks.watch.ledger_directories) == ["/a", "/b"]


def test_space_is_that_of_the_ledger_directories_and_a_shared_disk_counts_once(disks: Disks) -> None:
    disks.use("/a", 0.25)
    assert disks.watch.ledger_space() == FileSystemSpace(0, 2 * TOTAL, TOTAL - TOTAL // 4 + TOTAL // 2)
    disks.use("/a", 0.5, disks.disk.spaces["/b"].device)
    assert disks.watch.ledger_space() == FileSystemSpace(0, TOTAL, TOTAL // 2)


def test_space_is_measured_once_a_second_however_often_peers_ask(disks: Disks) -> None:
    before = disks.watch.known_space()
    disks.use("/a", 0.25)
    disks.now += 0.75
    assert disks.watch.known_space() == before
    disks.now += 0.25
    after = disks.watch.known_space()
    assert after == disks.watch.ledger_space() != before
    disks.use("/a", 0.75)
    disks.now += 0.75
    assert disks.watch.known_space() == after


def test_disk_that_fails_counts_as_full_until_all_of_them_fail(disks: Disks, caplog: pytest.LogCaptureFixture) -> None:
    disks.check_now()
    disks.files.remove_directory("/a")
    disks.check_now()
    disks.check_now()
    assert (disks.watch.verdict.full, disks.watch.is_read_only) == ({"/a"}, False)
    assert disks.watch.usage["/a"] == 100.0
    assert disks.watch.ledger_space() == FileSystemSpace(0, TOTAL, TOTAL // 2)
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert line.getMessage().startswith("the disk of directory /a fails")
    disks.files.remove_directory("/b")
    with pytest.raises(FileNotFoundError, match="/a"):
        disks.check_now()


def test_journal_directory_that_fails_is_an_error(disks: Disks) -> None:
    disks.files.remove_directory("/j")
    with pytest.raises(FileNotFoundError, match="/j"):
        disks.check_now()


def test_log_says_once_how_full_a_directory_is(disks: Disks, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for share in (0.5, 0.85, 0.86, 0.97, 0.98, 0.94, 0.85, 0.5):
        disks.use("/a", share)
        disks.check_now()
    assert caplog.messages == [
        "directory /a is nearly full: 85.0 % used",
        "directory /a is full: 97.0 % used",
        "directory /a has space again: 85.0 % used",
    ]
    caplog.clear()
    for share in (0.97, 0.5):
        disks.use("/j", share)
        disks.check_now()
    assert caplog.messages == [
        "directory /j is full: 97.0 % used",
        "the bookie is read-only: journal directory /j is full",
        "directory /j has space again: 50.0 % used",
        "the bookie takes adds again",
    ]
