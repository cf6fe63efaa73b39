"""The list of a ledger's entries at one bookie, as GET_LIST_OF_ENTRIES_OF_LEDGER carries it. All integers big endian.

    0       4   i32 version, 0
    4       4   i32 number of groups
    8      56   zeros
    64  + 24 g  group g:
                i64 start of its first sequence
                i64 start of its last sequence
                i32 entries in each sequence
                i32 distance of sequences' starts; 0 when there is one sequence

A group stands for `size` consecutive ids from first, first + period, ... up to last on: the entries that round robin
assigns to one bookie of a striped ensemble. Groups do not overlap: each ends before the next one begins, in whatever
order they come. A run of 2^31 entries or more takes several groups, and sequences that are 2^31 apart or more take one
group each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from bkspark.errors import ProtocolError
from bkspark.ids import LAST_ENTRY_MAX

HEAD_BYTES = 64
GROUP_BYTES = 24
RUNS_MAX = 500_000
"""Limit of the runs that a list of an open ledger may describe: a few bytes must not become unlimited memory and time.
These take 8 MB."""
CLOSED_RUNS_MAX = 10_000_000
"""Limit of the runs of a closed ledger's list, if the ledger has as many entries: a striped ledger of 30,000,000
reaches it."""

_I32_MAX = (1 << 31) - 1
_HEAD = struct.Struct(">ii")
_GROUP = np.dtype([("first", ">i8"), ("last", ">i8"), ("size", ">i4"), ("period", ">i4")])


@dataclass(frozen=True, slots=True)
class EntryRuns:
    """Runs of consecutive entries: ids starts[i] .. starts[i] + sizes[i] - 1, ascending, none twice; int64 arrays.

    No id is above LAST_ENTRY_MAX, so sizes, and the id after each run, are int64, too.
    """

    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def none(cls) -> EntryRuns:
        empty = np.empty(0, np.int64)
        return cls(empty, empty)

    @property
    def entries(self) -> int:
        """Number of entries in the runs."""
        return int(self.sizes.sum())

    @property
    def ends(self) -> np.ndarray:
        """The id after the last of each run, int64."""
        return self.starts + self.sizes

    @classmethod
    def of(cls, entry_ids: np.ndarray) -> EntryRuns:
        """Return the runs of ascending ids."""
        if not len(entry_ids):
            return cls.none()
        starts = np.concatenate([[0], np.flatnonzero(np.diff(entry_ids) != 1) + 1])
        return cls(entry_ids[starts].astype(np.int64), np.diff(np.append(starts, len(entry_ids))))

    def joined(self) -> EntryRuns:
        """Return the same entries in as few runs as possible."""
        if not len(self.starts):
            return self
        ends = self.ends
        begins = np.append(True, self.starts[1:] != ends[:-1])
        starts = self.starts[begins]
        return EntryRuns(starts, ends[np.append(begins[1:], True)] - starts)

    def next_from(self, first: int, end: int) -> int:
        """Return the first entry of [first, end); `end` if there is none."""
        at = int(np.searchsorted(self.ends, first, side="right"))
        return min(end, max(first, int(self.starts[at]))) if at < len(self.starts) else end

    def __contains__(self, entry_id: int) -> bool:
        at = int(np.searchsorted(self.starts, entry_id, side="right")) - 1
        return at >= 0 and entry_id < int(self.starts[at]) + int(self.sizes[at])


def decode_entry_list(data: bytes, runs_max: int = RUNS_MAX) -> EntryRuns:
    """Return the entries that a list describes.

    `runs_max`: limit of the accepted sequences. Time and memory grow with them, not with the bytes.

    Raises:
        ProtocolError: it has another version, is cut short, or describes entries that no ledger can have.
    """
    if len(data) < HEAD_BYTES:
        raise ProtocolError(f"a list of entries of {len(data)} bytes; its head alone has {HEAD_BYTES}")
    version, count = _HEAD.unpack_from(data)
    if version != 0 or count < 0 or len(data) < HEAD_BYTES + count * GROUP_BYTES:
        raise ProtocolError(f"a list of entries of version {version} with {count} groups in {len(data)} bytes")
    groups = np.frombuffer(data, _GROUP, count, HEAD_BYTES)
    groups = groups[np.argsort(groups["first"].astype(np.int64), kind="stable")]
    first, last, size, period = (groups[name].astype(np.int64) for name in ("first", "last", "size", "period"))
    is_single = period == 0
    if not ((first >= 0) & (last >= first) & (size > 0) & (period >= 0) & (~is_single | (last == first))).all():
        raise ProtocolError("a list of entries has a group that describes no entries")
    if (last > LAST_ENTRY_MAX - (size - 1)).any():
        raise ProtocolError(f"a list of entries names an entry above {LAST_ENTRY_MAX}")
    step = np.where(is_single, 1, period)
    if ((last - first) % step != 0).any():
        raise ProtocolError("a list of entries has a group whose last sequence is not a whole number of periods away")
    if (~is_single & (period < size) & (last > first)).any() or (first[1:] < last[:-1] + size[:-1]).any():
        raise ProtocolError("a list of entries names an entry twice, or has groups that overlap")
    # Sequences that meet are one run.
    is_run = (size == period) | (last == first)
    size = np.where(is_run, last - first + size, size)
    distances = np.where(is_run, 0, (last - first) // step)
    # Compared one by one, because their sum may overflow.
    if (distances >= runs_max).any() or int(distances.sum()) + count > runs_max:
        raise ProtocolError(f"a list of entries describes more than {runs_max} runs")
    runs = distances + 1
    within = np.arange(int(runs.sum())) - np.repeat(np.cumsum(runs) - runs, runs)
    return EntryRuns(np.repeat(first, runs) + within * np.repeat(step, runs), np.repeat(size, runs))


def _groups_of_run(start: int, size: int) -> list[tuple[int, int, int, int]]:
    """Return one group; for a run that is too long for it, a group of adjacent sequences, and the rest."""
    if size <= _I32_MAX:
        return [(start, start, size, 0)]
    sequences, rest = divmod(size, _I32_MAX)
    end = start + sequences * _I32_MAX
    whole = (start, end - _I32_MAX, _I32_MAX, _I32_MAX if sequences > 1 else 0)
    return [whole, (end, end, rest, 0)] if rest else [whole]


def encode_entry_list(runs: EntryRuns, groups_max: int) -> bytes | None:
    """Return the list that describes some runs, in the largest possible groups; None: it needs too many groups."""
    starts, sizes = runs.starts, runs.sizes
    steps = np.diff(starts)
    goes_on = (sizes[1:] == sizes[:-1]) & (steps <= _I32_MAX) & (sizes[1:] <= _I32_MAX)
    # Runs i, i + 1 and i + 2 are evenly spaced, and all have one size.
    repeats = goes_on[:-1] & goes_on[1:] & (steps[:-1] == steps[1:])
    ends = np.append(np.flatnonzero(~repeats), len(repeats))
    groups: list[tuple[int, int, int, int]] = []
    at = 0
    while at < len(starts):
        if len(groups) >= groups_max:
            return None
        if at < len(goes_on) and goes_on[at]:
            last = int(ends[ends.searchsorted(at)]) + 1
            groups.append((int(starts[at]), int(starts[last]), int(sizes[at]), int(steps[at])))
        else:
            last = at
            groups += _groups_of_run(int(starts[at]), int(sizes[at]))
        at = last + 1
    if len(groups) > groups_max:
        return None
    return _HEAD.pack(0, len(groups)).ljust(HEAD_BYTES, b"\0") + np.array(groups, _GROUP).tobytes()


def list_of_groups(groups: bytes) -> bytes:
    """Return the list that consists of groups: the bytes after the heads of other lists, back to back."""
    return _HEAD.pack(0, len(groups) // GROUP_BYTES).ljust(HEAD_BYTES, b"\0") + groups
