"""SharedLedger: a ledger that one process goes on writing to, epoch after epoch; the log lists slices of it.

A ledger for each task of each epoch of a stream would make a million of tiny ledgers in a day. What is small goes into
a ledger that stays open instead. Three rules keep that as safe as a ledger that is published whole:

* It has one writer, as every ledger. A process that has lost it, or does not know what became of its last entries,
  takes another one; nobody continues a ledger of somebody else.
* The log ends where its list says. Entries behind the listed end of a slice (of an epoch that is not published yet, of
  an attempt that failed, of a commit that came twice) are nobody's, and no reader looks at them.
* It stays registered as pending while slices of it may still be published, so that nothing deletes it. Who truncates
  or overwrites all of its slices away ends the registration in the same change; its process then takes another one.

A process that is killed leaves its shared ledger open and registered: the next one closes those of a certain
age, keeps them if the list holds slices of them, and deletes them otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError
from bkspark.ledger import LedgerWriter
from bkspark.log.formats import LedgerFacts, Owner
from bkspark.log.writer import LedgerOptions, RollLimits

if TYPE_CHECKING:
    from bkspark.log.log import Log

SHARED_AGE_S = 3600.0
"""Age from which on a shared ledger is not written to any more, unless its user says otherwise."""

RETIRE_MARGIN_S = 24 * 3600.0
"""A registration that is older than the age of its ledger by so much is one of a process that died."""


class SharedLedger:
    """The shared ledger of one owner in one process; made when there is something to write, replaced when it is due.

    Args:
        owner: whose slices these are. It is shared by epochs, so it names none, unless it is closed before it is
            published.
        limits: bytes and age from which on `roll_if_due` closes it.
    """

    def __init__(self, log: Log, owner: Owner, options: LedgerOptions, limits: RollLimits) -> None:
        self._log = log
        self._owner = owner
        self._options = options
        self._limits = limits
        self._writer: LedgerWriter | None = None
        self._since_s = 0.0
        self._is_published = False

    @property
    def ledger_id(self) -> int | None:
        """The ledger being written; None when the next append will make one."""
        return None if self._writer is None else self._writer.ledger_id

    async def append(self, batches: Sequence[EntryBatch]) -> LedgerFacts:
        """Append entries, at least one; return the slice that they are, once all are acknowledged.

        Raises:
            BookKeeperError: nothing of it may be published; `drop` it.
        """
        writer = self._writer
        if writer is None:
            writer = self._writer = await self._log.create_attempt(self._owner, self._options)
            self._since_s, self._is_published = asyncio.get_running_loop().time(), False
            await self._retire_left(writer.ledger_id)
        first_entry, length = writer.last_entry + 1, writer.length
        for waiting in [await writer.submit(batch) for batch in batches]:
            await waiting
        return LedgerFacts(writer.ledger_id, writer.last_entry, writer.length - length, first_entry)

    def note_published(self) -> None:
        """The log's list holds everything that was appended."""
        self._is_published = True

    async def roll_if_due(self) -> None:
        """Let the next append go to another ledger, if this one is large or old. Call it between epochs."""
        writer = self._writer
        if writer is None:
            return
        if self._limits.reached(writer.length, asyncio.get_running_loop().time() - self._since_s):
            try:
                await self.close()
            except BookKeeperError:
                await self._retire(writer)

    async def _retire_left(self, ledger_id: int) -> None:
        """Tidy up after processes that died. That this fails is no reason not to write: the next one does it."""
        age_s = (self._limits.roll_seconds or SHARED_AGE_S) + RETIRE_MARGIN_S
        try:
            await self._log.retire_older(ledger_id, age_s)
        except BookKeeperError:
            return

    async def close(self) -> None:
        """Close the ledger; end its registration if all of it is published.

        Raises:
            BookKeeperError: it was not closed; the next append goes to another ledger all the same.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()
            if self._is_published:
                await self._log.forget_published(writer.ledger_id)

    async def drop(self) -> None:
        """Write no more to the ledger, whatever became of its last entries."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
            await self._retire(writer)

    async def _retire(self, writer: LedgerWriter) -> None:
        try:
            await self._log.retire([writer.ledger_id])
        except BookKeeperError:
            return  # it stays registered, until its age tells that nobody publishes of it
