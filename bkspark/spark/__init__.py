"""The Spark connector: `format("bookkeeper")` on the Python Data Source API. Only this package imports pyspark.

    source       the data source: which reader or writer; registration
    options      every option: name, default, check; write_options, topic_options: parts of them
    typed_options  options as a typed value, for programs
    columns      which columns there are; Arrow batches for Spark
    inference    the columns of a read: those that logs have recorded, or those of sampled entries
    log_schemas  the schemas that logs have recorded, for reads and writes; evolution: how columns may change (pure)
    formats      payload formats: entries to Arrow columns and back
    ranges       which entries to read: bounds, limits, division among tasks (pure)
    offsets      a stream's offset as canonical JSON (pure); ledger_offsets: that of a stream of ledgers
    plan         from a snapshot of ledgers to partitions
    versions     what older versions of Spark lack, and its replacements
    read, stream batch reader, streaming source; `read` has the code that runs in tasks; ledger_stream: follows ledgers
    inspection   tables about the cluster; stored_ledgers: lists ledgers, and reads the metadata of many
    write        batch and streaming writers: staged by attempts, published by one change of the log
    progress     lag: how far a streaming query lags behind
    session      a session with the settings of spark-conf
    connection   a process's client; workers, frozen: savings in Spark's Python workers
    python_workers  whether Spark's workers can import bkspark

`demo`, `bench`, `job`, `limits` are the Spark halves of commands.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bkspark.spark.progress import Lag, lag
    from bkspark.spark.typed_options import Options

__all__ = ["Lag", "Options", "lag"]

_MODULES = {"Lag": "bkspark.spark.progress", "lag": "bkspark.spark.progress", "Options": "bkspark.spark.typed_options"}
"""Where each name is defined. They are imported on first use: Spark imports this package only to look for sources."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bkspark.spark' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value
