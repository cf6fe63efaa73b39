"""The list of a ledger's entries: docs/protocol.md §2.9."""

from __future__ import annotations

import random
import struct
import tracemalloc

import numpy as np
import pytest

from bkspark.errors import ProtocolError
from bkspark.wire.entry_lists import GROUP_BYTES, HEAD_BYTES, RUNS_MAX, EntryRuns, decode_entry_list, encode_entry_list


def entry_list(*groups: tuple[int, int, int, int], version: int = 0, count: int | None = None) -> bytes:
    head = struct.pack(">ii", version, len(groups) if count is None else count).ljust(64, b"\0")
    return head + b"".join(struct.pack(">qqii", *group) for group in groups)


def test_groups_are_runs_at_equal_distances():
    runs = decode_entry_list(entry_list((2, 11, 2, 3), (100, 100, 5, 0), (0, 0, 1, 0)))
    assert runs.starts.tolist() == [0, 2, 5, 8, 11, 100]
    assert runs.sizes.tolist() == [1, 2, 2, 2, 2, 5]
    assert runs.entries == 14
    assert [entry for entry in range(110) if entry in runs] == [0, 2, 3, 5, 6, 8, 9, 11, 12, 100, 101, 102, 103, 104]


def test_without_groups_there_are_no_entries():
    assert decode_entry_list(entry_list()).entries == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        entry_list()[:-1],
        entry_list(version=1),
        entry_list((0, 0, 1, 0), count=2),
        entry_list(count=-1),
        entry_list((5, 4, 1, 1)),
        entry_list((-1, -1, 1, 0)),
        entry_list((0, 0, 0, 0)),
        entry_list((0, 10, 1, 0)),
        entry_list((0, 10, 1, 3)),
        entry_list((0, 9, 4, 3)),
        entry_list((0, 0, 5, 0), (4, 4, 1, 0)),
        entry_list((0, (1 << 62), 1, 2)),
        # What overflows 64 bits, or names the highest id, which no entry has.
        entry_list((0, 2**63 - 1, 1, 1)),
        entry_list((2**63 - 1, 2**63 - 1, 1, 0)),
        entry_list((0, 2**63 - 1, 1, 1), (2**62, 2**62, 1, 0)),
        entry_list((2**63 - 1, 2**63 - 1, 2, 0)),
        entry_list((1, 2**63 - 1, 2, 2)),
        entry_list((2**63 - 1, 2**63 - 1, 1, 0), (2**63 - 1, 2**63 - 1, 1, 0)),
        entry_list((0, 2**63 - 2, 1, 2), (1, 2**63 - 1, 1, 2)),
        entry_list(*[(at << 40, (at << 40) + 4 * 10**5, 1, 2) for at in range(10)]),
    ],
)
def test_text_that_is_not_a_list_is_refused(data):
    with pytest.raises(ProtocolError):
        decode_entry_list(data)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_encoded_is_decoded(seed):
    chance = random.Random(seed)
    ids = {chance.randrange(1 + seed * 30) for _ in range(seed * 10)}
    for _ in range(seed % 4):
        first, size, period = chance.randrange(5000), chance.randint(1, 4), chance.randint(4, 9)
        ids |= {first + period * i + j for i in range(chance.randint(1, 50)) for j in range(size)}
    wanted = np.array(sorted(ids), np.int64)
    data = encode_entry_list(EntryRuns.of(wanted), 10_000)
    assert data is not None
    runs = decode_entry_list(data)
    found = [start + i for start, size in zip(runs.starts.tolist(), runs.sizes.tolist()) for i in range(size)]
    assert found == wanted.tolist()
    assert runs.entries == len(ids)


def test_striped_entries_are_one_group_and_more_groups_than_allowed_are_not_a_list():
    striped = EntryRuns.of(np.arange(3000)[np.arange(3000) % 3 != 1])
    data = encode_entry_list(striped, 3)
    # The first entry is alone: it lacks the one before it.
    assert data == entry_list((0, 0, 1, 0), (2, 2996, 2, 3), (2999, 2999, 1, 0))
    assert len(data) == HEAD_BYTES + 3 * GROUP_BYTES
    assert encode_entry_list(striped, 2) is None


def test_more_runs_than_the_ledger_can_have_are_not_a_list():
    """24 bytes may describe millions of runs, which would take a second and hundreds of megabytes."""
    data = entry_list((0, 2997, 1, 3))
    assert len(decode_entry_list(data, runs_max=1000).starts) == 1000
    with pytest.raises(ProtocolError, match="999 runs"):
        decode_entry_list(data, runs_max=999)
    with pytest.raises(ProtocolError, match="500000 runs"):
        decode_entry_list(entry_list((0, 20_000_000, 1, 2)))


@pytest.mark.parametrize("distance", [(1 << 31) - 1, 1 << 31, 1 << 40])
def test_entries_of_a_sparse_ledger_far_apart_are_listed(distance):
    """A group has 32 bits for a distance; ids have 40."""
    runs = EntryRuns(np.array([0, distance, 2 * distance, 2 * distance + 5]), np.array([1, 1, 1, 2]))
    data = encode_entry_list(runs, 10)
    found = decode_entry_list(data)
    assert (found.starts.tolist(), found.sizes.tolist()) == (runs.starts.tolist(), runs.sizes.tolist())
    expected_groups = 2 if distance < 1 << 31 else 4
    assert len(data) == HEAD_BYTES + expected_groups * GROUP_BYTES


@pytest.mark.parametrize("size", [(1 << 31) - 1, 1 << 31, (1 << 33) + 1])
def test_runs_longer_than_a_group_can_say_are_listed_in_pieces(size):
    runs = EntryRuns(np.array([3, size + 100]), np.array([size, 7]))
    found = decode_entry_list(encode_entry_list(runs, 10))
    assert (found.joined().starts.tolist(), found.joined().sizes.tolist()) == ([3, size + 100], [size, 7])


def test_runs_that_meet_are_joined():
    runs = EntryRuns(np.array([0, 5, 8, 20]), np.array([5, 3, 1, 2])).joined()
    assert (runs.starts.tolist(), runs.sizes.tolist()) == ([0, 20], [9, 2])
    assert EntryRuns.none().joined().entries == 0


CORNERS = [0, 1, 2, 3, 2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32, 2**40 - 1, 2**62, 2**63 - 4, 2**63 - 3, 2**63 - 2]


def test_any_two_ids_can_be_listed():
    """Entries 0 and 2^31 of one ledger made packing fail, and that ended the bookie."""
    for one in CORNERS:
        for other in CORNERS:
            ids = np.array(sorted({one, other}), np.int64)
            data = encode_entry_list(EntryRuns.of(ids), 2)
            assert data is not None
            runs = decode_entry_list(data).joined()
            wanted = EntryRuns.of(ids)
            assert (runs.starts.tolist(), runs.sizes.tolist()) == (wanted.starts.tolist(), wanted.sizes.tolist())


@pytest.mark.parametrize("seed", range(40))
def test_any_runs_of_63_bit_ids_can_be_listed(seed):
    chance = random.Random(seed)
    bounds = sorted(
        {chance.choice([chance.choice(CORNERS), chance.randrange(2 ** chance.randrange(1, 64))]) for _ in range(30)}
    )
    starts, ends = np.array(bounds[: len(bounds) // 2 * 2], np.int64).reshape(-1, 2).T
    wanted = EntryRuns(starts, ends - starts)
    data = encode_entry_list(wanted, 2 * len(starts))
    assert data is not None
    runs = decode_entry_list(data)
    joined = runs.joined()
    assert (joined.starts.tolist(), joined.sizes.tolist()) == (starts.tolist(), (ends - starts).tolist())
    assert runs.entries == sum((ends - starts).tolist())


def test_long_run_that_takes_more_groups_than_allowed_is_not_a_list():
    assert encode_entry_list(EntryRuns(np.array([0]), np.array([2**31])), 1) is None
    assert encode_entry_list(EntryRuns(np.array([0]), np.array([2**31])), 2) == entry_list(
        (0, 0, 2**31 - 1, 0), (2**31 - 1, 2**31 - 1, 1, 0)
    )


def test_run_of_all_ids_is_one_run_again():
    """Sequences that meet are not unrolled: this list would have 2^32 of them."""
    data = encode_entry_list(EntryRuns(np.array([0]), np.array([2**63 - 1])), 10)
    assert data is not None
    assert len(decode_entry_list(data).starts) <= 2
    assert decode_entry_list(data).entries == 2**63 - 1


def test_a_few_bytes_do_not_become_much_memory():
    """88 bytes made a client take 495 MiB."""
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="more than 500000 runs"):
            decode_entry_list(entry_list((0, 2 * (10**7 - 1), 1, 2)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        assert len(decode_entry_list(entry_list((0, 2 * (RUNS_MAX - 1), 1, 2))).starts) == RUNS_MAX
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_next_entry_of_a_range_is_found_in_runs() -> None:
    ids = [0, 3, 4, 5, 9, 30, 31]
    runs = EntryRuns.of(np.array(ids))
    for first in range(35):
        for end in range(first + 1, 36):
            assert runs.next_from(first, end) == min((each for each in ids if first <= each < end), default=end)
    assert EntryRuns.none().next_from(2, 7) == 7
