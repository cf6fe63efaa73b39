"""bkspark: Apache BookKeeper for Spark and Python. `import bkspark` alone loads neither pyspark nor kazoo."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("bookkeeper")` known to one session. Spark finds it by itself where bkspark is installed."""
    from bkspark.spark.source import register as register_source

    register_source(spark)
