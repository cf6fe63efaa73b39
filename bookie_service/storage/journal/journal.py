"""The writing end of the journal: a chain of files in one directory, in the format of `formats.journal`.

`append` returns when its records and everything before them are durable. Files are preallocated, because a sync that
need not change the file's size is about twice as fast. Files before the mark are reused for the same reason: their
blocks are already written, so the file system has no metadata to change. `write_durability_marker` is for idle moments:
it proves that the last group is durable, so that replay recognises damage in it. This module has no threads;
`journal_thread` runs it.

With `sync_groups` false, or for a deferred group, `append` returns as soon as the operating system has the records. A
power failure then loses what was appended since the last `sync`, acknowledged or not.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from crc32c import crc32c

from bkspark.options import BYTES_MAX, COUNT_MAX, bounded, check
from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, FileHeader, RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.io.files import Buffer, File, LocalFiles, is_out_of_space

logger = logging.getLogger(__name__)

SPARES_MAX = 4
"""Files that wait for reuse. More than are filled between two checkpoints are of little use."""
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Sizes in bytes. `backups_max`: how many files before the mark are kept for operators. `reuse_files`: recycle
    them.

    Every group begins at a multiple of `alignment_bytes`; 0: of the physical block size of the journal's disk, so that
    no write touches a sector with durable bytes. `leaves_page_cache`: durable bytes are dropped from the page cache,
    because only replay reads them, and the memory caches entry logs better. The newest bytes, up to `cached_bytes`,
    stay there.
    """

    file_bytes_max: int = bounded(2048 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    """A file that has reached it is followed by another one."""
    preallocate_bytes: int = bounded(16 * 1024 * 1024, 0, 2048 * 1024 * 1024, "bytes")
    """Space is allocated in steps of this; 0: when it is written."""
    alignment_bytes: int = bounded(0, 0, 1024 * 1024, "bytes")
    backups_max: int = bounded(5, 0, COUNT_MAX)
    reuse_files: bool = False
    sync_groups: bool = True
    """False: groups are acknowledged from the page cache, and a power failure loses them."""
    leaves_page_cache: bool = True
    cached_bytes: int = bounded(8 * 1024 * 1024, 0, BYTES_MAX, "bytes")

    def __post_init__(self) -> None:
        check(self)


def in_whole_blocks(options: JournalOptions, files: LocalFiles, directories: Sequence[str]) -> JournalOptions:
    """Return the options, with groups that share no physical block of the journals' disks. Log a raised alignment.

    Raises:
        OSError: a directory cannot be looked at.
    """
    configured = options.alignment_bytes
    if not configured:
        return options  # each journal takes the block size of its own disk
    block = max(map(files.block_bytes, directories))
    used = -(-configured // block) * block
    if used == configured:
        return options
    logger.warning(
        "journalAlignmentSize=%d: a disk of the journals has physical blocks of %d bytes, so groups begin at multiples "
        "of %d",
        configured,
        block,
        used,
    )
    return replace(options, alignment_bytes=used)


@dataclass(frozen=True, slots=True)
class Record:
    """A journal record to be written. Its body, of `body_bytes`, is `parts` back to back; they must not change until it
    is durable."""

    kind: RecordKind
    count: int
    """How many entries, keys, fences or LACs the body has."""
    parts: Sequence[Buffer]
    body_bytes: int

    @classmethod
    def of(cls, kind: RecordKind, count: int, body: bytes) -> Record:
        return cls(kind, count, (body,), len(body))


class Journal:
    """Appends records to the newest file of a chain, and begins a new file when that file is full.

    After an OSError from any method the state on disk is unknown and the journal must not be used again.
    """

    def __init__(
        self,
        files: LocalFiles,
        directory: str,
        options: JournalOptions,
        chain_end: JournalPosition,
        mark: JournalPosition | None = None,
    ) -> None:
        """Begin a new file after `chain_end`, where replay found the last whole record (file id 0: there is no chain
        yet).

        `mark`: a durable mark. Files that lie completely before it are backups, which are removed when space is
            missing.
        """
        self._marked_id = 0 if mark is None else mark.file_id
        """The file of the last durable mark; older files are backups. Never decreases."""
        self._files = files
        self.directory = directory
        """Where the files are. Constant."""
        self.clock_ns: Callable[[], int] = lambda: 0
        """The clock of `written_ns`. Set by the owner."""
        self.written_ns = 0
        """When `append` had last written its records, by `clock_ns`."""
        self._options = options
        self._alignment = options.alignment_bytes or files.block_bytes(directory)
        """Records begin at multiples of this. Constant."""
        self._spares: list[str] = []
        """Old files that the next file may reuse. Filled by the checkpoint thread, emptied by the journal's."""
        self._offered: set[str] = set()
        """Names of files here that were put into `_spares`: each is offered once."""
        self._kept: set[str] = set()
        """Names of files that could not be removed. Each is logged once."""
        self._file_id = chain_end.file_id
        """The id of the newest file. Incremented for each file."""
        self._end = chain_end.offset
        """The offset of the next record in the newest file."""
        self._allocated = 0
        """The offset up to which the newest file has space."""
        self._uncached = 0
        """The offset up to which the newest file was dropped from the page cache; at most `_synced`."""
        self._synced = self._proved = 0
        """Offsets in the newest file. Bytes before `_synced` are durable. A record proves that bytes before `_proved`
        are durable; `_proved` is at most `_synced`."""
        self._begin_file()

    @property
    def end(self) -> JournalPosition:
        """The position of the next record. After `sync` everything before it is durable."""
        return JournalPosition(self._file_id, self._end)

    @property
    def syncs_groups(self) -> bool:
        """Whether `append` makes its records durable."""
        return self._options.sync_groups

    def append(self, records: Sequence[Record], *, deferred: bool = False) -> None:
        """Write the records as one group. Make them durable, unless they are `deferred` or `sync_groups` is false.

        Raises:
            OSError: the group may not be durable, and none of its records may be acknowledged.
        """
        if self._end >= self._options.file_bytes_max:
            self._go_on()
        self._write(records)
        self.written_ns = self.clock_ns()
        if self._options.sync_groups and not deferred:
            self._sync()

    def sync(self) -> None:
        """Make everything appended durable. Raises OSError as `append`."""
        if self._synced < self._end:
            self._sync()

    def _sync(self) -> None:
        self._file.sync_data()
        self._synced = self._end
        if self._options.leaves_page_cache and self._end - self._uncached >= self._options.cached_bytes:
            # Rarely, because it costs a call. In whole pages, because the last page is written to again.
            end = self._end - self._end % _PAGE_BYTES
            self._file.drop_page_cache(self._uncached, end)
            self._uncached = end

    def write_durability_marker(self) -> None:
        """Make everything appended durable, and also a record that proves it. Raises OSError as `append`."""
        if self._proved < self._end:
            self.sync()
            self._write(())
            self._file.sync_data()
            # The marker itself contains nothing that needs a proof.
            self._synced = self._proved = self._end

    def _write(self, records: Sequence[Record]) -> None:
        """Write records, and the padding that ends their group. Without records the padding only names `synced`."""
        buffers: list[Buffer] = []
        offset = self._end
        for record in records:
            offset = self._encode(record, offset, buffers)
        alignment = self._alignment
        is_padded = bool(offset % alignment) or not records
        size = journal_format.padding_body_bytes(offset, alignment) if is_padded else 0
        end = offset + RECORD_HEADER_BYTES + size if is_padded else offset
        # A group also reserves room for the next marker and for that of `close`, so an idle bookie, and one that stops,
        # needs no space on a full disk.
        needed = end + 2 * (RECORD_HEADER_BYTES + alignment) if records else end
        if needed > self._allocated:
            self._reserve(needed)
        if is_padded:
            self._encode(_padding(size, self._allocated), offset, buffers)
        self._put(self._file, buffers, self._end)
        self._end = end

    def _put(self, file: File, buffers: Sequence[Buffer], offset: int) -> None:
        """Write to a file, in which nothing may be reserved. If space is missing, the backups go first."""
        try:
            file.write(buffers, offset)
        except OSError as error:
            self._make_room(error)
            # The same bytes again, of which none was durable: nothing depends on how many of them the file has.
            file.write(buffers, offset)

    def _encode(self, record: Record, offset: int, buffers: list[Buffer]) -> int:
        """Append a record that begins at `offset` to `buffers`; return where the record ends."""
        body_crc = 0
        for part in record.parts:
            body_crc = crc32c(part, body_crc)
        header = journal_format.encode_record_header(
            record.kind,
            record.body_bytes,
            record.count,
            file_id=self._file_id,
            offset=offset,
            synced=self._synced,
            body_crc=body_crc,
        )
        buffers.append(header)
        buffers.extend(record.parts)
        return offset + RECORD_HEADER_BYTES + record.body_bytes

    def forget_before(self, mark: JournalPosition) -> None:
        """Release files that lie completely before a durable mark. The newest of them stay as backups."""
        self._marked_id = max(self._marked_id, mark.file_id)
        older = [name for name in self._files.names(self.directory) if _is_before(name, mark.file_id)]
        self._offered.intersection_update(older)  # those that were taken were renamed, and do not come back
        for name in older[: max(0, len(older) - self._options.backups_max)]:
            if name in self._offered:
                # Offered only once, because the journal's thread may take and rename it at any moment.
                continue
            if self._options.reuse_files and len(self._spares) < SPARES_MAX:
                self._offered.add(name)
                self._spares.append(name)
            else:
                self._remove(name)

    def _remove(self, name: str) -> bool:
        """Remove a file that is not needed; return whether it was there, and is removed.

        A file that cannot be removed does no harm. If the disk fails, the next record will tell.
        """
        path = os.path.join(self.directory, name)
        try:
            self._files.remove(path)
        except FileNotFoundError:
            return False  # the other thread removed it, to make room or because of a newer mark
        except OSError as error:
            if name not in self._kept:
                self._kept.add(name)
                logger.warning("%s is not needed any more, and cannot be removed: %s", path, error)
            return False
        return True

    def _drop_backups(self) -> bool:
        """Remove files that are kept only as backups, because space is missing; return whether there were any."""
        self._spares.clear()
        before = [name for name in self._files.names(self.directory) if _is_before(name, self._marked_id)]
        dropped = sum(map(self._remove, before)) > 0
        if dropped:
            logger.warning("%s: no space for the journal, its backups were removed (journalMaxBackups)", self.directory)
        return dropped

    def close(self) -> None:
        """Make everything appended durable and free the space reserved after the last record."""
        self.sync()
        if self._allocated:
            # Otherwise the file would look as if it had been truncated after a crash.
            size, last = journal_format.padding_body_bytes(self._end, self._alignment), list[Buffer]()
            end = self._encode(_padding(size, 0), self._end, last)
            self._file.write(last, self._end)
            self._file.sync_data()
            self._end = end
        self._file.truncate(self._end)
        self._file.close()

    def _go_on(self) -> None:
        """Begin the next file, and let the current file name it before the next file takes its first record."""
        self.sync()
        full, end = self._file, self._end
        followed: list[Buffer] = []
        # The last group left room for it (`_write`), so it needs no space on a full disk.
        size = self._encode(Record.of(RecordKind.FOLLOWED, 0, b""), end, followed)
        self._begin_file()
        self._put(full, followed, end)
        full.truncate(size)
        full.sync_data()
        full.close()

    def _begin_file(self) -> None:
        """Continue in a new file after the current end."""
        before = self._file_id, self._end if self._file_id else 0
        self._file_id += 1
        path = os.path.join(self.directory, journal_format.file_name(self._file_id))
        self._allocated = 0
        if self._spares:
            # The old records in it have another file id, so they are not records of this file.
            self._files.rename(os.path.join(self.directory, self._spares.pop(0)), path)
            self._file = self._files.open(path)
            self._allocated = self._file.size()
        else:
            self._file = self._create(path)
        self._end = FILE_HEADER_BYTES
        self._synced = self._uncached = 0
        # Before the header, which says how long the file is.
        self._reserve(self._end)
        header = FileHeader(self._file_id, *before, self._allocated)
        self._put(self._file, [journal_format.encode_file_header(header)], 0)
        if self._end % self._alignment:
            self._write(())
        self._reserve(self._end)
        self._file.sync_data()
        self._synced = self._proved = self._end
        self._files.sync_directory(self.directory)

    def _create(self, path: str) -> File:
        try:
            return self._files.create(path)
        except OSError as error:
            self._make_room(error)
        return self._files.create(path)

    def _make_room(self, error: OSError) -> None:
        """Remove the backups after an error that says that space is missing. Raises the error if none was removed."""
        if not is_out_of_space(error) or not self._drop_backups():
            raise error

    def _reserve(self, end: int) -> None:
        step = self._options.preallocate_bytes
        if end <= self._allocated or not step:
            return
        wanted = -(-(end - self._allocated) // step) * step
        # Even a nearly full disk may have the little space that a read-only bookie needs now.
        size = self._preallocated(wanted) or self._preallocated(end - self._allocated)
        if not size and self._drop_backups():
            size = self._preallocated(end - self._allocated)
        if not size:
            self._file.preallocate(self._allocated, end - self._allocated)
            size = end - self._allocated
        self._allocated += size

    def _preallocated(self, size: int) -> int:
        """Reserve this many more bytes; return their number, or 0 if there is no space."""
        try:
            self._file.preallocate(self._allocated, size)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            return 0
        return size


def _padding(body_bytes: int, allocated: int) -> Record:
    """Return a PADDING record. `allocated`: the length of the file; 0: unknown."""
    return Record(RecordKind.PADDING, allocated // journal_format.LENGTH_UNIT_BYTES, (bytes(body_bytes),), body_bytes)


def _is_before(name: str, file_id: int) -> bool:
    found = journal_format.parse_file_name(name)
    return found is not None and found < file_id
