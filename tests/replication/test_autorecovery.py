"""Autorecovery as processes on a real cluster: bookies are lost, and what they held is restored."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client, EncryptionOptions
from bkspark.cli.cluster_process import BookieProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.paths import ledger_path
from bkspark.metadata.uri import LedgerManager, MetadataUri
from tests.cluster import SESSION_TIMEOUT_MS, Cluster, ClusterBookie, GuestCluster
from tests.key_files import new_key_file
from tests.polling import wait_until
from tests.replication.repairing import (
    WAIT_S,
    autorecovery,
    check,
    command,
    forget,
    naming,
    overwrite,
    wait_until_moved,
)

pytestmark = pytest.mark.cluster

QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 1), (1, 1, 1))


@pytest.fixture(scope="module")
def repaired(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Five bookies of our own, for the tests of this file."""
    with GuestCluster(zookeeper, tmp_path_factory.mktemp("repaired"), bookies=5) as cluster:
        yield cluster


@pytest.fixture
def cluster(repaired: Cluster) -> Iterator[Cluster]:
    yield repaired
    repaired.revive()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.uri, password=b"pw") as client:
        yield client


def entries(count: int) -> list[bytes]:
    return [b"%d." % i * (i % 50) for i in range(count)]


def write(client: Client, quorums: tuple[int, int, int], count: int) -> int:
    with client.create(ensemble=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2]) as writer:
        if count:
            writer.append_many(entries(count))
    return writer.ledger_id


def most_named(client: Client, cluster: Cluster, ledger_ids: list[int]) -> ClusterBookie:
    return max(cluster.bookies, key=lambda bookie: len(naming(client, ledger_ids, bookie.id)))


def assert_whole(client: Client, ledger_id: int, count: int) -> None:
    reader = client.open(ledger_id)
    assert reader.last_entry == count - 1
    if count:
        assert list(reader.read(0, count - 1)) == entries(count)


def wait_until_whole(cluster: Cluster) -> dict[str, Any]:
    """Return what a check says when nothing is missing: an entry may be acknowledged before its last bookie has it."""

    def checked() -> dict[str, Any] | None:
        found = check(cluster.uri)
        return found if found["ok"] else None

    return wait_until(checked, "a check to find nothing missing", WAIT_S)


def test_ledger_that_is_closed_at_once_by_a_new_client_has_all_its_copies(cluster: Cluster) -> None:
    """Two of three bookies acknowledged it before the third one was connected: the third one was never sent it."""
    for _ in range(20):
        with Client(cluster.uri, password=b"pw") as client:
            write(client, (3, 3, 2), 30)
    wait_until_whole(cluster)


def test_what_a_lost_bookie_held_is_restored_on_others(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    sizes = [0, 1, 2, 3, 700]
    ledgers = {write(client, quorums, count): count for quorums in QUORUMS[:3] for count in sizes for _ in range(2)}
    lost = most_named(client, cluster, list(ledgers))
    assert naming(client, list(ledgers), lost.id)
    with autorecovery(cluster.uri, tmp_path / "log"):
        lost.kill()
        # Those of the test before, too: the rest is not repaired when autorecovery ends.
        wait_until_moved(client, list(client.ledgers()), lost.id)
    for ledger_id, count in ledgers.items():
        assert_whole(client, ledger_id, count)
    found = wait_until_whole(cluster)
    assert found["underreplicated"] == found["missing_entries"] == found["missing_copies"] == 0


@pytest.mark.long(reason="a repair copies bytes that it does not read, as in the test above")
def test_encrypted_ledgers_are_restored_without_their_key(cluster: Cluster, tmp_path: Path) -> None:
    encryption = EncryptionOptions(new_key_file(tmp_path / "keys"))
    with Client(cluster.uri, password=b"pw", encryption=encryption) as client:
        ledgers = [write(client, quorums, 300) for quorums in QUORUMS[:3]]
        lost = most_named(client, cluster, ledgers)
        with autorecovery(cluster.uri, tmp_path / "log"):
            lost.kill()
            wait_until_moved(client, list(client.ledgers()), lost.id)
        for ledger_id in ledgers:
            assert_whole(client, ledger_id, 300)
    wait_until_whole(cluster)


def test_open_ledger_is_fenced_only_after_the_grace_period_and_only_if_its_owner_is_idle(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """A3: the last fragment of an open ledger is left alone for the grace period, then the ledger is closed."""
    idle = client.create(ensemble=4, write_quorum=3, ack_quorum=2)
    idle.append_many(entries(20))
    busy = client.create(ensemble=4, write_quorum=3, ack_quorum=2)
    busy.append_many(entries(20))
    both = [idle.ledger_id, busy.ledger_id]
    lost = next(bookie for bookie in cluster.bookies if naming(client, both, bookie.id) == both)
    with autorecovery(cluster.uri, tmp_path / "log", openLedgerRereplicationGracePeriod=3000):
        lost.kill()
        # The owner meets the dead bookie and goes on in a new fragment; the old one is repaired under its eyes.
        written = 20
        while naming(client, [busy.ledger_id], lost.id):
            busy.append(b"more")
            written += 1
        wait_until_moved(client, [idle.ledger_id], lost.id)
    assert client.metadata(idle.ledger_id).last_entry == 19
    assert_whole(client, idle.ledger_id, 20)
    metadata = busy.close()
    assert metadata.last_entry == written - 1


def test_a_refused_repair_leaves_no_line_and_no_record_in_the_audit_log(cluster: Cluster) -> None:
    before = command(cluster.uri, "changes")
    for words in (("decommission", cluster.bookies[0].id), ("recover", cluster.bookies[0].id), ("recover", "none:1")):
        _, refusal = command(cluster.uri, *words, code=1)
        assert len(refusal.splitlines()) == 1, refusal
    assert command(cluster.uri, "changes") == before


def test_decommission_moves_everything_and_forgets_the_bookie(cluster: Cluster, client: Client) -> None:
    ledgers = [write(client, quorums, 30) for quorums in QUORUMS[:3] for _ in range(3)]
    left = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
    left.append_many(entries(30))
    victim = most_named(client, cluster, [left.ledger_id])
    _, refusal = command(cluster.uri, "decommission", victim.id, code=1)
    assert f"bookie {victim.id} is serving" in refusal
    victim.stop()
    settings = ("--set", "openLedgerRereplicationGracePeriod=100")
    found, _ = command(cluster.uri, "decommission", victim.id, *settings)
    assert found["decommissioned"]
    assert found["ledgers"] >= 1
    assert naming(client, [*ledgers, left.ledger_id], victim.id) == []
    states = {bookie["id"]: bookie["state"] for bookie in command(cluster.uri, "bookies")[0]["bookies"]}
    assert victim.id not in states
    assert set(states.values()) == {"available"}
    _, unknown = command(cluster.uri, "decommission", victim.id, code=1)
    assert "there is no bookie" in unknown
    for ledger_id in ledgers:
        assert_whole(client, ledger_id, 30)
    assert_whole(client, left.ledger_id, 30)
    # Nothing names it: on empty folders it may serve again, as a new bookie.
    for folder in ("journal", "ledgers"):
        shutil.rmtree(victim.dir / folder)
    victim.restart()
    wait_until_whole(cluster)


def test_recovery_shows_what_it_would_copy_and_leaves_what_is_to_be_skipped(cluster: Cluster, client: Client) -> None:
    closed = write(client, (4, 3, 2), 40)
    stuck = write(client, (5, 5, 3), 40)
    left = client.create(ensemble=4, write_quorum=3, ack_quorum=2)
    left.append_many(entries(10))
    left.abandon()
    ledgers = [closed, stuck, left.ledger_id]
    victim = next(bookie for bookie in cluster.bookies if naming(client, ledgers, bookie.id) == ledgers)
    victim.stop()
    plan, _ = command(cluster.uri, "recover", victim.id, "--dry-run", code=10)
    assert plan["without_spare"] == 1, "no bookie is left for the ledger that has all five"
    assert plan["ledgers"] >= 3
    assert plan["growing"] >= 1
    assert plan["bytes"] > 0
    assert naming(client, ledgers, victim.id) == ledgers
    _, failure = command(cluster.uri, "recover", victim.id, "--skip-open", code=1)
    assert "no spare writable bookie" in failure
    _, progress = command(cluster.uri, "recover", victim.id, "--skip-open", "--skip-failing")
    assert "1 ledgers cannot be moved, and are skipped" in progress
    assert naming(client, ledgers, victim.id) == [stuck, left.ledger_id]
    _, kept = command(cluster.uri, "decommission", victim.id, "--skip-open", "--skip-failing", code=1)
    assert "still name bookie" in kept
    client.delete(stuck)
    client.delete(left.ledger_id)
    victim.restart()
    wait_until_whole(cluster)
    assert_whole(client, closed, 40)


def test_bookie_with_the_daemon_in_its_process_repairs_and_its_own_data_are_recovered_by_hand(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """`autoRecoveryDaemonEnabled`; then `recover`, which an operator may ask for while everything is disabled."""
    settings = {"autoRecoveryDaemonEnabled": "true", "zkTimeout": SESSION_TIMEOUT_MS}
    repairing = BookieProcess(6, free_ports(1)[0], tmp_path / "bookie6", cluster.uri, settings)
    repairing.launch()
    try:
        repairing.wait_until_serving()
        ledgers = []
        while len(naming(client, ledgers, repairing.id)) < 3:
            ledgers.append(write(client, (3, 2, 2), 50))
        lost = most_named(client, cluster, ledgers)
        to_move = len(naming(client, ledgers, lost.id))
        lost.kill()
        wait_until_moved(client, ledgers, lost.id)

        def are_reported() -> bool:
            workers = command(cluster.uri, "autorecovery", "--status")[0]["workers"]
            return sum(worker["repaired"] for worker in workers) >= to_move

        wait_until(are_reported, "the worker to report what it repaired", WAIT_S)
        facts, _ = command(cluster.uri, "autorecovery", "--disable")
        (worker,) = facts.pop("workers")
        assert facts == {"enabled": False, "auditor": repairing.id, "bytes_per_s": None}
        assert worker["worker"] == repairing.id
        assert worker["repaired"] >= to_move
        assert worker["copied_bytes"] > 0
        assert not {each["ledger"] for each in (*worker["repairs"], *worker["postponements"])} & set(ledgers)
    finally:
        repairing.stop()
    named = len(naming(client, list(client.ledgers()), repairing.id))
    assert named >= 3
    lost.restart()
    found, progress = command(cluster.uri, "recover", repairing.id, "--set", "replicationRateByBytes=20000")
    assert found == {"bookie": repairing.id, "ledgers": named}
    assert re.search(rf"{named} of {named} ledgers are moved, [0-9.]+ of [0-9.]+ MiB, [0-9.]+ MiB/s", progress)
    assert naming(client, ledgers, repairing.id) == []
    assert command(cluster.uri, "autorecovery", "--enable")[0] == {
        "enabled": True, "auditor": None, "bytes_per_s": None, "workers": []
    }  # fmt: skip
    wait_until_whole(cluster)
    for ledger_id in ledgers:
        assert_whole(client, ledger_id, 50)
    assert forget(cluster.uri, repairing.id) == 0


def test_check_says_which_bookie_lacks_what_of_which_fragment(cluster: Cluster, client: Client) -> None:
    ledger_id = write(client, (2, 2, 2), 30)
    away = next(bookie for bookie in cluster.bookies if naming(client, [ledger_id], bookie.id))
    away.kill()
    found, progress = command(cluster.uri, "check", code=1)
    mine = [lack for lack in found["lacking"] if lack["ledger"] == ledger_id]
    expected = {"ledger": ledger_id, "first_entry": 0, "bookie": away.id, "copies": 30, "first_missing": 0}
    assert mine == [expected]
    assert f"ledger {ledger_id}: 30 copies are missing at {away.id}" in progress


def test_a_ledger_with_damaged_metadata_is_named_and_blocks_no_other(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    good = [write(client, (3, 2, 2), 30) for _ in range(4)]
    bad = write(client, (3, 2, 2), 30)
    lost = most_named(client, cluster, good)
    path = MetadataUri.parse(cluster.uri).root + ledger_path(bad, LedgerManager.HIERARCHICAL)
    overwrite(cluster.uri, path, b"BookieMetadataFormatVersion\t9\nnonsense")
    try:
        with autorecovery(cluster.uri, tmp_path / "log"):
            lost.kill()
            wait_until_moved(client, good, lost.id)
        found, progress = command(cluster.uri, "check", code=1)
        assert (found["unreadable"], found["ok"]) == (1, False)
        assert f"ledger {bad}: " in progress
        _, refusal = command(cluster.uri, "recover", lost.id, code=1)
        assert "BookieMetadataFormatVersion" in refusal or str(bad) in refusal
    finally:
        client.delete(bad)
