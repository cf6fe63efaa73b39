"""Runs of entries are checked together (`bkspark.wire.crc`): what a check of each entry alone notices is noticed."""

import itertools

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.wire.crc import GAP_BYTES_MAX, RUN_ENTRIES_MIN
from bkspark.wire.digest import HEADER_BYTES, DigestType, EntryDigest

LEDGER, FIRST = 5, 250
CRCS = [DigestType.CRC32, DigestType.CRC32C]
COUNT = RUN_ENTRIES_MIN + 6


def stored_entries(digest, sizes, head=b""):
    """Return a buffer of sealed entries with `head` in each gap, where each begins, and where each ends."""
    generator = np.random.default_rng(11)
    items = digest.seal(EntryBatch.of([generator.bytes(size) for size in sizes], LEDGER, FIRST), 249, 100, head)
    return bytearray(items.buffer), items.offsets[:-1] + 4 + len(head), items.offsets[1:]


def opened(digest, buffer, starts, ends):
    return digest.open_entries(buffer, starts, ends, LEDGER, np.arange(FIRST, FIRST + len(starts)))


def first_bad_alone(digest, buffer, starts, ends):
    """The first entry that does not pass when each is opened by itself; None: all pass."""
    for i in range(len(starts)):
        ids = np.array([FIRST + i])
        if digest.open_entries(buffer, starts[i : i + 1], ends[i : i + 1], LEDGER, ids).bad is not None:
            return i
    return None


@pytest.mark.parametrize("digest_type", CRCS)
@pytest.mark.parametrize("at", [0, 1, COUNT // 2, COUNT - 1])
@pytest.mark.parametrize("sizes", [[9] * COUNT, [i * 5 % 13 for i in range(COUNT)]], ids=["equal", "mixed"])
def test_every_bit_flip_of_one_entry_in_a_run_is_noticed_and_the_entry_is_named(digest_type, at, sizes):
    digest = EntryDigest(digest_type, b"")
    buffer, starts, ends = stored_entries(digest, sizes)
    for bit in range(8 * int(starts[at]), 8 * int(ends[at])):
        buffer[bit // 8] ^= 1 << bit % 8
        found = opened(digest, buffer, starts, ends)
        assert found.bad is not None
        assert (found.bad[0], len(found)) == (at, at)
        buffer[bit // 8] ^= 1 << bit % 8
    assert opened(digest, buffer, starts, ends).bad is None


@pytest.mark.parametrize("digest_type", CRCS)
def test_two_flips_in_neighbouring_entries_do_not_cancel(digest_type):
    """A chain of CRCs over payloads alone would take the digest of one for the beginning of the next payload."""
    digest = EntryDigest(digest_type, b"")
    buffer, starts, ends = stored_entries(digest, [40] * COUNT)
    at = COUNT // 2
    front = HEADER_BYTES + digest.digest_bytes
    low, end = int(starts[at]), int(ends[at])
    following = int(starts[at + 1])
    # Stored digest or payload of one entry with header or payload of the next, bit for bit, at every distance.
    one = range(8 * (low + HEADER_BYTES), 8 * end, 19)
    other = range(8 * (following + 16), 8 * (following + front + 8), 7)
    for first, second in itertools.product(one, other):
        for bit in (first, second):
            buffer[bit // 8] ^= 1 << bit % 8
        found = opened(digest, buffer, starts, ends)
        assert found.bad is not None
        assert found.bad[0] == at
        for bit in (first, second):
            buffer[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("seed", range(6))
def test_damage_of_any_kind_is_found_where_entries_checked_alone_find_it(digest_type, seed):
    generator = np.random.default_rng(seed)
    digest = EntryDigest(digest_type, b"secret")
    head = bytes(generator.bytes(int(generator.integers(0, GAP_BYTES_MAX + 4))))
    size = int(generator.integers(0, 50))
    sizes = [size] * int(generator.integers(60, 150)) + [size + 1] * int(generator.integers(0, 90)) + [3, 4, 3]
    if seed % 2:
        generator.shuffle(sizes)
    buffer, starts, ends = stored_entries(digest, sizes, head)
    for _ in range(12):
        damaged = bytearray(buffer)
        for place in generator.integers(0, len(buffer), int(generator.integers(0, 4))).tolist():
            damaged[place : place + 8] = generator.bytes(min(8, len(buffer) - place))
        found = opened(digest, damaged, starts, ends)
        assert opened(digest, bytes(damaged), starts, ends).bad == found.bad
        alone = first_bad_alone(digest, damaged, starts, ends)
        assert (None if found.bad is None else found.bad[0]) == alone


@pytest.mark.parametrize("digest_type", CRCS)
def test_what_lies_between_entries_does_not_count(digest_type):
    digest = EntryDigest(digest_type, b"")
    buffer, starts, ends = stored_entries(digest, [20] * COUNT, head=bytes(16))
    for start in starts[1:].tolist():
        buffer[start - 16 : start] = np.random.default_rng(start).bytes(16)
    assert opened(digest, buffer, starts, ends).bad is None


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("digest_type", DigestType)
def test_a_buffer_is_as_it_was_once_its_entries_are_checked(digest_type, is_damaged):
    digest = EntryDigest(digest_type, b"")
    buffer, starts, ends = stored_entries(digest, [20, 0, 7] * COUNT, head=b"between")
    buffer[-1] ^= is_damaged
    before = bytes(buffer)
    assert len(opened(digest, buffer, starts, ends)) == len(starts) - (is_damaged and digest.digest_bytes > 0)
    assert buffer == before


def test_upper_half_of_a_crc32_must_be_zero_in_a_run_too():
    digest = EntryDigest(DigestType.CRC32, b"")
    buffer, starts, ends = stored_entries(digest, [20] * COUNT)
    buffer[int(starts[3]) + HEADER_BYTES] = 1
    assert opened(digest, buffer, starts, ends).bad[0] == 3


def test_whole_entries_of_a_run_are_handed_out_as_they_are_stored():
    buffer, starts, ends = stored_entries(EntryDigest(DigestType.CRC32C, b""), [20] * COUNT + [7])
    found = opened(EntryDigest(DigestType.CRC32C, b"", gives_stored=True), buffer, starts, ends)
    assert list(found.to_batch(LEDGER, FIRST)) == [bytes(buffer[a:b]) for a, b in zip(starts, ends)]
