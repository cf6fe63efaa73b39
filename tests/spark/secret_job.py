"""A Spark application that uses secrets in every way, also wrong ones, and keeps what others may see of it in a folder.

python -m tests.spark.secret_job URI FOLDER

`FOLDER/private` has the files `password`, `keys`, `wrong-keys`, `bad-keys` and `hadoop-password`, which becomes the
credential `bookkeeper.password` of the key store `store.jceks`. The environment gives BKSPARK_PASSWORD, and
OPTION_PASSWORD and SQL_PASSWORD for option `password`; CLOSED, WRONG_LOGIN and WRONG_KEY are options for a cluster with
TLS and SASL, as JSON. When all is done it prints DONE, and ends when its standard input does.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from bkspark.spark.credentials import distribute_credential
from bkspark.spark.options import SourceOptions
from bkspark.spark.typed_options import Options
from tests.spark.conftest import SETTINGS
from tests.spark.hadoop_credentials import add_credential
from tests.spark_settings import spark_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DONE = "DONE"
UI_PAGES = ("jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery")
REST = ("jobs", "stages", "environment", "executors", "sql?details=true&planDescription=true")


class SecretJob:
    """Runs reads, writes and queries on one cluster, and prints what a user sees of them."""

    def __init__(self, spark: SparkSession, uri: str, folder: Path) -> None:
        self._spark = spark
        self._uri = uri
        self._folder = folder
        secrets = folder / "private"
        self.of_file = {"passwordFile": str(secrets / "password"), "encryptionKeyFile": str(secrets / "keys")}
        self.of_environment: dict[str, str] = {}
        self.of_option = {"password": os.environ["OPTION_PASSWORD"], "digestType": "mac"}
        self.of_statement = {"password": os.environ["SQL_PASSWORD"]}
        names = ("CLOSED", "WRONG_LOGIN", "WRONG_KEY")
        self.of_closed, self.wrong_login, self.wrong_key = (json.loads(os.environ[name]) for name in names)

    def run(self) -> None:
        """Succeed with each way to give secrets, and fail in many ways."""
        add_credential(self._spark, "bookkeeper.password", (self._folder / "private" / "hadoop-password").read_text())
        of_hadoop = {"passwordFile": distribute_credential(self._spark, "bookkeeper.password")}
        ways = {"file": self.of_file, "environment": self.of_environment, "option": self.of_option, "hadoop": of_hadoop}
        ways["closed"] = self.of_closed
        for name, options in ways.items():
            self._batch(name, options)
        self._stream("file", self.of_file)
        self._stream("option", self.of_option)
        self._view("file", self.of_file)
        self._write("sql", self.of_statement)
        self._view("sql", self.of_statement)
        self._fail()
        self._show()

    def _options(self, log: str, options: dict[str, str]) -> dict[str, str]:
        return {"uri": self._uri, "log": f"searched-{log}", **options}

    def _read(self, log: str, options: dict[str, str]) -> DataFrame:
        readable = {name: value for name, value in options.items() if name != "digestType"}
        return self._spark.read.format("bookkeeper").options(**self._options(log, readable)).load()

    def _batch(self, log: str, options: dict[str, str]) -> None:
        frame = self._spark.range(2000, numPartitions=2).selectExpr("id", "repeat('x', 300) AS text")
        for more in ({"inlineBytes": "0"}, {}) if log in ("file", "option") else ({},):
            frame.write.format("bookkeeper").options(**self._options(log, options), **more).mode("append").save()
        rows = self._read(log, options)
        rows.explain("extended")
        rows.explain("formatted")
        print(repr(rows), rows._jdf.queryExecution().toString(), rows._repr_html_())  # type: ignore[operator]
        assert rows.count() in (2000, 4000)

    def _stream(self, log: str, options: dict[str, str]) -> None:
        readable = {name: value for name, value in options.items() if name != "digestType"}
        source = self._spark.readStream.format("bookkeeper").options(**self._options(log, readable))
        writer = source.option("startingOffsets", "earliest").load().writeStream.format("bookkeeper")
        writer = writer.options(**self._options(f"{log}-copy", options)).queryName(f"copy_of_{log}")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoints" / log))
        query = writer.trigger(availableNow=True).start()
        query.explain(True)
        assert query.awaitTermination(120)
        print(query.lastProgress, query.status)
        assert self._read(f"{log}-copy", options).count() == 4000

    def _write(self, log: str, options: dict[str, str]) -> None:
        frame = self._spark.range(4000, numPartitions=2).selectExpr("id", "repeat('x', 300) AS text")
        frame.write.format("bookkeeper").options(**self._options(log, options)).mode("append").save()

    def _view(self, log: str, options: dict[str, str]) -> None:
        """A view whose options are in the text of its statement, also the password itself."""
        given = ", ".join(f"{name} '{value}'" for name, value in self._options(log, options).items())
        view = f"view_of_{log}"
        self._spark.sql(f"EXPLAIN EXTENDED CREATE TEMPORARY VIEW {view} USING bookkeeper OPTIONS ({given})").show(
            100, truncate=False
        )
        self._spark.sql(f"CREATE TEMPORARY VIEW {view} USING bookkeeper OPTIONS ({given})")
        self._spark.sql(f"DESCRIBE EXTENDED {view}").show(100, truncate=False)
        self._spark.sql(f"EXPLAIN EXTENDED SELECT count(*) FROM {view}").show(100, truncate=False)
        assert self._spark.sql(f"SELECT * FROM {view}").count() == 4000

    def _fail(self) -> None:
        """Each of these is an error of a user; the user gets its message and traceback."""
        secrets = self._folder / "private"
        file = self.of_file

        def failing_task() -> None:
            # In a task, while the options of the read are on the stack.
            self._read("file", file).selectExpr("raise_error(text) AS x").collect()

        def failing_query() -> None:
            def fail(batch: DataFrame, number: int) -> None:
                batch.write.format("bookkeeper").options(**self._options("option", file)).mode("append").save()

            source = self._spark.readStream.format("bookkeeper").options(**self._options("file", file))
            query = source.option("startingOffsets", "earliest").load().writeStream.foreachBatch(fail)
            started = query.option("checkpointLocation", str(self._folder / "checkpoints" / "failing")).start()
            started.processAllAvailable()

        cases: dict[str, Callable[[], Any]] = {
            "another password": lambda: self._read("file", {**file, **self.of_option}),
            "wrong password": lambda: self._read("option", {"passwordFile": file["passwordFile"]}).count(),
            "wrong key": lambda: self._read("file", {**file, "encryptionKeyFile": str(secrets / "wrong-keys")}).count(),
            "no key": lambda: self._read("file", {"passwordFile": file["passwordFile"]}).schema("id bigint").count(),
            "bad key file": lambda: self._read(
                "file", {**file, "encryptionKeyFile": str(secrets / "bad-keys")}
            ).count(),
            "write with another password": lambda: (
                self._spark.range(1)
                .write.format("bookkeeper")
                .options(**self._options("file", {**self.of_option}))
                .mode("append")
                .save()
            ),
            "wrong login": lambda: self._read("closed", self.wrong_login).count(),
            "wrong password of a key": lambda: self._read("closed", self.wrong_key).count(),
            "misspelt": lambda: self._read("file", {"pasword": self.of_option["password"]}).count(),
            "failing task": failing_task,
            "failing query": failing_query,
        }
        for name, case in cases.items():
            try:
                case()
            except Exception:
                print(f"{name}:\n{traceback.format_exc()}")
            else:
                raise AssertionError(f"{name} did not fail")

    def _show(self) -> None:
        """Keep what Spark's pages and its REST show, and what objects look like."""
        for options in (self.of_file, self.of_option):
            given = self._options("file", {name: text for name, text in options.items() if name != "digestType"})
            print(Options(**given), SourceOptions.parse(given), SourceOptions.parse(given).encryption)
        context = self._spark.sparkContext
        base, application = context.uiWebUrl, context.applicationId
        pages = {f"{page}.html": f"{base}/{page}/" for page in UI_PAGES}
        executions = range(30)
        pages |= {f"execution{number}.html": f"{base}/SQL/execution/?id={number}" for number in executions}
        pages |= {f"{name[:4]}.json": f"{base}/api/v1/applications/{application}/{name}" for name in REST}
        kept = self._folder / "ui"
        kept.mkdir()
        for name, url in pages.items():
            with urlopen(url, timeout=60) as answer:
                (kept / name).write_bytes(answer.read())


def main(uri: str, folder: Path) -> None:
    from pyspark.sql import SparkSession

    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(spark_home(folder / "home"))
    settings = {
        **SETTINGS,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.hadoop.hadoop.security.credential.provider.path": f"localjceks://file{folder}/private/store.jceks",
    }
    (folder / "events").mkdir()
    builder = SparkSession.builder.master("local[2]").appName("searched")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("INFO")
    SecretJob(spark, uri, folder).run()
    print(DONE, flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
