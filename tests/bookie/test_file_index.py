"""The ledger cache against a dictionary: however little memory it has, readers see every change at once, and files get
all of them."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bkspark.errors import ConfigurationError
from bookie_service.formats.index import LAYOUT, LedgerHeader
from bookie_service.storage.index.index import LedgerUpdate, StoredLedger
from bookie_service.storage.index.index_pages import IndexPages
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.files import File, FileSystem, LocalFiles, SyncFailed
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.file_indexes import KEY, CountingFiles, held_by, new_index, update

NOTHING = np.empty(0, np.int64)


@pytest.mark.parametrize("page_bytes", [64, 8192])
@pytest.mark.parametrize("pages_max", [1, 40])
@pytest.mark.parametrize("seed", [1, 2])
def test_reads_as_a_dictionary_would(tmp_path: Path, page_bytes: int, pages_max: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    options = PageOptions(page_bytes, pages_max, int(random.choice([0, 3, 128])))
    files = LocalFiles()
    index = new_index(files, tmp_path, options)
    model: dict[int, dict[int, int]] = {}
    for step in range(1, 300):
        ledger_id = int(random.integers(8)) << int(random.integers(3) * 8)
        action = random.random()
        if action < 0.6:
            ids = np.unique(random.integers(0, 300, int(random.integers(1, 40))))
            positions = random.integers(1, 1 << 62, len(ids))
            header = LedgerHeader(ledger_id, step, bool(step % 2), KEY) if ledger_id not in model else None
            index.hold([LedgerUpdate(ledger_id, header, ids, positions)])
            model.setdefault(ledger_id, {}).update(zip(ids.tolist(), positions.tolist()))
        elif action < 0.9:
            first, count = int(random.integers(300)), int(random.integers(1, 300))
            found = index.positions(ledger_id, first, count)
            wanted = [model.get(ledger_id, {}).get(entry, 0) for entry in range(first, first + count)]
            assert found.tolist() == wanted[: len(found)]
            assert not any(wanted[len(found) :])
        else:
            index.sync()
            assert index.is_clean
            other = new_index(files, tmp_path, options)
            assert {each: held_by(other, each, 300) for each in model} == model
            assert other.ledger_ids().tolist() == sorted(model)
            assert all(other.last_entry(each) == max(entries) for each, entries in model.items())
            other.close()
    index.close()


def test_view_of_another_thread_sees_what_is_only_held(tmp_path: Path) -> None:
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    view = index.view(2)
    index.hold([update(5, 0, [10, 11, 12], 1)])
    assert view.positions(5, 1, 100).tolist() == [11, 12]
    index.sync()
    index.hold([update(5, 1, [99])])
    assert view.positions(5, 0, 3).tolist() == [10, 99, 12]
    view.close()
    index.close()


class NoSource:
    """A source of bytes that must not be asked."""

    def changing_bytes_at(self, file: File, size: int, offset: int) -> bytes:
        raise AssertionError("the file is read, although its pages are in memory")


def test_pages_that_were_read_stay_in_memory_and_the_file_is_not_read_for_them(tmp_path: Path) -> None:
    options = PageOptions(page_bytes=64)
    index = new_index(LocalFiles(), tmp_path, options)
    index.hold([update(5, 0, list(range(1, 21)), 1)])
    index.sync()
    index.close()
    again = new_index(LocalFiles(), tmp_path, options)
    assert again.page_in_memory(5, 0, 3) is None
    assert again.positions(5, 0, 16).tolist() == list(range(1, 17))
    assert again.positions(5, 2, 12, NoSource()).tolist() == list(range(3, 15))  # type: ignore[arg-type]
    for first in (0, 8):
        page = again.page_in_memory(5, first, first + 3)
        assert page is not None
        assert (page[0], page[1].tolist()) == (first, list(range(first + 1, first + 9)))
    view = again.view(4)
    assert view.positions(5, 16, 4).tolist() == [17, 18, 19, 20]
    assert [first for first, _ in again.extents(5)] == [0]
    assert again.page_in_memory(5, 16, 17) is None, "a look at everything would drive out what readers need"
    view.close()
    stored = again.stored(5)
    assert (stored.last_entry, stored.is_whole) == (19, True)
    again.close()


def test_memory_stays_within_its_limit_and_evicted_pages_are_read_back(tmp_path: Path) -> None:
    pages = PageOptions(page_bytes=512, pages_max=64)
    index = new_index(LocalFiles(), tmp_path, pages)
    for first in range(0, 2000, 100):
        for ledger_id in range(20):
            index.hold([update(ledger_id, first, list(range(first + 1, first + 101)), first + 1)])
            assert index.pages_bytes <= 64 * 512
    written = sum(path.stat().st_size for path in tmp_path.rglob("*.idx"))
    assert written > 10 * 64 * 512, "dirty pages were evicted, because there is no room"
    for ledger_id in range(20):
        assert index.positions(ledger_id, 0, 2000).tolist() == list(range(1, 2001))
        assert index.pages_bytes <= 64 * 512
    index.close()


def test_hundred_thousand_small_ledgers_fit_into_the_default_cache(tmp_path: Path) -> None:
    """Apache's pages have one size; here a page of few positions takes few bytes."""
    pages = IndexPages(8192, 64 * 1024 * 1024)
    for ledger_id in range(100_000):
        pages.change(ledger_id, 0, np.arange(5), np.arange(1, 6), lambda: NOTHING)
    assert not pages.is_full


def test_few_files_are_synced_one_by_one_and_many_at_once(tmp_path: Path) -> None:
    files = CountingFiles()
    index = new_index(files, tmp_path, PageOptions(files_synced_singly_max=8))
    index.hold([update(1, 0, [10], 1)])
    index.sync()
    names = [os.path.relpath(path, tmp_path) for path in files.synced]
    assert names == ["0/1/1.idx", ".", "0", "0/1", "indexFiles.new", "."]
    files.synced.clear()
    index.hold(update(ledger_id, 0, [10], 1) for ledger_id in range(2, 50))
    index.sync()
    assert [os.path.basename(path) for path in files.synced] == ["everything", "indexFiles"]
    files.synced.clear()
    index.hold([update(1, 1, [10], 2)])
    index.sync()
    names = [os.path.relpath(path, tmp_path) for path in files.synced]
    assert names == ["0/1/1.idx", "0/1/1.idx", "indexFiles"], "a header slot, the other, how long the file is now"
    files.synced.clear()
    index.sync()
    assert files.synced == [], "nothing was held"
    index.close()


def test_open_files_stay_within_their_limit(tmp_path: Path) -> None:
    files = CountingFiles()
    options = PageOptions(page_bytes=64, pages_max=4, files_synced_singly_max=5)
    index = new_index(files, tmp_path, options, open_files=10)
    for turn in range(3):
        index.hold(update(ledger_id, turn * 8, [7] * 8, turn + 1) for ledger_id in range(100))
        for ledger_id in range(100):
            assert held_by(index, ledger_id, 100) == dict.fromkeys(range(turn * 8 + 8), 7)
        index.sync()
    assert files.open_most <= 10 + 5 + 1, "the reader's limit, those that are not synced, and the one at hand"
    index.close()
    assert files.open_now == 0


class ForgetfulFiles(LocalFiles):
    """The real file system, on which the system cannot write some files back, and tells that only to those who have the
    file open since before: once no process has it open any more, the system may forget the file and the error with
    it."""

    def __init__(self, syncs_file_systems: bool) -> None:
        self._syncs_file_systems = syncs_file_systems
        self.users: Counter[str] = Counter()
        self.failed: set[str] = set()

    def open(self, path: str) -> File:
        return _ForgettableFile(os.open(path, os.O_RDWR), path, self)

    def create(self, path: str) -> File:
        return _ForgettableFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), path, self)

    def open_file_system(self, path: str) -> FileSystem | None:
        return _ForgettableFileSystem(os.open(path, os.O_RDONLY), path, self) if self._syncs_file_systems else None

    def fail_write_back(self, path: str) -> None:
        """Lose what was written to a file and not synced, in the background."""
        if self.users[path]:
            self.failed.add(path)


class _ForgettableFile(File):
    __slots__ = ("_files",)

    def __init__(self, fd: int, path: str, files: ForgetfulFiles) -> None:
        super().__init__(fd, path)
        self._files = files
        files.users[path] += 1

    def sync_data(self) -> None:
        if self.path in self._files.failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        super().sync_data()

    def close(self) -> None:
        self._files.users[self.path] -= 1
        if not self._files.users[self.path]:
            self._files.failed.discard(self.path)
        super().close()


class _ForgettableFileSystem(FileSystem):
    """Tells of every error since it was opened."""

    def __init__(self, fd: int, path: str, files: ForgetfulFiles) -> None:
        super().__init__(fd, path)
        self._files = files

    def sync(self) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)


@pytest.mark.parametrize("has_syncfs", [False, True])
@pytest.mark.parametrize("singly_max", [0, 2, 128])
def test_page_that_was_evicted_and_could_not_be_written_back_fails_the_sync(
    tmp_path: Path, singly_max: int, has_syncfs: bool
) -> None:
    """The mark must not move: what the page held would be in no file, and in no journal any more."""
    files = ForgetfulFiles(has_syncfs)
    index = new_index(files, tmp_path, PageOptions(page_bytes=64, pages_max=8, files_synced_singly_max=singly_max))
    index.hold(update(ledger_id, 0, [7] * 8, 1) for ledger_id in range(20))
    evicted = [path for path in tmp_path.rglob("*.idx") if path.stat().st_size > LAYOUT.positions_at]
    assert evicted, "there is no room for all pages"
    for path in evicted:
        files.fail_write_back(str(path))
    if singly_max or has_syncfs:
        with pytest.raises(SyncFailed):
            index.sync()
    else:
        index.sync()  # each file was synced before it was closed
    index.close()


def test_removed_ledger_is_gone_at_once_and_its_file_when_its_disk_has_time(tmp_path: Path) -> None:
    """The event loop removes ledgers, and must not wait for a disk; the collector's thread removes their files."""
    files = FaultyFiles()
    index = new_index(files, tmp_path, PageOptions())
    view = index.view(4)
    index.hold([update(5, 0, [10, 11], 1), update(6, 0, [12], 1)])
    index.sync()
    assert held_by(index, 5, 10) == {0: 10, 1: 11}
    index.disown([5])
    files.operations.clear()
    index.remove(5)
    assert files.operations == []
    for reader in (index, view):
        assert reader.header(5) is None
        assert reader.last_entry(5) == -1
        assert not len(reader.positions(5, 0, 10))
        assert list(reader.extents(5)) == []
    assert index.stored(5) == StoredLedger(None, -1, is_whole=True)
    assert not index.has(5)
    assert index.lost(5) == ""
    assert index.absent(np.array([5, 6])).tolist() == [True, False]
    assert index.ledger_ids().tolist() == [6]
    assert len(list(tmp_path.rglob("*.idx"))) == 2
    index.sync_removed([5])
    assert [path.name for path in tmp_path.rglob("*.idx")] == ["6.idx"]
    view.close()
    index.close()


def test_removed_ledger_is_there_again_if_its_disk_refuses_that(tmp_path: Path) -> None:
    """A later pass of garbage collection removes it."""
    files = FaultyFiles()
    index = new_index(files, tmp_path, PageOptions())
    index.hold([update(5, 0, [10], 1)])
    index.sync()
    index.disown([5])
    index.remove(5)
    files.fault = lambda operation, path: operation == "remove"
    index.sync_removed([5])
    assert index.ledger_ids().tolist() == [5]
    files.fault = None
    index.remove(5)
    index.sync_removed([5])
    assert index.ledger_ids().tolist() == []
    index.close()


def test_names_of_many_removed_files_are_synced_together(tmp_path: Path) -> None:
    files = FaultyFiles()
    index = new_index(files, tmp_path, PageOptions(files_synced_singly_max=3))
    index.hold(update(each, 0, [10], 1) for each in range(6))
    index.sync()
    files.operations.clear()
    for some in ([0, 1], [2, 3, 4, 5]):
        for each in some:
            index.remove(each)
        index.sync_removed(some)
    singly = [path for operation, path in files.operations if operation == "sync_directory"]
    assert len(singly) == (2 if files.open_file_system(str(tmp_path)) else 6)
    assert list(tmp_path.rglob("*.idx")) == []
    index.close()


def test_removed_ledger_is_gone_from_memory_too_and_its_id_may_return(tmp_path: Path) -> None:
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    index.hold([update(5, 0, [10, 11], 1)])
    index.sync()
    assert held_by(index, 5, 10) == {0: 10, 1: 11}
    index.remove(5)
    assert held_by(index, 5, 10) == {}
    assert index.header(5) is None
    index.hold([update(5, 3, [20], 1)])
    index.sync()
    assert held_by(index, 5, 10) == {3: 20}
    index.close()


def test_page_that_a_reader_read_before_a_change_is_not_kept(tmp_path: Path) -> None:
    pages = IndexPages(64, 1 << 20)
    before = pages.changes
    pages.change(1, 0, np.array([0]), np.array([5]), lambda: NOTHING)
    pages.evict([(1, 0)])
    pages.keep(1, 0, np.array([3]), before)
    assert pages.find(1, 0, 1) == {}
    pages.keep(1, 0, np.array([5]), pages.changes)
    assert pages.find(1, 0, 1)[0].tolist() == [5]


def test_page_size_must_hold_whole_positions() -> None:
    with pytest.raises(ConfigurationError, match="pageSize 100 must be a multiple of 8"):
        PageOptions(page_bytes=100)
