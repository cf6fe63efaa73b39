"""The interpreter that Spark starts its Python workers with.

Spark does not use the driver's interpreter: it starts `PYSPARK_PYTHON`, or the `python3` of the PATH if that is not
set. If that interpreter lacks bkspark or pyspark, for example because no environment is activated, each use of the
format ends in DATA_SOURCE_NOT_FOUND.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "PYSPARK_PYTHON"
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets it. Its JVM is already running, so setting PYSPARK_PYTHON would have no effect."""
WORKERS_DEFAULT = "python3"


def is_own(program: str, path: str | None = None) -> bool:
    """Return whether a program lies in the folder of this interpreter. `path`: is searched instead of PATH."""
    found = shutil.which(program, path=path)
    return found is not None and Path(found).absolute().parent == Path(sys.executable).absolute().parent


def name_interpreter(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Set PYSPARK_PYTHON to this interpreter, for Spark sessions that are made later; return whether it was set.

    It is not set if it has a value, or if the `python3` of the PATH belongs to the same environment. A session that was
    made before keeps its interpreter: a warning says so.
    """
    if environment.get(VARIABLE) or GATEWAY_VARIABLE in environment or not sys.executable:
        return False
    if is_own(WORKERS_DEFAULT, environment.get("PATH")):
        return False
    environment[VARIABLE] = sys.executable
    if _has_spark_started():
        warnings.warn(
            f"Spark was started before bkspark was imported, and starts its Python workers with the {WORKERS_DEFAULT} "
            "of the PATH: if that one cannot import bkspark, each use of the format ends in DATA_SOURCE_NOT_FOUND. "
            "Import bkspark before the session is made; bkspark.register(spark) checks it",
            RuntimeWarning,
            stacklevel=2,
        )
    return True


def _has_spark_started() -> bool:
    """Return whether this process has a Spark context, without importing pyspark."""
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    return getattr(context, "_active_spark_context", None) is not None
