"""Apache's Java client and ours (V2 protocol) on the same ledgers, which our bookies store, and Apache's."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.blocking import Client, EncryptionOptions, LedgerWriter
from bkspark.core.metadata import LedgerState
from bkspark.errors import LedgerFenced, NoSuchLedger, UnauthorizedAccess
from bkspark.wire.encrypted_entries import TAG_BYTES
from tests.interop.cases import (
    COVERING,
    EACH_DIGEST,
    EACH_QUORUM,
    FENCED_WRITER,
    LEDGER_FENCED,
    NO_SUCH_LEDGER,
    PASSWORD,
    SIZES,
    UNAUTHORIZED,
    Quorums,
)
from tests.interop.conftest import Bookies
from tests.interop.peer import JavaClient, PeerError, contents, payloads
from tests.key_files import new_key_file

pytestmark = [pytest.mark.interop, pytest.mark.cluster]


def our_client(bookies: Bookies, digest: str = "crc32c", password: str = PASSWORD) -> Client:
    return Client(bookies.uri, digest=digest, password=password.encode())


def create(client: Client, quorums: Quorums) -> LedgerWriter:
    ensemble, write_quorum, ack_quorum = quorums
    return client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)


def kill(bookies: Bookies, bookie_id: str) -> None:
    next(bookie for bookie in bookies.bookies if bookie.id == bookie_id).kill()


@COVERING
@EACH_DIGEST
@EACH_QUORUM
def test_items_4_5_java_reads_back_what_it_wrote_in_every_way(java: JavaClient, digest: str, quorums: Quorums) -> None:
    ledger = java.write(quorums, digest, PASSWORD, SIZES)
    for how in ("single", "batch", "unconfirmed"):
        answer = java.read(ledger, digest, PASSWORD, how=how)
        assert answer["entries"] == contents(payloads(SIZES))
        assert answer["length"] == sum(SIZES)
        # Striped ledgers cannot be read in batches: consecutive entries lie on different bookies.
        assert (answer["batch_reads"] > 0) == (how == "batch" and quorums[0] == quorums[1])


@COVERING
@EACH_DIGEST
@EACH_QUORUM
def test_items_4_5_java_reads_what_our_client_wrote(
    java: JavaClient, bookies: Bookies, digest: str, quorums: Quorums
) -> None:
    with (
        our_client(bookies, digest) as client,
        create(client, quorums) as writer,
    ):
        writer.append_many(payloads(SIZES))
    answer = java.read(writer.ledger_id, digest, PASSWORD, recover=False)
    assert answer["closed"]
    assert answer["entries"] == contents(payloads(SIZES))
    assert answer["length"] == sum(SIZES)


@COVERING
@EACH_DIGEST
@EACH_QUORUM
def test_items_4_5_our_client_reads_what_java_wrote(
    java: JavaClient, bookies: Bookies, digest: str, quorums: Quorums
) -> None:
    ledger = java.write(quorums, digest, PASSWORD, SIZES)
    with our_client(bookies, digest) as client:
        reader = client.open(ledger, recover=False)
        assert reader.last_entry == len(SIZES) - 1
        assert list(reader.read(0, reader.last_entry)) == payloads(SIZES)


@COVERING
@EACH_DIGEST
@EACH_QUORUM
def test_items_4_5_java_recovers_what_our_client_left_open(
    java: JavaClient, bookies: Bookies, digest: str, quorums: Quorums
) -> None:
    with our_client(bookies, digest) as client:
        writer = create(client, quorums)
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


@COVERING
@EACH_DIGEST
@EACH_QUORUM
def test_items_4_5_our_client_recovers_what_java_left_open(
    java: JavaClient, bookies: Bookies, digest: str, quorums: Quorums
) -> None:
    ledger = java.create(quorums, digest, PASSWORD)
    java.append(ledger, SIZES)
    with our_client(bookies, digest) as client:
        reader = client.open(ledger, recover=True)
        assert list(reader.read(0, reader.last_entry)) == payloads(SIZES)
    with pytest.raises(PeerError) as refused:
        java.append(ledger, [1])
    assert refused.value.code in FENCED_WRITER
    java.call("abandon", ledger=ledger)
    closed = java.call("metadata", ledger=ledger)
    assert (closed["state"], closed["last_entry"], closed["length"]) == ("CLOSED", len(SIZES) - 1, sum(SIZES))


def test_java_recovers_an_encrypted_ledger_that_our_client_left_open(
    java: JavaClient, bookies: Bookies, tmp_path: Path
) -> None:
    """Without its key: recovery sends the stored payloads again, and they still open."""
    entries = payloads(SIZES)
    with Client(bookies.uri, encryption=EncryptionOptions(new_key_file(tmp_path / "keys"))) as client:
        writer = create(client, (3, 3, 2))
        writer.append_many(entries)
        answer = java.read(writer.ledger_id, "crc32c", "")
        assert [size for size, _ in answer["entries"]] == [len(entry) + TAG_BYTES for entry in entries]
        with pytest.raises(LedgerFenced):
            writer.append(b"too late")
        writer.abandon()
        reader = client.open(writer.ledger_id)
        assert reader.is_closed
        assert list(reader.read(0, reader.last_entry)) == entries


@EACH_QUORUM
def test_items_4_5_our_client_recovers_a_ledger_that_java_never_wrote_to(
    java: JavaClient, bookies: Bookies, quorums: Quorums
) -> None:
    ledger = java.create(quorums, "crc32c", PASSWORD)
    java.call("abandon", ledger=ledger)
    with our_client(bookies) as client:
        assert client.open(ledger, recover=True).last_entry == -1
    assert java.read(ledger, "crc32c", PASSWORD)["entries"] == []


def test_items_4_5_both_see_the_same_confirmed_entries_of_an_open_ledger(java: JavaClient, bookies: Bookies) -> None:
    ledger = java.create((3, 3, 2), "crc32c", PASSWORD)
    java.append(ledger, [10] * 20)
    java.append(ledger, [10])
    with our_client(bookies) as client:
        # The last add carried the LAC of those before it: entry 19.
        reader = client.open(ledger, recover=False)
        assert reader.last_entry == 19
        assert list(reader.read(0, 19)) == payloads([10] * 20)
        assert list(reader.read(20, 20, unconfirmed=True)) == payloads([10], first_entry=20)
    assert java.read(ledger, "crc32c", PASSWORD, recover=False)["last_confirmed"] == 19
    java.call("close", ledger=ledger)


def test_items_4_5_java_sees_our_confirmed_entries_and_does_not_fence_our_writer(
    java: JavaClient, bookies: Bookies
) -> None:
    with our_client(bookies) as client, create(client, (3, 3, 2)) as writer:
        writer.append_many(payloads([100] * 5))
        writer.append(b"carries the LAC of the five")
        answer = java.read(writer.ledger_id, "crc32c", PASSWORD, recover=False)
        assert not answer["closed"]
        assert answer["entries"] == contents(payloads([100] * 5))
        assert writer.append(b"still the writer") == 6


@pytest.mark.parametrize("ledger", [(1 << 31) - 1, 1 << 31, (1 << 40) + 12_345, (1 << 63) - 1])
@pytest.mark.long_except(
    *(f"our bookies-{ledger}" for ledger in ((1 << 31) - 1, 1 << 31, (1 << 63) - 1)),
    f"apache's bookies-{(1 << 63) - 1}",
    reason="one id more of 63 bits; Apache's bookies show that the test is right",
)
def test_items_4_5_ledger_ids_beyond_31_bits_work_both_ways(java: JavaClient, bookies: Bookies, ledger: int) -> None:
    java.create((3, 3, 2), "crc32c", PASSWORD, ledger=ledger)
    java.append(ledger, [300] * 3)
    with our_client(bookies) as client:
        assert ledger in set(client.ledgers())
        reader = client.open(ledger, recover=True)
        assert list(reader.read(0, reader.last_entry)) == payloads([300] * 3)
        java.call("abandon", ledger=ledger)
        client.delete(ledger)
        assert ledger not in java.call("list")["ledgers"]
        # Another id: bookies remember the fence of a deleted ledger.
        another = ledger - 1000
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2, ledger_id=another) as writer:
            writer.append_many(payloads([300] * 3))
        assert java.read(another, "crc32c", PASSWORD)["entries"] == contents(payloads([300] * 3))
        client.delete(another)


def test_items_4_5_both_show_the_same_metadata_and_list_the_same_ledgers(java: JavaClient, bookies: Bookies) -> None:
    with our_client(bookies, "mac") as client:
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


def test_items_4_5_deleted_by_one_is_gone_for_the_other(java: JavaClient, bookies: Bookies) -> None:
    with our_client(bookies) as client:
        by_java = java.write((1, 1, 1), "crc32c", PASSWORD, [1])
        java.call("delete", ledger=by_java)
        with pytest.raises(NoSuchLedger):
            client.open(by_java)
        with create(client, (1, 1, 1)) as writer:
            writer.append(b"entry")
        client.delete(writer.ledger_id)
    with pytest.raises(PeerError) as refused:
        java.read(writer.ledger_id, "crc32c", PASSWORD)
    assert refused.value.code == NO_SUCH_LEDGER


def test_items_4_5_a_wrong_password_opens_nothing_either_way(java: JavaClient, bookies: Bookies) -> None:
    ledger = java.write((3, 3, 2), "crc32c", PASSWORD, [1])
    with our_client(bookies, password="wrong") as client, pytest.raises(UnauthorizedAccess):
        client.open(ledger)
    with our_client(bookies) as client, create(client, (1, 1, 1)) as writer:
        writer.append(b"entry")
    with pytest.raises(PeerError) as refused:
        java.read(writer.ledger_id, "crc32c", "wrong")
    assert refused.value.code == UNAUTHORIZED


def test_items_4_5_java_replaces_a_bookie_that_died_and_our_client_reads_both_fragments(
    java: JavaClient, bookies: Bookies
) -> None:
    ledger = java.create((2, 2, 2), "crc32c", PASSWORD)
    java.append(ledger, [1000] * 50)
    first = java.call("metadata", ledger=ledger)["fragments"][0]["bookies"]
    kill(bookies, first[0])
    java.append(ledger, [1000] * 50)
    java.call("close", ledger=ledger)
    fragments = java.call("metadata", ledger=ledger)["fragments"]
    assert [fragment["first_entry"] for fragment in fragments] == [0, 50]
    assert first[0] not in fragments[1]["bookies"]
    with our_client(bookies) as client:
        reader = client.open(ledger)
        assert list(reader.read(0, reader.last_entry)) == payloads([1000] * 100)


def test_items_4_5_our_client_replaces_a_bookie_that_died_and_java_reads_both_fragments(
    java: JavaClient, bookies: Bookies
) -> None:
    with our_client(bookies) as client:
        with create(client, (2, 2, 2)) as writer:
            writer.append_many(payloads([1000] * 50))
            dead = writer.metadata.fragments[0].bookies[0]
            kill(bookies, dead)
            writer.append_many(payloads([1000] * 50, first_entry=50))
        assert [fragment.first_entry for fragment in client.metadata(writer.ledger_id).fragments] == [0, 50]
    assert java.read(writer.ledger_id, "crc32c", PASSWORD)["entries"] == contents(payloads([1000] * 100))


def test_items_4_5_java_recovers_while_one_bookie_is_down(java: JavaClient, bookies: Bookies) -> None:
    # Two of three: Java's recovery stores what it rewrites on Qw bookies, so it needs one to take the dead one's place.
    with our_client(bookies) as client:
        writer = create(client, (2, 2, 2))
        writer.append_many(payloads([1000] * 100))
        dead = writer.metadata.fragments[0].bookies[0]
        kill(bookies, dead)
        answer = java.read(writer.ledger_id, "crc32c", PASSWORD, recover=True)
        writer.abandon()
    assert answer["closed"]
    assert answer["entries"] == contents(payloads([1000] * 100))


def test_items_4_5_only_one_of_two_recoverers_decides_and_both_agree(java: JavaClient, bookies: Bookies) -> None:
    ledger = java.create((3, 3, 2), "crc32c", PASSWORD)
    java.append(ledger, [500] * 30)
    with our_client(bookies) as client:
        closed = client.recover(ledger)
        again = java.read(ledger, "crc32c", PASSWORD, recover=True)
    assert (closed.last_entry, closed.length) == (29, 15_000) == (again["last_confirmed"], again["length"])
    with pytest.raises(PeerError) as refused:
        java.append(ledger, [1])
    assert refused.value.code in FENCED_WRITER
    java.call("abandon", ledger=ledger)


def test_items_4_5_our_writer_is_fenced_by_our_recovery(bookies: Bookies) -> None:
    with our_client(bookies) as client, our_client(bookies) as other:
        writer = create(client, (3, 3, 2))
        writer.append_many(payloads([1000] * 200))
        closed = other.recover(writer.ledger_id)
        assert (closed.last_entry, closed.length) == (199, 200_000)
        with pytest.raises(LedgerFenced):
            writer.append(b"too late")
        writer.abandon()
