"""Pages of index positions in memory, limited in size; dirty pages apart from clean ones. Knows no files.

A page holds the positions of consecutive entries of one ledger: entry e is in slot e mod `positions_per_page` of page e
div `positions_per_page`. It takes memory only up to its last position, so a ledger of few entries costs few bytes. A
dirty page holds positions that its ledger's file may lack. A clean page equals the file.

One thread at a time changes pages and evicts written ones: the holder of the storage's `writing` lock. Any thread
reads. Only the changing thread adds or removes dirty pages. A page from a reader is dropped if anything changed since
the reader read the file, so a page is never older than its file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

PageKey = tuple[int, int]
"""(ledger id, number of the page)."""

_PAGE_COST_BYTES = 500
"""Memory that a page takes in addition to its positions: measured, rounded up."""
_POSITIONS_MIN = 16
_KEPT_SHARE = 0.9
"""Making room frees memory down to this share of the limit, so that it is rare."""


class Page:
    """Positions from the page's first entry on. A file may lack those in slots [dirty_first, dirty_end)."""

    __slots__ = ("_room", "dirty_end", "dirty_first", "positions")

    def __init__(self, positions: np.ndarray) -> None:
        self._room = positions
        """The memory of `positions`, with room at the end."""
        self.positions = positions
        """The positions: int64, in native byte order. A view of `_room`, replaced when the page grows."""
        self.dirty_first = self.dirty_end = 0
        """The slots whose positions a file may lack; equal: it lacks none. Changed by `set` and `IndexPages`."""

    @property
    def cost(self) -> int:
        """Bytes of memory that the page takes."""
        return _PAGE_COST_BYTES + self._room.nbytes

    def set(self, slots: np.ndarray, positions: np.ndarray, slots_max: int) -> None:
        """Set positions in ascending slots."""
        first, end = int(slots[0]), int(slots[-1]) + 1
        if end > len(self._room):
            room = np.zeros(min(slots_max, max(end, 2 * len(self._room), _POSITIONS_MIN)), np.int64)
            room[: len(self.positions)] = self.positions
            self._room = room
        if end > len(self.positions):
            self.positions = self._room[:end]
        if end - first == len(slots):
            self.positions[first:end] = positions
        else:
            self.positions[slots] = positions
        if self.dirty_first == self.dirty_end:
            self.dirty_first, self.dirty_end = first, end
        else:
            self.dirty_first, self.dirty_end = min(self.dirty_first, first), max(self.dirty_end, end)

    @property
    def dirty(self) -> np.ndarray:
        return self.positions[self.dirty_first : self.dirty_end]


class IndexPages:
    """The pages of all ledgers. They take at most `bytes_max` bytes, plus one update that is being applied."""

    def __init__(self, page_bytes: int, bytes_max: int) -> None:
        """`page_bytes`: the size of a full page, with 8 bytes per position."""
        self.positions_per_page = page_bytes // 8
        self._bytes_max = bytes_max
        self.bytes = 0
        """Memory that all pages take now. Changed by `_note`, `_forget` and `change`."""
        self._clean: OrderedDict[PageKey, Page] = OrderedDict()
        """Pages that equal their files; the one unused for longest comes first."""
        self._dirty: OrderedDict[PageKey, Page] = OrderedDict()
        """Pages that their files may lack, in the order of their changes. No page is in both dicts."""
        self._numbers: dict[int, int | set[int]] = {}
        """The numbers of the pages of each ledger in memory. Most ledgers have one page, and a number takes less memory
        than a set."""
        self._lock = threading.Lock()
        self.changes = 0
        """Incremented with every change. A reader saves it before it reads a file, and passes it to `keep`."""

    # ---- for readers ----

    def find(self, ledger_id: int, first_page: int, end_page: int) -> dict[int, np.ndarray]:
        """Return the positions on those of the pages [first_page, end_page) that are in memory, by page number."""
        found: dict[int, np.ndarray] = {}
        if ledger_id not in self._numbers:
            return found
        with self._lock:
            for key in self._present(ledger_id, first_page, end_page):
                page = self._dirty.get(key)
                if page is None:
                    page = self._clean.get(key)
                    if page is None:
                        continue
                    self._clean.move_to_end(key)
                found[key[1]] = page.positions
        return found

    def page(self, ledger_id: int, number: int) -> np.ndarray | None:
        """Return the positions on a page; None: the page is not in memory."""
        key = (ledger_id, number)
        with self._lock:
            page = self._dirty.get(key)
            if page is None:
                page = self._clean.get(key)
                if page is None:
                    return None
                self._clean.move_to_end(key)
            return page.positions

    def _present(self, ledger_id: int, first_page: int, end_page: int) -> Sequence[PageKey]:
        """Return the keys of a ledger's pages in a range. Some of the pages may not be in memory."""
        numbers = self._numbers.get(ledger_id)
        if numbers is None:
            return ()
        if isinstance(numbers, int):
            return ((ledger_id, numbers),) if first_page <= numbers < end_page else ()
        if end_page - first_page <= len(numbers):
            return [(ledger_id, number) for number in range(first_page, end_page)]
        return [(ledger_id, number) for number in numbers if first_page <= number < end_page]

    def numbers(self, ledger_id: int, first_page: int, end_page: int) -> list[int]:
        """Return which of the pages [first_page, end_page) of a ledger are in memory, ascending."""
        with self._lock:
            numbers = self._numbers.get(ledger_id, set())
            numbers = {numbers} if isinstance(numbers, int) else numbers
            return sorted(number for number in numbers if first_page <= number < end_page)

    def _note(self, key: PageKey, page: Page) -> None:
        """Count a page that was added."""
        ledger_id, number = key
        others = self._numbers.get(ledger_id)
        if others is None:
            self._numbers[ledger_id] = number
        elif isinstance(others, int):
            self._numbers[ledger_id] = {others, number}
        else:
            others.add(number)
        self.bytes += page.cost

    def _forget(self, key: PageKey, page: Page) -> None:
        """Stop counting a page that was removed."""
        ledger_id, number = key
        others = self._numbers[ledger_id]
        if isinstance(others, int) or len(others) == 1:
            del self._numbers[ledger_id]
        else:
            others.discard(number)
        self.bytes -= page.cost

    def keep(self, ledger_id: int, number: int, positions: np.ndarray, changes: int) -> None:
        """Keep a page as read from a file, unless something changed since `changes` was saved."""
        page = Page(positions)
        with self._lock:
            key = (ledger_id, number)
            if self.changes != changes or key in self._clean or key in self._dirty:
                return
            self._clean[key] = page
            self._note(key, page)
            if self.bytes > self._bytes_max:
                self._drop_clean(self._bytes_max)

    # ---- for the thread that changes ----

    @property
    def is_full(self) -> bool:
        return self.bytes > self._bytes_max

    def change(
        self, ledger_id: int, number: int, slots: np.ndarray, positions: np.ndarray, load: Callable[[], np.ndarray]
    ) -> None:
        """Set positions in ascending slots of a page, which becomes dirty. `load()` returns the file's page."""
        key = (ledger_id, number)
        page = self._dirty.get(key)
        loaded = None if page is not None or key in self._clean else Page(load())
        with self._lock:
            self.changes += 1
            if page is None:
                # A reader may have added the page meanwhile, or removed it to make room.
                page = self._clean.pop(key, None)
                if page is None:
                    page = loaded or Page(load())
                    self._note(key, page)
                self._dirty[key] = page
            before = page.cost
            page.set(slots, positions, self.positions_per_page)
            self.bytes += page.cost - before

    def dirty(self) -> list[tuple[PageKey, Page]]:
        """Return all dirty pages, ordered by ledger and number."""
        return sorted(self._dirty.items(), key=lambda item: item[0])

    def make_room(self) -> list[tuple[PageKey, Page]]:
        """Drop clean pages; return dirty pages, oldest first, that must be written and then given to `evict`."""
        with self._lock:
            self._drop_clean(self._bytes_max)
        victims = []
        excess = self.bytes - self._bytes_max * _KEPT_SHARE if self.is_full else 0
        for item in self._dirty.items():
            if excess <= 0:
                break
            victims.append(item)
            excess -= item[1].cost
        return victims

    def evict(self, keys: Iterable[PageKey]) -> None:
        """Drop dirty pages that were written to their files but are not durable yet."""
        with self._lock:
            self.changes += 1
            for key in keys:
                self._forget(key, self._dirty.pop(key))

    def written(self, keys: Iterable[PageKey]) -> None:
        """Mark dirty pages as equal to their files."""
        with self._lock:
            for key in keys:
                page = self._clean[key] = self._dirty.pop(key)
                page.dirty_first = page.dirty_end = 0

    def forget(self, ledger_id: int) -> None:
        """Drop the clean pages of a ledger that has no dirty page."""
        with self._lock:
            self.changes += 1
            numbers = self._numbers.get(ledger_id, set())
            for number in (numbers,) if isinstance(numbers, int) else list(numbers):
                page = self._clean.pop((ledger_id, number), None)
                if page is not None:
                    self._forget((ledger_id, number), page)

    def _drop_clean(self, bytes_max: int) -> None:
        while self.bytes > bytes_max and self._clean:
            self._forget(*self._clean.popitem(last=False))


def overlaid(stored: np.ndarray, pages: Mapping[int, np.ndarray], first_page: int, each: int) -> np.ndarray:
    """Return the positions from page `first_page` on: those of a file, overwritten by those of pages. It is a copy.

    `each`: the number of positions on a full page. The result ends after the last position.
    """
    end = len(stored)
    for number, page in pages.items():
        end = max(end, (number - first_page) * each + len(page))
    positions = np.zeros(end, np.int64)
    positions[: len(stored)] = stored
    for number, page in pages.items():
        first = (number - first_page) * each
        positions[first : first + len(page)] = page
    return positions
