"""Plans and tasks of reads on real bookies, without a Spark session: what a driver hands to its tasks."""

import pickle
import subprocess
import sys
import uuid
from dataclasses import replace

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from bkspark.errors import ConfigurationError, DataLoss, NoSuchLog
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BookKeeperReader, read_partition
from bkspark.spark.stream import BookKeeperStreamReader

pytestmark = pytest.mark.cluster

VALUE = StructType().add("value", "string")


@pytest.fixture
def log(cluster, client):
    """The name of an empty log."""
    name = f"log-{uuid.uuid4().hex[:12]}"
    client.log(name).create()
    return name


def append(client, log: str, *values: int) -> None:
    with client.log(log).open_for_writing() as writer:
        writer.append_many([b"%d" % value for value in values])


def options(cluster, log: str, **others: str) -> SourceOptions:
    return SourceOptions.parse({"uri": cluster.uri, "log": log, **others})


def rows(reader, partitions) -> list[int]:
    return [
        int(value)
        for partition in partitions
        for batch in reader.read(partition)
        for value in batch["value"].to_pylist()
    ]


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


def test_partition_is_small_however_much_it_stands_for(cluster, client, log):
    append(client, log, *range(5_000))
    (partition,) = BookKeeperReader(VALUE, options(cluster, log)).partitions()
    assert len(pickle.dumps(partition)) < 2_000


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


def test_abandoned_read_ends_its_connections(cluster, client, log):
    append(client, log, *range(3))
    reader = BookKeeperReader(VALUE, options(cluster, log))
    batches = reader.read(reader.partitions()[0])
    next(batches)
    batches.close()
    assert rows(reader, reader.partitions()) == [0, 1, 2]


def test_end_behind_what_is_readable_is_refused(cluster, client, log):
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
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_importing_bkspark_loads_neither_pyspark_nor_kazoo():
    python("import bkspark, sys; assert not {'pyspark', 'kazoo'} & set(sys.modules); assert callable(bkspark.register)")


def test_discovery_module_imports_whatever_is_wrong():
    python(
        "import sys; sys.modules['bkspark.spark.source'] = None\n"
        "import pyspark_bookkeeper as found\n"
        "assert not hasattr(found, 'DefaultSource') and isinstance(found.unavailable_because, ImportError)"
    )
    python("import pyspark_bookkeeper as found; assert found.DefaultSource.name() == 'bookkeeper'")
