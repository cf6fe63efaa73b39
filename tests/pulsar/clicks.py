"""The topic that notebooks/pulsar.ipynb reads, as a broker would have stored it, on a cluster without one."""

from __future__ import annotations

import json

from bkspark.blocking import Client
from bkspark.pulsar import pulsar_formats_pb2 as formats
from tests.pulsar.entries import PUBLISHED_MS, Message, batch
from tests.pulsar.stored import StoredTopic

TOPIC = "persistent://public/default/clicks"
CLICKS = 600
CLICKS_A_BATCH = 20
PAGES = ("/", "/about", "/cart", "/pay")
SCHEMA = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "page", "type": ["null", "string"]}, {"name": "user", "type": "int"}],
}
VERSION_0 = {"schema_version": bytes(8)}


def store(client: Client) -> StoredTopic:
    """Store the topic: batches of clicks as JSON in three ledgers, and a subscription that has read the first."""
    topic = StoredTopic(client, TOPIC)
    topic.schemas(("JSON", json.dumps(SCHEMA).encode(), {}))
    batches = [
        batch([_click(number) for number in range(first, first + CLICKS_A_BATCH)], first, 1, **VERSION_0)
        for first in range(0, CLICKS, CLICKS_A_BATCH)
    ]
    third = len(batches) // 3
    ids = [topic.ledger(batches[at : at + third]) for at in range(0, len(batches), third)]
    # Closed: everything is in the node.
    topic.subscription(
        "reports", formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=ids[0], markDeleteEntryId=third - 1)
    )
    return topic


def _click(number: int) -> Message:
    user = number * 7 % 13
    value = json.dumps({"page": PAGES[(number * number + user) % len(PAGES)], "user": user}).encode()
    return Message(value, f"user {user}", event_time=PUBLISHED_MS + 6000 * number)
