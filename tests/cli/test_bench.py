"""`bkspark bench` on a real cluster: the figures add up, and nothing remains. No figure is checked against a target."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from bkspark.blocking import Client
from bkspark.cli import load
from tests.cli.console import Console
from tests.polling import wait_until

pytestmark = pytest.mark.cluster

KEYS = ["entries", "seconds", "entries_per_s", "mib_per_s", "latency_ms", "client_cpu_s"]


def check_result(result: dict, entries: int, entry_size: int) -> None:
    assert list(result)[: len(KEYS)] == KEYS
    assert list(result["latency_ms"]) == ["p50", "p99", "p999"]
    assert result["entries"] == entries
    assert result["entries_per_s"] == pytest.approx(entries / result["seconds"], rel=0.05)
    assert result["mib_per_s"] == pytest.approx(result["entries_per_s"] * entry_size / (1 << 20), rel=0.05, abs=0.01)
    assert 0 < result["latency_ms"]["p50"] <= result["latency_ms"]["p99"] <= result["latency_ms"]["p999"]


@pytest.mark.parametrize(("window", "ledgers"), [(1, 1), (100, 3), (5000, 2)])
def test_write_writes_the_given_number_of_entries_and_deletes_them(console: Console, window, ledgers):
    before = console.json("ledger", "list")
    size = ["--entry-size", 100, "--entries", 301, "--window", window, "--ledgers", ledgers]
    check_result(console.json("bench", "write", *size), 301, 100)
    assert console.json("ledger", "list") == before


def test_write_keeps_its_ledgers_when_asked_and_read_reads_them(console: Console):
    size = ["--entry-size", 10, "--entries", 1000, "--ensemble", 2, "--write-quorum", 2]
    (ledger,) = console.json("bench", "write", *size, "--keep")["ledgers"]
    shown = console.json("ledger", "show", ledger)
    assert (shown["state"], shown["last_entry"], shown["ensemble_size"], shown["ack_quorum"]) == ("CLOSED", 999, 2, 2)
    for window in ([], ["--window", 1], ["--window", 64]):
        check_result(console.json("bench", "read", "--ledger", ledger, *window), 1000, 10)
    console.text("ledger", "delete", ledger)


def test_read_makes_what_it_reads_and_deletes_it(console: Console):
    before = console.json("ledger", "list")
    check_result(console.json("bench", "read", "--entries", 2000, "--entry-size", 50, "--ledgers", 2), 2000, 50)
    assert console.json("ledger", "list") == before


def test_seconds_end_a_write_and_a_read_that_have_no_other_end(console: Console):
    assert console.json("bench", "write", "--seconds", 0.2)["seconds"] >= 0.2
    read = console.json("bench", "read", "--seconds", 0.3, "--entry-size", 10)
    assert read["seconds"] >= 0.3


@pytest.mark.spark
@pytest.mark.long(reason="it runs each Spark job several times; tests/spark guards the jobs")
def test_spark_jobs_are_measured_beside_their_limits_and_leave_no_log(console: Console, short_spark, monkeypatch):
    for name, value in short_spark.items():
        monkeypatch.setenv(name, value)
    before = console.json("log", "list"), console.json("ledger", "list")
    result = console.json("bench", "spark", "--rows", 500, "--value-size", 20_000, "--ensemble", 1)
    assert list(result) == ["write", "read", "stream_read", "stream_write", "limit"]
    for job in ("write", "read", "stream_read", "stream_write"):
        assert result[job]["rows_per_s"] > 0
        assert result[job]["mib_per_s"] > 0
    assert list(result["limit"]) == ["arrow_read_mib_per_s", "arrow_write_mib_per_s"]
    assert (console.json("log", "list"), console.json("ledger", "list")) == before


def test_figures_are_printed_for_people_too(console: Console):
    assert "entries_per_s" in console.text("bench", "write", "--entries", 10)


def test_interrupted_write_leaves_no_ledger(console: Console, cluster):
    before = console.json("ledger", "list")
    command = [sys.executable, "-m", "bkspark.cli", "bench", "write", "--seconds", "600", "--uri", cluster.uri]
    writer = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        with Client(cluster.uri) as client:
            wait_until(lambda: len(list(client.ledgers())) > len(before["ledgers"]), "the ledger to be created")
        writer.send_signal(signal.SIGINT)
        output, errors = writer.communicate(timeout=180)
    finally:
        writer.kill()
        writer.wait()
    assert (writer.returncode, output, errors.splitlines()[-1]) == (1, "", "bkspark: interrupted")
    assert console.json("ledger", "list") == before


def test_too_few_bookies_leave_nothing(console: Console):
    before = console.json("ledger", "list")
    output = console.fails(1, "bench", "write", "--ensemble", 4)
    assert "there are 3" in output.err.splitlines()[-1]
    assert console.json("ledger", "list") == before


def test_absent_ledger_is_named(console: Console):
    output = console.fails(1, "bench", "read", "--ledger", 123456789123)
    assert "123456789123" in output.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("window", "entry_size", "expected"), [(1, 1024, 1), (3, 10, 1), (8192, 1024, 1024), (400, 0, 100)]
)
def test_a_window_holds_several_pieces_of_bounded_size(window, entry_size, expected):
    assert load.piece_size(window, entry_size) == expected
