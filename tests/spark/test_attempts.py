"""What task attempts write, and commits publish, on real bookies and without a Spark session."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import Client, run
from bkspark.entries import EntryBatch
from bkspark.errors import LogExists, MalformedPayload, SchemaMismatch
from bkspark.log.epochs import EpochCommitter, Output
from bkspark.log.formats import SegmentFacts, SegmentOwner
from bkspark.spark import committers
from bkspark.spark.attempt_writer import AttemptWriter
from bkspark.spark.committers import committer_of
from bkspark.spark.options import SourceOptions
from bkspark.spark.targets import ENTRY_LIMIT_BYTES, LogTarget, checked_default
from bkspark.spark.write import AttemptResult, BookKeeperStreamWriter, BookKeeperWriter, Destination
from tests.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SCHEMA = StructType().add("value", "string")
OWNER = SegmentOwner("job", "j", None, 0, 0)


@pytest.fixture
def log(client: Client) -> str:
    """The name of an empty log."""
    name = f"log-{uuid.uuid4().hex[:12]}"
    client.log(name).create()
    return name


def options_of(cluster: Cluster, log: str, **given: str) -> SourceOptions:
    return SourceOptions.parse({"uri": cluster.uri, "log": log, **given}).for_write()


def target_of(cluster: Cluster, log: str, **given: str) -> LogTarget:
    return checked_default(options_of(cluster, log, **given), SCHEMA)


def held_bytes(entries: EntryBatch) -> int:
    """Return what entries take of a report."""
    return int(entries.payload_bytes + entries.offsets.nbytes)


def publish(cluster: Cluster, log: str, ledgers: Sequence[SegmentFacts]) -> None:
    named = target_of(cluster, log).named_log()
    run(lambda: named.publish(ledgers))


def discarded(cluster: Cluster, log: str, owner: str) -> int:
    """Delete what attempts of an owner have left; return the number of ledgers."""
    named = target_of(cluster, log).named_log()
    return run(lambda: named.discard(owner))


def content(client: Client, log: str) -> list[bytes]:
    return [entry for batch in client.log(log).read() for entry in batch]


# ---- an attempt ----


def test_rows_travel_in_the_report_up_to_a_limit_and_above_it_in_order_in_a_ledger(
    cluster: Cluster, client: Client, log: str
) -> None:
    one, two = EntryBatch.of([b"a", b"b"]), EntryBatch.of([b"c"])
    most = held_bytes(one) + held_bytes(two)
    with AttemptWriter(target_of(cluster, log), OWNER, most) as attempt:
        attempt.append(one)
        attempt.append(two)
        held = attempt.held()
        assert held is not None
        assert list(held) == [b"a", b"b", b"c"]
        assert (attempt.held_bytes, attempt.is_open) == (most, False)
        attempt.append(EntryBatch.of([b"d"]))
        assert (attempt.held(), attempt.held_bytes, attempt.is_open) == (None, 0, True)
        publish(cluster, log, attempt.finish())
    assert content(client, log) == [b"a", b"b", b"c", b"d"]


def test_nothing_is_left_to_the_report_after_a_spill(cluster: Cluster, client: Client, log: str) -> None:
    with AttemptWriter(target_of(cluster, log), OWNER, 10_000) as attempt:
        attempt.append(EntryBatch.of([b"a"]))
        attempt.spill()
        attempt.append(EntryBatch.of([b"b"]))
        assert attempt.held() is None
        publish(cluster, log, attempt.finish())
    assert content(client, log) == [b"a", b"b"]


def test_largest_entry_that_a_bookie_takes_is_written_and_a_larger_one_is_refused(
    cluster: Cluster, client: Client, log: str
) -> None:
    with AttemptWriter(target_of(cluster, log), OWNER, 0) as attempt:
        with pytest.raises(MalformedPayload, match=f"an entry of {ENTRY_LIMIT_BYTES + 1} bytes"):
            attempt.append(EntryBatch.of([bytes(ENTRY_LIMIT_BYTES + 1)]))
        attempt.append(EntryBatch.of([bytes(ENTRY_LIMIT_BYTES)]))
        (ledger,) = attempt.finish()
    assert ledger.length == ENTRY_LIMIT_BYTES


def test_ledger_of_an_attempt_that_fails_is_left_open_and_pending(cluster: Cluster, client: Client, log: str) -> None:
    def fail() -> None:
        with AttemptWriter(target_of(cluster, log), OWNER, 0) as attempt:
            attempt.append(EntryBatch.of([b"a"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert client.log(log).show()["ledgers"] == []
    assert discarded(cluster, log, "j") == 1


def test_ledgers_of_an_attempt_are_no_longer_than_the_limit_and_the_entry_that_reaches_it(
    cluster: Cluster, client: Client, log: str
) -> None:
    """How much of a batch fits follows from what the ledger already has."""
    rows = [b"%030d" % number for number in range(7)]
    with AttemptWriter(target_of(cluster, log, maxLedgerBytes="100"), OWNER, 0) as attempt:
        attempt.append(EntryBatch.of(rows[:2]))
        attempt.append(EntryBatch.of(rows[2:]))
        ledgers = attempt.finish()
        publish(cluster, log, ledgers)
    assert content(client, log) == rows
    lengths = [ledger.length for ledger in ledgers]
    assert max(lengths) < 100 + 30, lengths


def test_report_of_a_task_has_the_number_of_all_its_rows(cluster: Cluster, log: str) -> None:
    """A repeated commit says how many rows it leaves out."""
    destination = Destination(SCHEMA, options_of(cluster, log), is_overwrite=False)
    batches = [pa.RecordBatch.from_pylist([{"value": "a"}] * count) for count in (2, 3, 1)]
    assert [destination.write(OWNER, iter(batches), is_keyed=is_keyed).rows for is_keyed in (True, False)] == [6, 6]


# ---- the committers of a process ----


@pytest.fixture
def few_committers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process keeps two."""
    monkeypatch.setattr(committers, "COMMITTERS_MAX", 2)
    committers.forget_committers()
    yield
    committers.forget_committers()


def committer(cluster: Cluster, log: str, owner: str, **given: str) -> EpochCommitter:
    target = target_of(cluster, log, **given)
    ledger = target.ledger_options(SegmentOwner("query", owner), is_shared=True)
    return committer_of(target.named_log(), owner, ledger, target.options)


def test_process_keeps_the_committers_that_it_used_last(cluster: Cluster, log: str, few_committers: None) -> None:
    one, two = committer(cluster, log, "q1"), committer(cluster, log, "q2")
    assert committer(cluster, log, "q1") is one
    committer(cluster, log, "q3")
    assert committer(cluster, log, "q1") is one
    assert committer(cluster, log, "q2") is not two


def test_committer_that_a_process_gives_up_closes_its_ledger(
    cluster: Cluster, client: Client, log: str, few_committers: None
) -> None:
    given_up = committer(cluster, log, "q1")
    assert run(lambda: given_up.append([Output(entries=(EntryBatch.of([b"a"]),))], ("q1", 0)))
    (ledger,) = client.log(log).show()["ledgers"]
    assert (ledger["state"], client.metadata(ledger["ledger"]).is_closed) == ("OPEN", False)
    for owner in ("q2", "q3"):
        committer(cluster, log, owner)
    (ledger,) = client.log(log).show()["ledgers"]
    assert (ledger["state"], client.metadata(ledger["ledger"]).is_closed) == ("CLOSED", True)
    assert content(client, log) == [b"a"]


@pytest.mark.parametrize("given", [{"password": "p"}, {"ackQuorum": "3"}, {"maxLedgerBytes": "1m"}])
def test_committer_of_other_options_is_another_one(
    cluster: Cluster, log: str, few_committers: None, given: dict[str, str]
) -> None:
    assert committer(cluster, log, "q1", **given) is not committer(cluster, log, "q1")


def test_forked_process_has_no_committer_of_its_parent(cluster: Cluster, log: str, few_committers: None) -> None:
    """Its ledger would be written by both."""
    committer(cluster, log, "q1")
    child = os.fork()
    if child == 0:
        os._exit(len(committers._committers))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(committers._committers) == 1


# ---- commits ----


def job(cluster: Cluster, log: str, **given: str) -> BookKeeperWriter:
    return BookKeeperWriter(SCHEMA, SourceOptions.parse({"uri": cluster.uri, "log": log, **given}), overwrite=False)


def written(cluster: Cluster, log: str, partition: int, *rows: bytes) -> AttemptResult:
    """Return the report of a task that has written these rows to a ledger."""
    target = target_of(cluster, log)
    owner = SegmentOwner("job", "j", None, partition, partition)
    with AttemptWriter(target, owner, 0) as attempt:
        attempt.append(EntryBatch.of(rows))
        return AttemptResult(owner, attempt.finish(), None, len(rows), None, target.plan.change.stored.name)


def test_job_publishes_in_the_order_of_partitions_whatever_order_tasks_end_in(
    cluster: Cluster, client: Client, log: str
) -> None:
    results = [written(cluster, log, partition, b"%d" % partition) for partition in (2, 0, 1)]
    job(cluster, log).commit(results)
    assert content(client, log) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("if_exists", ["ignore", "error"])
def test_job_that_another_one_overtakes_publishes_nothing_and_says_so_unless_that_is_ignored(
    cluster: Cluster, client: Client, log: str, if_exists: str
) -> None:
    late, early = job(cluster, log, ifExists=if_exists), job(cluster, log)
    early.commit([written(cluster, log, 0, b"early")])
    results = [written(cluster, log, 0, b"late")]
    if if_exists == "ignore":
        late.commit(results)
    else:
        with pytest.raises(LogExists):
            late.commit(results)
    assert content(client, log) == [b"early"]


def epoch_writer(cluster: Cluster, log: str) -> BookKeeperStreamWriter:
    given = {"uri": cluster.uri, "log": log, "txnAppId": "app", "txnVersion": "5"}
    return BookKeeperStreamWriter(SCHEMA, SourceOptions.parse(given), overwrite=False)


def written_in_epoch(cluster: Cluster, log: str, epoch: int) -> AttemptResult:
    """Return the report of a task of an epoch that has written a row to a ledger."""
    target = target_of(cluster, log)
    owner = SegmentOwner("query", "app", 5 + epoch, 0, 0)
    with AttemptWriter(target, owner, 0) as attempt:
        attempt.append(EntryBatch.of([b"a"]))
        return AttemptResult(owner, attempt.finish(), None, 1, "q", target.plan.change.stored.name)


def test_aborted_epoch_deletes_what_was_written_for_its_version(cluster: Cluster, client: Client, log: str) -> None:
    results = [written_in_epoch(cluster, log, epoch) for epoch in (0, 1)]
    epoch_writer(cluster, log).abort([results[0]], 0)
    assert discarded(cluster, log, "app") == 1, "the ledger of the next epoch is left"


def test_epoch_that_is_published_leaves_what_tasks_of_the_next_one_have_written(
    cluster: Cluster, client: Client, log: str
) -> None:
    """A driver whose commit is late must not take rows from the one that continues the query."""
    results = [written_in_epoch(cluster, log, epoch) for epoch in (0, 0, 1)]
    epoch_writer(cluster, log).commit([results[1]], 0)
    assert discarded(cluster, log, "app") == 1, "the ledger of another attempt of the epoch is deleted"
    assert content(client, log) == [b"a"]


def test_epoch_whose_tasks_wrote_with_another_schema_than_its_commit_finds_publishes_nothing(
    cluster: Cluster, client: Client, log: str
) -> None:
    """Spark plans the commit again. A job may have given the log a schema meanwhile: rows would be read with it."""
    results = [written_in_epoch(cluster, log, 0), replace(written_in_epoch(cluster, log, 0), schema="0" * 32)]
    with pytest.raises(SchemaMismatch, match=f"log {log} got another schema while the rows were written"):
        epoch_writer(cluster, log).commit(results, 0)
    assert content(client, log) == []
