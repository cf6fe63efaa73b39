"""Decides when a disk is full, and what the bookie still accepts then. Pure: sizes come in, a decision goes out.

A directory is full when more than `full_share` of its file system is used, and stays full until less than `low_share`
is used. The gap keeps a bookie from switching back and forth. The bookie accepts ordinary adds while at least one
ledger directory and every journal directory have room: an entry log can go to any ledger directory with room, but each
ledger has one journal. Entries in memory that are not in an entry log yet count as used space.

A read-only bookie still serves reads and fences. It also serves adds of high priority (those of recovery) while enough
space is left for them.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bkspark.errors import ConfigurationError
from bkspark.options import BYTES_MAX, bounded, check

LOOK_BYTES_MIN = 256 * 1024
"""Bytes that may always be added between two checks of the disks, even if there is little room."""
_RESERVE_DIVISOR = 4
"""Without a configured minimum, a quarter of the space above `full_share` must stay free, or Apache's default if that
is less."""
_ALIKE_DIVISOR = 16
_INDEX_BYTES_MIN = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileSystemSpace:
    """The file system of a directory. `device` identifies it; `total_bytes` is its size.

    free_bytes: space that this process may still use; space reserved for root does not count.
    """

    device: int
    total_bytes: int
    free_bytes: int

    @property
    def used_share(self) -> float:
        """The used share, 0 to 1; 1 when the size is 0."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


UNKNOWN_SPACE = FileSystemSpace(-1, 0, 0)
"""A disk that does not answer. It counts as full, and as a disk of its own."""


class DiskRoom(enum.IntEnum):
    """How much room the disks of the entry logs have. A greater value means more room."""

    FULL = 0
    SCARCE = 1
    """The used share is above diskUsageWarnThreshold."""
    ENOUGH = 2


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Shares of a file system, 0 to 1, and bytes that must be free (None: see `minimum`).

    any_full: one full ledger directory makes the bookie read-only.
    high_priority_bytes_min: a read-only bookie takes adds of high priority only if this much is free in one ledger
        directory and in all journal directories.
    new_index_bytes_min: the same, for one ledger directory: such an add may need a new index file.
    new_log_bytes_min: if all ledger directories are full, new entry logs go to those with this much free space.
    log_bytes_max: the size of an entry log.
    """

    full_share: float = bounded(0.95, 0.0, 1.0)
    """Above this used share a directory takes no entries."""
    warn_share: float = bounded(0.90, 0.0, 1.0)
    """Above it the bookie warns."""
    low_share: float = bounded(0.95, 0.0, 1.0)
    """A full directory is full until its used share is below this."""
    any_full: bool = False
    high_priority_bytes_min: int | None = bounded(None, 0, BYTES_MAX, "bytes")
    new_index_bytes_min: int | None = bounded(None, 0, BYTES_MAX, "bytes")
    new_log_bytes_min: int | None = bounded(None, 0, BYTES_MAX, "bytes")
    log_bytes_max: int = bounded(1024 * 1024 * 1024, 1, BYTES_MAX, "bytes")

    def __post_init__(self) -> None:
        check(self)
        if not 0 < self.full_share < 1:
            raise ConfigurationError(f"diskUsageThreshold {self.full_share:g} must lie between 0 and 1")
        for key, share in (("diskUsageWarnThreshold", self.warn_share), ("diskUsageLwmThreshold", self.low_share)):
            if not 0 <= share <= self.full_share:
                raise ConfigurationError(f"{key} {share:g} must not be above diskUsageThreshold {self.full_share:g}")

    def minimum(self, configured: int | None, most: int, space: FileSystemSpace) -> int:
        """Return how many bytes must be free: `configured` if it is set, otherwise `most` or less on a small disk."""
        if configured is not None:
            return configured
        return min(most, int((1 - self.full_share) * space.total_bytes) // _RESERVE_DIVISOR)


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The result of a check of the disks: the space of each directory.

    waiting_bytes: bytes of accepted entries that are not in an entry log yet.
    is_stuck: a flush found no space and waits for it.
    """

    ledgers: Mapping[str, FileSystemSpace]
    """By ledger directory. `journals`: by journal directory."""
    journals: Mapping[str, FileSystemSpace]
    waiting_bytes: int = 0
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class DiskDecision:
    """What the disks allow.

    full, warned: directories. A full directory is not in `warned`.
    refusal: why ordinary adds are refused; "": they are accepted.
    takes_recovery_adds: adds of high priority are accepted. Always true if ordinary adds are.
    room_bytes: how many bytes of adds may arrive before the next check.
    """

    full: frozenset[str] = frozenset()
    warned: frozenset[str] = frozenset()
    refusal: str = ""
    takes_recovery_adds: bool = True
    room_bytes: int = LOOK_BYTES_MIN


def decide(limits: DiskLimits, before: DiskDecision, facts: DiskFacts) -> DiskDecision:
    """Return what the disks allow now. `before`: the last decision, or DiskDecision() at first."""
    spaces = {**facts.ledgers, **facts.journals}
    full = frozenset(path for path, space in spaces.items() if _is_full(limits, space, path in before.full))
    warned = frozenset(path for path, space in spaces.items() if space.used_share > limits.warn_share) - full
    room = _room(limits, facts.ledgers, full) - facts.waiting_bytes
    refusal = _refusal(limits, facts, full, room)
    return DiskDecision(
        full,
        warned,
        refusal,
        not refusal or _has_reserve(limits, facts),
        # Half of the room, because journal and entry log may share a disk, and then each byte is written twice.
        max(LOOK_BYTES_MIN, min([room, *(_margin(limits, space) for space in facts.journals.values())]) // 2),
    )


def directory_for_log(
    limits: DiskLimits, spaces: Mapping[str, FileSystemSpace], log_id: int, full: Collection[str] = ()
) -> str:
    """Return the ledger directory for a new entry log: the one with the most free space among those with room.

    Directories with nearly equal space take turns.
    """
    fit = directories_with_room(limits, spaces, full)
    most = max(spaces[path].free_bytes for path in fit)
    little = min(limits.log_bytes_max, most // _ALIKE_DIVISOR)
    alike = [path for path in fit if most - spaces[path].free_bytes <= little]
    return alike[log_id % len(alike)]


def directories_with_room(
    limits: DiskLimits, spaces: Mapping[str, FileSystemSpace], full: Collection[str] = ()
) -> list[str]:
    """Return the ledger directories that new entries may go to.

    Full directories (`full`: at the last check) are left out. If all are full, only those with less than
    `new_log_bytes_min` are left out. If all have less, none is left out.
    """
    fit = [path for path, space in spaces.items() if not _is_full(limits, space, path in full)]
    fit = fit or [
        path
        for path, space in spaces.items()
        if space.free_bytes >= limits.minimum(limits.new_log_bytes_min, limits.log_bytes_max, space)
    ]
    return fit or list(spaces)


def _is_full(limits: DiskLimits, space: FileSystemSpace, was_full: bool) -> bool:
    return space.used_share > limits.full_share or (was_full and space.used_share >= limits.low_share)


def _margin(limits: DiskLimits, space: FileSystemSpace) -> int:
    """Return how many bytes may arrive until a directory is full."""
    return max(0, int(space.free_bytes - (1 - limits.full_share) * space.total_bytes))


def _room(limits: DiskLimits, ledgers: Mapping[str, FileSystemSpace], full: Collection[str]) -> int:
    """Return how many bytes of entries may arrive until all ledger directories are full; a shared disk counts once."""
    margins = {space.device: _margin(limits, space) for path, space in ledgers.items() if path not in full}
    return sum(margins.values())


def _refusal(limits: DiskLimits, facts: DiskFacts, full: Collection[str], room: int) -> str:
    journals = sorted(full & facts.journals.keys())
    ledgers = sorted(full & facts.ledgers.keys())
    if facts.is_stuck:
        return "a flush found no space"
    if journals:
        return f"journal directory {journals[0]} is full"
    if len(ledgers) == len(facts.ledgers):
        return f"all ledger directories are full ({', '.join(ledgers)})"
    if limits.any_full and ledgers:
        return f"ledger directory {ledgers[0]} is full, and readOnlyModeOnAnyDiskFullEnabled is true"
    if room < 0:
        return "the entries that wait to be written to entry logs will fill all ledger directories"
    return ""


def _has_reserve(limits: DiskLimits, facts: DiskFacts) -> bool:
    """Return whether enough space is left for adds of high priority."""

    def has(configured: int | None, most: int, space: FileSystemSpace) -> bool:
        return space is not UNKNOWN_SPACE and space.free_bytes >= limits.minimum(configured, most, space)

    ledgers, journals = facts.ledgers.values(), facts.journals.values()
    return (
        any(has(limits.high_priority_bytes_min, limits.log_bytes_max, space) for space in ledgers)
        and all(has(limits.high_priority_bytes_min, limits.log_bytes_max, space) for space in journals)
        and any(has(limits.new_index_bytes_min, _INDEX_BYTES_MIN, space) for space in ledgers)
    )
