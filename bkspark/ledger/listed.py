"""ListedEntries: which entries of a ledger its bookies have, by their own lists (GET_LIST_OF_ENTRIES_OF_LEDGER).

A list costs one request for each bookie, however many entries are asked for. Apache's bookies send lists since 4.10,
but not with `DbLedgerStorage`, the storage of most Pulsar clusters: there the request is never answered.
"""

from __future__ import annotations

import asyncio
from functools import partial

from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookKeeperError, ClientClosed
from bkspark.net.pool import BookiePool
from bkspark.wire import v2
from bkspark.wire.entry_lists import CLOSED_RUNS_MAX, RUNS_MAX, EntryRuns


async def entry_list(pool: BookiePool, bookie: str, ledger_id: int, metadata: LedgerMetadata) -> EntryRuns | None:
    """Return the entries that a bookie lists, whose bytes it may have damaged; None if it sends no list now."""
    # Protects this client's memory: a few bytes of a wrong answer may describe millions of runs.
    runs_max = min(CLOSED_RUNS_MAX, metadata.last_entry + 1) if metadata.is_closed else RUNS_MAX
    try:
        status, runs = await (await pool.v3_channel(bookie)).entry_list(ledger_id, runs_max)
    except ClientClosed:
        raise
    except BookKeeperError:
        return None
    return runs if status in (v2.EOK, v2.Status.ENOENTRY, v2.Status.ENOLEDGER) else None


LIST_S = 2.0
"""How long a read waits for a list. It can do without, so it does not wait as long as for an entry."""


class ListedEntries:
    """The entries of one ledger that its bookies list.

    Each bookie is asked once, when it is first needed, unless it did not send a list in time before, and none since.
    """

    def __init__(self, pool: BookiePool, ledger_id: int, metadata: LedgerMetadata) -> None:
        self._pool = pool
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._lists: dict[str, asyncio.Future[EntryRuns | None]] = {}
        """The lists that were requested so far, by bookie."""

    async def next_from(self, first: int, end: int) -> int | None:
        """Return the first entry of [first, end) that one of its bookies lists, `end` if there is none; None if a
        bookie sends no list."""
        fragments = self._metadata.fragments
        bounds = [*(fragment.first_entry for fragment in fragments[1:]), end]
        for fragment, fragment_end in zip(fragments, bounds):
            low, high = max(first, fragment.first_entry), min(end, fragment_end)
            if low >= high:
                continue
            lists = await asyncio.gather(*map(self._list, dict.fromkeys(fragment.bookies)))
            found = high
            for runs in lists:
                if runs is None:
                    return None
                found = min(found, runs.next_from(low, high))
            if found < high:
                return found
        return end

    async def _list(self, bookie: str) -> EntryRuns | None:
        if bookie in self._pool.without_lists:
            return None
        if bookie not in self._lists:
            asking = asyncio.ensure_future(entry_list(self._pool, bookie, self._ledger_id, self._metadata))
            asking.add_done_callback(partial(self._note, bookie))
            self._lists[bookie] = asking
        # Not `wait_for`, which would cancel what another read waits for, too.
        done, _ = await asyncio.wait({self._lists[bookie]}, timeout=LIST_S)
        if not done:
            self._pool.without_lists.add(bookie)
            return None
        return self._lists[bookie].result()

    def _note(self, bookie: str, asking: asyncio.Future[EntryRuns | None]) -> None:
        """Ask a bookie for lists again if it has sent one, also one that came too late for the read that asked."""
        if not asking.cancelled() and asking.exception() is None and asking.result() is not None:
            self._pool.without_lists.discard(bookie)
