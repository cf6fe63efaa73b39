"""Pages of index positions: what readers find, what stays dirty, and what the memory is counted as."""

from __future__ import annotations

import numpy as np
import pytest

from bookie_service.storage.index.index_pages import IndexPages, Page, overlaid

EACH = 64
PAGE_COST = 500


def positions(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def change(pages: IndexPages, ledger_id: int, number: int, slots: tuple[int, ...], values: tuple[int, ...]) -> None:
    pages.change(ledger_id, number, positions(*slots), positions(*values), lambda: positions())


def found(pages: IndexPages, ledger_id: int, first_page: int, end_page: int) -> dict[int, list[int]]:
    return {number: page.tolist() for number, page in pages.find(ledger_id, first_page, end_page).items()}


@pytest.fixture
def pages() -> IndexPages:
    return IndexPages(8 * EACH, 1 << 20)


# ---- one page ----


def test_page_grows_to_its_last_position_with_zeros_between() -> None:
    page = Page(positions(7, 8))
    page.set(positions(4, 6), positions(40, 60), EACH)
    assert page.positions.tolist() == [7, 8, 0, 0, 40, 0, 60]
    page.set(positions(1, 2, 3), positions(1, 2, 3), EACH)
    assert page.positions.tolist() == [7, 1, 2, 3, 40, 0, 60]
    page.set(positions(EACH - 1), positions(9), EACH)
    assert (len(page.positions), page.positions[-1]) == (EACH, 9)


def test_page_knows_the_range_that_its_file_may_lack() -> None:
    page = Page(positions(7, 8))
    assert page.dirty.tolist() == []
    page.set(positions(3, 4), positions(30, 40), EACH)
    assert (page.dirty_first, page.dirty_end, page.dirty.tolist()) == (3, 5, [30, 40])
    page.set(positions(1), positions(10), EACH)
    assert page.dirty.tolist() == [10, 0, 30, 40]
    page.set(positions(2), positions(20), EACH)
    assert (page.dirty_first, page.dirty.tolist()) == (1, [10, 20, 30, 40])


def test_page_takes_memory_for_little_more_than_its_positions() -> None:
    page = Page(positions())
    page.set(positions(0), positions(1), EACH)
    assert page.cost == PAGE_COST + 8 * 16
    page.set(positions(16), positions(1), EACH)
    assert page.cost == PAGE_COST + 8 * 32
    page.set(positions(60), positions(1), EACH)
    assert page.cost == PAGE_COST + 8 * EACH


# ---- readers ----


def test_find_returns_the_pages_of_the_range_that_are_here(pages: IndexPages) -> None:
    for number in (1, 3, 4):
        change(pages, 7, number, (0,), (number,))
    change(pages, 8, 2, (0,), (99,))
    assert found(pages, 7, 0, 10) == {1: [1], 3: [3], 4: [4]}
    assert found(pages, 7, 1, 4) == {1: [1], 3: [3]}
    assert found(pages, 7, 3, 4) == {3: [3]}
    assert found(pages, 7, 2, 3) == found(pages, 7, 5, 9) == found(pages, 9, 0, 10) == {}
    assert found(pages, 8, 2, 3) == {2: [99]}
    assert found(pages, 8, 3, 9) == found(pages, 8, 0, 2) == {}
    assert pages.numbers(7, 1, 4) == [1, 3]
    assert pages.numbers(8, 2, 3) == [2]
    assert pages.numbers(8, 3, 4) == pages.numbers(9, 0, 9) == []


def test_readers_page_is_kept_unless_something_changed_since_the_reader_looked(pages: IndexPages) -> None:
    """Otherwise a reader would put a page back that is older than its file."""
    seen = pages.changes
    pages.keep(7, 0, positions(1, 2), seen)
    assert found(pages, 7, 0, 1) == {0: [1, 2]}
    pages.keep(7, 0, positions(9, 9), seen)
    assert found(pages, 7, 0, 1) == {0: [1, 2]}, "a page that is here stays"
    change(pages, 8, 0, (0,), (5,))
    pages.keep(7, 1, positions(3), seen)
    assert pages.numbers(7, 0, 9) == [0], "kept after a change"
    pages.keep(7, 1, positions(3), pages.changes)
    assert pages.numbers(7, 0, 9) == [0, 1]
    for act in (lambda: pages.forget(7), lambda: pages.evict([(8, 0)])):
        seen = pages.changes
        act()
        pages.keep(9, 0, positions(3), seen)
        assert pages.numbers(9, 0, 9) == []


# ---- the changing thread ----


def test_change_lays_positions_over_what_the_file_holds(pages: IndexPages) -> None:
    pages.change(7, 0, positions(1), positions(20), lambda: positions(1, 2, 3))
    assert found(pages, 7, 0, 1) == {0: [1, 20, 3]}
    pages.change(7, 0, positions(2), positions(30), lambda: pytest.fail("a dirty page is loaded again"))
    assert found(pages, 7, 0, 1) == {0: [1, 20, 30]}
    pages.written([(7, 0)])
    pages.change(7, 0, positions(0), positions(10), lambda: pytest.fail("a clean page is loaded again"))
    assert found(pages, 7, 0, 1) == {0: [10, 20, 30]}
    assert [(key, page.dirty.tolist()) for key, page in pages.dirty()] == [((7, 0), [10])]


def test_dirty_pages_come_in_order_and_are_clean_once_written(pages: IndexPages) -> None:
    for key in ((9, 0), (7, 2), (7, 1)):
        change(pages, *key, (0,), (1,))
    assert [key for key, _ in pages.dirty()] == [(7, 1), (7, 2), (9, 0)]
    before = pages.bytes
    pages.written([(7, 1), (9, 0)])
    assert [key for key, _ in pages.dirty()] == [(7, 2)]
    assert (pages.bytes, found(pages, 7, 0, 9)) == (before, {1: [1], 2: [1]})
    assert pages.find(7, 1, 2).keys() == {1}


def test_forget_lets_go_of_the_clean_pages_of_one_ledger(pages: IndexPages) -> None:
    for key in ((7, 0), (7, 1), (8, 0)):
        pages.keep(*key, positions(1), pages.changes)
    cost = pages.bytes // 3
    pages.forget(7)
    pages.forget(1000)
    assert (found(pages, 7, 0, 9), found(pages, 8, 0, 9), pages.bytes) == ({}, {0: [1]}, cost)
    pages.forget(8)
    assert (found(pages, 8, 0, 9), pages.bytes) == ({}, 0)
    assert pages._numbers == {}, "a ledger without pages takes no memory"


# ---- memory ----


def test_memory_is_what_all_pages_cost(pages: IndexPages) -> None:
    assert pages.positions_per_page == EACH
    change(pages, 7, 0, (0,), (1,))
    change(pages, 7, 1, (EACH - 1,), (1,))
    assert pages.bytes == 2 * PAGE_COST + 8 * 16 + 8 * EACH
    change(pages, 7, 0, (EACH - 1,), (1,))
    assert pages.bytes == 2 * (PAGE_COST + 8 * EACH)
    pages.keep(8, 0, positions(1, 2, 3), pages.changes)
    assert pages.bytes == 2 * (PAGE_COST + 8 * EACH) + PAGE_COST + 24
    pages.evict([(7, 0), (7, 1)])
    assert (pages.bytes, pages.numbers(7, 0, 9), pages.numbers(8, 0, 9)) == (PAGE_COST + 24, [], [0])


def test_clean_pages_make_room_least_recently_used_first() -> None:
    cost = PAGE_COST + 8
    pages = IndexPages(8 * EACH, 3 * cost)
    for number in range(3):
        pages.keep(7, number, positions(number), pages.changes)
    assert pages.bytes == 3 * cost
    assert not pages.is_full
    pages.find(7, 0, 1)
    pages.keep(7, 3, positions(3), pages.changes)
    assert pages.numbers(7, 0, 9) == [0, 2, 3], "page 1 is the least recently used"
    assert pages.bytes == 3 * cost


def test_dirty_pages_make_room_oldest_first_and_a_tenth_more_than_needed() -> None:
    cost = PAGE_COST + 8 * 16
    pages = IndexPages(8 * EACH, 20 * cost)
    for number in range(20):
        change(pages, 7, number, (0,), (1,))
    assert not pages.is_full
    assert pages.make_room() == []
    change(pages, 7, 20, (0,), (1,))
    assert pages.is_full
    assert [key for key, _ in pages.make_room()] == [(7, 0), (7, 1), (7, 2)]
    pages.evict([(7, 0), (7, 1), (7, 2)])
    assert pages.bytes == 18 * cost
    assert pages.numbers(7, 0, 99) == list(range(3, 21))


def test_clean_pages_go_before_dirty_ones_are_written() -> None:
    cost = PAGE_COST + 8 * 16
    pages = IndexPages(8 * EACH, 2 * cost)
    change(pages, 7, 0, (0,), (1,))
    pages.written([(7, 0)])
    change(pages, 7, 1, (0,), (1,))
    change(pages, 7, 2, (0,), (1,))
    assert pages.is_full
    assert pages.make_room() == []
    assert pages.numbers(7, 0, 9) == [1, 2]


# ---- file and pages together ----


def test_pages_lie_over_the_positions_of_the_file() -> None:
    stored = positions(1, 2, 3, 4, 5)
    pages = {4: positions(30, 40), 6: positions(70)}
    assert overlaid(stored, pages, 3, 2).tolist() == [1, 2, 30, 40, 5, 0, 70]
    assert stored.tolist() == [1, 2, 3, 4, 5]
    assert overlaid(stored, {3: positions(9)}, 3, 2).tolist() == [9, 2, 3, 4, 5]
    assert overlaid(positions(), {}, 0, 2).tolist() == []


def test_page_that_one_reader_asks_for_by_number_is_not_the_next_to_go() -> None:
    cost = PAGE_COST + 8
    pages = IndexPages(8 * EACH, 3 * cost)
    for number in range(3):
        pages.keep(7, number, positions(number), pages.changes)
    page = pages.page(7, 0)
    assert page is not None
    assert page.tolist() == [0]
    assert pages.page(7, 9) is None
    pages.keep(7, 3, positions(3), pages.changes)
    assert pages.numbers(7, 0, 9) == [0, 2, 3]
