"""The README's programs do what the README says, and it names the version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import bkspark
from tests.cluster import Cluster

README = Path(__file__).parent.parent / "README.md"
URI = "zk://127.0.0.1:2181/ledgers"
LOG = '"log": "clicks"'


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_first_program_is_one_of_spark_and_short() -> None:
    """A data engineer sees it on the first screen."""
    before, _, _ = README.read_text().partition("```sh")
    lines = [line for line in programs()[0].splitlines() if line.strip() and not line.startswith("#")]
    assert "spark.read" in programs()[0]
    assert len(lines) <= 10
    assert len(before.splitlines()) <= 30


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.long_except("1", reason="30 s: a JVM and workers; tests/spark has the same calls, .ci/run this one")
@pytest.mark.parametrize("number", [0, 1])
def test_each_program_prints_what_its_comment_says(cluster: Cluster, short_spark: dict[str, str], number: int) -> None:
    program = programs()[number]
    assert URI in program
    promised = re.search(r"print\(.*\)\s+# (\[.*?\])", program)
    assert promised is not None
    program = program.replace(URI, cluster.uri).replace(LOG, f'"log": "readme-{uuid.uuid4().hex[:12]}"')
    interpreter = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment = os.environ | short_spark | interpreter
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == promised.group(1)


def test_the_version_is_the_packages() -> None:
    assert f"Version {bkspark.__version__} (" in README.read_text()
