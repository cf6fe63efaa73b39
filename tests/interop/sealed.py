"""Decrypts what Pulsar's producers encrypted, from the columns of a read with encrypted=raw and a private key.

`seal` encrypts in the same way, for entries that tests write without a producer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bkspark.pulsar.compression import NAMES, decompress
from bkspark.pulsar.pulsar_formats_pb2 import MessageMetadata, SingleMessageMetadata

_OAEP = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)


def key_pairs(folder: Path, names: Sequence[str]) -> dict[str, rsa.RSAPrivateKey]:
    """Return private keys by name, and write the public ones into NAME.pem."""
    found = {}
    for name in names:
        found[name] = rsa.generate_private_key(65537, 2048)
        public = found[name].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{name}.pem").write_bytes(public)
    return found


def opened(rows: Sequence[Mapping[str, Any]], name: str, private_key: rsa.RSAPrivateKey) -> list[bytes]:
    """Return the values of the messages that are encrypted in rows, an entry each: in chunks, batched or single.

    Chunks of several messages may alternate. A message has the place of its last chunk.
    """
    found: list[bytes] = []
    chunks: dict[str, list[bytes]] = {}
    for row in rows:
        sealed = row["__encryption"]
        data_key = private_key.decrypt(sealed["dataKeys"][sealed["keys"].index(name)], _OAEP)
        stored = AESGCM(data_key).decrypt(sealed["param"], row["value"], None)
        if sealed["chunks"] is not None:
            parts = chunks.setdefault(sealed["chunkUuid"], [])
            assert sealed["chunk"] == len(parts)
            parts.append(stored)
            if len(parts) < sealed["chunks"]:
                continue
            stored = b"".join(chunks.pop(sealed["chunkUuid"]))
        codec, size = NAMES.index(sealed["compression"]), sealed["uncompressedSize"]
        payload = bytes(decompress(codec, memoryview(stored), size))
        found += _singles(payload) if sealed["messages"] > 1 else [payload]
    assert not chunks
    return found


def seal(metadata: MessageMetadata, payload: bytes, keys: Mapping[str, rsa.RSAPrivateKey], iv: bytes) -> bytes:
    """Return a payload encrypted as a producer does it, and describe that in the metadata. `iv`: 12 bytes."""
    data_key = bytes(range(32))
    for name, private_key in keys.items():
        metadata.encryption_keys.add(key=name, value=private_key.public_key().encrypt(data_key, _OAEP))
    metadata.encryption_param = iv
    return AESGCM(data_key).encrypt(iv, payload, None)


def _singles(payload: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        size = struct.unpack_from(">I", payload, at)[0]
        metadata = SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size + metadata.payload_size
        yield payload[at - metadata.payload_size : at]
