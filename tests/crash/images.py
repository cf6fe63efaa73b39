"""What a crash may leave of a simulated disk: six policies, each a way in which un-synced changes come through or not.

Durable bytes and durable names always survive. A policy decides about everything else:

    KEPT       all of it: the process was killed. It is still not durable; a second crash may take it
    LOST       nothing
    TORN       all but the last write, of which a prefix survives, cut at a sector or at any byte
    REORDERED  a random part: writes fall into sectors of 512 bytes, and each sector, size and name survives by itself
    ZEROED     sizes and names, but no bytes: where a file grew it holds zeros
    RENAMED    names without bytes, bytes without names, or some leading names with some of the bytes
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from tests.crash.simulated_files import Change, Directory, Inode, SimulatedDisk, apply_names

SECTOR_BYTES = 512


class Loss(enum.Enum):
    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"
    REORDERED = "reordered"
    ZEROED = "zeroed"
    RENAMED = "renamed"


VARIANTS = {Loss.TORN: 2, Loss.REORDERED: 2, Loss.RENAMED: 2}
"""How many images a policy with randomness makes at each boundary."""

Changes = Callable[[Inode], list[Change]]
"""Which changes of a file survive."""
NameChange = dict[str, Inode | Directory | None]
NameChanges = Callable[[Directory], list[NameChange]]
"""Which changes of a directory's names survive."""


def crash_image(disk: SimulatedDisk, loss: Loss, random: Random) -> SimulatedDisk:
    """Return the disk as a crash now may leave it; `disk` itself is not changed."""
    if loss is Loss.KEPT:
        return SimulatedDisk(_Copy(None, None).directory(disk.root))
    if loss is Loss.LOST:
        return _image(disk, _none, _no_names)
    if loss is Loss.TORN:
        return _image(disk, _torn(disk, random), _all_names)
    if loss is Loss.ZEROED:
        return _image(disk, _sizes_only, _all_names)
    if loss is Loss.REORDERED:
        share = random.choice((0.2, 0.5, 0.8))
        return _image(disk, lambda inode: _some_sectors(inode, share, random), lambda names: _some(names, 0.5, random))
    mode = random.randrange(3)
    if mode == 0:
        return _image(disk, _none, _all_names)
    if mode == 1:
        return _image(disk, _all, _no_names)
    return _image(
        disk,
        lambda inode: [change for change in inode.pending if random.random() < 0.5],
        lambda names: names.pending[: random.randint(0, len(names.pending))],
    )


def every_image(disk: SimulatedDisk, random: Random) -> Iterator[tuple[str, SimulatedDisk]]:
    """Yield (what came through, image) for each policy, and for each un-synced file and name: it alone is lost, it
    alone survives. What depends on a single sync that is missing does not depend on chance then."""
    for loss in Loss:
        for _ in range(VARIANTS.get(loss, 1)):
            yield loss.value, crash_image(disk, loss, random)
    files = {path: inode for path, inode in disk.visible_files().items() if inode.pending}
    changes = [change for directory in disk.directories() for change in directory.pending]
    if len(files) + len(changes) < 2:
        return
    for path, inode in files.items():
        yield f"only {path} lost", _image(disk, _all_but(inode), _all_names)
        yield f"only {path} kept", _image(disk, _only(inode), _all_names)
    for change in changes:
        what = "name " + ", ".join(change)
        yield f"only the {what} lost", _image(disk, _all, _all_names_but(change))
        yield f"only the {what} kept", _image(disk, _all, _only_name(change))


def images_of_crashes(disk: SimulatedDisk, act: Callable[[], object]) -> Iterator[tuple[str, SimulatedDisk]]:
    """Yield what a crash leaves at each operation of `act`, and after it, under every policy of loss."""
    random = Random(1)
    images: list[tuple[str, SimulatedDisk]] = []

    def crash(operation: str, path: str) -> None:
        images.extend((f"{loss.value} before {operation} {path}", crash_image(disk, loss, random)) for loss in Loss)

    disk.before_operation = crash
    act()
    crash("nothing", "at the end")
    disk.before_operation = None
    return iter(images)


class Fingerprint(NamedTuple):
    """Two numbers that differ, but for chance: when a process sees another disk, when a crash may leave another one."""

    seen: int
    durable: int


def fingerprint(disk: SimulatedDisk) -> Fingerprint:
    """Return what tells a disk from others."""
    return _fingerprint(disk.root)


def _fingerprint(directory: Directory) -> Fingerprint:
    seen: list[tuple[str, int]] = []
    durable: list[object] = []
    if directory.pending:
        durable += [*sorted(directory.durable), *map(tuple, directory.pending)]
    for name, node in sorted(directory.cached.items(), key=lambda item: item[0]):
        if isinstance(node, Directory):
            found = _fingerprint(node)
        else:
            content = hash(bytes(node.cached))
            pending = tuple([change[1:] for change in node.pending])
            found = Fingerprint(content, hash((bytes(node.durable), pending)) if pending else content)
        seen.append((name, found.seen))
        durable.append((name, found.durable))
    return Fingerprint(hash(tuple(seen)), hash(tuple(durable)))


class _Copy:
    """Copies a tree of nodes; a node that has two names stays one. None as choice keeps everything pending."""

    def __init__(self, changes: Changes | None, names: NameChanges | None) -> None:
        self._changes = changes
        self._names = names
        self._made: dict[int, Inode | Directory] = {}

    def directory(self, old: Directory) -> Directory:
        new = Directory()
        if self._names is None:
            new.durable = {name: self._node(node) for name, node in old.durable.items()}
            new.cached = {name: self._node(node) for name, node in old.cached.items()}
            new.pending = [
                {name: None if node is None else self._node(node) for name, node in change.items()}
                for change in old.pending
            ]
            return new
        surviving = dict(old.durable)
        if old.pending:
            for change in self._names(old):
                apply_names(surviving, change)
        new.durable = {name: self._node(node) for name, node in surviving.items()}
        new.cached = dict(new.durable)
        return new

    def _node(self, node: Inode | Directory) -> Inode | Directory:
        made = self._made.get(id(node))
        if made is None:
            made = self.directory(node) if isinstance(node, Directory) else self._inode(node)
            self._made[id(node)] = made
        return made

    def _inode(self, old: Inode) -> Inode:
        new = Inode(old.durable)
        if self._changes is None:
            new.cached = bytearray(old.cached)
            new.pending = list(old.pending)
        elif old.pending:
            for change in self._changes(old):
                change.apply(new.durable)
            new.cached = bytearray(new.durable)
        return new


def _image(disk: SimulatedDisk, changes: Changes, names: NameChanges) -> SimulatedDisk:
    return SimulatedDisk(_Copy(changes, names).directory(disk.root))


def _none(inode: Inode) -> list[Change]:
    return []


def _all(inode: Inode) -> list[Change]:
    return inode.pending


def _no_names(directory: Directory) -> list[NameChange]:
    return []


def _all_but(lost: Inode) -> Changes:
    return lambda inode: [] if inode is lost else inode.pending


def _only(kept: Inode) -> Changes:
    return lambda inode: inode.pending if inode is kept else []


def _all_names_but(lost: NameChange) -> NameChanges:
    return lambda directory: [change for change in directory.pending if change is not lost]


def _only_name(kept: NameChange) -> NameChanges:
    return lambda directory: [change for change in directory.pending if change is kept]


def _all_names(directory: Directory) -> list[NameChange]:
    return directory.pending


def _some(directory: Directory, share: float, random: Random) -> list[NameChange]:
    return [change for change in directory.pending if random.random() < share]


def _sizes_only(inode: Inode) -> list[Change]:
    return [Change(0, len(inode.cached), None)]


def _torn(disk: SimulatedDisk, random: Random) -> Changes:
    pending = [change for inode in disk.visible_files().values() for change in inode.pending if change.data]
    last = max((change.order for change in pending), default=-1)
    at_sector = random.random() < 0.5

    def changes(inode: Inode) -> list[Change]:
        return [_cut(change, at_sector, random) if change.order == last else change for change in inode.pending]

    return changes


def _cut(change: Change, at_sector: bool, random: Random) -> Change:
    if not change.data:
        return change
    size = random.randrange(len(change.data))
    if at_sector:
        size = max(0, (change.offset + size) // SECTOR_BYTES * SECTOR_BYTES - change.offset)
    return change._replace(data=change.data[:size])


def _some_sectors(inode: Inode, share: float, random: Random) -> list[Change]:
    pieces: list[Change] = []
    for change in inode.pending:
        if change.data is None:
            pieces.append(change)
            continue
        at = 0
        while at < len(change.data):
            end = at + SECTOR_BYTES - (change.offset + at) % SECTOR_BYTES
            pieces.append(change._replace(offset=change.offset + at, data=change.data[at:end]))
            at = end
    return [piece for piece in pieces if random.random() < share]
