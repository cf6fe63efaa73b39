"""What a bookie is given: its limits, threads for work that blocks, and the interface of its clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bkspark.options import COUNT_MAX, YEARS_S, bounded, check
from bookie_service.engine.entry_lists import StepReport
from bookie_service.engine.long_polls import PollClient
from bookie_service.engine.reads import ReadOptions
from bookie_service.engine.shares import ShareLimits
from bookie_service.storage.io.byte_source import Fetched, FileRange

LONG_POLLS = ShareLimits.of(10_000)
ENTRY_LISTS = ShareLimits.of(4096)
"""Apache's auditor asks for 500 lists at once on one connection."""


class ReadThreads(Protocol):
    """Threads for work that must not block the event loop."""

    def fetch(self, place: FileRange, on_fetched: Callable[[Fetched], None]) -> None:
        """Read a range of a file, and call back with the result on the event loop."""

    def run(self, task: Callable[[], StepReport], on_done: Callable[[StepReport], None]) -> None:
        """Run `task` on a thread, then call `on_done` with its result on the event loop."""


class BookieClient(PollClient, Protocol):
    """The part of a connection that the bookie uses."""

    def resume(self) -> None:
        """Continue with the requests that the bookie did not take."""


@dataclass(frozen=True, slots=True)
class BookieOptions:
    """Limits of one bookie process, in bytes and counts.

    adds_in_flight_max: how many adds may wait for the journal before connections wait; 0: any number that fits in the
        write cache.
    long_polls, long_poll_s_max: how many reads may wait for a LAC, and for how long; beyond, ETOOMANYREQUESTS.
    entry_lists: how many lists of entries may wait to be built, one at a time; beyond, ETOOMANYREQUESTS.
    new_ledgers_per_s, new_ledgers_burst: how many ledgers that the bookie has never seen one address may begin; beyond,
        ETOOMANYREQUESTS. 0 a second: no limit.
    serial_writer_after: after this many consecutive single adds from one client, its adds are journaled without waiting
        for others.
    forces_max: how many forces may wait for a flush; beyond, ETOOMANYREQUESTS.
    journals_entries: False: adds are answered from memory, and a crash loses those that no checkpoint has flushed.
    """

    serial_writer_after: int = bounded(8, 0, COUNT_MAX)
    journals_entries: bool = True
    adds_in_flight_max: int = bounded(0, 0, COUNT_MAX)
    long_polls: ShareLimits = LONG_POLLS
    long_poll_s_max: float = bounded(300.0, 0.001, YEARS_S, "seconds")
    entry_lists: ShareLimits = ENTRY_LISTS
    forces_max: int = bounded(10_000, 1, COUNT_MAX)
    new_ledgers_per_s: int = bounded(500, 0, COUNT_MAX)
    new_ledgers_burst: int = bounded(20_000, 1, COUNT_MAX)
    reads: ReadOptions = field(default_factory=ReadOptions)

    def __post_init__(self) -> None:
        check(self)
