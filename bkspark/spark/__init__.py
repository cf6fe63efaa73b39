"""The Spark connector: `format("bookkeeper")` on the Python Data Source API. pyspark is imported below here only.

    source       the data source: which reader or writer; registration
    options      every option: name, default, check
    typed_options  options as a typed value, for programs
    columns      which columns there are; Arrow batches for Spark
    formats      payload formats: entries to Arrow columns and back
    ranges       which entries: bounds, limits, sharing out (pure)
    offsets      a stream's offset as canonical JSON (pure)
    plan         from a snapshot of ledgers to partitions
    versions     what older versions of Spark lack, and its replacements
    read, stream batch reader, streaming source; `read` has the code that runs in tasks
    inspection   tables about the cluster; stored_ledgers: reads the metadata of many ledgers
    write        batch and streaming writers: staged by attempts, published by one change of the log
    progress     lag: how far a streaming query lags behind
    session      a session with the settings of spark-conf
    connection   a process's client; workers: savings in Spark's Python workers

`demo`, `bench`, `job`, `limits` are the Spark halves of commands.
"""

from bkspark.spark.progress import Lag, lag
from bkspark.spark.typed_options import Options

__all__ = ["Lag", "Options", "lag"]
