"""What a bookie reports of its own use of the machine."""

from __future__ import annotations

import gc
import mmap
import resource
import threading
from pathlib import Path

import pytest

from bookie_service.storage.io.process_usage import process_usage


def test_usage_follows_what_the_process_does(tmp_path: Path) -> None:
    gc.collect()  # other tests' memory is not given back in between
    before = process_usage()
    held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory is counted apart
    for page in range(0, len(held), mmap.PAGESIZE):
        held[page] = 1
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with open(tmp_path / "one", "w"), open(tmp_path / "two", "w"):
            after = process_usage()
    finally:
        size = len(held)
        held.close()
        ended.set()
        thread.join()
    assert after.resident_bytes - before.resident_bytes > size // 2
    assert after.resident_bytes < after.virtual_bytes < 1 << 44
    assert after.virtual_bytes - before.virtual_bytes > size // 2
    assert after.open_files == before.open_files + 2
    assert after.threads == before.threads + 1
    assert after.processor_s >= before.processor_s > 0


def test_limit_of_files_is_the_one_that_holds() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = 300 if hard == resource.RLIM_INFINITY else min(hard, 1024) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        assert process_usage().open_files_max == lower
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_machine_without_proc_has_a_limit_and_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError("/proc/self/statm")

    monkeypatch.setattr("builtins.open", refuse)
    usage = process_usage()
    assert (usage.resident_bytes, usage.virtual_bytes, usage.open_files) == (0, 0, 0)
    assert usage.open_files_max == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert usage.threads == threading.active_count()
    assert usage.processor_s > 0
