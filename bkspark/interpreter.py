"""The interpreters that Spark starts its Python workers with.

Spark does not use the driver's interpreter. It runs tasks with `PYSPARK_PYTHON`, or with the `python3` of the PATH if
that is not set. It looks a format up with `PYSPARK_DRIVER_PYTHON`, if that is set, even if this is a program like
jupyter. If such a program lacks bkspark or pyspark, for example because no environment is activated, each use of the
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
DRIVER_VARIABLE = "PYSPARK_DRIVER_PYTHON"
"""Names the driver's program. It is running already, so changing the value only changes how formats are looked up."""
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets it. Its JVM is already running, so setting PYSPARK_PYTHON would have no effect."""
WORKERS_DEFAULT = "python3"


def is_own(program: str, path: str | None = None) -> bool:
    """Return whether a program is an interpreter of this environment. `path`: is searched instead of PATH.

    All interpreters in the folder of a virtual environment belong to it. /usr/bin has those of several versions, each
    with packages of its own.
    """
    is_environment = sys.prefix != sys.base_prefix
    found = shutil.which(program, path=path)
    return found is not None and (_is_beside(found) if is_environment else _is_this(found))


def _is_beside(found: str) -> bool:
    return Path(found).absolute().parent == Path(sys.executable).absolute().parent


def _is_this(found: str) -> bool:
    return _is_beside(found) and Path(found).resolve() == Path(sys.executable).resolve()


def name_interpreter(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Set the variables to this interpreter, for Spark sessions that are made later; return whether one was set.

    PYSPARK_PYTHON is not set if it has a value, or if the `python3` of the PATH belongs to the same environment.
    PYSPARK_DRIVER_PYTHON is set if it has another value. A session that was made before keeps what it had: a warning
    says so.
    """
    if GATEWAY_VARIABLE in environment or not sys.executable:
        return False
    path, wrong = environment.get("PATH"), []
    if not environment.get(VARIABLE) and not is_own(WORKERS_DEFAULT, path):
        wrong.append(VARIABLE)
    driver = environment.get(DRIVER_VARIABLE)
    if driver and not _is_this(shutil.which(driver, path=path) or driver):
        wrong.append(DRIVER_VARIABLE)
    environment.update(dict.fromkeys(wrong, sys.executable))
    if wrong and _has_spark_started():
        warnings.warn(
            f"Spark was started before bkspark was imported, and starts its Python workers with another interpreter "
            f"({', '.join(wrong)}): if that one cannot import bkspark, each use of the format ends in "
            "DATA_SOURCE_NOT_FOUND. Import bkspark before the session is made; bkspark.register(spark) checks it",
            RuntimeWarning,
            stacklevel=2,
        )
    return bool(wrong)


def _has_spark_started() -> bool:
    """Return whether this process has a Spark context, without importing pyspark."""
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    return getattr(context, "_active_spark_context", None) is not None
