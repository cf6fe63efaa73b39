"""Decides when a disk is full, and what the bookie may then still accept. Pure: sizes come in, a decision goes out.

A directory is full when more than `full_share` of its file system is used, and stays so until less than `low_share` is;
the gap keeps a bookie from switching back and forth. The bookie accepts ordinary adds while at least one ledger
directory and every journal directory are not full: an entry log goes to any ledger directory with room, but a ledger
has one journal. Entries in memory that are not yet in an entry log already count as used space.

A read-only bookie still serves reads, fences and, while enough space is left for them, adds of high priority (those of
recovery).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bkspark.errors import ConfigurationError
from bkspark.options import BYTES_MAX, bounded, check

LOOK_BYTES_MIN = 256 * 1024
"""Bytes that may be added between two checks of the disks, however little room there is."""
_RESERVE_DIVISOR = 4
"""Without a configured minimum, a quarter of the space above `full_share` is kept free, if that is less than
Apache's."""
_ALIKE_DIVISOR = 16
_INDEX_BYTES_MIN = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileSystemSpace:
    """The file system of a directory: `device` identifies it; sizes in bytes.

    free_bytes: space that this process may still use, without space reserved for root.
    """

    device: int
    total_bytes: int
    free_bytes: int

    @property
    def used_share(self) -> float:
        """The used share, 0 to 1; 1 when the size is 0."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


UNKNOWN_SPACE = FileSystemSpace(-1, 0, 0)
"""A disk that does not answer: it counts as full, and as a separate disk."""


class DiskRoom(enum.IntEnum):
    """How much room the disks of the entry logs have; more is greater."""

    FULL = 0
    SCARCE = 1
    """Above diskUsageWarnThreshold."""
    ENOUGH = 2


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Shares of a file system, 0 to 1, and bytes that must be free (None: see `minimum`).

    any_full: one full ledger directory makes the bookie read-only, whatever the others have.
    high_priority_bytes_min: needed in one ledger directory and all journal directories, for adds of high priority to a
        read-only bookie.
    new_index_bytes_min: needed in one ledger directory, for the same: such an add may need a new index file.
    new_log_bytes_min: if all directories are full, new entry logs go to those with this much space, if there are any.
    log_bytes_max: the size of an entry log.
    """

    full_share: float = bounded(0.95, 0.0, 1.0)
    warn_share: float = bounded(0.90, 0.0, 1.0)
    low_share: float = bounded(0.95, 0.0, 1.0)
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
        """Return the bytes that must be free: the configured number, otherwise `most`, but less than a full disk keeps
        free."""
        if configured is not None:
            return configured
        return min(most, int((1 - self.full_share) * space.total_bytes) // _RESERVE_DIVISOR)


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The result of a check of the disks; spaces by directory.

    waiting_bytes: bytes of entries that are acknowledged, or will be, and are not yet in an entry log.
    is_stuck: a flush found no space and waits for it.
    """

    ledgers: Mapping[str, FileSystemSpace]
    journals: Mapping[str, FileSystemSpace]
    waiting_bytes: int = 0
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class DiskDecision:
    """What the disks allow.

    full, warned: directories; a full directory is not in `warned`.
    refusal: why ordinary adds are refused, "" when they are accepted.
    takes_recovery_adds: adds of high priority are accepted; always true when ordinary adds are.
    room_bytes: how many bytes of adds may arrive before the next check.
    """

    full: frozenset[str] = frozenset()
    warned: frozenset[str] = frozenset()
    refusal: str = ""
    takes_recovery_adds: bool = True
    room_bytes: int = LOOK_BYTES_MIN


def decide(limits: DiskLimits, before: DiskDecision, facts: DiskFacts) -> DiskDecision:
    """Return what the disks allow now; `before` is the last decision, at first DiskDecision()."""
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
        # Half of the room: journal and entry log may share a disk, and then each byte is written twice.
        max(LOOK_BYTES_MIN, min([room, *(_margin(limits, space) for space in facts.journals.values())]) // 2),
    )


def directory_for_log(
    limits: DiskLimits, spaces: Mapping[str, FileSystemSpace], log_id: int, full: Collection[str] = ()
) -> str:
    """Return which ledger directory a new entry log goes to: of those with room the one with the most free space.

    Directories that differ little take turns.
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

    Full directories (`full`: as of the last check) are excluded; if all are full, those with less than
    `new_log_bytes_min` are excluded; if all have less, no directory is.
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
        return "what waits to be written to entry logs will fill all ledger directories"
    return ""


def _has_reserve(limits: DiskLimits, facts: DiskFacts) -> bool:
    """Return whether enough is left for adds of high priority."""

    def has(configured: int | None, most: int, space: FileSystemSpace) -> bool:
        return space.free_bytes >= limits.minimum(configured, most, space)

    ledgers, journals = facts.ledgers.values(), facts.journals.values()
    return (
        any(has(limits.high_priority_bytes_min, limits.log_bytes_max, space) for space in ledgers)
        and all(has(limits.high_priority_bytes_min, limits.log_bytes_max, space) for space in journals)
        and any(has(limits.new_index_bytes_min, _INDEX_BYTES_MIN, space) for space in ledgers)
    )
