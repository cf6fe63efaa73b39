"""Makes Spark find `format("bookkeeper")`: it looks for `DefaultSource` in every top-level `pyspark_*` package.

Importing this never raises: one such package that cannot be imported hides all of them from Spark.
"""

try:
    from bkspark.spark.source import BookKeeperDataSource as DefaultSource
except Exception as _reason:  # whatever is wrong with the installation, other data sources must stay visible
    unavailable_because: Exception | None = _reason
else:
    unavailable_because = None
    __all__ = ["DefaultSource"]
