"""Decrypts what Pulsar's producers encrypted, from the columns of a read with encrypted=raw and a private key."""

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
from bkspark.pulsar.pulsar_formats_pb2 import SingleMessageMetadata

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
    """Return the values of the messages that are encrypted in rows, an entry each: in chunks, batched or single."""
    found: list[bytes] = []
    parts = b""
    for row in rows:
        sealed = row["__encryption"]
        data_key = private_key.decrypt(sealed["dataKeys"][sealed["keys"].index(name)], _OAEP)
        parts += AESGCM(data_key).decrypt(sealed["param"], row["value"], None)
        codec, size = NAMES.index(sealed["compression"]), sealed["uncompressedSize"]
        try:
            payload = bytes(decompress(codec, memoryview(parts), size))
        except ValueError:
            continue  # more chunks follow
        if sealed["messages"] > 1:
            found += _singles(payload)
        elif len(payload) == size:
            found.append(payload)
        else:
            continue
        parts = b""
    return found


def _singles(payload: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        size = struct.unpack_from(">I", payload, at)[0]
        metadata = SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size + metadata.payload_size
        yield payload[at - metadata.payload_size : at]
