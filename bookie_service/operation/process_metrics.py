"""What this process uses of its machine, with the names of Prometheus's client libraries."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bkspark.version import VERSION
from bookie_service.metrics.families import Family, counter, gauge
from bookie_service.storage.io.process_usage import process_usage

_BEGAN_S = time.time()


def process_families() -> Iterator[Family]:
    """Yield the families of this process."""
    usage = process_usage()
    yield counter("process_cpu_seconds_total", usage.processor_s)
    yield gauge("process_start_time_seconds", _BEGAN_S)
    yield gauge("process_open_fds", usage.open_files)
    yield gauge("process_max_fds", usage.open_files_max)
    yield gauge("process_virtual_memory_bytes", usage.virtual_bytes)
    yield gauge("process_resident_memory_bytes", usage.resident_bytes)
    yield gauge("process_threads", usage.threads)
    yield gauge("bkspark_info", 1, {"version": VERSION}, "The version of this process.")
