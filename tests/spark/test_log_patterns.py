"""Reads and streams of all logs whose names match option `logsPattern`."""

import json
import uuid

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import Client, run
from bkspark.errors import ConfigurationError, DataLoss, NoSuchLog, UnauthorizedAccess
from bkspark.spark.options import SourceOptions
from bkspark.spark.progress import Lag, lag
from bkspark.spark.read import BookKeeperReader
from bkspark.spark.source import BookKeeperDataSource
from bkspark.spark.stream import BookKeeperStreamReader
from tests.spark.read_rows import VALUE, append, found, options, rows


def named(client, *suffixes: str) -> tuple[str, list[str]]:
    """Create logs whose names begin alike; return the pattern of them, and the names."""
    prefix = f"many-{uuid.uuid4().hex[:12]}"
    names = [f"{prefix}-{suffix}" for suffix in suffixes]
    for name in names:
        client.log(name).create()
    return f"{prefix}-.*", names


def test_pattern_reads_all_logs_that_match_whole(cluster, client):
    pattern, (one, two, empty) = named(client, "a", "b", "c")
    append(client, one, 1, 2)
    append(client, two, 10)
    append(client, two, 11)
    assert found(cluster, logsPattern=pattern) == [1, 2, 10, 11]
    assert found(cluster, logsPattern=f"({one}|{empty})") == [1, 2]
    assert found(cluster, logsPattern=pattern, startingOffsets="-1") == [2, 11]
    assert found(cluster, logsPattern=pattern, startingOffsets=json.dumps({two: "-1"})) == [1, 2, 11]
    assert found(cluster, logsPattern=pattern, startingOffsets=json.dumps({two: "latest"})) == [1, 2]
    assert found(cluster, logsPattern=pattern, endingOffsets=json.dumps({one: "earliest"})) == [10, 11]
    schema = StructType().add("log", "string").add("value", "string")
    reader = BookKeeperReader(schema, SourceOptions.parse({"uri": cluster.uri, "logsPattern": pattern}))
    batches = [batch.to_pylist() for partition in reader.partitions() for batch in reader.read(partition)]
    assert {(row["log"], row["value"]) for batch in batches for row in batch} == {
        *((one, value) for value in "12"),
        *((two, value) for value in ("10", "11")),
    }
    with pytest.raises(NoSuchLog, match="no log matches"):
        found(cluster, logsPattern="nothing-is-called-so")
    with pytest.raises(ConfigurationError, match="names log 'other', which does not exist or does not match"):
        found(cluster, logsPattern=pattern, startingOffsets='{"other": "latest"}')
    with pytest.raises(ConfigurationError, match="is 'soon', which is neither earliest"):
        found(cluster, logsPattern=pattern, startingOffsets=json.dumps({one: "soon"}))


@pytest.mark.admission_control
def test_stream_of_a_pattern_finds_new_logs_and_shares_its_limit(cluster, client):
    pattern, (one, two) = named(client, "a", "b")
    append(client, one, *range(10))
    append(client, two, 100)
    chosen = {"uri": cluster.uri, "logsPattern": pattern, "startingOffsets": "earliest", "maxEntriesPerTrigger": "4"}
    stream = BookKeeperStreamReader(VALUE, SourceOptions.parse(chosen))
    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert rows(stream, stream.partitions(start, end)) == [0, 1, 2, 100]
    assert lag({"sources": [{"latestOffset": stream.reportLatestOffset()}]}) == Lag(7, 7)
    new = f"{pattern[:-2]}c"
    append(client, new, 1000)
    noted = stream.latestOffset(end)
    assert set(noted["logs"]) == {one, two, new}
    assert rows(stream, stream.partitions(end, noted)) == [3, 4, 5, 6]
    last = stream.latestOffset(noted)
    assert rows(stream, stream.partitions(noted, last)) == [7, 8, 9, 1000]
    assert stream.latestOffset(last) is last
    again = BookKeeperStreamReader(VALUE, SourceOptions.parse(chosen))  # after a restart
    assert rows(again, again.partitions(end, noted)) == [3, 4, 5, 6]


@pytest.mark.admission_control
def test_stream_of_a_pattern_tells_that_a_log_is_gone(cluster, client):
    pattern, (one, two) = named(client, "a", "b")
    append(client, one, 1)
    append(client, two, 2)
    chosen = {"uri": cluster.uri, "logsPattern": pattern, "startingOffsets": "earliest"}
    strict = BookKeeperStreamReader(VALUE, SourceOptions.parse(chosen))
    start = strict.initialOffset()
    end = strict.latestOffset(start)
    client.log(one).delete()
    for action in (lambda: strict.latestOffset(start), lambda: strict.partitions(start, end)):
        with pytest.raises(DataLoss, match=f"log {one} was deleted: what was unread, from position"):
            action()
    lenient = BookKeeperStreamReader(VALUE, SourceOptions.parse({**chosen, "failOnDataLoss": "false"}))
    assert rows(lenient, lenient.partitions(start, end)) == [2]
    assert set(lenient.latestOffset(start)["logs"]) == {two}
    lost = {**chosen, "startingOffsets": json.dumps({one: "earliest"}), "failOnDataLoss": "false"}
    going_on = BookKeeperStreamReader(VALUE, SourceOptions.parse(lost))
    assert set(going_on.latestOffset(start)["logs"]) == {two}
    with pytest.raises(ConfigurationError, match=f"names log '{one}', which does not exist"):
        going_on.initialOffset()


@pytest.mark.admission_control
def test_checkpoints_of_one_log_and_of_a_pattern_are_not_mixed_up(cluster, client):
    pattern, (one,) = named(client, "a")
    many = BookKeeperStreamReader(VALUE, SourceOptions.parse({"uri": cluster.uri, "logsPattern": pattern}))
    single = BookKeeperStreamReader(VALUE, options(cluster, one))
    with pytest.raises(ConfigurationError, match="a stream with 'logsPattern'"):
        single.latestOffset(many.initialOffset())
    with pytest.raises(ConfigurationError, match="is not an offset of 'logsPattern'"):
        many.latestOffset(single.initialOffset())


def test_columns_of_logs_that_do_not_exist_need_a_payload_format(cluster):
    columns = StructType().add("user", "string")
    chosen = {"uri": cluster.uri, "logsPattern": f"nothing-{uuid.uuid4().hex}"}
    source = BookKeeperDataSource(chosen)
    for make in (source.reader, source.streamReader):
        with pytest.raises(NoSuchLog, match=r"no log matches option 'logsPattern' .* or set payloadFormat"):
            make(columns)
    BookKeeperDataSource({**chosen, "payloadFormat": "json"}).streamReader(columns)
    source.streamReader(source.schema())


def test_errors_name_the_log_that_has_the_ledger_and_not_the_pattern(cluster, client):
    pattern, (one, two) = named(client, "a", "b")
    append(client, one, 1)
    append(client, two, 2)
    gone = client.log(two).show()["ledgers"][0]["ledger"]
    client.delete(gone)
    with pytest.raises(DataLoss, match=f"ledger {gone} of log {two} does not exist any more"):
        found(cluster, logsPattern=pattern)


def test_wrong_password_names_the_log_that_has_another_one(cluster, client):
    pattern, (one, two) = named(client, "a", "b")
    append(client, one, 1)
    with Client(cluster.uri, password=b"other") as other:
        append(other, two, 2)
    with pytest.raises(UnauthorizedAccess, match=f"option 'password': log {two}: "):
        found(cluster, logsPattern=pattern)


def test_logs_of_other_clusters_are_left_out(cluster, client):
    """Two clusters may share a ZooKeeper: the log of the other one failed each read whose pattern it matched."""
    pattern, (one, foreign) = named(client, "a", "b")
    append(client, one, 1)
    path = f"/bkspark/logs/{foreign}"

    async def give_away() -> None:
        tree = await client.asynchronous.tree()
        data, stat = await tree.get(path)
        await tree.set(path, json.dumps({**json.loads(data), "root": "/elsewhere"}).encode(), stat.version)

    run(give_away)
    assert found(cluster, logsPattern=pattern) == [1]
    stream = BookKeeperStreamReader(VALUE, SourceOptions.parse({"uri": cluster.uri, "logsPattern": pattern}))
    assert set(stream.initialOffset()["logs"]) == {one}
    with pytest.raises(ConfigurationError, match="belongs to the cluster at /elsewhere"):
        found(cluster, log=foreign)
