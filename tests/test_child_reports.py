"""What a parent understands of a bookie's process."""

from __future__ import annotations

import signal

import pytest

from bkspark.child_reports import ending, facts_in


@pytest.mark.parametrize(
    "line",
    ["", "OMP: Warning", b"\xff", "[1]", "5", "{}", '{"id": 5}', '{"pid": 5}', "[" * 100_000, "9" * 5_000, "null"],
    ids=lambda line: repr(line)[:20],
)
def test_line_of_something_else_is_not_that_of_a_bookie_that_serves(line: str | bytes) -> None:
    assert facts_in(line) is None


def test_line_of_a_bookie_that_serves_has_its_facts() -> None:
    assert facts_in(b'{"id": "b:1", "pid": 5}\n') == {"id": "b:1", "pid": 5}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        # Signals in between have no names, and the search for one ended the supervisor.
        (-(signal.SIGRTMIN + 3), f"was killed by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_ending_of_a_process_names_its_signal(code: int, words: str) -> None:
    assert ending(code) == words
