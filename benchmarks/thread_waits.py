"""Where the threads of processes spend their time, from samples of `/proc/PID/task/TID`: running, or in which call.

A share "ready" is time for which a thread waited for a processor. Calls on files of different kinds count apart;
of a sync that waits, the part of the kernel that it waits for is shown. Linux on x86-64, as root.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

_PAUSE_S = 0.02
_CALLS = {0: "read", 1: "write", 7: "poll", 18: "pwrite", 20: "writev", 44: "sendto", 45: "recvfrom", 46: "sendmsg"} | {
    47: "recvmsg",
    74: "fsync",
    75: "fdatasync",
    77: "ftruncate",
    202: "futex",
    221: "fadvise",
    232: "epoll_wait",
    281: "epoll_wait",
    285: "fallocate",
    296: "pwritev",
    306: "syncfs",
}
_ON_FILES = frozenset(
    {"write", "pwrite", "pwritev", "writev", "fsync", "fdatasync", "fallocate", "ftruncate", "fadvise"}
)
_KINDS = {".txn": "journal", ".log": "entry log", ".idx": "index"}
_WAITS = {
    "jbd2_log_wait_commit": "file system's journal",
    "wait_transaction_locked": "file system's journal",
    "balance_dirty_pages": "too many dirty pages",
    "blkdev_issue_flush": "flush of the disk",
    "folio_wait_writeback": "writes to the disk",
    "blk_mq_get_tag": "queue of the disk",
    "rq_qos_wait": "queue of the disk",
}
"""Functions of the kernel, the most telling first."""

Shares = dict[str, float]


class ThreadWaits:
    """Samples the threads of processes while its context lasts. Without processes it does nothing."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        """`processes`: names and process ids."""
        self._processes = dict(processes)
        self._seen: dict[tuple[str, int, int], Counter[str]] = {}
        self._clock: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._began = self._ended = 0.0

    @contextlib.contextmanager
    def running_with(self, name: str, pid: int) -> Iterator[None]:
        """Sample the threads of one more process, too."""
        if not self._processes:
            yield
            return
        self._processes[name] = pid
        is_over = threading.Event()
        thread = threading.Thread(target=self._run, args=(is_over,))
        self._began = time.monotonic()
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._ended = time.monotonic()

    def shares(self, least: float = 0.02) -> dict[str, Shares]:
        """Return the shares of time of each thread that was busy, by process and what the thread works on."""
        found: dict[str, Shares] = {}
        elapsed_ns = 1e9 * ((self._ended or time.monotonic()) - self._began)
        for (name, pid, thread_id), counts in sorted(self._seen.items()):
            total = counts.total()
            shares = {what: round(count / total, 2) for what, count in counts.most_common() if count >= least * total}
            (first_run, first_wait), (last_run, last_wait) = (
                self._clock[pid, thread_id][0],
                self._clock[pid, thread_id][-1],
            )
            ran = (last_run - first_run) / elapsed_ns
            if ran < least:
                continue
            shares |= {"ran": round(ran, 2), "ready": round((last_wait - first_wait) / elapsed_ns, 2)}
            found[f"{name}: {_role(pid == thread_id, counts)} {thread_id}"] = shares
        return found

    def _run(self, is_over: threading.Event) -> None:
        while not is_over.wait(_PAUSE_S):
            for name, pid in self._processes.items():
                with contextlib.suppress(OSError):
                    for thread_id in map(int, os.listdir(f"/proc/{pid}/task")):
                        self._sample(name, pid, thread_id)

    def _sample(self, name: str, pid: int, thread_id: int) -> None:
        task = Path(f"/proc/{pid}/task/{thread_id}")
        with contextlib.suppress(OSError):
            what = _doing(pid, task)
            ran, waited = map(int, (task / "schedstat").read_text().split()[:2])
            self._seen.setdefault((name, pid, thread_id), Counter())[what] += 1
            clock = self._clock.setdefault((pid, thread_id), [])
            clock[1:] = [(ran, waited)]


def _doing(pid: int, task: Path) -> str:
    words = (task / "syscall").read_text().split()
    if words[0] == "running":
        return "running"
    call = _CALLS.get(int(words[0]), f"call {words[0]}")
    if call not in _ON_FILES:
        return call
    with contextlib.suppress(OSError):
        kind = _KINDS.get(Path(os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")).suffix, "other file")
        stack = (task / "stack").read_text()
        waits = next((text for function, text in _WAITS.items() if function in stack), "")
        return f"{call} of {kind}{', ' * bool(waits)}{waits}"
    return call


def _role(is_main: bool, counts: Counter[str]) -> str:
    if is_main:
        return "event loop"
    kinds = [kind for kind in _KINDS.values() if any(f" of {kind}" in what for what in counts)]
    return kinds[0] if kinds else "other"
