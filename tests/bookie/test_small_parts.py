"""The small parts that reads and flushes are made of: items, byte sources, open files, one log that is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.storage.io.byte_source import CachedSource, Fetched, FileRange, NotCached
from bookie_service.storage.io.files import File, LocalFiles
from bookie_service.storage.io.framed_entries import FramedEntries, contiguous_spans, ledger_sums, rows_by_ledger
from bookie_service.storage.io.open_files import OpenFiles
from bookie_service.storage.logs.log_writer import EntryLogWriter
from tests.bookie.faulty_files import FaultyFiles

MORE_BYTES = 8192


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# ---- items ----


def test_items_end_after_their_last_entry() -> None:
    items = FramedEntries(7, b"abcdef", array(1, 2, 3))
    assert (len(items), items.end_entry, items.owned()) == (3, 10, items)


@pytest.mark.parametrize(
    ("starts", "sizes", "expected"),
    [
        ((5,), (3,), [(5, 8)]),
        ((5, 8, 12), (3, 4, 1), [(5, 13)]),
        ((5, 9, 10), (3, 1, 1), [(5, 8), (9, 11)]),
        ((5, 8, 20), (3, 1, 1), [(5, 9), (20, 21)]),
        ((5, 20, 40), (3, 1, 1), [(5, 8), (20, 21), (40, 41)]),
        ((20, 5, 7), (3, 2, 3), [(20, 23), (5, 10)]),
    ],
)
def test_spans_are_as_few_as_hold_the_pieces_in_order(
    starts: tuple[int, ...], sizes: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    assert contiguous_spans(array(*starts), array(*sizes)) == expected


@pytest.mark.parametrize(
    ("ledgers", "expected"),
    [
        ((4,), [(4, [0])]),
        ((4, 4, 4), [(4, [0, 1, 2])]),
        ((4, 3), [(3, [1]), (4, [0])]),
        ((4, 4, 3), [(3, [2]), (4, [0, 1])]),
        ((9, 4, 9, 4, 5), [(4, [1, 3]), (5, [4]), (9, [0, 2])]),
    ],
)
def test_rows_of_each_ledger_stay_in_order(ledgers: tuple[int, ...], expected: list[tuple[int, list[int]]]) -> None:
    found = [(ledger, np.arange(len(ledgers))[rows].tolist()) for ledger, rows in rows_by_ledger(array(*ledgers))]
    assert found == expected


def test_sums_are_by_ledger_in_ascending_order() -> None:
    ids, sums = ledger_sums(array(9, 4, 9, 5), array(1, 2, 30, 4))
    assert (ids.tolist(), sums.tolist()) == ([4, 5, 9], [2, 4, 31])


# ---- where bytes come from ----


class HalfCached(File):
    """A file whose first bytes alone lie in the page cache."""

    def __init__(self, inner: File, cached_bytes: int) -> None:
        self._inner = inner
        self._cached_bytes = cached_bytes

    @property
    def path(self) -> str:
        return self._inner.path

    def size(self) -> int:
        return self._inner.size()

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        return self._inner.read_cached(buffer[: max(0, self._cached_bytes - offset)], offset)


@pytest.fixture
def hundred(tmp_path: Path) -> File:
    """A file of the bytes 0 to 99."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    return LocalFiles().open(str(path))


def test_cached_source_lends_memory_and_has_more_for_what_does_not_fit(hundred: File) -> None:
    source = CachedSource(30)
    source.begin()
    first, second, third = (source.bytes_at(hundred, size, at) for size, at in ((20, 0), (10, 50), (1, 7)))
    assert (bytes(first), bytes(second), bytes(third)) == (bytes(range(20)), bytes(range(50, 60)), b"\x07")
    source.begin()
    again = source.bytes_at(hundred, 20, 60)
    assert bytes(again) == bytes(first) == bytes(range(60, 80)), "what was lent before is used again"
    assert bytes(source.bytes_at(hundred, 31, 1)) == bytes(range(1, 32))


def test_cached_source_returns_fewer_bytes_at_the_end_of_the_file_alone(hundred: File) -> None:
    source = CachedSource(1000)
    source.begin()
    assert bytes(source.bytes_at(hundred, 50, 90)) == bytes(range(90, 100))
    assert bytes(source.bytes_at(hundred, 50, 100)) == bytes(source.bytes_at(hundred, 50, 200)) == b""


def test_bytes_that_are_not_cached_are_asked_for_with_some_more(hundred: File) -> None:
    source = CachedSource(1000)
    source.begin()
    half = HalfCached(hundred, 50)
    assert bytes(source.bytes_at(half, 20, 30)) == bytes(range(30, 50))
    with pytest.raises(NotCached) as raised:
        source.bytes_at(half, 21, 30)
    assert raised.value.place == FileRange(hundred.path, 30, 21 + MORE_BYTES)


def test_fetched_bytes_serve_the_read_that_they_were_fetched_for(hundred: File) -> None:
    place = FileRange(hundred.path, 30, 40)
    fetched = Fetched(place, hundred.read(40, 30))
    source, nothing = CachedSource(1000), HalfCached(hundred, 0)
    source.begin(fetched)
    assert bytes(source.bytes_at(nothing, 40, 30)) == bytes(range(30, 70))
    assert bytes(source.bytes_at(nothing, 5, 65)) == bytes(range(65, 70))
    for size, at in ((41, 30), (5, 66), (5, 29)):
        with pytest.raises(NotCached):
            source.bytes_at(nothing, size, at)
    source.begin()
    with pytest.raises(NotCached):
        source.bytes_at(nothing, 40, 30)


def test_fetched_part_is_of_one_file_and_inside_the_place() -> None:
    fetched = Fetched(FileRange("a", 30, 40), bytes(range(40)))
    assert fetched.part("a", 40, 30) is not None
    assert fetched.part("b", 40, 30) is None
    assert fetched.part("a", 0, 70) is not None
    assert fetched.part("a", 1, 70) is None
    # The file was shorter than the place when it was read.
    assert Fetched(FileRange("a", 30, 40), bytes(10)).part("a", 11, 30) is None
    assert Fetched(FileRange("a", 30, 40), bytes(10)).part("a", 5, 35) == bytes(5)


def test_error_of_a_fetch_is_that_of_reads_in_its_place_and_of_no_others() -> None:
    fetched = Fetched(FileRange("a", 30, 40), error=OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        fetched.part("a", 10, 30)
    assert fetched.part("a", 41, 30) is fetched.part("b", 10, 30) is None


# ---- open files ----


class Opened:
    """Counts what is open."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []

    def open(self, path: str) -> Closing:
        self.opened.append(path)
        return Closing(path, self.closed)


class Closing:
    def __init__(self, path: str, closed: list[str]) -> None:
        self._path, self._closed = path, closed

    def close(self) -> None:
        self._closed.append(self._path)


def test_open_files_stay_open_up_to_the_limit_least_recently_used_ones_go_first() -> None:
    counted = Opened()
    files = OpenFiles(counted.open, 2)
    a = files.get("a")
    files.get("b")
    assert files.get("a") is a
    assert counted.closed == []
    files.get("c")
    assert (counted.opened, counted.closed) == (["a", "b", "c"], ["b"])
    files.forget("a")
    files.forget("nothing")
    assert counted.closed == ["b", "a"]
    assert files.get("a") is not a
    files.close()
    assert (counted.opened, counted.closed) == (["a", "b", "c", "a"], ["b", "a", "c", "a"])
    files.close()
    assert len(counted.closed) == 4


# ---- one log that is written ----


class Recorded(FaultyFiles):
    """Keeps the operations on files alone: a directory is not a part of a log."""

    def taken(self) -> list[str]:
        names = [name for name, path in self.operations if path.endswith(".log")]
        self.operations.clear()
        return names


@pytest.fixture
def files() -> Recorded:
    return Recorded()


def new_log(files: LocalFiles, directory: Path, *, reserves: bool = False) -> EntryLogWriter:
    file = files.create(str(directory / log_format.file_name(7)))
    file.write([log_format.encode_header(7)], 0)
    return EntryLogWriter(7, file, reserves=reserves)


def read(directory: Path) -> bytes:
    return (directory / log_format.file_name(7)).read_bytes()


def test_sealed_log_names_the_bytes_of_each_ledger(tmp_path: Path, files: Recorded) -> None:
    log = new_log(files, tmp_path)
    log.count(array(5, 5, 6, 5), array(10, 20, 3, 40))
    log.write([b"x" * 30, b"y" * 43])
    log.count(array(4), array(2))
    log.write([b"zz"])
    assert log.end == HEADER_BYTES + 75
    log.seal()
    log.close()
    content = read(tmp_path)
    header = log_format.decode_header(content[:HEADER_BYTES], 7)
    assert header is not None
    assert (header.map_offset, content[HEADER_BYTES : header.map_offset]) == (log.end, b"x" * 30 + b"y" * 43 + b"zz")
    found = log_format.decode_map(content[header.map_offset :], header)
    assert found is not None
    assert (found[0].tolist(), found[1].tolist()) == ([4, 5, 6], [2, 70, 3])


def test_map_is_durable_before_the_header_names_it(tmp_path: Path, files: Recorded) -> None:
    log = new_log(files, tmp_path)
    log.count(array(5), array(1))
    log.write([b"x"])
    files.taken()
    log.seal()
    assert files.taken() == ["write", "sync_data", "write", "sync_data"]
    log.close()


def test_log_without_items_is_sealed_without_a_map(tmp_path: Path, files: Recorded) -> None:
    log = new_log(files, tmp_path)
    files.taken()
    log.seal()
    assert files.taken() == ["sync_data"]
    log.close()
    assert read(tmp_path) == log_format.encode_header(7)


def test_map_for_which_there_is_no_space_may_be_left_out(tmp_path: Path, files: Recorded) -> None:
    log = new_log(files, tmp_path)
    log.count(array(5), array(1))
    log.write([b"x"])
    files.code = errno.ENOSPC
    files.fault = lambda operation, path: operation == "write"
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        log.seal()
    log.seal(may_lack_map=True)
    assert read(tmp_path) == log_format.encode_header(7) + b"x"
    files.code = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        log.seal(may_lack_map=True)
    log.close()


def test_space_is_reserved_ahead_and_what_is_left_of_it_given_back(tmp_path: Path) -> None:
    log = new_log(LocalFiles(), tmp_path, reserves=True)
    path = tmp_path / log_format.file_name(7)
    log.count(array(5), array(1))
    log.write([b"x"])
    reserved = path.stat().st_blocks * 512
    if reserved < 1 << 20:
        pytest.skip("this file system cannot reserve space")
    assert reserved < 2 << 20
    assert path.stat().st_size == HEADER_BYTES + 1
    log.write([bytes((1 << 20) + 1)])
    assert path.stat().st_blocks * 512 >= (2 << 20), "as much again as there is"
    log.seal()
    assert path.stat().st_blocks * 512 < (1 << 20) + 16384
    log.close()
    header = log_format.decode_header(read(tmp_path)[:HEADER_BYTES], 7)
    assert header is not None
    assert header.map_offset == log.end == HEADER_BYTES + 2 + (1 << 20)
    assert log_format.decode_map(read(tmp_path)[log.end :], header) is not None


def test_no_space_is_reserved_unless_asked_for(tmp_path: Path) -> None:
    log = new_log(LocalFiles(), tmp_path)
    log.write([b"x"])
    assert (tmp_path / log_format.file_name(7)).stat().st_blocks * 512 <= 8192
    log.close()
    plain = EntryLogWriter(8, LocalFiles().create(str(tmp_path / "8.log")))
    plain.write([b"x"])
    assert (tmp_path / "8.log").stat().st_blocks * 512 <= 8192
    plain.close()


class NothingToReserve(File):
    """A file whose space cannot be reserved, for a given reason."""

    code = errno.ENOSPC

    def __init__(self, inner: File) -> None:
        self.path = inner.path
        self._fd = inner._fd

    def reserve(self, offset: int, size: int) -> None:
        raise OSError(self.code, os.strerror(self.code), self.path)


def test_log_is_written_where_space_is_left_but_none_to_reserve(tmp_path: Path) -> None:
    file = NothingToReserve(LocalFiles().create(str(tmp_path / log_format.file_name(7))))
    log = EntryLogWriter(7, file, reserves=True)
    log.write([b"x"])
    assert read(tmp_path)[HEADER_BYTES:] == b"x"
    file.code = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        log.write([b"x"])
    log.close()
