"""`bkspark bookie --instances N state`, with real control sockets and without bookies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bkspark.errors import BookKeeperError
from bookie_service.admin import control, instance_states
from bookie_service.storage import layout


def ledgers(directory: Path, number: int) -> list[str]:
    """Return the ledger directories of an instance, which it has used before."""
    current = Path(layout.current(str(directory / f"instance-{number}")))
    current.mkdir(parents=True, exist_ok=True)
    return [str(current.parent)]


async def serving(request: Mapping[str, Any], who: str) -> dict[str, Any]:
    assert request == {"do": "state"}
    return {"phase": "serving", "free_bytes": 5}


async def failing(request: Mapping[str, Any], who: str) -> dict[str, Any]:
    raise BookKeeperError("the ledger directories do not answer")


def state(directory: Path, does: list[control.Do | None], *, as_json: bool = True) -> int:
    """Return the exit code of `state` for instances that answer so; None: the instance does not run."""
    directories = {number: ledgers(directory, number) for number in range(1, len(does) + 1)}

    async def run() -> int:
        async with contextlib.AsyncExitStack() as served:
            for number, do in enumerate(does, 1):
                if do is not None:
                    await served.enter_async_context(control.serving(directories[number], do))
            return await asyncio.to_thread(instance_states.run, directories, as_json)

    return asyncio.run(run())


def test_state_of_all_has_that_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert state(tmp_path, [serving, serving]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["instance"], each["phase"]) for each in found["instances"]] == [(1, "serving"), (2, "serving")]
    assert found["failed"] == []
    assert state(tmp_path, [serving, serving], as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        *("instance 1", "phase serving", "free_bytes 5"),
        *("instance 2", "phase serving", "free_bytes 5"),
    ]


def test_instance_that_does_not_run_is_not_a_failure_while_another_one_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "An instance that has failed is started again, and the others serve": a check must not end all of them."""
    assert state(tmp_path, [None, serving, None]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["failed"] == [1, 3]
    assert "instance 1: no bookie runs on" in printed.err


def test_socket_that_a_killed_instance_left_is_not_an_instance_that_hangs(tmp_path: Path) -> None:
    (directory,) = ledgers(tmp_path, 1)
    with socket.socket(socket.AF_UNIX) as dead, contextlib.chdir(layout.current(directory)):
        dead.bind(control.NAME)
    assert state(tmp_path, [None, serving]) == 0


def test_no_instance_that_runs_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert state(tmp_path, [None, None]) == 1
    assert json.loads(capsys.readouterr().out) == {"instances": [], "failed": [1, 2]}


def test_instance_that_runs_and_does_not_answer_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its supervisor does not notice that."""
    assert state(tmp_path, [serving, failing]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["failed"] == [2]
    assert "instance 2: the ledger directories do not answer" in printed.err
