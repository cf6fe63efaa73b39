"""Ledgers that are closed far above their entries cost what they hold: a check, a repair, a look at the copies.

Clients that use whatever LAC an entry carries close a ledger there. One add with the recovery flag is enough.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkspark.cli.ledger_copies import located
from bkspark.core.holes import held_parts, holes
from bkspark.core.metadata import Fragment
from bkspark.errors import NoSuchEntry
from bkspark.ids import LAST_ENTRY_MAX
from bkspark.wire.entry_lists import EntryRuns
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.ledger_check import LedgerCheck
from bookie_service.replication.operations import repair_ledger
from bookie_service.replication.options import AutoRecoveryOptions, RepairOptions
from bookie_service.replication.unexpected_errors import UnexpectedErrors
from tests.ledger.in_process import InProcessCluster, run

ENTRIES = 11
ENDS = [1 << 40, 1 << 62, LAST_ENTRY_MAX]
TIME_S = 60


async def closed_at(cluster: InProcessCluster, last_entry: int) -> int:
    """Return a ledger with ENTRIES entries on three bookies whose metadata name another end."""
    client = cluster.client()
    async with await client.create(ensemble=3, write_quorum=3, ack_quorum=3) as writer:
        await writer.append_many([b"entry"] * ENTRIES)
    ledgers = (await client.context()).ledgers
    stored = await ledgers.read(writer.ledger_id)
    await ledgers.write(writer.ledger_id, replace(stored.metadata, last_entry=last_entry), stored.version)
    return writer.ledger_id


@pytest.mark.parametrize("last_entry", ENDS)
@pytest.mark.parametrize("share", [1.0, 0.3, 0.0])
def test_check_ends_and_finds_what_is_missing(tmp_path: Path, share: float, last_entry: int) -> None:
    async def test(cluster: InProcessCluster) -> None:
        ledger_id = await closed_at(cluster, last_entry)
        context = (await RepairedCluster.of(cluster.client())).context
        check = LedgerCheck(context, share, blames_silent=True, unexpected=UnexpectedErrors())
        found = await asyncio.wait_for(check.check(ledger_id), TIME_S)
        assert found is not None
        assert found.error is None
        lacking = {(lack.copies, lack.first_missing) for lack in found.lacks}
        assert lacking == {(last_entry + 1 - ENTRIES, ENTRIES)}
        assert len(found.lacks) == 3
        assert found.entries == (last_entry + 1 - ENTRIES if share else 1)

    run(tmp_path, test)


def test_repair_ends_with_the_entry_that_no_bookie_has(tmp_path: Path) -> None:
    """Its worker read on for ever, kept every id that was missing, and repaired nothing else."""

    async def test(cluster: InProcessCluster) -> None:
        ledger_id = await closed_at(cluster, 1 << 62)
        repaired = await RepairedCluster.of(cluster.client())
        options = AutoRecoveryOptions(repair=RepairOptions(pause_s=0.01))
        with pytest.raises(NoSuchEntry, match=f"entry {ENTRIES}"):
            await asyncio.wait_for(repair_ledger(repaired, ledger_id, options), TIME_S)

    run(tmp_path, test)


def test_copies_are_located(tmp_path: Path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        ledger_id = await closed_at(cluster, 1 << 62)
        found = await asyncio.wait_for(located(cluster.client(), ledger_id, b""), TIME_S)
        assert [(each["expected"], each["missing"]) for each in found] == [((1 << 62) + 1, (1 << 62) + 1 - ENTRIES)] * 3
        assert found[0]["missing_entries"] == [*range(ENTRIES, ENTRIES + 10)]

    run(tmp_path, test)


def test_holes_are_counted_up_to_the_highest_id() -> None:
    fragment, end_entry = Fragment(0, ("a", "b", "c")), LAST_ENTRY_MAX + 1
    counts = [holes(EntryRuns.none(), fragment, end_entry, slot, 2)[0] for slot in range(3)]
    assert sum(counts) == 2 * end_entry
    listed = EntryRuns(np.array([5, LAST_ENTRY_MAX]), np.array([2, 1]))
    assert holes(listed, fragment, end_entry, 0, 3) == (end_entry - 3, 0)
    assert held_parts([listed], 0, end_entry, 100) == [(5, 7), (LAST_ENTRY_MAX, end_entry)]


def test_there_is_no_part_where_no_list_has_an_entry() -> None:
    assert held_parts([EntryRuns.none()], 0, 100, 1) == []
    assert held_parts([EntryRuns(np.array([3]), np.array([4]))], 7, 100, 1) == []
    assert held_parts([EntryRuns(np.array([3, 5]), np.array([2, 4]))], 4, 8, 1) == [(4, 8)]
