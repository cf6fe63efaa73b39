"""One of several logs changes while a routed write runs: all logs get the rows, or none does, and the log is named."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from bkspark import stages
from bkspark.blocking import Client
from bkspark.errors import BookKeeperError, DataLoss, NoSuchLedger, NoSuchLog, SchemaMismatch
from bkspark.log.formats import Publisher, SegmentOwner
from bkspark.spark.committers import forget_committers
from bkspark.spark.options import SourceOptions
from bkspark.spark.routed_write import RoutedDestination
from tests.cluster import Cluster
from tests.planting import replaced
from tests.spark.log_changes import DELETE, MAKE_AGAIN, REPLACE_SCHEMA, TRUNCATE, LogChanges, log_changes

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SCHEMA = StructType().add("value", "binary").add("log", "string")
COUNT = 4
"""Logs of a write."""


class Write:
    """A routed write of two tasks, each with a row for every log; the log `changing` had a row before."""

    def __init__(self, cluster: Cluster, client: Client, other: LogChanges, inline: str) -> None:
        self.uri, self.client, self.other = cluster.uri, client, other
        self.prefix = f"moments-{uuid.uuid4().hex[:8]}-"
        self.names = [f"{self.prefix}{number}" for number in range(COUNT)]
        self.changing = self.names[1]
        with client.log(self.changing).open_for_writing(ensemble=1, write_quorum=1, ack_quorum=1) as log:
            log.append(b"old")
        options = SourceOptions.parse(
            {
                "uri": self.uri, "payloadFormat": "raw", "inlineBytes": inline, "txnAppId": self.prefix[:-1],
                "ensembleSize": "1", "writeQuorum": "1", "ackQuorum": "1",
            }
        )  # fmt: skip
        self.destination = RoutedDestination(SCHEMA, options, is_overwrite=False)
        self.owners = [SegmentOwner("query", self.prefix[:-1], 0, task, task) for task in range(2)]

    def rows(self, task: int) -> pa.RecordBatch:
        values = pa.array([b"%d" % task] * COUNT, pa.binary())
        return pa.record_batch([values, pa.array(self.names, pa.string())], ["value", "log"])

    def run(self, *, before_tasks: str | None = None, before_commit: str | None = None) -> None:
        if before_tasks is not None:
            self.act(before_tasks)
        results = []
        try:
            for task, owner in enumerate(self.owners):
                results.append(self.destination.write(owner, iter([self.rows(task)]), is_keyed=True, query="q"))
            if before_commit is not None:
                self.act(before_commit)
            self.destination.publish_version(results, Publisher(self.prefix[:-1], 0, "q"), is_overwrite=False)
        except BookKeeperError:
            self.destination.discard(results, self.prefix[:-1], 0)
            raise
        self.destination.discard(results, self.prefix[:-1], 0)

    def act(self, what: str) -> None:
        """Have another process do something with the log `changing`."""
        self.other.change(what, self.uri, self.changing)

    # ---- what is there afterwards ----

    def content(self) -> dict[str, list[bytes]]:
        held = set(self.client.logs())
        return {
            name: [entry for batch in self.client.log(name).read() for entry in batch]
            for name in self.names
            if name in held
        }

    def assert_published(self, *before: bytes) -> None:
        found = self.content()
        assert found.pop(self.changing) == [*before, b"0", b"1"]
        assert found == {name: [b"0", b"1"] for name in self.names if name != self.changing}

    def assert_nothing_published(self) -> None:
        found = self.content()
        assert {name: values for name, values in found.items() if values and name != self.changing} == {}
        assert {b"0", b"1"}.isdisjoint(found.get(self.changing, []))


@pytest.fixture(scope="module")
def other() -> Iterator[LogChanges]:
    with log_changes() as changes:
        yield changes


@pytest.fixture(params=["512k", "0"], ids=["inline", "ledgers"])
def write(request: pytest.FixtureRequest, cluster: Cluster, client: Client, other: LogChanges) -> Iterator[Write]:
    forget_committers()
    yield Write(cluster, client, other, request.param)
    forget_committers()


@pytest.fixture
def in_the_middle(write: Write) -> Iterator[Callable[[str], None]]:
    """Has another process do something once the rows of the commit are durable, before it is published."""
    left: list[str] = []

    def act(stage: str) -> None:
        if stage == "commit.appended" and left:
            write.act(left.pop())

    with replaced(stages, "listener", act):
        yield left.append


def test_write_that_nothing_disturbs_is_published_in_all_logs(write: Write) -> None:
    write.run()
    write.assert_published(b"old")


@pytest.mark.parametrize("moment", ["before_tasks", "before_commit"])
def test_log_that_gets_another_schema_fails_the_write_by_name(write: Write, moment: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"log {write.changing}"):
        write.run(**{moment: REPLACE_SCHEMA})
    write.assert_nothing_published()


def test_log_that_gets_another_schema_in_the_middle_of_the_commit_fails_it_by_name(
    write: Write, in_the_middle: Callable[[str], None]
) -> None:
    in_the_middle(REPLACE_SCHEMA)
    with pytest.raises(SchemaMismatch, match=f"log {write.changing}"):
        write.run()
    write.assert_nothing_published()


def test_log_that_is_deleted_in_the_middle_of_the_commit_fails_it_by_name(
    write: Write, in_the_middle: Callable[[str], None]
) -> None:
    in_the_middle(DELETE)
    with pytest.raises((NoSuchLog, DataLoss), match=write.changing):
        write.run()
    write.assert_nothing_published()


@pytest.mark.parametrize("write", ["0"], ids=["ledgers"], indirect=True)
def test_log_that_is_deleted_while_a_task_writes_to_it_fails_the_write_by_name(write: Write) -> None:
    """Its ledger is deleted, too. The error named the ledger alone."""
    left = [DELETE]

    def act(stage: str) -> None:
        if stage == "task.wrote" and left:
            write.act(left.pop())

    with replaced(stages, "listener", act), pytest.raises(NoSuchLedger, match=f"of log {write.changing} does not"):
        write.run()
    write.assert_nothing_published()


def test_log_that_is_made_again_in_the_middle_of_the_commit_gets_the_rows_that_the_driver_has(
    write: Write, in_the_middle: Callable[[str], None]
) -> None:
    """Only the shared ledger was lost with the old log; ledgers of tasks cannot be written again."""
    in_the_middle(MAKE_AGAIN)
    if write.destination.options.inline_bytes:
        write.run()
        write.assert_published()
        return
    with pytest.raises(DataLoss, match=write.changing):
        write.run()
    write.assert_nothing_published()


@pytest.mark.parametrize("what", [DELETE, MAKE_AGAIN])
def test_log_that_is_deleted_before_the_commit_gets_all_its_rows_or_fails_the_write_by_name(
    write: Write, what: str
) -> None:
    if write.destination.options.inline_bytes:
        write.run(before_commit=what)
        write.assert_published()
        return
    # The tasks' ledgers were deleted with the log.
    with pytest.raises(DataLoss, match=write.changing):
        write.run(before_commit=what)
    write.assert_nothing_published()


@pytest.mark.parametrize("moment", ["before_tasks", "before_commit"])
def test_log_that_is_truncated_gets_its_rows(write: Write, moment: str) -> None:
    write.run(**{moment: TRUNCATE})
    write.assert_published()


def test_log_that_is_truncated_in_the_middle_of_the_commit_gets_its_rows(
    write: Write, in_the_middle: Callable[[str], None]
) -> None:
    in_the_middle(TRUNCATE)
    write.run()
    write.assert_published()


@pytest.mark.parametrize("write", ["0"], ids=["ledgers"], indirect=True)
def test_write_that_fails_leaves_no_ledger_in_any_log(write: Write) -> None:
    """Also where the log that fails it is gone. Tasks whose rows go inline make no ledger."""
    before = set(write.client.ledgers())
    with pytest.raises(DataLoss):
        write.run(before_commit=DELETE)
    assert set(write.client.ledgers()) <= before
