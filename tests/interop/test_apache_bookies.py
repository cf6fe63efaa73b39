"""Apache's own bookies: they prove the Java program, and they are what our client must work on unchanged."""

from __future__ import annotations

import pytest

from bkspark.blocking import Client
from bkspark.errors import LedgerFenced
from tests.interop.apache import ApacheCluster
from tests.interop.peer import JavaClient, PeerError, contents, payloads

pytestmark = pytest.mark.interop

PASSWORD = "pässword"
SIZES = [0, 1, 15, 1000, 65_536, 1 << 20, *[200] * 150]
EACH_DIGEST = pytest.mark.parametrize("digest", ["crc32c", "crc32", "mac", "dummy"])
EACH_QUORUM = pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2)], ids=["E1", "E3W3A2", "E3W2A2"])
LEDGER_FENCED = -101


def our_client(apache: ApacheCluster, digest: str = "crc32c") -> Client:
    return Client(apache.uri, digest=digest, password=PASSWORD.encode())


@EACH_QUORUM
def test_the_java_program_writes_reads_and_recovers(java_on_apache: JavaClient, quorums: tuple[int, int, int]) -> None:
    java = java_on_apache
    ledger = java.create(quorums, "crc32c", PASSWORD)
    java.append(ledger, SIZES)
    for how in ("single", "batch", "unconfirmed"):
        answer = java.read(ledger, "crc32c", PASSWORD, how=how)
        assert answer["closed"]
        assert answer["entries"] == contents(payloads(SIZES))
        assert (answer["batch_reads"] > 0) == (how == "batch" and quorums[0] == quorums[1])
    with pytest.raises(PeerError) as refused:
        java.append(ledger, [1])
    assert refused.value.code == LEDGER_FENCED
    java.call("abandon", ledger=ledger)
    java.call("delete", ledger=ledger)


@EACH_DIGEST
@EACH_QUORUM
def test_our_client_writes_and_both_read(
    apache_bookies: ApacheCluster, java_on_apache: JavaClient, digest: str, quorums: tuple[int, int, int]
) -> None:
    ensemble, write_quorum, ack_quorum = quorums
    with our_client(apache_bookies, digest) as client:
        with client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum) as writer:
            writer.append_many(payloads(SIZES))
        reader = client.open(writer.ledger_id)
        assert list(reader.read(0, reader.last_entry)) == payloads(SIZES)
    answer = java_on_apache.read(writer.ledger_id, digest, PASSWORD, recover=False)
    assert answer["entries"] == contents(payloads(SIZES))


@EACH_DIGEST
@EACH_QUORUM
def test_our_client_recovers_what_java_left_open(
    apache_bookies: ApacheCluster, java_on_apache: JavaClient, digest: str, quorums: tuple[int, int, int]
) -> None:
    ledger = java_on_apache.create(quorums, digest, PASSWORD)
    java_on_apache.append(ledger, SIZES)
    with our_client(apache_bookies, digest) as client:
        reader = client.open(ledger, recover=True)
        assert list(reader.read(0, reader.last_entry)) == payloads(SIZES)
        closed = client.metadata(ledger)
    assert (closed.last_entry, closed.length) == (len(SIZES) - 1, sum(SIZES))
    with pytest.raises(PeerError) as refused:
        java_on_apache.append(ledger, [1])
    assert refused.value.code == LEDGER_FENCED
    java_on_apache.call("abandon", ledger=ledger)


def test_our_writer_is_fenced_by_our_recovery(apache_bookies: ApacheCluster) -> None:
    with our_client(apache_bookies) as client, our_client(apache_bookies) as other:
        writer = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        writer.append_many(payloads([1000] * 200))
        closed = other.recover(writer.ledger_id)
        assert (closed.last_entry, closed.length) == (199, 200_000)
        with pytest.raises(LedgerFenced):
            writer.append(b"too late")
        writer.abandon()


def test_our_client_replaces_an_apache_bookie_that_died(
    apache_bookies: ApacheCluster, java_on_apache: JavaClient
) -> None:
    with our_client(apache_bookies) as client:
        with client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            writer.append_many(payloads([1000] * 50))
            dead = writer.metadata.fragments[0].bookies[0]
            next(bookie for bookie in apache_bookies.bookies if bookie.id == dead).kill()
            writer.append_many(payloads([1000] * 50, first_entry=50))
        assert [fragment.first_entry for fragment in client.metadata(writer.ledger_id).fragments] == [0, 50]
        reader = client.open(writer.ledger_id)
        assert list(reader.read(0, reader.last_entry)) == payloads([1000] * 100)
    assert java_on_apache.read(writer.ledger_id, "crc32c", PASSWORD)["entries"] == contents(payloads([1000] * 100))


def test_apaches_own_check_accepts_the_cookies_of_its_bookies(
    apache_bookies: ApacheCluster, java_on_apache: JavaClient
) -> None:
    bookie = apache_bookies.bookies[0]
    folders = [str(bookie.dir / name / "current") for name in ("journal", "ledgers")]
    java_on_apache.call("check_cookies", settings=bookie.settings, directories=folders)
    settings = {**bookie.settings, "journalDirectories": "/elsewhere"}
    with pytest.raises(PeerError, match="Cookie"):
        java_on_apache.call("check_cookies", settings=settings, directories=folders)


def test_the_java_program_asks_for_an_explicit_lac_over_v3(java_on_apache: JavaClient) -> None:
    ledger = java_on_apache.create((3, 3, 2), "crc32c", PASSWORD)
    java_on_apache.append(ledger, [10] * 3)
    java_on_apache.append(ledger, [10])
    answer = java_on_apache.call("explicit_lac", ledger=ledger, digest="crc32c", password=PASSWORD)
    assert answer["last_confirmed"] == 2
    java_on_apache.call("close", ledger=ledger)
