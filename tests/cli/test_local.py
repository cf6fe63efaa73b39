"""`bkspark local` as a process: what it prints, that data and ids survive, that it takes everything down with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client
from tests.polling import wait_until
from tests.processes import is_alive

pytestmark = pytest.mark.cluster

END_S = 180


class Local:
    """One running `bkspark local --json`: its first object as `cluster`."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process = process
        self._errors = errors
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, errors.read_text()
        self.cluster: dict[str, Any] = json.loads(line)

    @property
    def pids(self) -> list[int]:
        return [self.cluster["zookeeper"]["pid"], *(bookie["pid"] for bookie in self.cluster["bookies"])]

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_S)


@contextmanager
def local(tmp_path: Path, *arguments: object) -> Iterator[Local]:
    command = [sys.executable, "-m", "bkspark.cli", "local", "--json", *map(str, arguments)]
    errors = tmp_path / "errors.txt"
    with errors.open("w") as sink:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, process_group=0)
    try:
        yield Local(process, errors)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def fails(*arguments: object) -> tuple[int, str]:
    """Return exit code and last line of error of a `bkspark local` that cannot start; nothing else was printed."""
    command = [sys.executable, "-m", "bkspark.cli", "local", "--bookies", "1", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=END_S)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    progress, reason = ended.stderr.splitlines()
    assert progress.startswith("starting")
    return ended.returncode, reason


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_and_removes_temporary_data(tmp_path, number):
    with local(tmp_path, "--bookies", 1) as running:
        facts = running.cluster
        assert list(facts) == ["uri", "dir", "zookeeper", "bookies"]
        assert facts["uri"] == f"zk://127.0.0.1:{facts['zookeeper']['port']}/ledgers"
        (bookie,) = facts["bookies"]
        assert bookie["dir"] == f"{facts['dir']}/bookie1"
        assert all(is_alive(pid) for pid in running.pids)
        assert running.end(number) == 0
        assert not any(is_alive(pid) for pid in running.pids)
        assert not Path(facts["dir"]).exists()


def test_data_and_ids_survive_restarts_with_as_many_bookies_or_more_never_fewer(tmp_path):
    data = tmp_path / "data"
    with local(tmp_path, "--bookies", 1, "--dir", data) as first:
        (one,) = first.cluster["bookies"]
        with Client(first.cluster["uri"]) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append_many([b"one", b"two"])
        assert first.end() == 0
    with local(tmp_path, "--bookies", 2, "--dir", data) as more:
        assert more.cluster["uri"] == first.cluster["uri"]
        ids = [bookie["id"] for bookie in more.cluster["bookies"]]
        assert ids[0] == one["id"]
        with Client(more.cluster["uri"]) as client:
            assert list(client.open(writer.ledger_id).read(0, 1)) == [b"one", b"two"]
        assert more.end() == 0
    with local(tmp_path, "--dir", data) as again:
        assert [bookie["id"] for bookie in again.cluster["bookies"]] == ids
        with Client(again.cluster["uri"]) as client:
            assert list(client.open(writer.ledger_id).read(0, 1)) == [b"one", b"two"]
        assert again.end() == 0
    code, reason = fails("--dir", data)
    assert code == 2
    assert "--bookies 1" in reason
    assert "on 2 bookies" in reason


def test_killed_bookie_is_reported_and_not_restarted(tmp_path):
    with local(tmp_path, "--bookies", 1) as running:
        (bookie,) = running.cluster["bookies"]
        os.kill(bookie["pid"], signal.SIGKILL)
        wait_until(lambda: "SIGKILL" in running.errors, "the report")
        report = running.errors.splitlines()[-1]
        assert bookie["id"] in report
        assert str(bookie["pid"]) in report
        assert running.end() == 0
        assert "serves again" not in running.errors


def test_killed_bookie_is_restarted_when_asked(tmp_path):
    with local(tmp_path, "--bookies", 1, "--restart") as running:
        os.kill(running.cluster["bookies"][0]["pid"], signal.SIGKILL)
        wait_until(lambda: "serves again" in running.errors, "the restart")
        with (
            Client(running.cluster["uri"]) as client,
            client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer,
        ):
            assert writer.append(b"after the restart") == 0
        assert running.end() == 0


def test_everything_ends_with_the_command_when_that_is_killed(tmp_path):
    data = tmp_path / "data"
    with local(tmp_path, "--bookies", 1, "--dir", data) as running:
        running.process.kill()
        for pid in running.pids:
            wait_until(lambda pid=pid: not is_alive(pid), f"process {pid} to end")


def test_the_end_of_zookeeper_ends_the_cluster_with_exit_code_1(tmp_path):
    with local(tmp_path, "--bookies", 1) as running:
        os.kill(running.cluster["zookeeper"]["pid"], signal.SIGKILL)
        assert running.process.wait(END_S) == 1
        assert running.errors.splitlines()[-1].startswith("bkspark: ZooKeeper (pid ")
        assert not any(is_alive(pid) for pid in running.pids)


# ---- what cannot start leaves nothing ----


def test_taken_port_is_named(tmp_path):
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, reason = fails("--dir", data, "--zk-port", port)
    assert code == 2
    assert f"port {port}" in reason
    assert "in use" in reason
    assert list(data.iterdir()) == []


def test_directory_in_use_is_named_and_untouched(tmp_path):
    data = tmp_path / "data"
    with local(tmp_path, "--bookies", 1, "--dir", data) as running:
        code, reason = fails("--dir", data)
        assert code == 2
        assert str(data) in reason
        assert "in use" in reason
        assert all(is_alive(pid) for pid in running.pids)
        assert running.end() == 0


def test_directory_that_is_a_file_is_named(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    code, reason = fails("--dir", path)
    assert code == 2
    assert str(path) in reason
    assert path.read_text() == "mine"


def test_unknown_configuration_key_is_passed_on_from_the_bookie_and_leaves_nothing(tmp_path):
    data = tmp_path / "data"
    code, reason = fails("--dir", data, "--set", "journalMaxSizeMBB=5")
    assert code == 1
    assert "journalMaxSizeMBB" in reason
    assert list(data.iterdir()) == []


def test_folder_of_another_bookie_is_refused_and_kept(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for data in (first, second):
        with local(tmp_path, "--bookies", 1, "--dir", data) as running:
            assert running.end() == 0
    kept = second / "bookie1" / "ledgers"
    kept.rename(tmp_path / "aside")
    (first / "bookie1" / "ledgers").rename(kept)
    code, reason = fails("--dir", second)
    assert code == 1
    assert str(kept) in reason
    assert kept.is_dir()
