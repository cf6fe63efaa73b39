"""Reads an entry log as it is on disk, including damage. The format is in `formats.entry_log`.

Records have no checksum of their own, only a length word and the digests of their entries (see `digests`). Where the
chain of length words breaks, reading continues at the next offset that is certainly a record. Bytes at the end of a log
that are not a whole record come from an append that is running or was interrupted; no index points there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from bkspark.wire.framing import LENGTH_BYTES, gather_i32, gather_i64
from bkspark.wire.layout import ENTRY_BYTES_MIN
from bookie_service.admin.inspection.digests import DigestVerifier
from bookie_service.admin.inspection.findings import UNVERIFIED, WRONG, Damage, Fact, Finding, FoundEntries, Incomplete
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.storage.io.files import File, ReadOnlyFiles
from bookie_service.storage.logs.entry_log import ITEM_BYTES_MAX

_WINDOW_BYTES = 4 * 1024 * 1024
_SEARCH_BYTES = 256 * 1024
_MAP_LEDGER, _MAP_ENTRY = -1, -2
"""The ids that a record of the ledgers map carries."""
_FRONT = struct.Struct(">iqq")


def read_entry_log(files: ReadOnlyFiles, path: str, verifier: DigestVerifier) -> Iterator[Finding]:
    """Yield the contents of an entry log: its header, then runs of entries and whatever is between them."""
    log_id = log_format.parse_file_name(os.path.basename(path))
    if log_id is None:
        yield Damage(path, 0, None, "the name is not that of an entry log, <hex number>.log")
        return
    file = files.open(path)
    try:
        yield from _EntryLog(file, log_id, verifier).read()
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class _Chain:
    """Adjacent items of a window. `end`: where the next item would begin."""

    starts: np.ndarray
    """Where each item begins and (`ends`) ends in the window."""
    ends: np.ndarray
    end: int


class _EntryLog:
    def __init__(self, file: File, log_id: int, verifier: DigestVerifier) -> None:
        self._file = file
        self._path = file.path
        self._log_id = log_id
        """The log's number, which is also in its header and its name."""
        self._verifier = verifier
        self._size = file.size()
        """Bytes of the file when it was opened. Constant."""
        self._file_header: log_format.LogHeader | None = None
        """The header; None: it was not read yet, or is damaged."""

    def read(self) -> Iterator[Finding]:
        yield from self._header()
        offset = min(HEADER_BYTES, self._size)
        while offset < self._size:
            data = self._window(offset)
            chain = _chain(data)
            if not len(chain.starts):
                offset = yield from self._unreadable(offset, offset)
                continue
            run = self._judged(data, chain, offset)
            yield run
            wrong = run.states == WRONG
            yield from self._mismatches(run, np.flatnonzero(wrong))
            end = offset + chain.end
            if end < self._size and wrong[-1] and not self._is_item(end):
                # The length word of the last item may itself be damaged; it must not hide the items after it.
                following = self._next_item(int(run.offsets[-1]) + 1)
                offset = self._size if following is None else following
            elif end < self._size and not self._is_item(end):
                offset = yield from self._unreadable(end, end)
            else:
                offset = end
        yield from self._map()

    def _header(self) -> Iterator[Finding]:
        header = log_format.decode_header(self._file.read(HEADER_BYTES, 0), self._log_id)
        if header is None and self._size < HEADER_BYTES:
            yield Incomplete(self._path, 0, self._size, "the file ends within its header; it holds no entry")
        elif header is None:
            yield Damage(self._path, 0, HEADER_BYTES, "this is not the header of an entry log of that number")
        else:
            self._file_header = header
            values = {
                "log": self._log_id,
                "version": header.version,
                "map_offset": header.map_offset,
                "map_ledgers": header.map_ledgers,
                "bytes": self._size,
            }
            yield Fact("entry-log", self._path, 0, HEADER_BYTES, header.checksum_ok, values)
            if header.checksum_ok is False:
                yield Damage(self._path, 0, HEADER_BYTES, "the header fails its checksum; the entries are not affected")

    def _map(self) -> Iterator[Finding]:
        """Report damage of the ledgers map as a whole."""
        header = self._file_header
        if header is None or not header.map_offset:
            return
        if header.map_offset >= self._size:
            reason = f"the file ends at {self._size}, its ledgers map lay at {header.map_offset}: it was truncated"
            yield Damage(self._path, self._size, None, reason)
        elif header.checksum_ok:
            length = self._size - header.map_offset
            if log_format.decode_map(self._file.read(length, header.map_offset), header) is None:
                reason = "the ledgers map fails its checksum; the entries are not affected"
                yield Damage(self._path, header.map_offset, length, reason)

    def _window(self, offset: int) -> bytes:
        """Return bytes from `offset` on, at least one whole item if an item begins there."""
        data = self._file.read(min(_WINDOW_BYTES, self._size - offset), offset)
        needed = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big", signed=True)
        if len(data) < needed <= min(ITEM_BYTES_MAX, self._size - offset):
            data = self._file.read(needed, offset)
        return data

    def _judged(self, data: bytes, chain: _Chain, offset: int) -> FoundEntries:
        octets = np.frombuffer(data, np.uint8)
        ledger_ids, entry_ids = (gather_i64(octets, chain.starts + at) for at in (0, 8))
        states = self._verifier.check(data, chain.starts, chain.ends, ledger_ids, entry_ids)
        for row in np.flatnonzero(states == UNVERIFIED).tolist():
            # An entry of no known ledger may belong to its neighbour's ledger, with damage in the id itself.
            entry = memoryview(data)[int(chain.starts[row]) : int(chain.ends[row])]
            neighbours = {*ledger_ids[max(0, row - 1) : row + 2].tolist()} - {int(ledger_ids[row])}
            if any(self._verifier.belongs_to(ledger_id, entry) for ledger_id in neighbours):
                states[row] = WRONG
        offsets = chain.starts - LENGTH_BYTES + offset
        return FoundEntries(
            self._path, offsets, chain.ends - chain.starts + LENGTH_BYTES, ledger_ids, entry_ids, states
        )

    def _mismatches(self, run: FoundEntries, rows: np.ndarray) -> Iterator[Damage]:
        for row in rows.tolist():
            ledger_id, entry_id = int(run.ledger_ids[row]), int(run.entry_ids[row])
            reason = f"entry {entry_id} of ledger {ledger_id} does not match its digest"
            yield Damage(self._path, int(run.offsets[row]), int(run.sizes[row]), reason, ledger_id, entry_id)

    def _unreadable(self, offset: int, search_from: int) -> Generator[Finding, None, int]:
        """Report bytes at `offset` that are not an item; return where the next item begins, or the end of the file."""
        if (length := self._map_record(offset)) is not None:
            yield Fact("ledgers-map", self._path, offset, length, None, {"log": self._log_id})
            return offset + length
        following = self._next_item(search_from + 1)
        end = self._size if following is None else following
        if self._is_zero(offset, end):
            yield Fact("padding", self._path, offset, end - offset, None, {"log": self._log_id})
        elif following is None and not (self._file_header and self._file_header.map_offset):
            reason = "no complete entry follows: an append that is under way, or that a crash interrupted"
            yield Incomplete(self._path, offset, end - offset, reason)
        else:
            yield Damage(self._path, offset, end - offset, "not an entry: its length or its ids are damaged")
        return end

    def _map_record(self, offset: int) -> int | None:
        """Return how many bytes the ledgers map's record at `offset` has; None: there is no such record."""
        front = self._file.read(_FRONT.size, offset)
        if len(front) < _FRONT.size:
            return None
        length, ledger_id, entry_id = _FRONT.unpack(front)
        is_map = (ledger_id, entry_id) == (_MAP_LEDGER, _MAP_ENTRY) and length >= ENTRY_BYTES_MIN
        return LENGTH_BYTES + length if is_map and offset + LENGTH_BYTES + length <= self._size else None

    def _is_zero(self, start: int, end: int) -> bool:
        pieces = (self._file.read(min(_WINDOW_BYTES, end - at), at) for at in range(start, end, _WINDOW_BYTES))
        return not any(np.frombuffer(piece, np.uint8).any() for piece in pieces)

    def _is_item(self, offset: int) -> bool:
        """Return whether the bytes at `offset` look like a whole item, or like the ledgers map."""
        front = self._file.read(_FRONT.size, offset)
        if len(front) < _FRONT.size:
            return False
        length, ledger_id, entry_id = _FRONT.unpack(front)
        fits = ENTRY_BYTES_MIN <= length <= min(ITEM_BYTES_MAX, self._size - offset - LENGTH_BYTES)
        return fits and (min(ledger_id, entry_id) >= 0 or (ledger_id, entry_id) == (_MAP_LEDGER, _MAP_ENTRY))

    def _next_item(self, start: int) -> int | None:
        """Return where the next certain item begins, at `start` or later; None: there is none."""
        overlap = _FRONT.size - 1
        for position in range(start, self._size, _SEARCH_BYTES):
            piece = self._file.read(_SEARCH_BYTES + overlap, position)
            for candidate in _candidates(piece, self._size - position):
                if self._is_certain(position + candidate):
                    return position + candidate
        return None

    def _is_certain(self, offset: int) -> bool:
        """Return whether an item begins here: its digest matches, or its ledger is known and another item follows."""
        if self._map_record(offset) is not None:
            return True
        length, ledger_id, _ = _FRONT.unpack(self._file.read(_FRONT.size, offset))
        if self._verifier.verifies(self._file.read(length, offset + LENGTH_BYTES)):
            return True
        end = offset + LENGTH_BYTES + length
        return not self._verifier.knows(ledger_id) and self._is_item(end)


def _chain(data: bytes) -> _Chain:
    """Return the first items of `data` that are whole and carry ids."""
    starts: list[int] = []
    lengths: list[int] = []
    position = 0
    while position + _FRONT.size <= len(data):
        length, ledger_id, entry_id = _FRONT.unpack_from(data, position)
        end = position + LENGTH_BYTES + length
        if length < ENTRY_BYTES_MIN or end > len(data) or ledger_id < 0 or entry_id < 0:
            break
        starts.append(position + LENGTH_BYTES)
        lengths.append(length)
        position = end
    starts_array = np.array(starts, np.int64)
    return _Chain(starts_array, starts_array + np.array(lengths, np.int64), position)


def _candidates(piece: bytes, room: int) -> list[int]:
    """Return the places in `piece` where length word and ids may be those of an item. `room`: bytes to the end."""
    octets = np.frombuffer(piece, np.uint8)
    count = len(octets) - _FRONT.size + 1
    if count <= 0:
        return []
    # In practice ids are below 2^56, and those of the ledgers map begin with bytes of ones.
    top = octets[4 : 4 + count]
    likely = np.flatnonzero(((top == 0) & (octets[12 : 12 + count] == 0)) | (top == 0xFF))
    lengths = gather_i32(octets, likely).astype(np.int64)
    fits = (lengths >= ENTRY_BYTES_MIN) & (lengths <= np.minimum(ITEM_BYTES_MAX, room - LENGTH_BYTES - likely))
    return likely[fits].tolist()
