"""Changes of a log's head, and parts of its time index and formats, each called directly: a head in, a head out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bkspark.errors import DataLoss, MetadataFormat
from bkspark.ids import ENTRY_ID_MAX, LEDGER_ID_MAX
from bkspark.log import changes, delta, formats, times
from bkspark.log.formats import (
    LAST_EPOCHS_MAX,
    PAGE_LEDGERS_MAX,
    QUERIES_OF_A_NAME_MAX,
    TAIL_LEDGERS_MAX,
    LogHead,
    PageRef,
    Publisher,
    SchemaRef,
    SegmentFacts,
)
from bkspark.log.positions import Position
from bkspark.log.times import (
    OPEN_MARKS_MAX,
    PAGE_MARKS_MAX,
    PAGES_MAX,
    RECENT_MAX,
    Mark,
    OpenTimes,
    TimeIndex,
    Timeline,
    TimePageRef,
)

TOKEN = "00000000000000aa"
SIZES = [1, 2, 1, 5, 0, 2 * PAGE_LEDGERS_MAX + 7, 1, PAGE_LEDGERS_MAX]


def ledgers(first: int, end: int) -> tuple[SegmentFacts, ...]:
    return tuple(SegmentFacts(ledger_id, 9, 100) for ledger_id in range(first, end))


def head_of(count: int = 0, **members: object) -> LogHead:
    return replace(LogHead(TOKEN, "/ledgers", (), tail=ledgers(0, count)), **members)


def all_ledgers(head: LogHead, pages: dict[str, tuple[SegmentFacts, ...]]) -> list[int]:
    paged = [pages[ref.name][: head.page_end(index) - ref.first_ordinal] for index, ref in enumerate(head.pages)]
    return [facts.ledger_id for page in (*paged, head.tail) for facts in page]


# ---- the list of ledgers ----


def test_any_number_of_appended_ledgers_are_in_the_list_once_and_in_order() -> None:
    for tail_max in (3, TAIL_LEDGERS_MAX):
        head, pages, count = head_of(), {}, 0
        for step, added in enumerate([*SIZES, tail_max, 1, tail_max + 1]):
            to_extend = changes.page_to_extend(head, added, tail_max)
            extended = None if to_extend is None else pages[to_extend.name]
            more = ledgers(count, count + added)
            head, new = changes.appended(head, more, extended, f"{step:016x}", tail_max)
            pages |= {page.ref.name: page.ledgers for page in new}
            count += added
            assert all_ledgers(head, pages) == list(range(count))
            assert len(head.tail) <= tail_max
            assert head.end_ordinal == count
            assert all(len(page.ledgers) <= PAGE_LEDGERS_MAX for page in new)
        # Pages are full, but for the last one.
        firsts = [ref.first_ordinal for ref in head.pages]
        assert firsts == list(range(0, head.tail_ordinal, PAGE_LEDGERS_MAX))


def test_page_is_extended_when_the_tail_moves_and_the_page_has_room() -> None:
    head = head_of(2, pages=(PageRef(f"0-{TOKEN}"),), tail_ordinal=PAGE_LEDGERS_MAX - 1)
    assert changes.page_to_extend(head, 1, 3) is None
    assert changes.page_to_extend(head, 2, 3) == head.pages[-1]
    assert changes.page_to_extend(replace(head, tail_ordinal=PAGE_LEDGERS_MAX), 2, 3) is None
    assert changes.page_to_extend(head_of(2), 9, 3) is None


def test_open_ledgers_stay_in_the_tail_with_all_after_them() -> None:
    head = head_of(4, open_ordinals=(2,))
    head, [page] = changes.appended(head, ledgers(4, 6), None, TOKEN, 3)
    assert ([it.ledger_id for it in page.ledgers], [it.ledger_id for it in head.tail]) == ([0, 1], [2, 3, 4, 5])
    assert (head.tail_ordinal, head.end_ordinal) == (2, 6)


def test_ledger_that_stays_open_does_not_keep_the_head_growing() -> None:
    head, [page] = changes.appended(head_of(TAIL_LEDGERS_MAX, open_ordinals=(1,)), ledgers(200, 201), None, TOKEN)
    assert (len(page.ledgers), len(head.tail), head.tail_ordinal) == (1, TAIL_LEDGERS_MAX, 1)
    head, [page] = changes.appended(head_of(TAIL_LEDGERS_MAX, open_ordinals=(0,)), ledgers(200, 201), None, TOKEN)
    assert (len(page.ledgers), head.tail, head.tail_ordinal) == (TAIL_LEDGERS_MAX + 1, (), TAIL_LEDGERS_MAX + 1)


def test_slices_that_continue_each_other_become_one_and_earlier_ones_stay() -> None:
    parts = [SegmentFacts(5, 9, 10), SegmentFacts(5, 19, 7, 10), SegmentFacts(5, 29, 5, 20), SegmentFacts(6, 3, 4)]
    head, _ = changes.appended(head_of(), parts, None, TOKEN)
    assert head.tail == (SegmentFacts(5, 29, 22), SegmentFacts(6, 3, 4))
    head, _ = changes.appended(replace(head_of(), tail=tuple(parts[:2])), parts[2:], None, TOKEN)
    assert head.tail == (parts[0], SegmentFacts(5, 29, 12, 10), parts[3])


def test_closed_ledger_gets_its_end_where_it_is_in_the_tail() -> None:
    head = head_of(3, tail_ordinal=10, open_ordinals=(8, 11), pages=(PageRef(f"0-{TOKEN}"),))
    closed = changes.note_closed(head, [(8, SegmentFacts(70, 1, 2)), (11, SegmentFacts(1, 4, 5))])
    assert (closed.open_ordinals, closed.tail) == ((), (head.tail[0], SegmentFacts(1, 4, 5), head.tail[2]))
    assert changes.note_closed(head, [(13, SegmentFacts(70, 1, 2))]) == head


def test_position_before_the_start_or_after_the_end_is_lost_data() -> None:
    head = head_of(3, first_ordinal=5, start=Position(5, 0, 4), tail_ordinal=5)
    assert changes.first_to_read(head, "x", Position(5, 0, 4)) == (5, 4)
    with pytest.raises(DataLoss, match="begins at"):
        changes.first_to_read(head, "x", Position(5, 0, 3))
    assert changes.first_to_read(head, "x", Position.beginning(8)) == (8, 0)
    for beyond in (Position.beginning(9), Position(8, 3, 0)):
        with pytest.raises(DataLoss, match="ends before ordinal 8"):
            changes.first_to_read(head, "x", beyond)
    # The end of a ledger that is gone.
    assert changes.first_to_read(replace(head, start=Position(4, 9, 10)), "x", Position(4, 9, 10)) == (5, 0)


# ---- publishers and schemas ----


def test_publisher_is_remembered_by_name_and_query_and_others_stay() -> None:
    before = (("a", 1, "q"), ("b", 2, "q"), ("a", 3), ("a", 4, "r"))
    assert changes.with_publisher(before, Publisher("a", 7, "q")) == (*before[1:], ("a", 7, "q"))
    assert changes.with_publisher(before, Publisher("a", 7, None)) == (*before[:2], before[3], ("a", 7))
    assert changes.with_publisher(before, Publisher("c", 7, "q")) == (*before, ("c", 7, "q"))


def test_as_many_publishers_as_the_limits_say_are_remembered() -> None:
    many = tuple((f"n{number}", number) for number in range(LAST_EPOCHS_MAX))
    assert changes.with_publisher(many, Publisher("new", 5, None)) == (*many[1:], ("new", 5))
    queries = tuple(("a", number, f"q{number}") for number in range(QUERIES_OF_A_NAME_MAX))
    assert changes.with_publisher(queries[:-1], Publisher("a", 9, "new")) == (*queries[:-1], ("a", 9, "new"))
    assert changes.with_publisher((("b", 1), *queries), Publisher("a", 9, "new")) == (
        ("b", 1),
        *queries[1:],
        ("a", 9, "new"),
    )


def test_head_with_slices_or_a_query_has_slices_from_then_on() -> None:
    for has_slices in (False, True):
        head = head_of(has_slices=has_slices)
        assert changes.published(head, Publisher("a", 1, None)).has_slices == has_slices
        assert changes.published(head, Publisher("a", 1, "q")).has_slices


def test_present_schema_changes_nothing_and_another_one_is_added() -> None:
    first = SchemaRef(0, 1, "a" * 32)
    head = head_of(3, schemas=(first,))
    assert changes.with_schema(head, first.name, 3) is head
    changed = changes.with_schema(head, "b" * 32, 3)
    assert changed.has_slices
    assert changed.schemas == (first, SchemaRef(3, 2, "b" * 32))


# ---- formats ----


@pytest.mark.parametrize(
    "item",
    [
        [-1, 1, 1],
        [LEDGER_ID_MAX + 1, 1, 1],
        [5, -2, 1],
        [5, ENTRY_ID_MAX, 1],
        [5, 1, -1],
        [5, 1, ENTRY_ID_MAX + 1],
        [True, 1, 1],
        [5, True, 1],
        [5, 1, 1.0],
        [5, "1", 1],
        [5, 1],
        [5, 1, 1, 0],
        [5, 1, 1, 2],
        {"5": 1},
    ],
    ids=str,
)
def test_item_of_a_list_that_no_ledger_can_be_is_refused(item: object) -> None:
    members = json.loads(formats.encode_page(7, ledgers(1, 2)))
    members["ledgers"].append(item)
    with pytest.raises(MetadataFormat, match="/path"):
        formats.decode_page(json.dumps(members).encode(), "/path")


def test_items_of_a_list_at_the_limits_are_ledgers() -> None:
    facts = (SegmentFacts(0, -1, 0), SegmentFacts(LEDGER_ID_MAX, ENTRY_ID_MAX - 1, ENTRY_ID_MAX), SegmentFacts(3))
    assert formats.decode_page(formats.encode_page(7, facts), "/path") == (7, facts)


@pytest.mark.parametrize("base", [-1, "1", None, 1.0, True])
def test_delta_without_a_version_as_its_base_is_refused(base: object) -> None:
    data = json.dumps({"base": base, "changed": {}, "version": 1}).encode()
    with pytest.raises(MetadataFormat, match="base is not a version"):
        delta.decode_base(data, "/path")


def test_object_with_other_members_is_replaced_as_a_whole() -> None:
    assert delta.difference({"a": 1}, {"b": 2}) == {"set": {"b": 2}}
    assert delta.difference({"a": 1, "b": 1}, {"a": 2, "b": 1}) == {"members": {"a": {"set": 2}}}


# ---- times ----


def page_ref(ordinal: int, ms: int, size: int = 5) -> TimePageRef:
    return TimePageRef(ordinal, 0, ms, size, TOKEN)


def test_times_of_entries_end_before_the_mark_of_the_next_one() -> None:
    timeline = Timeline([Mark(1, 0, 5), Mark(1, 10, 7), Mark(2, 0, 9)])
    assert timeline.of_entries(1, 0, 10) == ((0, 5),)
    assert timeline.of_entries(1, 0, 11) == ((0, 5), (10, 7))
    assert timeline.of_entries(1, 10, 12) == ((10, 7),)
    assert timeline.of_entries(0, 3, 5) == ((3, None),)


def test_trimmed_times_begin_with_those_that_apply_at_the_start() -> None:
    pages = (page_ref(2, 10), page_ref(4, 20))
    marks = (Mark(6, 0, 30), Mark(8, 0, 40), Mark(9, 0, 50))
    index = TimeIndex(pages, marks)
    kept = {
        (0, 0): index,
        (2, 0): index,
        (3, 0): index,
        (4, 0): TimeIndex(pages[1:], marks),
        (6, 0): TimeIndex((), marks),
        (7, 5): TimeIndex((), marks),
        (8, 0): TimeIndex((), marks[1:]),
        (9, 1): TimeIndex((), marks[2:]),
    }
    for (ordinal, entry_id), expected in kept.items():
        assert times.trimmed(index, Position(ordinal, 5, entry_id)) == expected
    assert times.trimmed(TimeIndex((), marks), Position(2, 5, 0)) == TimeIndex((), marks)
    assert times.trimmed(times.EMPTY, Position(2, 5, 0)) == times.EMPTY


def test_index_without_a_mark_takes_none_of_a_closed_ledger() -> None:
    assert times.with_marks(times.EMPTY, (Mark(1, 0, 5),)) == times.EMPTY


def test_two_pages_that_span_the_least_time_for_their_age_are_joined() -> None:
    pages = (page_ref(0, 0), page_ref(1, 500), page_ref(2, 600))
    marks = (Mark(3, 0, 700), Mark(4, 0, 800), Mark(5, 0, 10_000))
    assert times.pages_to_join(TimeIndex(pages, marks), pages) == pages[1:]
    # As seen soon after, the last ones are young.
    assert times.pages_to_join(TimeIndex(pages, marks[:1]), pages) == pages[:2]


def test_pages_are_joined_when_there_are_too_many_and_the_last_one_is_filled() -> None:
    marks = tuple(Mark(10_000 + number, 0, 10_000_000 + number) for number in range(RECENT_MAX + 1))
    full = tuple(page_ref(number, 1_000 * number, PAGE_MARKS_MAX) for number in range(PAGES_MAX))
    assert times.to_read(TimeIndex(full, marks[:-1])) == ()
    assert times.to_read(TimeIndex(full[:-1], marks)) == ()
    assert len(times.to_read(TimeIndex(full, marks))) == 2
    open_page = page_ref(PAGES_MAX, 1_000 * PAGES_MAX, PAGE_MARKS_MAX - 1)
    assert times.to_read(TimeIndex((*full[:-1], open_page), marks)) == (open_page,)
    *pair, last = times.to_read(TimeIndex((*full, open_page), marks))
    assert (len(pair), last) == (2, open_page)
    assert open_page not in pair


def test_noted_times_of_an_open_ledger_are_halved_when_they_are_too_many() -> None:
    noted = OpenTimes()
    for number in range(OPEN_MARKS_MAX):
        noted.note(number, number + 1, 10 * number)
    assert len(times.decode_open(noted.encode(), 3).marks) == OPEN_MARKS_MAX
    noted.note(OPEN_MARKS_MAX, OPEN_MARKS_MAX + 1, 10 * OPEN_MARKS_MAX)
    left = times.decode_open(noted.encode(), 3)
    assert len(left.marks) <= OPEN_MARKS_MAX // 2
    assert (left.marks[0].place, left.marks[-1].ms) == ((3, 0), 10 * OPEN_MARKS_MAX)
    assert (left.until, noted.until, left.version) == (OPEN_MARKS_MAX + 1, OPEN_MARKS_MAX + 1, 0)
    assert not noted.is_recorded
    noted.record(noted.until)
    assert noted.is_recorded


def test_marks_of_one_place_are_one_with_the_later_time() -> None:
    marks = [Mark(1, 0, 5), Mark(2, 0, 6), Mark(2, 0, 9), Mark(3, 0, 9), Mark(4, 0, 10)]
    assert times.ascending(reversed(marks)) == (marks[0], marks[2], marks[4])


def test_no_more_marks_are_joined_than_needed() -> None:
    marks = [Mark(number, 0, number) for number in range(3)]
    assert times.joined(marks, 3) == tuple(marks)
    assert times.joined(marks, 2) == (Mark(0, 0, 1), marks[2])
    assert times.joined(marks, 1) == (Mark(0, 0, 2),)


def test_first_mark_of_an_index_is_that_of_its_first_page_or_of_the_head() -> None:
    marks = (Mark(6, 0, 30), Mark(8, 0, 40))
    assert TimeIndex((), marks).first == marks[0]
    assert TimeIndex((page_ref(2, 10), page_ref(4, 20)), marks).first == Mark(2, 0, 10)
    assert (times.EMPTY.first, times.EMPTY.last, TimeIndex((), marks).last) == (None, None, marks[1])


def test_slice_that_continues_the_last_one_has_its_time_from_its_first_entry_on() -> None:
    head = replace(head_of(2), tail=(SegmentFacts(5, 9, 10),))
    added = [SegmentFacts(5, 19, 7, 10), SegmentFacts(6, 3, 4)]
    assert changes.timed(head, added, 77).marks == (Mark(0, 10, 77),)
    assert changes.timed(head, added[1:], 77).marks == (Mark(1, 0, 77),)
    assert changes.timed(head, [], 77) is head.times
    earlier = replace(head, tail=(SegmentFacts(3, 9, 10), SegmentFacts(4, 9, 10), SegmentFacts(5, 9, 10)))
    assert changes.timed(earlier, added, 77).marks == (Mark(2, 10, 77),)
    for only in (SegmentFacts(3, 19, 7, 10), SegmentFacts(4, 19, 7, 10)):
        assert changes.timed(earlier, [only], 77).marks == (Mark(3, 0, 77),)


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        times.decode_page(b"[" * 200_000)


def test_beginning_of_a_log_is_its_first_ordinal() -> None:
    assert Position.beginning() == Position(0, -1, 0)
