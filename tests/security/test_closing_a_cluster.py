"""`bkspark cluster acl` on a cluster that serves: from open nodes to closed ones, and back."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.errors import MetadataAccessDenied
from bkspark.metadata.acl_migration import Walked, closed_to_others, exactly, migrate, walk
from bkspark.metadata.acls import ALL, OPEN, Acl
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import ZooKeeperTree, open_tree
from bkspark.metadata.zookeeper_options import options_of
from tests.cli.console import Console
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.security.closed_zookeeper import USERS, ClosedZooKeeper

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("closed zookeeper")]

OWN = [str(Acl("sasl", "bookkeeper", ALL))]
ONE = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 2}
SECONDS = 120.0


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> ClosedZooKeeper:
    """The JAAS files of a server that the cluster starts itself."""
    return ClosedZooKeeper(tmp_path_factory.mktemp("users"))


@pytest.fixture(scope="module")
def cluster_with_users(users: ClosedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Bookies that log in, and create open nodes: what a cluster is before it is closed."""
    settings = {**users.login(closes=False), "autoRecoveryDaemonEnabled": "true"}
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=settings, zookeeper_jaas=users.server_jaas) as cluster:
        yield cluster


@pytest.fixture
def console(cluster_with_users: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Console:
    monkeypatch.delenv("BKSPARK_CLIENT_CONFIG", raising=False)
    return Console(cluster_with_users.uri, monkeypatch, capfd)


def client_file(users: ClosedZooKeeper, tmp_path: Path, user: str = "bookkeeper", *, closes: bool = True) -> str:
    path = tmp_path / f"{user}-{closes}.conf"
    path.write_text("".join(f"{key}={text}\n" for key, text in users.login(user, closes=closes).items()))
    return str(path)


def write_and_read(cluster: Cluster, users: ClosedZooKeeper) -> None:
    with Client(cluster.uri, zookeeper=options_of(users.login())) as client:
        with client.create(**ONE) as writer:
            writer.append_many([b"one", b"two"])
        assert list(client.open(writer.ledger_id).read(0, 1)) == [b"one", b"two"]
        with client.log("clicks").open_for_writing() as log:
            log.append(b"three")


def test_open_cluster_is_closed_while_it_serves_and_opened_again(
    cluster_with_users: Cluster, users: ClosedZooKeeper, console: Console, tmp_path: Path
) -> None:
    own = ("--client-config", client_file(users, tmp_path))
    with Client(cluster_with_users.uri) as anonymous, anonymous.create(**ONE) as writer:
        writer.append(b"of an open cluster")
    found = console.records_of(1, "cluster", "acl", "check", *own)
    nodes, open_nodes = found["nodes"], found["open"]
    assert found["identity"] == ["sasl:bookkeeper"]
    assert open_nodes == nodes > 20
    assert {"path": "/ledgers", "acl": ["world:anyone:cdrwa"]} in found["examples"]

    planned = console.json("cluster", "acl", "close", "--dry-run", *own)
    assert (planned["dry_run"], planned["changed"], planned["target"]) == (True, 0, OWN)
    assert planned["wrong"] == planned["nodes"]
    assert console.records_of(1, "cluster", "acl", "check", *own)["open"] >= open_nodes, "a dry run changes nothing"

    closed = console.json("cluster", "acl", "close", *own)
    assert closed["done"] is True
    assert closed["changed"] >= open_nodes
    again = console.json("cluster", "acl", "close", *own)
    assert (again["done"], again["changed"]) == (True, 0)
    assert console.json("cluster", "acl", "check", *own)["open"] == 0
    # One record, which is closed, too.
    changes = [each["change"] for each in console.json("cluster", "changes", *own)["changes"]]
    assert [each for each in changes if "access list" in each] == [changes[0]]
    assert f"the access list {', '.join(OWN)}" in changes[0]

    write_and_read(cluster_with_users, users)
    with pytest.raises(MetadataAccessDenied), Client(cluster_with_users.uri) as anonymous:
        anonymous.open(writer.ledger_id)
    for user, who in (("stranger", "section Client of "), (None, "names no JAAS file")):
        other = () if user is None else ("--client-config", client_file(users, tmp_path, user, closes=False))
        output = console.fails(1, "ledger", "show", writer.ledger_id, *other)
        assert who in output.err
        assert output.err.count("\n") == 1
        assert not any(password in output.err for password in USERS.values())
        assert console.records_of(1, "cluster", "acl", "check", *other)["refused"] > 0

    opened = console.json("cluster", "acl", "open", *own)
    assert opened["done"] is True
    assert opened["target"] == ["world:anyone:cdrwa"]
    with Client(cluster_with_users.uri) as anonymous:
        assert anonymous.open(writer.ledger_id).last_entry == 0


def test_close_that_is_interrupted_is_completed_by_the_next(
    cluster_with_users: Cluster, users: ClosedZooKeeper
) -> None:
    """A walk remembers nothing: what it has changed is right, and the next one leaves it alone."""

    async def test() -> None:
        tree = await session(cluster_with_users, users)
        root = "/interrupted"
        try:
            for number in range(200):
                await tree.create(f"{root}/{number % 7}/{number}", make_parents=True)
            paths = 1 + 7 + 200
            await migrate(tree, [root], exactly(OPEN))
            target = await closed_to_others(tree, ())

            def stop_after_half(walked: Walked) -> None:
                if walked.changed >= paths // 2:
                    raise Interrupted

            with pytest.raises(Interrupted):
                await walk(tree, [root], exactly(target), changes=True, progress=stop_after_half)
            between = await walk(tree, [root], exactly(target), changes=False)
            assert 0 < between.wrong < paths
            total, last = await migrate(tree, [root], exactly(target))
            assert (total.changed, last.is_right, last.nodes) == (between.wrong, True, paths)
        finally:
            await tree.close()

    asyncio.run(asyncio.wait_for(test(), SECONDS))


def test_entries_that_a_stranger_added_while_a_cluster_was_open_are_removed(
    cluster_with_users: Cluster, users: ClosedZooKeeper
) -> None:
    async def test() -> None:
        tree = await session(cluster_with_users, users)
        try:
            await tree.create("/planted/node", make_parents=True)
            left = (Acl("sasl", "stranger", ALL), Acl("sasl", "bookkeeper", ALL))
            await tree.set_acl("/planted/node", left, -1)
            total, last = await migrate(tree, ["/planted"], exactly(await closed_to_others(tree, ())))
            assert last.is_right
            assert ("/planted/node", tuple(sorted(left))) in [(path, tuple(sorted(a))) for path, a in total.examples]
            assert (await tree.acl("/planted/node"))[0] == (Acl("sasl", "bookkeeper", ALL),)
        finally:
            await tree.close()

    asyncio.run(asyncio.wait_for(test(), SECONDS))


def test_nodes_are_not_closed_for_a_session_without_identity(
    cluster_with_users: Cluster, users: ClosedZooKeeper, console: Console, tmp_path: Path
) -> None:
    """They would be closed for their owner, too."""
    output = console.fails(1, "cluster", "acl", "close")
    assert re.search("no identity.*saslJaasConfig", output.err)
    assert console.fails(1, "cluster", "acl", "close", "--uri", cluster_with_users.uri + "-none").out == ""


def test_nodes_that_the_record_of_a_change_needs_are_closed_too(
    cluster_with_users: Cluster, users: ClosedZooKeeper, console: Console, tmp_path: Path
) -> None:
    """The first command that writes to the log of changes creates the parent of its nodes."""

    async def create(path: str) -> None:
        tree = await session(cluster_with_users, users)
        try:
            await tree.create(path)
            await tree.set_acl(path, OPEN, -1)
        finally:
            await tree.close()

    uri = cluster_with_users.uri + "-empty"
    asyncio.run(create(MetadataUri.parse(uri).root))
    line = ("--uri", uri, "--client-config", client_file(users, tmp_path, closes=False))
    assert console.json("cluster", "acl", "close", *line)["done"] is True
    found = console.json("cluster", "acl", "check", *line)
    assert (found["open"], found["examples"]) == (0, [])
    assert console.json("cluster", "acl", "open", *line)["done"] is True


class Interrupted(Exception):
    """What ends a walk in the middle."""


async def session(cluster: Cluster, users: ClosedZooKeeper) -> ZooKeeperTree:
    return await open_tree(MetadataUri.parse(cluster.uri), options_of(users.login()))


def test_bookies_that_close_their_nodes_serve_and_repair(
    users: ClosedZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Registration, cookies, elections, the list of lost copies and its locks: all as the one identity."""
    settings = {**users.login(), "autoRecoveryDaemonEnabled": "true"}
    with Cluster(tmp_path / "closed", settings=settings, zookeeper_jaas=users.server_jaas) as cluster:
        console = Console(cluster.uri, monkeypatch, capfd)
        own = ("--client-config", client_file(users, tmp_path))
        with Client(cluster.uri, zookeeper=options_of(users.login())) as client:
            with client.create(**ONE) as writer:
                writer.append_many([b"one", b"two"])
            lost = next(each for each in cluster.bookies if each.id in writer.metadata.fragments[0].bookies)
            lost.kill()
            wait_until(
                lambda: lost.id not in client.metadata(writer.ledger_id).fragments[0].bookies,
                "the copies of a lost bookie to be replaced",
            )
            lost.restart()
        assert console.json("cluster", "acl", "check", *own)["open"] == 0
        # It replaces its process.
        command = [sys.executable, "-m", "bkspark.cli", "cluster", "check", "--json", "--uri", cluster.uri, *own]
        assert json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)["ok"] is True
        assert len(console.json("cluster", "bookies", *own)["bookies"]) == 3
        logs = "".join((each.dir / "bookie.log").read_text() for each in cluster.bookies)
        assert not any(password in logs for password in USERS.values())
