"""A Spark job: prints the values of a Pulsar topic, one JSON text a line.

python -m tests.interop.topic_rows FOLDER OPTIONS

OPTIONS is a JSON object, the options of `format("bookkeeper")`; Spark keeps its files in FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.spark.conftest import session


def main(folder: Path, options: dict[str, str]) -> None:
    spark = session(folder)
    rows = spark.read.format("bookkeeper").options(**options).load()
    for row in rows.selectExpr("CAST(value AS STRING) AS text").collect():
        print(json.dumps(row.text), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
