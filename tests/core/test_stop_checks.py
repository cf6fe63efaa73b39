"""May a bookie be stopped? `StopCheck` against the definition, entry by entry, for random small clusters."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest

from bkspark.core.health import AVAILABLE, DOWN, READ_ONLY, BookieFacts, StopCheck
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState

CLUSTERS = 400
"""Clusters for each seed. Each is asked about each of its bookies."""
ENTRIES_AHEAD = 8
"""More entries than an ensemble has bookies: every write set that the last fragment of an open ledger may get."""


@dataclass(frozen=True)
class SmallCluster:
    """A cluster: its bookies, those in maintenance, those whose plan is damaged, and its ledgers.

    ledgers: each with the bookies that are listed as lacking copies of it.
    """

    bookies: tuple[BookieFacts, ...]
    leaving: frozenset[str]
    damaged: frozenset[str]
    ledgers: tuple[tuple[LedgerMetadata, frozenset[str]], ...]


def some(choose: random.Random, names: list[str], most: int) -> frozenset[str]:
    return frozenset(choose.sample(names, choose.randint(0, min(most, len(names)))))


def random_bookie(choose: random.Random, name: str) -> BookieFacts:
    state = choose.choices((AVAILABLE, READ_ONLY, DOWN), (6, 2, 1))[0]
    return BookieFacts(name, state, "no answer" if state != DOWN and choose.random() < 0.1 else "")


def random_ledger(choose: random.Random, names: list[str]) -> LedgerMetadata:
    size = choose.randint(1, min(5, len(names)))
    write_quorum = choose.randint(1, size)
    ack_quorum = choose.randint(1, write_quorum)
    first_entries = sorted({0, *(choose.randint(1, 12) for _ in range(choose.randint(0, 2)))})
    fragments = tuple(Fragment(first, tuple(choose.sample(names, size))) for first in first_entries)
    state = choose.choice(list(LedgerState))
    last_entry = first_entries[-1] + choose.randint(-1, 6) if state is LedgerState.CLOSED else -1
    return LedgerMetadata(size, write_quorum, ack_quorum, fragments, state, last_entry)


def random_cluster(choose: random.Random) -> SmallCluster:
    names = [f"b{number}" for number in range(choose.randint(1, 6))]
    return SmallCluster(
        tuple(random_bookie(choose, name) for name in names),
        some(choose, names, choose.choice((0, 0, 2))),
        some(choose, names, choose.choice((0, 0, 0, 1))),
        tuple((random_ledger(choose, names), some(choose, names, 2)) for _ in range(choose.randint(0, 3))),
    )


def write_sets(metadata: LedgerMetadata) -> list[tuple[frozenset[str], bool]]:
    """Return the bookies of each entry, and whether a recovery may have to ask them for it."""
    found = []
    fragments = metadata.fragments
    end = metadata.last_entry + 1 if metadata.is_closed else fragments[-1].first_entry + ENTRIES_AHEAD
    for entry in range(end):
        fragment = max((each for each in fragments if each.first_entry <= entry), key=lambda each: each.first_entry)
        size = metadata.ensemble_size
        members = frozenset(fragment.bookies[(entry + slot) % size] for slot in range(metadata.write_quorum))
        is_last = fragment is fragments[-1]
        is_asked = metadata.state is LedgerState.IN_RECOVERY or (metadata.state is LedgerState.OPEN and is_last)
        found.append((members, is_asked))
    return found


def reasons_by_definition(cluster: SmallCluster, bookie: str) -> set[str]:
    """Return the codes of docs/operations.md, "Health"."""
    found = set()
    staying = {
        each.id
        for each in cluster.bookies
        if each.serves and each.id != bookie and each.id not in cluster.leaving | cluster.damaged
    }
    if cluster.damaged - {bookie}:
        found.add("unreadable_plans")
    for metadata, lacking in cluster.ledgers:
        of_bookie = [(members, is_asked) for members, is_asked in write_sets(metadata) if bookie in members]
        answering = staying - lacking
        if any(not members & answering for members, _ in of_bookie):
            found.add("last_copy")
        elif any(
            not answering & {*quorum}
            for members, is_asked in of_bookie
            if is_asked
            for quorum in itertools.combinations(members, metadata.ack_quorum)
        ):
            found.add("recovery_quorum")
    writable = sum(each.state == AVAILABLE and each.id in staying for each in cluster.bookies)
    widest = max((metadata.ensemble_size for metadata, _ in cluster.ledgers if not metadata.is_closed), default=0)
    if writable < widest:
        found.add("too_few_bookies")
    return found


@pytest.mark.parametrize("seed", range(4))
def test_bookie_may_be_stopped_exactly_when_each_entry_keeps_what_the_page_says(seed: int) -> None:
    choose = random.Random(seed)
    seen: set[str] = set()
    allowed = 0
    for _ in range(CLUSTERS):
        cluster = random_cluster(choose)
        for bookie in cluster.bookies:
            check = StopCheck(bookie.id, cluster.bookies, cluster.leaving, cluster.damaged)
            for ledger_id, (metadata, lacking) in enumerate(cluster.ledgers):
                check.add(ledger_id, metadata, lacking)
            found = {each.code for each in check.reasons()}
            assert found == reasons_by_definition(cluster, bookie.id), (cluster, bookie.id)
            seen |= found
            allowed += not found
    assert seen == {"last_copy", "recovery_quorum", "too_few_bookies", "unreadable_plans"}
    assert allowed > CLUSTERS / 10
