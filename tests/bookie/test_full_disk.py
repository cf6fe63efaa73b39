"""A bookie as a process on a small disk that really fills up, with a real ZooKeeper."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
from rocksdict import Rdict

from bkspark.blocking import Client
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.files import LocalFiles, is_out_of_space
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.io.rocks import RocksKeyValues
from tests.bookie.child import STOP_S, BookieChild
from tests.bookie.serving import Peer, split, stored
from tests.bookie.small_disks import mounted
from tests.polling import wait_until

pytestmark = pytest.mark.cluster

DISK_BYTES = 64 << 20
BALLAST_BYTES = 24 << 20
RECOVERY = v2.RECOVERY_ADD | v2.HIGH_PRIORITY
PAYLOADS = [bytes([i]) * 8192 for i in range(64)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", DISK_BYTES) as path:
        yield path


def fill(disk: Path) -> Path:
    """Write a file until not a byte more fits; unbuffered, so that closing it has nothing left to write."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return ballast


def make_ledgers(uri: str) -> None:
    """Make ledgers 5 and 6 known to the metadata store: a full bookie collects garbage at once."""
    with Client(uri) as client:
        for ledger_id in (5, 6):
            client.create(ensemble=1, write_quorum=1, ack_quorum=1, ledger_id=ledger_id)


class Log:
    """Adds to ledger 5, and what was acknowledged of it."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def add(self, peer: Peer) -> list[int]:
        """Add some entries; return the statuses."""
        statuses = peer.add(5, len(self.payloads), PAYLOADS)
        accepted = statuses.count(Status.EOK)
        assert statuses == [Status.EOK] * accepted + [Status.EREADONLY] * (len(PAYLOADS) - accepted)
        self.payloads += PAYLOADS[:accepted]
        return statuses

    def add_until_refused(self, peer: Peer) -> None:
        while Status.EREADONLY not in self.add(peer):
            assert len(self.payloads) * len(PAYLOADS[0]) < 2 * DISK_BYTES, "the disk takes more than it holds"

    def check(self, peer: Peer) -> None:
        """Every acknowledged entry is there, byte for byte."""
        found: list[bytes] = []
        while len(found) < len(self.payloads):
            reply = peer.batch_read(5, len(found))
            assert reply.status == Status.EOK
            found += split(reply.body)
        for entry_id, payload in enumerate(self.payloads):
            assert found[entry_id] == stored(5, entry_id, payload)


def is_registered(bookie: BookieChild, *, read_only: bool) -> bool:
    """Return whether the bookie is in one list and in no other (docs/protocol.md §4.7)."""
    writable = set(bookie.ask_registry(lambda registry: registry.writable()))
    readable = set(bookie.ask_registry(lambda registry: registry.read_only()))
    return (writable, readable) == ((set(), {bookie.id}) if read_only else ({bookie.id}, set()))


def wait_registered(bookie: BookieChild, *, read_only: bool) -> None:
    wait_until(lambda: is_registered(bookie, read_only=read_only), f"registration with read_only={read_only}")


def fill_up(bookie: BookieChild, log: Log, peer: Peer) -> None:
    """Add until the bookie is read-only for good: a checkpoint may give back space of the journal."""

    def is_full() -> bool:
        log.add_until_refused(peer)
        return is_registered(bookie, read_only=True) and Status.EOK not in log.add(peer)

    wait_until(is_full, "the disk to be full")


@pytest.mark.parametrize("has_journal", [False, True])
def test_small_disk_that_fills_up_makes_the_bookie_read_only_and_back(
    tmp_path: Path, uri: str, small_disk: Path, has_journal: bool
) -> None:
    directory = tmp_path / "bookie"
    bookie = BookieChild(
        directory,
        uri,
        ledgerDirectories=str(small_disk / "ledgers"),
        journalDirectories=str((small_disk if has_journal else directory) / "journal"),
        diskCheckInterval="100",
        flushInterval="100",
        journalMaxSizeMB="4",
        journalPreAllocSizeMB="1",
        journalMaxBackups="0",
    )
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    log = Log()
    with bookie.running() as process:
        make_ledgers(uri)
        with bookie.connect() as peer:
            fill_up(bookie, log, peer)
            assert log.payloads
            log.check(peer)
            assert peer.add(6, 0, [b"recovered"], RECOVERY) == [Status.EOK]
            assert peer.read(6, 0, v2.DO_FENCING).status == Status.EOK
            ballast.unlink()
            wait_registered(bookie, read_only=False)
            assert Status.EOK in log.add(peer)
            assert peer.add(6, 1, [b"late"]) == [Status.EFENCED]
        process.kill()
    with bookie.running(), bookie.connect() as peer:
        log.check(peer)
        assert peer.read(6, 0).body == stored(6, 0, b"recovered")


@pytest.mark.parametrize("storage_class", ["SortedLedgerStorage", "DbLedgerStorage"])
def test_disk_without_a_byte_left_holds_checkpoints_back_until_there_is_space(
    tmp_path: Path, uri: str, small_disk: Path, storage_class: str
) -> None:
    directory = tmp_path / "bookie"
    bookie = BookieChild(
        directory,
        uri,
        ledgerDirectories=str(small_disk / "ledgers"),
        ledgerStorageClass=storage_class,
        diskCheckInterval="100",
        flushInterval="100",
        # Only what the disk refuses makes this bookie read-only.
        diskUsageThreshold="0.99999",
    )
    log = Log()
    with bookie.running() as process:
        make_ledgers(uri)
        with bookie.connect() as peer:
            assert Status.EOK in log.add(peer)
            ballast = fill(small_disk)
            fill_up(bookie, log, peer)
            log.check(peer)
            ballast.unlink()
            wait_registered(bookie, read_only=False)
            assert Status.EOK in log.add(peer)
            fill(small_disk)
            log.add_until_refused(peer)
        process.signal(signal.SIGTERM)
        assert process.wait(STOP_S)
        assert process.exit_code == 0
    os.unlink(ballast)
    with bookie.running(), bookie.connect() as peer:
        log.check(peer)


def test_key_values_on_a_full_disk_are_closed_without_what_was_not_synced(small_disk: Path) -> None:
    """RocksDB writes its memory table out when it is closed; a bookie that stops on a full disk must not fail of it."""
    store = RocksKeyValues(str(small_disk), KeyValueOptions())
    store.write([(b"synced", b"1")])
    store.sync()
    store.write([(b"%08d" % n, bytes(4096)) for n in range(1000)])
    ballast = fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        store.sync()
    store.close()
    ballast.unlink()
    again = RocksKeyValues(str(small_disk), KeyValueOptions())
    assert again.get([b"synced"]) == [b"1"]
    again.close()


def test_key_values_on_a_full_disk_are_opened_and_read_and_take_writes_once_there_is_space(small_disk: Path) -> None:
    """B9: RocksDB writes files whenever it is opened. On a full disk the start failed, and with it every read."""
    store = RocksKeyValues(str(small_disk), KeyValueOptions())
    store.write([(b"synced", b"1")])
    store.sync()
    store.close()
    ballast = fill(small_disk)
    again = LocalFiles().open_key_values(str(small_disk), KeyValueOptions())
    for _ in range(2):
        assert again.get([b"synced", b"other"]) == [b"1", None]
        assert list(again.keys(b"", b"z")) == [b"synced"]
        for change in (lambda: again.write([(b"later", b"2")]), again.sync):
            with pytest.raises(OSError, match="space") as raised:
                change()
            assert is_out_of_space(raised.value)
    ballast.unlink()
    again.write([(b"later", b"2")])
    again.sync()
    again.close()
    last = RocksKeyValues(str(small_disk), KeyValueOptions())
    assert last.get([b"synced", b"later"]) == [b"1", b"2"]
    last.close()


class QuotaFiles(LocalFiles):
    """Files of a full disk that seems to have space, as with a quota that is exhausted."""

    is_exhausted = True

    def space(self, directory: str) -> FileSystemSpace:
        found = super().space(directory)
        return replace(found, free_bytes=found.total_bytes) if self.is_exhausted else found


def test_key_values_are_read_as_before_while_only_a_quota_refuses_space(small_disk: Path) -> None:
    """The store must be closed to take writes again. If it cannot be opened then, what was not synced is not denied."""
    files = QuotaFiles()
    store = files.open_key_values(str(small_disk), KeyValueOptions())
    store.write([(b"gone%04d" % n, b"1") for n in range(1500)] + [(b"old", b"1"), (b"stays", b"1")])
    store.sync()
    store.write([(b"%08d" % n, bytes(4096)) for n in range(1000)])
    store.write([(b"gone0007", b"2"), (b"old", b"2")], [(b"gone", b"goof")])
    store.write([], [(b"%08d" % 998, b"%08d\0" % 998)])
    keys = [*(b"%08d" % n for n in range(1000) if n != 998), b"gone0007", b"old", b"stays"]
    ballast = fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        store.sync()
    for _ in range(2):
        with pytest.raises(OSError, match="no space to open") as raised:
            store.write([(b"later", b"2")], [(b"stays", b"stays\0")])
        assert is_out_of_space(raised.value)
        read = [b"00000998", b"00000999", b"gone0007", b"gone0008", b"later", b"old", b"stays"]
        assert store.get(read) == [None, bytes(4096), b"2", None, None, b"2", b"1"]
        assert list(store.keys(b"", b"z")) == keys
        assert list(store.keys(b"gone", b"goof")) == [b"gone0007"]
        assert store.last(b"", b"00000999") == (b"00000997", bytes(4096))
        assert store.last(b"gone", b"old") == (b"gone0007", b"2")
        assert store.last(b"gone0008", b"goof") is None
        assert store.last(b"old", b"z") == (b"stays", b"1")
    ballast.unlink()
    files.is_exhausted = False
    store.write([(b"later", b"2")])
    store.sync()
    assert store.get([b"00000999", b"later"]) == [bytes(4096), b"2"]
    assert list(store.keys(b"", b"z")) == sorted([*keys, b"later"])
    store.close()


def test_key_values_that_do_not_exist_yet_need_space(small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        LocalFiles().open_key_values(str(small_disk), KeyValueOptions())
    ballast.unlink()
    LocalFiles().open_key_values(str(small_disk), KeyValueOptions()).close()


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (Exception("IO error: No space left on device: While appending to file: x"), errno.ENOSPC),
        (Exception("IO error: Disk quota exceeded: While appending to file: x"), errno.EDQUOT),
        (Exception("IO error: Input/output error: While pread"), errno.EIO),
        (Exception("No space left on device (os error 28)"), errno.ENOSPC),
        (OSError("Disk quota exceeded (os error 122)"), errno.EDQUOT),
        (OSError("Input/output error (os error 5)"), errno.EIO),
    ],
    ids=str,
)
def test_errors_of_key_values_have_their_number_and_path(tmp_path: Path, raised: Exception, code: int) -> None:
    """rocksdict raises texts, and for its own files errors without a number: a full quota ended the bookie."""
    store = RocksKeyValues(str(tmp_path), KeyValueOptions())
    database, store._database = store._database, FailingWrites(store._database, raised)
    with pytest.raises(OSError, match=os.strerror(code)) as found:
        store.write([(b"key", b"value")])
    assert (found.value.errno, found.value.filename) == (code, str(tmp_path))
    store._database = database
    store.close()


@pytest.mark.parametrize("reason", ["No space left on device", "Disk quota exceeded", "Input/output error"])
def test_key_values_close_without_room_for_writes_that_were_not_durable(tmp_path: Path, reason: str) -> None:
    """RocksDB writes its memory table out at the close. A full disk or quota must not change how the bookie ends."""
    store = RocksKeyValues(str(tmp_path), KeyValueOptions())
    database, store._database = store._database, FailingWrites(store._database, Exception(f"IO error: {reason}: x"))
    if reason == "Input/output error":
        with pytest.raises(OSError, match=reason):
            store.close()
    else:
        store.close()
    database.close()


class FailingWrites:
    """A database whose writes and close raise an error."""

    def __init__(self, database: Rdict, error: Exception) -> None:
        self._database = database
        self._error = error

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def write(self, *arguments: object) -> None:
        raise self._error

    def close(self) -> None:
        raise self._error


class FirstFlushFails:
    """A database whose first flush waits, and finds no space then."""

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self.is_in_flush, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def flush(self, wait: bool) -> None:
        if not self.is_in_flush.is_set():
            self.is_in_flush.set()
            self.go_on.wait()
            raise Exception("IO error: No space left on device")
        self._database.flush(wait)


def test_what_a_failed_sync_left_is_not_written_over_what_a_later_one_made_durable(tmp_path: Path) -> None:
    """The checkpoint syncs, and garbage collection does meanwhile. When the first finds no space, all since is written
    again in its order: an older position over a newer one leads to an entry log that is gone."""
    store = RocksKeyValues(str(tmp_path), KeyValueOptions())
    database = store._database = FirstFlushFails(store._database)
    store.write([(b"position", b"old")])
    with ThreadPoolExecutor(2) as threads:
        checkpoint = threads.submit(store.sync)
        database.is_in_flush.wait()
        store.write([(b"position", b"new")])
        collection = threads.submit(store.sync)
        wait([collection], timeout=0.3)  # it may be done before the first one, and need not
        database.go_on.set()
        assert isinstance(checkpoint.exception(), OSError)
        collection.result()
    store.write([(b"another", b"1")])
    store.sync()
    assert store.get([b"position"]) == [b"new"]
    store.close()


def test_store_is_not_opened_again_beneath_a_sync_whose_writes_it_would_lack(tmp_path: Path) -> None:
    """A bookie would deny entries that it acknowledged, until the sync has failed as well."""
    store = RocksKeyValues(str(tmp_path), KeyValueOptions())
    database = store._database = FirstFlushFails(store._database)
    store.write([(b"position", b"1")])
    with ThreadPoolExecutor(1) as threads, contextlib.ExitStack() as ending:
        checkpoint = threads.submit(store.sync)
        ending.callback(database.go_on.set)
        database.is_in_flush.wait()
        # Garbage collection removes a ledger meanwhile, and tries it again.
        store._database = FailingWrites(database, Exception("IO error: No space left on device: x"))
        with pytest.raises(OSError, match="No space left"):
            store.write([], [(b"header", b"header\0")])
        store._database = database
        with pytest.raises(OSError, match="is synced first") as raised:
            store.write([], [(b"header", b"header\0")])
        assert is_out_of_space(raised.value)
        assert store.get([b"position"]) == [b"1"]
        database.go_on.set()
        assert isinstance(checkpoint.exception(), OSError)
    store.sync()
    assert store.get([b"position"]) == [b"1"]
    store.close()


def test_a_removal_that_a_full_disk_refused_does_not_happen_later(small_disk: Path) -> None:
    """A bookie that could not drop a ledger goes on serving it, and drops it in a later pass."""
    store = RocksKeyValues(str(small_disk), KeyValueOptions())
    store.write([(b"header", b"1")])
    store.sync()
    store.write([(b"%08d" % n, bytes(4096)) for n in range(1000)])
    ballast = fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        store.sync()
    with pytest.raises(OSError):
        store.write([], [(b"header", b"header\0")])
    ballast.unlink()
    store.write([(b"another", b"2")])
    store.sync()
    assert store.get([b"header", b"another", b"00000999"]) == [b"1", b"2", bytes(4096)]
    store.close()


def test_full_disk_ends_a_bookie_that_may_not_be_read_only(tmp_path: Path, uri: str, small_disk: Path) -> None:
    bookie = BookieChild(
        tmp_path / "bookie",
        uri,
        ledgerDirectories=str(small_disk / "ledgers"),
        diskCheckInterval="100",
        readOnlyModeEnabled="false",
    )
    log = Log()
    with bookie.running() as process:
        with bookie.connect() as peer, contextlib.suppress(AssertionError):
            while log.add(peer):
                pass
        assert process.wait(STOP_S)
        assert process.exit_code == 1
        assert "readOnlyModeEnabled is false: " in process.last_log_line()
    assert bookie.ask_registry(lambda registry: registry.writable()) == {}
    assert bookie.ask_registry(lambda registry: registry.read_only()) == {}
