"""The format of encrypted ledgers: AES-256-GCM with a key for each ledger, stored wrapped in its metadata. PURE.

Only payloads are encrypted. Envelope, digest and protocol are those of every ledger, so bookies, recovery, autorecovery
and Apache's peers handle such ledgers as any others. Integers are big-endian.

**Entry.** The payload of a stored entry, which its digest covers, is

    ciphertext   as many bytes as the clear payload
    tag          16 bytes

    key          the ledger key, 32 bytes
    AAD          16 bytes: i64 ledger id, i64 entry id
    nonce        the last 12 bytes of the AAD: u32 ledger id modulo 2^32, i64 entry id

An entry that was altered, or moved to another entry id or ledger, does not open.

**No nonce repeats.** The writer that creates a ledger draws the ledger key at random, wraps it into the metadata that
it creates, and is the only one that ever seals with it: no other client adds entries to the ledger. In the ledger an
entry id is given once (`EntrySealer` enforces that), and it is in the nonce. What is sent again, to a further bookie or
after a failure, are the sealed bytes. Recovery and autorecovery copy sealed bytes and have no key.

**Record.** Custom metadata of the ledger hold, under RECORD_KEY, ASCII JSON:

    {"version": 1, "cipher": "AES-256-GCM", "keyId": "2026-11", "wrappedKey": "BASE64"}

`wrappedKey` is the ledger key, wrapped by AES key wrap (RFC 3394, 40 bytes) with the key-encryption key `keyId`. Key
wrap needs no nonce, and detects a wrong key.

**Key file.** Lines `KEYID KEY`: an id of 1 to 64 of `A-Z a-z 0-9 . _ -`, and a key-encryption key, 32 bytes in base64.
The last line is the newest key: new ledgers use it, and those before it open older ledgers. Empty lines and lines that
begin with `#` do not count.

    2026-10 q1gK5m0bQ8nC0nJm3yTR3Ne1uS2dXxS4mVxQ1b3fY6A=
    2026-11 Zk1xq8g0mCwJ6l9P0l9yqS0m3o2rB7H8d1f4c5v6b7k=
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, DecryptionFailed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

RECORD_KEY = "bkspark.encryption"
KEY_BYTES = 32
TAG_BYTES = 16
"""Bytes that encryption adds to a payload."""
KEYS_MAX = 1000
"""Keys in a file."""
RECORD_BYTES_MAX = 4096
_VERSION, _CIPHER = 1, "AES-256-GCM"
_WRAPPED_BYTES = KEY_BYTES + 8
_AAD_BYTES, _NONCE_AT = 16, 4
_IDS = np.dtype([("ledger", ">i8"), ("entry", ">i8")])
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class KeyRing:
    """The key-encryption keys of a key file."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)

    @classmethod
    def parse(cls, content: bytes, shown: str) -> KeyRing:
        """Return the keys of a key file.

        Args:
            shown: what messages call the file. They never show a line: a wrong one may be a key.

        Raises:
            ConfigurationError: a line is not an id and a key, an id or a key comes twice, or there is no key.
        """
        keys: dict[str, bytes] = {}
        for number, line in enumerate(content.split(b"\n"), 1):
            words = line.split()
            if not words or words[0].startswith(b"#"):
                continue
            key_id = words[0].decode("ascii", "replace")
            key = _key(words[1]) if len(words) == 2 else None
            if key is None or not _KEY_ID.fullmatch(key_id):
                raise ConfigurationError(
                    f"{shown}: line {number} is not a key id (1 to 64 of A-Z a-z 0-9 . _ -), a blank and {KEY_BYTES} "
                    f"bytes in base64: make one with openssl rand -base64 {KEY_BYTES}"
                )
            if key_id in keys or key in keys.values():
                raise ConfigurationError(f"{shown}: line {number} repeats an id or a key of a line before it")
            keys[key_id] = key
        if not 0 < len(keys) <= KEYS_MAX:
            raise ConfigurationError(f"{shown}: the file has {len(keys)} keys, and must have 1 to {KEYS_MAX}")
        return cls(keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)})"

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    @property
    def newest(self) -> str:
        """The id of the key that new ledgers use."""
        return next(reversed(self._keys))

    def wrap(self, ledger_key: bytes) -> bytes:
        """Return the record of a new ledger: its key, wrapped with the newest key."""
        _check_library()
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        wrapped = aes_key_wrap(self._keys[self.newest], ledger_key)
        record = {
            "version": _VERSION,
            "cipher": _CIPHER,
            "keyId": self.newest,
            "wrappedKey": base64.b64encode(wrapped).decode(),
        }
        return json.dumps(record).encode()

    def unwrap(self, record: EncryptionRecord, shown: str) -> bytes:
        """Return the key of a ledger.

        Args:
            shown: what messages call the file of this ring.

        Raises:
            DecryptionFailed: the key is not in the ring, or the ring has another key under the same id.
        """
        key = self._keys.get(record.key_id)
        if key is None:
            raise DecryptionFailed(
                f"ledger {record.ledger_id} is encrypted with key {record.key_id!r}, which {shown} does not have (its "
                f"keys are {', '.join(map(repr, self._keys))}): add that key to the file",
                ledger_id=record.ledger_id,
            )
        _check_library()
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        try:
            return aes_key_unwrap(key, record.wrapped_key)
        except InvalidUnwrap:
            raise DecryptionFailed(
                f"ledger {record.ledger_id} is encrypted with another key {record.key_id!r} than {shown} has under "
                "that id: give the key that it was written with",
                ledger_id=record.ledger_id,
            ) from None


def _key(text: bytes) -> bytes | None:
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return key if len(key) == KEY_BYTES else None


def _check_library() -> None:
    """Raise ConfigurationError if the package is missing, which only some installations have."""
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigurationError(
            "encrypted ledgers need the package cryptography: pip install 'bkspark[tls]'"
        ) from None


class EncryptionRecord:
    """The encryption record in a ledger's metadata: the wrapped ledger key, and the id of the key that wraps it."""

    def __init__(self, ledger_id: int, key_id: str, wrapped_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.key_id = key_id
        """The id, in a key file, of the key that wraps `wrapped_key`."""
        self.wrapped_key = wrapped_key

    @classmethod
    def of(cls, ledger_id: int, custom_metadata: Mapping[str, bytes]) -> EncryptionRecord | None:
        """Return the record in a ledger's custom metadata; None: the ledger is not encrypted.

        Raises:
            DecryptionFailed: the record is damaged, or of a version or cipher that is not known here.
        """
        stored = custom_metadata.get(RECORD_KEY)
        if stored is None:
            return None
        try:
            if len(stored) > RECORD_BYTES_MAX:
                raise ValueError
            fields = json.loads(stored)
            version, cipher, key_id = fields["version"], fields["cipher"], fields["keyId"]
            wrapped = base64.b64decode(fields["wrappedKey"], validate=True)
            is_right = (version, cipher) == (_VERSION, _CIPHER) and len(wrapped) == _WRAPPED_BYTES
            if not is_right or not _KEY_ID.fullmatch(key_id):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DecryptionFailed(
                f"ledger {ledger_id} is encrypted, but its custom metadata {RECORD_KEY!r} are not a record of version "
                f"{_VERSION} with {_CIPHER}: a newer version wrote it, or it is damaged",
                ledger_id=ledger_id,
            ) from None
        return cls(ledger_id, key_id, wrapped)


def _cipher(key: bytes) -> AESGCM:
    _check_library()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _octets(batch: EntryBatch) -> memoryview:
    # The items of Arrow's buffers are signed, which the library refuses.
    return memoryview(batch.buffer).cast("B")


def _aads(ledger_id: int, first_entry: int, count: int) -> list[bytes]:
    """Return the AADs of consecutive entries; each ends with the entry's nonce."""
    ids = np.empty(count, _IDS)
    ids["ledger"] = ledger_id
    # A range that ended beyond the last id of 64 bits would be rounded.
    ids["entry"] = np.arange(count) + first_entry
    octets = ids.tobytes()
    return [octets[at : at + _AAD_BYTES] for at in range(0, _AAD_BYTES * count, _AAD_BYTES)]


class EntrySealer:
    """Encrypts the entries of one ledger, each id once, in the order of ids.

    Args:
        key: the ledger key, drawn at random for this ledger alone.
    """

    def __init__(self, ledger_id: int, key: bytes) -> None:
        self._ledger_id = ledger_id
        self._cipher = _cipher(key)
        self._next_entry = 0
        """The first id that was not sealed. Only grows: no id is sealed twice."""

    def seal(self, batch: EntryBatch) -> EntryBatch:
        """Return the entries with sealed payloads, in a new buffer.

        Args:
            batch: ledger id and first entry id must be set.

        Raises:
            RuntimeError: an id was sealed before: the same nonce with other bytes would disclose both.
        """
        aads = self._take(batch.ledger_id, batch.first_entry, len(batch))
        data, bounds, seal = _octets(batch), batch.offsets.tolist(), self._cipher.encrypt
        # The library takes one entry at a time. Parts that are joined cost less than views of a buffer to write into:
        # 1.4 us for an entry of 100 bytes instead of 2.4, and as much for one of 1 KiB.
        parts = [seal(aad[_NONCE_AT:], data[low:high], aad) for aad, (low, high) in zip(aads, pairwise(bounds))]
        offsets = batch.offsets - batch.offsets[0] + TAG_BYTES * np.arange(len(batch) + 1)
        return EntryBatch(b"".join(parts), offsets, batch.ledger_id, batch.first_entry)

    def seal_single(self, payload: bytes, entry_id: int) -> bytes:
        """Return one sealed payload. Raises as `seal`."""
        (aad,) = self._take(self._ledger_id, entry_id, 1)
        return self._cipher.encrypt(aad[_NONCE_AT:], payload, aad)

    def _take(self, ledger_id: int, first_entry: int, count: int) -> list[bytes]:
        """Return the AADs of entries that are sealed now, and never again."""
        if ledger_id != self._ledger_id or first_entry < self._next_entry:
            raise RuntimeError(f"entry {first_entry} of ledger {ledger_id} cannot be sealed: its nonce was used before")
        self._next_entry = first_entry + count
        return _aads(ledger_id, first_entry, count)


class EntryOpener:
    """Decrypts the entries of one ledger."""

    def __init__(self, ledger_id: int, key: bytes) -> None:
        self._ledger_id = ledger_id
        self._cipher = _cipher(key)

    def open(self, batch: EntryBatch) -> EntryBatch:
        """Return the entries with clear payloads, in a new buffer.

        Raises:
            DecryptionFailed: an entry is not what the ledger's writer sealed under this id.
        """
        from cryptography.exceptions import InvalidTag

        aads = _aads(self._ledger_id, batch.first_entry, len(batch))
        sizes = np.diff(batch.offsets) - TAG_BYTES
        if (sizes < 0).any():
            raise self._altered(batch.first_entry + int(np.argmax(sizes < 0)))
        data, bounds, unseal = _octets(batch), batch.offsets.tolist(), self._cipher.decrypt
        parts: list[bytes] = []
        try:
            # `extend` keeps the entries opened before an error: their number shows which entry failed.
            parts.extend(
                unseal(aad[_NONCE_AT:], data[low:high], aad) for aad, (low, high) in zip(aads, pairwise(bounds))
            )
        except InvalidTag:
            raise self._altered(batch.first_entry + len(parts)) from None
        offsets = batch.offsets - batch.offsets[0] - TAG_BYTES * np.arange(len(batch) + 1)
        return EntryBatch(b"".join(parts), offsets, batch.ledger_id, batch.first_entry)

    def _altered(self, entry_id: int) -> DecryptionFailed:
        return DecryptionFailed(
            f"ledger {self._ledger_id} entry {entry_id} is not what its writer encrypted: it was altered, moved from "
            "another place, or written in clear",
            ledger_id=self._ledger_id,
            entry_id=entry_id,
        )
