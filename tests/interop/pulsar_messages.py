"""Messages of Pulsar's own reader, as Topics.java prints them, in the form of rows of a topic."""

from __future__ import annotations

import datetime
from typing import Any


def as_ours(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of Pulsar's reader in the form of a row."""

    def octets(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    version = octets(message["schema_version"])
    return {
        "value": octets(message["value"]),
        "__key": octets(message["key"]),
        "__topic": message["topic"],
        "__messageId": octets(message["id"]),
        "__publishTime": message["publish_time"],
        "__eventTime": message["event_time"] or None,
        "__messageProperties": {bytes.fromhex(k).decode(): bytes.fromhex(v).decode() for k, v in message["properties"]},
        "__sequenceId": message["sequence_id"],
        "__producerName": message["producer"],
        "__orderingKey": octets(message["ordering_key"]),
        "__schemaVersion": int.from_bytes(version) if version else None,
        "__index": message["index"],
    }


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    def milliseconds(value: datetime.datetime | None) -> int | None:
        return None if value is None else round(value.timestamp() * 1000)

    times = {name: milliseconds(row[name]) for name in ("__publishTime", "__eventTime")}
    return {**row, **times, "__messageProperties": dict(row["__messageProperties"])}
