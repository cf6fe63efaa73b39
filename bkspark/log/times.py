"""The time index of a log: when its entries entered it. PURE.

A *mark* is `[ordinal, entry, time]`: the entries from there up to the next mark entered the log at that time, in ms
since 1970 by the clock of the process that wrote them. Marks ascend in place and in time. If a clock shows a time
before that of the last mark, the entries get the last mark's time, so the times of a log never decrease. Entries before
the first mark have no known time: an older bkspark wrote them.

The head has the latest marks, and names pages of earlier ones; `times` in the head, from version 5 on:

    marks    the marks after the last page, ascending
    pages    [ordinal, entry, time, size, token], ascending: the first mark of a page, how many it has, and the end of
             its name
    /bkspark/logs/<name>/pages/t<ordinal>.<entry>-<token>     a page; never changed once written

A page is `{"marks":[[0,0,1763942400000]],"version":1}`. Each commit gets one mark. In the ledger of a log writer each
append call gets one; the writer keeps these in a node of the ledger, without the ordinal:

    /bkspark/logs/<name>/times/<ledger>    `{"marks":[[0,1763942400000]],"until":20,"version":1}`: [entry, time],
                                           ascending, of the entries before `until`; empty before the first

It writes them at most once a second; until then the latest entries have the last time that is recorded. The change of
the head that records the ledger's end adds its marks to the index and removes the node. Entries whose time the writer
did not write before it died get that of this change (`of_closed`).

**The index is bounded.** Above PAGES_MAX pages, two neighbouring pages become one with half as many marks: marks that
are close together in time are joined, and the joined mark has the place of the first and the time of the last. Joining
marks, or adding one late, can therefore only raise the time of an entry. This keeps the times of all reads in order: a
later read never returns a lower time for a later entry than an earlier read did for an earlier entry.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from bkspark.ids import ENTRY_ID_MAX
from bkspark.log.positions import Position

VERSION = 1
TIMES = "times"
RECENT_MAX = 100
"""Marks in the head: above it, half of them move to a page."""
PAGE_MARKS_MAX = 2_000
PAGES_MAX = 50
OPEN_MARKS_MAX = 2_000
"""Marks of a ledger that is being written, at most."""

Place = tuple[int, int]
"""Ordinal and entry."""


class Mark(NamedTuple):
    """Entries from (ordinal, entry_id) on entered the log at `ms`."""

    ordinal: int
    entry_id: int
    ms: int

    @property
    def place(self) -> Place:
        return self.ordinal, self.entry_id


class TimePageRef(NamedTuple):
    """A page of marks. ordinal, entry_id, ms: its first mark. size: how many it has. token: in the page's name."""

    ordinal: int
    entry_id: int
    ms: int
    size: int
    token: str

    @property
    def place(self) -> Place:
        return self.ordinal, self.entry_id

    @property
    def mark(self) -> Mark:
        return Mark(self.ordinal, self.entry_id, self.ms)

    @property
    def name(self) -> str:
        return f"t{self.ordinal}.{self.entry_id}-{self.token}"


@dataclass(frozen=True)
class TimeIndex:
    """The index as the head has it. With pages there is at least one mark."""

    pages: tuple[TimePageRef, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.marks

    @property
    def first(self) -> Mark | None:
        """The first mark: what is before it has no known time."""
        if self.pages:
            return self.pages[0].mark
        return self.marks[0] if self.marks else None

    @property
    def last(self) -> Mark | None:
        return self.marks[-1] if self.marks else None


EMPTY = TimeIndex()


@dataclass(frozen=True, slots=True)
class TimePage:
    """A page to write before the head that names it."""

    ref: TimePageRef
    marks: tuple[Mark, ...]


# ---- changes: an index in, an index out ----


def added(index: TimeIndex, mark: Mark) -> TimeIndex:
    """Return the index with a mark at its end. A time below the last one is raised to it."""
    last = index.last
    if last is None:
        return TimeIndex(index.pages, (mark,))
    assert mark.place >= last.place
    ms = max(mark.ms, last.ms)
    if mark.place == last.place:
        return TimeIndex(index.pages, (*index.marks[:-1], last._replace(ms=ms)))
    return index if ms == last.ms else TimeIndex(index.pages, (*index.marks, mark._replace(ms=ms)))


def to_unpack(index: TimeIndex, noted: OpenMarks, ordinal: int, end_entry: int) -> tuple[TimePageRef, ...]:
    """Return the pages with marks that apply to a ledger that has just been closed, or later ones, for `unpacked`; ()
    if the head has all of these, or the ledger brings no mark."""
    place = noted.marks[0].place if noted.marks else (ordinal, noted.until)
    is_without = not noted.marks and end_entry <= noted.until
    if is_without or not index.marks or place >= index.marks[0].place:
        return ()
    begin = max((i for i, ref in enumerate(index.pages) if ref.place <= place), default=0)
    return index.pages[begin:]


def unpacked(index: TimeIndex, read: Sequence[Sequence[Mark]]) -> TimeIndex:
    """Return the index with the last pages, whose marks are `read`, moved back to the head. `packed` moves them to new
    ones."""
    moved = [mark for marks in read for mark in marks]
    return TimeIndex(index.pages[: len(index.pages) - len(read)], (*moved, *index.marks))


def with_marks(index: TimeIndex, marks: Sequence[Mark]) -> TimeIndex:
    """Return the index, with its pages `to_unpack` moved back, with the marks of a writer's ledger that has just been
    closed.

    If others have published after that ledger, their times are raised to its last one. A ledger before the first known
    time gets no marks: an older bkspark added it.
    """
    if not marks or not index.marks or marks[0].place < index.marks[0].place:
        return index
    return TimeIndex(index.pages, ascending((*index.marks, *marks)))


def of_closed(index: TimeIndex, noted: OpenMarks, ordinal: int, end_entry: int, now_ms: int) -> tuple[Mark, ...]:
    """Return the marks of a ledger that has just been closed and ends before `end_entry`, for `with_marks`.

    A writer that died has not noted the time of its last entries. They count as written now, or at the first time
    after those that it noted at which others have published: no read from a time on misses them, and retention does not
    remove them too early.
    """
    if end_entry <= noted.until:
        return noted.marks
    last_ms = noted.marks[-1].ms if noted.marks else 0
    later = [mark.ms for mark in index.marks if mark.ordinal > ordinal and mark.ms > last_ms]
    return (*noted.marks, Mark(ordinal, noted.until, min([now_ms, *later])))


def ascending(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """Return marks by place, each time raised to that of the marks before it; a mark that changes nothing is left
    out."""
    found: list[Mark] = []
    for mark in sorted(marks):
        if found and mark.place == found[-1].place:
            found[-1] = mark  # sorted: its time is the later one
        elif not found or mark.ms > found[-1].ms:
            found.append(mark)
    return tuple(found)


def joined(marks: Sequence[Mark], count_max: int) -> tuple[Mark, ...]:
    """Return at most `count_max` marks. Marks that are close together in time become one, with the place of the first
    and the time of the last."""
    found, span_ms = tuple(marks), 1
    while len(found) > count_max:
        kept: list[Mark] = []
        begin_ms = 0
        for mark in found:
            if kept and mark.ms - begin_ms <= span_ms:
                kept[-1] = kept[-1]._replace(ms=mark.ms)
            else:
                kept.append(mark)
                begin_ms = mark.ms
        found, span_ms = tuple(kept), span_ms * 2
    return found


def to_read(index: TimeIndex) -> tuple[TimePageRef, ...]:
    """Return the pages whose marks `packed` needs; () while the head has room."""
    if len(index.marks) <= RECENT_MAX:
        return ()
    last = _to_extend(index)
    others = index.pages if last is None else index.pages[:-1]
    pair = pages_to_join(index, others) if len(others) >= PAGES_MAX else ()
    return (*pair, *(() if last is None else (last,)))


def _to_extend(index: TimeIndex) -> TimePageRef | None:
    last = index.pages[-1] if index.pages else None
    return last if last is not None and last.size < PAGE_MARKS_MAX else None


def pages_to_join(index: TimeIndex, pages: Sequence[TimePageRef]) -> tuple[TimePageRef, ...]:
    """Return the two neighbouring pages that span the least time in relation to their age."""
    ends = [*(page.ms for page in pages[2:]), index.marks[0].ms]
    now_ms = index.marks[-1].ms
    scores = [(end - pages[i].ms) / (now_ms - end + 1) for i, end in enumerate(ends)]
    best = scores.index(min(scores))
    return pages[best], pages[best + 1]


def packed(
    index: TimeIndex, read: Mapping[TimePageRef, Sequence[Mark]], token: str
) -> tuple[TimeIndex, tuple[TimePage, ...]]:
    """Return the index with marks moved from the head to pages if the head has too many, and the pages to write.

    Args:
        read: the marks of the pages of `to_read(index)`.
        token: part of the names of new pages, so that they are unique.
    """
    if len(index.marks) <= RECENT_MAX:
        return index, ()
    cut = len(index.marks) - RECENT_MAX // 2
    moved, pages = index.marks[:cut], list(index.pages)
    new: list[TimePage] = []
    last = _to_extend(index)
    pair = [ref for ref in read if ref != last]
    if pair:
        at = pages.index(pair[0])
        half = joined([mark for ref in pair for mark in read[ref]], PAGE_MARKS_MAX)
        new.append(_page(half, token))
        pages[at : at + 2] = [new[0].ref]
    if last is not None:
        moved, pages = (*read[last], *moved), pages[:-1]
    for i in range(0, len(moved), PAGE_MARKS_MAX):
        new.append(_page(moved[i : i + PAGE_MARKS_MAX], token))
        pages.append(new[-1].ref)
    return TimeIndex(tuple(pages), index.marks[cut:]), tuple(new)


def _page(marks: tuple[Mark, ...], token: str) -> TimePage:
    return TimePage(TimePageRef(*marks[0], len(marks), token), marks)


def trimmed(index: TimeIndex, start: Position) -> TimeIndex:
    """Return the index for a log that begins at `start`: from the mark that applies there on."""
    place = (start.ordinal, start.entry_id)
    firsts = [*(ref.place for ref in index.pages), *(mark.place for mark in index.marks[:1])]
    gone = max((i for i, first in enumerate(firsts) if first <= place), default=0)
    first = max((i for i, mark in enumerate(index.marks) if mark.place <= place), default=0)
    return TimeIndex(index.pages[gone:], index.marks[first:])


def emptied(index: TimeIndex, end_ordinal: int) -> TimeIndex:
    """Return the index of a log that has lost all entries. It keeps the last time, so that times never decrease."""
    last = index.last
    return EMPTY if last is None else TimeIndex((), (Mark(end_ordinal, 0, last.ms),))


# ---- look-ups ----


class Timeline:
    """Some consecutive marks of a log, with those of ledgers that are being written.

    Args:
        unrecorded: (ordinal, entry) from which on a ledger may have entries whose writer has not noted their times yet.
            They count as entered at the time of the next mark of a later ledger, as `of_closed` records them.
    """

    def __init__(self, marks: Iterable[Mark], unrecorded: Sequence[Place] = ()) -> None:
        self.marks = ascending(marks)
        self._unrecorded = unrecorded
        self._places = [mark.place for mark in self.marks]
        """The places of the marks, for look-ups. Constant."""
        self._times = [mark.ms for mark in self.marks]
        """Their times. Constant."""

    def first_at(self, ms: int) -> Place | None:
        """Return the place of the first entry at a time or later; None if all entries are earlier."""
        index = bisect_left(self._times, ms)
        before = self._places[index - 1] if index else (0, 0)
        place = self._places[index] if index < len(self._places) else None
        return min((at for at in self._unrecorded if before <= at and (place is None or at < place)), default=place)

    def of_entries(self, ordinal: int, first_entry: int, end_entry: int) -> tuple[tuple[int, int | None], ...]:
        """Return the times of entries [first_entry, end_entry) of a ledger as (entry, time) items. Each
        applies up to the next one. The time is None if it is not known."""
        index = bisect_right(self._places, (ordinal, first_entry))
        found: list[tuple[int, int | None]] = [(first_entry, self._times[index - 1] if index else None)]
        for mark in self.marks[index : bisect_left(self._places, (ordinal, end_entry))]:
            found.append((mark.entry_id, mark.ms))
        return tuple(found)


def pages_of(index: TimeIndex, first: Place, end: Place) -> tuple[TimePageRef, ...]:
    """Return the pages with marks that apply to entries in [first, end)."""
    ends = [*(ref.place for ref in index.pages[1:]), *(mark.place for mark in index.marks[:1])]
    return tuple(ref for ref, after in zip(index.pages, ends) if after > first and ref.place < end)


def page_at(index: TimeIndex, ms: int) -> tuple[TimePageRef, ...]:
    """Return the page that may have the first mark at a time or later; () if that is in the head, or begins a page."""
    earlier = [ref for ref in index.pages if ref.ms < ms]
    return tuple(earlier[-1:])


# ---- a ledger that is being written ----


def open_path(log_path: str, ledger_id: int) -> str:
    """Return the path of the node with the times of a ledger that is being written."""
    return f"{log_path}/{TIMES}/{ledger_id}"


class OpenTimes:
    """The times of the append calls in one ledger, as its writer notes them; at most OPEN_MARKS_MAX."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        """The marks, ascending. Joined when there are more than OPEN_MARKS_MAX."""
        self._until = 0
        """The entry after the last one that `note` was called for."""
        self._recorded = 0
        """The value of `_until` when the times were last written to the ledger's node. Set by `record`."""

    def note(self, entry_id: int, end_entry: int, ms: int) -> None:
        """Note that the entries [entry_id, end_entry) were appended at `ms` since 1970."""
        self._until = end_entry
        if self._marks and ms <= self._marks[-1].ms:
            return
        self._marks.append(Mark(0, entry_id, max(0, ms)))
        if len(self._marks) > OPEN_MARKS_MAX:
            self._marks[:] = joined(self._marks, OPEN_MARKS_MAX // 2)

    @property
    def until(self) -> int:
        return self._until

    @property
    def is_recorded(self) -> bool:
        """Whether the ledger's node has all times that were noted."""
        return self._recorded == self._until

    def record(self, until: int) -> None:
        """Record that the ledger's node has the times of the entries before `until`."""
        self._recorded = until

    def encode(self) -> bytes:
        """Return the node."""
        marks = [[mark.entry_id, mark.ms] for mark in self._marks]
        return _encode({"marks": marks, "until": self._until})


@dataclass(frozen=True, slots=True)
class OpenMarks:
    """The noted times of a ledger that is being written: those of its entries before `until`; `version` is the
    node's."""

    marks: tuple[Mark, ...]
    until: int
    version: int = 0


# ---- bytes ----


def encode_page(marks: Sequence[Mark]) -> bytes:
    """Return a page's node."""
    return _encode({"marks": [list(mark) for mark in marks]})


def _encode(members: dict[str, Any]) -> bytes:
    return json.dumps({**members, "version": VERSION}, sort_keys=True, separators=(",", ":")).encode("ascii")


def decode_page(data: bytes) -> tuple[Mark, ...]:
    """Return the marks of a page. Raises ValueError, which says what is wrong."""
    return _marks(_members(data, "marks")["marks"])


def decode_open(data: bytes, ordinal: int, version: int = 0) -> OpenMarks:
    """Return the marks of a ledger that is being written. An empty node has no mark. Raises ValueError."""
    if not data:
        return OpenMarks((), 0, version)
    members = _members(data, "marks", "until")
    items = members["marks"]
    if not isinstance(items, list) or not all(isinstance(item, list) and len(item) == 2 for item in items):
        raise ValueError("marks has an item that is not [entry, time]")
    return OpenMarks(_marks([[ordinal, *item] for item in items]), _whole([members["until"]])[0], version)


def _members(data: bytes, *names: str) -> dict[str, Any]:
    try:
        members = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(members, dict) or members.get("version") != VERSION:
        raise ValueError(f"it is not a JSON object of version {VERSION}: use a newer bkspark")
    if sorted(members) != sorted([*names, "version"]):
        raise ValueError(f"its members are {sorted(members)}")
    return members


def index_to_json(index: TimeIndex) -> dict[str, Any]:
    """Return the head's member `times`."""
    return {"marks": [list(mark) for mark in index.marks], "pages": [list(ref) for ref in index.pages]}


def index_from_json(value: Any) -> TimeIndex:
    """Return the index of the head's member `times`. Raises ValueError, which says what is wrong."""
    if not isinstance(value, dict) or sorted(value) != ["marks", "pages"] or not isinstance(value["pages"], list):
        raise ValueError("times is not an object of marks and pages")
    pages = []
    for item in value["pages"]:
        if not isinstance(item, list) or len(item) != 5 or not isinstance(item[4], str) or not item[4].isalnum():
            raise ValueError("times has an item that is not [ordinal, entry, time, size, token] as a page")
        pages.append(_page_ref(*_whole(item[:4]), token=item[4]))
    index = TimeIndex(tuple(pages), _marks(value["marks"]))
    marks = [*(ref.mark for ref in pages), *index.marks[:1]]
    if not index.marks or any(after.place <= before.place or after.ms < before.ms for before, after in pairwise(marks)):
        raise ValueError("times has no mark, or does not ascend")
    return index


def _page_ref(ordinal: int, entry_id: int, ms: int, size: int, *, token: str) -> TimePageRef:
    return TimePageRef(ordinal, entry_id, ms, size, token)


def _marks(items: Any) -> tuple[Mark, ...]:
    if not isinstance(items, list) or not all(isinstance(item, list) and len(item) == 3 for item in items):
        raise ValueError("marks has an item that is not [ordinal, entry, time]")
    marks = tuple(Mark(*_whole(item)) for item in items)
    if any(after.place <= before.place or after.ms <= before.ms for before, after in pairwise(marks)):
        raise ValueError("marks do not ascend")
    return marks


def _whole(item: Sequence[Any]) -> Sequence[int]:
    if any(type(value) is not int or not 0 <= value <= ENTRY_ID_MAX for value in item):
        raise ValueError(f"{str(item)[:100]} has an item that is not a whole number")
    return item
