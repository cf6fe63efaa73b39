"""What the connector does for Spark's Python workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

from bkspark.net.pool import NetOptions
from bkspark.spark.workers import task_pool

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


def test_connections_are_lent_to_a_task_only_for_the_same_bookies_and_settings() -> None:
    """A bookie may have got another address since the last task."""
    bookies, net = {"one:1": ("one", 1)}, NetOptions()
    with task_pool(bookies, net) as first:
        pass
    with task_pool(dict(bookies), replace(net)) as second:
        assert second is first
    with task_pool({"one:1": ("two", 1)}, net) as third:
        assert third is not first
    with task_pool({"one:1": ("two", 1)}, replace(net, read_timeout_s=9.0)) as fourth:
        assert fourth is not third
        assert fourth.options.read_timeout_s == 9.0


def test_a_worker_that_is_used_again_spares_its_modules_from_the_second_call_on() -> None:
    assert _frozen_after_each_call({"SPARK_REUSE_WORKER": "1"}) == [False, True, True]


def test_a_process_that_is_not_such_a_worker_is_left_alone() -> None:
    assert _frozen_after_each_call({}) == [False, False, False]
