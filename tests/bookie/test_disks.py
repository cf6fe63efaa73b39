"""When disks are full and what a bookie then takes: the pure decisions."""

from __future__ import annotations

from random import Random

import pytest

from bkspark.errors import ConfigurationError
from bookie_service.storage.disks import (
    LOOK_BYTES_MIN,
    UNKNOWN_SPACE,
    DiskDecision,
    DiskFacts,
    DiskLimits,
    FileSystemSpace,
    decide,
    directory_for_log,
)

GIB = 1 << 30
LIMITS = DiskLimits(low_share=0.90, warn_share=0.80)


def disk(used: float, device: int = 1, total: int = 100 * GIB) -> FileSystemSpace:
    return FileSystemSpace(device, total, total - int(used * total))


def facts(ledgers: list[float], journals: list[float], **more: int) -> DiskFacts:
    """Every directory on a disk of its own, used to such shares."""
    return DiskFacts(
        {f"/l{i}": disk(used, i) for i, used in enumerate(ledgers)},
        {f"/j{i}": disk(used, 10 + i) for i, used in enumerate(journals)},
        **more,
    )


@pytest.mark.parametrize(
    ("ledgers", "journals", "refusal"),
    [
        ([0.5], [0.5], ""),
        ([0.94], [0.94], ""),
        ([0.96], [0.5], "all ledger directories are full (/l0)"),
        ([0.96, 0.5], [0.5], ""),
        ([0.96, 0.97], [0.5], "all ledger directories are full (/l0, /l1)"),
        ([0.5, 0.5], [0.96], "journal directory /j0 is full"),
        ([0.5], [0.5, 0.96], "journal directory /j1 is full"),
    ],
)
def test_bookie_is_read_only_when_all_ledger_directories_or_a_journal_directory_are_full(
    ledgers: list[float], journals: list[float], refusal: str
) -> None:
    """docs/protocol.md §6.11, B9."""
    verdict = decide(LIMITS, DiskDecision(), facts(ledgers, journals))
    assert verdict.refusal == refusal
    assert verdict.takes_recovery_adds


def test_disk_that_does_not_answer_is_not_a_reserve_for_recovery() -> None:
    ledgers = {"/l0": UNKNOWN_SPACE, "/l1": disk(0.995, 2)}
    verdict = decide(LIMITS, DiskDecision(), DiskFacts(ledgers, {"/j": disk(0.5, 3)}))
    assert verdict.refusal == "all ledger directories are full (/l0, /l1)"
    assert not verdict.takes_recovery_adds


def test_one_full_directory_is_enough_where_the_operator_says_so() -> None:
    limits = DiskLimits(any_full=True)
    assert decide(limits, DiskDecision(), facts([0.96, 0.5], [0.5])).refusal
    assert not decide(limits, DiskDecision(), facts([0.94, 0.5], [0.5])).refusal


def test_full_directory_stays_full_down_to_the_low_water_mark() -> None:
    full = decide(LIMITS, DiskDecision(), facts([0.96], [0.5]))
    between = decide(LIMITS, full, facts([0.92], [0.5]))
    assert between.refusal
    assert not decide(LIMITS, between, facts([0.89], [0.5])).refusal
    assert not decide(LIMITS, DiskDecision(), facts([0.92], [0.5])).refusal


def test_warned_directories_are_named_and_still_used() -> None:
    verdict = decide(LIMITS, DiskDecision(), facts([0.85, 0.96, 0.5], [0.5]))
    assert (verdict.warned, verdict.full, verdict.refusal) == ({"/l0"}, {"/l1"}, "")


def test_entries_that_wait_in_memory_count_as_stored() -> None:
    assert decide(LIMITS, DiskDecision(), facts([0.94], [0.5], waiting_bytes=2 * GIB)).refusal
    assert not decide(LIMITS, DiskDecision(), facts([0.94, 0.5], [0.5], waiting_bytes=2 * GIB)).refusal


def test_two_directories_on_one_disk_have_its_room_once() -> None:
    one = {"/l0": disk(0.94), "/l1": disk(0.94)}
    assert decide(LIMITS, DiskDecision(), DiskFacts(one, {}, waiting_bytes=int(1.5 * GIB))).refusal


def test_flush_without_space_makes_the_bookie_read_only_whatever_the_disks_say() -> None:
    assert decide(LIMITS, DiskDecision(), facts([0.1], [0.1], is_stuck=True)).refusal


def test_recovery_adds_end_where_the_reserve_does() -> None:
    """`minUsableSizeForHighPriorityWrites`; without it a quarter of what a full disk keeps, or less."""
    assert decide(LIMITS, DiskDecision(), facts([0.985], [0.5])).takes_recovery_adds
    assert not decide(LIMITS, DiskDecision(), facts([0.995], [0.5])).takes_recovery_adds
    assert not decide(LIMITS, DiskDecision(), facts([0.96], [0.995])).takes_recovery_adds
    small = DiskFacts({"/l0": FileSystemSpace(1, 64 << 20, 3 << 20)}, {})
    assert decide(LIMITS, DiskDecision(), small).takes_recovery_adds
    asked = DiskLimits(high_priority_bytes_min=4 << 20)
    assert not decide(asked, DiskDecision(), small).takes_recovery_adds


@pytest.mark.parametrize(("free", "is_full"), [(50, True), (51, False)])
def test_full_disk_is_full_until_less_than_the_low_mark_is_used(free: int, is_full: bool) -> None:
    limits = DiskLimits(full_share=0.75, low_share=0.5, warn_share=0.5)
    before = DiskDecision(full=frozenset(["/l0"]))
    found = decide(limits, before, DiskFacts({"/l0": FileSystemSpace(1, 100, free)}, {}))
    assert ("/l0" in found.full) == is_full
    assert "/l0" not in decide(limits, DiskDecision(), DiskFacts({"/l0": FileSystemSpace(1, 100, free)}, {})).full


@pytest.mark.parametrize(("free", "is_full"), [(25, False), (24, True)])
def test_disk_of_which_the_threshold_is_used_is_not_full_yet(free: int, is_full: bool) -> None:
    """diskUsageThreshold: above this share, as for Apache's bookies."""
    limits = DiskLimits(full_share=0.75, low_share=0.5, warn_share=0.5)
    found = decide(limits, DiskDecision(), DiskFacts({"/l0": FileSystemSpace(1, 100, free)}, {}))
    assert ("/l0" in found.full) == is_full


@pytest.mark.parametrize(("free", "takes"), [(4, True), (3, False)])
def test_recovery_adds_need_room_for_an_index_file_in_one_ledger_directory(free: int, takes: bool) -> None:
    limits = DiskLimits(high_priority_bytes_min=1, new_index_bytes_min=4)
    spaces = {"/l0": FileSystemSpace(1, 100, 2), "/l1": FileSystemSpace(2, 100, free)}
    assert decide(limits, DiskDecision(), DiskFacts(spaces, {})).takes_recovery_adds == takes


def test_half_of_the_room_may_arrive_before_the_disks_are_looked_at_again() -> None:
    """Journal and entry log may share a disk, and then each byte is written twice."""
    limits = DiskLimits(full_share=0.5, low_share=0.5, warn_share=0.5)
    spaces = DiskFacts({"/l0": FileSystemSpace(1, 8 * GIB, 6 * GIB)}, {"/j0": FileSystemSpace(1, 8 * GIB, 6 * GIB)})
    assert decide(limits, DiskDecision(), spaces).room_bytes == GIB


def test_verdict_is_sound_for_any_disks() -> None:
    """Property: never full below the low mark, always above the threshold, and a fuller disk never allows more."""
    random = Random(4)
    for _ in range(3000):
        low, full = sorted(random.choice((0.5, 0.9, 0.95, 0.99)) for _ in range(2))
        limits = DiskLimits(full_share=full, low_share=low, warn_share=low, any_full=random.random() < 0.3)
        ledgers = [random.random() for _ in range(random.randint(1, 3))]
        journals = [random.random() for _ in range(random.randint(1, 2))]
        before = decide(limits, DiskDecision(), facts([random.random() for _ in ledgers], [random.random()]))
        found = facts(ledgers, journals, waiting_bytes=random.choice((0, GIB, 50 * GIB)))
        verdict = decide(limits, before, found)
        spaces = {**found.ledgers, **found.journals}
        for path, space in spaces.items():
            assert path in verdict.full or space.used_share <= full
            assert path not in verdict.full or space.used_share >= low
        if not verdict.refusal:
            assert verdict.takes_recovery_adds
            assert not verdict.full & found.journals.keys()
            assert found.ledgers.keys() - verdict.full
        elif not found.waiting_bytes:
            assert verdict.full
        assert verdict.room_bytes >= LOOK_BYTES_MIN
        assert decide(limits, verdict, found) == verdict
        fuller = {path: disk(min(1.0, space.used_share + 0.1), space.device) for path, space in found.ledgers.items()}
        worse = decide(limits, before, DiskFacts(fuller, found.journals, found.waiting_bytes))
        assert worse.full >= verdict.full
        assert worse.refusal or not verdict.refusal
        assert verdict.takes_recovery_adds or not worse.takes_recovery_adds


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        ({"full_share": 0.0}, "diskUsageThreshold 0 must lie between 0 and 1"),
        ({"full_share": 1.0}, "diskUsageThreshold 1 must lie"),
        ({"full_share": 0.5, "low_share": 0.4}, "diskUsageWarnThreshold 0.9 must not be above"),
        ({"low_share": 0.96}, "diskUsageLwmThreshold 0.96 must not be above diskUsageThreshold 0.95"),
    ],
)
def test_thresholds_that_contradict_each_other_are_refused(limits: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        DiskLimits(**limits)


# ---- where a new entry log goes ----


def test_new_log_goes_where_most_is_free() -> None:
    spaces = {"/a": disk(0.6, 1), "/b": disk(0.3, 2), "/c": disk(0.5, 3)}
    assert {directory_for_log(LIMITS, spaces, log_id) for log_id in range(10)} == {"/b"}


def test_equal_directories_have_their_turn() -> None:
    spaces = {"/a": disk(0.5), "/b": disk(0.5)}
    assert [directory_for_log(LIMITS, spaces, log_id) for log_id in range(4)] == ["/a", "/b", "/a", "/b"]


def test_full_directory_gets_no_new_log_while_another_is_not_full() -> None:
    spaces = {"/a": disk(0.96, 1, 1000 * GIB), "/b": disk(0.9, 2)}
    assert directory_for_log(LIMITS, spaces, 0) == "/b"
    spaces = {"/a": disk(0.92, 1, 1000 * GIB), "/b": disk(0.9, 2)}
    assert directory_for_log(LIMITS, spaces, 0, full={"/a"}) == "/b"


def test_where_all_are_full_the_reserve_serves() -> None:
    """What was acknowledged must get into an entry log somewhere."""
    limits = DiskLimits(new_log_bytes_min=2 * GIB)
    spaces = {"/a": disk(0.97, 1), "/b": FileSystemSpace(2, 20 * GIB, GIB // 2), "/c": disk(0.99, 3)}
    assert directory_for_log(limits, spaces, 1) == "/a"
    spaces = {"/a": disk(0.99, 1), "/b": FileSystemSpace(2, 20 * GIB, GIB // 2)}
    assert directory_for_log(limits, spaces, 1) == "/a"
