"""Autorecovery in a process of its own serves HTTP: its metrics, and the paths that are about the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from bkspark.blocking import Client
from bkspark.cli.child_process import ChildProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.client import Client as AsyncClient
from bkspark.entries import EntryBatch
from bkspark.ledger.range_reader import RangeReader
from bkspark.metadata.paths import underreplication_path
from bkspark.metadata.underreplication import UnderreplicationStore
from bookie_service.replication.cluster_commands import READ_PIECE_BYTES, ClusterCommands
from bookie_service.replication.options import AutoRecoveryOptions
from tests.bookie.child import STOP_S, BookieChild, new_cluster
from tests.bookie.http_process import answer, call
from tests.bookie.prometheus import is_filled, needs_prometheus, running_prometheus
from tests.bookie.published_panels import RECOVERY
from tests.planting import around
from tests.polling import wait_until


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.cluster
@pytest.mark.parametrize(("count", "size"), [(40, 1_000_000), (3_000, 10)])
def test_entries_for_http_are_read_a_little_at_a_time(
    zookeeper: ZooKeeperProcess, tmp_path: Path, count: int, size: int
) -> None:
    """One GET of entries read a thousand at once: a gigabyte in the bookie, if each has a megabyte."""
    uri, sizes = new_cluster(zookeeper.connect_string, f"entries-{tmp_path.name}"), []

    async def read_some(old: Any, self: RangeReader, *arguments: Any) -> EntryBatch:
        batch = await old(self, *arguments)
        sizes.append(batch.payload_bytes)
        return batch

    async def asked(ledger_id: int) -> list[int]:
        commands = ClusterCommands(uri, "a test", AutoRecoveryOptions())
        try:
            return [entry_id async for piece in commands.entries(ledger_id, 0, -1) for entry_id in piece]
        finally:
            await commands.close()

    with BookieChild(tmp_path / "bookie", uri).running():
        with Client(uri) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append_many([bytes(size)] * count)
        with around(RangeReader, "read_some", read_some):
            found = asyncio.run(asked(writer.ledger_id))
    assert found == list(range(count))
    assert max(sizes) <= 8 * size + READ_PIECE_BYTES
    assert len(sizes) <= 2 + count * size // READ_PIECE_BYTES


@contextlib.contextmanager
def autorecovery(uri: str, folder: Path, **settings: object) -> Iterator[tuple[ChildProcess, int, Path]]:
    """Run autorecovery with a configuration file; yield its process, its HTTP port and the file."""
    (port,) = free_ports(1)
    file = folder / "bk_server.conf"
    keys = {"metadataServiceUri": uri, "httpServerEnabled": "true", "httpServerPort": port, **settings}
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    command = [sys.executable, "-m", "bookie_service.replication", "autorecovery", "--json", "--config", str(file)]
    process = ChildProcess("autorecovery", command, folder / "log")
    try:
        assert next(process.lines(time.monotonic() + 60), None) is not None, process.last_log_line()
        yield process, port, file
    finally:
        process.stop(STOP_S)
    assert process.exit_code == 0


@pytest.mark.cluster
def test_listing_that_cannot_be_read_is_listed_without_bookies_beside_the_others(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    uri = new_cluster(zookeeper.connect_string, f"unreadable-{tmp_path.name}")

    async def test() -> None:
        async with AsyncClient(uri) as client:
            tree = await client.tree()
            store = UnderreplicationStore(tree, client.uri)
            for ledger_id in (5, 6):
                await store.mark(ledger_id, ["b:1"], 0)
            leaf = f"{client.uri.root}/underreplication/ledgers/{underreplication_path(5)}"
            await tree.set(leaf, b"nonsense {", -1)
        commands = ClusterCommands(uri, "a test", AutoRecoveryOptions())
        try:
            listed = [
                [(each.ledger_id, each.missing) for each in await commands.underreplicated(*of)]
                for of in ((), ("b:1",), ("", "b:1"))
            ]
        finally:
            await commands.close()
        assert listed == [[(5, ()), (6, ("b:1",))], [(6, ("b:1",))], [(5, ())]]

    asyncio.run(test())


@pytest.mark.cluster
def test_autorecovery_serves_its_metrics_and_the_clusters_paths(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    uri = new_cluster(zookeeper.connect_string, f"recovery-{tmp_path.name}")
    with autorecovery(uri, tmp_path) as (process, port, _):
        assert ask(port, "/heartbeat") == (200, "OK\n")
        wait_until(lambda: ask(port, "/api/v1/autorecovery/who_is_auditor")[0] == 200, "an auditor to be elected")
        status, metrics = ask(port, "/metrics")
        assert status == 200
        for name in (
            "auditor_NUM_UNDER_REPLICATED_LEDGERS_count",
            "replication_worker_NUM_ENTRIES_READ",
            "replication_worker_NUM_ENTRIES_WRITTEN",
            "replication_worker_NUM_BYTES_READ_sum",
            "replication_worker_NUM_BYTES_WRITTEN_sum",
            "bkspark_underreplicated_ledgers",
            "process_resident_memory_bytes",
        ):
            assert f"\n{name}" in metrics, name
        assert ask(port, "/api/v1/autorecovery/status")[0] == 200
        assert ask(port, "/api/v2/autorecovery")[0] == 200
        # There is no bookie: its paths say so, and do not end with an error of the server.
        for path in ("state", "is_ready", "info", "gc_details", "state/readonly", "expand_storage"):
            assert ask(port, f"/api/v1/bookie/{path}") == (404, "there is no bookie in this process\n"), path
        assert ask(port, "/api/v2/bookie")[0] == 404
    first, *others, stopped = (tmp_path / "log").read_text().splitlines()
    assert re.search(rf"INFO autorecovery starts: bkspark \S+, pid {process.pid}; .*metadataServiceUri={uri}", first)
    # Lines about the election of an auditor may come after it.
    assert [line for line in others if line.endswith("INFO autorecovery stops: a signal requested it")]
    assert " INFO autorecovery has stopped in order, after " in stopped


@pytest.mark.cluster
@needs_prometheus
def test_every_panel_of_published_dashboards_about_autorecovery_has_a_value(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    uri = new_cluster(zookeeper.connect_string, f"panels-{tmp_path.name}")
    with autorecovery(uri, tmp_path) as (_, target, _), running_prometheus(tmp_path / "prometheus", target) as port:
        wait_until(lambda: all(is_filled(port, each) for each in RECOVERY), "every panel to have a value", 60)


@pytest.mark.cluster
def test_autorecovery_takes_live_keys_by_http_and_by_signal(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    uri = new_cluster(zookeeper.connect_string, f"live-{tmp_path.name}")
    config, log = "/api/v1/config/server_config", tmp_path / "log"
    with autorecovery(uri, tmp_path, passwd="s3cret") as (process, port, file):
        keys = answer(port, config)
        assert (keys["httpServerPort"], keys["passwd"]) == (str(port), "***")
        assert call(port, config, "PUT", {"replicationRateByBytes": "5000"}) == (200, "Success set server config.")
        assert call(port, config, "PUT", {"httpServerPort": "1"})[0] == 400
        wait_until(
            lambda: [each["bytes_per_s"] for each in answer(port, "/api/v2/repairs")["workers"]] == [5000],
            "the worker to report its new rate",
        )
        file.write_text(file.read_text() + "logLevel=debug\nreplicationRateByBytes=7000\n")
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: "SIGHUP: the configuration was read again, 2 keys changed" in log.read_text(), "the signal")
        keys = answer(port, config)
        assert (keys["logLevel"], keys["replicationRateByBytes"]) == ("debug", "7000")
    text = log.read_text()
    assert "audit: http:127.0.0.1: set replicationRateByBytes=5000 (before: its default)" in text
    assert "audit: signal:SIGHUP: set replicationRateByBytes=7000 (before: 5000)" in text


@pytest.mark.cluster
def test_repeated_lines_of_autorecovery_are_summed_up(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    uri = new_cluster(zookeeper.connect_string, f"floods-{tmp_path.name}")
    with autorecovery(uri, tmp_path) as (_, port, _):
        for _ in range(100):
            with pytest.raises(HTTPError):
                urlopen(Request(f"http://127.0.0.1:{port}/heartbeat", headers={"Host": "elsewhere"}), timeout=30)
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if "refused" in line]
    summed = [int(found[1]) for line in lines if (found := re.search(r"WARNING (\d+) more lines like this one", line))]
    assert len(lines) - len(summed) + sum(summed) == 100
    assert summed


@pytest.mark.cluster
def test_the_log_of_autorecovery_has_the_form_and_the_level_of_its_command(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    uri = new_cluster(zookeeper.connect_string, f"form-{tmp_path.name}")
    words = ["cluster", "autorecovery", "--uri", uri, "--log-format", "json", "--log-level", "debug", "--json"]
    words += ["--set", "httpServerEnabled=true", "--set", "httpServerPort=0"]
    process = ChildProcess("autorecovery", [sys.executable, "-m", "bkspark.cli", *words], tmp_path / "log")
    try:
        said = next(process.lines(time.monotonic() + 60), None)
        assert said is not None, process.last_log_line()
        port = json.loads(said)["http_port"]
        assert ask(port, "/heartbeat") == (200, "OK\n")
    finally:
        process.stop(STOP_S)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    events = {line["Attributes"].get("event.name"): line["Attributes"] for line in lines}
    assert {"start", "serving", "stop"} <= events.keys()
    # Neither the log nor the output said at which port it listened.
    assert events["serving"]["http"] == f"127.0.0.1:{port}"
    assert re.fullmatch(r"autorecovery has stopped in order, after [0-9.]+ s", lines[-1]["Body"])
    assert events["start"]["keys"]["logLevel"] == "debug"
    assert "DEBUG" in {line["SeverityText"] for line in lines}
