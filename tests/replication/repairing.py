"""Autorecovery and cluster commands as processes, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from bkspark.blocking import Client
from bkspark.cli.__main__ import main
from bkspark.cli.child_process import ChildProcess
from bkspark.cli.cluster import repair_command
from bkspark.client import Client as AsyncClient
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.operations import check_cluster, decommission
from bookie_service.replication.options import AutoRecoveryOptions
from tests.planting import replaced
from tests.polling import wait_until

WAIT_S = 120.0


@contextlib.contextmanager
def autorecovery(uri: str, log: Path, **settings: object) -> Iterator[ChildProcess]:
    """Autorecovery of a cluster as a process, while inside; `settings` are configuration keys."""
    values = {"metadataServiceUri": uri, **{key: str(value) for key, value in settings.items()}}
    process = ChildProcess("autorecovery", repair_command("autorecovery", settings=values, json=True), log)
    try:
        record = json.loads(next(process.lines(time.monotonic() + WAIT_S)))
        assert record["pid"] == process.pid
        yield process
    finally:
        process.stop(10)


def command(uri: str, *words: str, code: int | None = 0) -> tuple[dict[str, Any], str]:
    """Return (the last line that `bkspark cluster ... --json` prints, its stderr).

    Asserts the exit code, unless it is None.
    """
    lines, errors = command_lines(uri, *words, code=code)
    return lines[-1] if lines else {}, errors


def command_lines(uri: str, *words: str, code: int | None = 0) -> tuple[list[dict[str, Any]], str]:
    """Return (the lines that `bkspark cluster ... --json` prints, its stderr).

    It runs in this process, up to where it would replace itself by a program of the server's: that is a child.
    """
    printed, errors = io.StringIO(), io.StringIO()
    with (
        replaced(os, "execv", _run_and_exit),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
    ):
        ended = main(["cluster", *words, "--uri", uri, "--json"])
    assert code is None or ended == code, errors.getvalue()
    return [json.loads(line) for line in printed.getvalue().splitlines()], errors.getvalue()


def _run_and_exit(program: str, line: list[str]) -> NoReturn:
    done = subprocess.run(line, capture_output=True, text=True, timeout=WAIT_S, check=False)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    raise SystemExit(done.returncode)


def check(uri: str) -> dict[str, Any]:
    """Return what a check of the cluster finds, in this process."""

    async def run() -> dict[str, Any]:
        async with AsyncClient(uri) as client:
            found = await check_cluster(await RepairedCluster.of(client), AutoRecoveryOptions(), lambda _: None)
        return {**asdict(found), "ok": found.ok}

    return asyncio.run(run())


def forget(uri: str, bookie: str) -> int:
    """Decommission a bookie, in this process; return how many ledgers were moved."""

    async def run() -> int:
        async with AsyncClient(uri) as client:
            return await decommission(await RepairedCluster.of(client), bookie, AutoRecoveryOptions(), lambda _: None)

    return asyncio.run(run())


def overwrite(uri: str, path: str, data: bytes) -> None:
    """Put other data into a metadata node."""

    async def write() -> None:
        tree = await open_tree(MetadataUri.parse(uri))
        try:
            await tree.set(path, data, -1)
        finally:
            await tree.close()

    asyncio.run(write())


def naming(client: Client, ledger_ids: Sequence[int], bookie: str) -> list[int]:
    """Return those ledgers of which an ensemble names a bookie."""
    return [id for id in ledger_ids if any(bookie in each.bookies for each in client.metadata(id).fragments)]


def wait_until_moved(client: Client, ledger_ids: Sequence[int], bookie: str) -> None:
    """Return when no ensemble of these ledgers names a bookie any more."""
    left = list(ledger_ids)

    def is_moved() -> bool:
        left[:] = naming(client, left, bookie)
        return not left

    wait_until(is_moved, f"all ledgers to leave bookie {bookie}", WAIT_S)
