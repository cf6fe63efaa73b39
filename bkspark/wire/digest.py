"""The entry envelope: what is sent, journaled, stored and returned for every entry.

    offset  size  field
    0       8     ledger id
    8       8     entry id
    16      8     LAC the writer knew when these bytes were built (-1: none)
    24      8     cumulative length: payload bytes of entries 0 .. this one, this one included
    32      d     digest over bytes 0 .. 31 followed by the payload
    32 + d  n     payload

All integers are big endian and signed. Digests, by the name in ledger metadata:

    CRC32   d = 8   IEEE CRC-32 as an i64 (upper 32 bits zero)
    MAC     d = 20  HMAC-SHA1, key SHA-1("mac" + password)
    CRC32C  d = 4   Castagnoli
    DUMMY   d = 0   none

`seal` and `open_entries` work on whole batches. A CRC is affine in its input for a fixed length, so the CRCs of all
headers of a batch come from table look-ups on columns (only columns that vary cost anything); the C library is called
once per payload, with the header's CRC as start.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import itertools
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import crc32c
import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import DigestMismatch
from bkspark.wire.framing import LENGTH_BYTES

HEADER_BYTES = 32
MASTER_KEY_BYTES = 20
LAC_PACKET_HEAD_BYTES = 16

_HEADER = np.dtype([("ledger", ">i8"), ("entry", ">i8"), ("lac", ">i8"), ("length", ">i8")])
_HEADER_FIELDS = struct.Struct(">qqqq")
_HMAC_BLOCK_BYTES = 64


class DigestType(enum.Enum):
    """How entries are checked; the value is the number stored in ledger metadata."""

    CRC32 = 1
    MAC = 2
    CRC32C = 3
    DUMMY = 4


def master_key(password: bytes) -> bytes:
    """Return the 20 bytes that authorise adds and fences of a ledger with this password."""
    return hashlib.sha1(b"ledger" + password).digest()


@dataclass(frozen=True, slots=True)
class SealedEntries:
    """Entries ready to send: item i is buffer[offsets[i]:offsets[i + 1]] = `i32 length, head, entry`."""

    buffer: memoryview
    offsets: np.ndarray
    first_entry: int

    def __len__(self) -> int:
        return len(self.offsets) - 1


class EntryDigest:
    """Seals and opens entries of one ledger with one digest type and password."""

    def __init__(self, digest_type: DigestType, password: bytes) -> None:
        self.digest_type = digest_type
        self.digest_bytes = {DigestType.CRC32: 8, DigestType.MAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}[
            digest_type
        ]
        self._hmac_key = hashlib.sha1(b"mac" + password).digest()

    @property
    def overhead_bytes(self) -> int:
        """Bytes that the envelope adds to a payload."""
        return HEADER_BYTES + self.digest_bytes

    def seal(self, batch: EntryBatch, lac: int, length_before: int, head: bytes = b"") -> SealedEntries:
        """Return the batch's entries in their envelopes, each after `i32 length` and the constant bytes `head`.

        Args:
            batch: ledger id and first entry id must be set.
            lac: LAC known now, put into every entry.
            length_before: payload bytes of all entries below batch.first_entry.
            head: constant bytes between the length word (which counts them) and the entry.
        """
        count = len(batch)
        if count == 1:
            return self._seal_one(batch, lac, length_before, head)
        offsets = batch.offsets
        sizes = np.diff(offsets)
        headers = np.empty(count, _HEADER)
        headers["ledger"] = batch.ledger_id
        headers["entry"] = np.arange(batch.first_entry, batch.first_entry + count)
        headers["lac"] = lac
        headers["length"] = offsets[1:] - offsets[0] + length_before
        header_rows = headers.view(np.uint8).reshape(count, HEADER_BYTES)

        front_bytes = LENGTH_BYTES + len(head) + self.overhead_bytes
        item_sizes = sizes + front_bytes
        item_offsets = np.zeros(count + 1, np.int64)
        np.cumsum(item_sizes, out=item_offsets[1:])
        payloads = _slices(memoryview(batch.buffer), offsets.tolist())

        fronts = np.empty((count, front_bytes), np.uint8)
        fronts[:, :LENGTH_BYTES] = (item_sizes - LENGTH_BYTES).astype(">i4").view(np.uint8).reshape(count, LENGTH_BYTES)
        header_at = LENGTH_BYTES + len(head)
        fronts[:, LENGTH_BYTES:header_at] = np.frombuffer(head, np.uint8)
        fronts[:, header_at : header_at + HEADER_BYTES] = header_rows
        if self.digest_bytes:
            fronts[:, header_at + HEADER_BYTES :] = self._digests(header_rows, payloads)

        parts: list[memoryview] = [memoryview(b"")] * (2 * count)
        front_view = fronts.reshape(-1).data
        parts[0::2] = [front_view[at : at + front_bytes] for at in range(0, count * front_bytes, front_bytes)]
        parts[1::2] = payloads
        return SealedEntries(memoryview(b"".join(parts)), item_offsets, batch.first_entry)

    def _seal_one(self, batch: EntryBatch, lac: int, length_before: int, head: bytes) -> SealedEntries:
        """`seal` for a batch of one: numbers are cheaper to handle than arrays of one."""
        start, end = batch.offsets.tolist()
        payload = memoryview(batch.buffer)[start:end]
        header = _HEADER_FIELDS.pack(batch.ledger_id, batch.first_entry, lac, length_before + len(payload))
        entry_bytes = len(head) + self.overhead_bytes + len(payload)
        front = entry_bytes.to_bytes(LENGTH_BYTES, "big")
        sealed = b"".join((front, head, header, self._digest_of(header, payload), payload))
        return SealedEntries(memoryview(sealed), np.array((0, len(sealed))), batch.first_entry)

    def open_entries(
        self,
        buffer: bytes | bytearray | memoryview,
        starts: np.ndarray,
        ends: np.ndarray,
        ledger_id: int,
        entry_ids: np.ndarray,
    ) -> OpenedEntries:
        """Check stored entries at buffer[starts[i]:ends[i]] against their digests and the ids asked for.

        Returns:
            The entries up to the first bad one (`OpenedEntries.bad` tells where and why, or is None).
        """
        octets = np.frombuffer(buffer, np.uint8)
        good = ends - starts >= self.overhead_bytes
        usable = len(starts) if good.all() else int(np.argmin(good))
        bad = None if usable == len(starts) else (usable, "is shorter than its envelope")
        starts, ends, entry_ids = starts[:usable], ends[:usable], entry_ids[:usable]

        header_rows = _rows(octets, starts, HEADER_BYTES)
        headers = header_rows.view(_HEADER).ravel()
        right = (headers["ledger"] == ledger_id) & (headers["entry"] == entry_ids)
        if not right.all():
            usable = int(np.argmin(right))
            found = headers[usable]
            bad = (usable, f"carries the ids of ledger {found['ledger']} entry {found['entry']}")

        view = memoryview(buffer)
        payload_starts = (starts + self.overhead_bytes).tolist()
        payloads = [view[start:end] for start, end in zip(payload_starts[:usable], ends.tolist())]
        if self.digest_bytes and usable:
            stored = _rows(octets, starts[:usable] + HEADER_BYTES, self.digest_bytes)
            equal = (stored == self._digests(header_rows[:usable], payloads)).all(axis=1)
            if not equal.all():
                usable = int(np.argmin(equal))
                bad = (usable, "does not match its digest")
                payloads = payloads[:usable]
        return OpenedEntries(
            payloads,
            headers["lac"][:usable].astype(np.int64),
            headers["length"][:usable].astype(np.int64),
            bad,
        )

    def open_entry(self, entry: bytes | memoryview, ledger_id: int, entry_id: int | None) -> OpenedEntry:
        """Check one stored entry; `entry_id` None accepts whatever id it carries (an answer to "last entry").

        Raises:
            DigestMismatch: too short, other ids, or the digest differs.
        """
        if len(entry) < self.overhead_bytes:
            raise DigestMismatch(
                f"an entry of ledger {ledger_id} has {len(entry)} bytes, its envelope alone {self.overhead_bytes}",
                ledger_id=ledger_id,
                entry_id=entry_id,
            )
        carried = int.from_bytes(entry[8:16], "big", signed=True)
        expected = np.array([carried if entry_id is None else entry_id])
        opened = self.open_entries(entry, np.zeros(1, np.int64), np.array([len(entry)]), ledger_id, expected)
        if opened.bad is not None:
            raise DigestMismatch(
                f"ledger {ledger_id} entry {expected[0]} {opened.bad[1]}",
                ledger_id=ledger_id,
                entry_id=int(expected[0]),
            )
        return OpenedEntry(carried, int(opened.lacs[0]), int(opened.lengths[0]), bytes(opened.payloads[0]))

    def seal_lac(self, ledger_id: int, lac: int) -> bytes:
        """Return the explicit-LAC packet: i64 ledger id, i64 lac, digest over those 16 bytes."""
        head = ledger_id.to_bytes(8, "big", signed=True) + lac.to_bytes(8, "big", signed=True)
        return head + self._digest_of(head)

    def open_lac(self, packet: bytes, ledger_id: int) -> int:
        """Return the LAC of an explicit-LAC packet.

        Raises:
            DigestMismatch: another size, another ledger's, or the digest differs.
        """
        head = packet[:LAC_PACKET_HEAD_BYTES]
        right = len(packet) == LAC_PACKET_HEAD_BYTES + self.digest_bytes
        if not right or packet != self.seal_lac(ledger_id, int.from_bytes(head[8:], "big", signed=True)):
            raise DigestMismatch(
                f"an explicit LAC of ledger {ledger_id} does not match its digest or ids", ledger_id=ledger_id
            )
        return int.from_bytes(head[8:], "big", signed=True)

    def _digest_of(self, header: bytes, payload: bytes | memoryview = b"") -> bytes:
        if self.digest_type is DigestType.DUMMY:
            return b""
        if self.digest_type is DigestType.MAC:
            mac = hmac.new(self._hmac_key, header, "sha1")
            mac.update(payload)
            return mac.digest()
        crc = zlib.crc32 if self.digest_type is DigestType.CRC32 else crc32c.crc32c
        return crc(payload, crc(header)).to_bytes(self.digest_bytes, "big")

    def _digests(self, header_rows: np.ndarray, payloads: Sequence[memoryview]) -> np.ndarray:
        """Return (n, digest_bytes) uint8 of the digests of headers[i] + payloads[i]."""
        if self.digest_type is DigestType.MAC:
            packed = b"".join(self._macs(header_rows, payloads))
            return np.frombuffer(packed, np.uint8).reshape(len(payloads), self.digest_bytes)
        if self.digest_type is DigestType.CRC32:
            header_crcs, crc, dtype = _CRC32_HEADERS.of(header_rows), zlib.crc32, ">u8"
        else:
            header_crcs, crc, dtype = _CRC32C_HEADERS.of(header_rows), crc32c.crc32c, ">u4"
        values = np.fromiter(map(crc, payloads, header_crcs.tolist()), np.uint64, len(payloads))
        return values.astype(dtype).view(np.uint8).reshape(len(payloads), self.digest_bytes)

    def _macs(self, header_rows: np.ndarray, payloads: Sequence[memoryview]) -> list[bytes]:
        keyed = hmac.new(self._hmac_key, digestmod="sha1")
        macs = []
        for header, payload in zip(header_rows, payloads):
            mac = keyed.copy()
            mac.update(header.tobytes())
            mac.update(payload)
            macs.append(mac.digest())
        return macs


class WholeEntries(EntryDigest):
    """Checks entries as `EntryDigest`, and hands each out whole, envelope included: for copies byte for byte."""

    def open_entries(
        self,
        buffer: bytes | bytearray | memoryview,
        starts: np.ndarray,
        ends: np.ndarray,
        ledger_id: int,
        entry_ids: np.ndarray,
    ) -> OpenedEntries:
        opened = super().open_entries(buffer, starts, ends, ledger_id, entry_ids)
        view, good = memoryview(buffer), len(opened.payloads)
        whole = [view[start:end] for start, end in zip(starts[:good].tolist(), ends[:good].tolist())]
        return replace(opened, payloads=whole)


@dataclass(frozen=True, slots=True)
class OpenedEntries:
    """Entries that passed their check, in order, and the first that did not: (index, what is wrong) or None."""

    payloads: list[memoryview]
    lacs: np.ndarray
    lengths: np.ndarray
    bad: tuple[int, str] | None

    def to_batch(self, ledger_id: int, first_entry: int) -> EntryBatch:
        """Return the payloads copied once into one buffer."""
        offsets = np.zeros(len(self.payloads) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, self.payloads), np.int64, len(self.payloads)), out=offsets[1:])
        return EntryBatch(b"".join(self.payloads), offsets, ledger_id, first_entry)


@dataclass(frozen=True, slots=True)
class OpenedEntry:
    """One checked entry."""

    entry_id: int
    lac: int
    length: int
    payload: bytes


def _slices(view: memoryview, bounds: list[int]) -> list[memoryview]:
    return [view[start:end] for start, end in itertools.pairwise(bounds)]


def _rows(octets: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """Return (n, width) uint8 of the bytes at each start, contiguous."""
    return np.ascontiguousarray(octets[starts[:, None] + np.arange(width)])


class _HeaderCrcs:
    """CRCs of 32-byte headers, many at once: crc(m) = crc(zeros) xor, over bytes i, of table[i][m[i]]."""

    def __init__(self, crc: Callable[[bytes | bytearray], int]) -> None:
        self._crc = crc
        zeros = crc(bytes(HEADER_BYTES))
        self._tables = np.zeros((HEADER_BYTES, 256), np.uint32)
        for column in range(HEADER_BYTES):
            for value in range(256):
                message = bytearray(HEADER_BYTES)
                message[column] = value
                self._tables[column, value] = crc(message) ^ zeros

    def of(self, header_rows: np.ndarray) -> np.ndarray:
        first = header_rows[0]
        varying = np.flatnonzero((header_rows != first).any(axis=0)).tolist()
        template = bytearray(first)
        for column in varying:
            template[column] = 0
        crcs = np.full(len(header_rows), self._crc(template), np.uint32)
        for column in varying:
            crcs ^= self._tables[column][header_rows[:, column]]
        return crcs


_CRC32_HEADERS = _HeaderCrcs(zlib.crc32)
_CRC32C_HEADERS = _HeaderCrcs(crc32c.crc32c)
