"""EpochCommitter: commits an epoch on the driver of a job or streaming query, when all tasks have reported.

A task attempt reports the ledgers that it has written and closed. If it has only a few rows, its report contains the
rows instead, and the committer appends them to a shared ledger (sharing.py). Then one compare-and-set adds all ledgers
and slices to the log's list, in partition order, and records the epoch. Readers see either all of an epoch or nothing
of it, and an epoch is published once. Everything before that change is invisible, everything after it is clean-up.

    driver dies before the change      the epoch is written and committed again; appended rows are not part of the log
    driver dies after the change       the epoch is committed again, with other ledgers: the log has recorded it, so
                                       nothing is published, and the other ledgers are deleted
    another query uses its name        that query's epochs have other rows: the commit fails, nothing is published
    the change's answer is lost        the head is read back and shows the outcome (heads.py). If it cannot be read, the
                                       commit fails, and is repeated
    abort after such a commit          deletes pending ledgers only, never a listed one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bkspark.entries import EntryBatch
from bkspark.errors import DataLoss, LedgerClosed, LedgerFenced, SchemaMismatch, VersionPublished
from bkspark.log.formats import SegmentFacts, SegmentOwner
from bkspark.log.log import Log
from bkspark.log.publication import AnyPublisher
from bkspark.log.schemas import SchemaChange
from bkspark.log.sharing import SharedLedger
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.stages import reach

LEDGERS_TRIED_MAX = 3
"""Attempts of a commit with new shared ledgers, when other processes remove them meanwhile."""


@dataclass(frozen=True, slots=True)
class Output:
    """The output of one task attempt: closed ledgers, or entries to append; both empty if it had no row."""

    ledgers: tuple[SegmentFacts, ...] = ()
    entries: tuple[EntryBatch, ...] = ()


class EpochCommitter:
    """Publishes epochs of one owner to a log. An object that is used for several epochs keeps its shared ledger.

    Args:
        owner_id: id of the streaming query or the application.
        options, limits: of the shared ledgers that it creates.
    """

    def __init__(self, log: Log, owner_id: str, options: LedgerOptions, limits: RollLimits) -> None:
        self._log = log
        self._owner_id = owner_id
        self._options = options
        self._limits = limits
        self._shared = SharedLedger(log, SegmentOwner("query", owner_id), options, limits)

    async def append(
        self, outputs: Sequence[Output], publisher: AnyPublisher, schema: SchemaChange | None = None
    ) -> bool:
        """Publish an epoch at the log's end; return False if its publisher had already published it, or a later one.

        An epoch without rows publishes nothing, and is not recorded.

        Args:
            outputs: the outputs of all task attempts, in partition order.
            schema: the schema of the rows, recorded with them; None: the log's schema stays.

        Raises:
            VersionPublished: another query or job has published the epoch's number, or a later one, under the name.
            SchemaMismatch: the log has another schema than `schema` was derived from.
            DataLoss: an attempt's ledger is no longer pending: the attempt was regarded as dead.
            BookKeeperError: nothing was published, or the message says that the outcome is unknown.
        """
        if not any(output.ledgers or output.entries for output in outputs):
            return True
        own = {facts.ledger_id for output in outputs for facts in output.ledgers}
        for left in reversed(range(LEDGERS_TRIED_MAX)):
            if await self._log.has_published(publisher):
                return False
            await self._shared.roll_if_due()
            try:
                is_new = await self._append_once(outputs, publisher, schema)
            except BaseException as error:
                await self._shared.drop()
                # The rows are in memory: if only the shared ledger was lost, they can be appended to another one.
                is_lost = isinstance(error, (LedgerFenced, LedgerClosed, DataLoss)) and error.ledger_id not in own
                if not is_lost or not left:
                    raise
                continue
            if not is_new:
                # Another process has published it since the check: the entries appended here are not part of the log.
                # The next slice would not continue the last one, so it goes to another ledger.
                await self._shared.drop()
            return is_new
        raise AssertionError("the last try raises")

    async def _append_once(
        self, outputs: Sequence[Output], publisher: AnyPublisher, schema: SchemaChange | None
    ) -> bool:
        ledgers = await listed(outputs, self._shared)
        reach("commit.appended")
        shared = () if self._shared.ledger_id is None else (self._shared.ledger_id,)
        outcome = await self._log.publish(ledgers, publisher=publisher, shared=shared, schema=schema)
        self._shared.note_published()
        return outcome.is_new

    async def overwrite(
        self, outputs: Sequence[Output], publisher: AnyPublisher, schema: SchemaChange | None = None
    ) -> bool:
        """Replace the log's content by an epoch; return False if its publisher had already published it, or a later
        one.

        Raises as `append`.
        """
        if await self._log.has_published(publisher):
            return False
        owner = SegmentOwner("query", self._owner_id, publisher[1])
        whole = SharedLedger(self._log, owner, self._options, self._limits)
        try:
            ledgers = await listed(outputs, whole)
            made = () if whole.ledger_id is None else (whole.ledger_id,)
            await whole.close()
        except BaseException:
            await whole.drop()
            raise
        try:
            outcome = await self._log.overwrite(ledgers, publisher=publisher, schema=schema)
        except (VersionPublished, SchemaMismatch):
            await self._log.retire(made)
            raise
        if not outcome.is_new:
            # Another process has published it since the check: the ledger that was made here is not needed.
            await self._log.retire(made)
        return outcome.is_new

    async def discard(self, up_to_epoch: int) -> int:
        """Delete unpublished ledgers of attempts of epochs up to this one; return their number."""
        return await self._log.discard(self._owner_id, up_to_epoch=up_to_epoch)

    async def close(self) -> None:
        """Close the shared ledger. Raises BookKeeperError if that failed; published entries are safe nevertheless."""
        await self._shared.close()


async def listed(outputs: Sequence[Output], shared: SharedLedger) -> list[SegmentFacts]:
    """Return the ledgers and slices to publish, in order; entries of adjacent outputs are appended as one slice."""
    ledgers: list[SegmentFacts] = []
    waiting: list[EntryBatch] = []
    for output in outputs:
        if output.ledgers and waiting:
            ledgers.append(await shared.append(waiting))
            waiting = []
        ledgers += output.ledgers
        waiting += [batch for batch in output.entries if len(batch)]
    if waiting:
        ledgers.append(await shared.append(waiting))
    return ledgers
