"""Message ids as users write them. PURE.

12:3          ledger and entry
12:3:2        and partition, as Java prints an id; -1 for a topic without partitions
12:3:2:4      and the place in the batch
12:-1         before the first entry of a ledger
12:1:-1;12:3:-1   a message in chunks: those of its first and last chunk; the latter is its id
[8, 12, …]    the bytes of MessageId.toByteArray, signed or not, as pulsar-spark has them in its offsets

Java's MessageId.earliest and MessageId.latest are ids, too: -1:-1, and the greatest numbers there are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from bkspark.ids import ENTRY_ID_MAX, LEDGER_ID_MAX
from bkspark.pulsar.pulsar_formats_pb2 import MessageIdData

_TEXT = re.compile(r"(?:[-:\d]{1,60};)?(-1(?=:-1)|\d{1,19}):(-1|\d{1,19})(?::(-?\d{1,9}))?(?::(-?\d{1,9}))?")
_UINT64_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """A message: its entry, and its index in the batch; -1 if it is not of a batch, or if all of the entry is meant.

    `partition`: the partition that the ledger belongs to; -1 if the id does not say so.
    """

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    """The message's place in its batch, from 0."""
    partition: int = -1

    @classmethod
    def parse(cls, value: Any) -> MessageId:
        """Return the id that a text or a list of bytes is.

        Raises:
            ValueError: it is not a message id.
        """
        if isinstance(value, str):
            found = _TEXT.fullmatch(value.strip())
            if found is None:
                raise ValueError("is not a message id such as 12:3 or 12:3:-1:4 (ledger:entry:partition:batch index)")
            return cls._checked(int(found[1]), int(found[2]), int(found[4] or -1), int(found[3] or -1))
        if isinstance(value, Sequence) and not isinstance(value, (bytes, str)):
            if not all(type(each) is int and -128 <= each <= 255 for each in value):
                raise ValueError("is not a list of bytes")
            value = bytes(each & 0xFF for each in value)
        if not isinstance(value, bytes):
            raise ValueError("is neither the text nor the bytes of a message id")
        try:
            data = MessageIdData.FromString(value)
        except DecodeError:
            raise ValueError("has bytes that are not a MessageId") from None
        if not data.HasField("ledgerId") or not data.HasField("entryId"):
            raise ValueError("has bytes that are not a MessageId")
        ledger_id, entry_id = (-1 if each == _UINT64_MAX else each for each in (data.ledgerId, data.entryId))
        return cls._checked(ledger_id, entry_id, data.batch_index, data.partition)

    @classmethod
    def _checked(cls, ledger_id: int, entry_id: int, batch_index: int, partition: int) -> MessageId:
        is_possible = ledger_id <= LEDGER_ID_MAX and entry_id <= ENTRY_ID_MAX and min(batch_index, partition) >= -1
        if not is_possible or (ledger_id < 0 <= entry_id):
            raise ValueError("names an impossible ledger, entry, partition or place")
        return cls(ledger_id, entry_id, batch_index, partition)

    @property
    def entry(self) -> str:
        """The text of the id without its partition and batch index."""
        return f"{self.ledger_id}:{self.entry_id}"

    def __str__(self) -> str:
        if self.batch_index >= 0:
            return f"{self.entry}:{self.partition}:{self.batch_index}"
        return self.entry if self.partition < 0 else f"{self.entry}:{self.partition}"


EARLIEST_MESSAGE = MessageId(-1, -1)
LATEST_MESSAGE = MessageId(LEDGER_ID_MAX, ENTRY_ID_MAX)
"""What Java's `MessageId.earliest` and `MessageId.latest` are."""
