"""Key updates of TLS 1.3 (RFC 8446, 4.6.3) that demand an answer: OpenSSL's clients in Python cannot send them."""

from __future__ import annotations

import struct
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

SUITE = "TLS_AES_256_GCM_SHA384"
_HASH, _KEY_BYTES, _NONCE_BYTES = hashes.SHA384(), 32, 12
_TAG_BYTES = 16
_APPLICATION_DATA, _HANDSHAKE = 0x17, 0x16
_KEY_UPDATE_REQUESTED = bytes((24, 0, 0, 1, 1))


class KeyUpdates:
    """The records of a client after its handshake, from its first record on."""

    def __init__(self, key_log: Path) -> None:
        """`key_log`: where the client's context wrote its secrets."""
        lines = [line.split() for line in key_log.read_text().splitlines()]
        (secret,) = (words[2] for words in lines if words[0] == "CLIENT_TRAFFIC_SECRET_0")
        self._secret = bytes.fromhex(secret)

    def next(self) -> bytes:
        """Return the record of one key update; what follows it has new keys."""
        header = struct.pack(">BHH", _APPLICATION_DATA, 0x303, len(_KEY_UPDATE_REQUESTED) + 1 + _TAG_BYTES)
        # It is the first record with these keys, so its nonce is the initial one.
        key, nonce = self._expand(b"key", _KEY_BYTES), self._expand(b"iv", _NONCE_BYTES)
        sealed = AESGCM(key).encrypt(nonce, _KEY_UPDATE_REQUESTED + bytes((_HANDSHAKE,)), header)
        self._secret = self._expand(b"traffic upd", _HASH.digest_size)
        return header + sealed

    def _expand(self, label: bytes, size: int) -> bytes:
        """HKDF-Expand-Label (RFC 8446, 7.1) without a context."""
        name = b"tls13 " + label
        return HKDFExpand(_HASH, size, struct.pack(">HB", size, len(name)) + name + b"\0").derive(self._secret)
