"""The README's program does what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import Cluster

README = Path(__file__).parent.parent / "README.md"
URI = "zk://127.0.0.1:2181/ledgers"


@pytest.mark.cluster
def test_the_first_program_prints_what_its_comment_says(cluster: Cluster) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert URI in program
    promised = re.search(r"print\(.*\)\s+# (\[.*?\])", program)
    assert promised is not None
    command = [sys.executable, "-c", program.replace(URI, cluster.uri)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == promised.group(1)
