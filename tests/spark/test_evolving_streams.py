"""Random histories of a log's columns while a stream runs, stops and resumes: no row is lost, and no value is null."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from bkspark.errors import DataLoss, MalformedPayload, SchemaMismatch
from bkspark.log.formats import SegmentOwner
from bkspark.spark.columns import arrow_schema
from bkspark.spark.options import SourceOptions
from bkspark.spark.source import BookKeeperDataSource
from bkspark.spark.write import BookKeeperWriter
from tests.spark.evolving import Author, same

pytestmark = pytest.mark.cluster

Row = dict[str, Any]
QUORUMS = dict.fromkeys(("ensembleSize", "writeQuorum", "ackQuorum"), "1")


class Stream:
    """A streaming query that finds its columns when it is started."""

    def __init__(self, log: EvolvingLog) -> None:
        self._log = log
        self.begin()

    def begin(self) -> None:
        """Begin with a new checkpoint."""
        self.delivered: list[tuple[Row, t.StructType]] = []
        self._offset: dict[str, Any] | None = None
        self.start()

    @property
    def is_begun(self) -> bool:
        return self._offset is not None

    def start(self) -> None:
        """Start the query, again if it has a checkpoint."""
        source = BookKeeperDataSource({**self._log.target, "startingOffsets": "earliest", "maxEntriesPerTrigger": "3"})
        self.columns = source.schema()
        self._reader = source.streamReader(self.columns)

    def trigger(self) -> bool:
        """Run a micro-batch; return whether there was one. Raises as the query."""
        if self._offset is None:
            self._offset = self._reader.initialOffset()
        end = self._reader.latestOffset(self._offset, self._reader.getDefaultReadLimit())
        if end == self._offset:
            return False
        rows = []
        for task in self._reader.partitions(self._offset, end):
            rows += [row for batch in self._reader.read(task) for row in batch.to_pylist()]
        self.delivered += [(row, self.columns) for row in rows]
        self._offset = end
        return True


class EvolvingLog:
    """A log and the rows that it has, as they were written; names of columns in lower case."""

    def __init__(self, uri: str, seed: int) -> None:
        self.target = {"uri": uri, "log": f"evolving-{seed}-{uuid.uuid4().hex[:8]}"}
        self.author = Author(seed)
        self._format = self.author.chance.choice(("arrow", "json", "msgpack"))
        self.rows: list[Row] = []
        self.columns = t.StructType()
        self.restarts = self.refusals = 0
        self.write(self.author.first_columns(), payloadFormat=self._format)
        self.stream = Stream(self)

    def write(self, columns: t.StructType, *, overwrite: bool = False, **options: str) -> None:
        given = SourceOptions.parse({**self.target, **QUORUMS, **options})
        writer = BookKeeperWriter(columns, given, overwrite)
        rows = [self.author.row(columns) for _ in range(self.author.chance.randint(1, 4))]
        batch = pa.RecordBatch.from_pylist(rows, arrow_schema(columns))
        owner = SegmentOwner("job", writer.job_id, None, 0, 0)
        writer.commit([writer.destination.write(owner, iter([batch]), is_keyed=False)])
        if overwrite:
            self.rows = []
        self.rows += [{name.lower(): value for name, value in row.items()} for row in batch.to_pylist()]
        self.columns = BookKeeperDataSource(self.target).schema()

    def evolve(self) -> None:
        try:
            self.write(self.author.later_columns(self.columns), mergeSchema="true")
        except (SchemaMismatch, MalformedPayload):  # the latter: a null where the log has NOT NULL
            self.refusals += 1

    def replace(self) -> None:
        self.write(self.author.first_columns(), overwrite=True, overwriteSchema="true", payloadFormat=self._format)
        if self.stream.is_begun:
            # The stream ends at its next trigger; only a new checkpoint helps.
            with pytest.raises(DataLoss):
                self.stream.trigger()
            self.stream.begin()

    def run(self) -> bool:
        try:
            return self.stream.trigger()
        except SchemaMismatch as error:
            if "start the query again" not in str(error):
                raise
            self.restarts += 1
            self.stream.start()
            return True

    def check(self) -> None:
        delivered = self.stream.delivered
        for (row, columns), written in zip(delivered, self.rows):
            wanted = {each.name: _seen(written.get(each.name.lower()), each.dataType) for each in columns}
            assert same(row) == same(wanted), f"{columns.simpleString()}"
        assert len(delivered) == len(self.rows)


def _seen(value: Any, kind: t.DataType) -> Any:
    """Return what a reader sees of a value that was written: nothing of members that its type lacks."""
    if value is None:
        return None
    if isinstance(kind, t.StructType):
        return {each.name: _seen(value.get(each.name), each.dataType) for each in kind}
    if isinstance(kind, t.ArrayType):
        return [_seen(each, kind.elementType) for each in value]
    if isinstance(kind, t.MapType):
        return [(_seen(key, kind.keyType), _seen(each, kind.valueType)) for key, each in value]
    return value


def live(uri: str, seed: int, steps: int) -> EvolvingLog:
    log = EvolvingLog(uri, seed)
    acts = (log.evolve, log.run, log.run, log.stream.start, log.replace)
    for act in log.author.chance.choices(acts, (6, 5, 5, 2, 1), k=steps):
        act()
    while log.run():
        pass
    try:
        log.check()
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    return log


def test_stream_delivers_all_values_while_columns_change(cluster):
    lives = [live(cluster.uri, seed, 20) for seed in range(4)]
    assert sum(each.restarts for each in lives)


@pytest.mark.long(reason="more seeds of an ordinary test")
def test_streams_deliver_all_values_while_columns_change(cluster):
    lives = [live(cluster.uri, seed, 30) for seed in range(100, 200)]
    assert sum(each.refusals for each in lives) > len(lives)
