"""Makes Spark find `format("bookkeeper")`: Spark looks for `DefaultSource` in every top-level `pyspark_*` package.

Importing this package never raises: if one such package cannot be imported, Spark finds none of them.
"""

try:
    from bkspark.spark.source import BookKeeperDataSource as DefaultSource
except Exception as _reason:  # however this installation is broken, Spark must still find other data sources
    unavailable_because: Exception | None = _reason
else:
    unavailable_because = None
    __all__ = ["DefaultSource"]
