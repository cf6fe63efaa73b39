"""Which entries a check asks which bookie for, and what memory that takes, whatever the size of a ledger."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bkspark.client import LedgerWriter
from bkspark.core.holes import holes
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.striping import write_set
from bkspark.core.writer_options import WriterOptions
from bkspark.ledger.replica_copies import ReplicaReader
from bkspark.wire.entry_lists import EntryRuns
from bookie_service.replication import repair
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.ledger_check import Lack, LedgerCheck, LedgerFindings
from bookie_service.replication.unexpected_errors import UnexpectedErrors
from tests.ledger.in_process import InProcessCluster, run
from tests.planting import changed, replaced

BOOKIES = ("a", "b", "c", "d", "e")


def checked(
    tmp_path: Path, metadata: LedgerMetadata, share: float, lost: dict[str, set[int]]
) -> tuple[LedgerFindings, dict[str, list[int]]]:
    """Return what a check finds when bookies lack these entries, and which it asked each of them for."""
    asked: dict[str, list[int]] = {bookie: [] for bookie in BOOKIES}
    found: list[LedgerFindings] = []

    async def missing(self: ReplicaReader, bookie: str, entry_ids: np.ndarray) -> np.ndarray:
        asked[bookie] += entry_ids.tolist()
        return entry_ids[np.isin(entry_ids, list(lost.get(bookie, ())))]

    async def test(cluster: InProcessCluster) -> None:
        context = (await RepairedCluster.of(cluster.client())).context
        context.random.seed(7)
        ledger_id, _ = await context.ledgers.create(metadata)
        findings = await LedgerCheck(context, share, blames_silent=True, unexpected=UnexpectedErrors()).check(ledger_id)
        assert findings is not None
        found.append(findings)

    with replaced(ReplicaReader, "missing", missing):
        run(tmp_path, test, bookies=0)
    return found[0], asked


def closed(write_quorum: int, last_entry: int, first_entry: int = 0) -> LedgerMetadata:
    fragments = tuple(Fragment(first, BOOKIES) for first in sorted({0, first_entry}))
    return LedgerMetadata(
        5, write_quorum, 2, fragments, state=LedgerState.CLOSED, last_entry=last_entry, length=7 * (last_entry + 1)
    )


@pytest.mark.parametrize("window", [7, 1 << 20])
@pytest.mark.parametrize("write_quorum", [2, 3, 5])
def test_a_whole_check_counts_every_missing_copy_once_whatever_the_windows(
    tmp_path: Path, write_quorum: int, window: int
) -> None:
    chance, last_entry = Random(write_quorum), 40
    holders = {entry: [BOOKIES[slot] for slot in write_set(entry, 5, write_quorum)] for entry in range(last_entry + 1)}
    lost: dict[str, set[int]] = {bookie: set() for bookie in BOOKIES}
    for entry in chance.sample(range(last_entry + 1), 12):
        for bookie in chance.sample(holders[entry], chance.randint(1, write_quorum)):
            lost[bookie].add(entry)
    with changed(repair, "WINDOW_ENTRIES", lambda _: window):
        findings, asked = checked(tmp_path, closed(write_quorum, last_entry), 1.0, lost)
    expected = {bookie: (len(ids), min(ids)) for bookie, ids in lost.items() if ids}
    assert {lack.bookie: (lack.copies, lack.first_missing) for lack in findings.lacks} == expected
    assert findings.entries == sum(all(entry in lost[name] for name in names) for entry, names in holders.items())
    for bookie in BOOKIES:
        assert asked[bookie] == [entry for entry, names in holders.items() if bookie in names]


@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("window", [7, 1 << 20])
def test_every_bookie_is_asked_for_its_first_and_last_entry_of_each_fragment(
    tmp_path: Path, share: float, window: int
) -> None:
    with changed(repair, "WINDOW_ENTRIES", lambda _: window):
        _, asked = checked(tmp_path, closed(2, 59, first_entry=20), share, {})
    for slot, bookie in enumerate(BOOKIES):
        for first, end in ((0, 20), (20, 60)):
            mine = [entry for entry in range(first, end) if slot in write_set(entry, 5, 2)]
            found = [entry for entry in asked[bookie] if first <= entry < end]
            assert {mine[0], mine[-1]} <= set(found) <= set(mine)
            assert len(found) == len(set(found))
            assert (len(found) == 2) == (share == 0)


def test_the_ids_of_a_large_ledger_are_not_in_memory_at_once(tmp_path: Path) -> None:
    """A thousand million entries were 8 GB for each bookie."""
    tracemalloc.start()
    _, asked = checked(tmp_path, closed(3, 1_000_000_000), 0.0, {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(2 <= len(ids) <= 4 for ids in asked.values())
    assert peak < 64 << 20


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2)], ids=["unstriped", "striped"])
def test_a_check_of_the_ends_alone_finds_a_hole_that_a_writer_left_in_the_middle(
    tmp_path: Path, quorums: tuple[int, int, int]
) -> None:
    """A writer without a spare bookie goes on without one that is away, and takes it back: what was acknowledged
    meanwhile has a copy less, and neither the first nor the last entry tells."""
    size, write_quorum, ack_quorum = quorums

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(writer=WriterOptions(replacement_retry_s=0.001))
        writer = await client.create(ensemble=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
        await writer.append_many([b"before"] * 12)
        away = cluster.bookie(writer.metadata.last_fragment.bookies[1])
        await away.stop()
        await writer.append_many([b"without"] * 12)
        await away.start()
        first = 24
        while not await _holds(cluster, away.id, writer, first):
            first = await writer.append(b"taken back")
        await writer.append_many([b"after"] * 12)
        metadata = await writer.close()
        assert [fragment.first_entry for fragment in metadata.fragments] == [0]

        context = (await RepairedCluster.of(cluster.client())).context
        check = LedgerCheck(context, 0.0, blames_silent=False, unexpected=UnexpectedErrors())
        findings = await check.check(writer.ledger_id)
        assert findings is not None
        mine = [entry for entry in range(metadata.last_entry + 1) if 1 in write_set(entry, size, write_quorum)]
        lacking = [entry for entry in mine if not await _holds(cluster, away.id, writer, entry)]
        assert findings.lacks == (Lack(0, away.id, len(lacking), lacking[0]),)
        assert 12 <= lacking[0] < 24

    run(tmp_path, test, bookies=size)


async def _holds(cluster: InProcessCluster, bookie: str, writer: LedgerWriter, entry_id: int) -> bool:
    context = await cluster.client().context()
    held = ReplicaReader(context, writer.ledger_id, writer.metadata, b"")
    return not len(await held.missing(bookie, np.array([entry_id])))


@pytest.mark.parametrize("seed", range(20))
def test_holes_in_a_list_of_entries_are_those_that_brute_force_finds(seed: int) -> None:
    chance = Random(seed)
    size = chance.randint(1, 5)
    write_quorum, slot = chance.randint(1, size), chance.randrange(size)
    fragment, end_entry = Fragment(chance.randrange(20), BOOKIES[:size]), chance.randrange(20, 60)
    wanted = [entry for entry in range(fragment.first_entry, end_entry) if slot in write_set(entry, size, write_quorum)]
    listed = sorted(chance.sample(range(70), chance.randint(0, 70)))
    missing = [entry for entry in wanted if entry not in listed]
    found = holes(EntryRuns.of(np.array(listed, np.int64)), fragment, end_entry, slot, write_quorum)
    assert found == (len(missing), missing[0] if missing else None)
