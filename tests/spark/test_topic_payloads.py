"""Payloads of topics whose messages are of several kinds: keys, nulls, schemas that are gone, encryption."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest

from bkspark.errors import ConfigurationError, MalformedPayload
from tests.pulsar.entries import Message, batch, framed, metadata_of, single
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_reads import values

pytestmark = pytest.mark.cluster

BYTES_AS_KEY = {"partition_key_b64_encoded": True}
SEPARATED = {"key.schema.type": "STRING", "value.schema.type": "INT32", "kv.encoding.type": "SEPARATED"}


def version(number: int) -> dict[str, bytes]:
    return {"schema_version": struct.pack(">q", number)}


def test_key_of_a_key_value_message_that_is_not_base64_does_what_mode_says(topic: StoredTopic, read: Callable) -> None:
    topic.schemas(("KEY_VALUE", struct.pack(">ii", 0, 0), SEPARATED))
    good, bad = (Message(b"\0\0\0\1", key, more=BYTES_AS_KEY) for key in ("aw==", "?"))
    ledger = topic.ledger([batch([good, bad, good], **version(0)), single(bad, **version(0))])
    with pytest.raises(MalformedPayload, match=f"message {ledger}:0"):
        read("key string, value int")
    assert values(read("key string, value int", mode="DROPMALFORMED")) == []
    topic.ledger([single(good, **version(0))])
    assert values(read("key string, value int", mode="DROPMALFORMED")) == [1]


def test_separated_key_value_keeps_its_key_where_the_value_is_null_and_may_have_no_key(
    topic: StoredTopic, read: Callable
) -> None:
    """As Pulsar's consumers have it: what is null is the value, which deletes the key."""
    topic.schemas(("KEY_VALUE", struct.pack(">ii", 0, 0), SEPARATED))
    messages = [
        Message(None, "aw==", more=BYTES_AS_KEY),
        Message(b"\0\0\0\2", more={"null_partition_key": True}),
    ]
    topic.ledger([batch(messages, **version(0)), *(single(each, **version(0)) for each in messages)])
    assert [(row["key"], row["value"]) for row in read()] == [("k", None), (None, 2)] * 2


def test_topic_whose_schema_was_deleted_is_read_as_bytes(topic: StoredTopic, read: Callable) -> None:
    """Brokers store a newest version of no type then; what was written with others stays as it is."""
    topic.schemas(("STRING", b"", {}), ("BYTES", b"", {}))
    topic.ledger([single(Message(b"old"), **version(0)), single(Message(b"new")), single(Message(b"1"), **version(1))])
    assert values(read()) == [b"old", b"new", b"1"]


def test_decimals_and_numbers_that_json_has_no_form_for_come_out_exactly(topic: StoredTopic, read: Callable) -> None:
    """Jackson writes a BigDecimal as a number with all its digits, and NaN as a text."""
    fields = [
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}]},
        {"name": "rate", "type": "double"},
        {"name": "part", "type": ["null", "float"]},
    ]
    topic.schemas(("JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode(), {}))
    texts = [
        b'{"price": 12345678901234567890.1234, "rate": "NaN", "part": "-Infinity"}',
        b'{"price": 7, "rate": 0.1}',
    ]
    topic.ledger([batch([Message(text) for text in texts], **version(0))])
    first, second = read()
    assert (str(first["price"]), str(first["rate"]), first["part"]) == (
        "12345678901234567890.1234",
        "nan",
        float("-inf"),
    )
    assert (str(second["price"]), second["rate"], second["part"]) == ("7.0000", 0.1, None)


def test_encrypted_messages_of_a_topic_with_a_schema_need_the_raw_value_format(
    topic: StoredTopic, read: Callable
) -> None:
    topic.schemas(("INT32", b"", {}))
    sealed = metadata_of(encryption_algo="AES/GCM", encryption_param=b"iv", **version(0))
    sealed.encryption_keys.add(key="k1", value=b"secret")
    topic.ledger([single(Message(b"\0\0\0\1"), **version(0)), framed(sealed, b"\xffsealed")])
    with pytest.raises(ConfigurationError, match="valueFormat=raw"):
        read(encrypted="raw")
    assert values(read(encrypted="raw", valueFormat="raw")) == [b"\0\0\0\1", b"\xffsealed"]
    assert values(read(encrypted="skip")) == [1]
