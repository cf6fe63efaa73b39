"""Where the memory of large arrays comes from, so that taking or freeing it does not delay the event loop."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PLACE = """
import numpy as np
from bookie_service.storage.io.allocation import keep_allocation_short

if {are_kept_short}:
    keep_allocation_short()
# Once this is freed, malloc takes arrays up to its size from the heap, unless the limit is fixed.
np.ones(2 << 20).sum()
array = np.ones({array_bytes}, np.uint8)
address = array.__array_interface__["data"][0]
heap = [line.split()[0].split("-") for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]")]
print(any(int(begin, 16) <= address < int(end, 16) for begin, end in heap))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("THP_enabled")))
"""


def _place(*, are_kept_short: bool, array_bytes: int) -> list[str]:
    code = _PLACE.format(are_kept_short=are_kept_short, array_bytes=array_bytes)
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()


def test_malloc_takes_arrays_of_a_million_ids_from_its_heap_by_itself() -> None:
    is_in_heap, _ = _place(are_kept_short=False, array_bytes=8_000_000)
    assert is_in_heap == "True"


@pytest.mark.parametrize(
    ("array_bytes", "is_in_heap"),
    [(8_000_000, "False"), (4 << 20, "False"), (1 << 20, "True")],
    ids=["a million ids", "4 MB", "a buffer of requests"],
)
def test_arrays_of_a_million_ids_are_outside_the_heap_and_have_no_huge_pages(array_bytes: int, is_in_heap: str) -> None:
    assert _place(are_kept_short=True, array_bytes=array_bytes) == [is_in_heap, "0"]
