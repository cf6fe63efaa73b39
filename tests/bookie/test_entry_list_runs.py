"""How the list of a ledger's entries is put together from memory and the index (docs/protocol.md §2.9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.entry_lists import EntryRuns, decode_entry_list
from bkspark.wire.status import Status
from bkspark.wire.v3 import StatusCode
from bookie_service.engine.turns import ENDLESS
from bookie_service.network import v3_entry_list
from bookie_service.network.v3_entry_list import AnswerGroups, EntryList, split_runs, union_of_runs
from tests.bookie.v3_peer import request
from tests.planting import changed

LEDGER = 5
CHUNK = 16
"""How many positions a chunk of the index has here."""


class Lists:
    """The lists that wait; whatever comes is taken."""

    def add(self, listing: EntryList) -> bool:
        return True


class Client:
    """A connection that records what it is sent."""

    def __init__(self) -> None:
        self.answers: list[protocol.GetListOfEntriesOfLedgerResponse] = []

    def send(self, parts: Sequence[bytes]) -> None:
        (frame,) = parts
        self.answers.append(protocol.Response.FromString(frame[4:]).getListOfEntriesOfLedgerResponse)


class HeldIndex:
    """An index with these entries, chunk by chunk."""

    def __init__(self, entry_ids: Sequence[int]) -> None:
        self._entry_ids = entry_ids
        self.is_closed = False
        self.is_damaged = False

    def extents(self, ledger_id: int) -> Iterator[tuple[int, np.ndarray]]:
        assert ledger_id == LEDGER
        for first in sorted({entry_id // CHUNK * CHUNK for entry_id in self._entry_ids}):
            if self.is_damaged:
                raise StorageDamaged("a page of the index is damaged")
            yield first, np.isin(np.arange(first, first + CHUNK), self._entry_ids).astype(np.int64)

    def close(self) -> None:
        self.is_closed = True


class Held:
    """What a list may see of a bookie that holds one ledger."""

    def __init__(self, waiting: Sequence[Sequence[int]] = (), indexed: Sequence[int] = ()) -> None:
        self._waiting = [np.array(ids, np.int64) for ids in waiting]
        self.index = HeldIndex(indexed)
        self.is_limbo = False

    def ledger(self, ledger_id: int) -> Any:
        return SimpleNamespace(ledger_id=ledger_id) if ledger_id == LEDGER else None

    def is_in_limbo(self, ledger_id: int) -> bool:
        return self.is_limbo

    def absence(self, ledger_id: int, ledger: object) -> Status:
        return Status.EUNKNOWNLEDGERSTATE if self.is_limbo else Status.ENOLEDGER

    def waiting_entries(self, ledger: object) -> list[np.ndarray]:
        return self._waiting

    def index_view(self, open_files: int) -> HeldIndex:
        return self.index


def begun(held: Held, ledger_id: int = LEDGER) -> tuple[EntryList, Client]:
    """Return a list that has come to its turn, and its client."""
    client = Client()
    asked = request(protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, 7, ledgerId=ledger_id)
    listing = EntryList(Lists(), client, asked, lambda _: None)  # type: ignore[arg-type]
    listing.proceed(held, None, ENDLESS)  # type: ignore[arg-type]
    return listing, client


def answer_of(held: Held) -> protocol.GetListOfEntriesOfLedgerResponse:
    listing, client = begun(held)
    steps = listing.begin()
    assert steps is not None
    for _ in steps:
        continue
    listing.finish()
    (answer,) = client.answers
    return answer


def ids_in(runs: EntryRuns) -> list[int]:
    return [entry_id for start, size in zip(runs.starts, runs.sizes) for entry_id in range(start, start + size)]


def runs_of(choice: Random, most: int) -> EntryRuns:
    return EntryRuns.of(np.array(sorted(choice.sample(range(most), choice.randint(0, most))), np.int64))


@pytest.mark.parametrize("seed", range(30))
def test_list_has_the_entries_of_memory_and_of_the_index_once(seed: int) -> None:
    choice = Random(seed)
    waiting = [sorted(choice.sample(range(100), choice.randint(0, 30))) for _ in range(choice.randint(0, 3))]
    indexed = sorted(choice.sample(range(100), choice.randint(0, 60)))
    with (
        changed(v3_entry_list, "_RUNS_PER_CHUNK", lambda _: choice.choice([1, 4, 1000])),
        changed(v3_entry_list, "_IDS_PER_STEP", lambda _: choice.choice([1, 7, 1000])),
    ):
        held = Held(waiting, indexed)
        answer = answer_of(held)
    assert answer.status == StatusCode.EOK
    expected = sorted({*indexed, *(entry_id for ids in waiting for entry_id in ids)})
    assert ids_in(decode_entry_list(answer.availabilityOfEntriesOfLedger)) == expected
    assert held.index.is_closed


@pytest.mark.parametrize("seed", range(30))
def test_union_of_runs_has_every_entry_once_in_as_few_runs_as_possible(seed: int) -> None:
    choice = Random(seed)
    one, other = runs_of(choice, 12), runs_of(choice, 12)
    both = union_of_runs(one, other)
    expected = EntryRuns.of(np.array(sorted({*ids_in(one), *ids_in(other)}), np.int64))
    assert (both.starts.tolist(), both.sizes.tolist()) == (expected.starts.tolist(), expected.sizes.tolist())


@pytest.mark.parametrize("border", range(13))
def test_split_runs_are_those_below_the_border_and_those_from_it_on(border: int) -> None:
    for seed in range(20):
        runs = runs_of(Random(seed), 12)
        low, high = split_runs(runs, border)
        assert ids_in(low) == [entry_id for entry_id in ids_in(runs) if entry_id < border]
        assert ids_in(high) == [entry_id for entry_id in ids_in(runs) if entry_id >= border]
        assert all(size > 0 for part in (low, high) for size in part.sizes), "a run without entries is no group"


def test_run_that_goes_on_in_the_next_chunk_is_one_group() -> None:
    with changed(v3_entry_list, "_RUNS_PER_CHUNK", lambda _: 2):
        groups = AnswerGroups()
        for entry_ids in ([0, 5, 6, 9], [10, 11], [12, 20]):
            groups.add(EntryRuns.of(np.array(entry_ids)))
    listed = groups.encoded()
    assert listed is not None
    runs = decode_entry_list(listed)
    assert list(zip(runs.starts.tolist(), runs.sizes.tolist())) == [(0, 1), (5, 2), (9, 4), (20, 1)]


UNEVEN = [[1, 4], [13, 14, 15], [40], [101, 102], [200, 201, 202, 203]]
"""Chunks of entries that need five groups."""


@pytest.mark.parametrize("groups_max", [4, 5])
def test_list_with_too_many_groups_for_a_frame_is_an_error_and_is_not_shortened(
    groups_max: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An entry that is missing in a list counts as lost."""
    with (
        changed(v3_entry_list, "_GROUPS_MAX", lambda _: groups_max),
        changed(v3_entry_list, "_RUNS_PER_CHUNK", lambda _: 1),
    ):
        answer = answer_of(Held(indexed=[entry_id for ids in UNEVEN for entry_id in ids]))
    assert answer.status == (StatusCode.EOK if groups_max == 5 else StatusCode.EIO)
    assert answer.HasField("availabilityOfEntriesOfLedger") == (groups_max == 5)
    assert ("would not fit into a frame" in caplog.text) == (groups_max == 4)


def test_ledger_in_limbo_is_not_listed() -> None:
    """docs/protocol.md §6.10: it may have lost entries here, and what is missing in a list counts as lost."""
    held = Held(indexed=[0, 1])
    held.is_limbo = True
    listing, client = begun(held)
    assert [answer.status for answer in client.answers] == [StatusCode.EUNKNOWNLEDGERSTATE]
    assert len(listing) == 0


def test_ledger_that_comes_into_limbo_while_its_list_waits_is_not_listed() -> None:
    held = Held(indexed=[0, 1])
    listing, client = begun(held)
    assert client.answers == []
    held.is_limbo = True
    assert listing.begin() is None
    assert [answer.status for answer in client.answers] == [StatusCode.EUNKNOWNLEDGERSTATE]


def test_unknown_ledger_is_not_an_empty_list() -> None:
    _, client = begun(Held(), ledger_id=77)
    assert [answer.status for answer in client.answers] == [StatusCode.ENOLEDGER]


@pytest.mark.parametrize("how", ["damaged", "given up"])
def test_index_is_closed_when_a_list_ends_before_it_is_complete(how: str) -> None:
    held = Held(indexed=[0, 1, CHUNK, 2 * CHUNK])
    listing, client = begun(held)
    steps = listing.begin()
    assert isinstance(steps, Iterator)
    next(steps)
    if how == "damaged":
        held.index.is_damaged = True
        with pytest.raises(StorageDamaged):
            next(steps)
    else:
        del steps
    assert held.index.is_closed
    assert client.answers == []
