"""The nodes of registered readers of a log (consumers), whose unread ledgers retention keeps. PURE.

The node of a consumer names the entry that it reads next:

    /bkspark/logs/<name>/consumers/<consumer>
    `{"expiry_ms":604800000,"position":[3,12,5],"reader":"00000000000000aa","version":1}`

`position` is [ordinal, ledger, entry] (positions.py). The registration ends `expiry_ms` after the node was last
written, by the metadata store's clock and by that of the process that looks. `reader` is a token of the process that
reads under the name: one process at a time.

Registering a consumer writes its node and the head in one transaction, which raises the head's version. A change that
removes ledgers reads the consumers after the head, and checks in its transaction that the expired ones are unchanged.
A registration therefore either comes before the removal, which is then decided again, or after it, and fails if its
position is gone. Moving a consumer forward does not change the head, because it needs less from then on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from bkspark.errors import MetadataFormat
from bkspark.ids import ENTRY_ID_MAX, is_log_name
from bkspark.log.positions import NO_LEDGER, Position
from bkspark.log.retention import AGE_MS_MAX

VERSION = 1
CONSUMERS = "consumers"


@dataclass(frozen=True, slots=True)
class Consumer:
    """A registered reader, as in its node. `written_ms`: when the node was last written; `version`: the node's."""

    name: str
    position: Position
    expiry_ms: int
    """The registration ends so long after `written_ms`."""
    reader: str
    written_ms: int = 0
    version: int = 0

    @property
    def expires_ms(self) -> int:
        """When the registration ends unless it is renewed."""
        return self.written_ms + self.expiry_ms

    def is_expired(self, now_ms: int) -> bool:
        return now_ms >= self.expires_ms


def is_consumer_name(name: object) -> bool:
    """Return whether a registered reader can have this name: the rule for names of logs."""
    return isinstance(name, str) and is_log_name(name)


def encode_consumer(consumer: Consumer) -> bytes:
    """Return the node."""
    place = consumer.position
    members = {
        "expiry_ms": consumer.expiry_ms,
        "position": [place.ordinal, place.ledger_id, place.entry_id],
        "reader": consumer.reader,
        "version": VERSION,
    }
    return json.dumps(members, sort_keys=True, separators=(",", ":")).encode("ascii")


def decode_consumer(data: bytes, path: str, written_ms: int, version: int) -> Consumer:
    """Return a registered reader. Raises MetadataFormat, which names `path`."""
    try:
        members = json.loads(data)
        if not isinstance(members, dict) or members.get("version") != VERSION:
            raise ValueError(f"it is not a JSON object of version {VERSION}: use a newer bkspark")
        if sorted(members) != ["expiry_ms", "position", "reader", "version"]:
            raise ValueError(f"its members are {sorted(members)}")
        numbers = [members["expiry_ms"], *members["position"]]
        if len(numbers) != 4 or any(type(each) is not int or not NO_LEDGER <= each <= ENTRY_ID_MAX for each in numbers):
            raise ValueError("its expiry or position is not of whole numbers")
        if not 1 <= numbers[0] <= AGE_MS_MAX:
            raise ValueError(f"its expiry is {numbers[0]} ms, not 1 to {AGE_MS_MAX}")
        if not isinstance(members["reader"], str):
            raise ValueError("its reader is not text")
    except (ValueError, TypeError, RecursionError) as error:
        raise MetadataFormat(
            f"metadata node {path} is not a registered reader: {error}; if no reader needs it, end its registration "
            "with `bkspark log consumers LOG --remove NAME`"
        ) from None
    name = path.rpartition("/")[2]
    return Consumer(name, Position(*numbers[1:]), numbers[0], members["reader"], written_ms, version)
