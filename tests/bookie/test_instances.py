"""Several bookies of one host under one supervisor: `bkspark bookie --instances N`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bkspark.cli.child_process import ChildProcess
from bkspark.wire.status import Status
from bookie_service.admin.instances import STRAY_LINES_MAX
from tests.bookie.child import START_S, STOP_S, ports_in_a_row
from tests.bookie.serving import Peer, stored
from tests.polling import wait_until


class Host:
    """The configuration of two bookies; `running` supervises them."""

    def __init__(self, directory: Path, uri: str) -> None:
        directory.mkdir()
        self.directory = directory
        self.port = ports_in_a_row(2)
        self.config = directory / "bookie.conf"
        keys = {
            "bookiePort": self.port,
            "advertisedAddress": "127.0.0.1",
            "journalDirectories": directory / "journal",
            "ledgerDirectories": directory / "ledgers-{instance}",
            "metadataServiceUri": uri,
            "diskUsageThreshold": "0.999",
        }
        self.config.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "bkspark.cli", "bookie", "--config", str(self.config), *more]

    def ask(self, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*more), capture_output=True, text=True, timeout=START_S, check=False)

    @contextlib.contextmanager
    def running(self, *more: str) -> Iterator[tuple[ChildProcess, list[dict[str, Any]]]]:
        """The supervisor, and what it reports of each bookie."""
        command = self.command("--instances", "2", "--json", *more)
        supervisor = ChildProcess("supervisor", command, self.directory / "log")
        try:
            line = next(supervisor.lines(time.monotonic() + START_S), None)
            assert line is not None, supervisor.last_log_line()
            facts = json.loads(line)
            assert facts["pid"] == supervisor.pid
            yield supervisor, facts["instances"]
        finally:
            supervisor.stop(STOP_S)

    def log_text(self) -> str:
        return (self.directory / "log").read_text()


@pytest.fixture
def host(tmp_path: Path, uri: str) -> Host:
    return Host(tmp_path / "host", uri)


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_instances_are_bookies_of_their_own_that_end_with_their_supervisor(host: Host) -> None:
    with host.running() as (supervisor, instances):
        assert [facts["id"] for facts in instances] == [f"127.0.0.1:{host.port + number}" for number in (0, 1)]
        for ledger_id, facts in enumerate(instances):
            with Peer(host.port + ledger_id) as peer:
                assert peer.add(ledger_id, 0, [b"mine"]) == [Status.EOK]
            assert (host.directory / "journal" / f"instance-{facts['instance']}" / "current" / "VERSION").exists()
            assert (host.directory / f"ledgers-{facts['instance']}" / "current" / "VERSION").exists()
        state = host.ask("--instances", "2", "--instance", "2", "state", "--json")
        assert state.returncode == 0, state.stderr
        assert json.loads(state.stdout)["id"] == f"127.0.0.1:{host.port + 1}"
        states = json.loads(host.ask("--instances", "2", "state", "--json").stdout)["instances"]
        assert [(each["instance"], each["id"]) for each in states] == [(1, instances[0]["id"]), (2, instances[1]["id"])]
    assert supervisor.exit_code == 0
    assert all(is_gone(facts["pid"]) for facts in instances)
    assert "instance 1: " in host.log_text()
    with host.running("--log-format", "json") as (_, instances), Peer(host.port + 1) as peer:
        assert peer.read(1, 0).body == stored(1, 0, b"mine")
    last = json.loads(host.log_text().splitlines()[-1])
    assert last["Attributes"]["bookie.instance"] in ("1", "2")


def test_instance_that_was_killed_starts_again_and_has_its_entries(host: Host) -> None:
    with host.running() as (_, instances):
        with Peer(host.port + 1) as peer:
            assert peer.add(7, 0, [b"kept"]) == [Status.EOK]
        child = instances[1]["pid"]
        # The bookie, not the supervisor: what a crash or the kernel's out-of-memory killer does.
        subprocess.run(["kill", "-KILL", str(child)], check=True)
        wait_until(lambda: is_gone(child), "the killed bookie to be gone")
        wait_until(lambda: listens(host.port + 1), "the second instance to serve again")
        with Peer(host.port + 1) as peer:
            assert peer.read(7, 0).body == stored(7, 0, b"kept")
        assert "instance 2 was killed by SIGKILL: it starts again in 1 s" in host.log_text()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_bookies_end_when_their_supervisor_is_killed(host: Host) -> None:
    with host.running() as (supervisor, instances):
        supervisor.signal(signal.SIGKILL)
        for facts in instances:
            wait_until(lambda facts=facts: is_gone(facts["pid"]), "the bookies to be gone")


def test_instance_that_restarts_in_place_is_the_same_process_and_ends_with_its_supervisor(host: Host) -> None:
    """`bkspark cluster restart` has each bookie start its program again: its supervisor must not notice that."""
    with host.running() as (supervisor, instances):
        second = ("--instances", "2", "--instance", "2")
        began = json.loads(host.ask(*second, "state", "--json").stdout)["started_ms"]
        restarted = host.ask(*second, "restart")
        assert restarted.returncode == 0, restarted.stderr

        def serves_again() -> bool:
            state = host.ask(*second, "state", "--json")
            return state.returncode == 0 and json.loads(state.stdout)["started_ms"] > began

        wait_until(serves_again, "the second instance to serve again")
        assert json.loads(host.ask(*second, "state", "--json").stdout)["pid"] == instances[1]["pid"]
        wait_until(lambda: "instance 2 serves again" in host.log_text(), "the line about the second instance")
        assert "starts again in" not in host.log_text()
        assert "instance 2 printed" not in host.log_text()
        supervisor.signal(signal.SIGKILL)
        for facts in instances:
            wait_until(lambda facts=facts: is_gone(facts["pid"]), "the bookies to be gone")


def test_instance_whose_disk_is_gone_keeps_no_other_from_serving_and_serves_when_it_is_back(host: Host) -> None:
    """One disk must not cost a whole host."""
    disk, gone = host.directory / "ledgers-2", host.directory / "gone"
    with host.running(), Peer(host.port + 1) as peer:
        assert peer.add(7, 0, [b"kept"]) == [Status.EOK]
    disk.rename(gone)
    with host.running() as (supervisor, instances):
        assert [facts["instance"] for facts in instances] == [1]
        with Peer(host.port) as peer:
            assert peer.add(8, 0, [b"served"]) == [Status.EOK]
        assert "instance 2 ended with exit code 1: it starts again in 1 s" in host.log_text()
        wait_until(lambda: brought_back(gone, disk), "the directory to be back")
        wait_until(lambda: "instance 2 serves" in host.log_text(), "the second instance to serve")
        with Peer(host.port + 1) as peer:
            assert peer.read(7, 0).body == stored(7, 0, b"kept")
    assert supervisor.exit_code == 0


def test_instance_whose_port_is_taken_keeps_no_other_from_serving(host: Host) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", host.port + 1))
        other.listen()
        with host.running() as (_, instances):
            assert [facts["instance"] for facts in instances] == [1]
            with Peer(host.port) as peer:
                assert peer.add(7, 0, [b"one"]) == [Status.EOK]
            other.close()
            wait_until(lambda: "instance 2 serves" in host.log_text(), "the second instance to serve")
            with Peer(host.port + 1) as peer:
                assert peer.add(7, 0, [b"two"]) == [Status.EOK]


def test_another_number_of_instances_moves_no_bookie(host: Host) -> None:
    """The id, the port and the directories of an instance follow from its own number."""
    with host.running(), Peer(host.port + 1) as peer:
        assert peer.add(7, 0, [b"kept"]) == [Status.EOK]
    with host.running("--instances", "1") as (_, instances):
        assert [facts["id"] for facts in instances] == [f"127.0.0.1:{host.port}"]
    with host.running() as (_, instances), Peer(host.port + 1) as peer:
        assert [facts["id"] for facts in instances] == [f"127.0.0.1:{host.port + number}" for number in (0, 1)]
        assert peer.read(7, 0).body == stored(7, 0, b"kept")


def brought_back(gone: Path, disk: Path) -> bool:
    """Put a directory back; return whether that was possible: the bookie makes one of its name at each start."""
    try:
        shutil.rmtree(disk, ignore_errors=True)
        gone.rename(disk)
    except OSError:
        return False
    return True


def test_all_end_if_no_instance_can_start(host: Host) -> None:
    with socket.socket() as first, socket.socket() as second:
        for number, taken in enumerate((first, second)):
            taken.bind(("127.0.0.1", host.port + number))
            taken.listen()
        ended = host.ask("--instances", "2", "--json")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert f"bookiePort={host.port + 1}" in ended.stderr
    assert "cannot start: all bookies stop" in ended.stderr


SUPERVISE = """
import logging, sys, time
from bkspark.log_limit import LogLimiter
from bookie_service.admin import instances
from bookie_service.admin.shutdown import ShutdownSignals

logging.basicConfig(level=logging.INFO)
limiter = LogLimiter(time.monotonic, print)  # it limits no handler: these tests count lines
instances.PAUSE_S_MIN, instances.PAUSE_S_MAX = PAUSES
signals = ShutdownSignals()
signals.begin()
sys.exit(instances.run(sys.argv[1:], 2, signals, limiter, as_json=True))
"""
INSTANCE = """
import json, os, pathlib, signal, sys, time
number = int(sys.argv[-1])
status = pathlib.Path("/proc/self/status").read_text()
ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1], 16)
signals = [each for each in range(1, 32) if ignored >> each - 1 & 1]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(AT_STOP))
for each in (signal.SIGHUP, signal.SIGUSR1):
    signal.signal(each, lambda each, _: print(f"program {number} got {signal.Signals(each).name}", file=sys.stderr))
if number == 2:
    AT_FIRST
facts = {"signals": signals, "pid": os.getpid(), "group": os.getpgrp(), "manager": os.environ.get("NOTIFY_SOCKET")}
print(json.dumps({"id": "b", **facts}), flush=True)
if number == 2:
    AT_ONCE
while True:
    time.sleep(60)
"""


class Programs:
    """A supervisor of two programs in place of bookies. They tell which signals they ignore from the beginning, and log
    those that they get."""

    def __init__(
        self,
        directory: Path,
        *,
        at_stop: str = "0",
        at_once: str = "pass",
        at_first: str = "pass",
        pauses: tuple[float, float] = (0.01, 0.01),
    ) -> None:
        """`at_stop`: the exit code upon SIGTERM, an expression of `number`. `at_once`: what the second one does when it
        serves; `at_first`: before that. `pauses`: the first and the longest pause before one starts again."""
        self.log = directory / "log"
        self.python = directory / "python"
        """Starts each program. `command` starts their supervisor."""
        self.install()
        instance = INSTANCE.replace("AT_STOP", at_stop).replace("AT_ONCE", at_once).replace("AT_FIRST", at_first)
        supervise = SUPERVISE.replace("PAUSES", str(pauses))
        self.command = [sys.executable, "-c", supervise, str(self.python), "-c", instance]

    def start(self, **variables: str) -> ChildProcess:
        return ChildProcess("supervisor", self.command, self.log, environment=variables)

    def install(self) -> None:
        self.python.symlink_to(sys.executable)

    @contextlib.contextmanager
    def supervised(self, **variables: str) -> Iterator[tuple[ChildProcess, list[dict[str, Any]]]]:
        """The supervisor, and what it reports of each program."""
        supervisor = self.start(**variables)
        try:
            line = next(supervisor.lines(time.monotonic() + START_S), None)
            assert line is not None, supervisor.last_log_line()
            yield supervisor, json.loads(line)["instances"]
        finally:
            supervisor.stop(STOP_S)


def test_signals_that_reach_an_instance_before_it_handles_them_do_not_end_it(tmp_path: Path) -> None:
    """A SIGHUP at that moment ended the instance, which counted as one that cannot start: all bookies stopped."""
    with Programs(tmp_path).supervised() as (supervisor, instances):
        for facts in instances:
            assert {signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2} <= {*facts["signals"]}
    assert supervisor.exit_code == 0


def test_instance_that_fails_when_it_is_stopped_is_the_supervisors_failure(tmp_path: Path) -> None:
    """A bookie whose journal fails while it stops ends with exit code 1, and so must the service of all of them."""
    programs = Programs(tmp_path, at_stop="3 if number == 2 else 0")
    with programs.supervised() as (supervisor, _):
        pass
    assert supervisor.exit_code == 1
    assert "instance 2 ended with exit code 3 when it was stopped" in programs.log.read_text()


def test_configuration_that_is_wrong_later_ends_no_instance_that_serves(tmp_path: Path) -> None:
    """Someone may be editing the file while the supervisor tries an instance with a broken disk again."""
    tries = tmp_path / "tries"
    at_first = f"""
    tries = pathlib.Path({str(tries)!r})
    tries.write_text((tries.read_text() if tries.exists() else "") + "x")
    sys.exit(1 if tries.read_text() == "x" else 2)
"""
    with Programs(tmp_path, at_first=at_first.strip()).supervised() as (supervisor, instances):
        assert len(instances) == 1
        wait_until(lambda: len(tries.read_text()) > 3, "the second program to be tried again")
        assert supervisor.exit_code is None


def test_instance_that_cannot_be_started_again_ends_no_other(tmp_path: Path) -> None:
    """As without memory for a process, after the kernel killed a bookie for the same reason: the error ended the
    supervisor, and with it all bookies, by SIGKILL."""
    gone, back = tmp_path / "gone", tmp_path / "back"
    at_once = f"""
    gone, back = pathlib.Path({str(gone)!r}), pathlib.Path({str(back)!r})
    if not gone.exists():
        gone.touch()
        pathlib.Path({str(tmp_path / "python")!r}).unlink()
        sys.exit(1)
    back.touch()
"""
    programs = Programs(tmp_path, at_once=at_once.strip())
    with programs.supervised() as (supervisor, _):
        wait_until(lambda: "instance 2 cannot be started" in programs.log.read_text(), "a failed start")
        programs.install()
        wait_until(back.exists, "the second program to run again")
    assert supervisor.exit_code == 0


STRAY = {
    "text": """print("OMP: Warning", flush=True)""",
    "text of no encoding": """os.write(1, bytes([255, 10]))""",
    "an empty line": """print(flush=True)""",
    "other JSON": """print([{"id": "b"}], {}, "null", 5, sep=chr(10), flush=True)""",
    "deep JSON": """print("[" * 100_000, flush=True)""",
    "a long number": """print("9" * 5_000, flush=True)""",
    "a long line": """print("x" * (3 << 20), flush=True)""",
}


@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY)
def test_instance_that_prints_something_else_first_serves_like_the_others(tmp_path: Path, stray: str) -> None:
    """A library that printed a warning ended the supervisor, and with it all bookies of the host, by SIGKILL."""
    programs = Programs(tmp_path, at_first=stray)
    with programs.supervised() as (supervisor, instances):
        assert [(facts["instance"], facts["id"]) for facts in instances] == [(1, "b"), (2, "b")]
    assert supervisor.exit_code == 0
    assert "instance 2 printed" in programs.log.read_text()


def test_instance_that_restarts_in_place_says_so_in_one_line_of_its_own(tmp_path: Path) -> None:
    """Each restart counted as a stray line: after five of them, no stray line of that instance was logged."""
    at_once = f"""
    for restart in range({STRAY_LINES_MAX}):
        print(json.dumps({{"id": "b", **facts}}), flush=True)
    print("stray", flush=True)
"""
    programs = Programs(tmp_path, at_once=at_once.strip())
    with programs.supervised():
        wait_until(lambda: "instance 2 printed stray" in programs.log.read_text(), "the stray line")
    text = programs.log.read_text()
    assert text.count("instance 2 serves again") == STRAY_LINES_MAX
    assert text.count("instance 2 printed") == 1


def test_object_of_another_name_is_a_stray_line_of_an_instance_that_serves(tmp_path: Path) -> None:
    programs = Programs(tmp_path, at_once="""print(json.dumps({"id": "other"}), flush=True)""")
    with programs.supervised():
        wait_until(lambda: 'instance 2 printed {"id": "other"}' in programs.log.read_text(), "the stray line")
    assert "serves again" not in programs.log.read_text()


def test_instance_that_prints_without_end_is_never_blocked_and_does_not_fill_the_log(tmp_path: Path) -> None:
    """Only its first line was read: it stopped in the middle of a write when the pipe was full."""
    printed = tmp_path / "printed"
    at_once = f"""
    for line in range(2_000):
        print("a line that nothing asked for" * 100, line)
    sys.stdout.flush()
    pathlib.Path({str(printed)!r}).touch()
"""
    programs = Programs(tmp_path, at_once=at_once.strip())
    with programs.supervised() as (supervisor, _):
        wait_until(printed.exists, "the second program to have printed all lines")
    assert supervisor.exit_code == 0
    lines = [line for line in programs.log.read_text().splitlines() if "instance 2 printed" in line]
    assert 0 < len(lines) <= STRAY_LINES_MAX


def test_instance_that_a_signal_without_a_name_kills_starts_again(tmp_path: Path) -> None:
    """Signals between SIGRTMIN and SIGRTMAX have numbers alone: the search for a name ended the supervisor."""
    began = tmp_path / "began"
    at_once = f"""
    if not pathlib.Path({str(began)!r}).exists():
        pathlib.Path({str(began)!r}).touch()
        os.kill(os.getpid(), signal.SIGRTMIN + 3)
"""
    programs = Programs(tmp_path, at_once=at_once.strip())
    with programs.supervised() as (supervisor, _):
        ended = f"instance 2 was killed by signal {signal.SIGRTMIN + 3}: it starts again"
        wait_until(lambda: ended in programs.log.read_text(), "the end of the second program")
        assert supervisor.exit_code is None
    assert supervisor.exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_signals_that_a_bookie_takes_reach_each_instance(tmp_path: Path, number: signal.Signals) -> None:
    """ "SIGHUP and SIGUSR1 are passed on to each": bookies read their configuration again, or log their state."""
    programs = Programs(tmp_path)
    with programs.supervised() as (supervisor, _):
        supervisor.signal(number)
        for each in (1, 2):
            wait_until(lambda each=each: f"program {each} got {number.name}" in programs.log.read_text(), "the signal")
        assert supervisor.exit_code is None
    assert supervisor.exit_code == 0


def test_signal_of_a_terminal_reaches_only_the_supervisor(tmp_path: Path) -> None:
    """A Ctrl-C goes to a group of processes. Bookies that got it, too, would end beside an orderly stop."""
    with Programs(tmp_path).supervised() as (supervisor, instances):
        assert [facts["group"] for facts in instances] == [facts["pid"] for facts in instances]
        supervisor.signal(signal.SIGINT)
        assert supervisor.wait(STOP_S)
    assert supervisor.exit_code == 0
    assert all(is_gone(facts["pid"]) for facts in instances)


def test_instance_that_an_operator_stopped_stays_stopped_and_all_of_them_end_the_supervisor(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    with programs.supervised() as (supervisor, instances):
        for facts in reversed(instances):
            assert supervisor.exit_code is None
            os.kill(facts["pid"], signal.SIGTERM)
            stopped = f"instance {facts['instance']} was stopped; it stays so"
            wait_until(lambda stopped=stopped: stopped in programs.log.read_text(), "the line about the stop")
        assert supervisor.wait(STOP_S)
    assert supervisor.exit_code == 0


def test_instance_that_crashes_again_and_again_starts_after_longer_and_longer_pauses(tmp_path: Path) -> None:
    """ "The delay doubles up to a minute": a bookie that cannot run must not take the processor from the others."""
    programs = Programs(tmp_path, at_once="sys.exit(3)", pauses=(0.01, 60.0))
    with programs.supervised() as (supervisor, _):
        wait_until(lambda: "it starts again in 0.08 s" in programs.log.read_text(), "the fourth start")
        lines = [line for line in programs.log.read_text().splitlines() if "it starts again in" in line]
        assert [line.split()[-2] for line in lines[:4]] == ["0.01", "0.02", "0.04", "0.08"]
        assert supervisor.exit_code is None


def test_stop_does_not_wait_for_the_pause_of_an_instance_that_crashed(tmp_path: Path) -> None:
    programs = Programs(tmp_path, at_once="sys.exit(3)", pauses=(3600.0, 3600.0))
    with programs.supervised() as (supervisor, _):
        wait_until(lambda: "it starts again in 3600 s" in programs.log.read_text(), "the crash")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait(STOP_S)
    assert supervisor.exit_code == 0


def test_stop_ends_an_instance_that_does_not_serve_yet(tmp_path: Path) -> None:
    """The replay of a journal may take long. Until it ends, the supervisor has reported nothing."""
    begun = tmp_path / "begun"
    programs = Programs(tmp_path, at_first=f"pathlib.Path({str(begun)!r}).touch(); time.sleep(3600)")
    supervisor = programs.start()
    try:
        wait_until(begun.exists, "the second program to begin")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait(STOP_S)
        assert list(supervisor.lines()) == []
    finally:
        supervisor.kill()
    assert supervisor.exit_code == 0


def test_service_manager_hears_of_all_instances_from_the_supervisor_alone(tmp_path: Path) -> None:
    """ "It prints one line and reports READY to systemd": READY of the first bookie would come too early."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "manager"))
        manager.settimeout(START_S)
        with Programs(tmp_path).supervised(NOTIFY_SOCKET=str(tmp_path / "manager")) as (_, instances):
            assert [facts["manager"] for facts in instances] == [None, None]
        messages = [manager.recv(4096).decode() for _ in range(3)]
    assert messages == [
        "STATUS=starting 2 bookies",
        "READY=1\nSTATUS=2 of 2 bookies serve",
        "STOPPING=1\nSTATUS=all bookies stop",
    ]


def test_service_manager_hears_of_all_instances_although_their_line_cannot_be_printed(tmp_path: Path) -> None:
    """The reader of the line may have left (`| head`). The manager waited for READY, and then ended all bookies. Later
    an orderly stop ended with an error, because Python tried to print the line once more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "manager"))
        manager.settimeout(START_S)
        command = Programs(tmp_path).command
        # Python takes an empty PYTHONUNBUFFERED for one that is not set.
        variables = {**os.environ, "PYTHONUNBUFFERED": "", "NOTIFY_SOCKET": str(tmp_path / "manager")}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables) as supervisor:
            assert supervisor.stdout is not None
            supervisor.stdout.close()
            try:
                assert [manager.recv(4096).decode() for _ in range(2)][1].startswith("READY=1")
                supervisor.terminate()
                assert supervisor.wait(STOP_S) == 0
            finally:
                supervisor.kill()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--instances", "65"], "--instances 65 must lie between 1 and 64"),
        (["--instance", "1"], "--instance 1 needs --instances"),
        (["--instances", "2", "--instance", "3"], "--instance 3 must lie between 1 and 2"),
        (["--instances", "2", "--check"], "add --instance I to --instances"),
        (["--instances", "2", "reload"], "add --instance I to --instances"),
        (["--instances", "2", "state", "all"], "add --instance I to --instances"),
        (["--instances", "65", "state"], "--instances 65 must lie between 1 and 64"),
        (["--instances", "2", "--set", "bookieId=one"], "bookieId=one: 2 instances cannot share an id"),
        (["--instances", "2", "--set", "bookieport=1"], "bookieport"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(host: Host, options: list[str], reason: str) -> None:
    ended = host.ask(*options)
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
