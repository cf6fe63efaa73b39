"""Checks that Spark's Python workers can import bkspark; on the driver, once for each interpreter."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from bkspark import version
from bkspark.errors import ConfigurationError
from bkspark.interpreter import GATEWAY_VARIABLE, VARIABLE, is_own

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
    path = jvm.java.lang.System.getenv().get("PATH")
    # For a registered source, Spark starts the planning on this host and the tasks with the same interpreter.
    program = session.sparkContext.pythonExec
    if not is_own(program, path) and (reason := _reason(program, path)) is not None:
        raise ConfigurationError(
            f"Spark starts its Python workers with {shutil.which(program, path=path) or program}, which cannot "
            f"import bkspark ({reason}); each use of the format would end in DATA_SOURCE_NOT_FOUND: set "
            f"{VARIABLE}={sys.executable} {_moment(os.environ)}"
        )


def _moment(environment: Mapping[str, str]) -> str:
    """Return when the variable must be set. The JVM of spark-submit runs before the program does."""
    if GATEWAY_VARIABLE in environment:
        return "for spark-submit, which was started without it"
    return "before the session is made, or import bkspark before that, which sets it"


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
