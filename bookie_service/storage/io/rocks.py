"""RocksDB as the embedded key-value store. `key_values` states the guarantees. Only this module imports rocksdict.

RocksDB's write-ahead log is not used, because the bookie's journal has what is not synced. `sync` writes the memory
table out as one sorted file, which is synced before the manifest names it. A write into memory holds Python's lock for
about 2 us per key. `sync`, which waits for the disk, lets other threads run.

Files and manifest have checksums, which every read verifies. RocksDB reports damage and failing disks only as texts;
this module derives its errors from them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    ChecksumType,
    CompactOptions,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from bkspark.errors import StorageDamaged
from bookie_service.storage.io.key_values import Changes, KeyValueOptions
from bookie_service.storage.io.unsynced_writes import UnsyncedWrites

_BACKGROUND_JOBS = 2
_KEYS_PER_TURN = 1000
_LOG_BYTES_MAX = 1024 * 1024
_DISK_FULL = {os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT)}
_NUMBER = re.compile(r"\(os error ([0-9]+)\)")
"""What the errors end with that rocksdict raises for files of its own."""


class RocksKeyValues:
    """An open database, used as `KeyValues`."""

    def __init__(
        self,
        path: str,
        options: KeyValueOptions,
        *,
        has_space: Callable[[], bool] = lambda: True,
        linked: Callable[[], AbstractContextManager[str]] | None = None,
        is_for_reading: bool = False,
    ) -> None:
        """Open the database in an existing directory; in an empty directory a database is created.

        Args:
            has_space: returns whether a retry is worthwhile after the disk had no space.
            linked: makes a directory with links to all files of the database. If there is no space to open it for
                writing, it is opened there: it can be read, and writes find no space until there is some. RocksDB and
                rocksdict always write some files of their own, which go to this directory.
            is_for_reading: the database is only read, through such links, in the state that a running bookie has made
                durable.

        Raises:
            StorageDamaged: it is not a whole database.
            OSError: it cannot be read or written, or another process has opened it.
        """
        self._path = path
        self._options = options
        """The settings of the database. Constant."""
        self._linked = linked
        """Makes a directory of links to the files of the database, or None. Constant."""
        self._unlogged = WriteOptions()
        """Writes without RocksDB's own log, because the bookie's journal has what they contain."""
        # It is a property, but rocksdict's stub declares a method.
        self._unlogged.disable_wal = True  # type: ignore[method-assign,assignment]
        self._using = threading.Lock()
        """Held while the database is used, except by `sync`, and while it is reopened."""
        self._syncing = threading.Lock()
        """Held by `sync`, and taken before `_using`: the changes of a failed sync must not overwrite those that a later
        sync made durable."""
        self._rewriting = threading.Lock()
        """Held while a part of the database is rewritten, and while it is reopened, which does not wait for it. Syncs
        and writes go on beside it."""
        self._has_space = has_space
        self._unsynced: list[Changes] = []
        """The writes since the last sync, in order. They are repeated when the database had to be reopened."""
        self._being_synced: list[Changes] = []
        """The writes before those, which a running sync makes durable."""
        self._lacking: UnsyncedWrites | None = None
        """What was not synced when the database was closed to be opened again, and it does not take yet; None: it has
        everything. Set by `_reopen`."""
        database, is_writable = (self._opened_for_reading(), True) if is_for_reading else self._opened()
        self._database = database
        """The open database. Replaced by `_reopen`."""
        self._is_stuck = not is_writable
        """Whether a write, a sync or the opening for writing has failed. The next write or sync then opens the database
        again first."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._using, self._naming():
            # A list of keys gives a list of values of the same length, which the stub does not say.
            found = cast("list[bytes | None]", self._database.get(list(keys)))
            return found if self._lacking is None else self._lacking.get(keys, found)

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        with self._using, self._naming():
            if self._lacking is None:
                return self._last_stored(first, end)
            written = self._lacking.last(first, end)
            while (stored := self._last_stored(first, end)) is not None:
                removed_from = self._lacking.removed_from(stored[0])
                if removed_from is None:
                    break
                end = removed_from
            # If both have the key, the store has an older value.
            return written if stored is None or (written is not None and written[0] >= stored[0]) else stored

    def _last_stored(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the last key in [first, end) that the database has, and its value."""
        at = self._database.iter()
        at.seek_for_prev(end)
        if at.valid() and at.key() == end:
            at.prev()
        if not at.valid():
            at.status()
            return None
        key = at.key()
        return (key, at.value()) if key >= first else None

    def keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        while first < end:
            some, first = self._some_keys(first, end)
            yield from some

    def _some_keys(self, first: bytes, end: bytes) -> tuple[list[bytes], bytes]:
        """Return the first keys, few enough that no other thread waits for long, and where the others begin."""
        found: list[bytes] = []
        with self._using, self._naming():
            at = self._database.iter()
            at.seek(first)
            while len(found) < _KEYS_PER_TURN and at.valid() and (key := at.key()) < end:
                found.append(key)
                at.next()
            at.status()
            others = found[-1] + b"\0" if found else end
            return (found if self._lacking is None else self._lacking.keys(first, others, found)), others

    def key_count(self) -> int:
        with self._using, self._naming():
            return self._database.property_int_value("rocksdb.estimate-num-keys") or 0

    def write(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        batch = _batch(puts, removed)
        with self._using, self._noting_failure():
            if self._is_stuck:
                self._open_unless_syncing()
            self._unsynced.append((puts, removed))
            try:
                with self._naming():
                    self._database.write(batch, self._unlogged)
            except OSError:
                # The caller got an error, and repeats the write or gives it up. A ledger that could not be dropped is
                # still served, and must not vanish when there is space again.
                self._unsynced.pop()
                raise

    def sync(self) -> None:
        with self._syncing:
            with self._using:
                if self._is_stuck:
                    self._open_again()
                self._being_synced, self._unsynced = self._unsynced, []
            try:
                with self._naming():
                    self._database.flush(True)
            except OSError:
                with self._using:
                    # At once, because a reopened database must get all writes in order.
                    self._being_synced, self._unsynced = [], self._being_synced + self._unsynced
                    self._is_stuck = True
                raise
            # Without the lock: a caller that still finds the writes here repeats what is durable.
            self._being_synced = []

    def unsynced(self) -> list[Changes]:
        with self._using:
            return [*self._being_synced, *self._unsynced]

    def forget_removed(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        beside_others = CompactOptions()
        beside_others.set_exclusive_manual_compaction(False)
        for first, end in ranges:
            with self._rewriting:
                if self._is_stuck or not self._has_space():
                    return
                failures = self._background_failures()
                with self._naming():
                    self._database.compact_range(first, end, beside_others)
                if self._background_failures() > failures:
                    # Nothing is lost, and whatever reads damage reports it. rocksdict says nothing, and RocksDB refuses
                    # writes now.
                    with self._using:
                        self._is_stuck = True

    def _background_failures(self) -> int:
        with self._naming():
            return self._database.property_int_value("rocksdb.background-errors") or 0

    def _open_unless_syncing(self) -> None:
        """Do `_open_again`, but not beneath a sync: the opened database would lack what is being synced."""
        with self._before_opening(self._syncing, "synced"):
            self._open_again()

    def _open_again(self) -> None:
        """End the state in which RocksDB refuses all writes for good after a lack of disk space."""
        if not self._has_space():
            raise OSError(errno.ENOSPC, "there is still no space for the key-value store", self._path)
        with self._before_opening(self._rewriting, "rewritten"):
            self._reopen()

    @contextlib.contextmanager
    def _before_opening(self, work: threading.Lock, done: str) -> Iterator[None]:
        """Hold the lock of some work. Raises OSError if it goes on: a caller that waited would wait for the disk."""
        if not work.acquire(blocking=False):
            raise OSError(errno.ENOSPC, f"the key-value store is {done} first, before it is opened again", self._path)
        try:
            yield
        finally:
            work.release()

    def _reopen(self) -> None:
        with contextlib.suppress(OSError, StorageDamaged):
            self._close()
        self._database, is_writable = self._opened()
        try:
            if not is_writable:
                raise OSError(errno.ENOSPC, "there is no space to open the key-value store for writing", self._path)
            for puts, removed in self._unsynced:
                with self._naming():
                    self._database.write(_batch(puts, removed), self._unlogged)
        except OSError:
            # Reads must find what was written before, though the database has only what was synced.
            self._lacking = UnsyncedWrites(self._unsynced)
            raise
        self._lacking, self._is_stuck = None, False

    def close(self) -> None:
        with self._using:
            try:
                self._close()
            except OSError as error:
                # RocksDB writes the memory table out when it is closed. Without space it cannot. It need not, because
                # these writes were never reported as durable.
                if error.errno not in _DISK_FULL.values():
                    raise

    def _opened(self) -> tuple[Rdict, bool]:
        """Open the database; return whether it can be written, too, for which there may be no space."""
        settings = _settings(self._options)
        settings.create_if_missing(True)
        try:
            with self._naming():
                return Rdict(self._path, settings, access_type=AccessType.read_write()), True
        except OSError as error:
            if error.errno not in _DISK_FULL.values() or self._linked is None:
                raise
            try:
                return self._opened_for_reading(), False
            except StorageDamaged:
                # There is no database yet. If this one is damaged, the next attempt with space says so.
                raise error from None

    def _opened_for_reading(self) -> Rdict:
        assert self._linked is not None
        settings = _settings(self._options)
        settings.create_if_missing(False)
        # A running bookie may delete files that it has merged. Open files stay readable.
        settings.set_max_open_files(-1)
        with self._linked() as links, self._naming(links):
            return Rdict(links, settings, access_type=AccessType.read_only(False))

    def _close(self) -> None:
        with self._naming():
            self._database.close()

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._is_stuck = True
            raise

    @contextlib.contextmanager
    def _naming(self, opened_at: str | None = None) -> Iterator[None]:
        """Translate rocksdict's exceptions, which are bare Exceptions and, after misuse, others, into our errors.

        `opened_at`: the path of the database in their texts, if it is another one.
        """
        try:
            yield
        except DbClosedError as error:
            raise OSError(errno.EIO, "the key-value store could not be opened again", self._path) from error
        except Exception as error:
            is_text = type(error) is Exception or (isinstance(error, OSError) and error.errno is None)
            if not is_text:
                raise
            raise _error_of(str(error).replace(opened_at or self._path, self._path), self._path) from None


def _batch(puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]]) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    for first, end in removed:
        if end == first + b"\0":
            # An iterator steps over a removed key in a sixth of the time that a removed range takes it.
            batch.delete(first)
        else:
            batch.delete_range(first, end)
    for key, value in puts:
        batch.put(key, value)
    return batch


def _error_of(text: str, path: str) -> Exception:
    number = _NUMBER.search(text)
    if number is not None and int(number.group(1)) != errno.ENOENT:
        return OSError(int(number.group(1)), text, path)
    if text.startswith("IO error") and "No such file" not in text:
        code = next((code for reason, code in _DISK_FULL.items() if reason in text), errno.EIO)
        return OSError(code, text, path)
    # Missing or contradictory data counts as damage, too.
    return StorageDamaged(
        f"{path}: the key-value store is damaged: {text}; run `bkspark bookie --rebuild-index`, which rebuilds it "
        "from the entry logs, or start a bookie with a new id and empty directories and let autorecovery copy the "
        "ledgers"
    )


def _settings(options: KeyValueOptions) -> Options:
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(options.cache_bytes))
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_block_size(options.block_bytes)
    tables.set_checksum_type(ChecksumType.xxh3())
    if options.bloom_bits_per_key:
        tables.set_bloom_filter(options.bloom_bits_per_key, False)
    settings = Options(raw_mode=True)
    settings.set_block_based_table_factory(tables)
    settings.set_write_buffer_size(options.write_buffer_bytes)
    settings.set_max_open_files(options.open_files_max)
    settings.set_max_background_jobs(_BACKGROUND_JOBS)
    # The positions of neighbouring entries differ little, so they shrink to about a seventh.
    settings.set_compression_type(DBCompressionType.zstd())
    settings.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    settings.set_paranoid_checks(True)
    settings.set_keep_log_file_num(1)
    settings.set_max_log_file_size(_LOG_BYTES_MAX)
    settings.set_is_fd_close_on_exec(True)
    return settings
