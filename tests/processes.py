"""What /proc says of processes that tests start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figures:
    """What processes use, together."""

    processes: int
    rss_bytes: int
    descriptors: int
    threads: int
    cpu_s: float


def of_session(session: int) -> Iterator[int]:
    """Yield the processes of a session, the zombies among them left out."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                facts = _stat(entry)
            except OSError:
                continue  # it has just ended
            if int(facts[3]) == session and facts[0] != "Z":
                yield int(entry.name)


def figures(pids: Iterable[int]) -> Figures | None:
    """Return what processes use; those that have ended do not count, and None means that all have."""
    found = [each for each in map(_figures, pids) if each is not None]
    if not found:
        return None
    return Figures(
        processes=len(found),
        rss_bytes=sum(each.rss_bytes for each in found),
        descriptors=sum(each.descriptors for each in found),
        threads=sum(each.threads for each in found),
        cpu_s=sum(each.cpu_s for each in found),
    )


def _figures(pid: int) -> Figures | None:
    process = _PROC / str(pid)
    try:
        facts = _stat(process)
        descriptors = len(os.listdir(process / "fd"))
    except OSError:
        return None
    rss_bytes = int(facts[21]) * os.sysconf("SC_PAGE_SIZE")
    cpu_s = (int(facts[11]) + int(facts[12])) / _TICKS_A_SECOND
    return Figures(1, rss_bytes, descriptors, int(facts[17]), cpu_s)


def _stat(process: Path) -> list[str]:
    """Return the fields of `stat` after the name, which may contain anything: state, parent, group, session, ..."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that was not reaped yet is dead too.
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"
