"""Which entries a bookie lacks, against counting them one by one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from bkspark.core.copies import stored_entries
from bkspark.core.holes import holes
from bkspark.core.metadata import Fragment
from bkspark.core.striping import write_set
from bkspark.wire.entry_lists import EntryRuns


@pytest.mark.parametrize("seed", range(6))
def test_holes_are_those_that_counting_finds(seed: int) -> None:
    source = Random(seed)
    for _ in range(60):
        size = source.randrange(1, 5)
        write_quorum = source.randrange(1, size + 1)
        slot, first, end = source.randrange(size), source.randrange(6), source.randrange(25)
        fragment = Fragment(first, tuple(f"b{number}" for number in range(size)))
        wanted = [entry for entry in range(first, end) if slot in write_set(entry, size, write_quorum)]
        assert stored_entries(fragment, end, slot, write_quorum).tolist() == wanted
        listed = np.array([entry for entry in range(30) if source.random() < 0.7])
        missing = [entry for entry in wanted if entry not in listed]
        expected = (len(missing), missing[0] if missing else None)
        assert holes(EntryRuns.of(listed), fragment, end, slot, write_quorum) == expected


def test_bookie_that_lists_nothing_lacks_everything_and_an_empty_fragment_nothing() -> None:
    fragment = Fragment(10, ("a", "b", "c"))
    assert holes(EntryRuns.none(), fragment, 13, 1, 3) == (3, 10)
    assert holes(EntryRuns.none(), fragment, 13, 1, 1) == (1, 10)
    for end in (0, 9, 10):
        assert holes(EntryRuns.none(), fragment, end, 1, 3) == (0, None)
