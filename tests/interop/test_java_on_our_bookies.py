"""Apache's Java client (V2 protocol) and our client work on the same ledgers, which our bookies store."""

from __future__ import annotations

import pytest

from bkspark.blocking import Client
from bkspark.core.metadata import LedgerState
from bkspark.errors import LedgerFenced, NoSuchLedger, UnauthorizedAccess
from tests.cluster import Cluster
from tests.interop.peer import JavaClient, PeerError, contents, payloads

pytestmark = [pytest.mark.interop, pytest.mark.cluster]

PASSWORD = "pässword"
SIZES = [0, 1, 15, 1000, 65_536, 1 << 20, *[200] * 150]
"""Entries of 0 bytes to 1 MiB, and enough small ones for several batches to travel together."""

DIGESTS = ("crc32c", "crc32", "mac", "dummy")
EACH_DIGEST = pytest.mark.parametrize("digest", DIGESTS)
EACH_QUORUM = pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2)], ids=["E1", "E3W3A2", "E3W2A2"])

LEDGER_FENCED = -101
UNAUTHORIZED = -102
NO_SUCH_LEDGER = -25
TIMEOUT = -23


def our_client(cluster: Cluster, digest: str = "crc32c", password: str = PASSWORD) -> Client:
    return Client(cluster.uri, digest=digest, password=password.encode())


@EACH_DIGEST
@EACH_QUORUM
def test_java_reads_back_what_it_wrote_in_every_way(
    java: JavaClient, digest: str, quorums: tuple[int, int, int]
) -> None:
    ledger = java.write(quorums, digest, PASSWORD, SIZES)
    for how in ("single", "batch", "unconfirmed"):
        answer = java.read(ledger, digest, PASSWORD, how=how)
        assert answer["entries"] == contents(payloads(SIZES))
        assert answer["length"] == sum(SIZES)
        # Striped ledgers cannot be read in batches: consecutive entries lie on different bookies.
        assert (answer["batch_reads"] > 0) == (how == "batch" and quorums[0] == quorums[1])


@EACH_DIGEST
@EACH_QUORUM
def test_java_reads_what_our_client_wrote(
    java: JavaClient, cluster: Cluster, digest: str, quorums: tuple[int, int, int]
) -> None:
    ensemble, write_quorum, ack_quorum = quorums
    with (
        our_client(cluster, digest) as client,
        client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum) as writer,
    ):
        writer.append_many(payloads(SIZES))
    answer = java.read(writer.ledger_id, digest, PASSWORD, recover=False)
    assert answer["closed"]
    assert answer["entries"] == contents(payloads(SIZES))
    assert answer["length"] == sum(SIZES)


@EACH_DIGEST
@EACH_QUORUM
def test_our_client_reads_what_java_wrote(
    java: JavaClient, cluster: Cluster, digest: str, quorums: tuple[int, int, int]
) -> None:
    ledger = java.write(quorums, digest, PASSWORD, SIZES)
    with our_client(cluster, digest) as client:
        reader = client.open(ledger, recover=False)
        assert reader.last_entry == len(SIZES) - 1
        assert list(reader.read(0, reader.last_entry)) == payloads(SIZES)


@EACH_DIGEST
@EACH_QUORUM
def test_java_recovers_what_our_client_left_open(
    java: JavaClient, cluster: Cluster, digest: str, quorums: tuple[int, int, int]
) -> None:
    ensemble, write_quorum, ack_quorum = quorums
    with our_client(cluster, digest) as client:
        writer = client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        writer.append_many(payloads(SIZES))
        answer = java.read(writer.ledger_id, digest, PASSWORD, recover=True)
        assert answer["closed"]
        assert answer["entries"] == contents(payloads(SIZES))
        assert answer["length"] == sum(SIZES)
        with pytest.raises(LedgerFenced) as refused:
            writer.append(b"too late")
        assert refused.value.code == LEDGER_FENCED
        metadata = client.metadata(writer.ledger_id)
        writer.abandon()
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry == len(SIZES) - 1
    assert metadata.length == sum(SIZES)


@EACH_DIGEST
@EACH_QUORUM
def test_our_client_recovers_what_java_left_open(
    java: JavaClient, cluster: Cluster, digest: str, quorums: tuple[int, int, int]
) -> None:
    ledger = java.create(quorums, digest, PASSWORD)
    java.append(ledger, SIZES)
    with our_client(cluster, digest) as client:
        reader = client.open(ledger, recover=True)
        assert list(reader.read(0, reader.last_entry)) == payloads(SIZES)
    with pytest.raises(PeerError) as refused:
        java.append(ledger, [1])
    assert refused.value.code == LEDGER_FENCED
    java.call("abandon", ledger=ledger)
    closed = java.call("metadata", ledger=ledger)
    assert (closed["state"], closed["last_entry"], closed["length"]) == ("CLOSED", len(SIZES) - 1, sum(SIZES))


@EACH_QUORUM
def test_our_client_recovers_a_ledger_that_java_never_wrote_to(
    java: JavaClient, cluster: Cluster, quorums: tuple[int, int, int]
) -> None:
    ledger = java.create(quorums, "crc32c", PASSWORD)
    java.call("abandon", ledger=ledger)
    with our_client(cluster) as client:
        assert client.open(ledger, recover=True).last_entry == -1
    assert java.read(ledger, "crc32c", PASSWORD)["entries"] == []


def test_both_see_the_same_confirmed_entries_of_an_open_ledger(java: JavaClient, cluster: Cluster) -> None:
    ledger = java.create((3, 3, 2), "crc32c", PASSWORD)
    java.append(ledger, [10] * 20)
    java.append(ledger, [10])
    with our_client(cluster) as client:
        # The last add carried the LAC of those before it: entry 19.
        reader = client.open(ledger, recover=False)
        assert reader.last_entry == 19
        assert list(reader.read(0, 19)) == payloads([10] * 20)
        assert list(reader.read(20, 20, unconfirmed=True)) == payloads([10], first_entry=20)
    assert java.read(ledger, "crc32c", PASSWORD, recover=False)["last_confirmed"] == 19
    java.call("close", ledger=ledger)


def test_java_sees_our_confirmed_entries_and_does_not_fence_our_writer(java: JavaClient, cluster: Cluster) -> None:
    with our_client(cluster) as client, client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        writer.append_many(payloads([100] * 5))
        writer.append(b"carries the LAC of the five")
        answer = java.read(writer.ledger_id, "crc32c", PASSWORD, recover=False)
        assert not answer["closed"]
        assert answer["entries"] == contents(payloads([100] * 5))
        assert writer.append(b"still the writer") == 6


@pytest.mark.parametrize("ledger", [(1 << 31) - 1, 1 << 31, (1 << 40) + 12_345, (1 << 63) - 1])
def test_ledger_ids_beyond_31_bits_work_both_ways(java: JavaClient, cluster: Cluster, ledger: int) -> None:
    java.create((3, 3, 2), "crc32c", PASSWORD, ledger=ledger)
    java.append(ledger, [300] * 3)
    with our_client(cluster) as client:
        assert ledger in set(client.ledgers())
        reader = client.open(ledger, recover=True)
        assert list(reader.read(0, reader.last_entry)) == payloads([300] * 3)
        java.call("abandon", ledger=ledger)
        client.delete(ledger)
        assert ledger not in java.call("list")["ledgers"]
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2, ledger_id=ledger - 1) as writer:
            writer.append_many(payloads([300] * 3))
        assert java.read(ledger - 1, "crc32c", PASSWORD)["entries"] == contents(payloads([300] * 3))
        client.delete(ledger - 1)


def test_both_show_the_same_metadata_and_list_the_same_ledgers(java: JavaClient, cluster: Cluster) -> None:
    with our_client(cluster, "mac") as client:
        with client.create(ensemble=3, write_quorum=2, ack_quorum=1, metadata={"who": "ünser"}) as writer:
            writer.append(b"entry")
        ours = client.metadata(writer.ledger_id)
        theirs = java.call("metadata", ledger=writer.ledger_id)
        assert sorted(client.ledgers()) == sorted(java.call("list")["ledgers"])
    assert theirs == {
        "ledger": writer.ledger_id,
        "state": "CLOSED",
        "ensemble_size": 3,
        "write_quorum": 2,
        "ack_quorum": 1,
        "digest": "mac",
        "password": PASSWORD,
        "last_entry": 0,
        "length": 5,
        "format_version": 3,
        "fragments": [{"first_entry": 0, "bookies": list(ours.fragments[0].bookies)}],
        "custom_metadata": {"who": "ünser"},
    }


def test_deleted_by_one_is_gone_for_the_other(java: JavaClient, cluster: Cluster) -> None:
    with our_client(cluster) as client:
        by_java = java.write((1, 1, 1), "crc32c", PASSWORD, [1])
        java.call("delete", ledger=by_java)
        with pytest.raises(NoSuchLedger):
            client.open(by_java)
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append(b"entry")
        client.delete(writer.ledger_id)
    with pytest.raises(PeerError) as refused:
        java.read(writer.ledger_id, "crc32c", PASSWORD)
    assert refused.value.code == NO_SUCH_LEDGER


def test_a_wrong_password_opens_nothing_either_way(java: JavaClient, cluster: Cluster) -> None:
    ledger = java.write((3, 3, 2), "crc32c", PASSWORD, [1])
    with our_client(cluster, password="wrong") as client, pytest.raises(UnauthorizedAccess):
        client.open(ledger)
    with our_client(cluster) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append(b"entry")
    with pytest.raises(PeerError) as refused:
        java.read(writer.ledger_id, "crc32c", "wrong")
    assert refused.value.code == UNAUTHORIZED


def test_java_replaces_a_bookie_that_died_and_our_client_reads_both_fragments(
    java: JavaClient, cluster: Cluster
) -> None:
    ledger = java.create((2, 2, 2), "crc32c", PASSWORD)
    java.append(ledger, [1000] * 50)
    first = java.call("metadata", ledger=ledger)["fragments"][0]["bookies"]
    next(bookie for bookie in cluster.bookies if bookie.id == first[0]).kill()
    java.append(ledger, [1000] * 50)
    java.call("close", ledger=ledger)
    fragments = java.call("metadata", ledger=ledger)["fragments"]
    assert [fragment["first_entry"] for fragment in fragments] == [0, 50]
    assert first[0] not in fragments[1]["bookies"]
    with our_client(cluster) as client:
        reader = client.open(ledger)
        assert list(reader.read(0, reader.last_entry)) == payloads([1000] * 100)


def test_our_client_replaces_a_bookie_that_died_and_java_reads_both_fragments(
    java: JavaClient, cluster: Cluster
) -> None:
    with our_client(cluster) as client:
        with client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            writer.append_many(payloads([1000] * 50))
            dead = writer.metadata.fragments[0].bookies[0]
            next(bookie for bookie in cluster.bookies if bookie.id == dead).kill()
            writer.append_many(payloads([1000] * 50, first_entry=50))
        assert [fragment.first_entry for fragment in client.metadata(writer.ledger_id).fragments] == [0, 50]
    assert java.read(writer.ledger_id, "crc32c", PASSWORD)["entries"] == contents(payloads([1000] * 100))


def test_java_recovers_while_one_bookie_is_down(java: JavaClient, cluster: Cluster) -> None:
    with our_client(cluster) as client:
        writer = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        writer.append_many(payloads([1000] * 100))
        cluster.bookies[0].kill()
        try:
            answer = java.read(writer.ledger_id, "crc32c", PASSWORD, recover=True)
        finally:
            writer.abandon()
    assert answer["closed"]
    assert answer["entries"] == contents(payloads([1000] * 100))


def test_only_one_of_two_recoverers_decides_and_both_agree(java: JavaClient, cluster: Cluster) -> None:
    ledger = java.create((3, 3, 2), "crc32c", PASSWORD)
    java.append(ledger, [500] * 30)
    with our_client(cluster) as client:
        closed = client.recover(ledger)
        again = java.read(ledger, "crc32c", PASSWORD, recover=True)
    assert (closed.last_entry, closed.length) == (29, 15_000) == (again["last_confirmed"], again["length"])
    with pytest.raises(PeerError, match="fenced"):
        java.append(ledger, [1])
    java.call("abandon", ledger=ledger)


def test_java_finds_our_bookies_registered(java: JavaClient, cluster: Cluster) -> None:
    ids = sorted(bookie.id for bookie in cluster.bookies)
    assert java.call("bookies") == {"available": ids, "read_only": [], "all": ids}


def test_apaches_own_check_accepts_our_cookies(java: JavaClient, cluster: Cluster) -> None:
    bookie = cluster.bookies[0]
    host, port = bookie.id.split(":")
    folders = {"journalDirectories": str(bookie.dir / "journal"), "ledgerDirectories": str(bookie.dir / "ledgers")}
    settings = {"bookiePort": port, "advertisedAddress": host, "allowLoopback": "true", **folders}
    java.call("check_cookies", settings=settings, directories=[f"{folder}/current" for folder in folders.values()])


def test_a_call_that_needs_v3_is_refused_and_does_not_hang(java: JavaClient) -> None:
    ledger = java.create((3, 3, 2), "crc32c", PASSWORD)
    java.append(ledger, [1])
    with pytest.raises(PeerError) as refused:
        java.call("explicit_lac", ledger=ledger, digest="crc32c", password=PASSWORD)
    assert refused.value.code not in (0, TIMEOUT)
    # The refusal is for that call alone: V2 goes on.
    assert java.append(ledger, [1])["last_entry"] == 1
    java.call("close", ledger=ledger)
