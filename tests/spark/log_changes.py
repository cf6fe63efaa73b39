"""Another process that changes logs while a test writes to them.

It takes lines of a change, a URI and the name of a log, and answers each with a line when the change is done.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.types import StructType

from bkspark.blocking import Client
from bkspark.log.formats import SegmentOwner
from bkspark.spark.options import SourceOptions
from bkspark.spark.write import Destination

DELETE, MAKE_AGAIN, TRUNCATE, REPLACE_SCHEMA = "delete", "make-again", "truncate", "replace-schema"


class LogChanges:
    """The process, from the side of the test."""

    def __init__(self) -> None:
        # Its messages go to the stderr of the test.
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def change(self, what: str, uri: str, name: str) -> None:
        """Change a log; return when it is changed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(what, uri, name, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"

    def end(self) -> None:
        self._process.communicate()


@contextmanager
def log_changes() -> Iterator[LogChanges]:
    changes = LogChanges()
    try:
        yield changes
    finally:
        changes.end()


def _change(what: str, uri: str, name: str) -> None:
    if what == REPLACE_SCHEMA:
        _replace_schema(uri, name)
        return
    with Client(uri) as client:
        log = client.log(name)
        if what == TRUNCATE:
            log.truncate("latest")
        else:
            log.delete()
        if what == MAKE_AGAIN:
            log.create()


def _replace_schema(uri: str, name: str) -> None:
    given = {"uri": uri, "log": name, "overwriteSchema": "true", "payloadFormat": "json"}
    options = SourceOptions.parse({**given, "ensembleSize": "1", "writeQuorum": "1", "ackQuorum": "1"})
    other = Destination(StructType().add("number", "long"), options, is_overwrite=True)
    rows = pa.record_batch([pa.array([7], pa.int64())], ["number"])
    result = other.write(SegmentOwner("job", "other", None, 0, 0), iter([rows]), is_keyed=False)
    other.publish_job([result], "other", is_overwrite=True)


if __name__ == "__main__":
    for line in sys.stdin:
        _change(*line.split())
        print("done", flush=True)
