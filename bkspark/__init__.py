"""bkspark: Apache BookKeeper for Spark and Python.

`bkspark.client` (asyncio) and `bkspark.blocking` have the ledger client. The names below are those that need Spark;
`import bkspark` alone loads neither pyspark nor kazoo.

The import sets PYSPARK_PYTHON to the running interpreter if Spark would otherwise start its Python workers with another
one (`bkspark.interpreter`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bkspark.extras import explain
from bkspark.interpreter import name_interpreter
from bkspark.version import VERSION

if TYPE_CHECKING:
    from bkspark.spark.progress import lag
    from bkspark.spark.session import session
    from bkspark.spark.source import register
    from bkspark.spark.typed_options import Options

__all__ = ["Options", "__version__", "lag", "register", "session"]

__version__ = VERSION

name_interpreter()

_MODULES = {
    "Options": "bkspark.spark.typed_options",
    "lag": "bkspark.spark.progress",
    "register": "bkspark.spark.source",
    "session": "bkspark.spark.session",
}
"""Where each name is defined; its module is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bkspark' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as missing:
        if reason := explain(missing):
            raise ModuleNotFoundError(f"bkspark.{name} needs Spark; {reason}", name=missing.name) from None
        raise
    return value
