"""What a bookie's disks allow now, found by checking them. For the event loop.

The disks are checked at intervals, and also after as many added bytes as could fill them: a fast writer can fill a
small disk within the interval.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bkspark.options import YEARS_S, bounded, check
from bookie_service.storage.disks import (
    UNKNOWN_SPACE,
    DiskDecision,
    DiskFacts,
    DiskLimits,
    DiskRoom,
    FileSystemSpace,
    decide,
)
from bookie_service.storage.io.files import ReadOnlyFiles

logger = logging.getLogger(__name__)

_SPACE_S = 1.0


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """How the disks are watched. Without `read_only_mode` the process ends instead of becoming read-only."""

    limits: DiskLimits = field(default_factory=DiskLimits)
    interval_s: float = bounded(10.0, 0.001, YEARS_S, "seconds")
    """The time between two checks of the disks."""
    read_only_mode: bool = True
    is_forced_read_only: bool = False
    """The bookie is read-only whatever its disks say."""

    def __post_init__(self) -> None:
        check(self)


class DiskWatch:
    """Keeps the last decision about the disks. Calls `on_change()` when the bookie becomes read-only or writable."""

    def __init__(
        self,
        files: ReadOnlyFiles,
        ledger_directories: Sequence[str],
        journal_directories: Sequence[str],
        options: DiskOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._ledgers = ledger_directories
        """The `current` directories of all ledger directories. `_journals`: the same of the journals."""
        self._journals = journal_directories
        self._limits = options.limits
        """When a directory is full, and the bookie read-only. Constant."""
        self._is_forced = options.is_forced_read_only
        """`DiskOptions.is_forced_read_only`. Constant."""
        self._clock = clock
        self._space: FileSystemSpace | None = None
        """The space of the ledger directories as last measured; None: not yet."""
        self._space_until = 0.0
        """Until when `_space` is used, by `clock`."""
        self.verdict = DiskDecision()
        """The last decision about the disks. Replaced by `check_now`."""
        self._operators_reason = ""
        """Why an operator wants the bookie read-only; empty: no operator does."""
        self._plans_reason = ""
        """Why a plan wants the bookie read-only; empty: no plan does."""
        self.usage: dict[str, float] = {}
        """How full each directory was at the last check, in percent."""
        self.is_read_only = self._is_forced
        """Whether ordinary adds are refused. Changed by `check_now` alone."""
        self.is_stuck = False
        """Whether a flush found no space and waits for it. Changed by `Bookie`."""
        self.on_change: Callable[[], None] = lambda: None

    @property
    def is_forced(self) -> bool:
        """Whether the configuration makes the bookie read-only for good (forceReadOnlyBookie)."""
        return self._is_forced

    @property
    def ledger_directories(self) -> Sequence[str]:
        """The `current` directories of the ledger directories."""
        return self._ledgers

    @property
    def reason(self) -> str:
        """Why ordinary adds are refused, "" if they are not."""
        if self._is_forced:
            return "forceReadOnlyBookie is true"
        return self._operators_reason or self._plans_reason or self.verdict.refusal

    @property
    def is_set_read_only(self) -> bool:
        """Whether an operator made the bookie read-only."""
        return bool(self._operators_reason)

    def set_read_only(self, reason: str) -> None:
        """Refuse ordinary adds for this reason from the next `check_now` on; "": the disks alone decide again."""
        self._operators_reason = reason

    def set_planned(self, reason: str) -> None:
        """Do as `set_read_only` for a plan in the metadata store. Plan and operator are independent."""
        self._plans_reason = reason

    @property
    def takes_recovery_adds(self) -> bool:
        return self.verdict.takes_recovery_adds

    @property
    def room(self) -> DiskRoom:
        """The room of the ledger directory with the most free space, which receives the next entry log."""
        full, warned = self.verdict.full, self.verdict.warned
        if self.is_stuck or full.issuperset(self._ledgers):
            return DiskRoom.FULL
        return DiskRoom.SCARCE if (full | warned).issuperset(self._ledgers) else DiskRoom.ENOUGH

    def ledger_space(self) -> FileSystemSpace:
        """Return the total space of the ledger directories; a shared disk counts once.

        Raises:
            OSError: a directory cannot be checked.
        """
        spaces = {space.device: space for space in self._ledger_spaces().values()}.values()
        return FileSystemSpace(0, sum(space.total_bytes for space in spaces), sum(space.free_bytes for space in spaces))

    def known_space(self) -> FileSystemSpace:
        """Return `ledger_space`, measured at most `_SPACE_S` ago, because peers may ask for it at any rate.

        Raises:
            OSError: as `ledger_space`.
        """
        now = self._clock()
        if self._space is None or now >= self._space_until:
            self._space, self._space_until = self.ledger_space(), now + _SPACE_S
        return self._space

    def _ledger_spaces(self) -> dict[str, FileSystemSpace]:
        """Return the space of each ledger directory. A directory whose disk gives an error counts as full."""
        spaces, errors = {}, []
        for path in self._ledgers:
            try:
                spaces[path] = self._files.space(path)
            except OSError as error:
                spaces[path] = UNKNOWN_SPACE
                errors.append(error)
        if len(errors) == len(self._ledgers):
            raise errors[0]
        return spaces

    def check_now(self, waiting_bytes: int) -> None:
        """Check the disks. `waiting_bytes`: bytes of entries that are not in an entry log yet.

        Raises:
            OSError: a journal directory, or every ledger directory, cannot be checked: its disk is gone.
        """
        before, was_read_only = self.verdict, self.is_read_only
        facts = DiskFacts(
            self._ledger_spaces(),
            {path: self._files.space(path) for path in self._journals},
            waiting_bytes,
            self.is_stuck,
        )
        self.verdict = decide(self._limits, before, facts)
        self.usage = {path: 100 * space.used_share for path, space in [*facts.ledgers.items(), *facts.journals.items()]}
        self.is_read_only = bool(self.reason)
        for path in sorted(self.verdict.warned - before.warned - before.full):
            logger.warning("directory %s is nearly full: %.1f %% used", path, _percent(facts, path))
        for path in sorted(self.verdict.full - before.full):
            if facts.ledgers.get(path) is UNKNOWN_SPACE:
                logger.error("the disk of directory %s fails: new entries go to the other ledger directories", path)
            else:
                logger.warning("directory %s is full: %.1f %% used", path, _percent(facts, path))
        for path in sorted(before.full - self.verdict.full):
            logger.warning("directory %s has space again: %.1f %% used", path, _percent(facts, path))
        if self.is_read_only != was_read_only:
            if self.is_read_only:
                logger.warning("the bookie is read-only: %s", self.reason)
            else:
                logger.warning("the bookie takes adds again")
            self.on_change()


def _percent(facts: DiskFacts, path: str) -> float:
    space = facts.ledgers.get(path) or facts.journals[path]
    return 100 * space.used_share
