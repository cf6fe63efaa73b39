"""Reads what bookies have of a range of entries, around gaps.

An entry is in a gap if all bookies that could have it answer that they do not. After such an entry, the next stored one
is searched, more and more entries at once, because a gap may be long. When many were searched, the bookies' lists say
which entry is next. If a bookie sends no list, a sample decides whether anything is left of the range, so that a
deleted ledger is not searched entry by entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing

from bkspark.entries import EntryBatch
from bkspark.errors import NoSuchEntry

ENTRIES_AT_ONCE = 32
"""Entries of a gap that are requested at once, and entries of the sample. They are in memory together if they exist."""

Read = Callable[[int, int], AsyncGenerator[EntryBatch]]
"""Reads entries [first, end); raises NoSuchEntry at an entry that is gone, perhaps before others were returned."""
NextListed = Callable[[int, int], Awaitable[int | None]]
"""Returns the first entry of [first, end) that bookies list, `end` if there is none; None if they send no list."""


async def around_gaps(
    read: Read,
    first: int,
    end: int,
    *,
    ensemble_size: int,
    next_listed: NextListed,
    on_gap: Callable[[int, int], None] | None = None,
) -> AsyncGenerator[EntryBatch]:
    """Yield the stored entries of [first, end), in order.

    Args:
        ensemble_size: that of the ledger, for the sample: each bookie has some of this many consecutive entries.
        on_gap: called with the first entry of each gap and the end of the gap.
    """
    at, stop = first, end
    while at < end:
        try:
            # Closed before the caller's connections: a LIMIT ends the task here, while reads are in flight.
            async with aclosing(read(at, stop)) as batches:
                async for entries in batches:
                    at = entries.end_entry
                    yield entries
            if stop < end:
                gone, at, stop = stop, await _next_stored(read, next_listed, stop, end, ensemble_size), end
                if on_gap is not None:
                    on_gap(gone, at)
        except NoSuchEntry as error:
            stop = at if error.entry_id is None else error.entry_id


async def _next_stored(read: Read, next_listed: NextListed, gone: int, end: int, ensemble_size: int) -> int:
    """Return the first stored entry after one that is gone, or the end of the range."""
    at, count, is_sampled = gone + 1, 1, False
    while at < end:
        some = range(at, min(at + count, end))
        found = await _are_stored(read, some)
        if any(found):
            return at + found.index(True)
        at = some.stop
        if count < ENTRIES_AT_ONCE:
            count *= 2
        elif not is_sampled:
            is_sampled = True
            listed = await next_listed(at, end)
            # What a bookie lists it may be unable to return: then the sample decides.
            if listed is not None and (listed == end or any(await _are_stored(read, [listed]))):
                return listed
            rest = range(at, end)
            sample = [*rest[:: 1 + len(rest) // ENTRIES_AT_ONCE], *rest[-ensemble_size:]]
            if not any(await _are_stored(read, sample)):
                return end
    return end


async def _are_stored(read: Read, entry_ids: Iterable[int]) -> list[bool]:
    async def is_stored(entry_id: int) -> bool:
        try:
            async with aclosing(read(entry_id, entry_id + 1)) as batches:
                async for _ in batches:
                    return True
        except NoSuchEntry:
            pass
        return False

    return await asyncio.gather(*map(is_stored, entry_ids))
