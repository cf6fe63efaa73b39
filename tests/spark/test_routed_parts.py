"""The parts of a routed write, without a Spark session: rows grouped by log; what an attempt keeps open and holds."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import Client, run
from bkspark.errors import ConfigurationError, MalformedPayload, SchemaMismatch, VersionPublished
from bkspark.log.formats import Publisher, SegmentOwner
from bkspark.log.store import LogStore
from bkspark.spark import routed_write
from bkspark.spark.options import SourceOptions
from bkspark.spark.routed_rows import by_log
from bkspark.spark.routed_write import RoutedDestination
from tests.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SCHEMA = StructType().add("value", "binary").add("log", "string")
OWNER = SegmentOwner("job", "j", None, 0, 0)


def batch(*rows: tuple[bytes, str | None]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([row[0] for row in rows], pa.binary()), pa.array([row[1] for row in rows], pa.string())],
        ["value", "log"],
    )


def grouped(*batches: pa.RecordBatch) -> dict[str, list[Any]]:
    return {log: rows.column("value").to_pylist() for log, rows in by_log(list(batches), 1)}


def test_rows_are_grouped_in_the_order_in_which_they_came() -> None:
    chance = random.Random(3)
    rows = [(b"%d" % number, chance.choice("abcde")) for number in range(1_000)]
    batches = [batch(*rows[at : at + 77]) for at in range(0, 1_000, 77)]
    assert grouped(*batches) == {log: [value for value, name in rows if name == log] for log in "abcde"}


def test_a_slice_of_a_batch_and_an_empty_batch_are_grouped() -> None:
    whole = batch((b"1", "a"), (b"2", "b"), (b"3", "a"))
    assert grouped(whole.slice(1), batch()) == {"a": [b"3"], "b": [b"2"]}
    assert grouped(batch()) == {}


@pytest.mark.parametrize("name", [None, "", ".", "a b", "a/b", "x" * 201])
def test_a_name_that_no_log_can_have_is_refused(name: str | None) -> None:
    with pytest.raises(MalformedPayload, match="column 'log'"):
        grouped(batch((b"1", "a"), (b"2", name)))


def test_a_name_that_is_not_utf8_is_refused() -> None:
    """Spark's strings may hold any bytes."""
    names = pa.array([b"a", b"\xffA"], pa.binary()).view(pa.string())
    rows = pa.record_batch([pa.array([b"1", b"2"], pa.binary()), names], ["value", "log"])
    with pytest.raises(MalformedPayload, match=r"column 'log' names '.*xffA', which is not a valid log name"):
        grouped(rows)


class Sink:
    """A routed write by its own parts."""

    def __init__(self, cluster: Cluster, client: Client, **options: str) -> None:
        self.prefix = f"parts-{uuid.uuid4().hex[:8]}-"
        self._client = client
        parsed = SourceOptions.parse({"uri": cluster.uri, "payloadFormat": "raw", **options})
        checked = parsed.for_batch_write() if parsed.txn_app_id is None else parsed.for_stream_write()
        self.destination = RoutedDestination(SCHEMA, checked, is_overwrite=False)

    def batch(self, *rows: tuple[bytes, str]) -> pa.RecordBatch:
        return batch(*((value, self.prefix + log) for value, log in rows))

    def write(self, *batches: pa.RecordBatch) -> Any:
        """Write with one task attempt, and publish."""
        owner = SegmentOwner("job", "j", None, 0, 0)
        result = self.destination.write(owner, iter(batches), is_keyed=False)
        self.destination.publish_job([result], "j", is_overwrite=False)
        return result

    def content(self, log: str) -> list[bytes]:
        return [entry for batch in self._client.log(self.prefix + log).read() for entry in batch]


def test_an_attempt_has_few_ledgers_open_at_a_time(cluster, client, monkeypatch) -> None:
    """The log that was used least recently gets another ledger for its next rows."""
    monkeypatch.setattr(routed_write, "OPEN_MAX", 2)
    monkeypatch.setattr(routed_write, "COLLECTED_BYTES", 1)
    sink = Sink(cluster, client, inlineBytes="0")
    rows = [(b"%d" % number, log) for number, log in enumerate("aabcabbc")]
    result = sink.write(*map(sink.batch, rows))
    for log in "abc":
        assert sink.content(log) == [value for value, name in rows if name == log]
    ledgers = {each.log.removeprefix(sink.prefix): len(each.ledgers) for each in result.logs}
    assert ledgers == {"a": 2, "b": 2, "c": 2}


def test_report_has_the_number_of_all_rows_of_each_log(cluster, client, monkeypatch) -> None:
    """A repeated commit says how many rows it leaves out."""
    monkeypatch.setattr(routed_write, "COLLECTED_BYTES", 1)
    sink = Sink(cluster, client)
    result = sink.write(*(sink.batch((b"1", log), (b"2", "b")) for log in "aab"))
    assert {each.log.removeprefix(sink.prefix): each.rows for each in result.logs} == {"a": 2, "b": 4}


def test_log_whose_ledger_was_used_lately_keeps_it(cluster, client, monkeypatch) -> None:
    monkeypatch.setattr(routed_write, "OPEN_MAX", 2)
    monkeypatch.setattr(routed_write, "COLLECTED_BYTES", 1)
    sink = Sink(cluster, client, inlineBytes="0")
    result = sink.write(*(sink.batch((b"%d" % number, log)) for number, log in enumerate("abaca")))
    assert {each.log.removeprefix(sink.prefix): len(each.ledgers) for each in result.logs} == {"a": 1, "b": 1, "c": 1}


def test_an_attempt_holds_little_for_its_report_however_many_logs_it_has(cluster, client) -> None:
    sink = Sink(cluster, client, inlineBytes="1k")
    logs = [f"{number}" for number in range(60)]
    result = sink.write(sink.batch(*((bytes(500), log) for log in logs)))
    held = [each for each in result.logs if each.entries is not None]
    assert 0 < sum(each.entries.payload_bytes for each in held) <= 16 * 1024
    assert all(bool(each.ledgers) != (each.entries is not None) for each in result.logs)
    assert [sink.content(log) for log in logs] == [[bytes(500)]] * 60


def test_an_attempt_writes_the_most_rows_of_one_log_to_a_ledger_first(cluster, client) -> None:
    sink = Sink(cluster, client, inlineBytes="1k")
    sizes = {f"{number}": 960 - 10 * number for number in range(30)}
    result = sink.write(sink.batch(*((bytes(size), log) for log, size in sizes.items())))
    spilled = [each.log.removeprefix(sink.prefix) for each in result.logs if each.ledgers]
    assert 0 < len(spilled) < 30
    assert spilled == [f"{number}" for number in range(len(spilled))]


def test_rows_are_collected_up_to_a_number_of_bytes(monkeypatch) -> None:
    one = batch((bytes(100), "a"))
    monkeypatch.setattr(routed_write, "COLLECTED_BYTES", 2 * one.nbytes)
    assert [len(collected) for collected in routed_write._collected(iter([one] * 5))] == [2, 2, 1]


def test_rows_that_do_not_fit_the_present_schema_of_one_log_are_published_in_none(cluster, client) -> None:
    sink = Sink(cluster, client)
    result = sink.destination.write(OWNER, iter([sink.batch((b"1", "a"), (b"2", "b"))]), is_keyed=False)
    first, second = result.logs
    results = [replace(result, logs=(first, replace(second, schema="another")))]
    with pytest.raises(SchemaMismatch, match=f"log {second.log} got another schema"):
        sink.destination.publish_job(results, "j", is_overwrite=False)
    assert first.log not in client.logs()


def test_abort_asks_only_the_logs_in_which_there_are_ledgers(cluster, client) -> None:
    """A log whose rows were all in the report does not exist yet."""
    sink = Sink(cluster, client)
    result = sink.destination.write(OWNER, iter([sink.batch((b"1", "a"))]), is_keyed=False)
    assert f"{sink.prefix}a" not in client.logs()
    sink.destination.discard([result], "j")


def test_an_attempt_that_fails_publishes_nothing_and_its_ledgers_are_deleted(cluster, client) -> None:
    sink = Sink(cluster, client, inlineBytes="0")
    owner = SegmentOwner("job", "j", None, 0, 0)
    result = sink.destination.write(owner, iter([sink.batch((b"1", "a"), (b"2", "b"))]), is_keyed=False)
    written = [ledger.ledger_id for each in result.logs for ledger in each.ledgers]
    assert set(written) <= set(client.ledgers())
    sink.destination.discard([result], "j")
    assert not set(written) & set(client.ledgers())
    assert sink.content("a") == []


def test_a_log_of_another_cluster_fails_the_whole_write_by_name(cluster, client) -> None:
    sink = Sink(cluster, client)

    async def make() -> None:
        other = LogStore(await client.asynchronous.tree(), "/other/ledgers")
        await other.create(f"{sink.prefix}b")

    run(make)
    with pytest.raises(ConfigurationError, match=f"log {sink.prefix}b belongs to the cluster at /other/ledgers"):
        sink.write(sink.batch((b"1", "a"), (b"2", "b")))
    assert f"{sink.prefix}a" not in client.logs()


# ---- versions of a name ----


def epoch(sink: Sink, query: str | None, version: int, *rows: tuple[bytes, str], is_complete: bool = False) -> None:
    """Write and commit an epoch of a query, or a job's version, under the name that the sink's options have."""
    name = sink.destination.options.txn_app_id
    assert name is not None
    owner = SegmentOwner("query", name, version, 0, 0)
    result = sink.destination.write(owner, iter([sink.batch(*rows)]), is_keyed=True, query=query)
    publisher = Publisher(name, version, query)
    sink.destination.publish_version([result], publisher, is_overwrite=is_complete, epoch=version)


def test_rows_of_another_query_are_refused_with_what_to_do(cluster, client) -> None:
    sink = Sink(cluster, client, txnAppId=f"app-{uuid.uuid4().hex[:8]}")
    epoch(sink, "q1", 0, (b"1", "a"), (b"2", "b"))
    epoch(sink, "q1", 1, (b"3", "a"))
    with pytest.raises(VersionPublished, match="Its 2 rows were not written") as refused:
        epoch(sink, "q2", 0, (b"4", "a"), (b"5", "c"))
    assert "txnVersion 2 " in str(refused.value)
    assert [sink.content(log) for log in "ab"] == [[b"1", b"3"], [b"2"]]


def test_repeated_epoch_is_left_out_of_all_logs_and_its_rows_are_counted(cluster, client, caplog) -> None:
    name = f"app-{uuid.uuid4().hex[:8]}"
    sink = Sink(cluster, client, txnAppId=name, ifPublished="skip")
    for _ in range(2):
        epoch(sink, "q1", 0, (b"1", "a"), (b"2", "b"))
    epoch(sink, "q2", 0, (b"3", "a"), (b"4", "c"))
    assert [message.partition(":")[2] for message in caplog.messages][:1] == [" its 2 rows are not written again"]
    assert "Its 2 rows are left out" in caplog.messages[-1]
    assert [sink.content(log) for log in "ab"] == [[b"1"], [b"2"]]


def test_complete_mode_replaces_the_logs_that_the_rows_name_once_for_each_epoch(cluster, client) -> None:
    sink = Sink(cluster, client, txnAppId=f"app-{uuid.uuid4().hex[:8]}")
    epoch(sink, "q1", 0, (b"1", "a"), (b"2", "b"), is_complete=True)
    for _ in range(2):
        epoch(sink, "q1", 1, (b"3", "a"), is_complete=True)
    assert [sink.content(log) for log in "ab"] == [[b"3"], [b"2"]]


@pytest.mark.parametrize("inline", ["512k", "0"])
def test_job_that_runs_again_after_one_of_its_logs_was_deleted_is_refused(cluster, client, inline: str) -> None:
    """Its rows are nowhere: to leave them out, as a repetition, would lose them. An attempt may have made the log."""
    sink = Sink(cluster, client, txnAppId=f"app-{uuid.uuid4().hex[:8]}", inlineBytes=inline)
    rows = ((b"1", "a"), (b"2", "b"))
    epoch(sink, None, 1, *rows)
    epoch(sink, None, 1, *rows)
    client.log(f"{sink.prefix}b").delete()
    for _ in range(2):
        with pytest.raises(
            VersionPublished, match=f"not in log {sink.prefix}b: .* Its 2 rows were not written"
        ) as refused:
            epoch(sink, None, 1, *rows)
        assert "ifPublished" in str(refused.value)
    epoch(sink, None, 2, *rows)
    epoch(sink, None, 1, *rows)
    assert (sink.content("a"), sink.content("b")) == ([b"1", b"1"], [b"2"])


def test_job_that_names_a_log_more_when_it_runs_again_is_refused(cluster, client) -> None:
    """The log has an earlier version of the job alone: its rows of this version would be nowhere."""
    sink = Sink(cluster, client, txnAppId=f"app-{uuid.uuid4().hex[:8]}")
    epoch(sink, None, 1, (b"1", "a"), (b"1", "b"))
    epoch(sink, None, 2, (b"2", "a"))
    with pytest.raises(VersionPublished, match=f"not in log {sink.prefix}b: .* Its 2 rows were not written"):
        epoch(sink, None, 2, (b"2", "a"), (b"2", "b"))
    assert (sink.content("a"), sink.content("b")) == ([b"1", b"2"], [b"1"])


def test_query_that_repeats_its_last_epoch_may_name_a_log_that_lacks_it(cluster, client, caplog) -> None:
    """Its checkpoint says that the epoch is the same. The log may depend on the time of day."""
    sink = Sink(cluster, client, txnAppId=f"app-{uuid.uuid4().hex[:8]}")
    epoch(sink, "q1", 0, (b"1", "monday"))
    epoch(sink, "q1", 0, (b"1", "tuesday"))
    assert (sink.content("monday"), sink.content("tuesday")) == ([b"1"], [])
    assert "its 1 rows are not written again" in caplog.text
