"""The life of a log at random: appends, epochs, overwrites, truncations, expiry, crashes, and readers that resume.

Everything goes through the connector's own classes, as Spark calls them on the driver and in tasks; only Spark itself
is left out. A crash is an exception at a named stage, after which the process's state is gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from bkspark import stages
from bkspark.blocking import Client
from bkspark.errors import DataLoss
from bkspark.log.formats import SegmentOwner
from bkspark.spark import committers
from bkspark.spark.options import SourceOptions
from bkspark.spark.stream import BookKeeperStreamReader
from bkspark.spark.write import BookKeeperStreamWriter, BookKeeperWriter
from tests.planting import replaced

SCHEMA = StructType().add("value", "string")
COMMIT_STAGES = ("commit.begun", "commit.appended", "commit.published", "commit.done")
QUERY = "sink"


class CrashError(BaseException):
    """The process ends here."""


@contextmanager
def crash_at(stage: str | None) -> Iterator[None]:
    def reached(name: str) -> None:
        if name == stage:
            raise CrashError

    with replaced(stages, "listener", reached):
        yield


class Reader:
    """One streaming query over the log: its checkpoint, and what it has delivered, each row once."""

    def __init__(self, life: Life, *, fails: bool, consumer: str | None) -> None:
        self._life = life
        self.fails = fails
        self.consumer = consumer
        self._chance = life.chance
        self._stream: BookKeeperStreamReader | None = None
        self.begin()

    def begin(self) -> None:
        """Begin with a new checkpoint, at the beginning of the log."""
        self._stream = None
        self._pending: tuple[dict[str, Any], dict[str, Any]] | None = None
        self.delivered: list[int] = []
        self.first = self._life.begins_at
        """The first row that the log still had."""
        self._offset: dict[str, Any] = self.stream.initialOffset()
        self._is_committed = True
        self.overwrites = self._life.overwrites
        """How often the log had been overwritten at the last trigger."""

    @property
    def unread(self) -> int:
        """The place of the first row that was not delivered."""
        return self.first + len(self.delivered)

    @property
    def stream(self) -> BookKeeperStreamReader:
        if self._stream is None:
            options = {"startingOffsets": "earliest", "failOnDataLoss": str(self.fails).lower()}
            if self.consumer is not None:
                options["consumer"] = self.consumer
            if self._chance.random() < 0.5:
                options["maxEntriesPerTrigger"] = str(self._chance.choice((1, 2, 5)))
            self._stream = BookKeeperStreamReader(SCHEMA, self._life.options(**options))
        return self._stream

    def crash(self) -> None:
        self._stream = None

    def trigger(self) -> bool:
        """Run one micro-batch, which may end in a crash; return whether there was one.

        Raises:
            DataLoss: as the query.
        """
        stream = self.stream
        if self._pending is None:
            if not self._is_committed:
                stream.commit(self._offset)
                self._is_committed = True
            end = stream.latestOffset(self._offset, stream.getDefaultReadLimit())
            if end == self._offset:
                self.overwrites = self._life.overwrites
                return False
            self._pending = (self._offset, end)
        if self._chance.random() < 0.15:
            self.crash()  # after the offsets were written, before the batch
            stream = self.stream
        tasks = stream.partitions(*self._pending)
        rows = [int(value) for task in tasks for batch in stream.read(task) for value in batch["value"].to_pylist()]
        if self._chance.random() < 0.15:
            self.crash()  # before the batch was committed: its rows are read again
            return True
        self.delivered += rows
        self.overwrites = self._life.overwrites
        self._offset, self._pending, self._is_committed = self._pending[1], None, False
        if self._chance.random() < 0.1:
            self.crash()
        return True


class Life:
    """A log and a model of it: `rows` are those that were published, in order; `begins_at` the first that is left."""

    def __init__(self, client: Client, uri: str, log: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self._client = client
        self._uri = uri
        self._log = log
        self.rows: list[int] = []
        self.begins_at = 0
        self._epoch = 0
        self._next = 0
        self._inline = self.chance.choice(("0", "512k"))
        self.overwrites = 0
        client.log(log).create()
        self.readers = [
            Reader(self, fails=True, consumer=None),
            Reader(self, fails=False, consumer=None),
            Reader(self, fails=True, consumer="etl"),
        ]
        self._steps: list[tuple[Callable[[], None], int]] = [
            (self._append, 4),
            (self._run_epoch, 6),
            (self._overwrite, 1),
            (self._truncate, 2),
            (self._expire, 3),
            (self._read, 14),
        ]

    def options(self, **given: str) -> SourceOptions:
        quorum = {} if "startingOffsets" in given else dict.fromkeys(("ensembleSize", "writeQuorum", "ackQuorum"), "1")
        return SourceOptions.parse({"uri": self._uri, "log": self._log, **quorum, **given})

    def live(self, steps: int) -> None:
        makers, weights = zip(*self._steps)
        for step in self.chance.choices(makers, weights, k=steps):
            step()
        for reader in self.readers:
            while self._triggered(reader):
                pass
            self._check(reader, is_end=True)

    # ---- writers ----

    def _new_rows(self) -> list[list[int]]:
        """Return the rows of each partition."""
        parts = []
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            count = self.chance.choice((0, 1, 2, 5))
            parts.append(list(range(self._next, self._next + count)))
            self._next += count
        return parts

    def _results(self, writer: Any, parts: list[list[int]], kind: str, owner: str, epoch: int | None) -> list[Any]:
        results = []
        for partition, rows in enumerate(parts):
            for attempt in range(self.chance.choice((1, 1, 2))):  # a lost attempt reports nothing
                batch = pa.record_batch([pa.array([str(row) for row in rows], pa.string())], names=["value"])
                of_attempt = SegmentOwner(kind, owner, epoch, partition, self.chance.randrange(1 << 40) + attempt)
                result = writer.destination.write(of_attempt, iter([batch]), is_keyed=kind == "query")
            results.append(result)
        return results

    def _append(self, *, overwrite: bool = False) -> None:
        writer = BookKeeperWriter(SCHEMA, self.options(), overwrite)
        parts = self._new_rows()
        results = self._results(writer, parts, "job", writer.job_id, None)
        if self.chance.random() < 0.2:
            writer.abort(results)
            return
        writer.commit(results)
        if self.chance.random() < 0.2:
            writer.abort(results)  # Spark does so when the answer of a commit is lost
        self._published(parts, overwrite=overwrite)

    def _overwrite(self) -> None:
        self._append(overwrite=True)

    def _published(self, parts: list[list[int]], *, overwrite: bool) -> None:
        if overwrite:
            self.overwrites += 1
            self.begins_at = len(self.rows)
        self.rows += [row for part in parts for row in part]
        self._note_expired()

    def _run_epoch(self) -> None:
        """Run an epoch of the sink, again and again until no crash interrupts it."""
        parts = self._new_rows()
        overwrite = self.chance.random() < 0.05
        for stage in [*self.chance.choices(COMMIT_STAGES, k=self.chance.choice((0, 0, 1, 2))), None]:
            options = self.options(inlineBytes=self._inline)
            writer = BookKeeperStreamWriter(SCHEMA, options, overwrite)
            results = self._results(writer, parts, "query", QUERY, self._epoch)
            try:
                with crash_at(stage):
                    writer.commit(results, self._epoch)
            except CrashError:
                committers.forget_committers()
        self._epoch += 1
        self._published(parts, overwrite=overwrite)

    # ---- what removes rows ----

    def _positions(self) -> list[tuple[Any, int]]:
        found = []
        for batch in self._client.log(self._log).read():
            found += [(position, int(payload)) for position, payload in zip(batch.positions, batch)]
        return found

    def _truncate(self) -> None:
        positions = self._positions()
        if not positions:
            return
        place = self.chance.choice([*(position for position, _ in positions), "latest"])
        self._client.log(self._log).truncate(place)
        self._note_removed()

    def _expire(self) -> None:
        log = self._client.log(self._log)
        log.set_retention(bytes=self.chance.choice((1, 10, 40)))
        log.expire()
        self._note_expired()

    def _note_removed(self) -> None:
        found = [row for _, row in self._positions()]
        assert found == self.rows[len(self.rows) - len(found) :], "what is left is not the end of the log"
        assert len(found) <= len(self.rows) - self.begins_at, "a row came back"
        self.begins_at = len(self.rows) - len(found)

    def _note_expired(self) -> None:
        """Note what retention has removed, which writers enforce, too."""
        before = self.begins_at
        self._note_removed()
        for reader in self.readers:
            # A reader of a log that was overwritten fails at its next trigger.
            is_alive = before <= reader.unread and reader.overwrites == self.overwrites
            if reader.consumer is not None and is_alive:
                assert self.begins_at <= reader.unread, "an expiry removed what a registered reader needs"

    # ---- readers ----

    def _read(self) -> None:
        reader = self.chance.choice(self.readers)
        self._triggered(reader)
        self._check(reader)

    def _triggered(self, reader: Reader) -> bool:
        try:
            return reader.trigger()
        except DataLoss:
            assert reader.fails
            is_lost = self.begins_at > reader.unread
            assert is_lost or self.overwrites > reader.overwrites, "nothing is lost that was not read"
            reader.begin()
            return True

    def _check(self, reader: Reader, *, is_end: bool = False) -> None:
        places = {row: place for place, row in enumerate(self.rows)}
        found = [places[row] for row in reader.delivered]
        assert found == sorted(set(found)), "a row came twice, or out of order"
        if reader.fails:
            assert found == list(range(reader.first, reader.first + len(found))), "a row was left out"
        if is_end:
            missing = set(range(reader.first, len(self.rows))) - set(found)
            assert all(place < self.begins_at for place in missing), "rows that are there were not delivered"
