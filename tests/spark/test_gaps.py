"""Reads around entries that are gone: what is stored is read, whatever else is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Collection

from bkspark.entries import EntryBatch
from bkspark.errors import NoSuchEntry
from bkspark.spark.gaps import ENTRIES_AT_ONCE, around_gaps

BATCH_ENTRIES = 4


class Ledger:
    """Entries of which some are stored. As in a striped ledger, an entry that is gone hides those before it in the same
    request.

    Args:
        listed: what its bookies list; None: they send no list.
    """

    def __init__(self, stored: Collection[int], listed: Collection[int] | None = None) -> None:
        self.stored = stored
        self.listed = listed
        self.asked = 0
        self.gaps: list[tuple[int, int]] = []

    async def _read(self, first: int, end: int) -> AsyncGenerator[EntryBatch]:
        for at in range(first, end, BATCH_ENTRIES):
            some = range(at, min(at + BATCH_ENTRIES, end))
            self.asked += len(some)
            await asyncio.sleep(0)
            for entry_id in reversed(some):
                if entry_id not in self.stored:
                    raise NoSuchEntry("not there", ledger_id=1, entry_id=entry_id)
            yield EntryBatch.of([b"%d" % entry_id for entry_id in some], 1, at)

    def read(self, first: int, end: int, *, ensemble_size: int = 3) -> list[int]:
        """Return the entries that a read around gaps finds."""

        async def found() -> list[int]:
            batches = around_gaps(
                self._read,
                first,
                end,
                ensemble_size=ensemble_size,
                next_listed=self._next_listed,
                on_gap=self._on_gap,
            )
            return [int(payload) async for batch in batches for payload in batch]

        return asyncio.run(found())

    async def _next_listed(self, first: int, end: int) -> int | None:
        if self.listed is None:
            return None
        return min((each for each in self.listed if first <= each < end), default=end)

    def _on_gap(self, first: int, end: int) -> None:
        self.gaps.append((first, end))


def test_every_stored_entry_is_read_whatever_others_are_lost() -> None:
    chances = random.Random(1)
    for _ in range(300):
        end = chances.randrange(2 * ENTRIES_AT_ONCE)
        stored = {each for each in range(end) if chances.random() < chances.choice((0.1, 0.5, 0.9))}
        first = chances.randrange(end + 1)
        ledger = Ledger(stored)
        found = ledger.read(first, end)
        assert found == sorted(each for each in stored if each >= first)
        lost = [entry_id for gap in ledger.gaps for entry_id in range(*gap)]
        assert sorted([*found, *lost]) == list(range(first, end)), "what is left out is reported, and once"


def test_long_gap_is_searched_once_up_to_its_last_entry() -> None:
    ledger = Ledger(range(20_000, 20_010))
    assert ledger.read(0, 20_010) == list(range(20_000, 20_010))
    assert ledger.gaps == [(0, 20_000)]
    assert ledger.asked < 20_010 + 10 * ENTRIES_AT_ONCE


def test_short_gaps_cost_few_requests_each() -> None:
    """As in a striped ledger of which one bookie lost its entries."""
    ledger = Ledger([each for each in range(3000) if each % 3])
    assert len(ledger.read(0, 3000)) == 2000
    assert ledger.asked < 5 * 3000


def test_deleted_ledger_is_not_searched_entry_by_entry() -> None:
    ledger = Ledger(())
    assert ledger.read(0, 1_000_000) == []
    assert ledger.gaps == [(0, 1_000_000)]
    assert ledger.asked < 4 * ENTRIES_AT_ONCE


def test_entries_before_a_lost_end_are_not_lost_with_it() -> None:
    """The last entries alone do not say that the ledger was deleted."""
    ledger = Ledger([*range(100), *range(500, 900)])
    assert ledger.read(0, 1000) == [*range(100), *range(500, 900)]
    assert ledger.gaps == [(100, 500), (900, 1000)]


def test_single_entry_among_a_million_lost_ones_is_read_if_bookies_list_what_they_have() -> None:
    """docs/spark.md: "What exists is read"."""
    some = [123_457, 123_458, 999_999]
    ledger = Ledger(some, some)
    assert ledger.read(0, 1_000_000) == some
    assert ledger.gaps == [(0, 123_457), (123_459, 999_999)]
    assert ledger.asked < 10 * ENTRIES_AT_ONCE


def test_list_of_a_bookie_that_has_nothing_left_ends_the_search() -> None:
    ledger = Ledger((), ())
    assert ledger.read(0, 1_000_000) == []
    assert ledger.gaps == [(0, 1_000_000)]
    assert ledger.asked < 3 * ENTRIES_AT_ONCE


def test_entry_that_is_listed_and_cannot_be_read_does_not_end_the_search() -> None:
    ledger = Ledger(range(5_000, 6_000), [200, *range(5_000, 6_000)])
    assert ledger.read(0, 10_000) == list(range(5_000, 6_000))
    assert ledger.gaps == [(0, 5_000), (6_000, 10_000)]
