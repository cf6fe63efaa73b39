"""Batch reading and writing on real Spark and real bookies."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from bkspark.blocking import LedgerWriter, run
from bkspark.errors import LogExists
from bkspark.log.formats import SegmentFacts, SegmentOwner
from bkspark.log.log import Log
from bkspark.spark.options import SourceOptions
from bkspark.spark.versions import COUNTS_WITHOUT_COLUMNS, SPARK_VERSION
from bkspark.spark.write import AttemptResult, BookKeeperWriter

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

NAN, INFINITY = float("nan"), float("inf")

ALL_TYPES = """
    boolean boolean, byte tinyint, short smallint, integer int, long bigint, float float, double double,
    decimal decimal(38, 18), string string, binary binary, date date, timestamp timestamp,
    timestamp_ntz timestamp_ntz, interval interval day to second, array array<int>, map map<string, double>,
    map_of_other_keys map<int, date>, struct struct<x: decimal(4, 1), y: timestamp, z: struct<w: binary>>,
    nested array<struct<m: map<string, array<timestamp_ntz>>>>
"""
ROWS = [
    (
        True, -128, -32768, -(1 << 31), -(1 << 63), NAN, INFINITY,
        Decimal("12345678901234567890.123456789012345678"), 'Ω\x00"\n', bytes(range(256)), date(1, 1, 1),
        datetime(2026, 11, 1, 5, 30, 0, 89, tzinfo=UTC), datetime(1582, 10, 15), timedelta(days=-5, microseconds=1),
        [1, None, 3], {"a": 1.5, "b": None}, {1: date(2026, 1, 2), 2: None},
        (Decimal("1.5"), datetime(2026, 11, 1, 6, 30, tzinfo=UTC), (b"\x00",)),
        [({"k": [datetime(2026, 11, 1, 1, 30), None]},), None],
    ),
    (
        False, 127, 32767, (1 << 31) - 1, (1 << 63) - 1, 0.1, 5e-324, Decimal(0), "", b"", date(9999, 12, 31),
        datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999), timedelta(0),
        [], {}, {}, (None, None, None), [],
    ),
    (None,) * 19,
]  # fmt: skip


def strings(table, schema=None, **options) -> list[str]:
    return [row.value for row in table.read(schema or "value string", **options).collect()]


@pytest.mark.every_spark
def test_schema_is_read_off_the_first_arrow_entry(spark, table):
    frame = spark.createDataFrame(ROWS[:1], ALL_TYPES)
    table.write(frame)
    assert table.read(payloadFormat="arrow").dtypes == frame.dtypes
    columns = table.read(payloadFormat="arrow", includeMetadata="true").columns
    about = ["ledger_id", "entry_id", "log", "position", "append_time", "ledger_ctime", "ledger_metadata"]
    assert columns == [*frame.columns, *about]


@pytest.mark.parametrize("payload_format", ["json", "msgpack"])
def test_schema_is_read_off_the_first_entries_of_objects(spark, table, payload_format):
    frame = spark.sql("select * from values (1L, 'a', array(1.5D)), (2L, null, array()) as t(n, s, a)")
    table.write(frame, payloadFormat=payload_format)
    found = table.read(payloadFormat=payload_format)
    assert found.dtypes == frame.dtypes
    assert sorted(found.collect()) == sorted(frame.collect())


def test_inferred_columns_take_nulls_of_later_writers(spark, table):
    table.write(spark.sql("select if(id < 9, id, null) as n from range(1)"))
    table.write(spark.sql("select cast(null as bigint) as n"))
    assert sorted(repr(row.n) for row in table.read(payloadFormat="arrow").collect()) == ["0", "None"]


@pytest.mark.parametrize("kind", ["binary", "string"])
@pytest.mark.every_spark
def test_one_value_column_is_written_raw_one_entry_a_row(spark, table, kind, client):
    table.write(spark.range(100).select(sql.col("id").cast("string").cast(kind).alias("value")))
    assert table.read().columns == ["value"]
    found = table.read(payloadFormat="raw")
    assert found.columns == ["ledger_id", "entry_id", "value", "log", "position"]
    assert found.count() == 100
    rows = found.collect()
    assert sorted(int(row.value) for row in rows) == list(range(100))
    for row in rows:
        assert client.open(row.ledger_id).read(row.entry_id, row.entry_id)[0] == row.value
    assert {row.log for row in rows} == {table.log}


def test_rows_keep_partition_order_and_order_within(spark, table):
    table.write(spark.range(0, 1000, 1, 4).select(sql.col("id").cast("string").alias("value")))
    assert strings(table) == [str(n) for n in range(1000)]


def test_given_schema_picks_columns_in_any_order_and_case(spark, table):
    table.write(spark.range(3).select(sql.col("id").cast("string").alias("value")))
    found = table.read("Entry_Id bigint, VALUE string")
    assert found.columns == ["Entry_Id", "VALUE"]
    assert sorted(row.VALUE for row in found.collect()) == ["0", "1", "2"]
    table.write(spark.sql("select 1 as a, 'x' as b, 2.5 as c"), "overwrite", overwriteSchema="true")
    picked = table.read("c decimal(2,1), ledger_id bigint, A int", payloadFormat="arrow", includeMetadata="true")
    assert picked.select("c", "A").collect() == [(Decimal("2.5"), 1)]
    uncounted = table.read(StructType(), payloadFormat="arrow")
    if COUNTS_WITHOUT_COLUMNS:
        assert uncounted.count() == 1
    else:
        with pytest.raises(PySparkException, match="the schema has no column"):
            uncounted.count()


@pytest.mark.every_spark
def test_position_of_a_row_is_where_a_read_can_start_and_end(spark, table):
    table.write(spark.range(0, 20, 1, 2).select(sql.col("id").cast("string").alias("value")))
    position = {row.value: row.position for row in table.read("value string, position string").collect()}
    assert strings(table, startingOffsets=position["7"]) == [str(n) for n in range(7, 20)]
    assert strings(table, startingOffsets=position["7"], endingOffsets=position["12"]) == [str(n) for n in range(7, 12)]


def test_ledgers_are_read_by_id_and_range_in_their_order(spark, table, ledger_of, cluster):
    ids = [ledger_of([f"{i}-{n}".encode() for n in range(3)]) for i in range(3)]

    def read(ledgers):
        reader = spark.read.format("bookkeeper").option("uri", cluster.uri).option("ledgers", ledgers)
        return [bytes(row.value).decode() for row in reader.load().collect()]

    assert read(f"{ids[2]},{ids[0]}") == ["2-0", "2-1", "2-2", "0-0", "0-1", "0-2"]
    assert read(f"[{ids[1]}]") == ["1-0", "1-1", "1-2"]
    assert set(read(f"{ids[0]}-{ids[2]}")) >= {"0-0", "1-1", "2-2"}


@pytest.mark.parametrize(
    ("digest", "quorums"), [("crc32", (3, 2, 2)), ("mac", (3, 3, 2)), ("dummy", (1, 1, 1)), ("crc32c", (3, 2, 1))]
)
def test_digests_quorums_and_password_of_a_written_log_are_kept(spark, table, client, digest, quorums):
    options = dict(zip(("ensembleSize", "writeQuorum", "ackQuorum"), quorums)) | {"password": "secret"}
    table.write(spark.range(50).selectExpr("cast(id as string) as value"), digestType=digest, **options)
    found = table.read("ledger_id bigint, value string", password="secret").collect()
    assert sorted(int(row.value) for row in found) == list(range(50))
    metadata = client.metadata(found[0].ledger_id)
    assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == quorums
    assert metadata.digest.name.lower() == digest


def test_load_with_relaxed_durability_is_closed_and_so_synced_before_it_is_published(spark, table, client):
    """A crash after it is played by tests/ledger/test_relaxed_kills.py."""
    rows = spark.range(0, 1000, 1, 1).selectExpr("lpad(cast(id as string), 9, '.') as value")
    for ledger_type in ("VD_JOURNAL", "VD_BYPASS_JOURNAL"):
        table.write(rows, ledgerType=ledger_type)
    found = table.read("ledger_id bigint, value string").collect()
    assert sorted(int(row.value.strip(".")) for row in found) == sorted([*range(1000)] * 2)
    stored = [client.metadata(ledger_id) for ledger_id in sorted({row.ledger_id for row in found})]
    assert [(it.type_name, it.last_entry) for it in stored] == [("VD_JOURNAL", 999), ("VD_BYPASS_JOURNAL", 999)]


def test_open_ledger_is_read_to_its_confirmed_end_without_fencing(spark, client, cluster):
    writer = client.create()
    writer.append_many([b"one", b"two"])
    writer.append(b"three")  # tells the bookies that the two before it are confirmed
    reader = spark.read.format("bookkeeper").option("uri", cluster.uri).option("ledgers", str(writer.ledger_id))
    assert [bytes(row.value) for row in reader.load().collect()] == [b"one", b"two"]
    writer.append(b"four")
    assert reader.load().count() == 3
    assert reader.option("recover", "true").load().count() == 4
    assert client.metadata(writer.ledger_id).is_closed
    writer.abandon()


def test_many_small_ledgers_share_tasks_and_a_large_one_is_split(spark, table):
    table.write(spark.range(0, 40, 1, 20).selectExpr("cast(id as string) as value"))
    assert table.read().rdd.getNumPartitions() == 1
    assert table.read(minPartitions="7").rdd.getNumPartitions() == 7
    assert strings(table, minPartitions="7") == [str(n) for n in range(40)]
    one = spark.range(0, 2000, 1, 1).selectExpr("repeat(cast(id % 10 as string), 1000) as value")
    table.write(one, "overwrite")
    assert table.read(maxPartitionBytes="500k").rdd.getNumPartitions() == 4
    assert strings(table, maxPartitionBytes="500k") == [str(n % 10) * 1000 for n in range(2000)]


def test_small_ledgers_by_size_and_large_entries_by_target(spark, table, client):
    frame = spark.range(0, 3000, 1, 1).selectExpr("id", "repeat('x', 1000) as x")
    table.write(frame, maxLedgerBytes="1m", entryTargetBytes="100k", compression="none")
    rows = table.read("ledger_id bigint, entry_id bigint, id bigint", payloadFormat="arrow", includeMetadata="true")
    assert [row.id for row in rows.collect()] == list(range(3000))
    ledgers = {row.ledger_id for row in rows.collect()}
    assert len(ledgers) >= 2
    sizes = [len(payload) for ledger in ledgers for batch in client.open(ledger).batches() for payload in batch]
    assert 50_000 < max(sizes) < 200_000


def test_partition_without_rows_makes_no_ledger(spark, table, client):
    table.write(spark.range(0, 2, 1, 2).filter("id = 1").selectExpr("cast(id as string) as value"))
    assert strings(table) == ["1"]
    table.write(spark.range(0, 2, 1, 2).filter("id > 5").selectExpr("cast(id as string) as value"))
    assert strings(table) == ["1"]
    table.write(spark.range(0).selectExpr("cast(id as string) as value"), "overwrite")
    assert strings(table) == []
    assert table.read().count() == 0


@pytest.mark.every_spark
def test_overwrite_swaps_the_content_and_deletes_the_old_ledgers(spark, table, client):
    table.write(spark.range(3).selectExpr("cast(id as string) as value"))
    before = {row.ledger_id for row in table.read("ledger_id bigint").collect()}
    table.write(spark.range(5, 6).selectExpr("cast(id as string) as value"), "overwrite")
    assert strings(table) == ["5"]
    assert not before & set(client.ledgers())


def test_spark_refuses_the_modes_that_it_does_not_offer_and_writes_nothing(spark, table):
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    for mode in ("error", "errorifexists", "ignore"):
        assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in refused(lambda mode=mode: table.write(frame, mode))
    assert f"log {table.log} does not exist" in refused(lambda: table.read("value binary").count())


@pytest.mark.every_spark
def test_if_exists_protects_a_log_with_content(spark, table, client):
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    client.log(table.log).create()  # an empty log counts as absent
    table.write(frame, ifExists="error")
    ledgers = set(client.ledgers())
    assert "holds ledgers already, and option 'ifExists' is error" in refused(
        lambda: table.write(frame, ifExists="error")
    )
    table.write(frame, ifExists="ignore")
    assert strings(table) == ["0", "1", "2"]
    assert set(client.ledgers()) == ledgers


@pytest.mark.parametrize("if_exists", ["error", "ignore"])
def test_first_to_commit_of_two_jobs_that_want_an_empty_log_wins(spark, table, client, if_exists):
    def job():
        return BookKeeperWriter(schema, SourceOptions.parse({**chosen, "ifExists": if_exists}), overwrite=False)

    chosen = {"uri": table.uri, "log": table.log}
    schema = StructType().add("value", "string")
    late = job()  # it looked at the log while that was empty
    log = Log(client.asynchronous, table.log)
    owner = SegmentOwner("job", late.job_id, None, 0, 0)
    ledger = LedgerWriter(run(lambda: log.create_attempt(owner)))
    ledger.append(b"late")
    closed = ledger.close()
    table.write(spark.createDataFrame([("first",)], "value string"), ifExists=if_exists)
    result = AttemptResult(owner, (SegmentFacts(ledger.ledger_id, closed.last_entry, closed.length),))
    if if_exists == "error":
        with pytest.raises(LogExists):
            late.commit([result])
        late.abort([result])
    else:
        late.commit([result])
    assert strings(table) == ["first"]
    assert ledger.ledger_id not in set(client.ledgers())


def test_frame_is_the_snapshot_of_its_load(spark, table):
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    table.write(frame)
    loaded = table.read()
    assert loaded.count() == 3
    table.write(frame)
    # Spark 4.0 plans again for each action.
    assert loaded.count() == (3 if SPARK_VERSION >= "4.1" else 6)
    assert table.read().count() == 6


def test_two_filters_on_one_frame_do_not_disturb_each_other(spark, table):
    # With filters pushed down, Spark answers the first with the second's rows.
    table.write(spark.range(20).selectExpr("cast(id as string) as value"))
    loaded = table.read("entry_id bigint, value string")
    three, four = loaded.filter("value = '3'"), loaded.filter("value = '4'")
    assert sorted(row.value for row in three.union(four).collect()) == ["3", "4"]
    assert loaded.count() == 20


def test_limit_ends_the_tasks_early_and_cleanly(spark, table):
    table.write(spark.range(0, 20_000, 1, 2).selectExpr("repeat('x', 500) as value"))
    assert len(table.read().limit(5).collect()) == 5
    assert table.read().count() == 20_000


@pytest.mark.every_spark
def test_registration_by_hand_does_the_same_also_in_a_thread_of_the_user(spark, table):
    import bkspark

    def write():
        bkspark.register(spark)
        table.write(spark.range(3).selectExpr("cast(id as string) as value"))

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert table.read().count() == 3


def test_sql_view_reads_and_inserts(spark, table, cluster):
    table.write(spark.range(3).selectExpr("cast(id as string) as value"))
    options = f"uri '{cluster.uri}', log '{table.log}'"
    spark.sql(f"create or replace temporary view logged using bookkeeper options ({options})")
    assert spark.sql("select count(distinct value) as n from logged").first().n == 3


@pytest.mark.every_spark
def test_malformed_payload_fails_the_query_with_ledger_and_entry(spark, ledger_of, cluster):
    ledger = ledger_of([b'{"a": 1}', b"{", b'{"a": 3}'])

    def read(**options):
        reader = spark.read.format("bookkeeper").option("uri", cluster.uri).option("ledgers", str(ledger))
        return reader.options(payloadFormat="json", **options).schema("a int, _corrupt_record string").load().collect()

    with pytest.raises(PySparkException, match=f"ledger {ledger} entry 1: malformed payload"):
        read()
    assert read(mode="PERMISSIVE") == [(1, None), (None, "{"), (3, None)]
    assert read(mode="DROPMALFORMED") == [(1, None), (3, None)]


@pytest.mark.every_spark
def test_version_of_a_name_is_written_once_and_leaves_no_ledger_when_repeated(spark, table, client):
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    for version in ("1", "1", "0", "2"):
        table.write(frame, txnAppId="job", txnVersion=version, **{"ledgerMetadata.team": "x"})
    table.write(frame, txnAppId="another job", txnVersion="1")
    assert table.read().count() == 9
    listed = {item["ledger"] for item in client.log(table.log).show()["ledgers"]}
    of_log = [client.metadata(i).custom_metadata for i in client.ledgers()]
    assert sum(custom.get("log") == table.log.encode() for custom in of_log) == len(listed)
    assert sum(custom.get("team") == b"x" for custom in of_log if custom.get("log") == table.log.encode()) > 0


def refused(action) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def test_column_that_raw_entries_lack_is_refused_by_its_name(spark, table):
    table.write(spark.range(3).selectExpr("cast(id as string) as value"), payloadFormat="raw")
    assert "'other string' is not in raw entries" in refused(lambda: table.read("value binary, other string").count())


def test_bad_input_is_refused_at_load_or_save_and_leaves_nothing(spark, table, client, cluster):
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    before = set(client.ledgers())
    cases = {
        "did you mean 'payloadFormat'": lambda: table.read(payloadFormt="json"),
        "must begin with zk://": lambda: table.read(uri="bk://x/ledgers"),
        "does not exist": lambda: table.read(payloadFormat="json"),
        "exclude each other": lambda: table.read(ledgers="1"),
        f"log {table.log} does not exist": lambda: table.read("value binary").count(),
        "'entry_id' is bigint": lambda: table.read("entry_id int").count(),
        "'ensembleSize' has no effect on a batch read": lambda: table.read("value binary", ensembleSize="1").count(),
        "ensembleSize >= writeQuorum": lambda: table.write(frame, ensembleSize="2"),
        "only 3 bookies take writes": lambda: table.write(frame, ensembleSize="5"),
        "raw writes the one column 'value'": lambda: table.write(spark.range(1), payloadFormat="raw"),
        "give option 'log'": lambda: frame.write.format("bookkeeper").mode("append").save(uri=cluster.uri),
    }
    for part, action in cases.items():
        assert part in refused(action), part
    assert set(client.ledgers()) == before
    assert f"log {table.log} does not exist" in refused(lambda: table.read("value binary").count())


@pytest.mark.every_spark
def test_missing_ledger_and_wrong_password_are_reported_at_planning(spark, cluster, ledger_of):
    reader = spark.read.format("bookkeeper").option("uri", cluster.uri)
    # Other tests choose ledger ids below 2**30: these are beyond any of them.
    absent, last = 2**40, 2**41
    assert str(absent) in refused(lambda: reader.option("ledgers", str(absent)).load().count())
    assert "no ledger has such an id" in refused(lambda: reader.option("ledgers", f"{absent}-{last}").load().count())
    assert "password" in refused(
        lambda: reader.option("ledgers", str(ledger_of([b"x"]))).option("password", "wrong").load().count()
    )


def test_deleted_ledger_fails_the_read_unless_loss_is_allowed(spark, table, client):
    table.write(spark.range(0, 4, 1, 2).selectExpr("cast(id as string) as value"))
    first = table.read("ledger_id bigint").first().ledger_id
    client.delete(first)
    assert f"ledger {first} of log {table.log} does not exist" in refused(lambda: table.read().count())
    assert strings(table, failOnDataLoss="false") == ["2", "3"]


def test_changed_schema_and_another_password_are_reported_by_name(spark, table):
    table.write(spark.range(1))
    assert "column 'added string' is not in log" in refused(
        lambda: table.write(spark.range(1).selectExpr("id", "'x' as added"))
    )
    table.write(spark.range(1).selectExpr("id", "'x' as added"), mergeSchema="true")
    assert table.read("id long, added string", payloadFormat="arrow").collect() == [(0, None), (0, "x")]
    assert f"not the one that log {table.log} is written with" in refused(
        lambda: table.write(spark.range(1), password="other")
    )
    assert "option 'log' here" in refused(lambda: table.read(subscribe="topic"))


def test_null_or_huge_value_fails_the_write_and_publishes_nothing(spark, table, client):
    frame = spark.range(10).selectExpr("case when id = 7 then null else cast(id as string) end as value")
    assert "filter it out" in refused(lambda: table.write(frame))
    huge = spark.range(2).selectExpr("case when id = 1 then repeat('x', 6000000) else 'x' end as value")
    assert "above the limit" in refused(lambda: table.write(huge))
    assert strings(table) == []


def test_arrow_entry_of_another_program_is_read(spark, table, ledger_of, cluster):
    batch = pa.record_batch({"n": pa.array([1, 2], pa.int16()), "s": pa.array(["x", None]).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
        stream.write_batch(batch)
    ledger = ledger_of([sink.getvalue().to_pybytes()])
    reader = spark.read.format("bookkeeper").option("uri", cluster.uri).option("ledgers", str(ledger))
    found = reader.option("payloadFormat", "arrow").load()
    assert found.dtypes == [("n", "smallint"), ("s", "string")]
    assert found.collect() == [(1, "x"), (2, None)] * 2
