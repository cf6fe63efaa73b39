"""ReadSpeeds: which bookies are slow to answer reads, and how long to wait before another one is asked. Decisions only.

* A bookie's speed is the mean time of its answers for each byte; SMALL_BYTES are added to each answer's size for its
  fixed costs. Small and large answers have separate speeds. One slow answer changes little; two do.
* A bookie is slow if it takes more than SLOWER_MAX times as long as the fastest of the same write set, and more than
  SLOW_S_MIN longer. It is asked last.
* A reader with a preferred bookie asks only that one. A client that reads much therefore sends each of the others one
  request in TRY_AGAIN_S, to learn which are faster, and when a slow one has become fast again.
* Another bookie is asked, too, when an answer takes SPECULATIVE_DELAY_FACTOR times as long as usual, and
  SPECULATIVE_DELAY_S_MIN: a speculative read. These are limited to a share of all requests, so that a cluster that is
  slow as a whole does not get twice the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SMALL_BYTES = 64 * 1024
SLOWER_MAX = 3.0
SLOW_S_MIN = 0.001
TRY_AGAIN_S = 10.0
FORGOTTEN_S = 3 * TRY_AGAIN_S
"""A speed that was not updated for this long is ignored."""
KNOWN_ANSWERS_MIN = 16
"""Answers of one bookie after which others are asked for comparison: a client that reads little does not connect to
them."""
SPECULATIVE_DELAY_FACTOR = 4.0
SPECULATIVE_DELAY_S_MIN = 0.01
SPECULATIVE_SHARE = 0.05
SPECULATIVE_SAVED_MAX = 10.0
"""Limits of speculative reads: their share of all requests, and how many may be saved up."""
_WEIGHT = 0.25
_GROWTH_MAX = 4.0
"""The weight of an answer in the moving mean, and how many times the mean it may count as at most."""


@dataclass(slots=True)
class _Speed:
    """The speed of one bookie, seconds a byte, as of `at_s`, from a number of answers."""

    seconds_per_byte: float
    """A moving mean, changed by each answer."""
    at_s: float
    """When it was last changed."""
    answers: int = 1
    """The number of answers in the mean."""


@dataclass(slots=True)
class ReadSpeeds:
    """The speeds of the bookies that one client reads from. Times are those of one clock, in seconds."""

    is_informed: bool = field(init=False, default=False)
    """Whether enough answers are known to compare bookies. Set once; before that, the other methods decide nothing."""
    _speeds: dict[tuple[str, bool], _Speed] = field(init=False, default_factory=dict)
    """The speeds by (bookie, whether answers are large)."""
    _tried_s: dict[tuple[str, bool], float] = field(init=False, default_factory=dict)
    """When a bookie was last asked only to learn its speed."""
    _speculative_left: float = field(init=False, default=SPECULATIVE_SAVED_MAX)
    """How many speculative reads are allowed now."""

    def on_answer(self, bookie: str, size_bytes: int, seconds: float, now_s: float) -> None:
        """A bookie has answered with entries of `size_bytes`, this many seconds after it was asked."""
        self._speculative_left = min(SPECULATIVE_SAVED_MAX, self._speculative_left + SPECULATIVE_SHARE)
        key = (bookie, size_bytes > SMALL_BYTES)
        measured = seconds / (SMALL_BYTES + size_bytes)
        speed = self._speeds.get(key)
        if speed is None or now_s - speed.at_s >= TRY_AGAIN_S:
            self._speeds[key] = _Speed(measured, now_s)
            self.is_informed = self.is_informed or len(self._speeds) > 1
            return
        counted = min(measured, _GROWTH_MAX * speed.seconds_per_byte)
        speed.seconds_per_byte += _WEIGHT * (counted - speed.seconds_per_byte)
        speed.at_s = now_s
        speed.answers += 1
        if speed.answers >= KNOWN_ANSWERS_MIN:
            self.is_informed = True

    def on_overtaken(self, bookie: str, size_bytes: int, seconds: float, now_s: float) -> None:
        """A bookie has not answered for `seconds`, and another one has answered with entries of `size_bytes`."""
        speed = self._speeds.get((bookie, size_bytes > SMALL_BYTES))
        if speed is None or seconds > speed.seconds_per_byte * (SMALL_BYTES + size_bytes):
            self.on_answer(bookie, size_bytes, seconds, now_s)
        else:
            speed.at_s = now_s

    def slow(self, bookies: Sequence[str], size_bytes: int, now_s: float) -> frozenset[str]:
        """Return which of some bookies are slow to answer with about `size_bytes`."""
        known = self._known(bookies, size_bytes, now_s)
        if len(known) < 2:
            return frozenset()
        best = min(known.values())
        limit = max(SLOWER_MAX * best, best + SLOW_S_MIN / (SMALL_BYTES + size_bytes))
        return frozenset(bookie for bookie, seconds_per_byte in known.items() if seconds_per_byte > limit)

    def to_try(self, bookies: Sequence[str], size_bytes: int, now_s: float) -> str | None:
        """Return a bookie that is to be asked first now, to learn its speed; None: no one."""
        is_large = size_bytes > SMALL_BYTES
        speeds = [self._speeds.get((bookie, is_large)) for bookie in bookies]
        if max((speed.answers for speed in speeds if speed is not None), default=0) < KNOWN_ANSWERS_MIN:
            return None
        for bookie, speed in zip(bookies, speeds):
            asked_s = max(speed.at_s if speed else -FORGOTTEN_S, self._tried_s.get((bookie, is_large), -FORGOTTEN_S))
            if now_s - asked_s >= TRY_AGAIN_S:
                self._tried_s[bookie, is_large] = now_s
                return bookie
        return None

    def speculative_delay_s(self, bookies: Sequence[str], size_bytes: int, now_s: float) -> float | None:
        """Return after what time another bookie is to be asked, too; None: that is not known, or was done too often."""
        known = self._known(bookies, size_bytes, now_s)
        if not known or self._speculative_left < 1:
            return None
        return max(SPECULATIVE_DELAY_S_MIN, SPECULATIVE_DELAY_FACTOR * min(known.values()) * (SMALL_BYTES + size_bytes))

    def on_speculative_read(self) -> None:
        """Another bookie is asked, too, as the first is slow to answer."""
        self._speculative_left = max(0.0, self._speculative_left - 1)

    def _known(self, bookies: Sequence[str], size_bytes: int, now_s: float) -> dict[str, float]:
        """Return the speeds that are known, seconds a byte."""
        is_large = size_bytes > SMALL_BYTES
        found = {}
        for bookie in bookies:
            speed = self._speeds.get((bookie, is_large))
            if speed is not None and now_s - speed.at_s < FORGOTTEN_S:
                found[bookie] = speed.seconds_per_byte
        return found
