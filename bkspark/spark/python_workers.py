"""Checks that Spark's Python workers can import bkspark; on the driver, once for each interpreter."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from bkspark import version
from bkspark.errors import ConfigurationError
from bkspark.interpreter import VARIABLE, WORKERS_DEFAULT, is_own

SPARK_FILES = f"{os.sep}spark-"
"""Part of the folders to which Spark unpacks `--py-files` and archives."""
CHECK_S = 60
"""Time that an interpreter has to import the source; on a loaded machine it takes seconds."""


def check_workers(session: SparkSession) -> None:
    """Raise ConfigurationError if Spark starts workers of this host with an interpreter that lacks bkspark.

    A session of Spark Connect, and bkspark from `--py-files`, are not checked: the server, or Spark, provides it.
    """
    jvm = getattr(session, "_jvm", None)
    if jvm is None or not _is_installed():
        return
    variables = jvm.java.lang.System.getenv()
    path = variables.get("PATH")
    # Spark looks sources up with its JVM's variables, and runs tasks with what pyspark read when the session was made.
    programs = {variables.get(VARIABLE) or variables.get("PYSPARK_DRIVER_PYTHON") or WORKERS_DEFAULT}
    if (session.sparkContext.master or "").startswith("local"):
        programs.add(session.sparkContext.pythonExec)
    for program in programs:
        if not is_own(program, path) and (reason := _reason(program, path)) is not None:
            raise ConfigurationError(
                f"Spark starts its Python workers with {shutil.which(program, path=path) or program}, which cannot "
                f"import bkspark ({reason}); each use of the format would end in DATA_SOURCE_NOT_FOUND: set "
                f"{VARIABLE}={sys.executable} before the session is made, or import bkspark before that, which sets it"
            )


def _is_installed() -> bool:
    return Path(version.__file__).is_file() and SPARK_FILES not in version.__file__


@functools.lru_cache
def _reason(program: str, path: str | None) -> str | None:
    """Return why an interpreter cannot import the source; None if it can, or if it does not say."""
    command = [program, "-c", "import pyspark, bkspark.spark.source"]
    environment = {**os.environ, **({} if path is None else {"PATH": path})}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CHECK_S, errors="replace", check=False
        )
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]
