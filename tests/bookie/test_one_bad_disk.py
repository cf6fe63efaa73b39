"""One full or failing ledger directory of several affects only what is stored there, at run time and at start (B9)."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.admin.check import BookieCheck
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.index.index import IndexPaths
from bookie_service.storage.index.manifest import IndexManifest
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie import collecting
from tests.bookie.collecting import Bench
from tests.bookie.faulty_files import FaultyFiles, GoneFiles
from tests.bookie.serving import Serving, service_options, stored
from tests.bookie.three_directories import (
    LEDGERS,
    PAYLOADS,
    make_only_store,
    marks,
    read_all,
    settle,
    write_all,
    write_more,
)
from tests.disks import ROOMY, ROOMY_DISKS
from tests.polling import wait_until

CHANGES = ("write", "create", "rename", "remove", "sync_data", "sync_directory")


def options(directory: Path, **changes: object) -> ServiceOptions:
    """Return the options of a bookie with three ledger directories, logs of a few entries, and quick checkpoints."""
    defaults = {
        "ledger_directories": [str(directory / name) for name in "abc"],
        "disks": replace(ROOMY_DISKS, interval_s=0.05),
        "checkpoint_interval_s": 0.05,
        "store": StoreOptions(append=AppendOptions(50_000), disks=ROOMY),
        "journal": JournalOptions(backups_max=0, file_bytes_max=400_000),
    }
    return replace(service_options(directory), **(defaults | changes))


def hurt(serving: Serving, files: FaultyFiles, name: str, code: int) -> None:
    """Have a directory take no changes any more: it is full, or its disk fails. No flush is in the middle of it."""
    settle(serving)
    files.code = code
    if code == errno.ENOSPC:
        files.used = {f"/{name}/": 0.9999}
        files.fault = lambda operation, path: operation in ("write", "create") and f"/{name}/current" in path
    else:
        files.fault = lambda operation, path: operation in CHANGES and f"/{name}/current" in path


@contextlib.contextmanager
def flushing(directory: Path) -> Iterator[None]:
    """Give time to add; return when something of that was flushed, and there are index files."""
    before = marks(directory)
    yield
    wait_until(lambda: sum(marks(directory)[name] != before[name] for name in "abc") >= 2, "the marks to move")
    wait_until(lambda: len(list(directory.glob("*/current/*/*/*.idx"))) >= len(LEDGERS), "index files")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_bookie_goes_on_when_one_directory_is_full_or_fails_and_starts_so(tmp_path: Path, name: str, code: int) -> None:
    files = FaultyFiles()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        with flushing(tmp_path):
            write_all(peer, 0)
        hurt(serving, files, name, code)
        with flushing(tmp_path):
            write_all(peer, 40)
        with flushing(tmp_path):
            write_all(peer, 80)
        read_all(peer, 120)
        with flushing(tmp_path):
            for ledger_id in range(100, 106):
                assert peer.add(ledger_id, 0, [b"a new ledger"]) == [Status.EOK]
        assert serving.failure is None
        serving.abandon()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        read_all(peer, 120)
        for ledger_id in range(100, 106):
            assert peer.read(ledger_id, 0).body == stored(ledger_id, 0, b"a new ledger")
            assert peer.read(ledger_id, 1).status == Status.ENOENTRY
        with flushing(tmp_path):
            write_all(peer, 120)
    assert serving.failure is None, "it stops in order, too"
    files.fault, files.used = None, {}
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        read_all(peer, 160)
        write_all(peer, 160)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_key_value_stores_of_other_directories_go_on_when_one_is_full_or_fails(
    tmp_path: Path, code: int, name: str
) -> None:
    """Each directory has the index of its own ledgers. A full one is still read, and one that fails is not."""
    files = FaultyFiles()
    bookie = options(tmp_path, store=StoreOptions(StorageClass.DB, append=AppendOptions(50_000), disks=ROOMY))
    others = [each for each in LEDGERS if "abc"[each % 3] != name]
    concerned = sorted(set(LEDGERS).difference(others))
    with Serving(bookie, files) as serving, serving.connect() as peer:
        write_all(peer, 0)
        hurt(serving, files, name, code)
        refusal = {Status.EREADONLY if code == errno.ENOSPC else Status.EIO}
        wait_until(lambda: set(peer.add(concerned[0], 40, PAYLOADS)) == refusal, "adds to be refused")
        for first in (40, 80):
            assert set(peer.add(concerned[0], first, PAYLOADS)) == refusal
            for ledger_id in others:
                assert set(peer.add(ledger_id, first, PAYLOADS)) == {Status.EOK}
        read_all(peer, 120, others)
        if code == errno.ENOSPC:
            read_all(peer, 40, concerned)
        else:
            assert peer.read(concerned[1], 0).status == Status.EIO
            assert peer.read(90 + concerned[0], 0).status == Status.EIO, "it may have been a ledger of this bookie"
        assert serving.failure is None
        files.fault, files.used = None, {}
        if code == errno.ENOSPC:
            wait_until(lambda: set(peer.add(concerned[0], 40, PAYLOADS)) == {Status.EOK}, "adds to be taken again")
            settle(serving)
    assert serving.failure is None, "it stops in order, too"
    with Serving(bookie, files, suspects=[]) as serving, serving.connect() as peer:
        read_all(peer, 120, others)
        read_all(peer, 40, concerned[1:])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("storage_class", [StorageClass.INTERLEAVED, StorageClass.DB])
def test_other_storages_go_on_as_well_when_a_directory_is_full_or_fails(
    tmp_path: Path, storage_class: StorageClass, code: int
) -> None:
    """An only store of `DbLedgerStorage` is in the first directory, so only that one must take writes."""
    files = FaultyFiles()
    if storage_class is StorageClass.DB:
        make_only_store(tmp_path)
    bookie = options(tmp_path, store=StoreOptions(storage_class, append=AppendOptions(50_000), disks=ROOMY))
    with Serving(bookie, files) as serving, serving.connect() as peer:
        write_all(peer, 0)
        hurt(serving, files, "b", code)
        for first in (40, 80):
            write_all(peer, first)
            settle(serving)
        read_all(peer, 120)
        assert serving.failure is None
        # This process has locked the key-value store until it closes it.
        if storage_class is not StorageClass.DB:
            serving.abandon()
    with Serving(bookie, files) as serving, serving.connect() as peer:
        read_all(peer, 120)
        write_all(peer, 120)
        settle(serving)
    assert serving.failure is None, "it stops in order, too"
    files.fault, files.used = None, {}
    with Serving(bookie, files) as serving, serving.connect() as peer:
        read_all(peer, 160)
        write_all(peer, 160)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_disk_that_is_gone_takes_with_it_what_lay_there_and_nothing_else(tmp_path: Path, name: str) -> None:
    """Every answer about what it held is an error or right, never "no such entry"; adds go on."""
    files = GoneFiles()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        with flushing(tmp_path):
            write_all(peer, 0)
        settle(serving)
        files.fault = lambda operation, path: f"/{name}/current" in path
        with flushing(tmp_path):
            refused = write_more(peer, name)
        whole = 0
        for ledger_id in LEDGERS:
            for entry_id in range(80):
                reply = peer.read(ledger_id, entry_id)
                if reply.status == Status.EOK:
                    assert reply.body == stored(ledger_id, entry_id, PAYLOADS[entry_id % 40])
                    whole += 1
                else:
                    assert reply.status in (Status.EIO, Status.EUNKNOWNLEDGERSTATE)
                    assert entry_id < 40 or ledger_id in refused, "what came later lies on other disks"
        assert whole >= 4 * 40
        with flushing(tmp_path):
            assert peer.add(100, 0, [b"a new ledger"]) == [Status.EOK]
        assert peer.read(100, 0).body == stored(100, 0, b"a new ledger")
    assert serving.failure is None


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "killed"])
def test_start_goes_on_without_a_disk_that_cannot_be_read(tmp_path: Path, name: str, is_stopped: bool) -> None:
    """Directory a has the files of the whole bookie, such as the list of index files: it is refused by its name."""
    files = GoneFiles()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer, flushing(tmp_path):
        write_all(peer, 0)
    with Serving(options(tmp_path, checkpoint_interval_s=3600), files) as serving, serving.connect() as peer:
        write_all(peer, 40)
        if not is_stopped:
            # Replay finds these entries, without the keys of their ledgers.
            serving.abandon()
    gone = tmp_path / name / "current"
    files.fault = lambda operation, path: f"{path}/".startswith(f"{gone}/")
    if name == "a":
        with pytest.raises(StorageDamaged, match=f"{gone}/indexFiles cannot be read .*Repair the disk"):
            Serving(options(tmp_path), files).__enter__()
        return
    ends = {}
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        whole = 0
        for ledger_id in LEDGERS:
            is_there = "abc"[ledger_id % 3] == name
            for entry_id in range(80):
                reply = peer.read(ledger_id, entry_id)
                if reply.status == Status.EOK:
                    assert reply.body == stored(ledger_id, entry_id, PAYLOADS[entry_id % len(PAYLOADS)])
                    whole += 1
                else:
                    assert reply.status in (Status.EIO, Status.EUNKNOWNLEDGERSTATE)
                    assert is_there, "what is stored on other disks is served"
            assert (peer.read(ledger_id, 80).status == Status.ENOENTRY) == (not is_there)
            added = set(peer.add(ledger_id, 80, PAYLOADS[:1]))
            assert added == {Status.EOK} or is_there
            ends[ledger_id] = 81 if added == {Status.EOK} else 80
        assert whole >= 4 * 80
        with flushing(tmp_path):
            for ledger_id in range(100, 106):
                assert peer.read(ledger_id, 0).status == Status.ENOLEDGER
                assert peer.add(ledger_id, 0, [b"a new ledger"]) == [Status.EOK]
        for ledger_id in range(100, 106):
            assert peer.read(ledger_id, 0).body == stored(ledger_id, 0, b"a new ledger")
            assert peer.read(ledger_id, 1).status == Status.ENOENTRY
    assert serving.failure is None
    files.fault = None
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        for ledger_id in LEDGERS:
            # What replay restored while the disk was away is elsewhere, without the positions that the disk has.
            is_in_limbo = ledger_id in serving.service.storage.store.limbo
            assert is_in_limbo == (not is_stopped and "abc"[ledger_id % 3] == name)
            for entry_id in range(ends[ledger_id]):
                expected = stored(ledger_id, entry_id, PAYLOADS[entry_id % len(PAYLOADS)])
                reply = peer.read(ledger_id, entry_id)
                assert reply.body == expected or (is_in_limbo and entry_id < 40 and reply.status == Status.EIO)
        for ledger_id in range(100, 106):
            assert peer.read(ledger_id, 0).body == stored(ledger_id, 0, b"a new ledger")


def test_ledger_whose_index_could_not_be_read_during_replay_takes_no_ordinary_add_when_it_is_back(
    tmp_path: Path,
) -> None:
    """Replay cannot know its key and its fence, and the flush after it writes a header."""
    files = GoneFiles()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer, flushing(tmp_path):
        write_all(peer, 0)
        peer.read(13, 0, v2.DO_FENCING)
    with Serving(options(tmp_path, checkpoint_interval_s=3600), files) as serving, serving.connect() as peer:
        assert peer.add(13, 40, [b"recovered"], v2.RECOVERY_ADD | v2.HIGH_PRIORITY) == [Status.EOK]
        serving.abandon()
    flushed: list[str] = []

    def hide_until_the_flush(operation: str, path: str) -> bool:
        if operation == "write" and path.endswith(".log"):
            flushed.append(path)
        return "/b/current" in path and path.endswith(f"/{13:x}.idx") and not flushed

    files.fault = hide_until_the_flush
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        assert flushed
        assert peer.add(13, 41, [b"late"]) == [Status.EIO]
        assert peer.read(13, 39).body == stored(13, 39, PAYLOADS[39])
        assert peer.read(13, 40).body == stored(13, 40, b"recovered")
        assert 13 in serving.service.storage.store.limbo


@pytest.mark.parametrize("failing", ["", "open"])
def test_start_without_a_disk_and_with_a_torn_list_of_index_files_puts_every_ledger_into_limbo(
    tmp_path: Path, failing: str
) -> None:
    """A power failure may do both. The bookie then does not know whose index files are lost, so it denies no ledger."""
    files = GoneFiles()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer, flushing(tmp_path):
        write_all(peer, 0)
    with (tmp_path / "a" / "current" / "indexFiles").open("r+b") as listed:
        listed.truncate((tmp_path / "a" / "current" / "indexFiles").stat().st_size - 5)
    files.fault = lambda operation, path: failing in operation and "/b/current" in path
    for _ in range(2):
        with Serving(options(tmp_path), files, suspects=list(LEDGERS)) as serving, serving.connect() as peer:
            assert set(LEDGERS) <= set(serving.service.storage.store.limbo.ledger_ids.tolist())
            for ledger_id in LEDGERS:
                reply = peer.read(ledger_id, 5)
                is_there = ledger_id % 3 == 1
                assert reply.status == Status.EIO if is_there else reply.body == stored(ledger_id, 5, PAYLOADS[5])
                assert peer.read(ledger_id, 40).status == Status.EIO, "V2 peers do not know the status of limbo"
                assert set(peer.add(ledger_id, 40, PAYLOADS[:1])) == {Status.EIO}
            # Its index file is in another directory: a disk that opens no file may create one.
            assert peer.add(99, 0, [b"a new ledger"]) == [Status.EOK]
        assert serving.failure is None
    files.fault = None
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        read_all(peer, 40)
        assert peer.read(LEDGERS[0], 40).status == Status.EIO


def test_disk_of_the_only_ledger_directory_that_lists_nothing_ends_the_start_and_doubts_no_ledger(
    tmp_path: Path,
) -> None:
    """No other directory could serve meanwhile. The next start lists it again, and knows what it never had."""
    only = options(tmp_path, ledger_directories=[str(tmp_path / "a")])
    files = FaultyFiles()
    # The entry logs are listed first, then the index files.
    fails = iter([False, True])
    files.fault = lambda operation, path: operation == "names" and path.endswith("/a/current") and next(fails, False)
    with pytest.raises(OSError, match="Input/output error"), Serving(only, files):
        pass
    files.fault = None
    with Serving(only, files) as serving, serving.connect() as peer:
        assert len(serving.service.storage.store.limbo.ledger_ids) == 0
        assert peer.read(7, 0).status == Status.ENOLEDGER


def test_index_file_that_a_crash_left_on_a_disk_that_cannot_open_it_is_made_on_another(tmp_path: Path) -> None:
    """Nothing lists the file, because the crash came first. It cannot be opened, and not be created again."""
    files = GoneFiles()
    left = tmp_path / "b" / "current" / "0" / "64" / "64.idx"
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer, flushing(tmp_path):
        write_all(peer, 0)
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    files.fault = lambda operation, path: operation == "open" and "/b/" in path and path.endswith(".idx")
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        assert peer.add(100, 0, [b"a new ledger"]) == [Status.EOK]
        settle(serving)
        assert peer.read(100, 0).body == stored(100, 0, b"a new ledger")
    assert serving.failure is None
    files.fault = None
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        assert peer.read(100, 0).body == stored(100, 0, b"a new ledger")


@pytest.mark.parametrize("how", ["a pass", "a stop"])
def test_start_goes_on_without_the_disk_that_had_the_files_of_the_whole_bookie(tmp_path: Path, how: str) -> None:
    """They go to another directory while the bookie still runs."""
    files = GoneFiles()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        store = serving.service.storage.store
        with flushing(tmp_path):
            write_all(peer, 0)
        settle(serving)
        serving.call(lambda: (store.limbo.begin([7]), store.tombstones.remember([8], 1 << 40)))
        assert peer.add(9, 0, [b"x"]) == [Status.EOK]
        settle(serving)
        files.fault = lambda operation, path: "/a/current" in path
        if how == "a pass":
            store.keep_records()
            serving.abandon()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        store = serving.service.storage.store
        assert 7 in store.limbo
        assert 8 in store.tombstones
        for ledger_id in LEDGERS:
            is_there = ledger_id % 3 == 0
            replies = [peer.read(ledger_id, entry_id) for entry_id in range(41)]
            assert {reply.status for reply in replies[:40]} <= ({Status.EIO} if is_there else {Status.EOK})
            assert replies[40].status == (Status.EIO if is_there else Status.ENOENTRY)
    assert serving.failure is None


def test_deleted_limbo_file_puts_every_ledger_into_limbo(tmp_path: Path) -> None:
    bookie = options(tmp_path)
    with Serving(bookie) as serving, serving.connect() as peer:
        write_all(peer, 0)
        serving.call(lambda: serving.service.storage.store.limbo.begin([12]))
    (tmp_path / "a" / "current" / "limbo").unlink()
    with Serving(bookie, suspects=[7]) as serving, serving.connect() as peer:
        read_all(peer, 40)
        for ledger_id in (*LEDGERS, 7):
            assert peer.read(ledger_id, 40).status == Status.EIO, "V2 peers do not know the status of limbo"
        assert peer.read(8, 0).status == Status.ENOLEDGER
    with Serving(bookie) as serving:
        assert serving.service.storage.store.limbo.ledger_ids.tolist() == [7, *LEDGERS]


def test_entry_log_that_is_in_two_directories_is_named(tmp_path: Path) -> None:
    with Serving(options(tmp_path)) as serving, serving.connect() as peer:
        write_all(peer, 0)
    log = next((tmp_path / "a" / "current").glob("*.log"))
    copy = tmp_path / "c" / "current" / log.name
    shutil.copy(log, copy)
    for _ in range(2):
        with pytest.raises(StorageDamaged, match=f"is in two ledger directories, {log} and {copy}, .*move"):
            Serving(options(tmp_path)).__enter__()
    copy.unlink()
    with Serving(options(tmp_path)) as serving, serving.connect() as peer:
        read_all(peer, 40)


def test_positions_that_memory_let_go_of_before_a_failed_sync_are_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file still shows of them may be the system's cache alone. What memory still has is certain."""
    files = FaultyFiles()
    few_pages = StoreOptions(cache_half_bytes=1 << 20, append=AppendOptions(1 << 20), pages=PageOptions(64, 30))
    monkeypatch.setattr(collecting, "STORE_OPTIONS", few_pages)
    bench = Bench(tmp_path, files, directories=3)
    for ledger_id, entries in ((3, 1000), (6, 3)):
        bench.put(ledger_id, range(entries), 10)
    files.fault = lambda operation, path: operation == "sync_data" and "/ledgers0/" in path and path.endswith(".idx")
    bench.flush()
    assert bench.store.limbo.ledger_ids.tolist() == [3]
    files.fault = None
    bench.reopen()
    assert bench.store.limbo.ledger_ids.tolist() == [3]
    assert sorted(bench.store.index._paths.moved) == [3, 6]
    bench.store.close()


def test_moved_index_files_are_found_without_the_list_and_go_when_their_ledger_does(tmp_path: Path) -> None:
    files = FaultyFiles()
    currents = [str(tmp_path / each / "current") for each in "abc"]
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        with flushing(tmp_path):
            write_all(peer, 0)
        hurt(serving, files, "a", errno.ENOSPC)
        with flushing(tmp_path):
            write_all(peer, 40)
    files.fault, files.used = None, {}
    moved = IndexManifest(files, currents).moved()
    assert sorted(moved) == [each for each in LEDGERS if each % 3 == 0]
    paths = IndexPaths(currents, moved)
    assert not any(Path(IndexPaths(currents).path(each)).exists() for each in moved), "the old ones make room"
    for each in currents:
        Path(each, "indexFiles").unlink(missing_ok=True)
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        read_all(peer, 80)
    assert IndexManifest(files, currents).moved() == moved
    store = open_ledger_storage(files, currents, StoreOptions())
    for ledger_id in moved:
        store.prepare_drop([ledger_id], [], 0)
        assert store.drop([ledger_id]) == [ledger_id]
        store.sync_dropped([ledger_id])
        assert not Path(paths.path(ledger_id)).exists()
        assert store.ledger(ledger_id) is None
        assert ledger_id not in store.index.ledger_ids()
    store.close()
    assert not IndexManifest(files, currents).moved()


def test_check_reads_index_files_where_they_moved_to(tmp_path: Path) -> None:
    files = FaultyFiles()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        with flushing(tmp_path):
            write_all(peer, 0)
        hurt(serving, files, "a", errno.EROFS)
        with flushing(tmp_path):
            write_all(peer, 40)
    files.fault = None
    ledgers = [str(tmp_path / each) for each in "abc"]
    report = BookieCheck(files, [str(tmp_path / "journal")], ledgers).run()
    assert all("cookie" in damage.reason for damage in report.damage), report.damage
    assert any("the ledger's index moved" in note for note in report.notes), "its disk did not let go of the old one"
