"""The time index as a pure core: ascending, bounded, and only ever raised."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest

from bkspark.log import times
from bkspark.log.positions import Position
from bkspark.log.times import Mark, OpenMarks, OpenTimes, TimeIndex, Timeline, TimePageRef

TOKEN = "00000000000000aa"


class Pages:
    """Pages as a metadata store keeps them."""

    def __init__(self) -> None:
        self.marks: dict[str, tuple[Mark, ...]] = {}

    def packed(self, index: TimeIndex, token: str) -> TimeIndex:
        read = {ref: self.marks[ref.name] for ref in times.to_read(index)}
        index, new = times.packed(index, read, token)
        for page in new:
            assert page.ref.name not in self.marks
            assert len(page.marks) == page.ref.size <= times.PAGE_MARKS_MAX
            self.marks[page.ref.name] = page.marks
        return index

    def timeline(self, index: TimeIndex) -> Timeline:
        return Timeline([*(mark for ref in index.pages for mark in self.marks[ref.name]), *index.marks])


def filled(count: int, seed: int = 1, back: int = 0) -> tuple[TimeIndex, Pages, list[Mark]]:
    """Return an index of `count` commits, its pages, and the commits with the times of their clocks, which may go
    back."""
    chance, index, pages, commits = random.Random(seed), times.EMPTY, Pages(), []
    now = 1_000_000
    for ordinal in range(count):
        now += chance.choice([1, 2, 5, 1_000, 3_600_000]) - (back if chance.random() < 0.1 else 0)
        commits.append(Mark(ordinal, 0, max(0, now)))
        index = pages.packed(times.added(index, commits[-1]), f"{ordinal:016x}")
    return index, pages, commits


@pytest.mark.parametrize("seed", range(5))
def test_each_commit_has_its_own_time_while_pages_are_few(seed: int) -> None:
    index, pages, commits = filled(3_000, seed)
    timeline = pages.timeline(index)
    assert list(timeline.marks) == commits
    for commit in random.Random(seed).sample(commits, 200):
        assert timeline.first_at(commit.ms) == commit.place
        assert timeline.of_entries(commit.ordinal, 0, 10) == ((0, commit.ms),)


@pytest.mark.parametrize("seed", range(5))
def test_times_never_go_back_when_clocks_do(seed: int) -> None:
    index, pages, commits = filled(2_000, seed, back=50_000)
    highest = 0
    for commit in commits:
        highest = max(highest, commit.ms)
        ((_, ms),) = (
            pages.timeline(index).of_entries(commit.ordinal, 0, 1) if commit.ordinal % 97 == 0 else ((0, highest),)
        )
        assert ms == highest


def test_the_index_is_bounded_and_joining_only_raises_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "PAGE_MARKS_MAX", 40)
    monkeypatch.setattr(times, "PAGES_MAX", 6)
    monkeypatch.setattr(times, "RECENT_MAX", 20)
    chance, index, pages = random.Random(7), times.EMPTY, Pages()
    given: dict[int, int] = {}
    now = 0
    for ordinal in range(3_000):
        now += chance.randrange(1, 1000)
        index = pages.packed(times.added(index, Mark(ordinal, 0, now)), f"{ordinal:016x}")
        assert len(index.pages) <= times.PAGES_MAX + 1
        assert len(index.marks) <= times.RECENT_MAX
        if ordinal % 50 == 0:
            timeline = pages.timeline(index)
            assert timeline.marks[0].place == (0, 0)
            seen = {each: timeline.of_entries(each, 0, 1)[0][1] for each in range(0, ordinal + 1, 10)}
            assert all(seen[each] >= ms for each, ms in given.items())
            assert sorted(seen.values()) == list(seen.values())
            given = seen
    # Times of long ago are coarser, but none is off by more than a part of its age.
    timeline = pages.timeline(index)
    recent = timeline.of_entries(2_999, 0, 1)[0][1]
    assert recent == now


def test_joined_marks_keep_first_places_and_last_times() -> None:
    marks = [Mark(0, i, ms) for i, ms in enumerate([1, 2, 3, 1000, 1001, 5000])]
    assert times.joined(marks, 3) == (Mark(0, 0, 3), Mark(0, 3, 1001), Mark(0, 5, 5000))
    assert times.joined(marks, 6) == tuple(marks)
    assert times.joined(marks, 1) == (Mark(0, 0, 5000),)


def test_a_ledger_that_is_closed_brings_its_times() -> None:
    index = times.added(times.EMPTY, Mark(0, 0, 10))
    index = times.added(index, Mark(1, 0, 50))  # published by a job after the open ledger
    index = times.with_marks(index, [Mark(0, 0, 12), Mark(0, 5, 60)])
    assert index.marks == (Mark(0, 0, 12), Mark(0, 5, 60))  # what the job published is read after it, and no earlier
    assert Timeline(index.marks).of_entries(0, 3, 8) == ((3, 12), (5, 60))
    assert Timeline(index.marks).of_entries(1, 0, 8) == ((0, 60),)


@pytest.mark.parametrize(
    ("end_entry", "until", "noted", "later", "expected"),
    [
        (7, 7, [(0, 10)], [], [(0, 10)]),
        (8, 7, [(0, 10)], [], [(0, 10), (7, 99)]),
        (8, 7, [(0, 10)], [40], [(0, 10), (7, 40)]),
        (8, 7, [(0, 10)], [120], [(0, 10), (7, 99)]),
        (1, 0, [], [], [(0, 99)]),
        (0, 0, [], [], []),
    ],
)
def test_entries_after_those_that_a_writer_noted_get_the_time_of_what_follows_or_the_present_one(
    end_entry: int, until: int, noted: list[tuple[int, int]], later: list[int], expected: list[tuple[int, int]]
) -> None:
    index = TimeIndex((), (Mark(3, 0, 5), *(Mark(4, 0, ms) for ms in later)))
    open_marks = OpenMarks(tuple(Mark(3, *each) for each in noted), until)
    found = times.of_closed(index, open_marks, 3, end_entry, 99)
    assert found == tuple(Mark(3, *each) for each in expected)


def test_a_truncated_log_keeps_the_time_that_applies_at_its_start() -> None:
    index, pages, commits = filled(500)
    for start in (Position(0, 1, 0), Position(123, 1, 10), Position(399, 1, 1), Position(499, 1, 9)):
        left = times.trimmed(index, start)
        timeline = pages.timeline(left)
        for commit in commits[start.ordinal :]:
            assert timeline.of_entries(commit.ordinal, 0, 1) == ((0, commit.ms),)
        assert len(left.pages) <= len(index.pages)
    last = times.trimmed(index, Position(499, 1, 10))
    assert last.pages == ()
    assert last.marks == (commits[-1],)


def test_a_log_that_was_emptied_goes_on_with_times_that_are_no_earlier() -> None:
    index = times.emptied(times.added(times.EMPTY, Mark(0, 0, 500)), 1)
    assert times.added(index, Mark(1, 0, 400)).marks == (Mark(1, 0, 500),)
    assert times.added(index, Mark(1, 0, 600)).marks == (Mark(1, 0, 600),)


def test_entries_before_the_first_mark_have_no_time() -> None:
    timeline = Timeline([Mark(3, 10, 100), Mark(4, 0, 200)])
    assert timeline.of_entries(2, 0, 5) == ((0, None),)
    assert timeline.of_entries(3, 0, 20) == ((0, None), (10, 100))
    assert timeline.first_at(100) == (3, 10)
    assert timeline.first_at(201) is None
    assert Timeline(timeline.marks, [(4, 7)]).first_at(201) == (4, 7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_pages_of_a_range_and_of_a_time_are_enough(seed: int) -> None:
    index, pages, _ = filled(9_000, seed)
    whole = pages.timeline(index)
    chance = random.Random(seed)
    firsts = [*(ref.mark for ref in index.pages), *index.marks]
    places = [mark.place for mark in whole.marks]
    for _ in range(100):
        first, end = sorted(((chance.randrange(9_000), 0), (chance.randrange(9_000), 5)))
        refs = times.pages_of(index, first, end)
        part = Timeline([*firsts, *(mark for ref in refs for mark in pages.marks[ref.name])])
        for ordinal in {first[0], end[0], (first[0] + end[0]) // 2}:
            assert part.of_entries(ordinal, 0, 5) == whole.of_entries(ordinal, 0, 5)
        ms = whole.marks[chance.randrange(len(whole.marks))].ms + chance.randrange(-1, 2)
        read = times.page_at(index, ms)
        assert len(read) <= 1
        part = Timeline([*firsts, *(mark for ref in read for mark in pages.marks[ref.name])])
        assert part.first_at(ms) == whole.first_at(ms)
        assert bisect_right(places, first) >= 0


def test_a_writers_notes_are_bounded_and_exact_for_calls_that_are_far_apart() -> None:
    notes = OpenTimes()
    for call in range(100_000):
        notes.note(call * 3, call * 3 + 3, call // 50 + (call // 10_000) * 60_000)
    noted = times.decode_open(notes.encode(), 7)
    assert noted.until == 300_000
    assert len(noted.marks) <= times.OPEN_MARKS_MAX
    timeline = Timeline(noted.marks)
    for burst in range(10):
        assert timeline.first_at(burst * 60_000 + burst * 200 - 1_000)[1] <= burst * 30_000


def test_notes_are_not_recorded_until_what_was_written_is_known_to_be_there() -> None:
    notes = OpenTimes()
    assert notes.is_recorded
    notes.note(0, 5, 100)
    assert not notes.is_recorded
    notes.encode()
    assert not notes.is_recorded
    notes.note(5, 9, 90)  # a clock that goes back
    notes.record(5)
    assert not notes.is_recorded
    notes.record(9)
    assert notes.is_recorded
    assert times.decode_open(notes.encode(), 2).marks == (Mark(2, 0, 100),)


def test_what_is_written_is_read_back_and_damage_is_noticed() -> None:
    index = TimeIndex((TimePageRef(0, 0, 5, 2, TOKEN),), (Mark(1, 0, 9),))
    assert times.index_from_json(times.index_to_json(index)) == index
    marks = (Mark(0, 0, 5), Mark(0, 7, 6))
    assert times.decode_page(times.encode_page(marks)) == marks
    assert times.decode_open(b"", 3).marks == ()
    for wrong in (
        b"",
        b"[]",
        b'{"marks":[[0,0]],"version":1}',
        b'{"marks":[[0,0,5],[0,0,6]],"version":1}',
        b'{"marks":[[0,0,5]],"version":2}',
        b'{"marks":[[0,0,-5]],"version":1}',
        b'{"marks":3,"version":1}',
    ):
        with pytest.raises(ValueError):
            times.decode_page(wrong)
    for value in (
        None,
        {},
        {"marks": [], "pages": []},
        {"marks": [[0, 0, 1]], "pages": [[0, 0, 1, 1]]},
        {"marks": [[0, 0, 1]], "pages": [[0, 0, 5, 1, TOKEN]]},
    ):
        with pytest.raises(ValueError):
            times.index_from_json(value)


@pytest.mark.parametrize("data", [b"{", b"[" * 100_000, b"\xff"])
def test_node_of_times_that_is_not_json_is_an_error_that_says_so(data: bytes) -> None:
    with pytest.raises(ValueError, match="it is not JSON"):
        times.decode_open(data, 3)


def test_times_of_entries_change_at_exactly_the_entry_of_a_mark() -> None:
    timeline = Timeline([Mark(0, 0, 10), Mark(0, 5, 20), Mark(0, 9, 30), Mark(1, 0, 40)])
    assert timeline.of_entries(0, 0, 10) == ((0, 10), (5, 20), (9, 30))
    assert timeline.of_entries(0, 5, 9) == ((5, 20),)
    assert timeline.of_entries(0, 4, 6) == ((4, 10), (5, 20))
    assert timeline.of_entries(0, 4, 5) == ((4, 10),)
    assert timeline.of_entries(1, 0, 1) == ((0, 40),)


@pytest.mark.parametrize(("entry", "kept"), [(0, 1), (4, 1), (5, 2), (6, 2), (9, 3), (12, 3)])
def test_truncated_index_begins_with_the_mark_that_applies_to_the_first_entry(entry: int, kept: int) -> None:
    """An earlier one would say that the log still has entries of its time."""
    marks = (Mark(0, 0, 10), Mark(0, 5, 20), Mark(0, 9, 30))
    index = times.trimmed(TimeIndex((), marks), Position(0, 7, entry))
    assert index.marks == marks[kept - 1 :]
