"""`bkspark cluster health` on real clusters: healthy, with a dead bookie, without ZooKeeper, and healthy again."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client
from bkspark.cli.__main__ import main
from bkspark.cli.health import cluster_facts
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.client import Client as AsyncClient
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.paths import ledger_path
from bkspark.metadata.registration import INDEX_PROBLEM, BookieAddress
from bkspark.metadata.uri import LedgerManager, MetadataUri
from tests.cluster import Cluster, GuestCluster
from tests.ledger.in_process import URI

pytestmark = pytest.mark.cluster


def test_health_names_what_is_wrong_and_says_whether_a_bookie_may_be_stopped(
    zookeeper: ZooKeeperProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with GuestCluster(zookeeper, tmp_path, bookies=3) as cluster:

        def health(*options: str, code: int) -> dict[str, Any]:
            assert main(["cluster", "health", "--uri", cluster.uri, "--json", *options]) == code
            return json.loads(capfd.readouterr().out.splitlines()[-1])

        answer = health(code=0)
        assert answer["healthy"] is True
        assert answer["reasons"] == []
        assert answer["underreplicated"] == 0
        assert {each["id"] for each in answer["bookies"]} == {each.id for each in cluster.bookies}
        assert all(each["reachable"] and each["free_bytes"] > 0 for each in answer["bookies"])
        with Client(cluster.uri) as client:
            with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                writer.append(b"the only copy")
            holder = client.metadata(writer.ledger_id).fragments[0].bookies[0]
        refused = health("--can-stop", holder, code=10)
        assert refused["healthy"] is True
        assert refused["can_stop"]["safe"] is False
        assert [each["code"] for each in refused["can_stop"]["reasons"]] == ["last_copy"]
        other = next(each for each in cluster.bookies if each.id != holder)
        assert health("--can-stop", other.id, code=0)["can_stop"] == {
            "bookie": other.id,
            "safe": True,
            "ledgers": 0,
            "reasons": [],
        }
        # It was reported as a metadata store that does not answer, and with exit code 10.
        absent = cluster.uri.replace("/ledgers", "/mistyped")
        assert absent != cluster.uri
        assert main(["cluster", "health", "--uri", absent]) == 1
        assert "/mistyped: check the path in the metadata URI" in capfd.readouterr().err
        assert health("--can-stop", "127.0.0.1:1", code=10)["can_stop"]["reasons"][0]["code"] == "unknown_bookie"
        twice = ["cluster", "health", "--uri", cluster.uri, "--can-stop", holder, "--can-stop", other.id]
        assert main(twice) == 2
        assert "--can-stop takes one bookie" in capfd.readouterr().err
        _check_damaged_metadata(cluster.uri, other.id, health)
        _check_damaged_plan(cluster.uri, other.id, holder, health)
        # At once, not when its session has ended (finding M1: a dead bookie was "available").
        other.kill()
        degraded = health(code=10)
        assert (degraded["healthy"], degraded["reasons"][0]["subject"]) == (False, other.id)
        assert degraded["reasons"][0]["code"] in ("bookie_unreachable", "bookie_down")
        assert main(["cluster", "health", "--uri", cluster.uri]) == 10
        text = capfd.readouterr().out
        assert text.startswith("degraded: 2 of 3 bookies serve")
        assert other.id in text
        # The verdict is about the cluster, the line below it about the bookie.
        other.restart()
        health("--watch", "--exit-when-healthy", code=0)
        assert main(["cluster", "health", "--uri", cluster.uri, "--can-stop", holder]) == 10
        verdict, refusal, why = capfd.readouterr().out.splitlines()[-3:]
        assert verdict.startswith("healthy: ")
        assert refusal.split() == ["bookie", holder, "may", "not", "be", "stopped"]
        assert why.split(":")[0].strip() == "last_copy"
        other.stop()
        assert main(["cluster", "health", "--uri", cluster.uri, "--can-stop", other.id]) == 0
        assert f"bookie {other.id} may be stopped" in capfd.readouterr().out
        other.restart()
        assert health("--watch", "--exit-when-healthy", code=0)["healthy"] is True


def _check_damaged_metadata(uri: str, bookie: str, health: Callable[..., dict[str, Any]]) -> None:
    """One ledger that cannot be read made the question fail, and with it all maintenance."""
    path = MetadataUri.parse(uri).root + ledger_path(77, LedgerManager.HIERARCHICAL)
    asyncio.run(_put(uri, path, b"nonsense {"))
    refused = health("--can-stop", bookie, code=10)["can_stop"]["reasons"]
    assert [(each["code"], "(77)" in each["text"]) for each in refused] == [("unreadable_ledgers", True)]
    asyncio.run(_put(uri, path, None))


def _check_damaged_plan(uri: str, bookie: str, damaged: str, health: Callable[..., dict[str, Any]]) -> None:
    """It was taken for no plan: two operators could each stop one of the last two copies."""
    path = f"{MetadataUri.parse(uri).root}/underreplication/plans/{damaged}"
    asyncio.run(_put(uri, path, b"[]"))
    refused = health("--can-stop", bookie, code=10)["can_stop"]["reasons"]
    assert "unreadable_plans" in [each["code"] for each in refused]
    asyncio.run(_put(uri, path, None))


async def _put(uri: str, path: str, data: bytes | None) -> None:
    """Create a node; delete it if there are no data."""
    async with AsyncClient(uri) as client:
        tree = await client.tree()
        await (tree.delete(path) if data is None else tree.create(path, data, make_parents=True))


def test_all_of_many_bookies_are_asked_where_few_files_may_be_open(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    """The limit is often 1,024, and each bookie takes a connection: of more bookies some were unreachable."""
    count = 300
    with GuestCluster(zookeeper, tmp_path, bookies=1) as cluster:
        host, _, port = cluster.bookies[0].id.rpartition(":")
        address = BookieAddress(host, int(port))

        def ask(command: str) -> list[dict[str, Any]]:
            line = [sys.executable, "-m", "bkspark.cli", "cluster", command, "--uri", cluster.uri, "--json"]
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            limited = ["prlimit", f"--nofile={count // 3}:{most}", *line]
            asked = subprocess.run(limited, capture_output=True, text=True, timeout=120)
            assert asked.returncode == 0, asked.stderr
            found: list[dict[str, Any]] = json.loads(asked.stdout)["bookies"]
            return found

        async def test() -> None:
            async with AsyncClient(cluster.uri) as client:
                registry = BookieRegistry(await client.tree(), client.uri)
                for number in range(count):
                    await registry.register(f"many-{number}", address, read_only=False)
                for command in ("health", "bookies"):
                    found = await asyncio.to_thread(ask, command)
                    assert len(found) == count + 1
                    assert [each["problem"] for each in found if not each["reachable"]] == []

        asyncio.run(test())


def test_bookie_whose_index_is_limited_is_a_reason_with_the_text_that_it_registered(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    with GuestCluster(zookeeper, tmp_path, bookies=1) as cluster:
        host, _, port = cluster.bookies[0].id.rpartition(":")
        address = BookieAddress(host, int(port), {INDEX_PROBLEM: "/d1: its disk fails"})
        line = [sys.executable, "-m", "bkspark.cli", "cluster", "health", "--uri", cluster.uri, "--json"]

        async def test() -> None:
            async with AsyncClient(cluster.uri) as client:
                await BookieRegistry(await client.tree(), client.uri).register("limited", address)
                asked = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=120)
                (reason,) = json.loads(asked.stdout)["reasons"]
                assert (reason["code"], reason["subject"]) == ("bookie_index_limited", "limited")
                assert reason["text"] == "bookie limited does not serve all its ledgers: /d1: its disk fails"
                assert asked.returncode == 10

        asyncio.run(test())


def test_watch_outlives_an_outage_of_zookeeper(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It ended with the first question that ZooKeeper did not answer; a program got nothing on stdout."""
    with Cluster(tmp_path, bookies=1) as cluster:
        line = [sys.executable, "-m", "bkspark.cli", "cluster", "health", "--uri", cluster.uri, "--watch", "--json"]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            answers = map(json.loads, watching.stdout)
            try:
                assert next(answers)["healthy"] is True
                cluster.zookeeper.stop()
                away = next(each for each in answers if not each["healthy"])
                assert [each["code"] for each in away["reasons"]] == ["metadata_unavailable"]
                assert (away["bookies"], away["underreplicated"]) == ([], None)
                bookie = cluster.bookies[0].id
                assert main(["cluster", "health", "--uri", cluster.uri, "--json", "--can-stop", bookie]) == 10
                asked = json.loads(capfd.readouterr().out)
                assert (asked["healthy"], asked["can_stop"]["safe"]) == (False, False)
                cluster.zookeeper.start()
                assert next(each for each in answers if each["healthy"])["bookies"][0]["id"] == bookie
            finally:
                watching.terminate()


def test_bookie_that_takes_connections_and_answers_nothing_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that hangs, or one on a disk that does not answer: its session may live on."""
    monkeypatch.setattr("bkspark.cli.health.ANSWER_S_MAX", 0.2)

    async def test() -> None:
        store, uri = MemoryStore(), MetadataUri.parse(URI)
        registry = BookieRegistry(store.session(), uri)
        await registry.initialize_cluster()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            bookie = f"127.0.0.1:{port}"
            await registry.register(bookie, BookieAddress("127.0.0.1", port))
            async with AsyncClient(URI, tree=store.session()) as client:
                facts = await cluster_facts(client)
        (found,) = facts.bookies
        assert (found.id, found.serves) == (bookie, False)
        assert found.problem == "nothing came within 0.2 s"

    asyncio.run(test())
