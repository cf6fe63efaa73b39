"""What is read of a store that lacks its last writes is what it would have with them."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from bookie_service.storage.io.key_values import Changes
from bookie_service.storage.io.unsynced_writes import UnsyncedWrites

ROUNDS = 40


def random_key(random: Random) -> bytes:
    return bytes(random.choices(b"abc", k=random.randint(1, 3)))


def random_write(random: Random) -> Changes:
    puts = [(random_key(random), b"%d" % random.randrange(1000)) for _ in range(random.randrange(4))]
    removed = []
    for _ in range(random.randrange(3)):
        first, end = sorted((random_key(random), random_key(random)))
        removed.append((first, end if first < end else first + b"\0"))
    return puts, removed


def written(stored: Mapping[bytes, bytes], writes: list[Changes]) -> dict[bytes, bytes]:
    values = dict(stored)
    for puts, removed in writes:
        values = {key: value for key, value in values.items() if not any(a <= key < b for a, b in removed)}
        values.update(puts)
    return values


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_reads_of_a_store_without_its_last_writes_find_them(seed: int) -> None:
    random = Random(seed)
    stored = written({}, [random_write(random) for _ in range(5)])
    writes = [random_write(random) for _ in range(random.randrange(6))]
    expected, lacking = written(stored, writes), UnsyncedWrites(writes)
    every = sorted({random_key(random) for _ in range(30)} | stored.keys() | expected.keys())
    assert lacking.get(every, [stored.get(key) for key in every]) == [expected.get(key) for key in every]
    for first, end in [(b"a", b"d"), *((random_key(random), random_key(random)) for _ in range(10))]:
        within = sorted(key for key in expected if first <= key < end)
        assert lacking.keys(first, end, sorted(key for key in stored if first <= key < end)) == within
        last = lacking.last(first, end)
        assert last is None or last == (last[0], expected[last[0]])
    for key in stored:
        began = lacking.removed_from(key)
        assert began is None or began <= key
        assert (began is not None) == any(a <= key < b for _, removed in writes for a, b in removed)
