"""The last hour of each bookie's metrics, in memory. PURE: samples come with their times.

Memory is limited: SAMPLES_MAX samples of 8 bytes for each series of BOOKIES_MAX bookies. A bookie that was not seen for
an hour is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark_console.prometheus_text import Scrape

SAMPLE_S = 10.0
SAMPLES_MAX = 360
"""Samples of one hour."""
BOOKIES_MAX = 500
PACE_S_MIN = 600.0
"""A shorter time does not show the pace at which space is used up, because garbage collection frees some in between."""

ADDS, READS, WRITTEN, READ_BYTES, ADD_P99, READ_P99, SYNC_P99, QUEUE, FREE, TOTAL = range(10)
SERIES = 10
"""Entries and bytes per second; latencies in ms; adds that wait for a journal; bytes of the ledger directories."""
COUNTERS = (ADDS, READS, WRITTEN, READ_BYTES)

ADD, READ = "bookkeeper_server_ADD_ENTRY", "bookkeeper_server_READ_ENTRY"
SYNC = "bookie_journal_JOURNAL_SYNC"
STAGE = "bkspark_bookie_add_stage_seconds"
DIRECTORY = "bkspark_bookie_directory_used_ratio"
_FREE, _TOTAL = "bkspark_bookie_free_bytes", "bkspark_bookie_total_bytes"
_QUEUE = "bookie_journal_JOURNAL_QUEUE_SIZE"
WANTED = frozenset(
    {
        ADD,
        f"{ADD}_count",
        READ,
        f"{READ}_count",
        SYNC,
        "bookie_WRITE_BYTES",
        "bookie_READ_BYTES",
        _QUEUE,
        _FREE,
        _TOTAL,
        DIRECTORY,
        f"{STAGE}_sum",
        f"{STAGE}_count",
    }
)


@dataclass(frozen=True, slots=True)
class BookieSample:
    """One scrape of a bookie. values: by series, with counters as they are. stages: (seconds, adds) of each stage so
    far.

    directories: (path, kind, used share of its disk).
    """

    values: Sequence[float]
    stages: Mapping[str, tuple[float, float]]
    directories: Sequence[tuple[str, str, float]]


def sample_of(scrape: Scrape) -> BookieSample:
    """Return what the plots need of a scrape; NaN: the bookie has no such metric."""
    good = {"success": "true"}
    values = (
        scrape.total(f"{ADD}_count", **good),
        scrape.total(f"{READ}_count", **good),
        scrape.total("bookie_WRITE_BYTES"),
        scrape.total("bookie_READ_BYTES"),
        scrape.largest(ADD, quantile="0.99", **good),
        scrape.largest(READ, quantile="0.99", **good),
        scrape.largest(SYNC, quantile="0.99", **good),
        scrape.total(_QUEUE),
        scrape.total(_FREE),
        scrape.total(_TOTAL),
    )
    counts = {each.labels.get("stage", ""): each.value for each in scrape.of(f"{STAGE}_count")}
    stages = {
        each.labels.get("stage", ""): (each.value, counts.get(each.labels.get("stage", ""), 0.0))
        for each in scrape.of(f"{STAGE}_sum")
    }
    directories = [
        (each.labels.get("directory", ""), each.labels.get("kind", ""), each.value) for each in scrape.of(DIRECTORY)
    ]
    return BookieSample(values, stages, directories)


class History:
    """The samples of all bookies, aligned in time."""

    def __init__(self) -> None:
        self._times = np.full(SAMPLES_MAX, np.nan)
        """When each sample was taken; NaN: there is none yet. Each new sample moves the oldest one out."""
        self._rings: dict[str, np.ndarray] = {}
        """The samples of each bookie, at the indices of `_times`; at most BOOKIES_MAX bookies."""
        self._last: dict[str, tuple[float, BookieSample]] = {}
        """The last sample of each bookie, and its time."""
        self._before: dict[str, BookieSample] = {}
        """The sample before the last one, of each bookie."""

    def add(self, at_s: float, samples: Mapping[str, BookieSample | None]) -> None:
        """Take the samples of one moment (seconds since 1970). None: the bookie did not answer."""
        self._times = np.append(self._times[1:], at_s)
        for bookie in [*samples, *self._rings]:
            if bookie not in self._rings and len(self._rings) < BOOKIES_MAX:
                self._rings[bookie] = np.full((SERIES, SAMPLES_MAX), np.nan)
        for bookie, ring in list(self._rings.items()):
            ring[:, :-1] = ring[:, 1:]
            ring[:, -1] = self._rates(at_s, bookie, samples.get(bookie))
            if np.isnan(ring).all() and bookie not in samples:
                del self._rings[bookie]
                self._last.pop(bookie, None)
                self._before.pop(bookie, None)

    def _rates(self, at_s: float, bookie: str, sample: BookieSample | None) -> np.ndarray:
        """Return a sample's values, with counters as rates since the last sample; NaN after a restart or a gap."""
        last = self._last.pop(bookie, None)
        if sample is None:
            return np.full(SERIES, np.nan)
        self._last[bookie] = at_s, sample
        values = np.array(sample.values, float)
        counters = list(COUNTERS)
        if last is None or at_s <= last[0]:
            values[counters] = np.nan
            return values
        self._before[bookie] = last[1]
        risen = values[counters] - np.array(last[1].values, float)[counters]
        values[counters] = np.where(risen >= 0, risen / (at_s - last[0]), np.nan)
        return values

    @property
    def bookies(self) -> list[str]:
        """The bookies that were seen, sorted."""
        return sorted(self._rings)

    @property
    def times(self) -> np.ndarray:
        """When samples were taken, in seconds since 1970, the last one last; NaN: there was no sample."""
        return self._times

    def values(self, bookie: str, series: int) -> np.ndarray:
        """Return a bookie's series, aligned with `times`."""
        ring = self._rings.get(bookie)
        return np.full(SAMPLES_MAX, np.nan) if ring is None else ring[series]

    def total(self, series: int) -> np.ndarray:
        """Return the sum over all bookies; NaN: no bookie answered."""
        if not self._rings:
            return np.full(SAMPLES_MAX, np.nan)
        stacked = np.stack([ring[series] for ring in self._rings.values()])
        return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))

    def now(self, bookie: str, series: int) -> float:
        """Return the last value; NaN: the bookie did not answer."""
        return float(self.values(bookie, series)[-1])

    def recent(self, bookie: str, series: int, samples: int) -> float:
        """Return the median of the last samples; NaN: there are none."""
        values = self.values(bookie, series)[-samples:]
        values = values[~np.isnan(values)]
        return float(np.median(values)) if len(values) else math.nan

    def stages(self, bookie: str) -> list[tuple[str, float]]:
        """Return the mean of each stage of an add in ms: for the adds since the previous sample, or for all adds."""
        last = self._last.get(bookie)
        if last is None:
            return []
        before = self._before.get(bookie)
        found = []
        for stage, (seconds, adds) in last[1].stages.items():
            base_s, base_adds = before.stages.get(stage, (0.0, 0.0)) if before is not None else (0.0, 0.0)
            if adds <= base_adds or seconds < base_s:
                base_s, base_adds = 0.0, 0.0
            if adds > base_adds:
                found.append((stage, (seconds - base_s) / (adds - base_adds) * 1000))
        return found

    def directories(self, bookie: str) -> Sequence[tuple[str, str, float]]:
        """Return (path, kind, used share of its disk) of each directory."""
        last = self._last.get(bookie)
        return () if last is None else last[1].directories


def seconds_until_full(times: np.ndarray, free: np.ndarray) -> float:
    """Return how long the free space lasts at the pace of these samples.

    Infinity: it does not shrink, or the samples cover less than PACE_S_MIN.
    """
    known = ~np.isnan(times) & ~np.isnan(free)
    if known.sum() < 2 or times[known][-1] - times[known][0] < PACE_S_MIN:
        return math.inf
    slope = float(np.polyfit(times[known] - times[known][0], free[known], 1)[0])
    return math.inf if slope >= 0 else float(free[known][-1]) / -slope
