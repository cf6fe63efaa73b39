"""A flood of refusals makes few lines, and hides no line of another kind."""

from __future__ import annotations

import io
import logging

import pytest

from bkspark.errors import ProtocolError
from bkspark.log_limit import AUDIT, KINDS_MAX, LogLimiter, limited, place_of


class Bench:
    """A logger whose lines are kept; time passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.written_at: list[float] = []
        self.logger = logging.Logger("bookie")
        handler = logging.Handler()
        handler.emit = self._emit  # type: ignore[method-assign]
        self.limiter = LogLimiter(lambda: self.now, handler.emit)
        handler.addFilter(self.limiter)
        self.logger.addHandler(handler)

    def _emit(self, record: logging.LogRecord) -> None:
        text = logging.Formatter("%(message)s").format(record)
        self.lines += text.splitlines()
        self.written_at += [self.now] * len(text.splitlines())

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.limiter.flush()

    def most_per_s(self) -> int:
        """Return the most lines in any second."""
        return max(sum(at <= each < at + 1.0 for each in self.written_at) for at in self.written_at)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.slow
def test_a_flood_of_one_kind_makes_few_lines_and_every_line_is_counted(bench: Bench) -> None:
    for number in range(60_000):
        bench.now += 0.001
        bench.logger.warning("closed the connection from %s: frame of %d bytes", "10.0.0.1", number)
        if number % 100 == 0:
            bench.limiter.flush()
    bench.limiter.finish()
    assert bench.most_per_s() <= 10
    counted = [line for line in bench.lines if "left out" in line]
    left_out = sum(int(line.split()[0]) for line in counted)
    assert left_out + len(bench.lines) - len(counted) == 60_000
    assert len(counted) <= 8
    assert "frame of" in counted[0], "with an example"


def test_the_first_line_of_a_new_kind_passes_in_any_flood(bench: Bench) -> None:
    for number in range(10_000):
        bench.now += 0.0001
        bench.logger.warning("closed the connection from %s", number)
        if number == 7000:
            bench.logger.error("%s: the journal failed", "/journal/1.txn")
    assert "/journal/1.txn: the journal failed" in bench.lines


def test_kinds_that_a_caller_names_are_kept_apart(bench: Bench) -> None:
    for number in range(1000):
        bench.logger.warning("closed: %s", f"frame of {number} bytes", extra={"kind": "size"})
    bench.logger.warning("closed: %s", "no such opcode", extra={"kind": "opcode"})
    assert "closed: no such opcode" in bench.lines
    assert len(bench.lines) <= 10


@pytest.mark.slow
def test_very_many_kinds_are_counted_as_one_and_kinds_from_before_are_kept(bench: Bench) -> None:
    """A caller whose kind a peer can choose must not cost memory and lines for each of its texts."""
    for number in range(60_000):
        bench.now += 0.001
        bench.logger.warning("refused: %d", number, extra={"kind": f"text {number}"})
    bench.pass_time(30.0)
    # The first ones are kinds of their own.
    assert len(bench.lines) < 2 * KINDS_MAX
    bench.written_at = bench.written_at[KINDS_MAX:]
    assert bench.most_per_s() <= 10
    bench.logger.warning("another line")
    assert bench.lines[-1] == "another line"


def test_a_traceback_is_written_once(bench: Bench) -> None:
    for number in range(300):
        bench.now += 0.1
        try:
            raise RuntimeError(f"defect {number}")
        except RuntimeError:
            bench.logger.exception("a request failed")
    assert sum("Traceback" in line for line in bench.lines) == 1
    assert "RuntimeError: defect 0" in bench.lines
    assert bench.lines.count("a request failed") > 1


def test_another_handler_of_the_same_logger_gets_each_traceback(bench: Bench) -> None:
    seen: list[object] = []
    other = logging.Handler()
    other.emit = lambda record: seen.append(record.exc_info)  # type: ignore[method-assign]
    bench.logger.addHandler(other)
    for number in range(3):
        bench.now += 1.0
        try:
            raise RuntimeError(f"defect {number}")
        except RuntimeError:
            bench.logger.exception("a request failed")
    assert len(seen) == 3
    assert all(seen)
    assert bench.lines.count("a request failed") == 3


def test_lines_of_the_audit_log_are_not_left_out(bench: Bench) -> None:
    for number in range(1000):
        bench.logger.info("audit: %s: set read-only", number, extra={"event": AUDIT})
        bench.logger.warning("refused a connection")
    assert sum("audit" in line for line in bench.lines) == 1000


def test_handler_that_is_limited_writes_the_first_lines_and_says_how_many_it_left_out() -> None:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    limiter = limited(handler)
    logger = logging.Logger("console")
    logger.addHandler(handler)
    for _ in range(1000):
        logger.warning("a wrong token from %s", "10.0.0.5")
    limiter.finish()
    lines = output.getvalue().splitlines()
    assert lines[0] == "a wrong token from 10.0.0.5"
    assert len(lines) < 20
    assert "more lines like this one were left out" in lines[-1]


def test_rare_lines_are_all_written(bench: Bench) -> None:
    for number in range(100):
        bench.pass_time(2.0)
        bench.logger.warning("directory %s is nearly full", number)
    assert len(bench.lines) == 100


def test_suppressed_lines_are_summarised_later_without_further_lines(bench: Bench) -> None:
    for _ in range(50):
        bench.logger.warning("refused a connection")
    before = len(bench.lines)
    bench.pass_time(9.0)
    assert len(bench.lines) == before
    bench.pass_time(2.0)
    assert bench.lines[before:] == [
        f"{50 - before} more lines like this one were left out in 10 s: refused a connection"
    ]


def test_an_error_is_identified_by_its_place_whatever_a_peer_put_into_it() -> None:
    def fail(number: int) -> None:
        if number % 2:
            raise ProtocolError(f"frame of {number} bytes")
        raise ProtocolError(f"opcode {number}")

    def place(number: int) -> object:
        with pytest.raises(ProtocolError) as caught:
            fail(number)
        return place_of(caught.value)

    assert place(1) == place(3) != place(2) == place(4)


def test_library_that_repeats_its_lines_while_a_server_is_away_gets_one_line_a_minute(bench: Bench) -> None:
    """OpenTelemetry's exporter logged each of its attempts: about forty lines a minute, for as long as no server took
    the spans."""
    exporter = logging.Logger("opentelemetry.exporter.otlp.proto.http")
    exporter.addHandler(bench.logger.handlers[0])
    for _ in range(10 * 60):
        exporter.warning("Transient error %s encountered", "connection refused")
        bench.pass_time(1.0)
    assert len(bench.lines) <= 10
    assert bench.lines[0] == "Transient error connection refused encountered"
    bench.limiter.finish()
    assert 1 + sum(int(line.split()[0]) for line in bench.lines[1:]) == 10 * 60
