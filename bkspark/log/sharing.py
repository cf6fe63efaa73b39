"""SharedLedger: a ledger to which one process appends epoch after epoch; the log lists slices of it.

A ledger for each task of each epoch of a stream would mean a million tiny ledgers a day. Small outputs go into a ledger
that stays open instead. Three rules make this as safe as publishing whole ledgers:

* It has one writer, like every ledger. A process that has lost it, or does not know the outcome of its last entries,
  continues in another ledger; no process continues another's ledger.
* The log ends where its list says. Entries after the listed end of a slice (of an epoch that is not published yet, of a
  failed attempt, of a repeated commit) are not part of the log, and no reader reads them.
* It stays registered as pending while slices of it may still be published, so that it is not deleted. A process that
  removes all of its slices by truncating or overwriting ends the registration in the same change; the process that
  writes the ledger then continues in another one.

A process that is killed leaves its shared ledger open and registered. Later processes close such ledgers when they are
old enough, keep those with slices in the list, and delete the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError, NoSuchLedger
from bkspark.ledger import LedgerWriter
from bkspark.log.formats import SegmentFacts, SegmentOwner
from bkspark.log.reading import deleted_meanwhile
from bkspark.log.writer import LedgerOptions, RollLimits

if TYPE_CHECKING:
    from bkspark.log.log import Log

SHARED_AGE_S = 3600.0
"""Default age after which a shared ledger is replaced."""

RETIRE_MARGIN_S = 24 * 3600.0
"""A registration that is older than its ledger's maximum age by this time belongs to a dead process."""


class SharedLedger:
    """The shared ledger of one owner in one process; created by the first append, replaced when it is large or old.

    Args:
        owner: the owner of the slices. It has no epoch, because epochs share the ledger, unless the ledger is closed
            before it is published.
        limits: bytes and age after which `roll_if_due` closes it.
    """

    def __init__(self, log: Log, owner: SegmentOwner, options: LedgerOptions, limits: RollLimits) -> None:
        self._log = log
        self._owner = owner
        self.options = options
        self._limits = limits
        self._writer: LedgerWriter | None = None
        """The writer of the ledger; None if there is no ledger: the next append creates one."""
        self._since_s = 0.0
        """When the ledger was created, by the event loop's clock."""
        self._is_published = False
        """Whether all that was appended is published, so that `close` may end the registration. Cleared by `append`;
        set by `note_published`."""

    @property
    def ledger_id(self) -> int | None:
        """The ledger being written; None when the next append will make one."""
        return None if self._writer is None else self._writer.ledger_id

    async def keep_retention(self) -> None:
        """Remove expired ledgers of the log, unless that was tried recently; failures are ignored."""
        await self._log.keep_retention()

    async def append(self, batches: Sequence[EntryBatch]) -> SegmentFacts:
        """Append entries, at least one; return their slice, once all are acknowledged.

        Raises:
            BookKeeperError: none of these entries may be published; call `drop`.
        """
        writer = self._writer
        if writer is None:
            writer = self._writer = await self._log.create_attempt(self._owner, self.options)
            self._since_s = asyncio.get_running_loop().time()
            await self._retire_left(writer.ledger_id)
        self._is_published = False
        first_entry, length = writer.last_entry + 1, writer.length
        for waiting in [await writer.submit(batch) for batch in batches]:
            await waiting
        return SegmentFacts(writer.ledger_id, writer.last_entry, writer.length - length, first_entry)

    def note_published(self) -> None:
        """Record that the log's list has everything that was appended."""
        self._is_published = True

    async def roll_if_due(self) -> None:
        """Close the ledger if it is large or old, so that the next append goes to another. Call it between epochs."""
        writer = self._writer
        if writer is None:
            return
        if self._limits.reached(writer.length, asyncio.get_running_loop().time() - self._since_s):
            try:
                await self.close()
            except BookKeeperError:
                await self._retire(writer)

    async def _retire_left(self, ledger_id: int) -> None:
        """Retire the shared ledgers of dead processes. A failure does not prevent writing: the next process repeats
        it."""
        age_s = (self._limits.roll_seconds or SHARED_AGE_S) + RETIRE_MARGIN_S
        try:
            await self._log.retire_older(ledger_id, age_s)
        except BookKeeperError:
            return

    async def close(self) -> None:
        """Close the ledger; end its registration if all of it is published.

        Raises:
            NoSuchLedger: it is gone. The message says so if rows in it are not published; if all were, another
                process removed them by truncating, overwriting or deleting.
            BookKeeperError: it was not closed; the next append goes to another ledger nevertheless.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                await writer.close()
            except NoSuchLedger as error:
                if self._is_published:
                    raise
                raise deleted_meanwhile(error, self._log.name) from None
            if self._is_published:
                await self._log.forget_published(writer.ledger_id)

    async def drop(self) -> None:
        """Abandon the ledger and retire it: the outcome of its last entries may be unknown."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
            await self._retire(writer)

    async def _retire(self, writer: LedgerWriter) -> None:
        try:
            await self._log.retire([writer.ledger_id])
        except BookKeeperError:
            return  # it stays registered, until its age shows that no process publishes from it
