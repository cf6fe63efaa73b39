"""Samples of what the processes of a soak use, over time, in a file of JSON lines.

A line is one sample of one role: `seconds` since the beginning, `role`, `pid`, `age_s` (of this process), `processes`,
`rss_bytes`, `descriptors`, `threads`, `cpu_s`, and, where the role has them, `disk_bytes` and `log_lines`. Lines with
`event` instead of `role` say what happened; those with `load`, how far the load is.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.processes import figures

SAMPLE_S = 5.0


@dataclass(frozen=True)
class Role:
    """What is sampled under one name, over all processes that have it one after the other.

    Args:
        pids: the processes that have it now; the first one is the sample's `pid`.
    """

    name: str
    pids: Callable[[], Iterable[int]]
    folders: Sequence[Path] = ()
    log: Path | None = None


class Samples:
    """Writes samples on a thread of its own until `stop`; events and the load's lines from any thread."""

    def __init__(self, path: Path, roles: Sequence[Role], interval_s: float = SAMPLE_S) -> None:
        self._roles = roles
        self._interval_s = interval_s
        self._began_s = time.monotonic()
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._since: dict[str, tuple[int, float]] = {}
        self._logs = {role.name: LineCount(role.log) for role in roles if role.log is not None}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample, and end."""
        self._stopping.set()
        self._thread.join()
        self._file.close()

    def note(self, **facts: Any) -> None:
        """Write a line of one's own, with the time."""
        line = {"seconds": round(time.monotonic() - self._began_s, 2), **facts}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._stopping.wait(self._interval_s)
            for role in self._roles:
                self._sample(role)

    def _sample(self, role: Role) -> None:
        pids = list(role.pids())
        used = figures(pids)
        if used is None:
            return
        now_s = time.monotonic()
        pid, since_s = self._since.get(role.name, (0, now_s))
        if pid != pids[0]:
            pid, since_s = self._since[role.name] = (pids[0], now_s)
        facts: dict[str, Any] = {"pid": pid, "age_s": round(now_s - since_s, 1), **asdict(used)}
        if role.folders:
            facts["disk_bytes"] = sum(map(disk_bytes, role.folders))
        if role.name in self._logs:
            facts["log_lines"] = self._logs[role.name].count()
        self.note(role=role.name, **facts)


class LineCount:
    """Counts the lines of a log that grows; each call reads only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines = 0

    def count(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._offset)
                while piece := log.read(1 << 20):
                    self._offset += len(piece)
                    self._lines += piece.count(b"\n")
        return self._lines


def disk_bytes(folder: Path) -> int:
    """Return what the files below a folder occupy; those that go meanwhile do not count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def load(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of samples."""
    return [json.loads(line) for line in path.read_text().splitlines()]
