"""One full or failing ledger directory of several affects only what is stored there, at run time and at start (B9)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bookie_service.admin.check import BookieCheck
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.index.index import IndexPaths
from bookie_service.storage.index.manifest import IndexManifest
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie import collecting
from tests.bookie.collecting import Bench
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.serving import Serving, service_options, stored
from tests.bookie.three_directories import LEDGERS, PAYLOADS, marks, read_all, settle, write_all
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


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_disk_that_is_gone_takes_with_it_what_lay_there_and_nothing_else(tmp_path: Path, name: str) -> None:
    """Every answer about what it held is an error or right, never "no such entry"; adds go on."""
    files = FaultyFiles()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        with flushing(tmp_path):
            write_all(peer, 0)
        settle(serving)
        files.fault = lambda operation, path: f"/{name}/current" in path
        refused = set()
        with flushing(tmp_path):
            for ledger_id in LEDGERS:
                answers = set(peer.add(ledger_id, 40, PAYLOADS))
                if "abc"[ledger_id % 3] == name and Status.EUA in answers:
                    # It was in limbo by then; its writer goes on with another bookie.
                    refused.add(ledger_id)
                else:
                    assert answers == {Status.EOK}
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
def test_start_goes_on_without_a_disk_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """Directory a has the files of the whole bookie, such as the list of index files: it is refused by its name."""
    files = FaultyFiles()
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        with flushing(tmp_path):
            write_all(peer, 0)
        write_all(peer, 40)
    gone = tmp_path / name / "current"
    files.fault = lambda operation, path: f"{path}/".startswith(f"{gone}/")
    if name == "a":
        with pytest.raises(StorageDamaged, match=f"{gone}/indexFiles cannot be read .*Repair the disk"):
            Serving(options(tmp_path), files).__enter__()
        return
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        whole = 0
        for ledger_id in LEDGERS:
            for entry_id in range(80):
                reply = peer.read(ledger_id, entry_id)
                if reply.status == Status.EOK:
                    assert reply.body == stored(ledger_id, entry_id, PAYLOADS[entry_id % len(PAYLOADS)])
                    whole += 1
                else:
                    assert reply.status in (Status.EIO, Status.EUNKNOWNLEDGERSTATE)
        assert whole >= 80
        with flushing(tmp_path):
            assert peer.add(100, 0, [b"a new ledger"]) == [Status.EOK]
        assert peer.read(100, 0).body == stored(100, 0, b"a new ledger")
    assert serving.failure is None
    files.fault = None
    with Serving(options(tmp_path), files) as serving, serving.connect() as peer:
        read_all(peer, 80)
        assert peer.read(100, 0).body == stored(100, 0, b"a new ledger")


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
