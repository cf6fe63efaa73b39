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
import hmac
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bkspark.blocking import LedgerWriter, run
from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    LogExists,
    MalformedPayload,
    NoSuchLog,
    NotEnoughBookies,
    SchemaMismatch,
    UnauthorizedAccess,
    VersionPublished,
)
from bkspark.log.epochs import Output
from bkspark.log.formats import Publisher, SegmentFacts, SegmentOwner
from bkspark.log.log import Log
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.writer import LedgerOptions
from bkspark.spark.columns import arrow_schema
from bkspark.spark.committers import committer_of
from bkspark.spark.connection import connect
from bkspark.spark.formats.compression import Compression
from bkspark.spark.formats.decoding import check_nulls
from bkspark.spark.formats.registry import encoder_of
from bkspark.spark.frozen import freeze_imported_modules
from bkspark.spark.log_schemas import PAYLOAD_FORMAT_KEY, WritePlan, new_log_plan, planned_write, renamed
from bkspark.spark.options import SourceOptions
from bkspark.spark.stored_ledgers import stored_ledgers
from bkspark.spark.versions import DataSourceStreamArrowWriter
from bkspark.spark.write_options import APPEND, ERROR, IGNORE, SKIP, check_compression
from bkspark.stages import reach
from bkspark.wire.framing import FRAME_BYTES_MAX

ENTRY_OVERHEAD_BYTES = 1024
"""Room in a frame for an entry's head, digest and keys, with a margin."""

ENTRY_LIMIT_BYTES = FRAME_BYTES_MAX - ENTRY_OVERHEAD_BYTES

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of a task in which Spark names the streaming query and its epoch; the API does not pass them."""


PASSWORDS_MAX = 1000
"""Number of logs for which a process remembers that; above it, it forgets all of them."""

_log = logging.getLogger(__name__)

_passwords: dict[tuple[str, str], tuple[list[int], bytes]] = {}
"""By cluster and log: the newest ledger whose password this process has verified."""


@dataclass(frozen=True)
class AttemptResult(WriterCommitMessage):
    """The output of a task attempt: closed ledgers in order, or entries that it leaves to the driver; neither when it
    had no row. `owner`: the owner of the attempt; `query`: the id of its streaming query, if there is one;
    `schema`: the log's schema that the rows fit, by name."""

    owner: SegmentOwner
    ledgers: tuple[SegmentFacts, ...]
    entries: EntryBatch | None = field(default=None, repr=False)
    rows: int = 0
    query: str | None = None
    schema: str | None = None


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
        if not len(schema):
            raise ConfigurationError("the data has no column, so its rows would be lost: select at least one")
        self._schema = schema
        default = new_log_plan(self.options, schema)
        self._encoder(default)  # a column that the format cannot hold raises here, on the driver
        self.options.encryption.check_keys()
        plan = self._prepared(is_overwrite=is_overwrite)
        self.is_skipped = plan is None
        self._plan = default if plan is None else plan

    def encoder(self) -> Callable[[pa.RecordBatch], Iterator[EntryBatch]]:
        """Return the function that turns a batch of rows into entries. It raises MalformedPayload as encoders do."""
        return self._encoder(self._plan)

    def _encoder(self, plan: WritePlan) -> Callable[[pa.RecordBatch], Iterator[EntryBatch]]:
        written = renamed(self._schema, plan.entries.names)
        options = self.options
        kinds = arrow_schema(written)
        codec = Compression(options.compression, options.compression_level)
        encode = encoder_of(plan.payload_format, kinds, options.entry_bytes_target, ENTRY_LIMIT_BYTES, codec).encode
        if not plan.is_stricter_than(self._schema):
            return lambda batch: encode(batch.rename_columns(kinds.names))
        required = arrow_schema(plan.entries)

        def checked(batch: pa.RecordBatch) -> Iterator[EntryBatch]:
            batch = batch.rename_columns(kinds.names)
            for values, column in zip(batch.columns, required):
                try:
                    check_nulls(values, column)
                except ValueError:
                    raise MalformedPayload(
                        f"column '{column.name}' holds a null that log {self.log} does not take (NOT NULL): filter it "
                        "out, or replace the log (mode overwrite with overwriteSchema=true)"
                    ) from None
            return encode(batch)

        return checked

    def _prepared(self, *, is_overwrite: bool) -> WritePlan | None:
        """Make sure, before any task starts, that the cluster can create ledgers, that the rows fit the log, and that
        the log exists. Return how to write; None if nothing is to be written."""
        client = connect(self.options).asynchronous

        async def prepare() -> WritePlan | None:
            registry = (await client.context()).registry
            log = Log(client, self.log)
            # One round trip to the metadata store: every epoch of a stream comes here twice.
            writable, snapshot = await asyncio.gather(registry.writable(), _snapshot_if_any(log))
            if len(writable) < self.options.ensemble_size:
                read_only = len(await registry.read_only())
                others = f" ({read_only} more are read-only: see to their disks)" if read_only else ""
                raise NotEnoughBookies(
                    f"option 'ensembleSize' is {self.options.ensemble_size}, but only {len(writable)} bookies take "
                    f"writes{others}: start more, or lower ensembleSize, writeQuorum and ackQuorum"
                )
            if snapshot is not None and not is_overwrite:
                await self._check_password(client, snapshot)
                if self._is_not_wanted(snapshot):
                    return None
            found = None
            if snapshot is not None and not snapshot.schemas and not is_overwrite:
                from bkspark.spark.inference import shown_by_entries  # tasks import this module, and need nothing of it

                found = await shown_by_entries(client, self.options, self._schema, snapshot)
            plan = await planned_write(self.options, self._schema, snapshot, found, is_overwrite=is_overwrite)
            check_compression(self.options, plan.payload_format)
            self._encoder(plan)
            if snapshot is None:
                await log.create(exist_ok=True)
            return plan

        return run(prepare)

    def _is_not_wanted(self, snapshot: LogSnapshot) -> bool:
        if self.options.if_exists == APPEND or not len(snapshot):
            return False
        if self.options.if_exists == ERROR:
            raise LogExists(
                f"log {self.log} holds ledgers already, and option 'ifExists' is error: "
                "write to another log, or use mode overwrite or ifExists append"
            )
        return True

    async def _check_password(self, client: Client, snapshot: LogSnapshot) -> None:
        """Compare the password with that of the log's newest ledger."""
        newest = [listed.ledger_id for listed in await snapshot.ledgers(snapshot.end_ordinal - 1)]
        # A ledger keeps its password.
        key = (self.options.uri, self.log)
        given, known = self.options.password, _passwords.get(key)
        if known is not None and known[0] == newest and hmac.compare_digest(known[1], given):
            return
        async for ledger_id, stored in stored_ledgers(client, newest):
            password = stored.metadata.password
            if password is not None and not hmac.compare_digest(password, given):
                raise UnauthorizedAccess(
                    f"option '{self.options.ledger_password.option}' is not the one that log {self.log} is written "
                    f"with (its ledger {ledger_id}), and a log is read with one password: set that, or write to "
                    "another log",
                    ledger_id=ledger_id,
                )
        if len(_passwords) >= PASSWORDS_MAX:
            _passwords.clear()
        _passwords[key] = (newest, given)

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
        encode = self.encoder()
        rows = 0
        reach("task.begun")
        with AttemptWriter(self.named_log(), self, owner, self.options.inline_bytes if is_keyed else 0) as attempt:
            for batch in batches:
                rows += batch.num_rows
                for entries in encode(batch):
                    attempt.append(entries)
                    reach("task.wrote")
            result = AttemptResult(owner, attempt.finish(), attempt.held(), rows, query, self._plan.change.stored.name)
        reach("task.closed")
        return result

    def ledger_options(self, owner: SegmentOwner, *, is_shared: bool = False) -> LedgerOptions:
        """Return the options of an attempt's ledgers, or of those that commits share.

        Shared ones are published while they are open, so their acknowledged entries must be durable for any
        `ledgerType`.
        """
        options = self.options
        return LedgerOptions(
            options.ensemble_size,
            options.write_quorum,
            options.ack_quorum,
            "PD_JOURNAL" if is_shared else options.ledger_type,
            metadata={
                **options.ledger_metadata,
                "bkspark.owner": f"{owner.kind}:{owner.owner_id}",
                PAYLOAD_FORMAT_KEY: self._plan.payload_format,
            },
        )

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
            raise SchemaMismatch(
                f"log {self.log} got another schema while the rows were written: nothing was published. Start again"
            )
        outputs = [Output(each.ledgers, () if each.entries is None else (each.entries,)) for each in results]
        ledger = self.ledger_options(SegmentOwner("query", publisher.name), is_shared=True)
        committer = committer_of(self.named_log(), publisher.name, ledger, self.options)
        change = committer.overwrite if is_overwrite else committer.append
        rows = sum(result.rows for result in results)
        try:
            is_new = run(lambda: change(outputs, publisher, schema))
        except VersionPublished as error:
            if self.options.if_published != SKIP:
                raise self._refusal(error, rows, epoch) from None
            _log.warning("%s. Its %d rows are left out, as option 'ifPublished' is skip", error, rows)
            return
        if not is_new:
            _log.warning(
                "log %s has version %d of %r already%s: its %d rows are not written again",
                self.log,
                publisher.version,
                publisher.name,
                "" if publisher.query is None else f", by the same query {publisher.query}",
                rows,
            )
        elif self._plan.is_news and not rows and not is_overwrite:
            self.publish((), is_overwrite=False)

    def _refusal(self, error: VersionPublished, rows: int, epoch: int) -> VersionPublished:
        """Return the error with what to do about it. A query's epoch 0 has version txnVersion."""
        assert error.last_version is not None
        return VersionPublished(
            f"{error}. None of its {rows} rows was written. Another query has other rows in the same version: give "
            f"this one a txnAppId of its own, or let it go on after the last version with txnVersion "
            f"{error.last_version + 1 - epoch} (in foreachBatch: its batch id plus a number that makes it so). If it "
            "has the same rows in the same versions, set ifPublished to skip: what is published is left out then",
            last_version=error.last_version,
        )

    def discard_after_publishing(self, owner_id: str, epoch: int | None = None) -> None:
        """`discard` after a commit that took effect: its failure must not make Spark repeat the job."""
        try:
            self.discard(owner_id, epoch)
        except BookKeeperError:
            return  # the rest is still listed as pending or condemned: the next commit or a vacuum deletes it

    def discard(self, owner_id: str, epoch: int | None = None) -> None:
        """Delete the unpublished ledgers of a job's attempts, or of those of a query's epochs up to `epoch`."""
        log = self.named_log()
        run(lambda: log.discard(owner_id, up_to_epoch=epoch))

    def named_log(self) -> Log:
        """Return the log, by this process's client."""
        return Log(connect(self.options).asynchronous, self.log)


async def _snapshot_if_any(log: Log) -> LogSnapshot | None:
    try:
        return await log.snapshot()
    except NoSuchLog:
        return None


class AttemptWriter:
    """The ledgers of one task attempt. A context manager: after an error, it abandons open ledgers.

    Args:
        inline_bytes: entries up to this many bytes in total create no ledger; `held` returns them at the end.
    """

    def __init__(self, log: Log, destination: Destination, owner: SegmentOwner, inline_bytes: int) -> None:
        self._log = log
        self._destination = destination
        self._owner = owner
        self._inline_bytes = inline_bytes
        self._held: list[EntryBatch] = []
        self._held_bytes = 0
        self._writer: LedgerWriter | None = None
        self._closed: list[SegmentFacts] = []

    def append(self, entries: EntryBatch) -> None:
        """Send entries; the client's window bounds what is in flight.

        Raises:
            MalformedPayload: an entry is larger than a bookie takes.
        """
        if not len(entries):
            return
        largest = int(np.diff(entries.offsets).max())
        if largest > ENTRY_LIMIT_BYTES:
            raise MalformedPayload(
                f"a row makes an entry of {largest} bytes, above the limit of {ENTRY_LIMIT_BYTES}: "
                "split its largest column, or store it elsewhere and write a reference"
            )
        if self._hold(entries):
            return
        for held in self._held:
            self._send(held)
        self._held = []
        self._send(entries)

    def _hold(self, entries: EntryBatch) -> bool:
        """Keep entries here if all so far are few enough."""
        self._held_bytes += entries.payload_bytes + entries.offsets.nbytes
        if self._held_bytes <= self._inline_bytes:
            self._held.append(entries)
        return self._held_bytes <= self._inline_bytes

    def held(self) -> EntryBatch | None:
        """Return the entries that were not written, None if all were written, or if there were none."""
        return EntryBatch.joined(self._held) if self._held else None

    def _send(self, entries: EntryBatch) -> None:
        ledger_bytes_max = self._destination.options.ledger_bytes_max
        while len(entries):
            if self._writer is None:
                self._writer = self._new_ledger()
            room = max(1, ledger_bytes_max - self._writer.length)
            piece = next(entries.split(len(entries), room))
            self._writer.submit(piece)
            if self._writer.length >= ledger_bytes_max:
                self._close()
            entries = entries.slice(len(piece), len(entries))

    def finish(self) -> tuple[SegmentFacts, ...]:
        """Close the last ledger; return all of them. Every entry is then durable on ackQuorum bookies.

        Closing syncs: with relaxed durability each ledger once, before the task reports it.
        """
        if self._writer is not None:
            self._close()
        return tuple(self._closed)

    def _new_ledger(self) -> LedgerWriter:
        options = self._destination.ledger_options(self._owner)
        return LedgerWriter(run(lambda: self._log.create_attempt(self._owner, options)))

    def _close(self) -> None:
        assert self._writer is not None
        closed = self._writer.close()
        self._closed.append(SegmentFacts(self._writer.ledger_id, closed.last_entry, closed.length))
        self._writer = None

    def __enter__(self) -> AttemptWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.abandon()


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[AttemptResult]:
    """Return the outputs of the successful attempts, in partition order."""
    results = [message for message in messages if isinstance(message, AttemptResult)]
    return sorted(results, key=lambda result: result.owner.partition or 0)


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
        self._destination = Destination(schema, options.for_batch_write(is_overwrite=overwrite), is_overwrite=overwrite)
        self._overwrite = overwrite
        # Made once, before any task; Spark carries it to tasks, commit and abort.
        self._job_id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition to its own ledgers; nothing if the log has content that ifExists protects."""
        context = _task()
        owner = SegmentOwner("job", self._job_id, None, context.partitionId(), context.taskAttemptId())
        if self._destination.is_skipped:
            return AttemptResult(owner, ())
        # In foreachBatch a job runs for a streaming query: the query's checkpoint determines the batch of a version.
        query = context.getLocalProperty(QUERY_ID)
        is_keyed = self._destination.options.txn_app_id is not None
        return self._destination.write(owner, iterator, is_keyed=is_keyed, query=query)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what all tasks wrote, in one change of the log; a version of txnAppId once, and no older one."""
        freeze_imported_modules()
        results = _results(messages)
        name, version = self._destination.options.txn_app_id, self._destination.options.txn_version
        if name is not None and version is not None:
            query = next((result.query for result in results), None)
            publisher = Publisher(name, version, query)
            self._destination.publish_version(results, publisher, is_overwrite=self._overwrite)
        else:
            self._publish_unkeyed([ledger for result in results for ledger in result.ledgers])
        self._destination.discard_after_publishing(self._job_id)

    def _publish_unkeyed(self, ledgers: Sequence[SegmentFacts]) -> None:
        try:
            self._destination.publish(ledgers, is_overwrite=self._overwrite)
        except LogExists:
            # Another job published first while this one wrote.
            if self._destination.options.if_exists != IGNORE:
                raise

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the job wrote, unless it is published."""
        self._destination.discard(self._job_id)


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
        self._destination = Destination(schema, checked, is_overwrite=overwrite)
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of an epoch to its own ledgers."""
        context = _task()
        query_id, epoch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query_id is None or epoch is None:
            raise ConfigurationError(
                f"Spark did not name the query and epoch of a task (local properties {QUERY_ID}, {BATCH_ID}): "
                "exactly-once writing needs them; use a Spark version that bkspark supports"
            )
        app_id = self._destination.options.txn_app_id
        name, number = app_id or query_id, self._version(int(epoch))
        owner = SegmentOwner("query", name, number, context.partitionId(), context.taskAttemptId())
        return self._destination.write(owner, iterator, is_keyed=True, query=query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the epoch, unless it is published already; then only delete the ledgers of the repetition."""
        results = _results(messages)
        if not results:
            return  # no task ran: there is nothing to publish
        name, version = results[0].owner.owner_id, self._version(batchId)
        publisher = Publisher(name, version, None if self._destination.options.txn_app_id is None else results[0].query)
        reach("commit.begun")
        self._destination.publish_version(results, publisher, is_overwrite=self._overwrite, epoch=batchId)
        reach("commit.published")
        self._destination.discard_after_publishing(name, version)
        reach("commit.done")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what the epoch wrote, unless it is published.

        If no task reported, the query's id is unknown here: the epoch's next commit deletes the ledgers.
        """
        results = _results(messages)
        if results:
            self._destination.discard(results[0].owner.owner_id, self._version(batchId))

    def _version(self, epoch: int) -> int:
        return epoch + (self._destination.options.txn_version or 0)
