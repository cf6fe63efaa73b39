"""A Spark job that a command runs as a child process, and the quiet session it runs in.

The job talks to its parent by JSON lines on stdout (`say`, `result`, `error`: see `bkspark.cli.spark_job`). The session
keeps every file below the folder that the parent creates and removes, and leaves no process running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bkspark.errors import BookKeeperError, ConfigurationError

JVM_STOP_TIMEOUT_S = 10.0
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options of a job of about a minute: optimising compilation would cost a fifth of its processor time."""

_REASON_CHARACTERS_MAX = 500


def say(text: str) -> None:
    """Print progress for the user."""
    _emit({"say": text})


def run(job: Callable[[], dict[str, Any]]) -> int:
    """Run the job and report its result, or in one line why it failed; return the exit code."""
    signal.signal(signal.SIGTERM, _end)
    try:
        result = job()
    except ConfigurationError as error:
        _emit({"error": str(error), "is_usage": True})
        return 2
    except (BookKeeperError, PySparkException, Py4JJavaError, OSError) as error:
        _emit({"error": _reason(error), "is_usage": False})
        return 1
    _emit({"result": result})
    return 0


def _emit(event: dict[str, Any]) -> None:
    print(json.dumps(event, default=str), flush=True)


def _end(number: int, frame: FrameType | None) -> None:
    # This is an exception so that `session` ends the JVM while it unwinds.
    raise SystemExit(128 + number)


def _reason(error: Exception) -> str:
    """Return the most informative line: for a failed Spark job, the Python error of the failed task."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("bkspark.errors.")]
    line = (ours or lines or [type(error).__name__])[-1 if ours else 0]
    return line.removeprefix("bkspark.errors.")[:_REASON_CHARACTERS_MAX]


@contextmanager
def session(folder: Path, cores: int = 2, java_options: str = "") -> Iterator[SparkSession]:
    """Yield a local session on `cores` threads that keeps its files in `folder`; end it and its JVM afterwards."""
    spark = _builder(folder, cores, java_options).getOrCreate()
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "a session that runs has a JVM"
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        # The JVM ends when Python's pipe to its stdin closes. Without waiting for it, it would outlive this process.
        spark.stop()
        gateway.shutdown()
        _end_jvm(gateway.proc)


def _builder(folder: Path, cores: int, java_options: str) -> SparkSession.Builder:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("bkspark")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={folder} -XX:-UsePerfData {java_options}")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(2 * cores))
    )


def _end_jvm(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(JVM_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main_of(job: Callable[[], dict[str, Any]]) -> None:
    """Run the job as this process and end with its exit code."""
    sys.exit(run(job))
