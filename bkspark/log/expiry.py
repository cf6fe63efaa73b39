"""Expiry: removes the ledgers that a log's retention does not keep, as `retention` specifies.

The decision is valid only for the head that it was made on: the change that removes ledgers fails, and is decided
again, if the log has changed, a reader has registered, or a reader that counted as expired has renewed its
registration. The ledgers are deleted after the change; if that is interrupted, the next change, expiry or vacuum
deletes them.

A clock that is ahead would remove what is not old. Therefore entries are old, and registrations have ended, if the
clock of the process and that of the metadata store both say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial

from bkspark.errors import BookKeeperError, NoSuchLedger
from bkspark.ledger import Cluster, LedgerReader
from bkspark.log import reading
from bkspark.log.attempts import DeleteLedger
from bkspark.log.consumers import consumer_path, first_needed
from bkspark.log.formats import LogHead, ledger_identity
from bkspark.log.positions import Position
from bkspark.log.retention import UNLIMITED, cutoff_ms, first_kept
from bkspark.log.snapshot import LogSegment, LogSnapshot
from bkspark.log.store import Cut, LogStore
from bkspark.metadata.tree import Check

INTERVAL_S = 60.0
"""Least interval between two expiries that one writer begins."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """Removes expired ledgers of one log."""

    cluster: Cluster
    store: LogStore
    name: str
    delete_ledger: DeleteLedger

    async def now(self) -> int:
        """Remove the expired ledgers; return their number.

        Raises:
            NoSuchLog: there is no such log.
        """
        snapshot = await self.store.snapshot(self.name)
        if snapshot.head.retention == UNLIMITED:
            return 0
        closed = await closed_ordinals(self.cluster, snapshot)
        count = await self.store.cut(self.name, partial(self._choose, closed))
        if count:
            await self.store.attempts.sweep(self.name, self.delete_ledger)
        return count

    async def _choose(self, closed: Collection[int], head: LogHead) -> Cut | None:
        """Return where the log is to begin if its head is `head`; None if nothing has expired."""
        snapshot = self.store.snapshot_of(self.name, head)
        now_ms = self.store.clock_ms()
        if await _first_wanted(snapshot, now_ms) <= head.first_ordinal:
            return None
        # This process's clock may be ahead: what it takes for old must be so by the metadata store's, too.
        now_ms = min(now_ms, await self.store.heads.time_ms(self.name))
        wanted = await _first_wanted(snapshot, now_ms)
        if wanted <= head.first_ordinal:
            return None
        # Read after the head: a reader that registers later moves the head's version.
        consumers = await self.store.consumers.all(self.name)
        living = [each for each in consumers if not each.is_expired(now_ms)]
        first = first_kept(
            wanted,
            first_ordinal=head.first_ordinal,
            end_ordinal=head.end_ordinal,
            open_ordinals=set(head.open_ordinals) - set(closed),
            needed=[await _first_ordinal(snapshot, position) for position in first_needed(living, head.start)],
        )
        if first == head.first_ordinal:
            return None
        unchanged = [
            Check(consumer_path(self.name, each.name), each.version) for each in consumers if each.is_expired(now_ms)
        ]
        return Cut(await reading.end_before(self._open_listed, snapshot, first), first, unchanged)

    async def _open_listed(self, listed: LogSegment) -> LedgerReader | None:
        try:
            return await self.cluster.open(listed.ledger_id, having=ledger_identity(self.name))
        except NoSuchLedger:
            return None  # the ledger alone was deleted, not by a change of the log


class ExpiryTimer:
    """Runs an expiry in a writer's process, at most once in INTERVAL_S. A failure is ignored: the next one repeats
    it."""

    def __init__(self, make: Callable[[], Awaitable[Expiry]]) -> None:
        self._make = make
        """Returns the expiry to run. It is called only when one is due."""
        self._last_s: float | None = None
        """When the last expiry began, by the event loop's clock; None before the first one."""

    async def tick(self) -> None:
        """Run an expiry, unless the last one began less than INTERVAL_S ago."""
        now_s = asyncio.get_running_loop().time()
        if self._last_s is not None and now_s - self._last_s < INTERVAL_S:
            return
        self._last_s = now_s
        try:
            await (await self._make()).now()
        except BookKeeperError:
            return


async def closed_ordinals(cluster: Cluster, snapshot: LogSnapshot) -> list[int]:
    """Return the ordinals of ledgers that are closed or gone, although the head lists them as open."""
    closed = []
    for ordinal in snapshot.open_ordinals:
        try:
            ledger_id = (await snapshot.ledger(ordinal)).ledger_id
            metadata = await cluster.metadata(ledger_id, having=ledger_identity(snapshot.name))
        except NoSuchLedger:
            closed.append(ordinal)
        else:
            closed += [ordinal] if metadata.is_closed else []
    return closed


async def _first_wanted(snapshot: LogSnapshot, now_ms: int) -> int:
    """Return the ordinal of the first ledger that the retention keeps."""
    return max(await _first_by_age(snapshot, now_ms), await first_by_bytes(snapshot))


async def _first_by_age(snapshot: LogSnapshot, now_ms: int) -> int:
    """Return the ordinal of the first ledger with entries that are not too old."""
    head = snapshot.head
    cutoff = cutoff_ms(head.retention.age_ms, now_ms)
    if cutoff is None or head.times.first is None or cutoff <= head.times.first.ms:
        return head.first_ordinal
    place = await snapshot.first_at(cutoff)
    return head.end_ordinal if place is None else place[0]


async def first_by_bytes(snapshot: LogSnapshot) -> int:
    """Return the ordinal of the first ledger that the limit of bytes keeps: the newest ledgers that reach it."""
    head, kept_bytes = snapshot.head, 0
    if head.retention.bytes is not None:
        async for listed in snapshot.last_before(head.end_ordinal):
            kept_bytes += listed.length or 0
            if kept_bytes >= head.retention.bytes:
                return listed.ordinal
    return head.first_ordinal


async def _first_ordinal(snapshot: LogSnapshot, position: Position) -> int:
    """Return the first ledger that a reader at a position needs."""
    if not snapshot.first_ordinal <= position.ordinal < snapshot.end_ordinal:
        return position.ordinal
    listed = await snapshot.ledger(position.ordinal)
    is_read = listed.last_entry is not None and position.entry_id > listed.last_entry
    return position.ordinal + is_read
