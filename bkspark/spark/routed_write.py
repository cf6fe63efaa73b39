"""Writing to many logs: the column `log` of a row names its log, and one commit publishes in all of them.

    attempt   collects rows, groups them by log, and writes each group to ledgers of its log. Small groups stay in the
              report
    commit    checks the schema of each log, appends the reported rows to a shared ledger of each log, and publishes in
              all logs by one transaction (`bkspark.log.routing`)
    after, and abort: as for one log (write.py), for the logs that the attempts report

An attempt learns the names of its logs from its rows. It checks that these logs accept the rows, and the commit checks
again: if one log does not accept them, nothing is published in any log.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.entries import EntryBatch
from bkspark.log.changes import last_version
from bkspark.log.formats import Publisher, SegmentOwner
from bkspark.log.log import Log
from bkspark.log.routed_epochs import RoutedOutput
from bkspark.spark.attempt_writer import AttemptWriter
from bkspark.spark.committers import routed_committer_of
from bkspark.spark.connection import connect
from bkspark.spark.frozen import freeze_imported_modules
from bkspark.spark.options import SourceOptions
from bkspark.spark.reports import (
    AttemptResult,
    LogResult,
    not_in_logs,
    output_of,
    publish_once,
    schema_changed,
    warn_of_repetition,
)
from bkspark.spark.routed_rows import by_log, log_column, without
from bkspark.spark.targets import LogTarget, check_bookies, checked_default, plan_of, snapshot_if_any
from bkspark.spark.write_options import SKIP
from bkspark.stages import reach
from bkspark.tasks import each_of

COLLECTED_BYTES = 32 << 20
"""Bytes of rows that an attempt collects before it groups them by log, so that each log gets few large entries."""
HELD_SHARES = 16
"""The rows that an attempt holds for its report are at most this many times option inlineBytes, of all its logs."""
OPEN_MAX = 256
"""Ledgers that an attempt has open at the same time; above it, the least recently used one is closed."""

_log = logging.getLogger(__name__)


class RoutedDestination:
    """The target of a job or query whose rows name their logs. It is small and part of every task.

    Raises:
        ConfigurationError: an option is wrong for this write, the rows cannot be routed, or the payload format cannot
            hold a column.
        MetadataError: the cluster cannot be reached.
        NotEnoughBookies: fewer bookies accept writes than the ensemble needs.
    """

    is_skipped = False

    def __init__(self, schema: StructType, options: SourceOptions, *, is_overwrite: bool) -> None:
        name = log_column(schema)
        self.options = options.for_routed_write()
        self._column = schema.names.index(name)
        self._rows = without(schema, name)
        self._is_overwrite = is_overwrite
        """Whether the logs get the rows instead of what they have."""
        checked_default(self.options, self._rows)
        client = connect(self.options).asynchronous
        run(lambda: check_bookies(client, self.options))

    def targets(self, names: Sequence[str]) -> dict[str, tuple[LogTarget, bool]]:
        """Return how rows are written to logs, as these are now, and whether each exists.

        Raises:
            SchemaMismatch, UnauthorizedAccess, ...: a log does not accept the rows; the message names it.
        """
        client = connect(self.options).asynchronous

        async def target(name: str) -> tuple[LogTarget, bool]:
            options = replace(self.options, log=name)
            snapshot = await snapshot_if_any(Log(client, name))
            plan = await plan_of(client, options, self._rows, snapshot, is_overwrite=self._is_overwrite)
            assert plan is not None, "ifExists is append"
            return LogTarget(options, self._rows, plan), snapshot is not None

        return dict(zip(names, run(lambda: each_of(target, names))))

    # ---- in a task ----

    def write(
        self, owner: SegmentOwner, batches: Iterator[pa.RecordBatch], *, is_keyed: bool, query: str | None = None
    ) -> AttemptResult:
        """Write the rows of one task attempt to ledgers of their logs, which are closed when this returns.

        Raises:
            MalformedPayload: a row names no log, or one that cannot exist.
            BookKeeperError: nothing of this attempt can be published.
        """
        freeze_imported_modules()
        reach("task.begun")
        with _Attempt(self, owner) as attempt:
            for collected in _collected(batches):
                attempt.append(list(by_log(collected, self._column)))
                reach("task.wrote")
            result = AttemptResult(owner, (), query=query, logs=attempt.finish())
        reach("task.closed")
        return result

    # ---- on the driver, once all attempts have reported ----

    def publish_job(self, results: Sequence[AttemptResult], job_id: str, *, is_overwrite: bool) -> None:
        """Publish what a job without a name wrote, in all of its logs or in none.

        Raises:
            SchemaMismatch, ...: a log may not be written; the message names it.
        """
        parts = self._parts(results, job_id)
        committer = routed_committer_of(job_id, self.options, is_kept=False)
        owner = SegmentOwner("job", job_id)
        if parts:
            run(lambda: committer.publish_whole(parts, None, owner, is_overwrite=is_overwrite))

    def publish_version(
        self, results: Sequence[AttemptResult], publisher: Publisher, *, is_overwrite: bool, epoch: int = 0
    ) -> None:
        """Publish a version in all logs of its rows, or in none; as `Destination.publish_version`.

        Raises:
            VersionPublished: also if a job without a query repeats a version that one of its logs lacks.
        """
        parts, rows = self._parts(results, publisher.name), sum(each.rows for result in results for each in result.logs)
        if not parts:
            return
        committer = routed_committer_of(publisher.name, self.options, is_kept=True)
        owner = SegmentOwner("query", publisher.name, publisher.version)

        def publish() -> bool:
            if is_overwrite:
                return run(lambda: committer.publish_whole(parts, publisher, owner, is_overwrite=True))
            return run(lambda: committer.append(parts, publisher))

        skips = self.options.if_published == SKIP
        if publish_once(publish, rows, epoch, skips=skips) is False:
            # A query's checkpoint says that it repeats its epoch. A job may run again because its logs were deleted.
            lacking = [] if publisher.query is not None or skips else self._lacking(parts, publisher)
            if lacking:
                raise not_in_logs(lacking, publisher, rows)
            what = f"version {publisher.version} of {publisher.name!r} is published in its logs"
            warn_of_repetition(what, publisher, rows)

    def _lacking(self, parts: Sequence[RoutedOutput], publisher: Publisher) -> list[str]:
        """Return the logs that do not have the version: it was published in others, or they were made again since."""
        client = connect(self.options).asynchronous

        async def version(part: RoutedOutput) -> int | None:
            return last_version((await Log(client, part.log).snapshot()).head, publisher.name)

        versions = run(lambda: each_of(version, parts))
        return [part.log for part, found in zip(parts, versions) if found is None or found < publisher.version]

    def _parts(self, results: Sequence[AttemptResult], owner_id: str) -> list[RoutedOutput]:
        """Return what to publish in each log, by name; the logs exist afterwards."""
        found: defaultdict[str, list[LogResult]] = defaultdict(list)
        for result in results:
            for each in result.logs:
                found[each.log].append(each)
        names = sorted(found)
        targets = self.targets(names)
        for name in names:
            if any(each.schema != targets[name][0].plan.change.stored.name for each in found[name]):
                raise schema_changed(name)
        client = connect(self.options).asynchronous
        missing = [name for name in names if not targets[name][1]]
        run(lambda: each_of(lambda name: Log(client, name).create(exist_ok=True), missing))
        return [
            RoutedOutput(
                name,
                tuple(map(output_of, found[name])),
                targets[name][0].ledger_options(SegmentOwner("query", owner_id), is_shared=True),
                targets[name][0].plan.change,
            )
            for name in names
        ]

    def discard(self, results: Sequence[AttemptResult], owner_id: str, epoch: int | None = None) -> None:
        """Delete the unpublished ledgers of the owner's attempts in the logs for which its results name ledgers.

        Another attempt of the same task had the same rows, so it has ledgers in the same logs.
        """
        names = sorted({each.log for result in results for each in result.logs if each.ledgers})
        committer = routed_committer_of(owner_id, self.options, is_kept=False)
        run(lambda: committer.discard(names, epoch))


def _collected(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches in lists of COLLECTED_BYTES, about."""
    collected: list[pa.RecordBatch] = []
    byte_count = 0
    for batch in batches:
        collected.append(batch)
        byte_count += batch.nbytes
        if byte_count >= COLLECTED_BYTES:
            yield collected
            collected, byte_count = [], 0
    if collected:
        yield collected


class _Attempt:
    """What one task attempt writes, log by log. A context manager: after an error, it abandons open ledgers."""

    def __init__(self, destination: RoutedDestination, owner: SegmentOwner) -> None:
        self._destination = destination
        self._owner = owner
        self._inline_bytes = destination.options.inline_bytes
        """Up to this size, entries of a log go to the driver instead of a ledger. Constant."""
        self._writers: dict[str, AttemptWriter] = {}
        """The writer of each log that has rows. `_encoders` and `_schemas` have the same keys."""
        self._encoders: dict[str, Callable[[pa.RecordBatch], Iterator[EntryBatch]]] = {}
        """How each log's rows become entries."""
        self._schemas: dict[str, str] = {}
        """The schema that each log's entries are recorded with."""
        self._rows: Counter[str] = Counter()
        """How many rows each log got."""
        self._open: OrderedDict[str, AttemptWriter] = OrderedDict()
        """Writers with an open ledger, the least recently used first; at most OPEN_MAX."""

    def append(self, groups: Sequence[tuple[str, pa.RecordBatch]]) -> None:
        """Send rows, those of each log together."""
        self._meet([name for name, _ in groups if name not in self._writers])
        for name, rows in groups:
            writer = self._writers[name]
            self._rows[name] += rows.num_rows
            for entries in self._encoders[name](rows):
                writer.append(entries)
            self._note_use(name, writer)
        self._keep_few()

    def _meet(self, names: Sequence[str]) -> None:
        for name, (target, _) in self._destination.targets(names).items():
            self._writers[name] = AttemptWriter(target, self._owner, self._inline_bytes, make_log=True)
            self._encoders[name] = target.encoder()
            self._schemas[name] = target.plan.change.stored.name

    def _note_use(self, name: str, writer: AttemptWriter) -> None:
        self._open.pop(name, None)
        if writer.is_open:
            self._open[name] = writer
        while len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)[1].close_ledger()

    def _keep_few(self) -> None:
        """Write held rows to ledgers, largest first, until no more are held than the report may have for all logs."""
        held = sum(writer.held_bytes for writer in self._writers.values())
        most = HELD_SHARES * self._inline_bytes
        for name, writer in sorted(self._writers.items(), key=lambda item: -item[1].held_bytes):
            if held <= most:
                return
            held -= writer.held_bytes
            writer.spill()
            self._note_use(name, writer)

    def finish(self) -> tuple[LogResult, ...]:
        """Close the open ledgers; return the output for each log."""
        return tuple(
            LogResult(name, writer.finish(), writer.held(), self._rows[name], self._schemas[name])
            for name, writer in self._writers.items()
        )

    def __enter__(self) -> _Attempt:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.abandon()
