"""The console's log is limited: repeated lines are counted, audit lines always pass."""

from __future__ import annotations

import logging

from bkspark_console.log_limit import KINDS_MAX, LINES_MAX, WINDOW_S, ConsoleLogLimiter


class Log:
    """What passes the limiter at times that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._limiter = ConsoleLogLimiter(lambda: self.now_s)

    def lines(self, count: int, text: str, *values: object) -> list[str]:
        records = [logging.LogRecord("log", logging.WARNING, "", 0, text, values, None) for _ in range(count)]
        return [record.getMessage() for record in records if self._limiter.filter(record)]


def test_few_lines_of_a_kind_pass_at_a_time_and_the_next_says_how_many_were_left_out() -> None:
    log = Log()
    assert log.lines(1000, "a wrong token from %s", "10.0.0.5") == ["a wrong token from 10.0.0.5"] * LINES_MAX
    log.now_s = WINDOW_S
    first, *rest = log.lines(1000, "a wrong token from %s", "10.0.0.6")
    assert first == f"a wrong token from 10.0.0.6 ({1000 - LINES_MAX} lines like this one were left out)"
    assert rest == ["a wrong token from 10.0.0.6"] * (LINES_MAX - 1)


def test_other_kinds_and_audit_lines_are_not_left_out() -> None:
    log = Log()
    log.lines(1000, "a wrong token from %s", "10.0.0.5")
    assert log.lines(1, "a sample failed") == ["a sample failed"]
    assert len(log.lines(1000, "audit: %s signed in from %s", "amy", "10.0.0.5")) == 1000


def test_texts_that_all_differ_take_neither_the_log_nor_memory() -> None:
    log = Log()
    passed = sum(len(log.lines(1, f"line {number}")) for number in range(2 * KINDS_MAX))
    assert passed == KINDS_MAX + LINES_MAX
