"""Processor time of the processes that work for a Spark job, from /proc, by kind of process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def jvm_pid(spark: SparkSession) -> int:
    """Return the process id of the JVM of a session that this process started."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "the session is closed"
    pid: int = gateway.proc.pid
    return pid


@dataclass(frozen=True)
class ProcessorTime:
    """Seconds, user and system together."""

    jvm_s: float
    """Spark's JVM."""
    python_s: float
    """Its Python workers and planners."""
    servers_s: float
    """Bookies, or the Kafka broker."""

    @property
    def total_s(self) -> float:
        return self.jvm_s + self.python_s + self.servers_s


@dataclass(frozen=True)
class _Process:
    parent: int
    own: int
    """Ticks of its own."""
    reaped: int
    """Ticks of children that ended and were waited for, and of theirs."""


class ProcessorClock:
    """Counts from its making on, for a JVM with all below it and for servers."""

    def __init__(self, jvm_pid: int, server_pids: Sequence[int]) -> None:
        self._jvm_pid = jvm_pid
        self._server_pids = server_pids
        self._tree = _tree(jvm_pid)
        self._servers = _own_ticks(server_pids)

    def elapsed(self) -> ProcessorTime:
        """Return what was used so far. A worker that ended unseen, together with its parent, counts up to the last
        measurement."""
        tree = _tree(self._jvm_pid)
        jvm_ticks = tree[self._jvm_pid].own - self._tree[self._jvm_pid].own
        python_ticks = sum(self._used(pid, process, tree) for pid, process in tree.items()) - jvm_ticks
        server_ticks = _own_ticks(self._server_pids) - self._servers
        return ProcessorTime(jvm_ticks / _TICKS_PER_S, python_ticks / _TICKS_PER_S, server_ticks / _TICKS_PER_S)

    def _used(self, pid: int, process: _Process, tree: Mapping[int, _Process]) -> int:
        before = self._tree.get(pid, _Process(process.parent, 0, 0))
        ended = [each for other, each in self._tree.items() if each.parent == pid and other not in tree]
        # A child that ended brings its whole life, of which the part before the clock's making is not ours. One that
        # its parent did not wait for brings nothing.
        reaped = process.reaped - before.reaped - sum(each.own + each.reaped for each in ended)
        return process.own - before.own + max(0, reaped)


def _own_ticks(pids: Sequence[int]) -> int:
    return sum(process.own for process in map(_process, pids) if process is not None)


def _tree(pid: int) -> dict[int, _Process]:
    """Return a process and all below it."""
    return {each: process for each in _with_descendants(pid) if (process := _process(each)) is not None}


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return  # it ended since it was listed
    # A child is its starting thread's, so all threads are asked.
    for thread in threads:
        try:
            children = Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, children):
            yield from _with_descendants(child)


def _process(pid: int) -> _Process | None:
    try:
        # After the command's name, which may contain spaces: state, parent, ...
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None  # it ended since it was listed
    own, reaped = (int(fields[index]) + int(fields[index + 1]) for index in (11, 13))
    return _Process(int(fields[1]), own, reaped)
