"""What this process uses of its machine, from /proc. On systems other than Linux only the processor time is known."""

from __future__ import annotations

import os
import resource
import threading
import time
from dataclasses import dataclass

_PAGE_BYTES = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Seconds of processor time, bytes of memory, open files, and threads."""

    processor_s: float
    """User and system time since the process began."""
    resident_bytes: int = 0
    """Memory that is not swapped out; `virtual_bytes`: all address space."""
    virtual_bytes: int = 0
    open_files: int = 0
    open_files_max: int = 0
    """The soft limit (RLIMIT_NOFILE)."""
    threads: int = 0


def process_usage() -> ProcessUsage:
    """Return what this process uses now."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = statm.read().split()
        files = len(os.listdir("/proc/self/fd"))
    except OSError:
        return ProcessUsage(time.process_time(), open_files_max=limit, threads=threading.active_count())
    return ProcessUsage(
        time.process_time(),
        int(pages[1]) * _PAGE_BYTES,
        int(pages[0]) * _PAGE_BYTES,
        files,
        limit,
        threading.active_count(),
    )
