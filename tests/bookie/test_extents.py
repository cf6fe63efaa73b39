"""The extents of an index: what is held of a ledger, at a cost that follows what is held and not how far ids lie apart.

One add of entry 2**40 - 1 makes a sparse ledger. Whatever goes through the ids of such a ledger (a list of its entries,
a check of a torn log, the look for a last entry) must skip the holes.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bookie_service.formats.index import LAYOUT, STORED_ENTRY_ID_MAX, LedgerHeader
from bookie_service.storage.index.index import EXTENT_ENTRIES, LedgerUpdate
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.index.per_ledger import PageOptions, PerLedgerIndex
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.ledgers.interface import LedgerIndex
from tests.bookie.counted_reads import LEDGER, ReadCountingFiles, found

HEADER = LedgerHeader(LEDGER, 1, False, b"k" * 20)
SPARSE = [0, 5, 8191, 8192, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 40) - 2, STORED_ENTRY_ID_MAX]


def new_index(kind: str, files: LocalFiles, directory: Path) -> LedgerIndex:
    if kind == "db":
        return KeyValueIndex(files, str(directory), KeyValueOptions())
    page_bytes = 64 if kind == "small pages" else 8192
    return PerLedgerIndex(files, [str(directory)], PageOptions(page_bytes, 8, 128), 4)


def hold(index: LedgerIndex, entry_ids: list[int]) -> None:
    ids = np.array(sorted(entry_ids), np.int64)
    index.hold([LedgerUpdate(LEDGER, HEADER, ids, ids + 1)])


@pytest.mark.parametrize("kind", ["files", "small pages", "db"])
@pytest.mark.parametrize("is_synced", [False, True])
def test_extents_name_what_is_held_in_a_sparse_ledger(kind: str, is_synced: bool, tmp_path: Path) -> None:
    index = new_index(kind, LocalFiles(), tmp_path)
    hold(index, SPARSE)
    if is_synced:
        index.sync()
    assert found(index) == SPARSE
    assert found(index, 6, 1 << 31) == [8191, 8192, 1 << 20, (1 << 20) + 1]
    assert found(index, STORED_ENTRY_ID_MAX) == [STORED_ENTRY_ID_MAX]
    view = index.view(4)
    assert found(view) == SPARSE
    view.close()
    index.close()


@pytest.mark.parametrize("kind", ["files", "small pages", "db"])
def test_extents_agree_with_a_dictionary(kind: str, tmp_path: Path) -> None:
    random = Random(1)
    index = new_index(kind, LocalFiles(), tmp_path)
    held: set[int] = set()
    for step in range(20):
        first = random.choice([0, random.randrange(1 << 16), random.randrange(1 << 40)])
        some = {min(first + random.randrange(20_000), STORED_ENTRY_ID_MAX) for _ in range(random.randrange(1, 300))}
        hold(index, list(some))
        held |= some
        if step % 7 == 0:
            index.sync()
        start = random.choice([0, random.randrange(1 << 16), random.choice(sorted(held))])
        end = random.choice([STORED_ENTRY_ID_MAX + 1, start + random.randrange(1, 1 << 18)])
        assert found(index, start, end) == sorted(each for each in held if start <= each < end)
    index.close()


def test_a_file_of_8_tib_with_two_entries_takes_a_handful_of_looks(tmp_path: Path) -> None:
    files = ReadCountingFiles()
    index = new_index("files", files, tmp_path)
    hold(index, [0, STORED_ENTRY_ID_MAX])
    index.sync()
    view = index.view(4)
    files.looks = 0
    assert found(view) == [0, STORED_ENTRY_ID_MAX]
    assert files.looks <= 8
    view.close()
    index.close()


def test_extents_of_a_dense_ledger_are_large(tmp_path: Path) -> None:
    index = new_index("files", LocalFiles(), tmp_path)
    hold(index, list(range(200_000)))
    index.sync()
    assert sum(1 for _ in index.extents(LEDGER)) <= 200_000 // EXTENT_ENTRIES + 5
    index.close()


def test_extents_leave_the_pages_in_memory_alone(tmp_path: Path) -> None:
    """A list of a large ledger must not push out the pages that reads use."""
    index = new_index("files", LocalFiles(), tmp_path)
    assert isinstance(index, PerLedgerIndex)
    hold(index, list(range(100_000)))
    index.sync()
    index.positions(LEDGER, 0, 10)
    before = index.pages_bytes
    assert len(found(index)) == 100_000
    assert index.pages_bytes == before
    index.close()


def test_the_last_entry_before_a_huge_hole_is_found_at_once(tmp_path: Path) -> None:
    """A crash can leave a file that is longer than what was written into it."""
    index = new_index("files", LocalFiles(), tmp_path)
    hold(index, [3, 70_000])
    index.sync()
    index.close()
    (path,) = tmp_path.rglob("*.idx")
    os.truncate(path, LAYOUT.position_at(STORED_ENTRY_ID_MAX))
    files = ReadCountingFiles()
    index = new_index("files", files, tmp_path)
    files.looks = 0
    assert index.last_entry(LEDGER) == 70_000
    assert files.looks < 100
    index.close()
