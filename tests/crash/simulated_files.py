"""A disk in memory that knows what is durable and what is only cached, with the interface of `storage.io.files`.

Every file has a durable state, a cached state (what a living process reads) and the changes between the two; so has
every directory, for its names. `sync_data` makes a file's bytes and size durable, never its name; `sync_directory`
makes the names in one directory durable, never their bytes. `images.crash_image` makes of any moment the disks that a
crash may leave.

`before_operation(operation, path)` is called before each change: the moments between two changes are all the moments at
which a crash can come. `fault(operation, path)` may fail any call, reads too. A write that fails has written its first
half; a sync that fails loses what it should have saved, and a later sync does not bring it back (Linux does the same).

After a kill alone the cached state is all there, yet still not durable: a power cut may follow.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.files import Buffer, File, FileSystem, LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from tests.crash.late_disks import LateDisks
from tests.crash.simulated_key_values import SimulatedKeyValues

OperationHook = Callable[[str, str], None]
Fault = Callable[[str, str], OSError | None]


class Change(NamedTuple):
    """One change of a file: bytes at an offset, or a new size (`data` None); `order` is its place among all changes.

    A size that `grows_only` never makes the file smaller.
    """

    order: int
    offset: int
    data: bytes | None
    grows_only: bool = False

    def apply(self, content: bytearray) -> None:
        """Change the content as this says; a hole is zeros. Writing no bytes changes nothing, wherever."""
        if self.data == b"":
            return
        end = self.offset if self.data is None else self.offset + len(self.data)
        if end > len(content):
            content.extend(bytes(end - len(content)))
        elif self.data is None and not self.grows_only:
            del content[end:]
        if self.data is not None:
            content[self.offset : end] = self.data


class Inode:
    """A file's bytes."""

    __slots__ = ("cached", "durable", "pending")

    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.cached = bytearray(content)
        self.pending: list[Change] = []


Names = dict[str, "Inode | Directory"]


class Directory:
    """The names in a directory; each pending change sets some of them at once, None takes one away."""

    __slots__ = ("cached", "durable", "pending")

    def __init__(self) -> None:
        self.durable: Names = {}
        self.cached: Names = {}
        self.pending: list[dict[str, Inode | Directory | None]] = []

    def change(self, names: dict[str, Inode | Directory | None]) -> None:
        self.pending.append(names)
        apply_names(self.cached, names)


def apply_names(to: Names, names: dict[str, Inode | Directory | None]) -> None:
    """Set or take away names."""
    for name, node in names.items():
        if node is None:
            to.pop(name, None)
        else:
            to[name] = node


def apply_pending(node: Inode | Directory) -> None:
    """Bring what is durable to what is cached; the caller forgets what was pending."""
    if isinstance(node, Inode):
        for change in node.pending:
            change.apply(node.durable)
    else:
        for names in node.pending:
            apply_names(node.durable, names)


_EMPTY_DISK = FileSystemSpace(1, 1 << 40, 1 << 40)


class SimulatedDisk:
    """The state of one disk. Any number of `SimulatedFiles`, one after the other, may use it."""

    def __init__(self, root: Directory | None = None) -> None:
        self.root = root or Directory()
        self.operations = 0
        self.before_operation: OperationHook | None = None
        self.fault: Fault | None = None
        self.lateness = 0.0
        """How likely a ledger directory is late with a piece of work, if there are several."""
        self.spaces: dict[str, FileSystemSpace] = {}
        """How full the file system at a path is, and at all below it; others are empty."""

    def begin(self, operation: str, path: str) -> int:
        """Announce a change and return its order; raise what `fault` says."""
        if self.before_operation is not None:
            self.before_operation(operation, path)
        self.check(operation, path)
        self.operations += 1
        return self.operations

    def check(self, operation: str, path: str) -> None:
        """Raise what `fault` says about a call."""
        if self.fault is not None:
            error = self.fault(operation, path)
            if error is not None:
                raise error

    def find(self, path: str) -> Inode | Directory | None:
        """Return what a living process sees at an absolute path."""
        node: Inode | Directory | None = self.root
        for name in path.split("/"):
            if name:
                node = node.cached.get(name) if isinstance(node, Directory) else None
        return node

    def directory(self, path: str, asked: str | None = None) -> Directory:
        """Return a directory; when there is none, the error names `asked`."""
        node = self.find(path)
        if not isinstance(node, Directory):
            raise os_error(errno.ENOENT if node is None else errno.ENOTDIR, asked or path)
        return node

    def visible_files(self) -> dict[str, Inode]:
        """Return all files by path, as a living process sees them."""
        found: dict[str, Inode] = {}
        for at, directory in self._walk():
            for name, node in directory.cached.items():
                if isinstance(node, Inode):
                    found[f"{at}/{name}"] = node
        return found

    def directories(self) -> list[Directory]:
        """Return all directories, as a living process sees them."""
        return [directory for _, directory in self._walk()]

    def _walk(self) -> Iterator[tuple[str, Directory]]:
        todo: list[tuple[str, Directory]] = [("", self.root)]
        while todo:
            at, directory = todo.pop()
            todo += [(f"{at}/{name}", node) for name, node in directory.cached.items() if isinstance(node, Directory)]
            yield at, directory


def os_error(code: int, path: str) -> OSError:
    """Return the error that the operating system raises: OSError picks the subclass."""
    return OSError(code, os.strerror(code), path)


class SimulatedFile(File):
    """An open file of a simulated disk; it lives on when its name goes."""

    __slots__ = ("_disk", "_inode", "_is_open")

    def __init__(self, disk: SimulatedDisk, inode: Inode, path: str) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._is_open = True

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        try:
            order = self._begin("write")
        except OSError:
            self._change(Change(self._disk.operations, offset, data[: len(data) // 2]))
            raise
        self._change(Change(order, offset, data))
        return len(data)

    def read(self, size: int, offset: int) -> bytes:
        assert self._is_open, f"{self.path} is used after close"
        self._disk.check("read", self.path)
        return bytes(self._inode.cached[offset : offset + size])

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        data = self.read(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def drop_page_cache(self, start: int, end: int) -> None:
        """A simulated disk forgets what is not durable when it crashes, and only then."""
        assert self._is_open, f"{self.path} is used after close"

    def size(self) -> int:
        self._disk.check("stat", self.path)
        return len(self._inode.cached)

    def next_data(self, offset: int) -> int | None:
        self._disk.check("read", self.path)
        return offset if offset < len(self._inode.cached) else None

    def sync_data(self) -> None:
        try:
            self._begin("sync_data")
        except OSError:
            self._inode.pending.clear()
            raise
        apply_pending(self._inode)
        self._inode.pending.clear()

    def preallocate(self, offset: int, size: int) -> None:
        self._change(Change(self._begin("preallocate"), offset + size, None, grows_only=True))

    def reserve(self, offset: int, size: int) -> None:
        self._begin("reserve")

    def truncate(self, size: int) -> None:
        self._change(Change(self._begin("truncate"), size, None))

    def close(self) -> None:
        self._is_open = False

    def _begin(self, operation: str) -> int:
        assert self._is_open, f"{self.path} is used after close"
        return self._disk.begin(operation, self.path)

    def _change(self, change: Change) -> None:
        self._inode.pending.append(change)
        change.apply(self._inode.cached)


class SimulatedFileSystem(FileSystem):
    """A file system that holds one directory with all below it, so that its sync promises no more than that."""

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self.path = path
        self._disk = disk

    def sync(self) -> None:
        """Make all below the directory durable; when it fails, nothing of it ever will be."""
        try:
            self._disk.begin("sync_file_system", self.path)
        except OSError:
            self._settle(lambda node: None)
            raise
        self._settle(apply_pending)

    def close(self) -> None:
        """Nothing to give back."""

    def _settle(self, apply: Callable[[Inode | Directory], None]) -> None:
        todo: list[Inode | Directory] = [self._disk.directory(self.path)]
        while todo:
            node = todo.pop()
            apply(node)
            node.pending.clear()
            if isinstance(node, Directory):
                todo += node.cached.values()


@dataclass(frozen=True, slots=True)
class SimulatedLock:
    """A directory's lock; one per `SimulatedFiles`, which stands for a process."""

    held: set[str]
    path: str

    def release(self) -> None:
        self.held.discard(self.path)


class SimulatedFiles(LocalFiles):
    """The interface of `LocalFiles` on a simulated disk; what is composed of other calls there is so here."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self._locked: set[str] = set()

    def open(self, path: str) -> File:
        self.disk.check("open", path)
        node = self.disk.find(path)
        if not isinstance(node, Inode):
            raise os_error(errno.ENOENT if node is None else errno.EISDIR, path)
        return SimulatedFile(self.disk, node, path)

    def create(self, path: str) -> File:
        inode = Inode()
        self._link("create", path, inode)
        return SimulatedFile(self.disk, inode, path)

    def rename(self, old: str, new: str) -> None:
        directory, name = os.path.split(old)
        assert os.path.dirname(new) == directory, "a rename that is one change of one directory"
        names = self.disk.directory(directory, old)
        if name not in names.cached:
            raise os_error(errno.ENOENT, old)
        self.disk.begin("rename", new)
        names.change({name: None, os.path.basename(new): names.cached[name]})

    def remove(self, path: str) -> None:
        directory, name = os.path.split(path)
        names = self.disk.directory(directory, path)
        if name not in names.cached:
            raise os_error(errno.ENOENT, path)
        self.disk.begin("remove", path)
        names.change({name: None})

    def names(self, directory: str) -> list[str]:
        self.disk.check("names", directory)
        return sorted(self.disk.directory(directory).cached)

    def exists(self, path: str) -> bool:
        self.disk.check("stat", path)
        return self.disk.find(path) is not None

    def file_size(self, path: str) -> int | None:
        self.disk.check("stat", path)
        inode = self.disk.find(path)
        return len(inode.cached) if isinstance(inode, Inode) else None

    def is_directory(self, path: str) -> bool:
        self.disk.check("stat", path)
        return isinstance(self.disk.find(path), Directory)

    def create_directory(self, path: str) -> None:
        self._link("create_directory", path, Directory())

    def remove_directory(self, path: str) -> None:
        assert not self.disk.directory(path).cached, "only an empty directory can be removed"
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        names = self.disk.directory(path)
        self.disk.begin("sync_directory", path)
        apply_pending(names)
        names.pending.clear()

    def open_key_values(self, path: str, options: KeyValueOptions) -> SimulatedKeyValues:
        return SimulatedKeyValues(self, path)

    def disk_work(self, directories: Sequence[str]) -> LateDisks:
        is_alone = len(directories) == 1
        return LateDisks(lambda: 0.0 if is_alone else self.disk.lateness, Random(self.disk.operations))

    def space(self, directory: str) -> FileSystemSpace:
        self.disk.check("space", directory)
        self.disk.directory(directory)
        paths = [path for path in self.disk.spaces if f"{directory}/".startswith(f"{path}/")]
        return self.disk.spaces[max(paths, key=len)] if paths else _EMPTY_DISK

    def block_bytes(self, directory: str) -> int:
        """A small one: more groups fit into the small journals of the scripts."""
        return 512

    def open_file_system(self, path: str) -> SimulatedFileSystem:
        self.disk.check("open", path)
        return SimulatedFileSystem(self.disk, path)

    def lock(self, path: str) -> SimulatedLock:
        self.disk.check("open", path)
        self.disk.directory(path)
        if path in self._locked:
            raise os_error(errno.EAGAIN, path)
        self._locked.add(path)
        return SimulatedLock(self._locked, path)

    def _link(self, operation: str, path: str, node: Inode | Directory) -> None:
        directory, name = os.path.split(path)
        names = self.disk.directory(directory, path)
        if name in names.cached:
            raise os_error(errno.EEXIST, path)
        self.disk.begin(operation, path)
        names.change({name: node})
