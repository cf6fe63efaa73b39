"""A journal whose disk is full: files that only operators need go first."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_service.formats.journal import FILE_HEADER_BYTES, RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.io.files import Buffer, File, LocalFiles
from bookie_service.storage.journal.journal import Journal, JournalOptions, Record
from bookie_service.storage.journal.replay import replay_journal

START = JournalPosition(0, 0)
OPTIONS = JournalOptions(preallocate_bytes=4096, alignment_bytes=1, backups_max=0)


def record(body: bytes) -> Record:
    return Record.of(RecordKind.FENCE, 1, body)


class SmallDisk(LocalFiles):
    """A disk that has room for a number of bytes of the files in one directory."""

    def __init__(self, directory: Path, room: int) -> None:
        self.directory = directory
        self.room = room

    def create(self, path: str) -> File:
        self.take(4096)
        return _FileOnSmallDisk(super().create(path), self)

    def open(self, path: str) -> File:
        return _FileOnSmallDisk(super().open(path), self)

    def take(self, size: int) -> None:
        if sum(path.stat().st_size for path in self.directory.iterdir()) + size > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))


class _FileOnSmallDisk(File):
    __slots__ = ("_disk",)

    def __init__(self, inner: File, disk: SmallDisk) -> None:
        super().__init__(inner.descriptor, inner.path)
        self._disk = disk

    def preallocate(self, offset: int, size: int) -> None:
        self._disk.take(offset + size - self.size())
        super().preallocate(offset, size)

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._disk.take(max(0, offset + sum(map(len, buffers)) - self.size()))
        return super().write(buffers, offset)


@pytest.mark.parametrize("preallocate_bytes", [0, 4096])
@pytest.mark.parametrize("is_started_again", [False, True])
def test_backups_go_before_a_journal_ends_for_want_of_space(
    tmp_path: Path, is_started_again: bool, preallocate_bytes: int
) -> None:
    """journalMaxBackups files are wholly before the mark: only operators read them."""
    disk = SmallDisk(tmp_path, 200_000)
    options = JournalOptions(
        file_bytes_max=20_000, preallocate_bytes=preallocate_bytes, alignment_bytes=512, backups_max=50
    )
    journal = Journal(disk, str(tmp_path), options, START)
    bodies = [bytes([i]) * 5000 for i in range(100)]
    for i, body in enumerate(bodies):
        journal.append([record(body)])
        if i % 3 == 2:
            # All files except the newest are before the mark.
            mark = journal.end
            journal.forget_before(mark)
            journal.forget_before(JournalPosition(1, FILE_HEADER_BYTES))  # an earlier mark takes nothing back
        if is_started_again and i == 30:
            journal.close()
            disk.room = sum(path.stat().st_size for path in tmp_path.iterdir())
            journal = Journal(disk, str(tmp_path), options, journal.end, mark)
            disk.room = 200_000
    journal.close()
    found = replay_journal(LocalFiles(), str(tmp_path), mark, lambda kind, count, body: None)
    assert found.torn is None
    assert len(list(tmp_path.iterdir())) < 15


def test_file_that_was_removed_for_space_is_not_reused(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 200_000)
    journal = Journal(disk, str(tmp_path), replace(OPTIONS, file_bytes_max=20_000, reuse_files=True), START)
    for _ in range(12):
        journal.append([record(bytes(5000))])
    journal.forget_before(journal.end)
    disk.room = sum(path.stat().st_size for path in tmp_path.iterdir())
    for size in (30_000, 1):
        journal.append([record(bytes(size))])
    journal.close()


def test_journal_that_has_no_backups_ends_for_want_of_space(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 100_000)
    options = JournalOptions(file_bytes_max=20_000, preallocate_bytes=4096, alignment_bytes=512, backups_max=50)
    journal = Journal(disk, str(tmp_path), options, START)
    mark = journal.end
    journal.forget_before(mark)
    records = [[record(bytes([i]) * 5000)] for i in range(100)]
    with pytest.raises(OSError, match="No space left"):
        list(map(journal.append, records))
    assert replay_journal(LocalFiles(), str(tmp_path), mark, lambda kind, count, body: None).records >= 17
