"""The index file of one ledger: its master key and fence, and the positions of its entries. Version 3, all integers big
endian.

`<hex of (id >> 8) & 0xff>/<hex of id & 0xff>/<hex of id>.idx`, as Apache names them.

    offset      size  content
    0           512   header slot, followed by zeros
    4096        512   header slot, followed by zeros
    8192 + 8 e  8     i64 position of entry e: entry log id << 32 | offset of the entry in it; 0: not held

A header slot:

    offset  size  field
    0       4     magic "BKSI"
    4       4     i32 version, 3
    8       8     i64 ledger id
    16      8     i64 generation: how often the header was written
    24      4     i32 bits: 1 = fenced, the rest zero
    28      20    master key
    48      4     i32 bytes of the explicit LAC packet, 0: none was ever written
    52      128   that packet, followed by zeros
    180     4     u32 CRC32C of bytes 0 .. 179
    184     328   zero

The slots are in different physical sectors, which have 4096 bytes on most disks, because a write that is torn by a
power failure may destroy the whole sector. Version 2 has the slots at 0 and 512, and the positions from 1024 on. Its
files are read and written as they are; every new file has version 3.

A change writes the first slot, syncs, writes the second slot, and syncs. So one slot is always whole, and it is the old
one only while the journal still has the change. If both slots are unreadable, the file was being created (the journal
has the ledger's key, and replay writes the header again) or is damaged.

An explicit LAC packet is kept as its writer sent it: i64 ledger id, i64 LAC, and a digest that only clients can check.

Positions have no checksum: a position is trusted only if the entry at it has the requested ids. Log ids and offsets are
never 0, so no damage to a single byte turns a position into "not held".
"""

from __future__ import annotations

import operator
import re
import struct
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from crc32c import crc32c

from bkspark.wire.layout import MASTER_KEY_BYTES

VERSION = 3
SLOT_BYTES = 512
POSITION_BYTES = 8
UNKNOWN_KEY = bytes(MASTER_KEY_BYTES)
"""A stored key of zeros means "not known": the next key that a client sends is accepted (Apache's rebuilding of an
index leaves it)."""
LAC_PACKET_BYTES_MIN = 16
LAC_PACKET_BYTES_MAX = 128
STORED_ENTRY_ID_MAX = (1 << 40) - 1
"""The highest entry id that can be stored, because file systems end near offset 2^43."""

EntryIds = TypeVar("EntryIds", int, np.ndarray)


@dataclass(frozen=True, slots=True)
class Layout:
    """File offsets of the header slots and of the positions, in one version."""

    version: int
    slots_at: tuple[int, int]
    """Both slots have the header. If one is torn, the other counts."""
    positions_at: int
    """The position of entry n is 8 n bytes after it."""

    def position_at(self, entry_id: EntryIds) -> EntryIds:
        """Return the offset of an entry's position; of an array of entries, an array."""
        return self.positions_at + POSITION_BYTES * entry_id

    def entry_at(self, offset: int) -> int:
        """Return the entry whose position is, or would be, at an offset; 0 for an offset before the positions."""
        return max(0, offset - self.positions_at) // POSITION_BYTES


LAYOUTS = {
    2: Layout(2, (0, SLOT_BYTES), 2 * SLOT_BYTES),
    VERSION: Layout(VERSION, (0, 4096), 8192),
}
LAYOUT = LAYOUTS[VERSION]
"""The layout of new files."""
HEAD_BYTES = LAYOUT.slots_at[1] + SLOT_BYTES
"""Every header slot of any version is within this many bytes."""

_NAME = re.compile(r"(0|[1-9a-f][0-9a-f]*)\.idx")
_MAGIC = b"BKSI"
_HEADER = struct.Struct(f">4siqqi{MASTER_KEY_BYTES}si{LAC_PACKET_BYTES_MAX}s")
_START = struct.Struct(">4si")
_CRC = struct.Struct(">I")
_LAC = struct.Struct(">qq")
_FENCED = 1


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """What a bookie must never forget of a ledger, apart from its entries."""

    ledger_id: int
    generation: int
    """How often the header was written: the newer of two has the higher one."""
    fenced: bool
    """Whether ordinary adds are refused."""
    master_key: bytes = field(repr=False)
    explicit_lac: bytes = b""
    """The packet; b"": there is none."""


def merged(first: LedgerHeader, second: LedgerHeader) -> LedgerHeader:
    """Return what two headers of one ledger say together: a fence, a known key and the higher explicit LAC are kept."""
    lacs = [each.explicit_lac for each in (first, second) if each.explicit_lac]
    return LedgerHeader(
        first.ledger_id,
        max(first.generation, second.generation),
        first.fenced or second.fenced,
        second.master_key if first.master_key == UNKNOWN_KEY else first.master_key,
        max(lacs, key=lambda packet: decode_lac(packet)[1], default=b""),
    )


def relative_path(ledger_id: int) -> tuple[str, str, str]:
    """Return (directory, directory, file) below `current/`."""
    return f"{ledger_id >> 8 & 0xFF:x}", f"{ledger_id & 0xFF:x}", f"{ledger_id:x}.idx"


def parse_file_name(name: str) -> int | None:
    """Return the ledger id; None: `name` is not that of an index file."""
    match = _NAME.fullmatch(name)
    ledger_id = int(match[1], 16) if match else -1
    return ledger_id if 0 <= ledger_id < 1 << 63 else None


def encode_slot(header: LedgerHeader, version: int = VERSION) -> bytes:
    """Return the 512 bytes of one slot."""
    bits = _FENCED if header.fenced else 0
    packet = header.explicit_lac
    head = _HEADER.pack(
        _MAGIC, version, header.ledger_id, header.generation, bits, header.master_key, len(packet), packet
    )
    return (head + _CRC.pack(crc32c(head))).ljust(SLOT_BYTES, b"\0")


def encode_head(header: LedgerHeader) -> bytes:
    """Return the bytes of a new file before its positions: both slots."""
    slot = encode_slot(header)
    return slot.ljust(LAYOUT.slots_at[1], b"\0") + slot.ljust(LAYOUT.positions_at - LAYOUT.slots_at[1], b"\0")


_GENERATION_OF = operator.attrgetter("generation")
_SLOTS_AT = sorted({at for layout in LAYOUTS.values() for at in layout.slots_at})
"""All offsets at which a slot may be."""


def decode_header(data: bytes, ledger_id: int) -> LedgerHeader | None:
    """Return the newest whole header of the slots in data[0:HEAD_BYTES]; None: no slot is whole.

    Raises:
        ValueError: a slot is whole but of a version that this code does not read.
    """
    return max(whole_slots(data, ledger_id).values(), key=_GENERATION_OF, default=None)


def whole_slots(data: bytes, ledger_id: int) -> dict[int, LedgerHeader]:
    """Return the whole headers in data[0:HEAD_BYTES] by their offsets. Raises ValueError as `decode_header`."""
    found = {}
    for at in _SLOTS_AT:
        slot = _decode_slot(data[at : at + SLOT_BYTES], ledger_id) if data.startswith(_MAGIC, at) else None
        if slot is not None and at in LAYOUTS[slot[0]].slots_at:
            found[at] = slot[1]
    return found


def layout_of(data: bytes) -> Layout | None:
    """Return the layout of the file that begins with data[0:HEAD_BYTES]; None: it is unknown.

    One slot with a readable magic and version is enough.
    """
    for layout in LAYOUTS.values():
        for at in reversed(layout.slots_at):
            if data[at : at + _START.size] == _START.pack(_MAGIC, layout.version):
                return layout
    return None


def _decode_slot(data: bytes, ledger_id: int) -> tuple[int, LedgerHeader] | None:
    """Return (version, header) of a slot that begins with the magic; None: it is not whole."""
    if len(data) < _HEADER.size + _CRC.size:
        return None
    head = data[: _HEADER.size]
    _, version, found_id, generation, bits, key, packet_bytes, packet = _HEADER.unpack(head)
    if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(head) or found_id != ledger_id:
        return None
    if version not in LAYOUTS:
        readable = " and ".join(map(str, LAYOUTS))
        raise ValueError(f"index version {version}, this bookie reads {readable}: run the bookie that wrote it")
    return version, LedgerHeader(ledger_id, generation, bool(bits & _FENCED), key, packet[:packet_bytes])


def decode_lac(packet: bytes) -> tuple[int, int]:
    """Return (ledger id, LAC) of an explicit LAC packet.

    Raises:
        ValueError: it is too short or too long for a packet.
    """
    if not LAC_PACKET_BYTES_MIN <= len(packet) <= LAC_PACKET_BYTES_MAX:
        raise ValueError(f"an explicit LAC packet of {len(packet)} bytes")
    return _LAC.unpack_from(packet)
