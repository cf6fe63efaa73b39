"""Makes a Spark session with settings for this source; `spark-conf/spark-defaults.conf` explains each of them."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from bkspark.errors import ConfigurationError
from bkspark.interpreter import VARIABLE, WORKERS_DEFAULT, is_own
from bkspark.spark.source import register

SETTINGS = {"spark.python.unix.domain.socket.enabled": "true"}
"""Settings that are better than Spark's own defaults."""


def session(app_name: str = "bkspark", *, master: str | None = None, **settings: str) -> SparkSession:
    """Return the process's Spark session, with the format registered; create it with `SETTINGS` if there is none yet.

    Args:
        master: as for Spark; None leaves it to spark-submit and the environment.
        settings: further Spark settings, which take precedence, with __ instead of dots:
        spark__sql__shuffle__partitions="8".

    Raises:
        ConfigurationError: a setting does not begin with spark, or Spark's Python workers cannot import bkspark.
    """
    for name in settings:
        if not name.startswith("spark__"):
            raise ConfigurationError(
                f"'{name}' is not a setting of Spark, which would ignore it: settings begin with spark and "
                "have __ in place of dots, as spark__sql__shuffle__partitions"
            )
    # The python3 in PATH may belong to another environment, which may lack packages. If it belongs to this one, its
    # path is not set: the executors of a cluster find python3 in their own PATH, and may not have this path.
    if not is_own(WORKERS_DEFAULT):
        os.environ.setdefault(VARIABLE, sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    given = {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in (SETTINGS | given).items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    # Otherwise Spark would start a Python worker to find the source. On a loaded machine this fails after ten seconds.
    register(made)
    return made
