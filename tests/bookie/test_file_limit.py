"""A bookie's open files against the operating system's limit (D13: refuse, not crash in a loop)."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys
from bookie_service.settings.file_limit import allowed_open_files
soft, hard, wanted, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    print(allowed_open_files(wanted, connections), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "connections", "said"),
    [
        (1024, 4096, 100, 1000, "100 4096"),
        (1024, 4096, 20_000, 1000, "2840 4096"),
        (1024, 1024, 20_000, 10_000, "384 1024"),
        (280, 280, 20_000, 10_000, "ConfigurationError this process may have 280 files open"),
    ],
)
def test_storage_keeps_open_what_the_limit_leaves(
    soft: int, hard: int, wanted: int, connections: int, said: str
) -> None:
    arguments = map(str, (soft, hard, wanted, connections))
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, timeout=180)
    assert done.stdout.startswith(said), done.stderr
