"""A stream of ledgers: new ones appear, closed ones end, deleted ones follow failOnDataLoss, each entry comes once."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.errors import ConfigurationError, DataLoss, NoSuchLedger
from bkspark.metadata.paths import ledger_path
from bkspark.metadata.tree import ANY_VERSION
from bkspark.spark.ledger_offsets import LedgerIds, LedgerOffset, ManyLedgers
from bkspark.spark.ledger_stream import LedgerStreamReader, selection_text
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BookKeeperReader
from bkspark.spark.versions import ReadAllAvailable, ReadMaxRows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bkspark.blocking import Client
    from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

VALUE = StructType().add("value", "string")
LENIENT = {"startingOffsets": "earliest", "failOnDataLoss": "false"}


class Followed:
    """A stream of the ledgers that have a team of the test's own, as Spark drives it: offsets pass as JSON text."""

    def __init__(self, cluster: Cluster, client: Client, team: str, **given: str) -> None:
        self._client = client
        begin = {} if "startingTimestamp" in given else {"startingOffsets": "earliest"}
        chosen = {"ledgers": "*", "ledgerMetadata.team": team, **begin, **given}
        self.options = SourceOptions.parse({"uri": cluster.uri, **chosen})
        self.restart()
        self.offset = self._text(self._reader.initialOffset())

    def restart(self) -> None:
        """Another process, on the same checkpoint."""
        self._reader = LedgerStreamReader(VALUE, self.options)

    def end_now(self) -> None:
        """Trigger.AvailableNow."""
        self._reader.prepareForTriggerAvailableNow()

    def batch(self, limit: Any = None) -> list[int]:
        """Return the values of the next micro-batch; it may be empty."""
        start = json.loads(self.offset)
        end = self._reader.latestOffset(start, ReadAllAvailable() if limit is None else limit)
        if self._text(end) == self.offset:
            return []
        found = self.values(start, end)
        assert LedgerStreamReader(VALUE, self.options).partitions(start, end) is not None
        self.offset = self._text(end)
        return found

    def values(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        batches = (batch for each in self._reader.partitions(start, end) for batch in self._reader.read(each))
        return [int(value) for batch in batches for value in batch["value"].to_pylist()]

    def rest(self, limit: Any = None) -> list[int]:
        """Return what is left, batch by batch."""
        found: list[int] = []
        while True:
            before = self.offset
            found += self.batch(limit)
            if self.offset == before:
                return found

    @staticmethod
    def _text(offset: dict[str, Any]) -> str:
        return json.dumps(offset)


@pytest.fixture
def team() -> str:
    return uuid.uuid4().hex[:12]


def ledger(client: Client, team: str, *values: int, close: bool = True) -> Any:
    writer = client.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata={"team": team.encode()})
    append(writer, *values)
    if close:
        writer.close()
    return writer


def append(writer: Any, *values: int) -> None:
    if values:
        writer.append_many([b"%d" % value for value in values])


@pytest.mark.admission_control
def test_new_ledgers_appear_and_closed_ones_end(cluster: Cluster, client: Client, team: str) -> None:
    one = ledger(client, team, 1, 2)
    other = ledger(client, team, 3, close=False)
    append(other, 4)
    stream = Followed(cluster, client, team)
    # The last entry of an open ledger is not known to be confirmed before the next one, or before it is closed.
    assert stream.rest() == [1, 2, 3]
    new = ledger(client, team, 5)
    stream.restart()
    assert stream.rest() == [5]
    append(other, 6)
    other.close()
    assert stream.rest() == [4, 6]
    assert stream.rest() == []
    offset = json.loads(stream.offset)
    assert offset["ledgers"] == {}
    assert all(each.ledger_id in LedgerIds(map(tuple, offset["finished"])) for each in (one, other, new))


def test_planned_batch_is_read_whole_though_bookies_confirm_less_now(
    cluster: Cluster, client: Client, team: str
) -> None:
    """Some versions of bookies lose an explicit LAC when all of them restart. The query that was killed after it had
    recorded the end of a batch goes on after this end: what the batch leaves out is lost."""
    writer = ledger(client, team, 1, 2, 3, close=False)
    stream = Followed(cluster, client, team)
    start = json.loads(stream.offset)
    end = json.loads(stream.offset)
    end["ledgers"][str(writer.ledger_id)] = 3
    assert stream.values(start, end) == [1, 2, 3]
    writer.close()
    end["ledgers"][str(writer.ledger_id)] = 4
    stream.restart()
    with pytest.raises(DataLoss, match=f"ledger {writer.ledger_id} ends at entry 2"):
        stream.values(start, end)


@pytest.mark.admission_control
def test_a_limited_stream_reads_each_entry_once_and_serves_all_ledgers(
    cluster: Cluster, client: Client, team: str
) -> None:
    for first in range(0, 300, 100):
        ledger(client, team, *range(first, first + 100))
    stream = Followed(cluster, client, team, maxEntriesPerTrigger="30")
    first = stream.batch(ReadMaxRows(30))
    assert sorted(value // 100 for value in first) == [0] * 10 + [1] * 10 + [2] * 10
    stream.restart()
    assert sorted(first + stream.rest(ReadMaxRows(30))) == list(range(300))


@pytest.mark.admission_control
@pytest.mark.parametrize("given", [{}, {"maxEntriesPerTrigger": "1"}])
def test_query_with_an_end_reads_what_there_was_at_its_start_and_nothing_later(
    cluster: Cluster, client: Client, team: str, given: dict[str, str]
) -> None:
    one = ledger(client, team, 1, 2, 3, close=False)
    append(one, 4)  # tells of those before it
    ledger(client, team, 0)
    stream = Followed(cluster, client, team, **given)
    stream.end_now()
    found = stream.batch(ReadMaxRows(1))
    append(one, 5)
    one.close()
    ledger(client, team, 6)
    assert sorted(found + stream.rest(ReadMaxRows(1))) == [0, 1, 2, 3]
    stream.restart()
    assert sorted(stream.rest()) == [4, 5, 6]


@pytest.mark.admission_control
def test_query_with_an_end_does_not_look_at_ledgers_that_it_has_finished(
    cluster: Cluster, client: Client, team: str
) -> None:
    """There may be 100,000 of them, and a job that runs every hour."""
    one = ledger(client, team, 1)
    stream = Followed(cluster, client, team)
    assert stream.rest() == [1]

    async def damage() -> None:
        ledgers = (await client.asynchronous.context()).ledgers
        path = "/ledgers" + ledger_path(one.ledger_id, await ledgers.manager())
        await (await client.asynchronous.tree()).set(path, b"no metadata", ANY_VERSION)

    run(damage)
    ledger(client, team, 2)
    stream.restart()
    stream.end_now()
    try:
        assert stream.rest() == [2]
    finally:
        client.delete(one.ledger_id)


@pytest.mark.admission_control
def test_a_stream_that_begins_at_the_end_reads_new_entries_and_new_ledgers(
    cluster: Cluster, client: Client, team: str
) -> None:
    ledger(client, team, 1)
    stream = Followed(cluster, client, team, startingOffsets="latest")
    assert stream.rest() == []
    ledger(client, team, 2)
    assert stream.rest() == [2]
    assert Followed(cluster, client, team, startingOffsets="-1").rest() == [1, 2]


@pytest.mark.admission_control
def test_a_starting_time_leaves_out_no_ledger_that_appears_later(cluster: Cluster, client: Client, team: str) -> None:
    stream = Followed(cluster, client, team, startingTimestamp="-1ms")
    for value in range(5):
        ledger(client, team, value)
    # The first ones were closed more than a millisecond ago.
    assert stream.rest() == list(range(5))
    ledger(client, team, 5)
    ledger(client, team, 6)
    stream.restart()
    assert stream.rest() == [5, 6]


@pytest.mark.admission_control
def test_a_deleted_ledger_with_unread_entries_follows_fail_on_data_loss(
    cluster: Cluster, client: Client, team: str
) -> None:
    read, unread = ledger(client, team, 1), None
    strict, lenient = (Followed(cluster, client, team, failOnDataLoss=each) for each in ("true", "false"))
    assert strict.rest() == lenient.rest() == [1]
    unread = ledger(client, team, 2)
    for stream in (strict, lenient):
        stream.batch()  # the ledger is noted, and read in the next batch
    client.delete(read.ledger_id)  # it was read
    client.delete(unread.ledger_id)
    with pytest.raises(DataLoss, match=f"ledger {unread.ledger_id} was deleted"):
        strict.rest()
    ledger(client, team, 3)
    assert lenient.rest() == [3]


@pytest.mark.admission_control
def test_ledger_that_is_deleted_after_its_batch_was_cut_follows_fail_on_data_loss(
    cluster: Cluster, client: Client, team: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The query was killed after it had recorded the end of the batch."""
    one, _ = ledger(client, team, 1), ledger(client, team, 2)
    stream = Followed(cluster, client, team)
    start = json.loads(stream.offset)
    end = LedgerStreamReader(VALUE, stream.options).latestOffset(start, ReadAllAvailable())
    client.delete(one.ledger_id)
    with pytest.raises(DataLoss, match=f"ledger {one.ledger_id} was deleted: .* from entry 0 on, is lost"):
        stream.values(start, end)
    lenient = SourceOptions.parse({"uri": cluster.uri, "ledgers": "*", "ledgerMetadata.team": team} | LENIENT)
    reader = LedgerStreamReader(VALUE, lenient)
    batches = (batch for each in reader.partitions(start, end) for batch in reader.read(each))
    assert [value for batch in batches for value in batch["value"].to_pylist()] == ["2"]
    assert f"ledger {one.ledger_id} was deleted" in caplog.text


@pytest.mark.admission_control
def test_checkpoint_that_is_after_the_end_of_a_closed_ledger_is_a_loss(
    cluster: Cluster, client: Client, team: str
) -> None:
    """The query has counted entries that the ledger does not have: it is another ledger, or entries are gone."""
    one = ledger(client, team, 1, 2)
    strict, lenient = (Followed(cluster, client, team, failOnDataLoss=each) for each in ("true", "false"))
    for stream in (strict, lenient):
        offset = json.loads(stream.offset)
        offset["ledgers"][str(one.ledger_id)] = 3
        stream.offset = json.dumps(offset)
    with pytest.raises(DataLoss, match=f"ledger {one.ledger_id} was closed at entry 1: .* from entry 3 on"):
        strict.rest()
    ledger(client, team, 4)
    assert lenient.rest() == [4]
    assert json.loads(lenient.offset)["ledgers"] == {}


@pytest.mark.admission_control
def test_a_condition_on_metadata_can_be_negated(cluster: Cluster, client: Client, team: str) -> None:
    plain, other = ledger(client, team, 1), ledger(client, f"{team}-other", 2)
    ids = f"{plain.ledger_id},{other.ledger_id}"
    given = {"ledgers": ids, "startingOffsets": "earliest"}
    options = {"uri": cluster.uri, **given, "ledgerMetadata.!team": team}
    reader = LedgerStreamReader(VALUE, SourceOptions.parse(options))
    start = reader.initialOffset()
    assert list(start["ledgers"]) == [str(other.ledger_id)]
    found = {}
    for key, value in (("team", "*"), ("!team", "*"), ("color", "*"), ("!color", "*")):
        chosen = SourceOptions.parse({"uri": cluster.uri, **given, f"ledgerMetadata.{key}": value})
        found[key] = len(LedgerStreamReader(VALUE, chosen).initialOffset()["ledgers"])
        batches = BookKeeperReader(VALUE, chosen)
        assert sum(len(batch) for each in batches.partitions() for batch in batches.read(each)) == found[key]
    assert found == {"team": 2, "!team": 0, "color": 0, "!color": 2}
    with pytest.raises(ConfigurationError, match="is a negated condition, for reads"):
        SourceOptions.parse({"uri": cluster.uri, "log": "a", "ledgerMetadata.!team": "x"}).for_batch_write()


@pytest.mark.admission_control
def test_named_ledgers_must_exist_and_are_cut_to_the_named_entries(cluster: Cluster, client: Client, team: str) -> None:
    one = ledger(client, team, *range(10))
    given = {"uri": cluster.uri, "startingOffsets": "earliest"}
    reader = LedgerStreamReader(VALUE, SourceOptions.parse({**given, "ledgers": f"{one.ledger_id}:2-5"}))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [batch["value"].to_pylist() for each in reader.partitions(start, end) for batch in reader.read(each)] == [
        ["2", "3", "4", "5"]
    ]
    assert end["ledgers"] == {}
    missing = LedgerStreamReader(VALUE, SourceOptions.parse({**given, "ledgers": "9000000"}))
    with pytest.raises(NoSuchLedger, match="ledger 9000000, which does not exist"):
        missing.initialOffset()


@pytest.mark.admission_control
def test_ledger_is_finished_when_its_named_entries_were_read_though_it_is_open(
    cluster: Cluster, client: Client, team: str
) -> None:
    one = ledger(client, team, *range(3), close=False)
    append(one, 3)  # tells of those before it
    given = {"uri": cluster.uri, "startingOffsets": "earliest", "ledgers": f"{one.ledger_id}:0-1"}
    reader = LedgerStreamReader(VALUE, SourceOptions.parse(given))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert [batch["value"].to_pylist() for each in reader.partitions(start, end) for batch in reader.read(each)] == [
        ["0", "1"]
    ]
    assert (end["finished"], end["ledgers"]) == ([[one.ledger_id] * 2], {})
    one.close()


@pytest.mark.admission_control
def test_the_checkpoint_of_another_selection_is_refused(cluster: Cluster, client: Client, team: str) -> None:
    ledger(client, team, 1)
    stream = Followed(cluster, client, team)
    other = SourceOptions.parse({"uri": cluster.uri, "ledgers": "*", "ledgerMetadata.team": "another"})
    with pytest.raises(ConfigurationError, match="give the same options"):
        LedgerStreamReader(VALUE, other).latestOffset(json.loads(stream.offset), ReadAllAvailable())
    with pytest.raises(ConfigurationError, match="not an offset of a stream of ledgers"):
        LedgerStreamReader(VALUE, other).latestOffset({"logs": {}, "version": 1}, ReadAllAvailable())


@pytest.mark.parametrize(
    "changed",
    [
        {"finished": "x"},
        {"finished": [[1]]},
        {"finished": [["a", "b"]]},
        {"finished": [[9, 3]]},
        {"finished": [[5, 9], [1, 2]]},
        {"finished": [[-1, 2]]},
        {"ledgers": [1]},
        {"ledgers": {"x": 0}},
        {"ledgers": {"-1": 0}},
        {"ledgers": {"1": "0"}},
        {"ledgers": {"1": -4}},
        {"ledgers": {"1": 0.5}},
        {"ledgers": {"1": True}},
        {"created": [1]},
        {"created": {"3": "now"}},
        {"created": {"3": None}},
    ],
)
def test_offset_that_was_changed_by_hand_is_refused(changed: dict[str, Any]) -> None:
    offset = {"finished": [[1, 2], [5, 9]], "ledgers": {"3": 0}, "selection": "x", "version": 1}
    form = ManyLedgers("x")
    assert form.from_json(offset, "the checkpoint") == {"3": LedgerOffset(3, 0)}
    with pytest.raises(ConfigurationError, match=r"the checkpoint.* use the checkpoint of this query, or a new one"):
        form.from_json({**offset, **changed}, "the checkpoint")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ledgers": "1", "startingOffsets": '{"entry":0,"ledger":0,"ordinal":0,"version":1}'}, "position in a log"),
        ({"ledgers": "1", "payloadFormat": "pulsar"}, "batch reads of ledgers"),
        ({"log": "a", "ledgerMetadata.team": "x"}, "a log is read completely"),
        ({"ledgers": "1", "recover": "true"}, "no effect on a stream read"),
        ({"ledgers": "1", "ledgerMetadata.!": "x"}, "names no key"),
    ],
)
def test_options_without_a_meaning_for_a_stream_of_ledgers_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SourceOptions.parse({"uri": "zk://h:1/ledgers", **given}).for_stream_read()


def test_finished_ledgers_are_kept_as_ranges() -> None:
    ids = LedgerIds().with_ids([5, 1, 2]).with_ids([3, 9])
    assert ids.ranges == ((1, 3), (5, 5), (9, 9))
    assert [each in ids for each in (0, 1, 3, 4, 5, 6, 9, 10)] == [False, True, True, False, True, False, True, False]
    form = ManyLedgers("x")
    offset = form.to_json({str(i): LedgerOffset(i, i, is_finished=i % 2 == 0) for i in (10, 9, 2)})
    assert json.dumps(offset) == '{"finished": [[2, 2], [10, 10]], "ledgers": {"9": 9}, "selection": "x", "version": 1}'
    assert form.from_json(offset, "x") == {"9": LedgerOffset(9, 9)}
    with pytest.raises(ConfigurationError, match="is of ledgers 'x', but 'y' are read"):
        ManyLedgers("y").from_json(offset, "the checkpoint")


@pytest.mark.spark
@pytest.mark.admission_control
def test_a_query_follows_ledgers_over_a_restart(
    spark: SparkSession, cluster: Cluster, client: Client, team: str, tmp_path: Path
) -> None:
    def run() -> None:
        reader = spark.readStream.format("bookkeeper").options(uri=cluster.uri, ledgers="*", startingOffsets="earliest")
        rows = reader.option("ledgerMetadata.team", team).load().selectExpr("CAST(value AS STRING) value")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()

    ledger(client, team, *range(5))
    run()
    ledger(client, team, *range(5, 9))
    run()
    run()  # new ledgers are noted in one batch, and read from the next on
    assert sorted(int(row.value) for row in spark.read.parquet(str(tmp_path / "rows")).collect()) == list(range(9))


def test_selection_is_the_same_in_whatever_order_its_ledgers_are_given() -> None:
    """A restart with the same ledgers continues with the checkpoint."""

    def text(ledgers: str) -> str:
        return selection_text(SourceOptions.parse({"uri": "zk://a:1/ledgers", "ledgers": ledgers}))

    assert text("7,5,9-12") == text("9-12,5,7")
    assert text("7,5") != text("7,6")
