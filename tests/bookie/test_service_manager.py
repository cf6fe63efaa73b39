"""A bookie as a systemd service of Type=notify: READY=1 once it serves, RELOADING=1, STOPPING=1 (sd_notify(3))."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.cli.bookie import bookie_command
from tests.bookie.child import START_S, BookieChild

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def manager(name: str) -> Iterator[socket.socket]:
    """The service manager's end of NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if name.startswith("@") else name)
        listener.settimeout(START_S)
        yield listener


@contextlib.contextmanager
def started(bookie: BookieChild, notify_socket: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    command = bookie_command(bookie.settings, json=True)
    environment = os.environ | {"NOTIFY_SOCKET": notify_socket}
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def message(listener: socket.socket) -> dict[str, str]:
    """Return the next message."""
    return dict(line.split("=", 1) for line in listener.recv(4096).decode().split("\n"))


@pytest.mark.parametrize("is_abstract", [False, True])
def test_start_readiness_reload_and_stop_are_reported(tmp_path: Path, uri: str, is_abstract: bool) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri)
    with tempfile.TemporaryDirectory() as short:
        name = f"@bkspark-test-{os.getpid()}" if is_abstract else f"{short}/notify"
        with manager(name) as listener, started(bookie, name, tmp_path / "log") as process:
            assert message(listener) == {"STATUS": "replaying the journal"}
            assert message(listener) == {"READY": "1", "STATUS": "serving"}
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["id"] == bookie.id
            # Ready means that clients are served.
            with bookie.connect():
                pass
            process.send_signal(signal.SIGHUP)
            reloading = message(listener)
            assert reloading["RELOADING"] == "1"
            assert int(reloading["MONOTONIC_USEC"]) > 0
            assert message(listener) == {"READY": "1", "STATUS": "serving"}
            process.terminate()
            assert message(listener) == {"STOPPING": "1", "STATUS": "a signal requested it"}
            assert process.wait(START_S) == 0


def test_a_manager_that_has_gone_does_not_stop_the_bookie(tmp_path: Path, uri: str) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri)
    log = tmp_path / "log"
    with started(bookie, str(tmp_path / "nobody"), log) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == bookie.id
        process.terminate()
        assert process.wait(START_S) == 0
    assert log.read_text().count("the service manager is not informed") == 1


def test_a_restart_in_place_is_not_a_stop(tmp_path: Path, uri: str) -> None:
    """After STOPPING=1 systemd waits for the end of the process, and kills it when that does not come."""
    bookie = BookieChild(tmp_path / "bookie", uri)
    with tempfile.TemporaryDirectory() as short:
        name = f"{short}/notify"
        with manager(name) as listener, started(bookie, name, tmp_path / "log") as process:
            assert [message(listener).get("READY") for _ in range(2)] == [None, "1"]
            restart = [*bookie_command(bookie.settings, json=True), "restart"]
            subprocess.run(restart, check=True, capture_output=True, timeout=START_S)
            assert message(listener) == {"STATUS": "it restarts"}
            assert [message(listener).get("READY") for _ in range(2)] == [None, "1"]
            process.terminate()
            assert message(listener)["STOPPING"] == "1"
            assert process.wait(START_S) == 0
