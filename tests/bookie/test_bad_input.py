"""What a peer, the metadata or a folder may hold that is not ours: refused, logged once with whose it is, and
nothing else affected."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from bkspark.cli.bookie import bookie_command
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.errors import MetadataFormat
from bkspark.metadata.paths import ledger_path
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bkspark.wire.status import Status
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AutoRecoveryOptions
from tests.bookie.child import START_S, BookieChild, new_cluster
from tests.bookie.serving import Serving, service_options
from tests.ledger.in_process import URI, InProcessCluster, run

CLOSED = "closed the connection from "
FRAMES = 200


def refused_peers(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """Return how many lines name each peer as one whose connection was closed."""
    lines = [message for message in caplog.messages if message.startswith(CLOSED)]
    return Counter(line.removeprefix(CLOSED).partition(": ")[0] for line in lines)


def name_of(connected: socket.socket) -> str:
    host, port = connected.getsockname()
    return f"{host}:{port}"


def wait_until_closed(connected: socket.socket) -> None:
    """Return when the bookie has closed a connection, whatever it answered before."""
    with contextlib.suppress(ConnectionError):
        while connected.recv(1 << 16):
            continue


def test_frames_of_any_bytes_are_refused_with_one_line_for_each_peer_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some are requests that the bookie can answer; all others end their connection, and theirs alone."""
    random = Random(7)
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        names = []
        for _ in range(FRAMES):
            with socket.create_connection(("127.0.0.1", serving.port), timeout=120) as connected:
                body = random.randbytes(random.choice((1, 3, 4, 24, 200)))
                connected.sendall(len(body).to_bytes(4, "big") + body)
                connected.shutdown(socket.SHUT_WR)
                wait_until_closed(connected)
                names.append(name_of(connected))
        assert peer.add(5, 0, [b"a good peer"]) == [Status.EOK]
    refused = refused_peers(caplog)
    assert set(refused) <= set(names)
    assert set(refused.values()) == {1}
    assert len(refused) > FRAMES / 2


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
        bytes.fromhex("160301020001000001fc0303"),
        b"\0\0\0\x04ruok",
        b"SSH-2.0-x\r\n",
    ],
    ids=["http", "tls", "four letters", "ssh"],
)
def test_a_peer_that_speaks_neither_protocol_is_refused_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, greeting: bytes
) -> None:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        with socket.create_connection(("127.0.0.1", serving.port), timeout=120) as connected:
            name = name_of(connected)
            connected.sendall(greeting)
            wait_until_closed(connected)
        assert peer.add(5, 0, [b"a good peer"]) == [Status.EOK]
    assert refused_peers(caplog) == {name: 1}


def test_half_a_frame_for_ever_is_given_up_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = service_options(tmp_path, connection=ConnectionOptions(frame_s_max=0.2))
    with Serving(options) as serving, serving.connect() as peer:
        with socket.create_connection(("127.0.0.1", serving.port), timeout=120) as connected:
            name = name_of(connected)
            connected.sendall((1000).to_bytes(4, "big") + b"\2\1")
            wait_until_closed(connected)
        assert peer.add(5, 0, [b"a good peer"]) == [Status.EOK]
    assert refused_peers(caplog) == {name: 1}


def test_metadata_with_a_wrong_magic_are_one_line_of_an_audit_and_delay_no_other_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        ledgers = []
        for _ in range(3):
            async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
                await writer.append(b"an entry")
            ledgers.append(writer.ledger_id)
        bad, *good = ledgers
        path = f"{MetadataUri.parse(URI).root}{ledger_path(bad, LedgerManager.HIERARCHICAL)}"
        await cluster.store.session().set(path, b"SomebodysMetadataFormat\t3\nnonsense", -1)
        with pytest.raises(MetadataFormat) as refused:
            await client.open(bad)
        assert str(bad) in str(refused.value)
        lost = cluster.bookies[0]
        await lost.stop()
        repaired = await RepairedCluster.of(cluster.client())
        assert await repaired.auditor("an auditor", AutoRecoveryOptions()).audit([lost.id]) == len(good)
        assert {ledger_id async for ledger_id in repaired.store.ids()} == set(good)
        for ledger_id in good:
            assert (await client.open(ledger_id)).last_entry == 0

    run(tmp_path, test)
    lines = [message for message in caplog.messages if "is not audited" in message]
    assert len(lines) == 1
    assert "ledger 0 is not audited" in lines[0]


@pytest.mark.cluster
def test_a_cookie_of_another_cluster_is_refused_with_one_line_and_changes_nothing(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    here = BookieChild(tmp_path / "bookie", new_cluster(zookeeper.connect_string, "cookie-here"))
    with here.running():
        pass
    before = files_of(here.directory)
    elsewhere = new_cluster(zookeeper.connect_string, "cookie-elsewhere")
    command = bookie_command({**here.settings, "metadataServiceUri": elsewhere}, json=True)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "belongs to another bookie or cluster: cluster instance id" in line
    assert files_of(here.directory) == before
    with here.running(), here.connect() as peer:
        assert peer.add(5, 0, [b"it serves where it belongs"]) == [Status.EOK]


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
