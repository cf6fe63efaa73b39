"""Hostile frames for a bookie: V2's and V3's, well-formed with odd values, and damaged ones.

Well-formed ones keep their connection alive, so that later ones are processed, too. Ledgers are few, as each new one is
a file; entry ids are anything.
"""

from __future__ import annotations

import random
import struct

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from bkspark.wire.framing import LENGTH_BYTES

KEY = master_key(b"")
LEDGERS = 24
"""Ledgers 1 to this number are attacked; honest users have others."""
NEW_LEDGER_SHARE = 0.0005
CORNERS = (0, 1, 2, 5, 255, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 40) - 1, 1 << 40, (1 << 63) - 1, (1 << 63) - 2)
_OPERATIONS = {
    protocol.READ_ENTRY: "readRequest",
    protocol.ADD_ENTRY: "addRequest",
    protocol.WRITE_LAC: "writeLacRequest",
    protocol.READ_LAC: "readLacRequest",
    protocol.GET_BOOKIE_INFO: "getBookieInfoRequest",
    protocol.FORCE_LEDGER: "forceLedgerRequest",
    protocol.GET_LIST_OF_ENTRIES_OF_LEDGER: "getListOfEntriesOfLedgerRequest",
}
_DIGEST = EntryDigest(DigestType.CRC32C, b"")


class Frames:
    """Makes frames from one random source."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)

    # ---- values ----

    def ledger_id(self) -> int:
        luck = self.luck.random()
        if luck < 0.97:
            return self.luck.randint(1, LEDGERS)
        if luck < 0.97 + NEW_LEDGER_SHARE:
            return self.luck.randrange(1 << 62)
        return self.luck.choice((-1, 0, -(1 << 63), (1 << 63) - 1))

    def entry_id(self) -> int:
        kind = self.luck.randrange(10)
        if kind < 7:
            return self.luck.randrange(400)
        corner = self.luck.choice(CORNERS) + self.luck.randint(-1, 1)
        return max(-(1 << 63), min((1 << 63) - 1, -corner if kind == 9 else corner))

    def key(self) -> bytes:
        return KEY if self.luck.random() < 0.9 else self.luck.randbytes(20)

    def key_of_any_length(self) -> bytes:
        """Return what V3 can have as a key."""
        return self.key() if self.luck.random() < 0.9 else self.luck.randbytes(self.luck.choice((0, 1, 19, 21)))

    def entry(self, ledger_id: int, entry_id: int) -> bytes:
        """Return an entry: well made, or with odd ids, LAC, length or digest, or no entry at all."""
        kind = self.luck.randrange(12)
        payload = self.luck.randbytes(self.luck.choice((0, 1, 40, 100, 100, 1000)))
        if kind == 0:
            return payload
        if kind == 1:
            return struct.pack(">qqqq", ledger_id, entry_id, self.entry_id(), self.entry_id()) + payload
        lac = self.entry_id() if kind == 2 else max(-1, min(entry_id - 1, (1 << 62)))
        batch = EntryBatch.of([payload], ledger_id=ledger_id, first_entry=entry_id)
        try:
            return bytes(_DIGEST.seal(batch, lac, 0).buffer)[LENGTH_BYTES:]
        except (struct.error, OverflowError):
            return payload

    # ---- frames ----

    def mild(self, is_v3: bool) -> bytes:
        """Return a frame in the form of its protocol; its values are anything."""
        return self._v3() if is_v3 else self._v2()

    def wild(self, is_v3: bool) -> bytes:
        """Return a damaged frame whose length word is right."""
        body = bytearray(self.mild(is_v3)[LENGTH_BYTES:])
        for _ in range(self.luck.randint(1, 4)):
            at = self.luck.randint(0, len(body))
            kind = self.luck.randrange(5)
            if kind == 0 and body:
                body[at % len(body)] ^= 1 << self.luck.randrange(8)
            elif kind == 1:
                body[at:at] = self.luck.randbytes(self.luck.randint(1, 12))
            elif kind == 2:
                del body[at : at + self.luck.randint(1, 12)]
            elif kind == 3 and body:
                body[at % len(body)] = self.luck.choice((0, 0x7F, 0x80, 0xFF))
            else:
                del body[at:]
        return len(body).to_bytes(LENGTH_BYTES, "big") + body

    def misframed(self, is_v3: bool) -> bytes:
        """Return a frame whose length word is wrong: what follows is taken for its rest, or its rest for frames."""
        body = self.mild(is_v3)[LENGTH_BYTES:]
        length = self.luck.choice((0, -1, 1, len(body) + 1, len(body) - 1, 5 << 20, (1 << 31) - 1, -(1 << 31)))
        return struct.pack(">i", length) + body

    def _v2(self) -> bytes:
        ledger_id, entry_id = self.ledger_id(), self.entry_id()
        kind = self.luck.randrange(12)
        flags = self.luck.choice((0, 0, 0, v2.DO_FENCING, v2.RECOVERY_ADD, v2.HIGH_PRIORITY, 0xFFFF))
        if kind < 5:
            body = v2.header_word(v2.ADD, flags).to_bytes(4, "big") + self.key() + self.entry(ledger_id, entry_id)
            return len(body).to_bytes(4, "big") + body
        if kind < 9:
            ids = np.array([self.luck.choice((entry_id, -1))], np.int64)
            return v2.encode_reads(ledger_id, ids, flags, self.key() if flags & v2.DO_FENCING else None)
        if kind < 11:
            count = self.luck.choice((0, -1, 1, 100, (1 << 31) - 1, -(1 << 31)))
            size = self.luck.choice((0, -1, 64, 1 << 16, (1 << 63) - 1, -(1 << 63)))
            key = self.key() if flags & v2.DO_FENCING else None
            return v2.encode_batch_read(ledger_id, entry_id, self.entry_id(), count, size, flags, key)
        return v2.encode_auth_reply(self.luck.randbytes(self.luck.randrange(40)))

    def _v3(self) -> bytes:
        operation = self.luck.choice(tuple(_OPERATIONS)) if self.luck.random() < 0.97 else protocol.AUTH
        request = protocol.Request(header=v3.header(operation, self.entry_id() % (1 << 63)))
        if self.luck.random() < 0.2:
            request.header.priority = self.luck.choice((1, 100, (1 << 32) - 1))
        if operation in _OPERATIONS:
            self._fill(getattr(request, _OPERATIONS[operation]))
        if self.luck.random() < 0.03:
            self._fill(getattr(request, self.luck.choice(tuple(_OPERATIONS.values()))))
        body = request.SerializePartialToString()
        return len(body).to_bytes(LENGTH_BYTES, "big") + body

    def _fill(self, message: object) -> None:
        message.SetInParent()  # type: ignore[attr-defined]
        ledger_id, entry_id = self.ledger_id(), self.entry_id()
        values: dict[str, object] = {
            "ledgerId": ledger_id,
            "entryId": entry_id,
            "masterKey": self.key_of_any_length(),
            "body": self.entry(ledger_id, entry_id),
            "lac": self.entry_id(),
            "previousLAC": self.entry_id(),
            # Long polls: short ones here, as those that wait have a state of their own.
            "timeOut": self.luck.choice((0, 1, 20, -1)),
            "requested": self.luck.choice((0, 1, 3, -1)),
            "writeFlags": self.luck.choice((0, 1, 2, -1)),
        }
        known = message.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
        for name, value in values.items():
            if name in known and self.luck.random() < 0.97:
                setattr(message, name, value)
        if "flag" in known and self.luck.random() < 0.3:
            message.flag = self.luck.choice([it.number for it in known["flag"].enum_type.values])  # type: ignore[attr-defined]
