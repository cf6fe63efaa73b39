"""The control socket of a bookie, with real sockets and without a bookie."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bkspark.errors import BookKeeperError
from bookie_service.admin import control, live_commands
from tests.bookie.control_reports import ledgers, report
from tests.bookie.small_disks import mounted
from tests.polling import wait_until


def collect(directories: list[str], as_json: bool) -> int:
    """Run the command that collects garbage; return its exit code."""
    return live_commands.run(directories, live_commands.COLLECT, [], as_json)


COLLECT = {"do": live_commands.COLLECT}


def served(directories: list[str], act: Callable[[], object], do: control.Do = report) -> object:
    """Return what `act()` returned on another thread while the socket was served."""

    async def serve() -> object:
        async with control.serving(directories, do):
            return await asyncio.wait_for(asyncio.to_thread(act), 120)

    return asyncio.run(serve())


def test_answer_has_what_the_pass_did(tmp_path: Path) -> None:
    directories = ledgers(tmp_path, "a" * 120)  # longer than a socket's address may be
    answer = served(directories, lambda: control.ask(directories, COLLECT))
    assert isinstance(answer, dict)
    assert answer.pop("seconds") >= 0
    assert answer == {
        "dropped_ledgers": 3,
        "removed_logs": 2,
        "compacted_logs": 0,
        "damaged_logs": 0,
        "freed_bytes": 1000,
        "kept_because": "a reason",
    }


def test_command_prints_json_or_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = ledgers(tmp_path)
    assert served(directories, lambda: collect(directories, True)) == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == 1000
    assert served(directories, lambda: collect(directories, False)) == 0
    assert capsys.readouterr().out.startswith(
        "3 ledgers dropped, 2 entry logs removed, 0 rewritten, 0 damaged and kept, 1000 bytes freed; a reason ("
    )


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("plan", "", "-"),
        ("read_only", True, "yes"),
        ("registered", False, "no"),
        ("major_at_ms", 0, "-"),
        ("free_bytes", 78 * 1024**3, "83,751,862,272 (78.0 GiB)"),
        ("connections", 12, "12"),
        ("reason", "a\nb", "a\\nb"),
        ("compaction_suspended", ["minor", "major"], "minor, major"),
        ("directories", [{"kind": "journal", "used_percent": 1.5}] * 2, "kind journal, used_percent 1.5; " * 2),
        ("changed", {"logLevel": ["", "debug"]}, "logLevel from its default to debug"),
    ],
)
def test_answer_is_printed_for_a_person_on_one_line_for_each_member(name: str, value: object, text: str) -> None:
    assert live_commands.shown(name, value) == text.removesuffix("; ")


def test_bookie_that_does_not_answer_is_an_error_and_not_waited_for_without_end(tmp_path: Path) -> None:
    directories = ledgers(tmp_path)

    async def never(request: Mapping[str, Any], who: str) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    def ask() -> None:
        with pytest.raises(BookKeeperError, match="the bookie has not answered"):
            control.ask(directories, {"do": "state"}, 0.1)

    served(directories, ask, never)


def test_defect_is_answered_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The connection was closed without an answer, as if the bookie had ended."""
    directories = ledgers(tmp_path)

    async def broken(request: Mapping[str, Any], who: str) -> dict[str, Any]:
        raise TypeError("unhashable type")

    def ask() -> None:
        with pytest.raises(BookKeeperError, match="an unexpected error; the bookie's log has it"):
            control.ask(directories, {"do": "state"}, 10)

    served(directories, ask, broken)
    assert ["this is a defect" in record.getMessage() for record in caplog.records] == [True]


def test_without_a_bookie_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = ledgers(tmp_path)
    for directory in (*directories, str(tmp_path / "none")):
        assert collect([directory], True) == 1
        assert f"no bookie runs on {directory}" in capsys.readouterr().err
    # The socket that a killed bookie leaves is not a bookie, and blocks no other.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.path.relpath(tmp_path / "ledgers" / "current" / control.NAME))
    with pytest.raises(BookKeeperError, match="no bookie runs on"):
        control.ask(directories, COLLECT)
    assert served(directories, lambda: collect(directories, True)) == 0


def test_socket_is_where_a_disk_takes_it(tmp_path: Path) -> None:
    with mounted(tmp_path / "bad", 1 << 20) as bad:
        (bad / "current").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", str(bad)], check=True)
        directories = [str(bad), *ledgers(tmp_path)]
        assert served(directories, lambda: collect(directories, True)) == 0
        assert not (tmp_path / "ledgers" / "current" / control.NAME).exists()
        with pytest.raises(BookKeeperError, match=f"no bookie runs on {bad}"):
            control.ask(directories, COLLECT)
        with pytest.raises(OSError, match="Read-only file system"):
            served([str(bad)], lambda: None)


def test_only_the_owner_may_open_the_socket_and_it_goes_with_the_bookie(tmp_path: Path) -> None:
    directories = ledgers(tmp_path)
    path = tmp_path / "ledgers" / "current" / control.NAME
    mode = served(directories, lambda: stat.S_IMODE(path.stat().st_mode))
    assert mode == 0o600
    assert not path.exists()


@pytest.mark.parametrize("line", [b"\n", b"[]\n", b"{}\n", b'{"do": 1}\n', b"\xff\n", b"[" * 60_000 + b"\n"])
def test_what_is_not_a_request_is_answered_with_an_error(line: bytes, tmp_path: Path) -> None:
    directories = ledgers(tmp_path)

    def send() -> bytes:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(os.path.relpath(tmp_path / "ledgers" / "current" / control.NAME))
            peer.sendall(line)
            return peer.makefile("rb").readline()

    answer = served(directories, send)
    assert isinstance(answer, bytes)
    assert "not a request" in json.loads(answer)["error"]


def test_peers_that_say_nothing_or_too_much_are_closed_and_others_go_on(tmp_path: Path) -> None:
    directories = ledgers(tmp_path)

    def crowd() -> object:
        peers = []
        try:
            for _ in range(control.CONNECTIONS_MAX):
                peer = socket.socket(socket.AF_UNIX)
                peer.connect(os.path.relpath(tmp_path / "ledgers" / "current" / control.NAME))
                peers.append(peer)
            peers[0].sendall(b"x" * 100_000)
            assert peers[0].makefile("rb").read() == b"", "closed"
            return control.ask(directories, COLLECT)["removed_logs"]
        finally:
            for peer in peers:
                peer.close()

    assert served(directories, crowd) == 2


def peer_at(tmp_path: Path) -> socket.socket:
    """Return a connection to the socket of `ledgers(tmp_path)`."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(60)
    peer.connect(os.path.relpath(tmp_path / "ledgers" / "current" / control.NAME))
    return peer


def test_connection_beyond_the_limit_is_closed(tmp_path: Path) -> None:
    directories = ledgers(tmp_path)
    begun: list[str] = []

    async def hold(request: Mapping[str, Any], who: str) -> dict[str, Any]:
        begun.append(who)
        await asyncio.Event().wait()
        raise AssertionError

    def crowd() -> None:
        with contextlib.ExitStack() as opened:
            for _ in range(control.CONNECTIONS_MAX):
                opened.enter_context(peer_at(tmp_path)).sendall(b'{"do": "any"}\n')
            wait_until(lambda: len(begun) == control.CONNECTIONS_MAX, "all requests to be with their handler")
            with peer_at(tmp_path) as one_more, contextlib.suppress(ConnectionError):
                one_more.sendall(b'{"do": "any"}\n')
                assert one_more.recv(1) == b""
            assert len(begun) == control.CONNECTIONS_MAX

    served(directories, crowd, hold)


def test_request_that_does_not_come_in_time_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "REQUEST_S_MAX", 0.1)
    directories = ledgers(tmp_path)

    def half() -> bytes:
        with peer_at(tmp_path) as peer:
            peer.sendall(b'{"do": ')
            return peer.recv(1)

    assert served(directories, half) == b""


def test_pass_that_could_not_be_done_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(request: Mapping[str, Any], who: str) -> dict[str, Any]:
        raise BookKeeperError("the bookie stopped before garbage was collected")

    directories = ledgers(tmp_path)
    assert served(directories, lambda: collect(directories, True), refuse) == 1
    assert capsys.readouterr().err == "bookie: the bookie stopped before garbage was collected\n"


def test_request_names_its_sender(tmp_path: Path) -> None:
    directories = ledgers(tmp_path)

    async def name(request: Mapping[str, Any], who: str) -> dict[str, Any]:
        return {"who": who}

    answer = served(directories, lambda: control.ask(directories, {"do": "any"}), name)
    assert isinstance(answer, dict)
    assert answer["who"] == f"control:{getpass.getuser()} (pid {os.getpid()})"
