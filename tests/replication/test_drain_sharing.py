"""What a process that drains a bookie takes from the reports of the others."""

from __future__ import annotations

import dataclasses

import pytest

from bookie_service.replication.drain_sharing import (
    KEPT_S,
    PROCESSES_MAX,
    SILENT_S,
    OtherProcesses,
    ProcessReport,
    as_stored,
    reports_of,
)


def test_what_others_did_before_the_first_look_does_not_count() -> None:
    others = OtherProcesses()
    others.update(0.0, {"a": ProcessReport(5, 500)})
    assert (others.ledgers, others.bytes) == (0, 0)
    others.update(1.0, {"a": ProcessReport(6, 620), "b": ProcessReport(2, 80)})
    assert (others.ledgers, others.bytes) == (3, 200)
    others.begin_list()
    others.update(2.0, {"a": ProcessReport(7, 700), "b": ProcessReport(2, 80)})
    assert (others.ledgers, others.bytes) == (1, 80)


def test_ledger_that_is_found_moved_before_its_report_comes_counts_once() -> None:
    others = OtherProcesses()
    others.update(0.0, {"a": ProcessReport(0, 0)})
    others.found_moved(100)
    assert (others.ledgers, others.bytes) == (0, 0)
    others.update(1.0, {"a": ProcessReport(2, 250)})
    assert (others.ledgers, others.bytes) == (1, 150)


def test_bytes_of_a_repair_that_failed_are_taken_back() -> None:
    others = OtherProcesses()
    others.update(0.0, {"a": ProcessReport(0, 0)})
    others.update(1.0, {"a": ProcessReport(0, 90)})
    others.update(2.0, {"a": ProcessReport(0, 0)})
    assert others.bytes == 0


def test_rate_counts_processes_that_report_and_not_one_that_was_killed_earlier() -> None:
    others = OtherProcesses()
    for second in range(3):
        running = ProcessReport(0, 0, 10, second)
        others.update(float(second), {"runs": running, "was killed": ProcessReport(3, 9, 50, 7)})
        assert others.bytes_per_s(second) == (10 if second else 0)
    assert others.bytes_per_s(2 + SILENT_S) == 10
    assert others.bytes_per_s(2.1 + SILENT_S) == 0
    assert set(others.kept(KEPT_S)) == {"runs", "was killed"}
    assert set(others.kept(1 + KEPT_S)) == {"runs"}


def test_reports_are_read_as_they_are_stored() -> None:
    reports = {"a": ProcessReport(1, 2, 3, 4), "me": ProcessReport(5, 6, 7, 8)}
    assert reports_of(as_stored(reports), "me") == {"a": reports["a"]}


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        {"a": 7},
        {"a": {"ledgers": 1}},
        {"a": {"ledgers": True, "bytes": 0, "bytes_per_s": 0, "at_ms": 0}},
        {"a": {"ledgers": 1, "bytes": -1, "bytes_per_s": 0, "at_ms": 0}},
        {"a": {"ledgers": 1, "bytes": 1 << 63, "bytes_per_s": 0, "at_ms": 0}},
    ],
)
def test_reports_that_are_not_of_their_form_are_left_out(stored: object) -> None:
    """Anyone who may write to the metadata store can write a plan."""
    assert reports_of({"processes": stored}, "me") == {}


def test_a_limited_number_of_reports_is_read() -> None:
    report = dataclasses.asdict(ProcessReport())
    assert len(reports_of({"processes": {str(number): report for number in range(100)}}, "me")) == PROCESSES_MAX
