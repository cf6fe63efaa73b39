"""What an index counts, lists and copies."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from bkspark.errors import StorageDamaged
from bookie_service.formats import index as index_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.formats.key_value_index import ENTRIES_PER_BLOCK
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.index.per_ledger import PageOptions, PerLedgerIndex
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.file_indexes import KEY, new_index, update
from tests.bookie.moved_files import Moving, at

NOTHING = np.empty(0, np.int64)


def test_ledgers_and_positions_of_index_files_are_counted(tmp_path: Path) -> None:
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    assert index.counts() == (0, 0)
    index.hold([update(4, 0, list(range(1, 3001)), 1), update(5, 0, [7], 1), update(6, 0, [], 1)])
    index.sync()
    assert index.counts() == (3, 3001)
    index.close()


def test_ledgers_in_a_key_value_store_are_counted_and_positions_to_half_a_block_of_each(tmp_path: Path) -> None:
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())
    each = ENTRIES_PER_BLOCK
    index.hold([update(4, 0, list(range(1, 10 * each + 11)), 1), update(5, 0, list(range(1, each)), 1)])
    index.sync()
    ledgers, positions = index.counts()
    assert ledgers == 2
    assert abs(positions - (11 * each + 9)) <= 2 * each // 2
    index.close()


def test_index_files_that_cannot_be_listed_are_an_error_unless_their_disk_fails(tmp_path: Path) -> None:
    files = FaultyFiles()
    for name in "ab":
        (tmp_path / name).mkdir()
    moving = Moving([str(tmp_path / name) for name in "ab"], files)
    moving.index.hold([update(2, 0, [7], 1), update(3, 0, [8], 1)])
    moving.index.sync()
    files.fault = at("b", "names")
    assert moving.index.ledger_ids().tolist() == [2, 3]
    files.code = errno.EACCES
    with pytest.raises(PermissionError):
        moving.index.ledger_ids()
    files.fault = None
    moving.index.close()


class Hiding(LocalFiles):
    """Files of which one disk does not say whether they exist."""

    code = 0

    def file_size(self, path: str) -> int | None:
        if self.code and "/b/" in path:
            raise OSError(self.code, os.strerror(self.code), path)
        return super().file_size(path)


def test_fence_of_a_ledger_without_entries_is_durable_though_the_disk_of_its_file_fails(tmp_path: Path) -> None:
    files = Hiding()
    for name in "ab":
        (tmp_path / name).mkdir()
    directories = [str(tmp_path / name) for name in "ab"]
    moving = Moving(directories, files)
    files.code = errno.EIO
    moving.index.hold([LedgerUpdate(3, LedgerHeader(3, 5, True, KEY), NOTHING, NOTHING)])
    moving.index.sync()
    files.code = errno.EACCES
    moving.index.hold([LedgerUpdate(5, LedgerHeader(5, 1, True, KEY), NOTHING, NOTHING)])
    with pytest.raises(PermissionError):
        moving.index.sync()
    moving.index.close()
    header = Moving(directories).index.header(3)
    assert header is not None
    assert header.fenced


def test_ledger_with_a_file_that_is_not_recorded_yet_is_not_absent_while_its_disk_hides_the_file(
    tmp_path: Path,
) -> None:
    files = Hiding()
    for name in "ab":
        (tmp_path / name).mkdir()
    one_position = PageOptions(page_bytes=8, pages_max=1)
    index = PerLedgerIndex(files, [str(tmp_path / name) for name in "ab"], one_position, 4)
    index.hold([update(2, 0, [6], 1)])
    index.sync()
    index.hold([update(3, 0, [7, 8, 9], 1)])
    assert index.has(3)
    files.code = errno.EIO
    assert index.absent(np.array([3, 5])).tolist() == [False, True]
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        index.has(3)
    files.code = errno.EACCES
    with pytest.raises(PermissionError):
        index.absent(np.array([3]))
    index.close()


def test_file_that_moves_unread_has_all_that_was_in_memory(tmp_path: Path) -> None:
    """Also the positions that were durable before."""
    files = FaultyFiles()
    for name in "ab":
        (tmp_path / name).mkdir()
    directories = [str(tmp_path / name) for name in "ab"]
    moving = Moving(directories, files)
    moving.index.hold([update(2, 0, [7, 8], 1)])
    moving.index.sync()
    moving.headers[2] = LedgerHeader(2, 5, True, KEY)
    moving.index.hold([update(2, 4, [9])])
    files.fault = at("a", "write", "read")
    moving.index.sync()
    assert moving.doubted == [2]
    files.fault = None
    moving.index.close()
    assert Moving(directories).held(2, 6) == [7, 8, 0, 0, 9]


def test_fence_that_comes_with_the_first_entry_counts_and_not_the_header_before_it(tmp_path: Path) -> None:
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    index.hold([LedgerUpdate(5, LedgerHeader(5, 1, False, KEY), NOTHING, NOTHING)])
    index.sync()
    index.hold([LedgerUpdate(5, LedgerHeader(5, 2, True, KEY), np.array([0]), np.array([7]))])
    index.sync()
    header = index.header(5)
    assert header is not None
    assert (header.fenced, index.positions(5, 0, 1).tolist()) == (True, [7])
    index.close()


def test_file_that_is_cut_is_among_the_lost_ones_and_a_ledger_that_waits_for_a_flush_is_not_absent(
    tmp_path: Path,
) -> None:
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    index.hold([update(5, 0, [7, 8], generation=1), update(6, 0, [7, 8], generation=1)])
    index.sync()
    path = next(tmp_path.rglob("6.idx"))
    os.truncate(path, path.stat().st_size - 8)
    assert index.all_lost() == [6]
    index.hold([LedgerUpdate(7, LedgerHeader(7, 1, True, KEY), NOTHING, NOTHING)])
    assert index.absent(np.array([5, 6, 7, 8])).tolist() == [False, False, False, True]
    index.close()


def test_index_file_of_a_later_version_is_named(tmp_path: Path) -> None:
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    index.hold([update(4, 0, [7], 1)])
    index.sync()
    index.close()
    (path,) = tmp_path.rglob("*.idx")
    content = bytearray(path.read_bytes())
    size = index_format._HEADER.size
    for slot_at in index_format.LAYOUT.slots_at:
        content[slot_at + 4 : slot_at + 8] = struct.pack(">i", index_format.VERSION + 1)
        content[slot_at + size : slot_at + size + 4] = struct.pack(
            ">I", crc32c(bytes(content[slot_at : slot_at + size]))
        )
    path.write_bytes(content)
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    with pytest.raises(StorageDamaged, match=f"4.idx: index version {index_format.VERSION + 1}"):
        index.header(4)
    index.close()
