"""Entry envelopes against the vectors of the interoperability reference, section 11."""

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import DigestMismatch
from bkspark.wire.digest import DigestType, EntryDigest, master_key

HEADER = bytes.fromhex("0000000000000005000000000000000700000000000000060000000000000069")
FIELDS = {
    DigestType.CRC32: "00000000abe06ab3",
    DigestType.CRC32C: "94862487",
    DigestType.MAC: "e6805570f5755008ca3eb91ba509bca1170c7c98",
    DigestType.DUMMY: "",
}
LAC_FIELDS = {
    DigestType.CRC32: "000000004f4fab2f",
    DigestType.CRC32C: "4e206979",
    DigestType.MAC: "df287064120100de088ac1e1594f7e0f2703f6cd",
    DigestType.DUMMY: "",
}


def digest_of(digest_type):
    return EntryDigest(digest_type, b"testPasswd")


def sealed(digest, payloads, first_entry=7, lac=6, length_before=100):
    return digest.seal(EntryBatch.of(payloads, 5, first_entry), lac, length_before)


def opened(digest, items, ledger_id=5, first_entry=7):
    starts, ends = items.offsets[:-1] + 4, items.offsets[1:]
    ids = np.arange(first_entry, first_entry + len(starts))
    return digest.open_entries(items.buffer, starts, ends, ledger_id, ids)


@pytest.mark.parametrize(
    ("password", "key"),
    [
        (b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"),
        (b"testPasswd", "2e2a69d870796fe05c0e77c52a29ce5e4222b758"),
    ],
)
def test_master_key_matches_vector(password, key):
    assert master_key(password).hex() == key


@pytest.mark.parametrize("digest_type", DigestType)
def test_sealed_entry_matches_vector(digest_type):
    items = sealed(digest_of(digest_type), [b"hello"])
    assert bytes(items.buffer[4:]) == HEADER + bytes.fromhex(FIELDS[digest_type]) + b"hello"
    assert int.from_bytes(items.buffer[:4], "big") == len(items.buffer) - 4


@pytest.mark.parametrize("digest_type", DigestType)
def test_lac_packet_matches_vector(digest_type):
    packet = digest_of(digest_type).seal_lac(5, 6)
    assert packet[:16].hex() == "00000000000000050000000000000006"
    assert packet[16:].hex() == LAC_FIELDS[digest_type]


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("sizes", [[], [0], [5] * 300, [0, 1, 2, 1000, 3], list(range(400))])
def test_batches_of_any_sizes_open_to_what_was_sealed(digest_type, sizes):
    if not sizes:
        return
    generator = np.random.default_rng(7)
    payloads = [generator.bytes(size) for size in sizes]
    digest = digest_of(digest_type)
    result = opened(digest, sealed(digest, payloads))
    assert result.bad is None
    assert list(map(bytes, result.payloads())) == payloads
    assert result.lengths.tolist() == (100 + np.cumsum(sizes)).tolist()
    assert set(result.lacs.tolist()) == {6}
    assert list(result.to_batch(5, 7)) == payloads


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.MAC])
def test_every_single_bit_flip_is_noticed_and_entries_before_it_are_kept(digest_type):
    digest = digest_of(digest_type)
    items = sealed(digest, [b"first", b"hello"])
    for bit in range(8 * (int(items.offsets[1]) + 4), 8 * len(items.buffer)):
        flipped = bytearray(items.buffer)
        flipped[bit // 8] ^= 1 << bit % 8
        result = digest.open_entries(flipped, items.offsets[:-1] + 4, items.offsets[1:], 5, np.array([7, 8]))
        assert result.bad is not None
        assert result.bad[0] == 1
        assert list(map(bytes, result.payloads())) == [b"first"]


@pytest.mark.parametrize("digest_type", DigestType)
def test_entry_of_other_ids_is_refused(digest_type):
    digest = digest_of(digest_type)
    items = sealed(digest, [b"hello"])
    assert opened(digest, items, ledger_id=6).bad is not None
    assert opened(digest, items, first_entry=8).bad is not None


@pytest.mark.parametrize("digest_type", DigestType)
def test_every_truncation_is_refused(digest_type):
    digest = digest_of(digest_type)
    entry = bytes(sealed(digest, [b"hello"]).buffer[4:])
    end = len(entry) if digest_type is not DigestType.DUMMY else 32
    for length in range(end):
        with pytest.raises(DigestMismatch):
            digest.open_entry(entry[:length], 5, 7)


def test_last_entry_answer_is_accepted_with_the_id_it_carries():
    digest = digest_of(DigestType.CRC32C)
    entry = bytes(sealed(digest, [b"hello"]).buffer[4:])
    opened_entry = digest.open_entry(entry, 5, None)
    assert (opened_entry.entry_id, opened_entry.lac, opened_entry.length) == (7, 6, 105)
    assert opened_entry.payload == b"hello"


def test_wrong_password_fails_a_mac():
    entry = bytes(sealed(digest_of(DigestType.MAC), [b"hello"]).buffer[4:])
    with pytest.raises(DigestMismatch):
        EntryDigest(DigestType.MAC, b"other").open_entry(entry, 5, 7)


@pytest.mark.parametrize("digest_type", DigestType)
def test_entry_sealed_alone_has_the_bytes_it_has_in_a_batch(digest_type):
    digest = digest_of(digest_type)
    payloads = [b"", b"x", b"hello" * 200, bytes(range(256))]
    together = sealed(digest, payloads)
    length = 100
    for i, payload in enumerate(payloads):
        alone = digest.seal(EntryBatch.of([b"skipped", payload], 5, 6 + i).slice(1, 2), 6, length)
        length += len(payload)
        assert alone.first_entry == 7 + i
        assert alone.offsets.tolist() == [0, len(alone.buffer)]
        assert alone.buffer == together.buffer[together.offsets[i] : together.offsets[i + 1]]


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("sizes", [[0] * 40, [7] * 40 + [0] * 40 + [9] * 40, [0]])
def test_many_empty_payloads_are_entries_like_others(digest_type, sizes):
    digest = EntryDigest(digest_type, b"")
    payloads = [b"x" * size for size in sizes]
    items = digest.seal(EntryBatch.of(payloads, 5, 0), -1, 0)
    buffer = bytearray(items.buffer)
    opened = digest.open_entries(buffer, items.offsets[:-1] + 4, items.offsets[1:], 5, np.arange(len(sizes)))
    assert list(opened.to_batch(5, 0)) == payloads
    buffer[:] = bytes(len(buffer))
    assert opened.lengths.tolist() == np.cumsum(sizes).tolist()
