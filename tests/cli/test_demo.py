"""`bkspark demo` as a process: its checks hold, its JSON says so, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.demo import print_result
from tests.polling import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.usefixtures("cold_starts")]

END_S = 300

# Nulls, doubled rows, a name with a dot, text with quotes and newlines: whatever a table of one's own may hold.
TABLE = (
    'city,the.value,"note"\n'
    'Paris,1.5,"said ""so"""\nParis,1.5,"said ""so"""\nRome,,\n,2.5,plain\nOslo,-3,\nOslo,-3,\nOslo,-3,\n'
)


@pytest.fixture(autouse=True)
def quick_spark(short_spark: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in short_spark.items():
        monkeypatch.setenv(name, value)


def demo(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end with `folder` for temporary files."""
    return subprocess.run(
        [sys.executable, "-m", "bkspark.cli", "demo", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=END_S,
        env={**os.environ, "TMPDIR": str(folder)},
    )


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "cities.csv"
    path.write_text(TABLE)
    return path


@pytest.fixture
def temporary(tmp_path):
    path = tmp_path / "temporary"
    path.mkdir()
    return path


def processes_below(folder: Path) -> list[str]:
    """Return the command lines of running processes that mention the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has just ended
            if str(folder) in command:
                found.append(command)
    return found


@pytest.mark.long(reason="60 s: a cluster and two sessions of Spark; .ci/run has it")
def test_demo_holds_on_a_table_of_ones_own_and_can_be_served_again(table, temporary, tmp_path, capsys):
    kept = tmp_path / "kept"
    ended = demo("--input", table, "--json", "--keep", kept, folder=temporary)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert (result["rows"], result["batch_equal"], result["stream_equal"]) == (7, True, True)
    assert result["ledgers"] >= 3  # the first write and two appends
    assert result["stream_rows"] == 21
    assert (result["acknowledged"], result["lost"]) == (7, 0)
    assert 0 < result["acknowledged_before_kill"] <= 7
    assert {"cluster", "load", "write", "read", "stream", "kill", "question"} <= result["seconds"].keys()
    assert ["Paris", 2, 1.5] in result["question"]["rows"]
    assert len(ended.stderr.splitlines()) >= 8  # progress is visible
    assert "Traceback" not in ended.stderr
    assert list(temporary.iterdir()) == []
    assert processes_below(temporary) == []
    assert processes_below(kept) == []

    print_result(result)
    text = capsys.readouterr().out
    for words in ("equal, row for row", "each exactly once", "0 lost", f"bkspark local --dir {kept}", "Paris"):
        assert words in text
    assert shown_again(kept) == {"CLOSED"}


def shown_again(kept: Path) -> set[str]:
    """Serve a kept demo and return the states of its log's ledgers."""
    command = [sys.executable, "-m", "bkspark.cli", "local", "--dir", str(kept), "--json"]
    local = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert local.stdout is not None
    try:
        uri = json.loads(local.stdout.readline())["uri"]
        with Client(uri) as client:
            return {ledger["state"] for ledger in client.log("demo").show()["ledgers"]}
    finally:
        local.terminate()
        local.wait()
        local.stdout.close()


def test_interrupted_demo_leaves_nothing(table, temporary):
    command = [sys.executable, "-m", "bkspark.cli", "demo", "--input", str(table)]
    running = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(temporary)}, process_group=0
    )
    assert running.stderr is not None
    try:
        for line in running.stderr:
            if "starting Spark" in line:
                break
        running.send_signal(signal.SIGINT)
        assert running.stderr.read().splitlines()[-1] == "bkspark: interrupted"
        assert running.wait(END_S) == 1
    finally:
        running.kill()
        running.wait()
        running.stderr.close()
    assert list(temporary.iterdir()) == []
    wait_until(lambda: not processes_below(temporary), "the JVM to end")


def test_input_of_an_unknown_kind_is_refused_before_anything_starts(tmp_path):
    path = tmp_path / "table.xlsx"
    path.write_text("whatever")
    ended = demo("--input", path, folder=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == f"bkspark: --input '{path}' is not one of .csv, .json, .jsonl, .parquet; convert it first\n"


def test_directory_to_keep_must_be_empty(table, tmp_path):
    ended = demo("--input", table, "--keep", tmp_path, folder=tmp_path)
    assert ended.returncode == 2
    assert str(tmp_path) in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cities.csv"]
