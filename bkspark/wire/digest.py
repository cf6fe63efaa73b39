"""The entry envelope: the form in which every entry is sent, journaled, stored and returned.

    offset  size  field
    0       8     ledger id
    8       8     entry id
    16      8     LAC that the writer knew when it built these bytes (-1: none); `bkspark.wire.lac` states its bounds
    24      8     cumulative length: payload bytes of entries 0 .. this one, this one included
    32      d     digest over bytes 0 .. 31 followed by the payload
    32 + d  n     payload

All integers are big endian and signed. Digests, by the name in ledger metadata:

    CRC32   d = 8   IEEE CRC-32 as an i64 (upper 32 bits zero)
    MAC     d = 20  HMAC-SHA1, key SHA-1("mac" + password)
    CRC32C  d = 4   Castagnoli
    DUMMY   d = 0   none

`seal` and `open_entries` work on whole batches. `seal` computes the CRCs of all headers by table look-ups, and calls
the C library once per payload, with the header's CRC as start; `open_entries` calls it once for a run of evenly spaced
entries (`bkspark.wire.crc`).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import itertools
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import crc32c
import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import DigestMismatch
from bkspark.wire.crc import GAP_BYTES_MAX, RUN_BYTES_MAX, RUN_ENTRIES_MIN, CrcKind
from bkspark.wire.framing import LENGTH_BYTES, gather
from bkspark.wire.lac import NO_COPIES, LacBounds, is_lac
from bkspark.wire.layout import ENTRY_ID_AT, HEADER_BYTES, LAC_AT, LENGTH_AT

LAC_PACKET_HEAD_BYTES = 16
COPY_GAP_BYTES_MAX = 1024
"""Payloads further apart are copied one by one; V3's frames are some ninety bytes apart."""

_HEADER = np.dtype([("ledger", ">i8"), ("entry", ">i8"), ("lac", ">i8"), ("length", ">i8")])
_FRONTS = {
    digest_bytes: np.dtype(
        {
            "names": ["ledger", "entry", "lac", "length", "header", "digest", "crc"],
            "formats": [">i8", ">i8", ">i8", ">i8", f"V{HEADER_BYTES}", ("u1", digest_bytes), ">u4"],
            "offsets": [0, ENTRY_ID_AT, LAC_AT, LENGTH_AT, 0, HEADER_BYTES, HEADER_BYTES + digest_bytes - 4],
            "itemsize": HEADER_BYTES + digest_bytes,
        }
    )
    for digest_bytes in (0, 4, 8, 20)
}
"""The bytes before a payload, by the size of the digest: header fields, header, digest, its last word."""
_HEADER_FIELDS = struct.Struct(">qqqq")
_MEMORY = partial(np.empty, dtype=np.uint8)


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
    end_entry: int

    @classmethod
    def framed(cls, buffer: memoryview, offsets: np.ndarray, first_entry: int) -> SealedEntries:
        """Return the entries in a buffer, whose ids begin at `first_entry`."""
        return cls(buffer, offsets, first_entry, first_entry + len(offsets) - 1)

    def __len__(self) -> int:
        return self.end_entry - self.first_entry

    def frames(self, positions: np.ndarray) -> bytes:
        """Return the frames at some positions in one buffer."""
        bounds = self.offsets
        return b"".join(
            [self.buffer[start:end] for start, end in zip(bounds[positions].tolist(), bounds[positions + 1].tolist())]
        )


class EntryDigest:
    """Seals and opens entries of one ledger with one digest type and password.

    Args:
        lac_bounds: which LAC the entries that are opened may carry (`LedgerMetadata.lac_bounds`).
        gives_stored: `open_entries` gives each entry whole, with its envelope, for copies byte for byte.
    """

    def __init__(
        self,
        digest_type: DigestType,
        password: bytes,
        lac_bounds: LacBounds = NO_COPIES,
        *,
        gives_stored: bool = False,
    ) -> None:
        self.digest_type = digest_type
        self.lac_bounds = lac_bounds
        self.digest_bytes = {DigestType.CRC32: 8, DigestType.MAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}[
            digest_type
        ]
        """The size of the digest in the envelope. Constant."""
        self.overhead_bytes = HEADER_BYTES + self.digest_bytes
        """Bytes that the envelope adds to a payload. Constant."""
        self.given_from = 0 if gives_stored else self.overhead_bytes
        """Offset in a stored entry from which on its bytes are returned as the payload. Constant."""
        self._front = _FRONTS[self.digest_bytes]
        """The dtype of an envelope, header and digest. Constant."""
        self._hmac_key = hashlib.sha1(b"mac" + password).digest()

    def seal(self, batch: EntryBatch, lac: int, length_before: int, head: bytes = b"") -> SealedEntries:
        """Return the batch's entries in their envelopes, each after `i32 length` and the constant bytes `head`.

        Args:
            batch: ledger id and first entry id must be set.
            lac: LAC known now, put into every entry.
            length_before: payload bytes of all entries below batch.first_entry.
            head: constant bytes between the length word (which counts them) and the entry.
        """
        count = len(batch)
        offsets = batch.offsets
        sizes = np.diff(offsets)
        headers = np.empty(count, _HEADER)
        headers["ledger"] = batch.ledger_id
        headers["entry"] = np.arange(count) + batch.first_entry
        headers["lac"] = lac
        headers["length"] = offsets[1:] - offsets[0] + length_before
        header_rows = headers.view(np.uint8).reshape(count, HEADER_BYTES)

        front_bytes = LENGTH_BYTES + len(head) + self.overhead_bytes
        item_sizes = sizes + front_bytes
        item_offsets = np.zeros(count + 1, np.int64)
        np.cumsum(item_sizes, out=item_offsets[1:])
        data = memoryview(batch.buffer)

        fronts = np.empty((count, front_bytes), np.uint8)
        fronts[:, :LENGTH_BYTES] = (item_sizes - LENGTH_BYTES).astype(">i4").view(np.uint8).reshape(count, LENGTH_BYTES)
        header_at = LENGTH_BYTES + len(head)
        fronts[:, LENGTH_BYTES:header_at] = np.frombuffer(head, np.uint8)
        fronts[:, header_at : header_at + HEADER_BYTES] = header_rows
        if self.digest_bytes:
            fronts[:, header_at + HEADER_BYTES :] = self._digests(header_rows, data, offsets[:-1], offsets[1:])

        size = int(sizes[0])
        if (sizes == size).all():
            items = np.empty((count, front_bytes + size), np.uint8)
            items[:, :front_bytes] = fronts
            items[:, front_bytes:] = _strided(data, int(offsets[0]), count, size, size)
            return SealedEntries.framed(items.reshape(-1).data, item_offsets, batch.first_entry)
        parts: list[memoryview] = [data] * (2 * count)
        front_view = fronts.reshape(-1).data
        parts[0::2] = [front_view[at : at + front_bytes] for at in range(0, count * front_bytes, front_bytes)]
        parts[1::2] = [data[low:high] for low, high in itertools.pairwise(offsets.tolist())]
        return SealedEntries.framed(memoryview(b"".join(parts)), item_offsets, batch.first_entry)

    def seal_single(
        self, payload: bytes, ledger_id: int, entry_id: int, lac: int, length_before: int, head: bytes = b""
    ) -> SealedEntries:
        """Return one entry in its envelope, as `seal`. It uses numbers, which are cheaper than arrays of one item."""
        header = _HEADER_FIELDS.pack(ledger_id, entry_id, lac, length_before + len(payload))
        entry_bytes = len(head) + self.overhead_bytes + len(payload)
        front = entry_bytes.to_bytes(LENGTH_BYTES, "big")
        sealed = b"".join((front, head, header, self._digest_of(header, payload), payload))
        return SealedEntries(memoryview(sealed), np.array((0, len(sealed))), entry_id, entry_id + 1)

    def open_entries(
        self,
        buffer: bytes | bytearray | memoryview,
        starts: np.ndarray,
        ends: np.ndarray,
        ledger_id: int,
        entry_ids: np.ndarray,
    ) -> OpenedEntries:
        """Check stored entries at buffer[starts[i]:ends[i]]: their digests, the requested ids, and the LAC they carry.

        The bytes between the payloads of a writable buffer are overwritten meanwhile, and restored afterwards.

        Returns:
            The entries up to the first bad one (`OpenedEntries.bad` is its index and error, or None).
        """
        view = memoryview(buffer)
        good = ends - starts >= self.overhead_bytes
        usable = len(starts) if good.all() else int(np.argmin(good))
        bad = None if usable == len(starts) else (usable, "is shorter than its envelope")
        starts, ends, entry_ids = starts[:usable], ends[:usable], entry_ids[:usable]

        fronts = gather(view, starts, f"V{self.overhead_bytes}").view(self._front)
        right = (fronts["ledger"] == ledger_id) & (fronts["entry"] == entry_ids)
        right &= self.lac_bounds.admit_each(entry_ids, fronts["lac"])
        if not right.all():
            usable = int(np.argmin(right))
            found = fronts[usable]
            wrong = _wrong_header(found["ledger"], found["entry"], found["lac"], ledger_id, entry_ids[usable])
            bad = (usable, wrong)

        if self.digest_bytes and usable:
            good = self._matching(view, fronts[:usable], starts[:usable] + self.overhead_bytes, ends[:usable])
            if not good.all():
                usable = int(np.argmin(good))
                bad = (usable, "does not match its digest")
        return OpenedEntries(view, starts[:usable] + self.given_from, ends[:usable], fronts[:usable], bad)

    def _matching(self, view: memoryview, fronts: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return bool (n,): which payloads match their fronts' digests; values after the first mismatch are
        arbitrary."""
        matching = np.ones(len(starts), bool)
        for first, end, is_run in _runs(starts, ends, GAP_BYTES_MAX + self.overhead_bytes, of_one_size=False):
            rows = fronts[first:end], starts[first:end], ends[first:end]
            if not (is_run and self._run_matches(view, *rows)):
                headers = np.ascontiguousarray(rows[0]["header"]).view(np.uint8).reshape(-1, HEADER_BYTES)
                matching[first:end] = (self._digests(headers, view, *rows[1:]) == rows[0]["digest"]).all(axis=1)
        return matching

    def _run_matches(self, view: memoryview, fronts: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> bool:
        """Return whether all payloads of a run match the digests in their fronts."""
        crc = _CRCS.get(self.digest_type)
        low, high = starts.item(0), ends.item(-1)
        if crc is None or high - low > RUN_BYTES_MAX or fronts["digest"][:, :-4].any():
            return False
        run = memoryview(bytearray(view[low:high])) if view.readonly else view[low:high]
        stored = fronts["crc"].astype(np.uint32)
        return crc.run_is_right(run, ends[:-1] - low, starts.item(1) - ends.item(0), fronts["header"], stored)

    def open_entry(self, entry: bytes | memoryview, ledger_id: int, entry_id: int | None) -> OpenedEntry:
        """Check one stored entry; `entry_id` None accepts whatever id it carries (an answer to "last entry").

        Raises:
            DigestMismatch: too short, other ids, a LAC that it cannot carry, or the digest differs.
        """
        view = memoryview(entry)
        if len(view) < self.overhead_bytes:
            raise DigestMismatch(
                f"an entry of ledger {ledger_id} has {len(view)} bytes, its envelope alone {self.overhead_bytes}",
                ledger_id=ledger_id,
                entry_id=entry_id,
            )
        carried = int.from_bytes(view[ENTRY_ID_AT : ENTRY_ID_AT + 8], "big", signed=True)
        expected = carried if entry_id is None else entry_id
        wrong = self.fault_of(view[: self.overhead_bytes], view[self.overhead_bytes :], ledger_id, expected)
        if wrong is not None:
            raise DigestMismatch(f"ledger {ledger_id} entry {expected} {wrong}", ledger_id=ledger_id, entry_id=expected)
        _, _, lac, length = _HEADER_FIELDS.unpack_from(view)
        learned = self.lac_bounds.learned(carried, lac)
        return OpenedEntry(carried, learned, length, bytes(view[self.overhead_bytes :]))

    def fault_of(self, envelope: memoryview, payload: memoryview, ledger_id: int, entry_id: int) -> str | None:
        """Return the error of one stored entry in two parts, or None, as `open_entries`. It uses numbers instead of
        arrays. The envelope has `overhead_bytes`."""
        found_ledger, found_entry, lac, _ = _HEADER_FIELDS.unpack_from(envelope)
        if (found_ledger, found_entry) != (ledger_id, entry_id) or not self.lac_bounds.admits(entry_id, lac):
            return _wrong_header(found_ledger, found_entry, lac, ledger_id, entry_id)
        digest = self._digest_of(envelope[:HEADER_BYTES], payload)
        return None if digest == envelope[HEADER_BYTES:] else "does not match its digest"

    def seal_lac(self, ledger_id: int, lac: int) -> bytes:
        """Return the explicit-LAC packet: i64 ledger id, i64 lac, digest over those 16 bytes."""
        head = ledger_id.to_bytes(8, "big", signed=True) + lac.to_bytes(8, "big", signed=True)
        return head + self._digest_of(head)

    def open_lac(self, packet: bytes, ledger_id: int) -> int:
        """Return the LAC of an explicit-LAC packet.

        Raises:
            DigestMismatch: another size, another ledger's, a LAC that no ledger can have, or the digest differs.
        """
        lac = int.from_bytes(packet[8:LAC_PACKET_HEAD_BYTES], "big", signed=True)
        right = len(packet) == LAC_PACKET_HEAD_BYTES + self.digest_bytes
        if not right or packet != self.seal_lac(ledger_id, lac):
            raise DigestMismatch(
                f"an explicit LAC of ledger {ledger_id} does not match its digest or ids", ledger_id=ledger_id
            )
        if not is_lac(lac):
            raise DigestMismatch(f"an explicit LAC of ledger {ledger_id} is {lac}", ledger_id=ledger_id)
        return lac

    def _digest_of(self, header: bytes | memoryview, payload: bytes | memoryview = b"") -> bytes:
        if self.digest_type is DigestType.DUMMY:
            return b""
        if self.digest_type is DigestType.MAC:
            mac = hmac.new(self._hmac_key, header, "sha1")
            mac.update(payload)
            return mac.digest()
        crc = _CRCS[self.digest_type]
        return crc.of(payload, crc.of(header)).to_bytes(self.digest_bytes, "big")

    def _digests(self, header_rows: np.ndarray, view: memoryview, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return (n, digest_bytes) uint8 of the digests of headers[i] + view[starts[i]:ends[i]]."""
        bounds = zip(starts.tolist(), ends.tolist())
        if self.digest_type is DigestType.MAC:
            packed = b"".join(self._macs(header_rows, view, bounds))
            return np.frombuffer(packed, np.uint8).reshape(len(starts), self.digest_bytes)
        crc = _CRCS[self.digest_type]
        values = crc.of_each(view, bounds, crc.of_headers(header_rows))
        return values.astype(f">u{self.digest_bytes}").view(np.uint8).reshape(len(starts), self.digest_bytes)

    def _macs(self, header_rows: np.ndarray, view: memoryview, bounds: Iterator[tuple[int, int]]) -> Iterator[bytes]:
        keyed = hmac.new(self._hmac_key, digestmod="sha1")
        for header, (low, high) in zip(header_rows, bounds):
            mac = keyed.copy()
            mac.update(header.tobytes())
            mac.update(view[low:high])
            yield mac.digest()


def _wrong_header(ledger: int, entry: int, lac: int, ledger_id: int, entry_id: int) -> str:
    """Return the error for a header with these ids and LAC; `ledger_id` and `entry_id` are the requested ones."""
    if (ledger, entry) != (ledger_id, entry_id):
        return f"carries the ids of ledger {ledger} entry {entry}"
    return f"carries LAC {lac}, which its writer cannot have known"


@dataclass(frozen=True, slots=True)
class OpenedEntries:
    """Entries that passed their check, in order; `bad`: the first that did not: (index, error) or None.

    Their payloads are at view[starts[i]:ends[i]], where they were received.
    """

    view: memoryview
    starts: np.ndarray
    ends: np.ndarray
    fronts: np.ndarray
    """The envelope of each entry, as a structured array: ids, LAC, length, digest."""
    bad: tuple[int, str] | None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lacs(self) -> np.ndarray:
        """The LAC in each header, int64."""
        return self.fronts["lac"].astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """The cumulative length in each header, int64."""
        return self.fronts["length"].astype(np.int64)

    def payloads(self) -> list[memoryview]:
        """Return each payload, not copied."""
        view = self.view
        return [view[low:high] for low, high in zip(self.starts.tolist(), self.ends.tolist())]

    def to_batch(self, ledger_id: int, first_entry: int, memory: Callable[[int], np.ndarray] = _MEMORY) -> EntryBatch:
        """Return the payloads copied once into one buffer from `memory`, which returns uint8 of a given size."""
        offsets = np.zeros(len(self.starts) + 1, np.int64)
        np.cumsum(self.ends - self.starts, out=offsets[1:])
        packed = memory(offsets.item(-1))
        data = packed.data
        for first, end, is_run in _runs(self.starts, self.ends, COPY_GAP_BYTES_MAX, of_one_size=True):
            if is_run:
                low, high, start = offsets.item(first), offsets.item(end), self.starts.item(first)
                size, stride = self.ends.item(first) - start, self.starts.item(first + 1) - start
                packed[low:high].reshape(end - first, size)[:] = _strided(self.view, start, end - first, size, stride)
            else:
                self._copy_each(data, offsets, first, end)
        return EntryBatch(data, offsets, ledger_id, first_entry)

    def _copy_each(self, target: memoryview, offsets: np.ndarray, first: int, end: int) -> None:
        """Copy payloads [first, end) to their places in `target`."""
        bounds = zip(self.starts[first:end].tolist(), self.ends[first:end].tolist())
        for place, (start, stop) in zip(offsets[first:end].tolist(), bounds):
            target[place : place + stop - start] = self.view[start:stop]


@dataclass(frozen=True, slots=True)
class OpenedEntry:
    """One checked entry; `lac` is the part of its LAC that counts (`LacBounds.learned`)."""

    entry_id: int
    lac: int
    length: int
    """Payload bytes of the ledger up to this entry, as its writer put them into the envelope."""
    payload: bytes


def _runs(starts: np.ndarray, ends: np.ndarray, gap_bytes_max: int, of_one_size: bool) -> list[tuple[int, int, bool]]:
    """Return (first, end, whether they are a run) for all of [0, n): the entries of a run lie evenly apart."""
    count = len(starts)
    if count < RUN_ENTRIES_MIN:
        return [(0, count, False)]
    gaps = starts[1:] - ends[:-1]
    gap = gaps.item(0)
    is_break = gaps != gap
    if of_one_size:
        sizes = ends - starts
        is_break |= sizes[1:] != sizes[:-1]
    breaks = np.flatnonzero(is_break) + 1
    if not 0 <= gap <= gap_bytes_max or len(breaks) > count // RUN_ENTRIES_MIN:
        return [(0, count, False)]
    bounds = itertools.pairwise([0, *breaks.tolist(), count])
    return [(first, end, end - first >= RUN_ENTRIES_MIN) for first, end in bounds]


def _strided(view: memoryview, start: int, count: int, width: int, stride: int) -> np.ndarray:
    """Return uint8 (count, width): every `stride` bytes from `start` on, not copied."""
    return np.ndarray((count, width), np.uint8, view, start, (stride, 1))


_CRCS = {DigestType.CRC32: CrcKind(zlib.crc32, HEADER_BYTES), DigestType.CRC32C: CrcKind(crc32c.crc32c, HEADER_BYTES)}
