"""The programs of docs/spark.md do what the page says, with data."""

from __future__ import annotations

import re
import shlex
import uuid
from pathlib import Path

import pytest

import bkspark
from bkspark.spark.versions import HAS_ADMISSION_CONTROL
from tests.cli.console import Console
from tests.spark.hadoop_credentials import add_credential

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
SECONDS = 120
PROVIDERS = "hadoop.security.credential.provider.path"


def programs(language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def names(spark, cluster, tmp_path) -> dict[str, object]:
    """What the page takes for granted: a session, a cluster, a DataFrame of several columns."""
    df = spark.createDataFrame([(1, "/a"), (2, "/b")], "user int, page string")
    return {"spark": spark, "uri": cluster.uri, "df": df, "bkspark": bkspark}


def own(program: str, folder: Path) -> tuple[str, str]:
    """Return a program with logs and a checkpoint of its own, and what the logs' names begin with."""
    prefix = f"docs-{uuid.uuid4().hex[:12]}-"
    for log in ("clicks", "copy"):
        program = program.replace(f'log="{log}"', f'log="{prefix}{log}"')
        program = program.replace(f'"log", "{log}"', f'"log", "{prefix}{log}"')
    return program.replace("/checkpoints/copy", str(folder / "checkpoint")), prefix


def test_the_page_has_these_programs() -> None:
    """Each has a test here."""
    languages = re.findall(r"^```(.+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(languages) == ["py", *["python"] * 6, "sh"]


def test_what_the_first_program_writes_arrives_in_the_copy(spark, cluster, client, tmp_path, names) -> None:
    program, prefix = own(programs()[0], tmp_path)
    before = {query.id for query in spark.streams.active}
    exec(program, names)
    (query,) = (query for query in spark.streams.active if query.id not in before)
    try:
        again = spark.createDataFrame([(3, "/c")], "user int, page string")
        # A stream begins with what is written from its start on.
        query.processAllAvailable()
        options = {"uri": cluster.uri, "log": f"{prefix}clicks"}
        again.write.format("bookkeeper").options(**options).mode("append").save()
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
        query.awaitTermination(SECONDS)
    read = spark.read.format("bookkeeper").options(uri=cluster.uri, payloadFormat="arrow")
    assert sorted(map(tuple, read.option("log", f"{prefix}clicks").load().collect())) == [
        (1, "/a"),
        (2, "/b"),
        (3, "/c"),
    ]
    assert list(map(tuple, read.option("log", f"{prefix}copy").load().collect())) == [(3, "/c")]


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="limits of micro-batches need Spark 4.2")
def test_typed_options_read_in_batch_and_as_a_stream(spark, cluster, tmp_path, names) -> None:
    program, prefix = own(programs()[1], tmp_path)
    df = names["df"]
    df.write.format("bookkeeper").options(uri=cluster.uri, log=f"{prefix}clicks").mode("append").save()
    exec(program, names)
    clicks = names["clicks"]
    assert clicks["maxPartitionBytes"] == "64m"
    assert spark.read.format("bookkeeper").options(**clicks).load().count() == 2


def test_json_of_others_is_read_raw_and_taken_apart_by_spark(spark, cluster, client, tmp_path, names) -> None:
    program, prefix = own(programs()[2], tmp_path)
    with client.log(f"{prefix}clicks").open_for_writing(ensemble=1, write_quorum=1, ack_quorum=1) as log:
        log.append(b'{"user": 5, "page": {"path": "/a"}, "more": []}')
    exec(program, names)
    assert list(map(tuple, names["clicks"].collect())) == [("5", '{"path":"/a"}')]


def test_rows_go_to_the_logs_that_their_column_names(cluster, tmp_path, names, capsys) -> None:
    program, prefix = own(programs()[5], tmp_path)
    for log in ("clicks", "orders"):
        program = program.replace(f'("{log}", ', f'("{prefix}{log}", ')
    program = program.replace('"clicks|orders"', f'"{prefix}clicks|{prefix}orders"')
    exec(program, names)
    printed = capsys.readouterr().out
    assert "|   1|  /a|" in printed
    assert "|    2|" in printed
    assert "|    1|" in printed


def test_the_commands_of_retention_run(spark, cluster, client, tmp_path, names, monkeypatch, capfd) -> None:
    (commands,) = programs("sh")
    console = Console(cluster.uri, monkeypatch, capfd)
    log = f"docs-{uuid.uuid4().hex[:12]}-clicks"
    names["df"].write.format("bookkeeper").options(uri=cluster.uri, log=log).mode("append").save()
    lines = [shlex.split(line, comments=True) for line in commands.splitlines()]
    assert [line[2] for line in lines] == ["retention", "expire", "consumers", "truncate"]
    for line in lines:
        words = [log if word == "clicks" else word for word in line[1:]]
        # Logs of other tests keep what they have.
        console.text(*words, *([log] if words[1] == "expire" else []))
    kept = client.log(log).retention()
    assert (kept.age_ms, kept.bytes) == (7 * 86_400_000, 100 << 30)
    assert spark.read.format("bookkeeper").options(uri=cluster.uri, log=log).load().count() == 2


def test_a_credential_of_hadoop_opens_a_log(spark, cluster, tmp_path, names) -> None:
    program, prefix = own(programs("py")[0], tmp_path)
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    configuration.set(PROVIDERS, f"localjceks://file{tmp_path}/docs.jceks")
    try:
        add_credential(spark, "bookkeeper.password", "s3cret of the page")
        options = {"uri": cluster.uri, "log": f"{prefix}clicks", "password": "s3cret of the page"}
        names["df"].write.format("bookkeeper").options(**options).mode("append").save()
        exec(program, names)
        assert names["rows"].count() == 2
    finally:
        configuration.unset(PROVIDERS)


@pytest.mark.parametrize("number", [3, 4], ids=["windows of append_time", "a registered reader"])
def test_streams_of_the_page_run(spark, cluster, client, tmp_path, names, number) -> None:
    program, prefix = own(programs()[number], tmp_path)
    options = {"uri": cluster.uri, "log": f"{prefix}clicks"}
    names["df"].write.format("bookkeeper").options(**options).mode("append").save()  # type: ignore[attr-defined]
    exec(program, names)
    rows = names["per_minute" if number == 3 else "clicks"]
    query = (
        rows.writeStream.format("memory")  # type: ignore[attr-defined]
        .queryName(prefix.replace("-", "_"))
        .outputMode("complete" if number == 3 else "append")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        names["df"].write.format("bookkeeper").options(**options).mode("append").save()  # type: ignore[attr-defined]
        query.processAllAvailable()
        found = spark.table(prefix.replace("-", "_")).collect()
        assert sum(row["count"] for row in found) == 2 if number == 3 else len(found) == 2
        assert [each.name for each in client.log(options["log"]).consumers()] == ([] if number == 3 else ["etl"])
    finally:
        query.stop()
        query.awaitTermination(SECONDS)
