"""The hosts of a real cluster: separate, cut and healed, and gone after the test, also after one that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.cli.child_process import ChildProcess
from tests.polling import wait_until
from tests.real_cluster.machines import ROOT
from tests.real_cluster.networks import Host, Namespaces, network, own_namespaces, remove_abandoned

PORT = 7000
LISTEN = f"""
import socket, sys
server = socket.create_server((sys.argv[1], {PORT}))
print("listening", flush=True)
while True:
    server.accept()[0].sendall(b"x")
"""
CONNECT = f"""
import socket, sys
try:
    print(socket.create_connection((sys.argv[1], {PORT}), 1).recv(1).decode())
except OSError as error:
    print(type(error).__name__)
"""
KILLED = """
import time
from tests.real_cluster.networks import network
with network(["one"]):
    print("made", flush=True)
    time.sleep(600)
"""
START_S = 60


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    found = network(["one", "two"])
    if not isinstance(found, Namespaces):
        pytest.skip(found.description)
    with found:
        yield found


def listening(host: Host, folder: Path) -> ChildProcess:
    command = host.command(sys.executable, "-c", LISTEN, host.address)
    process = ChildProcess("listener", command, folder / "listener.log")
    assert next(process.lines(time.monotonic() + START_S)) == "listening"
    return process


def connect(host: Host | None, address: str) -> str:
    """Return what happens to a connection from a host, or from outside all of them."""
    command = [sys.executable, "-c", CONNECT, address]
    command = command if host is None else host.command(*command)
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=True).stdout.strip()


def test_a_host_that_is_cut_off_is_reached_again_when_it_is_healed(namespaces: Namespaces, tmp_path: Path) -> None:
    one, two = namespaces.hosts.values()
    with_one = listening(one, tmp_path)
    try:
        assert connect(two, one.address) == "x"
        # The machine itself is not a part of the network.
        assert connect(None, one.address) != "x"
        namespaces.cut(one)
        assert connect(two, one.address) in ("TimeoutError", "OSError")
        namespaces.heal(one)
        wait_until(lambda: connect(two, one.address) == "x", "the healed host to answer")
        assert namespaces.slow(one).startswith("tc ")
        assert connect(two, one.address) == "x"
        namespaces.restore(one)
    finally:
        with_one.kill()


def test_nothing_is_left_of_a_test_that_fails(tmp_path: Path) -> None:
    found = network(["one"])
    if not isinstance(found, Namespaces):
        pytest.skip(found.description)
    before, started = own_namespaces(), []

    def fail() -> None:
        with found:
            started.append(listening(found.hosts["one"], tmp_path))
            assert len(own_namespaces()) == len(before) + 2
            raise RuntimeError("the test fails, with a process in the namespace")

    with pytest.raises(RuntimeError):
        fail()
    wait_until(lambda: started[0].exit_code is not None, "the process to end")
    assert own_namespaces() == before


def test_namespaces_of_a_killed_test_are_removed_by_the_next(namespaces: Namespaces, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED]
    process = ChildProcess("test", command, tmp_path / "log", environment={"PYTHONPATH": str(ROOT)})
    try:
        assert next(process.lines(time.monotonic() + START_S)) == "made"
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(START_S)
    finally:
        process.kill()
    assert own_namespaces(process.pid)
    remove_abandoned()
    assert own_namespaces(process.pid) == []
    assert own_namespaces()
