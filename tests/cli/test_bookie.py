"""`bkspark bookie` as a process: it serves, stops cleanly, and says in one line why it cannot start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.ports import free_ports

pytestmark = pytest.mark.cluster

END_S = 180


def command(uri: str, folder: Path, port: int, *more: str) -> list[str]:
    settings = {
        "bookiePort": port,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        "metadataServiceUri": uri,
        "diskUsageThreshold": "0.999",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "bkspark.cli", "bookie", *options, *more]


def fails(*arguments: object) -> str:
    """Return the one line of a bookie that does not start."""
    ended = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, timeout=END_S)
    assert ended.returncode in (1, 2)
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    return line


def test_bookie_serves_until_sigterm_and_a_client_can_use_it(cluster, tmp_path):
    (port,) = free_ports(1)
    bookie = subprocess.Popen(command(cluster.uri, tmp_path, port, "--json"), stdout=subprocess.PIPE, text=True)
    assert bookie.stdout is not None
    try:
        assert json.loads(bookie.stdout.readline()) == {"id": f"127.0.0.1:{port}", "pid": bookie.pid}
        with Client(cluster.uri) as client:
            with client.create(ensemble=4, write_quorum=4, ack_quorum=4) as writer:
                writer.append_many([b"one", b"two"])
            assert f"127.0.0.1:{port}" in client.metadata(writer.ledger_id).last_fragment.bookies
            client.delete(writer.ledger_id)
        bookie.terminate()
        assert bookie.wait(END_S) == 0
    finally:
        bookie.kill()
        bookie.wait()
        bookie.stdout.close()


def test_configuration_file_is_read_and_set_wins(cluster, tmp_path):
    port, unused = free_ports(2)
    configuration = tmp_path / "bookie.conf"
    configuration.write_text(f"# a comment\nbookiePort={unused}\nadvertisedAddress: 127.0.0.1\n")
    start = command(cluster.uri, tmp_path, port, "--config", str(configuration), "--json")
    bookie = subprocess.Popen(start, stdout=subprocess.PIPE, text=True)
    assert bookie.stdout is not None
    try:
        assert json.loads(bookie.stdout.readline())["id"] == f"127.0.0.1:{port}"
    finally:
        bookie.terminate()
        bookie.wait(END_S)
        bookie.stdout.close()


def test_taken_port_is_named_and_nothing_is_left(cluster, tmp_path):
    port = int(cluster.bookies[0].id.rpartition(":")[2])
    folder = tmp_path / "bookie"
    line = fails(*command(cluster.uri, folder, port))
    assert str(port) in line
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_zookeeper_away_is_named(tmp_path):
    line = fails(*command("zk://127.0.0.1:1/ledgers", tmp_path, free_ports(1)[0], "--set", "zkTimeout=500"))
    assert "127.0.0.1:1" in line


def test_bad_uri_and_unknown_key_are_named(cluster, tmp_path):
    (port,) = free_ports(1)
    assert "nonsense" in fails(*command("nonsense", tmp_path, port))
    line = fails(*command(cluster.uri, tmp_path, port, "--set", "bookiePrt=5"))
    assert "bookiePrt" in line
    assert "bookiePort" in line


def test_folder_of_a_bookie_that_runs_is_refused(cluster, tmp_path):
    running = cluster.bookies[0]
    line = fails(*command(cluster.uri, running.dir, free_ports(1)[0]))
    assert str(running.dir) in line
    assert running.is_running
