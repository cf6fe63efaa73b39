"""What a fuzzing target is, and what every one of its executions must keep to."""

from __future__ import annotations

import resource
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

INPUT_BYTES_MAX = 4096
"""Longest input that an engine makes."""
CORNERS = (0, 1, -1, 2, 127, 128, 255, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32, (1 << 40) - 1, 1 << 62)
INT64_MAX = (1 << 63) - 1


class BoundExceeded(Exception):
    """An input took more time or memory than its target allows."""


@dataclass(frozen=True)
class Target:
    """One decoder, or a family of decoders of one format.

    `decode` takes the input and may raise what `allowed` names, and nothing else. `holds` takes what it returned and
    raises nothing: it asserts what must be true of anything that was decoded. `seeds` are well-formed inputs to begin
    with.
    """

    name: str
    decode: Callable[[bytes], Any]
    allowed: tuple[type[Exception], ...] = ()
    holds: Callable[[Any], None] | None = None
    seeds: Callable[[], Iterable[bytes]] = field(default=tuple)
    words: tuple[bytes, ...] = ()
    """What inputs are often made of: keywords, magic numbers."""
    seconds_max: float = 0.1
    """Processor time that one input may take."""
    bytes_max: int = 32 << 20
    """How much the process's memory may grow at its peak because of one input."""

    def execute(self, data: bytes) -> bool:
        """Run one input; return whether it was accepted.

        Raises:
            BoundExceeded: it took too long, three times, or too much memory.
            Exception: whatever `decode` must not raise, and `holds` does not allow.
        """
        memory = _peak_bytes()
        began = time.process_time()
        accepted = self._run(data)
        took = time.process_time() - began
        if took > self.seconds_max:
            took = min(took, *(self._timed(data) for _ in range(2)))
            if took > self.seconds_max:
                raise BoundExceeded(
                    f"{self.name}: {took:.3f} s for {len(data)} bytes, the limit is {self.seconds_max} s"
                )
        grown = _peak_bytes() - memory
        if grown > self.bytes_max:
            raise BoundExceeded(f"{self.name}: {grown >> 20} MiB more for {len(data)} bytes of input")
        return accepted

    def _run(self, data: bytes) -> bool:
        try:
            found = self.decode(data)
        except self.allowed:
            return False
        if self.holds is not None:
            self.holds(found)
        return True

    def _timed(self, data: bytes) -> float:
        began = time.process_time()
        self._run(data)
        return time.process_time() - began


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Draw:
    """Makes values of bytes: what an encoder is given. Zeros follow when the bytes are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._data)

    def octets(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        found = self._data[self._at : self._at + count]
        self._at += count
        return found.ljust(count, b"\0")

    def rest(self) -> bytes:
        found = self._data[self._at :]
        self._at = len(self._data)
        return found

    def below(self, bound: int) -> int:
        """Return a number of 0 to bound - 1; `bound` is at most 65,536."""
        octets = self.octets(1 if bound <= 256 else 2)
        return int.from_bytes(octets, "little") % bound

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def flag(self) -> bool:
        return self.below(2) == 1

    def int64(self) -> int:
        """Return an int64: often small, or at a corner of a width."""
        kind = self.below(8)
        if kind < 3:
            return self.below(256)
        if kind < 5:
            corner = self.choice(CORNERS) + self.below(3) - 1
            return max(-INT64_MAX - 1, min(INT64_MAX, corner))
        if kind == 5:
            return self.choice((INT64_MAX, -INT64_MAX - 1, INT64_MAX - 1))
        found: int = struct.unpack("<q", self.octets(8))[0]
        return found

    def entry_id(self) -> int:
        """Return what an entry or ledger can have as id."""
        return min(self.int64() & INT64_MAX, INT64_MAX - 1)

    def blob(self, most: int = 64) -> bytes:
        return self.octets(self.below(most + 1))

    def text(self, most: int = 24) -> str:
        return self.blob(most).decode("utf-8", "replace")
