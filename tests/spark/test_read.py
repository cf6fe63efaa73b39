"""Plans and tasks of reads on real bookies, without a Spark session: what a driver hands to its tasks."""

import json
import pickle
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import pytest
from pyspark.sql.datasource import InputPartition

from bkspark.blocking import Client, run
from bkspark.core.metadata import Fragment
from bkspark.errors import ConfigurationError, DataLoss, NoSuchLedger, NoSuchLog
from bkspark.net.connection import BookieConnection
from bkspark.net.pool import NetOptions
from bkspark.spark import plan
from bkspark.spark.inference import schema_for
from bkspark.spark.option_values import parse_ledgers
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.progress import Lag, lag
from bkspark.spark.read import BookKeeperReader, read_partition
from bkspark.spark.stream import BookKeeperStreamReader
from bkspark.spark.versions import ReadAllAvailable, ReadMaxRows
from bkspark.spark.workers import task_pool
from tests.polling import wait_until
from tests.spark.read_rows import VALUE, append, found, ledger, options, rows

pytestmark = pytest.mark.cluster


@pytest.fixture
def log(cluster, client):
    """The name of an empty log."""
    name = f"log-{uuid.uuid4().hex[:12]}"
    client.log(name).create()
    return name


def test_task_needs_no_metadata_store(cluster, client, log):
    append(client, log, *range(10))
    append(client, log, *range(10, 20))
    planned = options(cluster, log, minPartitions="3").for_batch_read()
    partitions = pickle.loads(pickle.dumps(BookKeeperReader(VALUE, options(cluster, log)).partitions()))
    nowhere = replace(planned, uri="zk://127.0.0.1:1/ledgers")
    found = [
        int(value)
        for p in partitions
        for batch in read_partition(p, VALUE, nowhere)
        for value in batch["value"].to_pylist()
    ]
    assert found == list(range(20))


@pytest.fixture
def small_plans(monkeypatch):
    """Plans of more than two ledgers count as large."""
    monkeypatch.setattr(plan, "OPENED_LEDGERS_MAX", 2)


def test_tasks_of_a_large_plan_look_up_their_own_ledgers(cluster, client, log, small_plans):
    for first in range(0, 40, 10):
        append(client, log, *range(first, first + 10))
    reader = BookKeeperReader(VALUE, options(cluster, log, minPartitions="3"))
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    assert len(partitions) == 3
    assert not any(partition.reads for partition in partitions)
    assert rows(reader, partitions) == list(range(40))


def test_a_ledger_that_is_gone_from_a_large_plan_is_lost_data(cluster, client, log, small_plans):
    for first in range(0, 40, 10):
        append(client, log, *range(first, first + 10))
    client.delete(client.log(log).show()["ledgers"][1]["ledger"])
    reader = BookKeeperReader(VALUE, options(cluster, log))
    with pytest.raises(DataLoss, match="does not exist any more"):
        rows(reader, reader.partitions())
    lenient = BookKeeperReader(VALUE, options(cluster, log, failOnDataLoss="false"))
    assert rows(lenient, lenient.partitions()) == [*range(10), *range(20, 40)]


def test_stream_of_a_large_plan_reads_every_entry_once(cluster, client, log, small_plans):
    for first in range(0, 40, 10):
        append(client, log, *range(first, first + 10))
    reader = BookKeeperStreamReader(VALUE, options(cluster, log, startingOffsets="earliest"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows(reader, reader.partitions(start, end)) == list(range(40))


def test_partition_is_small_however_much_it_covers(cluster, client, log):
    append(client, log, *range(5_000))
    (partition,) = BookKeeperReader(VALUE, options(cluster, log)).partitions()
    assert len(pickle.dumps(partition)) < 2_000


def test_relative_offsets_count_back_from_the_end(cluster, client, log):
    for first in (0, 10, 10, 20):
        append(client, log, *range(first, first + 10 * (first != 10)))  # one ledger in between is empty
    append(client, log, *range(20, 30))
    everything = found(cluster, log=log)
    for count in (1, 9, 10, 11, len(everything), 1000):
        assert found(cluster, log=log, startingOffsets=f"-{count}") == everything[-count:]
        assert found(cluster, log=log, endingOffsets=f"-{count}") == everything[:-count]
    assert found(cluster, log=log, startingOffsets="-15", endingOffsets="-5") == everything[-15:-5]


def test_relative_offsets_of_ledgers_count_through_all_that_are_chosen(cluster, client):
    ids = f"{ledger(client, range(5))},{ledger(client, range(5, 10))}"
    assert found(cluster, ledgers=ids, startingOffsets="-7") == list(range(3, 10))
    assert found(cluster, ledgers=ids, startingOffsets="-7", endingOffsets="-3") == list(range(3, 7))
    assert found(cluster, ledgers=ids, endingOffsets="-100") == []


def test_entries_of_one_ledger_can_be_chosen(cluster, client):
    one = ledger(client, range(10))
    assert found(cluster, ledgers=f"{one}:3-5") == [3, 4, 5]
    assert found(cluster, ledgers=f"{one}:8-") == [8, 9]
    assert found(cluster, ledgers=f"{one}:10-") == []
    with pytest.raises(ConfigurationError, match=r"names entries 3-10 .* up to entry 9"):
        found(cluster, ledgers=f"{one}:3-10")


def test_ledgers_are_chosen_by_custom_metadata(cluster, client):
    mark = uuid.uuid4().hex
    wanted = [ledger(client, [n], metadata={"Mark": mark, "kind": kind}) for n, kind in enumerate("aab")]
    assert len(wanted) == 3
    with Client(cluster.uri, password=b"of somebody else") as another:
        ledger(another, [9])  # is not opened, for its metadata say that it is not wanted
    assert found(cluster, ledgers="*", **{"ledgerMetadata.mark": mark}) == [0, 1, 2]
    assert found(cluster, ledgers="*", **{"ledgermetadata.MARK": mark, "ledgerMetadata.kind": "a"}) == [0, 1]
    assert found(cluster, ledgers="*", **{"ledgerMetadata.mark": "nobody's"}) == []


def test_ledger_that_goes_while_it_is_chosen_is_not_an_error_unless_it_is_named(cluster, client):
    ids = [ledger(client, [n]) for n in range(3)]
    planner = ReadPlanner(client.asynchronous, SourceOptions.parse({"uri": cluster.uri, "ledgers": "*"}))

    def chosen(text: str) -> list[int]:
        return [entries.ledger_id for entries in run(lambda: planner.chosen(parse_ledgers(text)))]

    assert chosen(f"{ids[0]}-{ids[1]}") == ids[:2]  # the planner knows what there is now
    client.delete(ids[2])
    assert chosen(f"{ids[1]}-{ids[2]}") == [ids[1]]
    with pytest.raises(NoSuchLedger, match=f"option 'ledgers' names ledger {ids[2]}, which does not exist"):
        chosen(str(ids[2]))


@pytest.mark.parametrize("payload_format", ["json", "raw"])
def test_looking_for_columns_fences_no_writer(cluster, client, payload_format):
    writer = client.create()
    writer.append_many([b'{"a": 1}'])
    given = {"uri": cluster.uri, "ledgers": str(writer.ledger_id), "recover": "true", "payloadFormat": payload_format}
    schema, _ = schema_for(SourceOptions.parse(given))
    assert ("a" if payload_format == "json" else "value") in schema.names
    writer.append_many([b'{"a": 2}'])
    writer.abandon()
    reader = BookKeeperReader(schema, SourceOptions.parse(given))
    assert sum(len(batch) for each in reader.partitions() for batch in reader.read(each)) == 2
    assert client.metadata(writer.ledger_id).state.name == "CLOSED"


def test_time_chooses_ledgers_by_when_they_were_open(cluster, client, log):
    append(client, log, 1)
    first = client.log(log).show()["ledgers"][0]["ledger"]
    closed_ms = run(lambda: client.asynchronous.open(first)).times.closed_ms
    wait_until(lambda: time.time_ns() // 1_000_000 > closed_ms + 1, "the clock to go on")
    between_ms = str(closed_ms + 1)
    append(client, log, 2)
    assert found(cluster, log=log, startingTimestamp=between_ms) == [2]
    assert found(cluster, log=log, endingTimestamp=between_ms) == [1]
    assert found(cluster, log=log, startingTimestamp="-1h") == [1, 2]
    assert found(cluster, log=log, startingTimestamp="2100-01-01") == []
    assert found(cluster, ledgers=str(first), endingTimestamp="1970-01-01") == []
    stream = BookKeeperStreamReader(VALUE, options(cluster, log, startingTimestamp=between_ms))
    start = stream.initialOffset()
    assert rows(stream, stream.partitions(start, stream.latestOffset(start))) == [2]


def test_end_of_a_log_is_a_position_at_which_a_read_may_begin_and_end(cluster, client, log):
    append(client, log, 1)
    append(client, log, 2)
    end = str(client.log(log).latest())
    assert found(cluster, log=log, endingOffsets=end) == [1, 2]
    assert found(cluster, log=log, startingOffsets=end) == []


def test_log_that_lost_all_entries_before_the_end_of_a_read_by_time_says_so(cluster, client, log, caplog):
    """They may have been what the read asked for. Their times are gone with them."""
    append(client, log, 1)
    append(client, log, 2)
    assert found(cluster, log=log, endingTimestamp="-1h") == []  # nothing is lost yet
    client.log(log).truncate("latest")
    append(client, log, 3)
    with pytest.raises(
        DataLoss, match=f"option 'endingTimestamp': log {log} was truncated.*failOnDataLoss=false"
    ) as refused:
        found(cluster, log=log, endingTimestamp="-1h")
    # A read up to the named time ends before the first entry that is left.
    named = datetime.fromisoformat(str(refused.value).partition("use a time after ")[2].partition(",")[0])
    with pytest.raises(DataLoss, match="was truncated"):
        found(cluster, log=log, endingTimestamp=named.isoformat())
    assert found(cluster, log=log, endingTimestamp="-1h", failOnDataLoss="false") == []
    assert "none are read" in caplog.text
    caplog.clear()
    # Between two times there may never have been an entry.
    assert found(cluster, log=log, startingTimestamp="1970-01-02", endingTimestamp="-1h") == []
    assert "none are read" in caplog.text
    caplog.clear()
    # The log has everything from this position on.
    assert found(cluster, log=log, startingOffsets="-1", endingTimestamp="-1h") == []
    assert found(cluster, log=log, endingTimestamp="2100-01-01") == [3]
    assert caplog.text == ""


def test_ledger_that_was_open_at_a_time_is_on_both_sides_of_it(cluster, client):
    writer = client.create()
    writer.append_many([b"1"])
    writer.append_many([b"2"])
    times = run(lambda: client.asynchronous.open(writer.ledger_id)).times
    assert times.closed_ms is None
    wait_until(lambda: time.time_ns() // 1_000_000 > times.created_ms + 1, "the clock to go on")
    at = str(times.created_ms + 1)
    assert found(cluster, ledgers=str(writer.ledger_id), startingTimestamp=at) == [1]
    assert found(cluster, ledgers=str(writer.ledger_id), endingTimestamp=at) == [1]
    writer.abandon()


def test_unconfirmed_entries_are_read_when_asked_for(cluster, client):
    writer = client.create()
    writer.append_many([b"1"])
    writer.append_many([b"2"])  # tells the bookies that 1 is confirmed; of 2 they do not know
    assert found(cluster, ledgers=str(writer.ledger_id)) == [1]
    assert found(cluster, ledgers=str(writer.ledger_id), unconfirmed="true") == [1, 2]
    writer.append_many([b"3"])  # it was not fenced
    writer.abandon()


def test_tasks_have_no_more_entries_than_allowed(cluster, client, log):
    append(client, log, *range(10))
    append(client, log, *range(10, 13))
    reader = BookKeeperReader(VALUE, options(cluster, log, maxEntriesPerPartition="4"))
    partitions = reader.partitions()
    assert [sum(read.end_entry - read.first_entry for read in p.reads) for p in partitions] == [4, 4, 4, 1]
    assert rows(reader, partitions) == list(range(13))


def test_metadata_columns_tell_of_the_ledger(cluster, client):
    one = ledger(client, range(3), metadata={"team": "x"})
    schema, _ = schema_for(SourceOptions.parse({"uri": cluster.uri, "ledgers": str(one), "includeMetadata": "true"}))
    assert schema.names == ["ledger_id", "entry_id", "value", "ledger_ctime", "ledger_metadata"]
    chosen = SourceOptions.parse({"uri": cluster.uri, "ledgers": str(one), "includeMetadata": "true"})
    reader = BookKeeperReader(schema, chosen)
    (batch,) = (batch for partition in reader.partitions() for batch in reader.read(partition))
    created_ms = run(lambda: client.asynchronous.open(one)).times.created_ms
    assert {int(moment.timestamp() * 1000) for moment in batch["ledger_ctime"].to_pylist()} == {created_ms}
    assert batch["ledger_metadata"].to_pylist() == [[("team", b"x")]] * 3


@pytest.mark.admission_control
def test_stream_waits_for_enough_entries_but_not_for_ever(cluster, client, log):
    append(client, log, 1)
    patient = BookKeeperStreamReader(VALUE, options(cluster, log, minEntriesPerTrigger="3", startingOffsets="earliest"))
    start = patient.initialOffset()
    assert patient.latestOffset(start) == start
    append(client, log, 2)
    assert patient.latestOffset(start, ReadAllAvailable()) != start
    assert patient.latestOffset(start) == start
    append(client, log, 3)
    assert rows(patient, patient.partitions(start, patient.latestOffset(start))) == [1, 2, 3]
    hasty = options(cluster, log, minEntriesPerTrigger="9", maxTriggerDelay="0s", startingOffsets="earliest")
    assert BookKeeperStreamReader(VALUE, hasty).latestOffset(start) != start


@pytest.mark.admission_control
def test_stream_with_an_end_does_not_wait_for_entries(cluster, client, log):
    append(client, log, 1)
    stream = BookKeeperStreamReader(VALUE, options(cluster, log, minEntriesPerTrigger="3", startingOffsets="earliest"))
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    assert rows(stream, stream.partitions(start, stream.latestOffset(start))) == [1]


@pytest.mark.admission_control
def test_plan_from_the_state_that_a_trigger_read_equals_a_new_plan(cluster, client, log):
    """A micro-batch has the same rows whenever it is planned: by the trigger that found them, or after a restart."""
    append(client, log, *range(10))
    stream = BookKeeperStreamReader(VALUE, options(cluster, log, maxEntriesPerTrigger="4", startingOffsets="earliest"))
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    append(client, log, 10, 11)
    plans = [[partition.reads for partition in stream.partitions(start, end)] for _ in range(3)]
    assert plans[0] == plans[1] == plans[2]
    assert rows(stream, stream.partitions(start, end)) == [0, 1, 2, 3]
    last = stream.latestOffset(end)
    assert rows(stream, stream.partitions(start, end)) == [0, 1, 2, 3]
    assert rows(stream, stream.partitions(end, last)) == [4, 5, 6, 7]


@pytest.mark.admission_control
def test_trigger_trusts_nothing_that_the_one_before_it_found(cluster, client, log):
    """A trigger looks ahead at the ledgers that were open: by now they may be closed, not the last one, or gone."""
    stream = BookKeeperStreamReader(VALUE, options(cluster, log, startingOffsets="earliest", failOnDataLoss="false"))

    def next_rows(start) -> tuple[dict, list[int]]:
        end = stream.latestOffset(start)
        return end, rows(stream, stream.partitions(start, end))

    start = stream.initialOffset()
    with client.log(log).open_for_writing() as writer:
        for value in (b"0", b"1", b"2"):  # each tells of the one before it
            writer.append_many([value])
        start, first = next_rows(start)
        writer.append_many([b"3"])
    append(client, log, 4, 5)
    start, second = next_rows(start)
    assert [*first, *second] == [0, 1, 2, 3, 4, 5]
    client.log(log).open_for_writing().append_many([b"6"])  # left open
    start, third = next_rows(start)
    client.log(log).delete()
    append(client, log, 100)
    _, fourth = next_rows(start)
    assert third in ([], [6])
    assert fourth == [100]


@pytest.mark.admission_control
def test_batch_with_another_end_than_the_trigger_found_is_planned_from_the_present_state(cluster, client, log):
    append(client, log, 0, 1)
    stream = BookKeeperStreamReader(VALUE, options(cluster, log, startingOffsets="earliest"))
    start = stream.initialOffset()
    stream.latestOffset(start)
    append(client, log, 2, 3)
    end = BookKeeperStreamReader(VALUE, options(cluster, log)).latestOffset(start)
    assert rows(stream, stream.partitions(start, end)) == [0, 1, 2, 3]


def test_task_takes_over_the_connections_of_the_one_before(cluster, client):
    """Only while nothing says that they may be dead: time, other addresses, or a task that ended early."""
    addresses = {bookie.id: run(lambda id=bookie.id: _address(client, id)) for bookie in cluster.bookies}
    first = next(iter(addresses))

    def used(known) -> BookieConnection:
        with task_pool(known, NetOptions()) as pool:
            return run(lambda: pool.channel(first))

    channel = used(addresses)
    assert used(dict(addresses)) is channel
    assert used({first: addresses[first]}) is not channel
    assert channel.lost is not None, "what is not kept is closed"
    channel = used(addresses)
    with suppress(RuntimeError), task_pool(addresses, NetOptions()) as pool:
        assert run(lambda: pool.channel(first)) is channel
        raise RuntimeError("the task failed")
    assert channel.lost is not None
    assert used(addresses) is not channel


def test_connections_that_another_task_left_meanwhile_are_closed(cluster, client):
    """Two tasks of one process may overlap: only the connections of the one that ends last are kept."""
    bookie = cluster.bookies[0].id
    addresses = {bookie: run(lambda: _address(client, bookie))}
    with task_pool(addresses, NetOptions()) as outer:
        kept = run(lambda: outer.channel(bookie))
        with task_pool(addresses, NetOptions()) as inner:
            left = run(lambda: inner.channel(bookie))
            assert left is not kept
        assert left.lost is None
    assert left.lost is not None
    assert kept.lost is None


def test_old_connections_are_not_taken_over(cluster, client, monkeypatch):
    bookie = cluster.bookies[0].id
    addresses = {bookie: run(lambda: _address(client, bookie))}
    with task_pool(addresses, NetOptions()) as pool:
        channel = run(lambda: pool.channel(bookie))
    monkeypatch.setattr("bkspark.spark.workers.KEPT_S", 0.0)
    with task_pool(addresses, NetOptions()) as pool:
        assert channel.lost is not None
        assert run(lambda: pool.channel(bookie)) is not channel


def test_tasks_go_on_when_a_bookie_was_restarted_between_them(cluster, client, log):
    append(client, log, *range(10))
    reader = BookKeeperReader(VALUE, options(cluster, log))
    partitions = reader.partitions()
    assert rows(reader, partitions) == list(range(10))
    for bookie in cluster.bookies:
        bookie.restart()
    assert rows(reader, partitions) == list(range(10))


async def _address(client, bookie: str) -> tuple[str, int]:
    return await (await client.asynchronous.context()).registry.resolve(bookie)


@pytest.mark.admission_control
def test_progress_contains_the_lag_of_a_stream(cluster, client, log):
    append(client, log, *range(10))
    append(client, log, *range(10, 15))
    limited = options(cluster, log, maxEntriesPerTrigger="4", startingOffsets="earliest")
    stream = BookKeeperStreamReader(VALUE, limited)
    end = stream.latestOffset(stream.initialOffset())
    progress = {"sources": [{"latestOffset": stream.reportLatestOffset()}, {"latestOffset": None}]}
    assert lag(progress) == Lag(entries=11, bytes=16)
    stream.latestOffset(stream.latestOffset(stream.latestOffset(end)))
    text = json.dumps({"sources": [{"latestOffset": json.dumps(stream.reportLatestOffset())}]})
    assert lag(text) == Lag(0, 0)


@pytest.mark.parametrize(
    "other",
    [None, 5, "{", "{}", {}, {"sources": 5}, {"sources": ["x"]}, {"sources": [{}]}]
    + [{"sources": [{"latestOffset": latest}]} for latest in ("7", "{}", {"entries_behind": 1})],
)
def test_lag_of_what_is_not_progress_of_ours_says_so(other):
    with pytest.raises(ConfigurationError, match="no source of format bookkeeper"):
        lag(other)


def test_partition_of_nothing_has_no_rows(cluster, log):
    reader = BookKeeperReader(VALUE, options(cluster, log))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_small_ledgers_become_one_batch(cluster, client, log):
    for n in range(5):
        append(client, log, n)
    reader = BookKeeperReader(VALUE, options(cluster, log))
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    assert batch["value"].to_pylist() == ["0", "1", "2", "3", "4"]


def test_read_goes_on_with_one_bookie_dead_before_and_after_planning(cluster, client, log):
    append(client, log, *range(100))
    reader = BookKeeperReader(VALUE, options(cluster, log))
    before = reader.partitions()
    cluster.bookies[0].kill()
    assert rows(reader, before) == list(range(100))
    assert rows(reader, reader.partitions()) == list(range(100))


def test_what_no_bookie_has_any_more_is_left_out_only_where_loss_is_allowed(cluster, client):
    one = ledger(client, range(10), ensemble=1, write_quorum=1, ack_quorum=1)
    two = ledger(client, range(10, 13))
    strict = BookKeeperReader(VALUE, SourceOptions.parse({"uri": cluster.uri, "ledgers": f"{one},{two}"}))
    lenient = BookKeeperReader(
        VALUE, SourceOptions.parse({"uri": cluster.uri, "ledgers": str(one), "failOnDataLoss": "false"})
    )
    (partition,) = strict.partitions()
    read, other_read = partition.reads
    (has,) = read.metadata.fragments[0].bookies
    lost = next(bookie for bookie in partition.addresses if bookie != has)

    def left(*bookies: str, end_entry: int = 10) -> list[int]:
        """Return what is read where these bookies should have the entries from 0, 4 and 6 on."""
        fragments = tuple(Fragment(first, (bookie,)) for first, bookie in zip((0, 4, 6), bookies))
        changed = replace(read, end_entry=end_entry, metadata=replace(read.metadata, fragments=fragments))
        partition.reads = (changed, other_read)
        with pytest.raises(DataLoss, match=f"ledger {one} entry .* none of its bookies .*failOnDataLoss=false"):
            rows(strict, [partition])
        return rows(lenient, [partition])

    others = [10, 11, 12]
    assert left(has, lost, has) == [0, 1, 2, 3, 6, 7, 8, 9, *others]
    assert left(lost, has, has) == [4, 5, 6, 7, 8, 9, *others]
    assert left(has, lost, lost) == [0, 1, 2, 3, *others]
    assert left(lost, lost, lost) == others
    assert left(has, has, has, end_entry=15) == [*range(10), *others]


def test_abandoned_read_ends_its_connections(cluster, client, log):
    append(client, log, *range(3))
    reader = BookKeeperReader(VALUE, options(cluster, log))
    batches = reader.read(reader.partitions()[0])
    next(batches)
    batches.close()
    assert rows(reader, reader.partitions()) == [0, 1, 2]


def test_end_after_the_readable_entries_is_refused(cluster, client, log):
    append(client, log, 1)
    end = client.log(log).latest()
    beyond = str(replace(end, entry_id=end.entry_id + 1))
    with pytest.raises(ConfigurationError, match="can be read up to"):
        BookKeeperReader(VALUE, options(cluster, log, endingOffsets=beyond)).partitions()


def test_missing_log_is_named(cluster):
    with pytest.raises(NoSuchLog, match="log nowhere does not exist"):
        BookKeeperReader(VALUE, options(cluster, "nowhere")).partitions()


def stream(cluster, log: str, **others: str) -> BookKeeperStreamReader:
    return BookKeeperStreamReader(VALUE, options(cluster, log, **({"startingOffsets": "earliest"} | others)))


def test_same_range_gives_the_same_rows_however_the_log_has_grown(cluster, client, log):
    reader = stream(cluster, log)
    start = reader.initialOffset()
    with client.log(log).open_for_writing() as writer:
        writer.append_many([b"0", b"1", b"2"])
        writer.append(b"3")
        end = reader.latestOffset(start, ReadAllAvailable())
        assert rows(reader, reader.partitions(start, end)) == [0, 1, 2]
        writer.append_many([b"4", b"5"])
    append(client, log, 6, 7)
    assert rows(reader, reader.partitions(start, end)) == [0, 1, 2]
    assert rows(stream(cluster, log), stream(cluster, log).partitions(start, end)) == [0, 1, 2]
    rest = reader.latestOffset(end, ReadAllAvailable())
    assert rows(reader, reader.partitions(end, rest)) == [3, 4, 5, 6, 7]


def test_offset_without_news_is_the_same_text_when_ledgers_close_and_come(cluster, client, log):
    reader = stream(cluster, log)
    append(client, log, 0, 1)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with client.log(log).open_for_writing():
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.partitions(end, end) == []


@pytest.mark.admission_control
def test_limit_of_spark_lifts_or_keeps_ours(cluster, client, log):
    append(client, log, *range(10))
    reader = stream(cluster, log, maxEntriesPerTrigger="4")
    start = reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert reader.latestOffset(start, ReadMaxRows(4))["entry"] == 4
    assert reader.latestOffset(start, ReadAllAvailable())["entry"] == 10
    assert reader.reportLatestOffset()["entry"] == 10


def test_ledger_deleted_by_itself_is_loss_unless_allowed(cluster, client, log):
    append(client, log, 0, 1)
    append(client, log, 2, 3)
    reader = stream(cluster, log)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    client.delete(client.log(log).show()["ledgers"][0]["ledger"])
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        reader.partitions(start, end)
    lenient = stream(cluster, log, failOnDataLoss="false")
    assert rows(lenient, lenient.partitions(start, end)) == [2, 3]


def python(text: str) -> None:
    subprocess.run([sys.executable, "-c", text], check=True, timeout=180)


def test_importing_bkspark_loads_neither_pyspark_nor_kazoo():
    python("import bkspark, sys; assert not {'pyspark', 'kazoo'} & set(sys.modules); assert callable(bkspark.register)")


def test_discovery_module_imports_whatever_is_wrong():
    python(
        "import sys; sys.modules['bkspark.spark.source'] = None\n"
        "import pyspark_bookkeeper as found\n"
        "assert not hasattr(found, 'DefaultSource') and isinstance(found.unavailable_because, ImportError)"
    )
    python("import pyspark_bookkeeper as found; assert found.DefaultSource.name() == 'bookkeeper'")
