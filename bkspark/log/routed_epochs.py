"""RoutedCommitter: commits an epoch, or a job, whose rows go to many logs, once all tasks have reported.

It is `EpochCommitter` for many logs: rows in the reports are appended to one shared ledger for each log, and then one
routed commit (routing.py) publishes everything in all logs. Everything before that is invisible, everything after it is
clean-up. No ledger belongs to two logs, so truncating one log does not affect another.

The shared ledgers stay open from epoch to epoch, OPEN_MAX of them at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from bkspark.errors import BookKeeperError, DataLoss, LedgerClosed, LedgerFenced, NoSuchLog
from bkspark.ledger import Cluster
from bkspark.log.epochs import LEDGERS_TRIED_MAX, Output, listed
from bkspark.log.formats import Publisher, SegmentOwner
from bkspark.log.log import Log, store_of
from bkspark.log.routing import Part, RoutedCommits
from bkspark.log.schemas import SchemaChange
from bkspark.log.sharing import SharedLedger
from bkspark.log.writer import LedgerOptions, RollLimits, fence
from bkspark.stages import reach
from bkspark.tasks import each_of

OPEN_MAX = 2_000
"""Shared ledgers that a committer keeps open; above it, the least recently used ones are closed."""


@dataclass(frozen=True, slots=True)
class RoutedOutput:
    """The output of an epoch's attempts for one log, in partition order; the options of the log's new ledgers; the
    schema of the rows, None if it is not recorded."""

    log: str
    outputs: tuple[Output, ...]
    options: LedgerOptions
    schema: SchemaChange | None = None


class RoutedCommitter:
    """Publishes epochs of one owner to many logs. An object that is used for several epochs keeps its shared ledgers.

    Args:
        owner_id: id of the streaming query, the application or the job.
        limits: of the shared ledgers that it creates.
    """

    def __init__(self, cluster: Cluster, owner_id: str, limits: RollLimits) -> None:
        self._cluster = cluster
        self._owner_id = owner_id
        self._limits = limits
        self._shared: OrderedDict[str, SharedLedger] = OrderedDict()
        """The shared ledger of each log, the least recently used first. `_close_above` bounds it after each epoch."""

    async def append(self, parts: Sequence[RoutedOutput], publisher: Publisher) -> bool:
        """Publish an epoch in all its logs; return False if its publisher had already published it, or a later one.

        Raises:
            VersionPublished: another query or job has published the version, or a later one, under the name.
            NoSuchLog, SchemaMismatch, DataLoss, ...: one of the logs cannot be written; nothing was published.
            BookKeeperError: nothing was published, or the message says that the outcome is unknown.
        """
        commits = RoutedCommits(await store_of(self._cluster))
        own = {facts.ledger_id for part in parts for output in part.outputs for facts in output.ledgers}
        for left in reversed(range(LEDGERS_TRIED_MAX)):
            if await commits.has_published(publisher):
                return False
            try:
                is_new = await self._append_once(commits, parts, publisher)
            except BaseException as error:
                await self._drop(parts)
                # The rows are in memory: if only a shared ledger was lost, they can be appended to another one.
                is_lost = isinstance(error, (LedgerFenced, LedgerClosed, DataLoss)) and error.ledger_id not in own
                if not is_lost or not left:
                    raise
                continue
            if not is_new:
                await self._drop(parts)
            return is_new
        raise AssertionError("the last try raises")

    async def _append_once(self, commits: RoutedCommits, parts: Sequence[RoutedOutput], publisher: Publisher) -> bool:
        async def part_of(part: RoutedOutput) -> Part:
            shared = await self._shared_of(part)
            await shared.roll_if_due()
            ledgers = await listed(part.outputs, shared)
            return Part(part.log, tuple(ledgers), _ids(shared), part.schema)

        made = await each_of(part_of, parts)
        reach("commit.appended")
        is_new = await commits.publish(made, self._owner_id, publisher)
        if is_new:
            for part in parts:
                self._shared[part.log].note_published()
            await each_of(self._keep_retention, parts)
            # The epoch is published: a ledger that cannot be closed must not make it a failed one.
            await self._close_above(OPEN_MAX)
        return is_new

    async def _keep_retention(self, part: RoutedOutput) -> None:
        await self._shared[part.log].keep_retention()

    async def _shared_of(self, part: RoutedOutput) -> SharedLedger:
        shared = self._shared.pop(part.log, None)
        if shared is None or shared.options != part.options:
            if shared is not None:
                await shared.close()
            owner = SegmentOwner("query", self._owner_id)
            shared = SharedLedger(Log(self._cluster, part.log), owner, part.options, self._limits)
        self._shared[part.log] = shared
        return shared

    async def publish_whole(
        self,
        parts: Sequence[RoutedOutput],
        publisher: Publisher | None,
        owner: SegmentOwner,
        *,
        is_overwrite: bool,
    ) -> bool:
        """Publish the output of a job; with `is_overwrite`, it replaces the content of the logs.

        Rows in the reports go into ledgers that are not shared with later epochs. Returns and raises as `append`.

        Args:
            owner: the owner of these ledgers.
        """
        commits = RoutedCommits(await store_of(self._cluster))
        if publisher is not None and await commits.has_published(publisher):
            return False

        async def part_of(part: RoutedOutput) -> tuple[Part, tuple[int, ...]]:
            whole = SharedLedger(Log(self._cluster, part.log), owner, part.options, self._limits)
            try:
                ledgers = await listed(part.outputs, whole)
                made = _ids(whole)
                await whole.close()
            except BaseException:
                await whole.drop()
                raise
            return Part(part.log, tuple(ledgers), (), part.schema), made

        made = await each_of(part_of, parts)
        reach("commit.appended")
        is_new = False
        try:
            is_new = await commits.publish(
                [part for part, _ in made], owner.owner_id, publisher, fence=self._fence if is_overwrite else None
            )
        finally:
            if not is_new:
                await each_of(self._retire, [(part.log, ids) for part, ids in made if ids])
        if is_new:
            await each_of(self._sweep if is_overwrite else self._expire, parts)
        return is_new

    async def _fence(self, name: str) -> Sequence[int]:
        return [ordinal for ordinal, _ in await fence(self._cluster, await Log(self._cluster, name).snapshot())]

    async def _retire(self, made: tuple[str, tuple[int, ...]]) -> None:
        name, ids = made
        try:
            await Log(self._cluster, name).retire(ids)
        except BookKeeperError:
            return  # still registered: a vacuum finds it

    async def _sweep(self, part: RoutedOutput) -> None:
        await Log(self._cluster, part.log).sweep()

    async def _expire(self, part: RoutedOutput) -> None:
        await Log(self._cluster, part.log).keep_retention()

    async def discard(self, logs: Sequence[str], up_to_epoch: int | None = None) -> None:
        """Delete the unpublished ledgers of this owner's attempts in these logs: all, or those of epochs up to one.

        Those of a log that was deleted meanwhile are gone with it. Raises BookKeeperError if another log failed, after
        all logs were asked.
        """

        async def discard_one(name: str) -> BookKeeperError | None:
            try:
                await Log(self._cluster, name).discard(self._owner_id, up_to_epoch=up_to_epoch)
            except NoSuchLog:
                return None
            except BookKeeperError as error:
                return error
            return None

        failed = [error for error in await each_of(discard_one, logs) if error is not None]
        if failed:
            raise failed[0]

    async def close(self) -> None:
        """Close the shared ledgers. Raises BookKeeperError if one failed; published entries are safe nevertheless."""
        failed = await self._close_above(0)
        if failed:
            raise failed[0]

    async def _close_above(self, count: int) -> list[BookKeeperError]:
        """Close shared ledgers until `count` are left; return the errors of those that failed. They stay registered
        until a vacuum closes them."""
        failed = []
        while len(self._shared) > count:
            try:
                await self._shared.popitem(last=False)[1].close()
            except BookKeeperError as error:
                failed.append(error)
        return failed

    async def _drop(self, parts: Sequence[RoutedOutput]) -> None:
        async def drop_one(shared: SharedLedger) -> None:
            await shared.drop()

        touched = (self._shared.pop(part.log, None) for part in parts)
        await each_of(drop_one, [shared for shared in touched if shared is not None])


def _ids(shared: SharedLedger) -> tuple[int, ...]:
    return () if shared.ledger_id is None else (shared.ledger_id,)
