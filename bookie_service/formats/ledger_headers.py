"""Headers of ledgers without entries, and so without an index file: master key, fence, explicit LAC. Version 1, all
integers big endian.

Any client may fence a ledger that this bookie never had, or send an explicit LAC of it. Such a ledger takes a row of 30
bytes here, instead of a file of 8 KiB.

There is one file `ledgerHeaders` in a ledger directory, mostly the first one (`io.placed_file`). There is none if there
never was such a ledger:

    offset  size  field
    0       4     magic "BKSH"
    4       4     i32 version, 1
    8       8     i64 generation: if there are several such files, the highest counts
    16      4     u32 CRC32C of these

Any number of records follows, each appended and synced by itself:

    0       4     u32 CRC32C of the rest of the record
    4       4     i32 count of rows, 1 to 65,536
    8       4     i32 bytes of packets
    12      30 n  rows
    end           packets, in the order of the rows

A row:

    0       8     i64 ledger id, not negative
    8       1     u8 bits: 1 = fenced, 2 = the ledger has no header here any more
    9       20    master key
    29      1     u8 bytes of the explicit LAC packet, 16 to 128; 0: none was ever written

The last row of a ledger counts. The file is rewritten as a whole, under another name, when most rows are obsolete; the
new file has the next generation.

What is durable when:

1. A row is durable before the marks advance past its contents. Until then the journal has them, and replay writes the
   row again.
2. A record is appended only to a file whose generation `indexFiles` has (`formats.index_files`). Otherwise the file is
   rewritten. After each write `indexFiles` gets generation and length, durably, before the marks advance.
3. When the ledger gets its first entry, its index file gets the header. That file is durable and recorded in
   `indexFiles` before a row of bit 2 is written here. If both exist, the index file counts once `indexFiles` has it.
   Before that both count: a fence or a key in either one is valid, and so is the higher LAC.
4. A deleted ledger that was fenced is in `fencedDeleted` before a row of bit 2 is written.

What a crash leaves: a torn record at the end, which is ignored; a whole file of the next generation that `indexFiles`
does not have; rows that rule 3 or 4 was about to drop, which the next start drops.

What is damage: a file that is shorter or unreadable below the length in `indexFiles`; any unreadable record in a file
of a generation that `indexFiles` does not have; a file that is missing, or of an earlier generation. Then it is unknown
which fences are lost. The bookie starts, and every ledger that it may have held goes into limbo (`formats.limbo`).

While `indexFiles` names such a file, it has version 3, which bookies that do not know `ledgerHeaders` refuse: they
would take adds to ledgers that are fenced. A start that finds no row left writes version 2 again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from crc32c import crc32c

from bkspark.wire.layout import MASTER_KEY_BYTES
from bookie_service.formats.index import LAC_PACKET_BYTES_MAX, LAC_PACKET_BYTES_MIN, LedgerHeader

VERSION = 1
FILE_NAME = "ledgerHeaders"
ROWS_PER_RECORD_MAX = 1 << 16
ROW = np.dtype([("ledger_id", ">i8"), ("bits", "u1"), ("master_key", f"V{MASTER_KEY_BYTES}"), ("packet_bytes", "u1")])
FENCED = 1
DROPPED = 2

_MAGIC = b"BKSH"
_ROWS_PER_COPY = 4096
"""How many rows' packets are copied at once, because copying takes 16 times their memory."""
_HEAD = struct.Struct(">4siq")
_CRC = struct.Struct(">I")
_SIZES = struct.Struct(">ii")
HEAD_BYTES = _HEAD.size + _CRC.size
_RECORD_BYTES = _CRC.size + _SIZES.size


@dataclass(frozen=True, slots=True)
class HeaderRows:
    """Rows, and their packets in one array.

    rows: of dtype `ROW`. packets_at: the offset of each row's packet in `packets`, int64. packets: uint8.
    """

    rows: np.ndarray = field(repr=False)
    packets_at: np.ndarray
    packets: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def ledger_id(self, row: int) -> int:
        """Return the ledger of a row."""
        return self.rows["ledger_id"].item(row)

    def header(self, row: int) -> LedgerHeader | None:
        """Return the header in a row, with generation 0; None: the row says that there is no header."""
        ledger_id, bits, master_key, packet_bytes = self.rows[row].item()
        if bits & DROPPED:
            return None
        at = self.packets_at.item(row)
        packet = self.packets[at : at + packet_bytes].tobytes()
        return LedgerHeader(ledger_id, 0, bool(bits & FENCED), bytes(master_key), packet)

    def chosen(self, rows: np.ndarray) -> HeaderRows:
        """Return some of the rows, in the order of the numbers in `rows`, with only their packets."""
        return _packed(self.rows.take(rows), self.packets_at.take(rows), self.packets)


NO_ROWS = HeaderRows(np.empty(0, ROW), np.empty(0, np.int64), np.empty(0, np.uint8))


def rows_of(headers: Sequence[LedgerHeader], dropped: np.ndarray | Sequence[int] = ()) -> HeaderRows:
    """Return a row for each header, and one for each ledger that no longer has a header."""
    rows = np.zeros(len(headers) + len(dropped), ROW)
    packets = [header.explicit_lac for header in headers]
    if headers:
        held = rows[: len(headers)]
        held["ledger_id"] = [header.ledger_id for header in headers]
        held["bits"] = [FENCED if header.fenced else 0 for header in headers]
        keys = b"".join([header.master_key for header in headers])
        held["master_key"] = np.frombuffer(keys, ROW["master_key"])
        held["packet_bytes"] = [len(packet) for packet in packets]
    rows["ledger_id"][len(headers) :] = dropped
    rows["bits"][len(headers) :] = DROPPED
    return HeaderRows(rows, _starts(rows), np.frombuffer(b"".join(packets), np.uint8))


def joined(pieces: Sequence[HeaderRows]) -> HeaderRows:
    """Return the rows of all pieces, in this order."""
    packets_before = np.cumsum([0, *(len(piece.packets) for piece in pieces[:-1])])
    return HeaderRows(
        _joined_rows([piece.rows for piece in pieces]),
        np.concatenate([piece.packets_at + before for piece, before in zip(pieces, packets_before.tolist())]),
        np.concatenate([piece.packets for piece in pieces]),
    )


def encode_head(generation: int) -> bytes:
    """Return the head of a file."""
    head = _HEAD.pack(_MAGIC, VERSION, generation)
    return head + _CRC.pack(crc32c(head))


def encode_rows(found: HeaderRows) -> bytes:
    """Return records with these rows."""
    records = []
    for first in range(0, len(found), ROWS_PER_RECORD_MAX):
        some = found.chosen(np.arange(first, min(len(found), first + ROWS_PER_RECORD_MAX)))
        body = _SIZES.pack(len(some), len(some.packets)) + some.rows.tobytes() + some.packets.tobytes()
        records += [_CRC.pack(crc32c(body)), body]
    return b"".join(records)


def decode(data: bytes) -> tuple[HeaderRows, int]:
    """Return (every row, as written; the end of the whole records) of a file.

    The end is 0 if the head is damaged, and `len(data)` if everything is whole.

    Raises:
        ValueError: the file has a version that this code does not read.
    """
    if generation(data) is None:
        return NO_ROWS, 0
    pieces, packets_at, end = [NO_ROWS.rows], [NO_ROWS.packets_at], HEAD_BYTES
    for at, rows in _records(data):
        packets_begin = at + rows.nbytes
        pieces.append(rows)
        packets_at.append(packets_begin + _starts(rows))
        end = packets_begin + _bytes_of(rows)
    # Packed, so that only the packets stay in memory.
    return _packed(_joined_rows(pieces), np.concatenate(packets_at), np.frombuffer(data, np.uint8)), end


def row_offsets(data: bytes) -> np.ndarray:
    """Return the offset in the file of each row that `decode` finds, int64."""
    found = [at + ROW.itemsize * np.arange(len(rows)) for at, rows in _records(data)]
    return np.concatenate([NO_ROWS.packets_at, *found])


def _records(data: bytes) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (offset of its rows, rows) for every whole record after the head."""
    end = HEAD_BYTES
    while (rows := _record(data, end)) is not None:
        yield end + _RECORD_BYTES, rows
        end += _RECORD_BYTES + rows.nbytes + _bytes_of(rows)


def generation(data: bytes) -> int | None:
    """Return the generation of a file; None: its head is damaged. Raises ValueError as `decode`."""
    if len(data) < HEAD_BYTES or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(data[: _HEAD.size]):
        return None
    magic, version, found = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        return None
    if version != VERSION:
        raise ValueError(f"version {version}, this bookie reads {VERSION}: run the bookie that wrote it")
    return int(found)


def _record(data: bytes, at: int) -> np.ndarray | None:
    """Return the rows of the record at an offset; None: it is not whole."""
    if len(data) < at + _RECORD_BYTES:
        return None
    count, packets_bytes = _SIZES.unpack_from(data, at + _CRC.size)
    if not 0 < count <= ROWS_PER_RECORD_MAX or not 0 <= packets_bytes <= count * LAC_PACKET_BYTES_MAX:
        return None
    rows_end = at + _RECORD_BYTES + ROW.itemsize * count
    end = rows_end + packets_bytes
    if end > len(data) or _CRC.unpack_from(data, at)[0] != crc32c(memoryview(data)[at + _CRC.size : end]):
        return None
    rows = np.frombuffer(data, ROW, count, at + _RECORD_BYTES)
    sizes = rows["packet_bytes"]
    is_size = (sizes == 0) | ((sizes >= LAC_PACKET_BYTES_MIN) & (sizes <= LAC_PACKET_BYTES_MAX))
    if _bytes_of(rows) != packets_bytes or not is_size.all() or int(rows["ledger_id"].min()) < 0:
        return None
    return rows


def _bytes_of(rows: np.ndarray) -> int:
    """Return how many bytes the packets of these rows have."""
    return int(rows["packet_bytes"].sum(dtype=np.int64))


def _joined_rows(pieces: Sequence[np.ndarray]) -> np.ndarray:
    # As bytes, because numpy copies arrays with fields one field at a time.
    octets = np.dtype(f"V{ROW.itemsize}")
    return np.concatenate([piece.view(octets) for piece in pieces]).view(ROW)


def _starts(rows: np.ndarray) -> np.ndarray:
    """Return the offset of each row's packet if the packets follow each other."""
    ends = np.cumsum(rows["packet_bytes"], dtype=np.int64)
    return ends - rows["packet_bytes"]


def _packed(rows: np.ndarray, packets_at: np.ndarray, packets: np.ndarray) -> HeaderRows:
    """Return rows whose packets begin at `packets_at` of an array, with these packets only."""
    starts = _starts(rows)
    found = np.empty(_bytes_of(rows), np.uint8)
    with_packet = np.flatnonzero(rows["packet_bytes"])
    for first in range(0, len(with_packet), _ROWS_PER_COPY):
        some = with_packet[first : first + _ROWS_PER_COPY]
        sizes = rows["packet_bytes"][some].astype(np.int64)
        ends = np.cumsum(sizes)
        taken = np.repeat(packets_at[some] - (ends - sizes), sizes) + np.arange(ends.item(-1))
        begin = starts.item(some.item(0))
        found[begin : begin + len(taken)] = packets[taken]
    return HeaderRows(rows, starts, found)
