"""All access to the file system goes through this module.

`LocalFiles` and the `File` objects that it opens are the whole interface that the storage uses. A simulated disk has
the same methods. Callers rely on these rules:

* A write is complete or raises OSError; nothing is retried. After an error on a file its contents are unknown.
* Data is durable after `File.sync_data`. A name that was created, renamed or removed is durable after `sync_directory`
  of its directory.
* Every OSError names the path.

An embedded key-value store does its own input and output. It is opened here, too; `key_values` states its guarantees.

The files of a bookie contain entries and master keys: files have mode 0600 and directories 0700. If a group may read
them, files have 0640 and directories 2750 and belong to the group, so that new files in them also do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial

from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.disk_threads import DiskStalled, DiskThreads, DiskWork, InTurn
from bookie_service.storage.io.key_values import KeyValueOptions, KeyValues

Buffer = bytes | bytearray | memoryview

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
"""The C library's function. Python's own always makes the file longer."""
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_FALLOC_FL_KEEP_SIZE = 1

BUFFERS_PER_CALL_MAX = 1024
"""IOV_MAX of Linux."""
_BLOCK_BYTES = 4096
_NO_WAIT = getattr(os, "RWF_NOWAIT", None)
_NOTHING_AT_ONCE = (errno.EAGAIN, errno.EOPNOTSUPP)
"""Errors that mean: the bytes are not cached, or the file system cannot tell."""
_KEY_VALUES_SCRIBBLE = ("LOG", "LOCK", "rocksdict-config.json")
"""Files of a key-value store that are written whenever it is opened, even only for reading."""
_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
DISK_FAILURES = (
    # The device or its medium is gone, or gives errors. After an error many file systems become read-only.
    *("EIO", "ENXIO", "ENODEV", "ENOMEDIUM", "EMEDIUMTYPE", "EROFS"),
    # ext4, XFS and Btrfs found damaged metadata, or a wrong checksum.
    *("EUCLEAN", "EBADMSG"),
    # What Linux makes of the answers of a device, which a sync reports (`blk_status_to_errno`): a bad sector, a
    # time-out, a lost path, a failed target, another host's reservation (in ZFS a wrong checksum), failed protection.
    *("ENODATA", "ETIMEDOUT", "ETIME", "ENOLINK", "EREMOTEIO", "EBADE", "EILSEQ"),
    # The server, or the process of a file system in user space, is gone or does not answer (NFS, SMB, Ceph, FUSE).
    *("ESTALE", "ENOTCONN", "ESHUTDOWN", "ECONNABORTED", "ECONNRESET", "ECONNREFUSED"),
    *("EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH"),
)
"""The errors of file systems that mean: the disk of this directory fails. Every other error ends the process: it is a
lack of the process (EMFILE, ENOMEM), of its rights (EACCES), or a mistake."""
_DISK_FAILURES = frozenset(getattr(errno, name) for name in DISK_FAILURES if hasattr(errno, name))


class SyncFailed(OSError):
    """A sync failed: earlier writes to the file may be lost, and another sync would not report it (fsyncgate).

    So callers that cannot write everything again must not treat it as a lack of space, whatever its errno is.
    """


def is_out_of_space(error: BaseException) -> bool:
    """Return whether an error means that a disk or a quota is full: the operation can be tried again later."""
    return isinstance(error, OSError) and not isinstance(error, SyncFailed) and error.errno in _OUT_OF_SPACE


def may_be_repeated(error: BaseException) -> bool:
    """Return whether an error leaves everything as it was, so that the work can be done again later."""
    return is_out_of_space(error) or isinstance(error, DiskStalled)


def is_disk_failure(error: BaseException) -> bool:
    """Return whether an error comes from the disk of a file; the operation may succeed on another disk."""
    return isinstance(error, OSError) and error.errno in _DISK_FAILURES


def refuses_writes(error: BaseException) -> bool:
    """Return whether an error means that one disk takes no writes, because it is full or fails. Another disk may take
    them."""
    return is_out_of_space(error) or is_disk_failure(error)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _close(fd: int) -> None:
    """Close a file descriptor.

    An error means that the file system lost a write. `sync_data` has reported that, or the write does not matter. On a
    failing disk each close may give an error, also while other directories are used.
    """
    try:
        os.close(fd)
    except OSError as error:
        if error.errno == errno.EBADF:
            raise


def _syncs_file_systems() -> bool:
    if sys.platform != "linux" or not hasattr(_LIBC, "syncfs"):
        return False
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(itertools.takewhile(str.isdigit, minor)))) >= (5, 8)


def _named(error: OSError, path: str) -> OSError:
    """Return an error with the path, if the error lacks one."""
    return error if error.filename is not None else OSError(error.errno, error.strerror, path)


def physical_block_bytes(device: int, sysfs: str = "/sys") -> int | None:
    """Return the physical block size that Linux reports for a disk or a partition, None when it reports none."""
    at = os.path.join(sysfs, "dev", "block", f"{os.major(device)}:{os.minor(device)}")
    for queue in (os.path.join(at, "queue"), os.path.join(os.path.realpath(at), os.pardir, "queue")):
        try:
            with open(os.path.join(queue, "physical_block_size"), encoding="ascii") as file:
                size = int(file.read())
        except (OSError, ValueError):
            continue
        return size if size > 0 else None
    return None


class File:
    """An open file. Offsets are absolute; there is no current position."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write the buffers back to back at `offset`; return the bytes written, which are all of them."""
        start = offset
        try:
            for first in range(0, len(buffers), BUFFERS_PER_CALL_MAX):
                offset += self._write_some(buffers[first : first + BUFFERS_PER_CALL_MAX], offset)
        except OSError as error:
            raise self._change_failed(error) from None
        return offset - start

    def _change_failed(self, error: OSError) -> OSError:
        """Return the error of a change with the path.

        A file is open for reading only if its file system was made read-only (`open`). The error is EROFS then.
        """
        if error.errno in (errno.EBADF, errno.EINVAL):
            with contextlib.suppress(OSError):
                if fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                    return OSError(errno.EROFS, os.strerror(errno.EROFS), self.path)
        return _named(error, self.path)

    def _write_some(self, buffers: Sequence[Buffer], offset: int) -> int:
        wanted = sum(map(len, buffers))
        done = os.pwritev(self._fd, buffers, offset)
        if done < wanted:
            # Linux stops at 2 GiB per call, and at a full disk. The next call shows which it was.
            rest = memoryview(b"".join(buffers))
            while done < wanted:
                done += os.pwrite(self._fd, rest[done:], offset + done)
        return done

    def read(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        try:
            data = os.pread(self._fd, size, offset)
            while len(data) < size:
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _named(error, self.path) from None
        return data

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        """Fill the start of the buffer with cached bytes, possibly none of them; return their number."""
        if _NO_WAIT is None:
            return 0
        try:
            return os.preadv(self._fd, [buffer], offset, _NO_WAIT)
        except OSError as error:
            if error.errno in _NOTHING_AT_ONCE:
                return 0
            raise OSError(error.errno, error.strerror, self.path) from None

    def read_ahead(self, size: int, offset: int) -> None:
        """Let the operating system read ahead, without waiting for it."""
        os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def drop_page_cache(self, start: int, end: int) -> None:
        """Let the operating system drop the bytes [start, end) from its cache, as far as they are durable."""
        os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise _named(error, self.path) from None

    def next_data(self, offset: int) -> int | None:
        """Return the offset of the next bytes, at `offset` or later, that are not a hole; None: there are none.

        A hole reads as zeros; a file system without holes returns `offset`.
        """
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise OSError(error.errno, error.strerror, self.path) from None

    def sync_data(self) -> None:
        """Make everything written to this file durable, with the size that reading it back needs."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise _named(error, self.path) from None

    def preallocate(self, offset: int, size: int) -> None:
        """Reserve space for bytes [offset, offset + size), zero where nothing was written."""
        try:
            os.posix_fallocate(self._fd, offset, size)
        except OSError as error:
            raise self._change_failed(error) from None

    def reserve(self, offset: int, size: int) -> None:
        """Allocate space in the file system for bytes [offset, offset + size) without making the file longer.

        `truncate` frees the space after the new end. If the file system does not support it, nothing happens.
        """
        while _fallocate(self._fd, _FALLOC_FL_KEEP_SIZE, offset, size) != 0:
            code = ctypes.get_errno()
            if code in (errno.EOPNOTSUPP, errno.ENOSYS):
                return
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code), self.path)

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._change_failed(error) from None

    @property
    def descriptor(self) -> int:
        """The file descriptor, for another process. `close` closes it here."""
        return self._fd

    def close(self) -> None:
        _close(self._fd)


class FileSystem:
    """The file system of a directory. `sync` reports all errors since it was opened."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def sync(self) -> None:
        """Make everything durable that was written to the file system before: bytes, sizes and names."""
        try:
            if _LIBC.syncfs(self._fd):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        except OSError as error:
            raise _named(error, self.path) from None

    def close(self) -> None:
        _close(self._fd)


class DirectoryLock:
    """An advisory lock on a directory, held until `release` or the end of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        _close(self._fd)


class ReadOnlyFiles:
    """The real file system for read-only use: no method changes a file or a name. All paths are absolute."""

    def open(self, path: str) -> File:
        """Open an existing file; every attempt to change it through the result raises OSError.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return File(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def read_all(self, path: str) -> bytes:
        """Return the contents of an existing file."""
        file = self.open(path)
        try:
            return file.read(file.size(), 0)
        finally:
            file.close()

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(directory))

    def exists(self, path: str) -> bool:
        """Return whether a file exists. Raises OSError if the disk fails, because that does not mean "no"."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def file_size(self, path: str) -> int | None:
        """Return the length of a file; None: there is no such file."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def is_directory(self, path: str) -> bool:
        """Return whether a directory exists. Raises OSError if the disk fails."""
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def open_key_values(self, path: str, options: KeyValueOptions) -> KeyValues:
        """Open the key-value store in a directory.

        Raises:
            StorageDamaged: the store does not exist, or is damaged.
        """
        # Imported here, because most bookies have no such store and start without it.
        from bookie_service.storage.io.rocks import RocksKeyValues

        return RocksKeyValues(path, options, linked=partial(self._linked, path), is_for_reading=True)

    @contextlib.contextmanager
    def _linked(self, directory: str) -> Iterator[str]:
        """Yield a directory with links to the files of a key-value store, except those that are written anyway."""
        with tempfile.TemporaryDirectory() as links:
            for name in self.names(directory):
                if name not in _KEY_VALUES_SCRIBBLE:
                    os.symlink(os.path.join(directory, name), os.path.join(links, name))
            yield links

    def block_bytes(self, directory: str) -> int:
        """Return the physical block size of a directory's disk: the unit that one write may tear.

        If it is unknown (not a local disk, not Linux), return the size that most disks have.
        """
        return physical_block_bytes(os.stat(directory).st_dev) or _BLOCK_BYTES

    def space(self, directory: str) -> FileSystemSpace:
        """Return how full the file system of a directory is."""
        found = os.statvfs(directory)
        return FileSystemSpace(
            os.stat(directory).st_dev, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        )

    def lock(self, path: str) -> DirectoryLock:
        """Lock a directory against other processes.

        Raises:
            BlockingIOError: another process holds the lock.
        """
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise _named(error, path) from None
        except BaseException:
            _close(fd)
            raise
        return DirectoryLock(fd)


def temporary_path(path: str) -> str:
    """Return where `LocalFiles.replace` writes what a file is to contain."""
    return path + ".new"


def make_private(*, group: bool = False) -> None:
    """Make all new files of this process readable only by its user, or by its user and a group.

    This is for files that do not go through `LocalFiles`: those of an embedded store and of libraries.
    """
    os.umask(0o027 if group else 0o077)


class LocalFiles(ReadOnlyFiles):
    """The real file system. All paths are absolute.

    Args:
        group_id: a group that may read new files.
    """

    # Class attributes, so that subclasses that count or damage have them without calling `__init__`.
    _group_id: int | None = None
    _file_mode, _directory_mode = 0o600, 0o700
    """`_file_mode`, `_directory_mode`: permissions of new ones: others get nothing, a group may read."""

    def __init__(self, group_id: int | None = None) -> None:
        if group_id is not None:
            self._group_id = group_id
            self._file_mode, self._directory_mode = 0o640, 0o2750

    def is_closed(self, directory: str) -> bool:
        """Return whether a directory must not be used (`closed_directories`)."""
        return False

    def other_owner(self, directory: str) -> int | None:
        """Return the user that a directory belongs to, if it is not this one; None: it is, or that cannot be found."""
        try:
            owner = os.stat(directory).st_uid
        except OSError:
            return None
        return None if owner == os.geteuid() else owner

    def protect(self, directory: str) -> str | None:
        """Restrict access to an existing directory; return a line about what was done, or None if nothing was needed.

        A directory that belongs to another user is not changed, and the line says so.
        """
        found = os.stat(directory)
        mode = stat.S_IMODE(found.st_mode)
        is_right_group = self._group_id is None or (found.st_gid == self._group_id and mode & stat.S_ISGID)
        if not mode & 0o777 & ~self._directory_mode and is_right_group:
            return None
        if found.st_uid != os.geteuid():
            return f"directory {directory} has mode {mode:04o} and belongs to user {found.st_uid}: others may read it"
        self._set_access(directory)
        return f"directory {directory} had mode {mode:04o}, and has {self._directory_mode:04o} now"

    def _set_access(self, directory: str) -> None:
        if self._group_id is not None:
            try:
                os.chown(directory, -1, self._group_id)
            except PermissionError as error:
                raise OSError(
                    error.errno, f"this user is not in group {self._group_id} of permittedFileGroup", directory
                ) from None
        # After the owner, because a change of the owner clears the bit that makes new files inherit the group.
        os.chmod(directory, self._directory_mode)

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing. Writing fails if the file system was made read-only.

        Raises:
            FileNotFoundError: there is no such file.
        """
        try:
            return File(os.open(path, os.O_RDWR | os.O_CLOEXEC), path)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        return File(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def create(self, path: str) -> File:
        """Create a file that must not exist yet.

        Raises:
            FileExistsError: it exists.
        """
        return File(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._file_mode), path)

    def replace(self, path: str, data: bytes, *, durably: bool = True) -> None:
        """Make `path` contain exactly `data`, durably. After a crash it contains either that or its old contents.

        If not `durably`, nothing is synced, and after a crash it may also contain part of `data`, or be empty.
        """
        temporary = temporary_path(path)
        with contextlib.suppress(FileNotFoundError):
            self.remove(temporary)
        file = self.create(temporary)
        try:
            file.write([data], 0)
            if durably:
                file.sync_data()
        finally:
            file.close()
        self.rename(temporary, path)
        if durably:
            self.sync_directory(os.path.dirname(path))

    def open_key_values(self, path: str, options: KeyValueOptions) -> KeyValues:
        """Open the key-value store in an existing directory; in an empty directory a store is created.

        Raises:
            StorageDamaged: the store is damaged.
        """
        # Imported here, because most bookies have no such store and start without it.
        from bookie_service.storage.io.rocks import RocksKeyValues

        return RocksKeyValues(
            path,
            options,
            has_space=lambda: self.space(path).free_bytes > 2 * options.write_buffer_bytes,
            linked=partial(self._linked, path),
        )

    def disk_work(self, directories: Sequence[str]) -> DiskWork:
        """Return what does work for several ledger directories at the same time, or `InTurn` for one directory."""
        return DiskThreads(directories) if len(directories) > 1 else InTurn()

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. The removal is not durable."""
        os.rmdir(path)

    def make_directory(self, path: str) -> None:
        """Create a directory durably, together with missing ones above it. It may exist already."""
        missing = []
        while not self.is_directory(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self.create_directory(directory)
            self.sync_directory(os.path.dirname(directory))

    def open_file_system(self, path: str) -> FileSystem | None:
        """Return the file system of a directory; None: a sync of it may hide an error.

        Linux reports errors of background writes since version 5.8.
        """
        if not _syncs_file_systems():
            return None
        return FileSystem(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)

    def create_directory(self, path: str) -> None:
        """Create a directory that must not exist, in an existing one. Its name is not durable."""
        os.mkdir(path, self._directory_mode)
        if self._group_id is not None:
            self._set_access(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                os.fsync(fd)
            except OSError as error:
                raise _named(error, path) from None
        finally:
            _close(fd)
