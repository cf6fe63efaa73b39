"""Every verb of Apache's shell: on Apache's bookies, and `bkspark shell` on ours, in clusters of the same state."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client
from bkspark.cli.shell_verbs import VERBS
from bookie_service.replication.autorecovery import RepairedCluster
from tests.interop.apache import SESSION_TIMEOUT_MS, ApacheCluster
from tests.interop.mixed import WAIT_S, Observer, our_auditor
from tests.interop.peer import Peer
from tests.interop.verb_steps import (
    AUDITED,
    CHANGING,
    CONVERTED,
    DB_FILES,
    ENDED,
    FILES,
    LISTED,
    READING,
    RECOVERED,
    table,
)
from tests.interop.verbs import Step, Twin, apaches_shell, configuration, differences, our_shell
from tests.polling import wait_until

DB_STORAGE = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": str(16 << 20),
}
ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.interop, pytest.mark.cluster]


@pytest.fixture(scope="module")
def clusters(
    classpath: str, peer: Peer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ApacheCluster, ApacheCluster]]:
    """Three bookies of Apache's, and three of ours, each in a new cluster with ledger 0 closed and ledger 1 open."""
    with contextlib.ExitStack() as stack:
        pair = []
        for name, apache, ours in (("apache", 3, 0), ("ours", 0, 3)):
            directory = tmp_path_factory.mktemp(name)
            cluster = stack.enter_context(ApacheCluster(classpath, directory, peer, apache=apache, ours=ours))
            with Client(cluster.uri) as client:
                with client.create(ensemble=3, write_quorum=3, ack_quorum=2, metadata={"owner": b"me"}) as writer:
                    writer.append_many([b"entry %d" % number for number in range(5)])
                left = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
                left.append_many([b"left", b"open"])
                left.abandon()
            pair.append(cluster)
        yield pair[0], pair[1]


@pytest.fixture
def twins(
    clusters: tuple[ApacheCluster, ApacheCluster],
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> tuple[Twin, Twin]:
    """Both clusters, each with its shell."""
    monkeypatch.delenv("BKSPARK_URI", raising=False)
    apache, ours = clusters
    return apaches_twin(apache, peer), our_twin(ours, monkeypatch, capfd)


def apaches_twin(cluster: ApacheCluster, peer: Peer) -> Twin:
    return Twin(cluster, cluster.apache[0].dir / "bookie.conf", apaches_shell(peer), is_ours=False)


def our_twin(
    cluster: ApacheCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], **settings: str
) -> Twin:
    """Return a cluster of our bookies with our shell; `settings`: added to the usual keys."""
    bookie = cluster.ours[0]
    keys = {
        "metadataServiceUri": cluster.uri,
        "bookiePort": bookie.id.rpartition(":")[2],
        "advertisedAddress": "127.0.0.1",
        "zkTimeout": SESSION_TIMEOUT_MS,
        "journalDirectories": str(bookie.dir / "journal"),
        "ledgerDirectories": str(bookie.dir / "ledgers"),
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
        **settings,
    }
    file = configuration(bookie.dir / "bookie.conf", keys)
    return Twin(cluster, file, our_shell(monkeypatch, capfd), is_ours=True)


def assert_alike(twins: tuple[Twin, Twin], steps: Sequence[Step]) -> None:
    found = differences(*twins, steps)
    assert not found, "\n".join(found)


def test_verbs_that_only_read(twins: tuple[Twin, Twin]) -> None:
    assert_alike(twins, READING)


@pytest.mark.long(reason="35 s; tests/cli has most of these verbs on our cluster, and .ci/run has this one")
def test_verbs_that_change_the_cluster(twins: tuple[Twin, Twin]) -> None:
    assert_alike(twins, CHANGING)


def test_verbs_about_repair(twins: tuple[Twin, Twin]) -> None:
    with contextlib.ExitStack() as stack:
        for twin in twins:
            observer = stack.enter_context(contextlib.closing(Observer(twin.cluster.uri)))
            for ledger, missing in ((0, ["b1"]), (1, ["b1", "b2"]), (2, ["b3"])):
                observer.ask(marking(ledger, [twin.names[name] for name in missing]))
            observer.ask(lambda cluster: cluster.store.lock(2, "a-worker"))
        assert_alike(twins, LISTED)
    with our_auditor(twins[0].cluster.uri), our_auditor(twins[1].cluster.uri):
        assert_alike(twins, AUDITED)


def marking(ledger: int, missing: list[str]) -> Callable[[RepairedCluster], Coroutine[Any, Any, None]]:
    return lambda cluster: cluster.store.mark(ledger, missing, time.time_ns() // 1_000_000)


async def forget_listed(cluster: RepairedCluster) -> None:
    async for ledger in cluster.store.ids():
        listed = await cluster.store.find(ledger)
        assert listed is not None
        await cluster.store.finish(listed)


def write_on(client: Client, bookie: str, ensemble: int) -> str:
    """Return a closed ledger on a bookie and others, two copies of it if there are two."""
    copies = min(2, ensemble)
    while True:
        with client.create(ensemble=ensemble, write_quorum=copies, ack_quorum=copies) as writer:
            writer.append_many([b"entry %d" % number for number in range(5)])
        if bookie in writer.metadata.last_fragment.bookies:
            return str(writer.ledger_id)
        client.delete(writer.ledger_id)


def lose_third_bookie(twin: Twin) -> None:
    """Kill bookie 3, which shares new ledgers with others; no other ledger is left."""
    lost = twin.cluster.bookies[2]
    with Client(twin.cluster.uri) as client, contextlib.closing(Observer(twin.cluster.uri)) as observer:
        observer.ask(forget_listed)
        for ledger in (0, 1):
            client.delete(ledger)
        for name, ensemble in (("moved", 2), ("other", 2), ("stuck", 3)):
            twin.names[name] = write_on(client, lost.id, ensemble)
        lost.kill()
        wait_until(lambda: not observer.is_registered(lost.id), "the lost bookie's session to expire", WAIT_S)


def stop_bookies(twin: Twin) -> None:
    """Stop all bookies, and name files of the first."""
    for theirs in twin.cluster.apache:
        theirs.close()
    for ours in twin.cluster.ours:
        ours.stop()
    first = twin.cluster.bookies[0].dir
    twin.names["log"] = str(int(min((first / "ledgers" / "current").glob("*.log")).stem, 16))
    twin.names["journal"] = str(int(min((first / "journal" / "current").glob("*.txn")).stem, 16))


@pytest.mark.long(
    reason="30 s of processor time; tests/cli/test_shell.py guards these verbs, and this is how like Apache's they are"
)
def test_verbs_about_a_lost_bookie_then_about_files_then_about_a_cluster_without_bookies(
    twins: tuple[Twin, Twin],
) -> None:
    for twin in twins:
        lose_third_bookie(twin)
    found = differences(*twins, RECOVERED)
    for twin in twins:
        stop_bookies(twin)
    found += differences(*twins, FILES)
    # Our verb refuses a rebuilt index until its bookie has run.
    rebuilt = twins[1].cluster.ours[0]
    rebuilt.restart()
    rebuilt.stop()
    found += differences(*twins, CONVERTED)
    found += differences(*twins, ENDED)
    assert not found, "\n".join(found)


@pytest.mark.long(
    reason="15 s of processor time; tests/cli/test_shell.py guards these verbs, and this is how like Apache's they are"
)
def test_verbs_about_the_files_of_db_storage(
    classpath: str, peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BKSPARK_URI", raising=False)
    with (
        ApacheCluster(classpath, tmp_path / "apache", peer, apache=1, settings=DB_STORAGE) as apache,
        ApacheCluster(classpath, tmp_path / "ours", peer, apache=0, ours=1, our_settings=DB_STORAGE) as ours,
    ):
        twins = apaches_twin(apache, peer), our_twin(ours, monkeypatch, capfd, **DB_STORAGE)
        for twin in twins:
            with Client(twin.cluster.uri) as client:
                write_on(client, twin.names["b1"], 1)
            stop_bookies(twin)
        assert_alike(twins, DB_FILES)


def test_page_has_the_table_of_differences_and_every_verb_is_run() -> None:
    assert table() in (ROOT / "docs" / "shell.md").read_text()
    run = {
        step.words.split()[0]
        for step in (*READING, *CHANGING, *LISTED, *AUDITED, *RECOVERED, *FILES, *DB_FILES, *CONVERTED, *ENDED)
    }
    assert {verb.name for verb in VERBS} <= run
