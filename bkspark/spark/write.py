"""Writing: each task attempt fills its own ledgers; the driver publishes all of them in one change of the log.

    attempt   creates a ledger on its first row, registers it as pending under the log, writes, closes it, reports it.
              If the commit is keyed (a stream, or txnAppId), an attempt of a few rows reports the rows instead
    commit    appends the reported rows to a shared ledger, and then everything reported to the log's list in partition
              order, by one compare-and-set; readers see all of a job or epoch or none of it. For a stream the change is
              keyed by (query, epoch), or by txnAppId and a version: if the same query repeats it, it does nothing, and
              reports how many rows were left out; another query's version fails, as its rows differ
    after     ledgers that the same job or epoch left pending (of failed, killed, speculative or repeated attempts, and
              of a repeated commit) can never be published any more, and are deleted
    abort     deletes the same ledgers, and no published ones: an abort may follow a commit that took effect

An attempt that is killed runs no code of ours; its ledger stays pending until one of these finds it, or a vacuum of
the log. Nothing relies on a task learning that it failed. (Killed between creating a ledger and registering it, an
attempt leaves an empty ledger; a vacuum finds it by its custom metadata, which name the log.)
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    LogExists,
)
from bkspark.log.formats import Publisher, SegmentFacts, SegmentOwner
from bkspark.log.log import Log
from bkspark.spark.attempt_writer import AttemptWriter
from bkspark.spark.committers import committer_of
from bkspark.spark.connection import connect
from bkspark.spark.frozen import freeze_imported_modules
from bkspark.spark.log_schemas import WritePlan
from bkspark.spark.options import SourceOptions
from bkspark.spark.reports import AttemptResult, output_of, publish_once, results_of, schema_changed, warn_of_repetition
from bkspark.spark.routed_write import RoutedDestination
from bkspark.spark.targets import LogTarget, check_bookies, checked_default, plan_of, snapshot_if_any
from bkspark.spark.versions import DataSourceStreamArrowWriter
from bkspark.spark.write_options import APPEND, IGNORE, SKIP
from bkspark.stages import reach

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of a task in which Spark names the streaming query and its epoch; the API does not pass them."""


_log = logging.getLogger(__name__)


class Destination:
    """The target of a job or query, shared by the driver and its tasks. It is small and part of every task.

    `is_skipped`: the log holds ledgers, and option ifExists is ignore.

    Raises:
        ConfigurationError: an option is wrong for a write, or the payload format cannot hold a column.
        MetadataError: the cluster cannot be reached.
        NotEnoughBookies: fewer bookies accept writes than the ensemble needs; no log was created.
        UnauthorizedAccess: the log's ledgers have another password: no client could read the whole log any more.
        LogExists: the log holds ledgers, and option ifExists is error.
        SchemaMismatch: the log has another payload format, or columns that the rows do not fit.
    """

    def __init__(self, schema: StructType, options: SourceOptions, *, is_overwrite: bool) -> None:
        self.options = options.for_write()
        self.log = self.options.log or ""
        default = checked_default(self.options, schema)
        plan = self._prepared(schema, is_overwrite=is_overwrite)
        self.is_skipped = plan is None
        self._target = default if plan is None else LogTarget(self.options, schema, plan)

    @property
    def _plan(self) -> WritePlan:
        return self._target.plan

    def _prepared(self, schema: StructType, *, is_overwrite: bool) -> WritePlan | None:
        """Check, before any task starts, that the cluster can create ledgers and that the rows fit the log; create the
        log if it does not exist. Return how to write; None if nothing is to be written."""
        client = connect(self.options).asynchronous

        async def prepare() -> WritePlan | None:
            log = Log(client, self.log)
            # One round trip to the metadata store: every epoch of a stream comes here twice.
            _, snapshot = await asyncio.gather(check_bookies(client, self.options), snapshot_if_any(log))
            plan = await plan_of(client, self.options, schema, snapshot, is_overwrite=is_overwrite)
            if plan is not None and snapshot is None:
                await log.create(exist_ok=True)
            return plan

        return run(prepare)

    def write(
        self, owner: SegmentOwner, batches: Iterator[pa.RecordBatch], *, is_keyed: bool, query: str | None = None
    ) -> AttemptResult:
        """Write the rows of one task attempt to its own ledgers, which are closed when this returns.

        Args:
            is_keyed: the commit has a publisher; a few rows are left to the commit.
            query: id of the streaming query that the task runs for.

        Raises:
            BookKeeperError: nothing of this attempt can be published.
        """
        freeze_imported_modules()
        encode = self._target.encoder()
        rows = 0
        reach("task.begun")
        with AttemptWriter(self._target, owner, self.options.inline_bytes if is_keyed else 0) as attempt:
            for batch in batches:
                rows += batch.num_rows
                for entries in encode(batch):
                    attempt.append(entries)
                    reach("task.wrote")
            result = AttemptResult(owner, attempt.finish(), attempt.held(), rows, query, self._plan.change.stored.name)
        reach("task.closed")
        return result

    # ---- on the driver, once all attempts have reported ----

    def publish(self, ledgers: Sequence[SegmentFacts], *, is_overwrite: bool) -> None:
        """Publish the ledgers in the log, and their schema: all of them, or none.

        Raises:
            LogExists: option ifExists is not append, and another job has published in the log.
            SchemaMismatch: the log got another schema since the write was planned.
        """
        log, schema = self.named_log(), self._plan.change
        only_if_empty = self.options.if_exists != APPEND
        if is_overwrite:
            run(lambda: log.overwrite(ledgers, schema=schema))
        elif ledgers or self._plan.is_news:
            run(lambda: log.publish(ledgers, only_if_empty=only_if_empty, schema=schema))

    def publish_job(self, results: Sequence[AttemptResult], _: str, *, is_overwrite: bool) -> None:
        """As `publish`, for the output of a job without a name; does nothing if ifExists is ignore and the log has
        ledgers."""
        try:
            self.publish([ledger for result in results for ledger in result.ledgers], is_overwrite=is_overwrite)
        except LogExists:
            # Another job published first while this one wrote.
            if self.options.if_exists != IGNORE:
                raise

    def publish_version(
        self, results: Sequence[AttemptResult], publisher: Publisher, *, is_overwrite: bool, epoch: int = 0
    ) -> None:
        """Publish the attempts' outputs in the log: all of them, or none. A version that the same query, or a job
        without a query, repeats changes nothing, and the driver's log says how many rows it had.

        Args:
            epoch: epoch of the streaming query, whose version is in `publisher`.

        Raises:
            VersionPublished: another query published the version under the name, and option ifPublished is error.
            SchemaMismatch: the log got another schema since the attempts began.
        """
        schema = self._plan.change
        if any(result.schema != schema.stored.name for result in results):
            raise schema_changed(self.log)
        outputs = [output_of(each) for each in results]
        ledger = self._target.ledger_options(SegmentOwner("query", publisher.name), is_shared=True)
        committer = committer_of(self.named_log(), publisher.name, ledger, self.options)
        change = committer.overwrite if is_overwrite else committer.append
        rows = sum(result.rows for result in results)
        skips = self.options.if_published == SKIP
        is_new = publish_once(lambda: run(lambda: change(outputs, publisher, schema)), rows, epoch, skips=skips)
        if is_new is None:
            return
        if not is_new:
            what = f"log {self.log} has version {publisher.version} of {publisher.name!r}"
            warn_of_repetition(what, publisher, rows)
        elif self._plan.is_news and not rows and not is_overwrite:
            self.publish((), is_overwrite=False)

    def discard(self, _: Sequence[AttemptResult], owner_id: str, epoch: int | None = None) -> None:
        """Delete the unpublished ledgers of a job's attempts, or of those of a query's epochs up to `epoch`."""
        log = self.named_log()
        run(lambda: log.discard(owner_id, up_to_epoch=epoch))

    def named_log(self) -> Log:
        """Return the log, by this process's client."""
        return self._target.named_log()


def destination_of(
    schema: StructType, options: SourceOptions, *, is_overwrite: bool
) -> Destination | RoutedDestination:
    """Return the target of a write: the log that option `log` names or, without it, those that the rows name."""
    kind = RoutedDestination if options.log is None else Destination
    return kind(schema, options, is_overwrite=is_overwrite)


def _discard_leftovers(
    destination: Destination | RoutedDestination,
    results: Sequence[AttemptResult],
    owner_id: str,
    epoch: int | None = None,
) -> None:
    """Delete leftovers after a commit that took effect. Errors are ignored, so that Spark does not repeat the job."""
    try:
        destination.discard(results, owner_id, epoch)
    except BookKeeperError:
        return  # the rest is still listed as pending or condemned: the next commit or a vacuum deletes it


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigurationError("a write runs inside a Spark task only: Spark gave it no task context")
    return context


class BookKeeperWriter(DataSourceArrowWriter):
    """A batch job's write: append publishes at the log's end, overwrite replaces the log's content.

    Spark has no other mode for Python sources; option ifExists replaces errorifexists and ignore. A log without ledgers
    counts as absent then, as a failed job may have left it.

    Raises:
        LogExists: the log holds ledgers, and ifExists is error.
    """

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        checked = options.for_batch_write(is_overwrite=overwrite)
        self.destination = destination_of(schema, checked, is_overwrite=overwrite)
        """The log, or logs, that get the rows."""
        self._overwrite = overwrite
        """Whether they get the rows instead of what they have."""
        # Made once, before any task; Spark pickles it for tasks, commit and abort.
        self.job_id = str(uuid.uuid4())
        """Names the job in pending ledgers, and its commit. Constant."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition to its own ledgers; nothing if the log has content that ifExists protects."""
        context = _task()
        owner = SegmentOwner("job", self.job_id, None, context.partitionId(), context.taskAttemptId())
        if self.destination.is_skipped:
            return AttemptResult(owner, ())
        # In foreachBatch a job runs for a streaming query: the query's checkpoint determines the batch of a version.
        query = context.getLocalProperty(QUERY_ID)
        is_keyed = self.destination.options.txn_app_id is not None
        return self.destination.write(owner, iterator, is_keyed=is_keyed, query=query)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the output of all tasks in one change of the log. With txnAppId, a version is published only once,
        and never after a later one."""
        freeze_imported_modules()
        results = results_of(messages)
        name, version = self.destination.options.txn_app_id, self.destination.options.txn_version
        if name is not None and version is not None:
            query = next((result.query for result in results), None)
            publisher = Publisher(name, version, query)
            self.destination.publish_version(results, publisher, is_overwrite=self._overwrite)
        else:
            self.destination.publish_job(results, self.job_id, is_overwrite=self._overwrite)
        _discard_leftovers(self.destination, results, self.job_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the job wrote, unless it is published."""
        self.destination.discard(results_of(messages), self.job_id)


class BookKeeperStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's write: each epoch is published once, however often Spark commits it.

    An epoch is identified by the query's id, which the checkpoint keeps, and its number. With txnAppId it is a version
    of that name, counted from txnVersion on; the query's id then distinguishes its own repetition from the rows of
    another query.

    Spark creates a new writer for every epoch, and another for its commit: the commit messages carry their shared
    state.
    """

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        checked = options.for_stream_write(is_overwrite=overwrite)
        self.destination = destination_of(schema, checked, is_overwrite=overwrite)
        """The log, or logs, that get the rows."""
        self._overwrite = overwrite
        """Whether each epoch replaces what is there (output mode "complete")."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of an epoch to its own ledgers."""
        context = _task()
        query_id, epoch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query_id is None or epoch is None:
            raise ConfigurationError(
                f"Spark did not name the query and epoch of a task (local properties {QUERY_ID}, {BATCH_ID}): "
                "exactly-once writing needs them; use a Spark version that bkspark supports"
            )
        app_id = self.destination.options.txn_app_id
        name, number = app_id or query_id, self._version(int(epoch))
        owner = SegmentOwner("query", name, number, context.partitionId(), context.taskAttemptId())
        return self.destination.write(owner, iterator, is_keyed=True, query=query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the epoch, unless it is published already; then only delete the ledgers of the repetition."""
        results = results_of(messages)
        if not results:
            return  # no task ran: there is nothing to publish
        name, version = results[0].owner.owner_id, self._version(batchId)
        publisher = Publisher(name, version, None if self.destination.options.txn_app_id is None else results[0].query)
        reach("commit.begun")
        self.destination.publish_version(results, publisher, is_overwrite=self._overwrite, epoch=batchId)
        reach("commit.published")
        _discard_leftovers(self.destination, results, name, version)
        reach("commit.done")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what the epoch wrote, unless it is published.

        If no task reported, the query's id is unknown here: the epoch's next commit deletes the ledgers.
        """
        results = results_of(messages)
        if results:
            self.destination.discard(results, results[0].owner.owner_id, self._version(batchId))

    def _version(self, epoch: int) -> int:
        return epoch + (self.destination.options.txn_version or 0)
