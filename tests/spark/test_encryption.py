"""Spark writes and reads encrypted ledgers with option `encryptionKeyFile`, in every way that clear ones have."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from bkspark import client as aio
from bkspark.blocking import Client, EncryptionOptions, run
from bkspark.errors import ConfigurationError, DecryptionFailed
from bkspark.spark.source import BookKeeperDataSource
from bkspark.wire.encrypted_entries import RECORD_KEY
from tests.spark.spark_key_files import key_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.cluster import Cluster
    from tests.spark.conftest import Table

pytestmark = pytest.mark.spark


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return key_file(tmp_path / "keys", "2026-10", "2026-11")


@pytest.mark.parametrize(
    "options",
    [
        {"payloadFormat": "arrow"},
        {"payloadFormat": "arrow", "compression": "zstd", "inlineBytes": "0"},
        {"payloadFormat": "json", "digestType": "mac", "password": "pw", "inlineBytes": "0"},
        {"payloadFormat": "msgpack", "ledgerType": "VD_JOURNAL", "inlineBytes": "0"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_rows_of_every_format_come_back(table: Table, spark: SparkSession, keys: str, options: dict[str, str]) -> None:
    frame = spark.range(2000).selectExpr("id", "concat('text ', id) AS text")
    table.write(frame, encryptionKeyFile=keys, **options)
    password = {name: options[name] for name in ("password",) if name in options}
    rows = table.read(encryptionKeyFile=keys, **password)
    assert rows.schema == frame.schema
    assert sorted(rows.collect()) == sorted(frame.collect())
    meta = table.read(encryptionKeyFile=keys, includeMetadata="true", **password)
    assert meta.where("ledger_id IS NULL OR entry_id IS NULL").count() == 0
    with pytest.raises(Exception, match="encrypted with key '2026-11', and no key file is given: give option"):
        table.read(frame.schema, **password).count()


def test_long_reads_of_raw_entries_and_ranges_of_them(
    table: Table, spark: SparkSession, keys: str, cluster: Cluster
) -> None:
    """Long ones go by the scans of a task's own thread, others over the event loop."""
    payloads = [b"entry %06d " % i + bytes(1000) for i in range(3000)]
    with (
        Client(cluster.uri, encryption=EncryptionOptions(keys)) as client,
        client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer,
    ):
        writer.append_many(payloads)
    ledger = writer.ledger_id

    def read(selection: str, **more: str) -> list[Any]:
        reader = spark.read.format("bookkeeper").options(uri=cluster.uri, ledgers=selection, encryptionKeyFile=keys)
        return reader.options(includeMetadata="true", **more).load().orderBy("entry_id").collect()

    assert [bytes(row.value) for row in read(str(ledger))] == payloads
    found = read(f"{ledger}:100-107")
    assert [(row.entry_id, bytes(row.value)) for row in found] == [(i, payloads[i]) for i in range(100, 108)]
    assert len(read(str(ledger), maxEntriesPerPartition="700")) == 3000


def test_a_stream_writes_and_reads_encrypted_logs(table: Table, spark: SparkSession, keys: str, tmp_path: Path) -> None:
    table.write(spark.range(10), encryptionKeyFile=keys)
    copy = type(table)(spark, table.uri, f"{table.log}-copy")
    for _ in range(2):
        source = table.stream(encryptionKeyFile=keys, startingOffsets="earliest")
        writer = source.writeStream.format("bookkeeper").options(uri=table.uri, log=copy.log, encryptionKeyFile=keys)
        query = writer.option("checkpointLocation", str(tmp_path / "copy")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        table.write(spark.range(10, 20), encryptionKeyFile=keys)
    assert sorted(row.id for row in copy.read(encryptionKeyFile=keys).collect()) == list(range(20))
    with pytest.raises(Exception, match="2026-11"):
        copy.read("id bigint").count()


def test_a_stream_without_the_key_ends_with_that_error_and_goes_on_with_the_key(
    table: Table, spark: SparkSession, keys: str, tmp_path: Path
) -> None:
    """Nothing was read or written without the key, so the checkpoint is that of the first batch."""
    table.write(spark.range(10), encryptionKeyFile=keys)
    copy = type(table)(spark, table.uri, f"{table.log}-copy")
    reasons = (
        ({}, "is encrypted with key '2026-11', and no key file is given: give option 'encryptionKeyFile'"),
        ({"encryptionKeyFile": key_file(tmp_path / "wrong", "2026-11", octet=9)}, "another key '2026-11' than option"),
        ({"encryptionKeyFile": keys}, ""),
    )
    for options, reason in reasons:
        source = table.stream(startingOffsets="earliest", **options)
        writer = source.writeStream.format("bookkeeper").options(uri=table.uri, log=copy.log)
        query = writer.option("checkpointLocation", str(tmp_path / "copy")).trigger(availableNow=True).start()
        if reason:
            with pytest.raises(Exception, match=reason):
                query.awaitTermination(120)
        else:
            assert query.awaitTermination(120)
    assert sorted(row.id for row in copy.read().collect()) == list(range(10))


def test_a_view_of_sql_reads_and_writes(table: Table, spark: SparkSession, keys: str) -> None:
    options = f"uri '{table.uri}', log '{table.log}', encryptionKeyFile '{keys}'"
    table.write(spark.range(3), encryptionKeyFile=keys)
    spark.sql(f"CREATE TEMPORARY VIEW encrypted_view USING bookkeeper OPTIONS ({options})")
    spark.sql("INSERT INTO encrypted_view SELECT id + 3 FROM range(3)")
    assert [row.id for row in spark.sql("SELECT id FROM encrypted_view ORDER BY id").collect()] == list(range(6))


def test_rotation_and_a_log_that_was_clear_once(table: Table, spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    table.write(spark.range(2), inlineBytes="0")
    old = key_file(path, "2026-10")
    table.write(spark.range(2, 4), encryptionKeyFile=old, inlineBytes="0")
    key_file(path, "2026-10", "2026-11")
    table.write(spark.range(4, 6), encryptionKeyFile=old, inlineBytes="0")
    rows = table.read(encryptionKeyFile=old, includeMetadata="true")
    assert sorted(row.id for row in rows.collect()) == list(range(6))
    with Client(table.uri) as client:
        ids = sorted({row.ledger_id for row in rows.select("ledger_id").collect()})
        records = [client.metadata(ledger).custom_metadata.get(RECORD_KEY) for ledger in ids]
    used = sorted({json.loads(record)["keyId"] for record in records if record is not None})
    assert (used, None in records) == (["2026-10", "2026-11"], True)


def test_a_wrong_or_missing_key_is_one_error_of_the_driver(
    table: Table, spark: SparkSession, keys: str, tmp_path: Path
) -> None:
    table.write(spark.range(5), encryptionKeyFile=keys)
    other = key_file(tmp_path / "other", "2026-12")
    wrong = key_file(tmp_path / "wrong", "2026-11", octet=9)
    for options, reason in (
        (
            {},
            "ledger [0-9]+ is encrypted with key '2026-11', and no key file is given: give option 'encryptionKeyFile'",
        ),
        ({"encryptionKeyFile": other}, f"key '2026-11', which option 'encryptionKeyFile' {other} does not have"),
        ({"encryptionKeyFile": wrong}, f"another key '2026-11' than option 'encryptionKeyFile' {wrong}"),
        # The value may be a key itself, so only its folders that exist are shown.
        ({"encryptionKeyFile": "/no/such"}, r"option 'encryptionKeyFile' /\*\*\*: the file cannot be read"),
    ):
        with pytest.raises(Exception, match=reason) as caught:
            table.read("id bigint", **options).collect()
        # The planning of the read failed: no task did.
        assert "Task" not in str(caught.value).split("Traceback", 1)[0]
        assert "failed 2 times" not in str(caught.value)
    with pytest.raises(Exception, match=r"option 'encryptionKeyFile' /\*\*\*: the file cannot be read"):
        table.write(spark.range(1), encryptionKeyFile="/no/such")


@pytest.mark.parametrize("content", [None, b"not a key"], ids=["no file", "no keys"])
def test_a_key_file_that_cannot_be_used_is_refused_also_where_nothing_is_encrypted(
    cluster: Cluster, client: Client, tmp_path: Path, content: bytes | None
) -> None:
    """The user relies on the file: a job that only seems to have its keys fails at the first encrypted ledger."""
    log = client.log(f"clear-{uuid.uuid4().hex[:12]}")
    log.create()
    with log.open_for_writing() as writer:
        writer.append(b'{"a": 1}')
    ledger = str(log.show()["ledgers"][0]["ledger"])
    path = tmp_path / "keys"
    complaint = rf"{tmp_path}/\*\*\*: the file cannot be read: No such file or directory\. Name a file\."
    if content is not None:
        path.write_bytes(content)
        complaint = f"{path}: line 1"
    columns = StructType().add("a", "integer")

    def source(**selection: str) -> BookKeeperDataSource:
        given = {"payloadFormat": "json", "encryptionKeyFile": str(path), **selection}
        return BookKeeperDataSource({"uri": cluster.uri, **given})

    for act in (
        lambda: source(log=log.name).schema(),
        lambda: source(log=log.name).reader(columns).partitions(),
        lambda: source(ledgers=ledger).reader(columns).partitions(),
        lambda: source(log=log.name, startingOffsets="earliest").streamReader(columns).initialOffset(),
        lambda: source(log=log.name).writer(columns, False),
        lambda: source(log=log.name).streamWriter(columns, False),
    ):
        with pytest.raises(ConfigurationError, match=f"option 'encryptionKeyFile' {complaint}"):
            act()


def test_an_altered_entry_fails_the_read_whatever_malformed_rows_do(
    table: Table, spark: SparkSession, keys: str, cluster: Cluster
) -> None:
    """Sealed entries under a record of another ledger: to a reader they are as good as forged."""
    with (
        Client(cluster.uri, encryption=EncryptionOptions(keys)) as client,
        client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer,
    ):
        writer.append_many([b"one", b"two"])
        record = client.metadata(writer.ledger_id).custom_metadata[RECORD_KEY]
    with Client(cluster.uri) as client, client.create(ensemble=3, write_quorum=3, ack_quorum=2) as forged:
        forged.append_many([b"written in clear, by another client"])

    async def add_record() -> None:
        async with aio.Client(cluster.uri) as asynchronous:
            ledgers = (await asynchronous.context()).ledgers
            stored = await ledgers.read(forged.ledger_id)
            await ledgers.write(
                forged.ledger_id, replace(stored.metadata, custom_metadata={RECORD_KEY: record}), stored.version
            )

    run(add_record)
    reader = spark.read.format("bookkeeper").options(uri=cluster.uri, ledgers=str(forged.ledger_id))
    for mode in ("FAILFAST", "DROPMALFORMED"):
        with pytest.raises(Exception, match=f"{DecryptionFailed.__name__}.*entry 0 is not what its writer encrypted"):
            reader.options(encryptionKeyFile=keys, mode=mode, payloadFormat="json").schema("a int").load().collect()
