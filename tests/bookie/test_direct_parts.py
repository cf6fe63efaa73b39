"""Parts of a bookie's storage that are asked directly: what they say of nothing, of little, and of a failing disk."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bookie_service.formats import limbo as limbo_format
from bookie_service.storage.index.index_file import IndexFile
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.files import File, LocalFiles
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.interface import LookResult
from bookie_service.storage.ledgers.limbo import Limbo
from bookie_service.storage.ledgers.opening import open_storage
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.file_indexes import new_index, update
from tests.bookie.ledger_stores import open_store, put
from tests.bookie.registrations import Bench, run


class Refusing(LocalFiles):
    """Files that cannot be opened, with `code`, if their paths end with `suffix`."""

    def __init__(self, suffix: str) -> None:
        self.code = 0
        self._suffix = suffix

    def open(self, path: str) -> File:
        if self.code and path.endswith(self._suffix):
            raise OSError(self.code, os.strerror(self.code), path)
        return super().open(path)


def test_look_that_decided_anything_is_not_empty() -> None:
    row = np.zeros(1, np.int64)
    assert LookResult().is_empty
    assert not LookResult(missing=row).is_empty
    assert not LookResult(odd=row).is_empty


def test_index_file_without_a_header_has_room_for_nothing_and_is_damaged_if_it_holds_bytes(tmp_path: Path) -> None:
    """A crash may come between the creation of a file and its header."""
    created = LocalFiles().create(str(tmp_path / "5.idx"))
    file = IndexFile(created)
    assert file.end_entry(created.size()) == 0
    created.write([b"x"], 0)
    with pytest.raises(StorageDamaged, match="header is unreadable"):
        file.end_entry(created.size())
    file.close()


def test_file_that_its_disk_hides_has_no_last_entry_and_one_that_may_not_be_read_is_an_error(
    tmp_path: Path,
) -> None:
    files = Refusing(".idx")
    index = new_index(files, tmp_path, PageOptions())
    index.hold([update(5, 0, [7, 8], 1)])
    index.sync()
    index.close()
    index = new_index(files, tmp_path, PageOptions())
    files.code = errno.EIO
    assert index.last_entry(5) == NO_ENTRY
    files.code = errno.EACCES
    with pytest.raises(PermissionError):
        index.last_entry(5)
    files.code = 0
    assert index.last_entry(5) == 1
    index.close()


def test_list_of_limbo_that_may_not_be_read_refuses_the_start_by_its_path(tmp_path: Path) -> None:
    files = Refusing(limbo_format.LIMBO_NAME)
    Limbo(files, [str(tmp_path)]).begin([5])
    files.code = errno.EACCES
    with pytest.raises(StorageDamaged, match=f"{tmp_path / limbo_format.LIMBO_NAME}.*cannot tell which ledgers lost"):
        Limbo(files, [str(tmp_path)])


def test_bookie_registers_again_in_one_task_however_often_it_is_asked_meanwhile() -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        before = len(asyncio.all_tasks())
        bench.store.expire(bench.tree)
        for read_only in (True, False, True):
            registration.change(read_only=read_only)
            assert len(asyncio.all_tasks()) == before + 1
        await registration.settled()
        await registration.leave()

    run(test)


def test_entries_that_wait_for_a_flush_are_listed_of_each_half_of_memory_that_has_the_ledger(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, 5, {0: b"a"})
    put(store, 6, {0: b"b"})
    taken = store.begin_flush()
    put(store, 5, {1: b"c"})
    put(store, 7, {4: b"d"})
    waiting = {}
    for ledger_id in (5, 6, 7):
        ledger = store.ledger(ledger_id)
        assert ledger is not None
        waiting[ledger_id] = sorted(int(each) for ids in store.waiting_entries(ledger) for each in ids)
    assert waiting == {5: [0, 1], 6: [0], 7: [4]}
    assert taken is not None
    store.write_flush(taken)
    store.end_flush(taken)
    store.close()


@pytest.mark.parametrize(("directory", "is_needed"), [("journal", True), ("ledgers1", False)])
def test_start_needs_the_names_in_journal_directories_to_be_durable_and_goes_on_without_a_ledger_directory(
    tmp_path: Path, directory: str, is_needed: bool
) -> None:
    files = FaultyFiles()
    ledgers = [str(tmp_path / name) for name in ("ledgers0", "ledgers1")]
    files.fault = lambda operation, path: operation == "sync_directory" and path == str(tmp_path / directory)
    if is_needed:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            open_storage(files, [str(tmp_path / "journal")], ledgers, StoreOptions(), JournalOptions())
    else:
        open_storage(files, [str(tmp_path / "journal")], ledgers, StoreOptions(), JournalOptions())
