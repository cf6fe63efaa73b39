"""What the connector does for Spark's Python workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

_CALLS = """
import gc, json
from bkspark.spark.frozen import freeze_imported_modules
frozen = []
for _ in range(3):
    freeze_imported_modules()
    frozen.append(gc.get_freeze_count() > 0)
print(json.dumps(frozen))
"""


def _frozen_after_each_call(environment: dict[str, str]) -> list[bool]:
    done = subprocess.run(
        [sys.executable, "-c", _CALLS], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    found: list[bool] = json.loads(done.stdout)
    return found


def test_a_worker_that_is_used_again_spares_its_modules_from_the_second_call_on() -> None:
    assert _frozen_after_each_call({"SPARK_REUSE_WORKER": "1"}) == [False, True, True]


def test_a_process_that_is_not_such_a_worker_is_left_alone() -> None:
    assert _frozen_after_each_call({}) == [False, False, False]
