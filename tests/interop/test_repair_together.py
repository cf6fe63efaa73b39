"""Autorecovery of both kinds in one cluster: Apache's auditor with our workers, ours with Apache's, one election, one
list, its locks and its switches (docs/protocol.md §4.8, §4.9, §7; item 7)."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from bkspark.blocking import Client, EncryptionOptions, LedgerWriter, run
from bkspark.cli.cluster_process import BookieProcess
from bkspark.cli.ledger_copies import copies_at
from bkspark.cli.ports import free_ports
from bkspark.entries import EntryBatch
from bkspark.errors import LedgerClosed, LedgerFenced
from bkspark.wire import v2
from tests.bookie.small_disks import mounted
from tests.interop.apache import SESSION_TIMEOUT_MS
from tests.interop.mixed import (
    WAIT_S,
    MixedCluster,
    Observer,
    javas_auditor,
    javas_process,
    javas_worker,
    our_auditor,
    our_worker,
)
from tests.interop.peer import JavaClient, Peer, PeerError, contents, payloads
from tests.interop.shell import shell
from tests.key_files import new_key_file
from tests.polling import wait_until
from tests.replication.repairing import autorecovery, check, command, forget, naming, wait_until_moved

pytestmark = [pytest.mark.interop, pytest.mark.cluster, pytest.mark.xdist_group("repair-together")]

SIZES = (0, 1, 200)


@pytest.fixture(scope="module")
def java_alone(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A JVM of this file's: its tests run beside those of the shared one."""
    peer = Peer(classpath, tmp_path_factory.mktemp("peer") / "java.log")
    yield peer
    peer.kill()


@pytest.fixture(scope="module")
def shared_mixed(classpath: str, java_alone: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with MixedCluster(classpath, tmp_path_factory.mktemp("mixed"), java_alone) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def observer(shared_mixed: MixedCluster) -> Iterator[Observer]:
    """What the metadata store says now."""
    with contextlib.closing(Observer(shared_mixed.uri)) as observer:
        yield observer


@pytest.fixture
def mixed(shared_mixed: MixedCluster, observer: Observer) -> Iterator[MixedCluster]:
    """Two bookies of each kind, all serving; no ledger lacks a copy when the next test begins."""
    yield shared_mixed
    shared_mixed.revive()
    observer.ask(lambda cluster: cluster.store.set_enabled(True))
    observer.ask(lambda cluster: cluster.store.set_lost_bookie_recovery_delay_s(0))
    if observer.listed():
        with our_worker(shared_mixed.uri):
            wait_until(lambda: not observer.listed(), "what the test left to be repaired", WAIT_S)


@pytest.fixture
def client(mixed: MixedCluster) -> Iterator[Client]:
    with Client(mixed.uri) as client:
        yield client


@pytest.fixture
def java(java_alone: Peer, mixed: MixedCluster) -> Iterator[JavaClient]:
    with JavaClient(java_alone, mixed.uri) as java:
        yield java


def without(client: Client, spare: str) -> LedgerWriter:
    """Return the writer of a ledger on all bookies but one: that one gets the copies that another loses."""
    while True:
        writer = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        if spare not in writer.metadata.last_fragment.bookies:
            return writer
        writer.close()
        client.delete(writer.ledger_id)


def written(client: Client, spare: str) -> list[int]:
    """Return closed ledgers that `spare` holds nothing of."""
    ledgers = []
    for size in SIZES:
        with without(client, spare) as writer:
            if size:
                writer.append_many(payloads([size] * size))
        ledgers.append(writer.ledger_id)
    return ledgers


def assert_repaired(
    mixed: MixedCluster, observer: Observer, client: Client, java: JavaClient, ledgers: list[int], spare: str
) -> None:
    """Every copy is there, `spare` holds the lost ones, nothing is listed, and both clients read what was written."""
    wait_until(lambda: not observer.listed(), "the list to be empty", WAIT_S)
    assert naming(client, ledgers, spare) == ledgers
    wait_until(lambda: check(mixed.uri)["ok"], "a check that finds nothing missing", WAIT_S)
    for ledger, size in zip(ledgers, SIZES):
        entries = contents(payloads([size] * size))
        assert java.read(ledger, "crc32c", "")["entries"] == entries
        reader = client.open(ledger)
        assert contents(reader.read(0, reader.last_entry)) == entries if size else reader.last_entry == -1


def assert_open_ledger_was_fenced(client: Client, writer: LedgerWriter) -> None:
    # Whichever it meets first: a fenced bookie, or the lost one, upon which it looks into the metadata.
    with pytest.raises((LedgerFenced, LedgerClosed)):
        writer.append(b"too late")
    writer.abandon()
    metadata = client.metadata(writer.ledger_id)
    assert metadata.is_closed
    assert metadata.last_entry == 19


def lac_in(bookie: str, ledger: int, entry_id: int) -> int:
    """Return the LAC in an entry as a bookie holds it."""
    host, port = bookie.split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(v2.encode_reads(ledger, np.array([entry_id])))
        frame = connection.makefile("rb").read(4 + v2.REPLY_BYTES + 24)
    return int.from_bytes(frame[-8:], "big", signed=True)


def test_item_7_javas_worker_copies_onto_our_bookie_what_our_auditor_listed(
    java_alone: Peer, mixed: MixedCluster, observer: Observer, client: Client, java: JavaClient
) -> None:
    """Closed ledgers, and an open one that the worker fences first: through V2."""
    lost, spare = mixed.ours[1], mixed.ours[0]
    ledgers = written(client, spare.id)
    left = without(client, spare.id)
    left.append_many(payloads([100] * 20))
    with our_auditor(mixed.uri), javas_worker(java_alone, mixed.uri, observer):
        lost.kill()
        wait_until_moved(client, [*ledgers, left.ledger_id], lost.id)
        assert_repaired(mixed, observer, client, java, ledgers, spare.id)
    assert_open_ledger_was_fenced(client, left)
    # Java's worker does not copy bytes: it seals again, with the LAC of its read handle (bkspark.wire.lac).
    assert [lac_in(spare.id, ledgers[-1], entry_id) for entry_id in (0, 7, 199)] == [199, 199, 199]


@pytest.mark.long(reason="10 s; the test above has the worker, and .ci/run has this one")
def test_apaches_worker_copies_encrypted_ledgers_and_fences_an_open_one_without_their_key(
    java_alone: Peer, mixed: MixedCluster, observer: Observer, java: JavaClient, tmp_path: Path
) -> None:
    """It seals the envelope again, and leaves the payload as it is: ciphertext, whose nonce names ledger and entry."""
    keys = EncryptionOptions(new_key_file(tmp_path / "keys"))
    lost, spare = mixed.ours[1], mixed.ours[0]
    entries = payloads([100] * 20)
    with Client(mixed.uri, encryption=keys) as client:
        with without(client, spare.id) as closed:
            closed.append_many(entries)
        left = without(client, spare.id)
        left.append_many(entries)
        ledgers = [closed.ledger_id, left.ledger_id]
        with our_auditor(mixed.uri), javas_worker(java_alone, mixed.uri, observer):
            lost.kill()
            wait_until_moved(client, ledgers, lost.id)
            wait_until(lambda: not observer.listed(), "the list to be empty", WAIT_S)
        assert_open_ledger_was_fenced(client, left)
        assert naming(client, ledgers, spare.id) == ledgers
        for ledger in ledgers:
            copies = copies_at(client.asynchronous, ledger, spare.id, 0, None, b"")
            assert [entry for batch in collected(copies) for entry in batch] == entries
    with Client(mixed.uri, encryption=EncryptionOptions(shows_sealed=True)) as client:
        for ledger in ledgers:
            stored = contents(client.open(ledger).read(0, 19))
            assert java.read(ledger, "crc32c", "")["entries"] == stored != contents(entries)


def collected(batches: AsyncIterator[EntryBatch]) -> list[EntryBatch]:
    async def collect() -> list[EntryBatch]:
        return [batch async for batch in batches]

    return run(collect)


def test_item_7_our_worker_copies_onto_apaches_bookie_what_javas_auditor_listed(
    java_alone: Peer, mixed: MixedCluster, observer: Observer, client: Client, java: JavaClient
) -> None:
    lost, spare = mixed.ours[1], mixed.apache[1]
    ledgers = written(client, spare.id)
    left = without(client, spare.id)
    left.append_many(payloads([100] * 20))
    with javas_auditor(java_alone, mixed.uri, observer), our_worker(mixed.uri):
        lost.kill()
        wait_until_moved(client, [*ledgers, left.ledger_id], lost.id)
        assert_repaired(mixed, observer, client, java, ledgers, spare.id)
    assert_open_ledger_was_fenced(client, left)


@pytest.mark.long(reason="25 s: whole processes of both, one after the other; .ci/run has it")
def test_item_7_one_auditor_is_elected_among_both_and_killed_ones_are_followed(
    classpath: str, mixed: MixedCluster, observer: Observer, client: Client, java: JavaClient, tmp_path: Path
) -> None:
    """Whole processes: ours audits, then Apache's, then ours again; each repairs what is lost in its time."""
    spare, lost = mixed.ours[0], mixed.ours[1]
    ours, apaches = socket.gethostname(), "apaches-autorecovery"
    ledgers = written(client, spare.id)
    with autorecovery(mixed.uri, tmp_path / "first.log") as first:
        wait_until(lambda: observer.elected() == ours, "our first process to be elected", WAIT_S)
        with javas_process(classpath, mixed.uri, apaches, tmp_path) as process:
            wait_until(lambda: observer.votes() == 2, "Apache's process to stand for election", WAIT_S)
            with autorecovery(mixed.uri, tmp_path / "second.log"):
                wait_until(lambda: observer.votes() == 3, "our second process to stand for election", WAIT_S)
                assert java.call("auditor")["auditor"] == ours
                first.kill()
                wait_until(lambda: observer.elected() == apaches, "Apache's process to be elected", WAIT_S)
                assert java.call("auditor")["auditor"] == apaches
                lost.kill()
                wait_until_moved(client, ledgers, lost.id)
                lost.restart()
                process.kill()
                wait_until(lambda: observer.elected() == ours, "our second process to be elected", WAIT_S)
                more = written(client, spare.id)
                lost.kill()
                wait_until_moved(client, more, lost.id)
                assert_repaired(mixed, observer, client, java, more, spare.id)


def test_item_7_a_ledger_that_java_has_locked_is_left_alone_by_our_worker(
    java_alone: Peer, mixed: MixedCluster, observer: Observer, client: Client
) -> None:
    *_, free, held = written(client, mixed.ours[0].id)
    lost = mixed.ours[1]
    with our_auditor(mixed.uri):
        lost.kill()
        wait_until(lambda: {free, held} <= observer.listed(), "both ledgers to be listed", WAIT_S)
    java_alone.call("lock", uri=mixed.uri, name="lock", ledger=held)
    with our_worker(mixed.uri):
        wait_until(lambda: observer.listed() == {held}, "our worker to repair the others", WAIT_S)
        assert naming(client, [free, held], lost.id) == [held]
        java_alone.call("stop", uri=mixed.uri, name="lock")
        wait_until_moved(client, [held], lost.id)


def test_item_7_a_ledger_that_we_have_locked_is_left_alone_by_javas_worker(
    java_alone: Peer, mixed: MixedCluster, observer: Observer, client: Client
) -> None:
    *_, free, held = written(client, mixed.apache[0].id)
    lost = mixed.ours[0]
    with our_auditor(mixed.uri):
        lost.kill()
        wait_until(lambda: {free, held} <= observer.listed(), "both ledgers to be listed", WAIT_S)
    assert observer.ask(lambda cluster: cluster.store.lock(held, "a-test"))
    with pytest.raises(PeerError):
        java_alone.call("lock", uri=mixed.uri, name="lock", ledger=held)
    with javas_worker(java_alone, mixed.uri, observer):
        wait_until(lambda: observer.listed() == {held}, "Java's worker to repair the others", WAIT_S)
        assert naming(client, [free, held], lost.id) == [held]
        observer.ask(lambda cluster: cluster.store.unlock(held))
        wait_until_moved(client, [held], lost.id)


def test_item_7_our_auditor_obeys_the_switch_and_the_delay_of_apaches_shell(
    mixed: MixedCluster, observer: Observer, client: Client, java: JavaClient
) -> None:
    """docs/protocol.md §7.2: `lostbookierecoverydelay` wins over the configuration, `triggeraudit` ends it."""
    ledgers = written(client, mixed.ours[0].id)
    lost = mixed.ours[1]
    with our_auditor(mixed.uri):
        wait_until(lambda: observer.delay_s() is not None, "our auditor to say its delay", WAIT_S)
        shell(java, "lostbookierecoverydelay -set 3600")
        assert observer.delay_s() == 3600
        shell(java, "autorecovery -disable")
        lost.kill()
        wait_until(lambda: not observer.is_registered(lost.id), "the lost bookie's session to expire", WAIT_S)
        assert command(mixed.uri, "autorecovery", "--enable")[0]["enabled"] is True
        assert observer.listed() == set()
        shell(java, "triggeraudit")
        wait_until(lambda: set(ledgers) <= observer.listed(), "our auditor to audit on request", WAIT_S)


def test_item_7_javas_auditor_obeys_our_switch(
    java_alone: Peer, mixed: MixedCluster, observer: Observer, client: Client, java: JavaClient
) -> None:
    ledgers = written(client, mixed.ours[0].id)
    lost = mixed.ours[1]
    assert command(mixed.uri, "autorecovery", "--disable")[0]["enabled"] is False
    with javas_auditor(java_alone, mixed.uri, observer):
        lost.kill()
        wait_until(lambda: not observer.is_registered(lost.id), "the lost bookie's session to expire", WAIT_S)
        assert observer.listed() == set()
        assert command(mixed.uri, "autorecovery", "--enable")[0]["enabled"] is True
        wait_until(lambda: set(ledgers) <= observer.listed(), "Java's auditor to audit once enabled", WAIT_S)


@pytest.mark.long(reason="tests/interop/test_every_call.py has the recovery by hand; .ci/run has this one")
def test_item_9_apaches_shell_names_our_auditor_and_recovers_by_hand_what_our_bookie_held(
    mixed: MixedCluster, client: Client, java: JavaClient, observer: Observer
) -> None:
    lost, spare = mixed.ours[1], mixed.ours[0]
    ledgers = written(client, spare.id)
    with our_auditor(mixed.uri):
        assert "auditor=our-auditor" in shell(java, "whoisauditor")
        shell(java, "autorecovery -disable")
        lost.kill()
        wait_until(lambda: not observer.is_registered(lost.id), "the lost bookie's session to expire", WAIT_S)
        shell(java, f"recover -force {lost.id}")
        assert naming(client, ledgers, lost.id) == []
        shell(java, "autorecovery -enable")
    assert_repaired(mixed, observer, client, java, ledgers, spare.id)


def test_item_9_apaches_shell_decommissions_a_bookie_that_our_auditor_and_worker_empty(
    mixed: MixedCluster, client: Client, java: JavaClient, observer: Observer, tmp_path: Path
) -> None:
    """It asks for an audit by writing the delay that it read: there was none to be read, and it gave up."""
    retired = BookieProcess(3, free_ports(1)[0], tmp_path / "retired", mixed.uri, {"zkTimeout": SESSION_TIMEOUT_MS})
    retired.restart()
    try:
        ledgers = [write_on(client, retired.id) for _ in range(3)]
    finally:
        retired.stop()
    with our_auditor(mixed.uri), our_worker(mixed.uri):
        shell(java, f"decommissionbookie -bookieid {retired.id}")
    assert naming(client, ledgers, retired.id) == []
    assert retired.id not in observer.ask(lambda cluster: cluster.context.registry.known())


def write_on(client: Client, bookie: str) -> int:
    """Return a closed ledger that a bookie holds entries of."""
    while True:
        with client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer:
            writer.append_many(payloads([100] * 30))
            named = writer.metadata.last_fragment.bookies
        if bookie in named:
            return writer.ledger_id


SMALL_DISK_BYTES = 64 << 20
FULL_SHARE = 0.965
"""Above diskUsageThreshold, with room for what a recovery adds."""


@pytest.mark.long_except("v3", reason="the bookie refuses and takes adds alike in either protocol")
@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_item_8_javas_client_goes_on_when_our_bookies_disk_is_full_and_recovers_what_it_left_there(
    mixed: MixedCluster, client: Client, java: JavaClient, observer: Observer, tmp_path: Path, protocol: str
) -> None:
    """The full bookie is read-only: it refuses an owner's adds, gives its entries, takes recovery's, and comes back."""
    settings = {"zkTimeout": SESSION_TIMEOUT_MS, "diskCheckInterval": "100", "journalPreAllocSizeMB": "1"}
    settings["diskUsageThreshold"] = "0.95"
    with mounted(tmp_path / "small", SMALL_DISK_BYTES) as disk, java.speaking(protocol) as writer:
        full = BookieProcess(3, free_ports(1)[0], disk / "bookie", mixed.uri, settings)
        full.restart()
        try:
            written, left = (open_on(client, writer, full.id) for _ in range(2))
            ballast = disk / "ballast"
            ballast.write_bytes(bytes(int(SMALL_DISK_BYTES * FULL_SHARE) - shutil.disk_usage(disk).used))
            wait_until(lambda: full.id in java.call("bookies")["read_only"], "the full bookie to be read-only", WAIT_S)
            writer.append(written, [1000] * 30)
            writer.call("close", ledger=written)
            ensembles = [fragment.bookies for fragment in client.metadata(written).fragments]
            assert full.id in ensembles[0]
            assert full.id not in ensembles[-1]
            entries = contents(payloads([1000] * 40))
            assert writer.read(written, "crc32c", "")["entries"] == entries
            writer.call("abandon", ledger=left)
            assert writer.read(left, "crc32c", "")["entries"] == entries[:10]
            assert client.metadata(left).is_closed
            ballast.unlink()
            wait_until(lambda: full.id in java.call("bookies")["available"], "the bookie to take writes again", WAIT_S)
            writer.append(open_on(client, writer, full.id), [1000] * 10)
        finally:
            full.stop()
        wait_until(lambda: not observer.is_registered(full.id), "the small bookie to be gone", WAIT_S)
        forget(mixed.uri, full.id)


def open_on(client: Client, java: JavaClient, bookie: str) -> int:
    """Return a ledger that Java has open with ten entries, on a bookie and two others."""
    while True:
        ledger = java.create((3, 3, 2), "crc32c", "")
        if bookie in client.metadata(ledger).last_fragment.bookies:
            java.append(ledger, [1000] * 10)
            return ledger
        java.call("close", ledger=ledger)


def test_item_7_javas_auditor_waits_for_a_lost_bookie_as_long_as_we_say(
    java_alone: Peer, mixed: MixedCluster, observer: Observer, client: Client, java: JavaClient
) -> None:
    """docs/protocol.md §7.2: `lostBookieRecoveryDelay` in the metadata, ours, wins over Java's configuration."""
    ledgers = written(client, mixed.ours[0].id)
    lost = mixed.ours[1]
    observer.ask(lambda cluster: cluster.store.set_lost_bookie_recovery_delay_s(3600))
    assert "{delay=3600}" in shell(java, "lostbookierecoverydelay -get")
    with javas_auditor(java_alone, mixed.uri, observer):
        lost.kill()
        wait_until(lambda: not observer.is_registered(lost.id), "the lost bookie's session to expire", WAIT_S)
        # Its audit of the loss, were there one, comes at once; a second bookie's would end the delay.
        with our_worker(mixed.uri):
            assert observer.listed() == set()
            observer.ask(lambda cluster: cluster.store.set_lost_bookie_recovery_delay_s(0))
            wait_until_moved(client, ledgers, lost.id)


def test_item_7_our_command_recovers_what_apaches_bookie_held_and_decommissions_it(
    mixed: MixedCluster, client: Client, java: JavaClient, observer: Observer
) -> None:
    """`bkspark cluster recover`, then `decommission`: without any autorecovery."""
    lost, spare = mixed.apache[0], mixed.ours[0]
    ledgers = written(client, spare.id)
    lost.kill()
    wait_until(lambda: not observer.is_registered(lost.id), "the lost bookie's session to expire", WAIT_S)
    assert command(mixed.uri, "recover", lost.id)[0]["ledgers"] >= len(ledgers)
    assert_repaired(mixed, observer, client, java, ledgers, spare.id)
    assert command(mixed.uri, "decommission", lost.id)[0]["decommissioned"] is True
    # Without its cookie Apache's bookie takes its folders for another's; on empty ones it is a new bookie.
    lost.wipe()
