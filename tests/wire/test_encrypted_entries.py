"""The format of encrypted ledgers, as the docstring of `bkspark.wire.encrypted_entries` specifies it."""

from __future__ import annotations

import base64
import json

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, DecryptionFailed
from bkspark.ids import ENTRY_ID_MAX, LEDGER_ID_MAX
from bkspark.wire.encrypted_entries import (
    KEY_BYTES,
    KEYS_MAX,
    RECORD_KEY,
    TAG_BYTES,
    EncryptionRecord,
    EntryOpener,
    EntrySealer,
    KeyRing,
)

LEDGER_KEY = bytes(range(32))
OLD, NEW = b"o" * KEY_BYTES, b"n" * KEY_BYTES
PAYLOADS = [b"", b"one", bytes(1000), b"x" * 70_000, b""]
LEDGERS = [0, 5, (1 << 32) + 5, LEDGER_ID_MAX]


def batch(payloads: list[bytes], ledger_id: int = 5, first_entry: int = 7) -> EntryBatch:
    return EntryBatch.of(payloads, ledger_id, first_entry)


def line(key_id: str, key: bytes) -> str:
    return f"{key_id} {base64.b64encode(key).decode()}\n"


def ring(text: str) -> KeyRing:
    return KeyRing.parse(text.encode(), "key file /keys")


# ---- entries ----


@pytest.mark.parametrize("ledger_id", LEDGERS)
def test_a_stored_payload_is_what_the_specification_says(ledger_id: int) -> None:
    """Key, nonce and AAD put together here from the docstring's table."""
    sealed = EntrySealer(ledger_id, LEDGER_KEY).seal(batch(PAYLOADS, ledger_id))
    for entry_id, (clear, stored) in enumerate(zip(PAYLOADS, sealed, strict=True), 7):
        nonce = (ledger_id % (1 << 32)).to_bytes(4, "big") + entry_id.to_bytes(8, "big")
        aad = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")
        assert stored == AESGCM(LEDGER_KEY).encrypt(nonce, clear, aad)
        assert len(stored) == len(clear) + TAG_BYTES


def test_the_format_does_not_change() -> None:
    sealed = EntrySealer(5, LEDGER_KEY).seal_single(b"golden", 7)
    assert sealed.hex() == "6eacdd3b06e3720c8b39b50b74365a8bb7d0c153976b"


@pytest.mark.parametrize("ledger_id", LEDGERS)
def test_sealed_entries_open_again_from_any_part_of_a_batch(ledger_id: int) -> None:
    sealed = EntrySealer(ledger_id, LEDGER_KEY).seal(batch(PAYLOADS, ledger_id))
    assert (sealed.ledger_id, sealed.first_entry) == (ledger_id, 7)
    opener = EntryOpener(ledger_id, LEDGER_KEY)
    for start in range(len(PAYLOADS)):
        for end in range(start, len(PAYLOADS) + 1):
            opened = opener.open(sealed.slice(start, end))
            assert list(opened) == PAYLOADS[start:end]
            assert (opened.ledger_id, opened.first_entry) == (ledger_id, 7 + start)


def test_a_batch_that_is_a_part_of_a_buffer_is_sealed_alone() -> None:
    whole = batch([b"before", b"one", b"two", b"after"], first_entry=0)
    sealed = EntrySealer(5, LEDGER_KEY).seal(whole.slice(1, 3))
    assert len(sealed.buffer) == 6 + 2 * TAG_BYTES
    assert list(EntryOpener(5, LEDGER_KEY).open(sealed)) == [b"one", b"two"]


def test_single_entries_are_sealed_as_in_batches() -> None:
    single = EntrySealer(5, LEDGER_KEY)
    expected = list(EntrySealer(5, LEDGER_KEY).seal(batch(PAYLOADS)))
    assert [single.seal_single(payload, 7 + i) for i, payload in enumerate(PAYLOADS)] == expected


def test_no_entry_id_is_sealed_twice_or_for_another_ledger() -> None:
    """The nonce has the id: two payloads under one nonce would disclose both, and the key of the tags."""
    sealer = EntrySealer(5, LEDGER_KEY)
    sealer.seal(batch([b"a", b"b"]))
    for again in (7, 8):
        with pytest.raises(RuntimeError, match=f"entry {again} of ledger 5"):
            sealer.seal_single(b"other", again)
        with pytest.raises(RuntimeError):
            sealer.seal(batch([b"other"], first_entry=again))
    with pytest.raises(RuntimeError):
        sealer.seal(batch([b"other"], ledger_id=6, first_entry=9))
    sealer.seal_single(b"c", 9)


def test_nonces_of_all_entries_and_of_ledgers_nearby_differ() -> None:
    from bkspark.wire import encrypted_entries

    seen = set()
    for ledger_id in (0, 1, 5):
        for first in (0, (1 << 32) - 2, ENTRY_ID_MAX - 2):
            seen |= {aad[4:] for aad in encrypted_entries._aads(ledger_id, first, 3)}
    assert len(seen) == 27


@pytest.mark.parametrize("at", [0, 2, 3, 18])
def test_an_altered_entry_does_not_open_and_is_named(at: int) -> None:
    sealed = EntrySealer(5, LEDGER_KEY).seal(batch([b"first", b"one", b"two"]))
    stored = bytearray(sealed.buffer)
    stored[int(sealed.offsets[1]) + at] ^= 1
    with pytest.raises(DecryptionFailed, match="entry 8 is not what its writer") as caught:
        EntryOpener(5, LEDGER_KEY).open(EntryBatch(stored, sealed.offsets, 5, 7))
    assert (caught.value.ledger_id, caught.value.entry_id) == (5, 8)


def test_an_entry_under_another_id_or_ledger_or_key_does_not_open() -> None:
    sealed = EntrySealer(5, LEDGER_KEY).seal(batch([b"one", b"two"]))
    moved = EntryBatch(sealed.buffer, sealed.offsets, 5, 8)
    for opener, found in (
        (EntryOpener(5, LEDGER_KEY), moved),
        (EntryOpener((1 << 32) + 5, LEDGER_KEY), sealed),  # the nonce is the same: the AAD differs
        (EntryOpener(5, OLD), sealed),
    ):
        with pytest.raises(DecryptionFailed):
            opener.open(found)


@pytest.mark.parametrize("payload", [b"", b"clear", b"x" * (TAG_BYTES - 1), b"y" * 40])
def test_an_entry_that_was_written_in_clear_does_not_open(payload: bytes) -> None:
    stored = [*EntrySealer(5, LEDGER_KEY).seal(batch([b"one"])), payload]
    with pytest.raises(DecryptionFailed) as caught:
        EntryOpener(5, LEDGER_KEY).open(batch(stored))
    assert caught.value.entry_id == 8


def test_read_only_and_writable_buffers_are_taken() -> None:
    sealed = EntrySealer(5, LEDGER_KEY).seal(batch([b"one", b"two"]))
    for buffer in (bytes(sealed.buffer), bytearray(sealed.buffer), memoryview(bytes(sealed.buffer))):
        assert list(EntryOpener(5, LEDGER_KEY).open(EntryBatch(buffer, sealed.offsets, 5, 7))) == [b"one", b"two"]
    assert np.array_equal(sealed.offsets, [0, 19, 38])
    of_arrow = EntryBatch.from_arrow(pa.array([b"one", b"two"]))
    numbered = EntryBatch(of_arrow.buffer, of_arrow.offsets, 5, 7)
    assert bytes(EntrySealer(5, LEDGER_KEY).seal(numbered).buffer) == bytes(sealed.buffer)


# ---- keys and records ----


def test_a_record_has_the_wrapped_key_and_the_id_of_the_newest_one() -> None:
    keys = ring(f"# rotated\n{line('2026-10', OLD)}\n  {line('2026-11', NEW)}")
    assert keys.newest == "2026-11"
    record = json.loads(keys.wrap(LEDGER_KEY))
    assert {**record, "wrappedKey": ""} == {
        "version": 1,
        "cipher": "AES-256-GCM",
        "keyId": "2026-11",
        "wrappedKey": "",
    }
    assert aes_key_unwrap(NEW, base64.b64decode(record["wrappedKey"])) == LEDGER_KEY


def test_a_ring_opens_what_older_keys_wrapped() -> None:
    before = ring(line("2026-10", OLD)).wrap(LEDGER_KEY)
    after = ring(line("2026-10", OLD) + line("2026-11", NEW))
    record = EncryptionRecord.of(5, {RECORD_KEY: before, "other": b""})
    assert record is not None
    assert after.unwrap(record, "key file /keys") == LEDGER_KEY
    assert EncryptionRecord.of(5, {"other": b""}) is None


def test_a_missing_and_a_wrong_key_are_named_with_file_and_id() -> None:
    record = EncryptionRecord.of(5, {RECORD_KEY: ring(line("2026-11", NEW)).wrap(LEDGER_KEY)})
    assert record is not None
    missing = r"ledger 5 .* key '2026-11', which key file /keys does not have \(its keys are '2026-10'\)"
    with pytest.raises(DecryptionFailed, match=missing):
        ring(line("2026-10", OLD)).unwrap(record, "key file /keys")
    with pytest.raises(DecryptionFailed, match=r"ledger 5 .* another key '2026-11' than key file /keys"):
        ring(line("2026-11", OLD)).unwrap(record, "key file /keys")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "2026-11\n",
        "2026-11 short\n",
        f"2026-11 {base64.b64encode(b'x' * 31).decode()}\n",
        f"2026/11 {base64.b64encode(NEW).decode()}\n",
        f"{'k' * 65} {base64.b64encode(NEW).decode()}\n",
        f"2026-11 {base64.b64encode(NEW).decode()} more\n",
        line("a", NEW) + line("a", OLD),
        line("a", NEW) + line("b", NEW),
        "\xe9 " + base64.b64encode(NEW).decode(),
        "".join(line(f"k{i}", i.to_bytes(KEY_BYTES, "big")) for i in range(KEYS_MAX + 1)),
    ],
)
def test_a_wrong_key_file_is_refused_without_showing_a_key(text: str) -> None:
    with pytest.raises(ConfigurationError, match="key file /keys") as caught:
        ring(text)
    assert base64.b64encode(NEW).decode() not in str(caught.value)
    assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"{}",
        b"[1]",
        b"null",
        b"\xff",
        b"[" * 4000,
        b'{"version": 2, "cipher": "AES-256-GCM", "keyId": "a", "wrappedKey": ""}',
        b'{"version": 1, "cipher": "AES-128-GCM", "keyId": "a", "wrappedKey": ""}',
        b'{"version": 1, "cipher": "AES-256-GCM", "keyId": 5, "wrappedKey": "' + base64.b64encode(bytes(40)) + b'"}',
        b'{"version": 1, "cipher": "AES-256-GCM", "keyId": "a", "wrappedKey": "AAAA"}',
        b'{"version": 1, "cipher": "AES-256-GCM", "keyId": "a", "wrappedKey": 7}',
        b"x" * 5000,
    ],
)
def test_a_damaged_record_is_one_error_and_never_a_clear_ledger(stored: bytes) -> None:
    with pytest.raises(DecryptionFailed, match=r"ledger 5 is encrypted, but its custom metadata"):
        EncryptionRecord.of(5, {RECORD_KEY: stored})


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"version": "1"},
        {"cipher": "AES-128-GCM"},
        {"cipher": "aes-256-gcm"},
        {"keyId": ""},
        {"keyId": "a b"},
        {"keyId": "a\n"},
        {"keyId": "a" * 65},
        {"wrappedKey": base64.b64encode(bytes(39)).decode()},
        {"wrappedKey": base64.b64encode(bytes(41)).decode()},
        {"wrappedKey": base64.b64encode(bytes(40)).decode() + "\n"},
    ],
)
def test_a_record_with_one_wrong_field_is_not_used(wrong: dict[str, object]) -> None:
    """A later version may mean something else by the same fields."""
    right = {
        "version": 1,
        "cipher": "AES-256-GCM",
        "keyId": "a",
        "wrappedKey": base64.b64encode(bytes(40)).decode(),
    }
    found = EncryptionRecord.of(5, {RECORD_KEY: json.dumps(right).encode()})
    assert found is not None
    assert (found.key_id, found.wrapped_key) == ("a", bytes(40))
    with pytest.raises(DecryptionFailed, match=r"ledger 5 is encrypted, but its custom metadata"):
        EncryptionRecord.of(5, {RECORD_KEY: json.dumps({**right, **wrong}).encode()})


def test_no_repr_shows_a_key() -> None:
    keys = ring(line("2026-11", NEW))
    for made in (keys, EntrySealer(5, NEW), EntryOpener(5, NEW)):
        assert "nnnn" not in repr(made)
        assert base64.b64encode(NEW).decode()[:20] not in repr(made)
    assert repr(keys) == "KeyRing(2026-11)"
