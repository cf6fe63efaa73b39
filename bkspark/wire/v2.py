"""The V2 binary protocol of BookKeeper, both sides, whole batches at a time.

A frame body begins with the header word `version << 24 | opcode << 16 | flags`; version is 2. After it:

    ADD request         20 master key, entry (the ids are in the entry itself)
    ADD reply           i32 status, i64 ledger, i64 entry                                  (24 bytes in all)
    READ request        i64 ledger, i64 entry (-1: highest held), [20 master key if DO_FENCING]
    READ reply          i32 status, i64 ledger, i64 entry as asked, entry if EOK           (24 + n)
    BATCH_READ request  i64 ledger, i64 first entry, i64 request id, i32 count (<= 0: no limit),
                        i64 bytes of the whole reply, [20 master key if DO_FENCING]
    BATCH_READ reply    i32 status, i64 ledger, i64 first entry as asked, i64 request id,
                        then `i32 length, entry` items                                     (32 + n)
    AUTH                protobuf AuthMessage, both ways

Replies are matched by (ledger, entry as asked, opcode), batch reads by request id. Another opcode gets no answer: the
connection is closed (Apache's client uses this to detect a bookie's features).
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import ProtocolError
from bkspark.wire.digest import EntryDigest, SealedEntries
from bkspark.wire.flags import DO_FENCING as DO_FENCING
from bkspark.wire.flags import HIGH_PRIORITY as HIGH_PRIORITY
from bkspark.wire.flags import LAST_ENTRY as LAST_ENTRY
from bkspark.wire.flags import RECOVERY_ADD as RECOVERY_ADD
from bkspark.wire.framing import LENGTH_BYTES, FrameTable, gather, gather_i32, gather_i64
from bkspark.wire.layout import ENTRY_BYTES_MIN, MASTER_KEY_BYTES
from bkspark.wire.placed_entries import PlacedEntries, frames_around
from bkspark.wire.single_add import SingleAdd
from bkspark.wire.status import EOK as EOK
from bkspark.wire.status import Status as Status

VERSION = 2
ADD, READ, AUTH, BATCH_READ = 1, 2, 3, 7

WORD_BYTES = 4
ADD_HEAD_BYTES = WORD_BYTES + MASTER_KEY_BYTES
_ADD_ENTRY_AT = LENGTH_BYTES + ADD_HEAD_BYTES
READ_BYTES = 20
BATCH_READ_BYTES = 40
REPLY_BYTES = 24
BATCH_REPLY_BYTES = 32
BATCH_ACCOUNT_BYTES = 36
"""Bytes of a batch-read reply before its first item that count towards the requested bytes: its head and length
word."""


_REPLY = np.dtype([("size", ">i4"), ("word", ">i4"), ("status", ">i4"), ("ledger", ">i8"), ("entry", ">i8")])
_REPLY_FIELDS = np.dtype(_REPLY.descr[1:])
_IDS = struct.Struct(">qq")
_NO_IDS = (-1, -1)
FEW_REQUESTS = 8
"""At most this many requests are decoded with numbers: an add and a read take 6 us, and 29 us with arrays. Arrays pay
off from twelve requests on."""
_WORD = struct.Struct(">i")
_READ = np.dtype([("size", ">i4"), ("word", ">i4"), ("ledger", ">i8"), ("entry", ">i8")])
_FENCING_READ = np.dtype([*_READ.descr, ("key", "V20")])
_BATCH_READ_TAIL = struct.Struct(">qqqiq")
_SINGLE_ADD = struct.Struct(">ii20sqqq")
_REPLY_HEAD = struct.Struct(">iiiqq")
_BATCH_REPLY_HEAD = struct.Struct(">iiiqqq")


def code_of(status: int) -> int:
    """Return V2's code for a status: its peers do not know EUNKNOWNLEDGERSTATE, and EIO is just as uncertain."""
    return Status.EIO if status == Status.EUNKNOWNLEDGERSTATE else status


def header_word(opcode: int, flags: int = 0, version: int = VERSION) -> int:
    """Return the i32 that begins a frame body."""
    return version << 24 | opcode << 16 | flags


_ADD_WORD, _BATCH_READ_WORD = header_word(ADD), header_word(BATCH_READ)
_REQUEST_BYTES_MIN = {
    ADD: ADD_HEAD_BYTES + ENTRY_BYTES_MIN,
    READ: READ_BYTES,
    BATCH_READ: BATCH_READ_BYTES,
    AUTH: WORD_BYTES,
}


# ---- client side: requests out ----


def encode_adds(
    batch: EntryBatch, lac: int, length_before: int, digest: EntryDigest, master_key: bytes, flags: int = 0
) -> SealedEntries:
    """Return one ADD frame per entry of the batch, back to back in one buffer; see `EntryDigest.seal`."""
    return digest.seal(batch, lac, length_before, add_head(master_key, flags))


def add_head(master_key: bytes, flags: int = 0) -> bytes:
    """Return the bytes between the length of an ADD frame and its entry."""
    return (_ADD_WORD | flags).to_bytes(WORD_BYTES, "big") + master_key


def encode_stored_adds(entries: EntryBatch, master_key: bytes, flags: int = 0) -> tuple[bytes, np.ndarray]:
    """Return one ADD frame per entry, back to back, and the n + 1 bounds of the frames, int64.

    `entries` are whole stored entries, envelope included (`EntryDigest`, `gives_stored`): they travel byte for byte.
    """
    head = add_head(master_key, flags)
    sizes = np.diff(entries.offsets) + len(head)
    bounds = np.zeros(len(entries) + 1, np.int64)
    np.cumsum(sizes + LENGTH_BYTES, out=bounds[1:])
    view = memoryview(entries.buffer)
    lengths = sizes.astype(">i4").tobytes()
    parts: list[bytes | memoryview] = [head] * (3 * len(entries))
    parts[0::3] = [lengths[at : at + LENGTH_BYTES] for at in range(0, len(lengths), LENGTH_BYTES)]
    parts[2::3] = [view[start:end] for start, end in itertools.pairwise(entries.offsets.tolist())]
    return b"".join(parts), bounds


def encode_reads(ledger_id: int, entry_ids: np.ndarray, flags: int = 0, master_key: bytes | None = None) -> bytes:
    """Return one READ frame per entry id. With DO_FENCING in `flags`, `master_key` (20 bytes) is required."""
    fencing = bool(flags & DO_FENCING)
    frames = np.empty(len(entry_ids), _FENCING_READ if fencing else _READ)
    frames["size"] = frames.dtype.itemsize - LENGTH_BYTES
    frames["word"] = header_word(READ, flags)
    frames["ledger"] = ledger_id
    frames["entry"] = entry_ids
    if fencing:
        if master_key is None or len(master_key) != MASTER_KEY_BYTES:
            raise ValueError("a fencing read needs the 20-byte master key")
        frames["key"] = np.frombuffer(master_key, "V20")[0]
    return frames.tobytes()


def encode_batch_read(
    ledger_id: int,
    first_entry: int,
    request_id: int,
    entries_max: int,
    bytes_max: int,
    flags: int = 0,
    master_key: bytes | None = None,
) -> bytes:
    """Return a BATCH_READ frame; `bytes_max` bounds the whole reply frame (the first entry comes in any case)."""
    key = b""
    if flags & DO_FENCING:
        if master_key is None or len(master_key) != MASTER_KEY_BYTES:
            raise ValueError("a fencing read needs the 20-byte master key")
        key = master_key
    body = (_BATCH_READ_WORD | flags).to_bytes(WORD_BYTES, "big")
    body += _BATCH_READ_TAIL.pack(ledger_id, first_entry, request_id, entries_max, bytes_max) + key
    return len(body).to_bytes(4, "big") + body


# ---- client side: replies in ----


@dataclass(frozen=True, slots=True)
class Replies:
    """Replies of one receive buffer, as arrays of equal length.

    `body_starts`, `body_ends`: where the entry (READ) or the items (BATCH_READ) are in the buffer; equal when empty.
    `request_ids`: of BATCH_READ replies; -1 for the others.
    """

    opcodes: np.ndarray
    """ADD, READ, BATCH_READ and so on: to which kind of request this replies."""
    statuses: np.ndarray
    """V2's codes, which differ from V3's and from those of `wire.status`."""
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    request_ids: np.ndarray
    body_starts: np.ndarray
    body_ends: np.ndarray


def decode_single_add_reply(buffer: bytes | bytearray | memoryview, end: int) -> tuple[int, int, int] | None:
    """Return (status, ledger id, entry id) of the ADD reply that buffer[:end] consists of.

    None: it is anything else, for `decode_replies`.
    """
    if end != LENGTH_BYTES + REPLY_BYTES:
        return None
    length, word, status, ledger_id, entry_id = _REPLY_HEAD.unpack_from(buffer)
    return (status, ledger_id, entry_id) if length == REPLY_BYTES and word == _ADD_WORD else None


def decode_replies(buffer: bytes | bytearray | memoryview, table: FrameTable) -> Replies:
    """Return the replies whose frames `table` found in `buffer`.

    Raises:
        ProtocolError: a frame is shorter than its opcode's reply, or the version or opcode is not known.
    """
    starts, ends = table.starts, table.ends
    octets = np.frombuffer(buffer, np.uint8)
    if len(starts) and int((ends - starts).min()) < REPLY_BYTES:
        raise ProtocolError(f"a reply of {int((ends - starts).min())} bytes; the shortest has {REPLY_BYTES}")
    heads = gather(octets, starts, _REPLY_FIELDS)
    words = heads["word"].astype(np.int32)
    if ((words >> 24) != VERSION).any():
        raise ProtocolError(f"a reply with header word {int(words[np.argmax(words >> 24 != VERSION)]):#010x}")
    opcodes = words >> 16 & 0xFF
    batches = opcodes == BATCH_READ
    if not (batches | (opcodes == ADD) | (opcodes == READ)).all():
        raise ProtocolError(
            f"replies with opcodes {sorted(set(opcodes.tolist()))}; known are {ADD}, {READ}, {BATCH_READ}"
        )
    request_ids = np.full(len(starts), -1, np.int64)
    body_starts = starts + REPLY_BYTES
    if batches.any():
        if int((ends - starts)[batches].min()) < BATCH_REPLY_BYTES:
            raise ProtocolError(f"a batch read reply is shorter than {BATCH_REPLY_BYTES} bytes")
        request_ids[batches] = gather_i64(octets, starts[batches] + 24)
        body_starts[batches] += BATCH_REPLY_BYTES - REPLY_BYTES
    return Replies(
        opcodes,
        heads["status"].astype(np.int32),
        heads["ledger"].astype(np.int64),
        heads["entry"].astype(np.int64),
        request_ids,
        body_starts,
        ends,
    )


# ---- server side: requests in ----


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one receive buffer, as arrays of equal length, in order of arrival.

    `flags`: 0 for a request of another version. `ledger_ids`, `entry_ids`: of ADD, READ and BATCH_READ; -1 for AUTH.
    `starts`, `ends`: the frame bodies.
    """

    words: np.ndarray
    """The first word of each request: protocol version, opcode and flags, as it came."""
    opcodes: np.ndarray
    flags: np.ndarray
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.words)

    def key_starts(self) -> np.ndarray:
        """Return the offset of each request's 20-byte master key, -1 if it carries none."""
        fencing = (self.flags & DO_FENCING) != 0
        at = np.full(len(self.words), -1, np.int64)
        at = np.where(self.opcodes == ADD, self.starts + WORD_BYTES, at)
        at = np.where(fencing & (self.opcodes == READ), self.starts + READ_BYTES, at)
        return np.where(fencing & (self.opcodes == BATCH_READ), self.starts + BATCH_READ_BYTES, at)


def decode_requests(buffer: bytes | bytearray | memoryview, table: FrameTable) -> Requests:
    """Return the requests whose frames `table` found in `buffer`.

    Requests of other versions are decoded, without their flags, so that they can be refused (`refused_version`). No
    living client sends them.

    Raises:
        ProtocolError: a frame is shorter than its request, or its opcode is not known. The peer is answered by closing
            its connection.
    """
    starts, ends = table.starts, table.ends
    if len(starts) <= FEW_REQUESTS:
        return _decode_few(buffer, starts, ends)
    octets = np.frombuffer(buffer, np.uint8)
    sizes = ends - starts
    if int(sizes.min()) < WORD_BYTES:
        raise _no_word(int(sizes.min()))
    words = gather_i32(octets, starts)
    if bool((words == words[0]).all()):
        # Usually all requests have one kind: then every decision is made once.
        opcode, flags = _checked(int(words[0]), int(sizes.min()))
        opcodes, flag_words = np.full(len(words), opcode, np.int32), np.full(len(words), flags, np.int32)
        if opcode == AUTH:
            ledger_ids = entry_ids = np.full(len(words), -1, np.int64)
        else:
            ids_at = starts + (ADD_HEAD_BYTES if opcode == ADD else WORD_BYTES)
            ledger_ids, entry_ids = gather_i64(octets, ids_at), gather_i64(octets, ids_at + 8)
        return Requests(words, opcodes, flag_words, ledger_ids, entry_ids, starts, ends)
    opcodes, flag_words = np.empty_like(words), np.empty_like(words)
    ledger_ids, entry_ids = np.full(len(words), -1, np.int64), np.full(len(words), -1, np.int64)
    for word in np.unique(words).tolist():
        rows = np.flatnonzero(words == word)
        opcode, flags = _checked(word, int(sizes[rows].min()))
        opcodes[rows], flag_words[rows] = opcode, flags
        if opcode != AUTH:
            ids_at = starts[rows] + (ADD_HEAD_BYTES if opcode == ADD else WORD_BYTES)
            ledger_ids[rows], entry_ids[rows] = gather_i64(octets, ids_at), gather_i64(octets, ids_at + 8)
    return Requests(words, opcodes, flag_words, ledger_ids, entry_ids, starts, ends)


def _decode_few(buffer: bytes | bytearray | memoryview, starts: np.ndarray, ends: np.ndarray) -> Requests:
    """As `decode_requests`, for a few frames. It uses numbers, which are cheaper than arrays of a few items."""
    words, ids = [], []
    for start, end in zip(starts.tolist(), ends.tolist()):
        if end - start < WORD_BYTES:
            raise _no_word(end - start)
        (word,) = _WORD.unpack_from(buffer, start)
        opcode, flags = _checked(word, end - start)
        words.append((word, opcode, flags))
        at = start + (ADD_HEAD_BYTES if opcode == ADD else WORD_BYTES)
        ids.append(_NO_IDS if opcode == AUTH else _IDS.unpack_from(buffer, at))
    word_columns = np.array(words, np.int32).reshape(-1, 3).T.copy()
    ledger_ids, entry_ids = np.array(ids, np.int64).reshape(-1, 2).T.copy()
    return Requests(word_columns[0], word_columns[1], word_columns[2], ledger_ids, entry_ids, starts, ends)


def _no_word(size: int) -> ProtocolError:
    return ProtocolError(f"a request of {size} bytes has no header word")


def _checked(word: int, size: int) -> tuple[int, int]:
    """Return (opcode, flags) of a request from its header word and the size of its body; see `decode_requests`.

    Raises:
        ProtocolError: it has no answer, or is too short for its kind.
    """
    opcode, flags = word >> 16 & 0xFF, word & 0xFFFF
    if word >> 24 != VERSION:
        # In version 0 the word is the opcode.
        opcode, flags = word if word >> 24 == 0 else opcode, 0
        if opcode == AUTH:
            raise ProtocolError(f"header word {word & 0xFFFFFFFF:#010x} is not V2")
    if opcode not in (ADD, READ, BATCH_READ, AUTH):
        raise ProtocolError(f"opcode {opcode} is not served in V2")
    needed = _REQUEST_BYTES_MIN[opcode]
    if flags & DO_FENCING and opcode in (READ, BATCH_READ):
        needed += MASTER_KEY_BYTES
    if size < needed:
        raise ProtocolError(f"a request with opcode {opcode} has {size} bytes, not {needed}")
    return opcode, flags


def decode_batch_read_limits(buffer: bytes | bytearray | memoryview, start: int) -> tuple[int, int, int]:
    """Return (request id, entries_max, bytes_max) of the BATCH_READ request whose body begins at `start`."""
    _, _, request_id, entries_max, bytes_max = _BATCH_READ_TAIL.unpack_from(buffer, start + WORD_BYTES)
    return request_id, entries_max, bytes_max


# ---- server side: replies out ----


def encode_replies(
    opcodes: np.ndarray | int, statuses: np.ndarray | int, ledgers: np.ndarray, entries: np.ndarray
) -> bytes:
    """Return one reply frame without a body per (ledger, entry): every ADD's, and READs that failed."""
    frames = np.empty(len(ledgers), _REPLY)
    frames["size"] = REPLY_BYTES
    frames["word"] = VERSION << 24 | np.asarray(opcodes, np.int32) << 16
    frames["status"] = statuses
    frames["ledger"] = ledgers
    frames["entry"] = entries
    return frames.tobytes()


def decode_single_add(buffer: memoryview, end: int, frame_bytes_max: int) -> SingleAdd | None:
    """Return the add that buffer[:end] consists of; None: it is anything else, for `decode_requests`."""
    if end < _SINGLE_ADD.size:
        return None
    length, word, master_key, ledger_id, entry_id, lac = _SINGLE_ADD.unpack_from(buffer)
    if word & ~(RECOVERY_ADD | HIGH_PRIORITY) != _ADD_WORD or length != end - LENGTH_BYTES or length > frame_bytes_max:
        return None
    return SingleAdd(
        ledger_id,
        entry_id,
        lac,
        master_key,
        _ADD_ENTRY_AT,
        end - _ADD_ENTRY_AT,
        encode_add_reply,
        bool(word & RECOVERY_ADD),
    )


def encode_add_reply(ledger_id: int, entry_id: int) -> bytes:
    """Return the EOK reply to one ADD."""
    return _REPLY_HEAD.pack(REPLY_BYTES, _ADD_WORD, EOK, ledger_id, entry_id)


def encode_read_reply_head(ledger_id: int, entry_id: int, entry_bytes: int) -> bytes:
    """Return what precedes the stored entry in an EOK reply; `entry_id` is the requested one (-1 stays -1)."""
    return _REPLY_HEAD.pack(REPLY_BYTES + entry_bytes, header_word(READ), Status.EOK, ledger_id, entry_id)


def encode_read_replies(ledger_ids: np.ndarray, entries: PlacedEntries) -> bytes | memoryview:
    """Return the EOK replies to the reads of these entries; `ledger_ids`: one for each, or one for all."""
    if len(entries) == 1:
        # Reads of entries that lie far apart are found one by one: 0.6 us each, where the arrays below take 9 us.
        start, size = entries.starts.item(), entries.sizes.item()
        head = encode_read_reply_head(ledger_ids.item(), entries.entry_ids.item(), size)
        return b"".join((head, entries.octets[start : start + size]))
    heads = np.empty(len(entries), _REPLY)
    heads["size"] = entries.sizes + REPLY_BYTES
    heads["word"] = header_word(READ)
    heads["status"] = Status.EOK
    heads["ledger"] = ledger_ids
    heads["entry"] = entries.entry_ids
    return frames_around(heads.view(np.uint8).reshape(len(entries), _REPLY.itemsize), entries)


def encode_batch_reply_head(ledger_id: int, first_entry: int, request_id: int, status: int, items_bytes: int) -> bytes:
    """Return what precedes the items (`i32 length, entry` each) of a BATCH_READ reply."""
    return _BATCH_REPLY_HEAD.pack(
        BATCH_REPLY_BYTES + items_bytes, _BATCH_READ_WORD, status, ledger_id, first_entry, request_id
    )


def refused_version(buffer: bytes | bytearray | memoryview, requests: Requests, row: int) -> bytes:
    """Return the EBADVERSION reply to a request of another version, which the reply repeats; `buffer` has it."""
    word, opcode = requests.words.item(row), requests.opcodes.item(row)
    ids = requests.ledger_ids[row : row + 1], requests.entry_ids[row : row + 1]
    reply = encode_replies(opcode, Status.EBADVERSION, *ids)
    if opcode == BATCH_READ:
        request_id, _, _ = decode_batch_read_limits(buffer, requests.starts.item(row))
        reply = encode_batch_reply_head(ids[0].item(), ids[1].item(), request_id, Status.EBADVERSION, 0)
    answered = word if word >> 24 == 0 else word & ~0xFFFF
    return reply[:LENGTH_BYTES] + _WORD.pack(answered) + reply[LENGTH_BYTES + WORD_BYTES :]


def encode_auth_reply(message: bytes) -> bytes:
    """Return an AUTH frame around a serialised AuthMessage."""
    body = header_word(AUTH).to_bytes(4, "big") + message
    return len(body).to_bytes(4, "big") + body
