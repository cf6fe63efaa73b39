"""Versions of a name, by the sink's own commits and without a Spark session: what is left out is reported."""

from __future__ import annotations

import logging
import uuid

import pytest
from pyspark.sql.types import StructType

from bkspark.entries import EntryBatch
from bkspark.errors import VersionPublished
from bkspark.log.formats import SegmentOwner
from bkspark.spark.log_schemas import new_log_plan
from bkspark.spark.options import SourceOptions
from bkspark.spark.write import AttemptResult, BookKeeperStreamWriter, BookKeeperWriter

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SCHEMA = StructType().add("value", "string")


class Sink:
    """A log, and commits of streaming epochs and of jobs to it."""

    def __init__(self, cluster, client) -> None:
        self.log = f"log-{uuid.uuid4().hex[:12]}"
        self._uri = cluster.uri
        self._client = client

    def epoch(self, query: str, epoch: int, *rows: str, is_complete: bool = False, **options: str) -> None:
        options = {"uri": self._uri, "log": self.log, "txnAppId": "app"} | options
        writer = BookKeeperStreamWriter(SCHEMA, SourceOptions.parse(options), overwrite=is_complete)
        version = epoch + int(options.get("txnVersion", 0))
        writer.commit([result(SegmentOwner("query", "app", version, 0, 0), query, rows, self._schema())], epoch)

    def job(self, version: int, *rows: str, query: str | None = None, **options: str) -> None:
        options = {"uri": self._uri, "log": self.log, "txnAppId": "app", "txnVersion": str(version)} | options
        writer = BookKeeperWriter(SCHEMA, SourceOptions.parse(options), overwrite=False)
        writer.commit([result(SegmentOwner("job", "j", None, 0, 0), query, rows, self._schema())])

    def _schema(self) -> str:
        """Return the name of the schema that the log gets or has."""
        return new_log_plan(
            SourceOptions.parse({"uri": self._uri, "log": self.log}).for_write(), SCHEMA
        ).change.stored.name

    def rows(self) -> list[str]:
        return [row.decode() for batch in self._client.log(self.log).read() for row in batch]


def result(owner: SegmentOwner, query: str | None, rows: tuple[str, ...], schema: str) -> AttemptResult:
    """Return what a task with these rows reports."""
    entries = EntryBatch.of([row.encode() for row in rows]) if rows else None
    return AttemptResult(owner, (), entries, len(rows), query, schema)


@pytest.fixture
def sink(cluster, client, caplog) -> Sink:
    caplog.set_level(logging.WARNING, "bkspark.spark.write")
    return Sink(cluster, client)


def test_repeated_epoch_of_the_same_query_is_left_out_and_its_rows_are_counted(sink, caplog):
    sink.epoch("q1", 0, "a", "b")
    assert not caplog.records
    sink.epoch("q1", 0, "a", "b")
    assert caplog.messages == [
        f"log {sink.log} has version 0 of 'app' already, by the same query q1: its 2 rows are not written again"
    ]
    assert sink.rows() == ["a", "b"]


def test_rows_of_another_query_are_never_taken_for_a_repetition(sink, caplog):
    sink.epoch("q1", 0, "a")
    sink.epoch("q1", 1, "b")
    with pytest.raises(VersionPublished, match="Its 3 rows were not written") as refused:
        sink.epoch("q2", 0, "a", "b", "c")
    assert refused.value.last_version == 1
    for advised in ("txnAppId of its own", "txnVersion 2 ", "ifPublished to skip"):
        assert advised in str(refused.value)
    sink.epoch("q2", 0, "a", "b", "c", txnVersion="2")
    sink.epoch("q2", 1, "d", txnVersion="2")
    assert sink.rows() == ["a", "b", "a", "b", "c", "d"]
    assert not caplog.records


def test_advised_version_is_right_in_the_middle_of_a_query(sink):
    """Two queries share a name; the one whose epoch 5 comes too late continues after the other with the given
    number."""
    for epoch in range(8):
        sink.epoch("q1", epoch, f"a{epoch}")
    with pytest.raises(VersionPublished, match="txnVersion 3 "):
        sink.epoch("q2", 5, "b")
    sink.epoch("q2", 5, "b", txnVersion="3")
    assert sink.rows()[-1] == "b"


def test_epochs_that_another_query_published_are_skipped_where_the_user_says_so(sink, caplog):
    sink.epoch("q1", 0, "a")
    sink.epoch("q1", 1, "b")
    for epoch, row in enumerate("abc"):
        sink.epoch("q2", epoch, row, ifPublished="skip")
    assert sink.rows() == ["a", "b", "c"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert all("1 rows are left out" in message for message in caplog.messages)


def test_complete_mode_of_another_query_does_not_keep_the_old_content_silently(sink):
    sink.epoch("q1", 0, "a", is_complete=True)
    with pytest.raises(VersionPublished):
        sink.epoch("q2", 0, "b", is_complete=True)
    assert sink.rows() == ["a"]
    sink.epoch("q2", 0, "b", is_complete=True, txnVersion="1")
    assert sink.rows() == ["b"]


def test_empty_epoch_of_another_query_loses_nothing_and_passes(sink, caplog):
    sink.epoch("q1", 0, "a")
    sink.epoch("q2", 0)
    assert not caplog.records
    assert sink.rows() == ["a"]


def test_job_by_hand_may_be_run_again_and_tells_what_it_left_out(sink, caplog):
    for version in (1, 1, 0, 2):
        sink.job(version, f"v{version}")
    assert sink.rows() == ["v1", "v2"]
    assert caplog.messages == [
        f"log {sink.log} has version {version} of 'app' already: its 1 rows are not written again" for version in (1, 0)
    ]


def test_job_by_hand_and_query_do_not_take_each_others_versions(sink):
    sink.job(3, "by hand")
    with pytest.raises(VersionPublished, match="it is not known by which query"):
        sink.epoch("q1", 3, "x")
    with pytest.raises(VersionPublished, match="it is not known by which query"):
        sink.job(2, "x", query="q1")
    sink.epoch("q1", 4, "y")
    with pytest.raises(VersionPublished, match="by query q1"):
        sink.job(4, "x")
    assert sink.rows() == ["by hand", "y"]


def test_name_of_a_log_that_an_older_bkspark_wrote_continues_after_its_last_version(sink, client):
    """Its head remembers versions without queries."""
    sink.job(0, "old")
    assert client.log(sink.log).show()["published"] == [{"name": "app", "version": 0, "query": None}]
    with pytest.raises(VersionPublished):
        sink.epoch("q1", 0, "new")
    sink.epoch("q1", 1, "new")
    sink.epoch("q1", 1, "new")
    assert sink.rows() == ["old", "new"]
