"""bkspark: Apache BookKeeper for Spark and Python. `import bkspark` alone loads neither pyspark nor kazoo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bkspark.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bkspark.spark.progress import Lag
    from bkspark.spark.typed_options import Options

__all__ = ["Options", "__version__", "lag", "register", "session"]

__version__ = VERSION


def __getattr__(name: str) -> Any:
    # A class cannot be imported inside a function, as the helpers below import what they need.
    if name == "Options":
        from bkspark.spark.typed_options import Options

        return Options
    raise AttributeError(f"module 'bkspark' has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Make `format("bookkeeper")` known to one session. Spark finds it by itself where bkspark is installed."""
    from bkspark.spark.source import register as register_source

    register_source(spark)


def session(app_name: str = "bkspark", *, master: str | None = None, **settings: str) -> SparkSession:
    """Return a Spark session with the settings that suit the source; see `bkspark.spark.session`."""
    from bkspark.spark.session import session as make_session

    return make_session(app_name, master=master, **settings)


def lag(progress: Any) -> Lag:
    """Return how many entries and bytes a streaming query is behind the logs it reads; see `bkspark.spark.progress`."""
    from bkspark.spark.progress import lag as lag_of

    return lag_of(progress)
