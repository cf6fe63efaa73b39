"""Base64 keys are decoded as Java's `Base64.getDecoder` does, which Pulsar's client uses."""

from __future__ import annotations

import base64
import random

import pyarrow as pa
import pytest

from bkspark.pulsar.base64_values import from_base64


def test_bytes_of_every_size_come_back_and_null_stays_null() -> None:
    chance = random.Random(7)
    keys = [None if size % 7 == 3 else chance.randbytes(size) for size in [*range(40), 0, 1000, 2, 1]]
    texts = [None if key is None else base64.b64encode(key) for key in keys]
    assert from_base64(pa.array(texts, pa.binary())).to_pylist() == keys
    assert from_base64(pa.array([b"xxxx", *texts, b"yyyy"], pa.binary())[1:-1]).to_pylist() == keys
    assert from_base64(pa.array([], pa.binary())).to_pylist() == []
    assert from_base64(pa.array([None, b""], pa.binary())).to_pylist() == [None, b""]


@pytest.mark.parametrize(
    "text", [b"a", b"ab", b"abc", b"ab c", b"a===", b"=abc", b"ab=c", b"ab-_", b"abc\n", b"\xff\xfe\xfd\xfc"]
)
def test_what_is_not_base64_is_refused(text: bytes) -> None:
    for texts in ([text], [b"QUJD", text, b"QUI="], [text, None]):
        with pytest.raises(ValueError, match="not Base64"):
            from_base64(pa.array(texts, pa.binary()))
