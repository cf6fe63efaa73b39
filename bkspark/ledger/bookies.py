"""BookieWatcher: the bookies that a client may choose, kept current by watches, and which of them failed recently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from bkspark.core.placement import Topology
from bkspark.core.quarantine import Quarantine
from bkspark.errors import MetadataError, MetadataFormat, NoSuchNode
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.racks import RackMap
from bkspark.options import bounded, check
from bkspark.tasks import start_shared

PLACEMENT_COUNT_MAX = 1_000_000
PLACEMENT_SECONDS_MAX = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """How a client chooses bookies. Names in brackets are Apache's configuration keys for the same thing.

    `min_racks_per_write_quorum` (minNumRacksPerWriteQuorum): how many racks the bookies of an entry span if the
    cluster has that many; 1: racks are ignored. A bookie with `quarantine_failures` failures
    (bookieErrorThresholdPerInterval) within `quarantine_window_s` gets no new entries for `quarantine_s`
    (bookieQuarantineTimeSeconds), unless there are too few others.

    Raises:
        ConfigurationError: a value is out of bounds.
    """

    min_racks_per_write_quorum: int = bounded(2, 1, PLACEMENT_COUNT_MAX)
    quarantine_failures: int = bounded(3, 1, PLACEMENT_COUNT_MAX)
    quarantine_window_s: float = bounded(60.0, 0.0, PLACEMENT_SECONDS_MAX, "seconds")
    quarantine_s: float = bounded(1800.0, 0.0, PLACEMENT_SECONDS_MAX, "seconds")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Bookies to choose from: the writable ones, with their racks and which of them to avoid."""

    writable: frozenset[str]
    topology: Topology


class BookieWatcher:
    """One client's view of the cluster's bookies.

    Args:
        unreachable: returns the ids of bookies that could not be reached recently; they are chosen last.
    """

    def __init__(
        self, registry: BookieRegistry, options: PlacementOptions, unreachable: Callable[[], frozenset[str]]
    ) -> None:
        self._registry = registry
        self._options = options
        self._unreachable = unreachable
        self._quarantine = Quarantine(
            options.quarantine_failures, int(options.quarantine_window_s * 1e9), int(options.quarantine_s * 1e9)
        )
        self._watching: asyncio.Task[None] | None = None
        """The task that sets the watches. None before the first call; replaced by the next caller after a failure."""
        self._writable: frozenset[str] | None = None
        """The writable bookies; None if they must be read. The watch clears it at every change."""
        self._writable_changes = 0
        """How often the watch reported a change. A list is kept only if this did not grow while it was read."""
        self._racks: RackMap | None = None
        """The racks of bookies; None if they must be read. The watch clears it at every change."""
        self._racks_changes = 0
        """The same as `_writable_changes`, for racks."""
        self._hosts: dict[str, str] = {}
        """The hosts of bookies whose ids name none, as they were last registered. Never shrinks, for lost bookies."""
        self._racks_before = RackMap()
        """The racks that were read last; a writer uses them when they cannot be read again."""

    async def candidates(self, ensemble_size: int) -> Candidates:
        """Return the bookies to choose a new ensemble from; the list is read again only if it has too few.

        Raises:
            MetadataError: the metadata store failed, or the rack map cannot be read.
        """
        await self._watch()
        racks = await self._current_racks()
        writable = self._writable
        if writable is None or len(writable) < ensemble_size:
            writable = await self._read_writable()
        return self._candidates(writable, racks)

    async def replacements(self) -> Candidates:
        """Return the bookies that may replace failed ones. They are read again: an older list may have the failed ones.

        If the rack map cannot be decoded, the previous one is used, so that writers continue.

        Raises:
            MetadataError: the metadata store failed.
        """
        await self._watch()
        try:
            racks = await self._current_racks()
        except MetadataFormat:
            racks = self._racks_before
        return self._candidates(await self._read_writable(), racks)

    def on_failure(self, bookie: str) -> None:
        """Count a failure of a bookie: a writer replaces it."""
        self._quarantine.on_failure(bookie, self._now_ns())

    def _candidates(self, writable: frozenset[str], racks: RackMap) -> Candidates:
        avoided = self._quarantine.members(self._now_ns()) | self._unreachable()
        # An id `host:port` names its host. The map comes from an operator, so it counts more than a registration.
        hosts = {bookie: host for bookie, host in (self._hosts | racks.hosts).items() if not _names_host(bookie)}
        return Candidates(writable, Topology(racks.racks, avoided, self._options.min_racks_per_write_quorum, hosts))

    async def _watch(self) -> None:
        """Set the watches, once; concurrent callers wait for the same ones."""
        if self._watching is None or (self._watching.done() and self._failed_to_watch()):
            self._watching = start_shared(self._set_watches())
        await asyncio.shield(self._watching)

    def _failed_to_watch(self) -> bool:
        assert self._watching is not None
        return self._watching.cancelled() or self._watching.exception() is not None

    async def _set_watches(self) -> None:
        try:
            ends = [await self._registry.watch_writable(self._writable_changed)]
        except NoSuchNode:
            await self._registry.writable_ids()  # raises if there is no cluster
            raise
        try:
            ends.append(await self._registry.watch_racks(self._racks_changed))
        except BaseException:
            for end in ends:
                end()
            raise

    def _writable_changed(self) -> None:
        self._writable = None
        self._writable_changes += 1

    def _racks_changed(self) -> None:
        self._racks = None
        self._racks_changes += 1

    async def _read_writable(self) -> frozenset[str]:
        changes = self._writable_changes
        writable = await self._registry.writable_ids()
        knows_hosts = True
        if not all(map(_names_host, writable)):
            try:
                self._hosts |= await self._registry.hosts()
            except MetadataError:
                # A host only says which places are better, so a list that changes meanwhile must not end a look-up. The
                # next one tries again.
                knows_hosts = False
        if knows_hosts and changes == self._writable_changes:
            self._writable = writable
        return writable

    async def _current_racks(self) -> RackMap:
        if self._racks is not None:
            return self._racks
        changes = self._racks_changes
        racks = await self._registry.racks()
        if changes == self._racks_changes:
            self._racks = racks
        self._racks_before = racks
        return racks

    def _now_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e9)


def _names_host(bookie: str) -> bool:
    """Return whether a bookie's id has the form host:port."""
    return ":" in bookie
