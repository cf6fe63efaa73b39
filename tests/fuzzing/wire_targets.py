"""Targets of what comes over a connection: frames, V2, V3, digests, lists of entries, local reads.

The codecs of whole batches are held against what takes one frame at a time: `v2` against itself on single frames, V3's
array codecs against protobuf's classes, digests of many entries against that of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import DigestMismatch, ProtocolError
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import entry_lists, lac, local_reads, v2, v3, v3_adds, v3_reads
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from bkspark.wire.entry_lists import EntryRuns
from bkspark.wire.flags import AddFlags
from bkspark.wire.framing import LENGTH_BYTES, FrameTable, count_leading, scan_frames, split_items
from bkspark.wire.single_add import SingleAdd
from bkspark.wire.v3_patterns import number
from bkspark.wire.v3_single_add import decode_single_add
from bkspark.wire.v3_single_read import SingleRead, decode_single_read
from bookie_service.storage.io.framed_entries import FramedEntries
from tests.fuzzing.target import INT64_MAX, Draw, Target
from tests.wire.single_lacs import may_add

KEY = master_key(b"")
_LIMITS = (0, 24, 1 << 20)


def framed(*bodies: bytes) -> bytes:
    """Return bodies one after the other, each after its length."""
    return b"".join(len(body).to_bytes(LENGTH_BYTES, "big") + body for body in bodies)


def _bodies(buffer: bytes, table: FrameTable) -> Iterator[bytes]:
    for start, end in zip(table.starts.tolist(), table.ends.tolist()):
        yield buffer[start:end]


# ---- frames ----


def _scan(data: bytes) -> tuple[object, object]:
    draw = Draw(data)
    limit, start = draw.choice(_LIMITS), draw.below(5)
    buffer = draw.rest()
    start = min(start, len(buffer))
    return _outcome(lambda: _lists(scan_frames(buffer, len(buffer), limit, start))), _outcome(
        lambda: _frames_one_by_one(buffer, limit, start)
    )


def _outcome(act: Callable[[], object]) -> object:
    try:
        return act()
    except ProtocolError:
        return "refused"


def _lists(table: FrameTable) -> tuple[list[int], list[int], int]:
    return table.starts.tolist(), table.ends.tolist(), table.consumed


def _frames_one_by_one(buffer: bytes, limit: int, at: int) -> tuple[list[int], list[int], int]:
    starts, ends = [], []
    while at + LENGTH_BYTES <= len(buffer):
        length = int.from_bytes(buffer[at : at + LENGTH_BYTES], "big", signed=True)
        if not 0 <= length <= limit:
            raise ProtocolError("a wrong length")
        if at + LENGTH_BYTES + length > len(buffer):
            break
        starts.append(at + LENGTH_BYTES)
        ends.append(at + LENGTH_BYTES + length)
        at = ends[-1]
    return starts, ends, at


def _are_equal(pair: tuple[object, object]) -> None:
    assert pair[0] == pair[1], f"all at once {pair[0]}, one by one {pair[1]}"


def _split(data: bytes) -> tuple[object, object]:
    def one_by_one() -> tuple[list[int], list[int]]:
        starts, ends, consumed = _frames_one_by_one(data, len(data), 0)
        if consumed != len(data):
            raise ProtocolError("a part of an item")
        return starts, ends

    def at_once() -> tuple[list[int], list[int]]:
        starts, ends = split_items(data, 0, len(data))
        return starts.tolist(), ends.tolist()

    return _outcome(at_once), _outcome(one_by_one)


# ---- V2 ----


def _v2_requests(data: bytes) -> tuple[object, object]:
    table = scan_frames(data, len(data))
    one_by_one = [
        _outcome(lambda row=row: _request_rows(data, table.take(slice(row, row + 1)))) for row in range(len(table))
    ]
    # Several times, so that arrays decode them: few requests are decoded with numbers.
    copies = data[: table.consumed] * (1 + v2.FEW_REQUESTS // max(1, len(table)))
    at_once = _outcome(lambda: _request_rows(copies, scan_frames(copies, len(copies)))[: len(table)])
    return at_once, "refused" if "refused" in one_by_one else [each for rows in one_by_one for each in rows]  # type: ignore[attr-defined]


def _request_rows(data: bytes, table: FrameTable) -> list[tuple[int, ...]]:
    requests = v2.decode_requests(data, table)
    keys = requests.key_starts().tolist()
    for opcode, start, end, key in zip(
        requests.opcodes.tolist(), requests.starts.tolist(), requests.ends.tolist(), keys
    ):
        assert key == -1 or start <= key <= end - 20, "a key outside its frame"
        if opcode == v2.BATCH_READ:
            v2.decode_batch_read_limits(data, start)
    columns = (requests.words, requests.opcodes, requests.flags, requests.ledger_ids, requests.entry_ids)
    return list(zip(*(column.tolist() for column in (*columns, requests.starts, requests.ends)), keys))


def _v2_replies(data: bytes) -> tuple[object, object]:
    table = scan_frames(data, len(data))
    one_by_one = [
        _outcome(lambda row=row: _reply_rows(data, table.take(slice(row, row + 1)))) for row in range(len(table))
    ]
    at_once = _outcome(lambda: _reply_rows(data, table))
    return at_once, "refused" if "refused" in one_by_one else [each for rows in one_by_one for each in rows]  # type: ignore[attr-defined]


def _reply_rows(data: bytes, table: FrameTable) -> list[tuple[int, ...]]:
    replies = v2.decode_replies(data, table)
    columns = (replies.opcodes, replies.statuses, replies.ledger_ids, replies.entry_ids, replies.request_ids)
    rows = list(zip(*(column.tolist() for column in (*columns, replies.body_starts, replies.body_ends))))
    for (opcode, status, *_, body_start, body_end), start, end in zip(rows, table.starts.tolist(), table.ends.tolist()):
        assert start <= body_start <= body_end == end, "a body outside its frame"
        if opcode == v2.BATCH_READ and status == v2.EOK:
            _outcome(lambda low=body_start, high=body_end: split_items(data, low, high))
    return rows


def v2_request_seeds() -> Iterator[bytes]:
    """Yield frames of V2 requests."""
    digest = EntryDigest(DigestType.CRC32C, b"")
    batch = EntryBatch.of([b"one", b"two"], ledger_id=7, first_entry=3)
    adds = bytes(v2.encode_adds(batch, 2, 10, digest, KEY).buffer)
    yield adds
    yield v2.encode_reads(7, np.arange(3), 0)
    yield v2.encode_reads(7, np.array([-1]), v2.DO_FENCING, KEY)
    yield v2.encode_batch_read(7, 0, 1, 100, 1 << 20)
    yield v2.encode_batch_read(7, 0, 1, 100, 1 << 20, v2.DO_FENCING, KEY) + adds
    yield v2.encode_auth_reply(b"\x0a\x03abc")


def _v2_reply_seeds() -> Iterator[bytes]:
    entry = stored_entry(7, 3, b"payload")
    ids = np.array([3, 4, 5])
    yield v2.encode_replies(v2.ADD, 0, np.full(3, 7), ids)
    yield v2.encode_add_reply(7, 3)
    yield v2.encode_read_reply_head(7, 3, len(entry)) + entry
    items = framed(entry, stored_entry(7, 4, b""))
    yield v2.encode_batch_reply_head(7, 3, 1, 0, len(items)) + items
    yield v2.encode_replies(v2.READ, v2.Status.ENOENTRY, np.full(3, 7), ids)


def stored_entry(ledger_id: int, entry_id: int, payload: bytes, kind: DigestType = DigestType.CRC32C) -> bytes:
    """Return an entry as a bookie stores it: with its header and its digest."""
    batch = EntryBatch.of([payload], ledger_id=ledger_id, first_entry=entry_id)
    return bytes(EntryDigest(kind, b"").seal(batch, entry_id - 1, 0).buffer)[LENGTH_BYTES:]


def _v2_built(data: bytes) -> None:
    """What one side encodes the other decodes to the same."""
    draw = Draw(data)
    ledger_id, first = draw.entry_id(), draw.entry_id()
    count = 1 + draw.below(5)
    ids = np.array([draw.entry_id() for _ in range(count)])
    fencing = draw.flag()
    encoded = v2.encode_reads(ledger_id, ids, v2.DO_FENCING if fencing else 0, KEY if fencing else None)
    found = v2.decode_requests(encoded, scan_frames(encoded, len(encoded)))
    assert found.entry_ids.tolist() == ids.tolist()
    assert set(found.ledger_ids.tolist()) == {ledger_id}
    assert all((encoded[at : at + 20] == KEY) if fencing else at == -1 for at in found.key_starts().tolist())
    limits = draw.int64(), draw.below(1 << 16), draw.int64()
    encoded = v2.encode_batch_read(ledger_id, first, *limits)
    found = v2.decode_requests(encoded, scan_frames(encoded, len(encoded)))
    assert (found.opcodes.tolist(), found.entry_ids.tolist()) == ([v2.BATCH_READ], [first])
    assert v2.decode_batch_read_limits(encoded, LENGTH_BYTES) == limits
    statuses = np.array([draw.choice(tuple(v2.Status)) for _ in range(count)], np.int32)
    encoded = v2.encode_replies(draw.choice((v2.ADD, v2.READ)), statuses, np.full(count, ledger_id), ids)
    replies = v2.decode_replies(encoded, scan_frames(encoded, len(encoded)))
    assert (replies.statuses.tolist(), replies.entry_ids.tolist()) == (statuses.tolist(), ids.tolist())


# ---- V3 ----


def _v3_requests(data: bytes) -> None:
    table = scan_frames(data, len(data))
    octets = np.frombuffer(data, np.uint8)
    count_leading(octets, table, v3.FIRST_BYTE)
    bodies = list(_bodies(data, table))
    for first in range(len(table)):
        if adds := v3_adds.decode_adds(octets, table, first):
            _adds_are_protobufs(data, bodies[first:], adds)
        if reads := v3_reads.decode_reads(octets, table, first):
            _reads_are_protobufs(bodies[first:], reads)
        if add := decode_single_add(
            memoryview(data)[table.starts[first] - LENGTH_BYTES :], len(bodies[first]) + 4, 1 << 30
        ):
            _single_add_is_protobufs(bodies[first], add)
        if read := decode_single_read(bodies[first]):
            _single_read_is_protobufs(bodies[first], read)
        _outcome(lambda first=first: v3.decode_request(bodies[first]))


def _adds_are_protobufs(data: bytes, bodies: list[bytes], adds: v3_adds.AddRequests) -> None:
    assert 0 < len(adds) <= len(bodies)
    for row, body in enumerate(bodies[: len(adds)]):
        request = v3.decode_request(body)
        add = request.addRequest
        assert request.header.operation == protocol.ADD_ENTRY
        assert _signed(request.header.txnId) == adds.txn_ids[row]
        assert (add.ledgerId, add.entryId) == (adds.ledger_ids[row], adds.entry_ids[row])
        assert add.masterKey == data[adds.key_starts[row] : adds.key_starts[row] + 20]
        assert add.body == data[adds.body_starts[row] : adds.body_ends[row]]
        assert (add.HasField("flag") and add.flag == protocol.AddRequest.RECOVERY_ADD) == adds.is_recovery
        assert bool(request.header.priority) == bool(adds.priority & 0xFFFFFFFF)
        assert add.writeFlags & 1 == adds.write_flags & 1


def _reads_are_protobufs(bodies: list[bytes], reads: v3_reads.ReadRequests) -> None:
    assert 0 < len(reads) <= len(bodies)
    for row, body in enumerate(bodies[: len(reads)]):
        request = v3.decode_request(body)
        read = request.readRequest
        assert request.header.operation == protocol.READ_ENTRY
        assert _signed(request.header.txnId) == reads.txn_ids[row]
        assert (read.ledgerId, read.entryId) == (reads.ledger_ids[row], reads.entry_ids[row])
        is_fencing = read.HasField("flag") and read.flag == protocol.ReadRequest.FENCE_LEDGER
        assert (read.masterKey if is_fencing else None) == reads.fencing_key


def _single_add_is_protobufs(body: bytes, single: SingleAdd) -> None:
    request = v3.decode_request(body)
    add, entry_at = request.addRequest, single.entry_at - LENGTH_BYTES
    assert (request.header.operation, request.header.version) == (protocol.ADD_ENTRY, protocol.VERSION_THREE)
    assert (add.ledgerId, add.entryId, add.masterKey) == (single.ledger_id, single.entry_id, single.master_key)
    assert add.body == body[entry_at : entry_at + single.size]
    assert (add.HasField("flag") and add.flag == protocol.AddRequest.RECOVERY_ADD) == single.is_recovery
    assert not add.writeFlags
    assert not add.bypassJournal
    answer = protocol.Response.FromString(single.acknowledgement(single.ledger_id, single.entry_id)[LENGTH_BYTES:])
    assert answer.header.txnId == request.header.txnId


def _single_read_is_protobufs(body: bytes, single: SingleRead) -> None:
    request = v3.decode_request(body)
    read = request.readRequest
    assert (request.header.operation, request.header.version) == (protocol.READ_ENTRY, protocol.VERSION_THREE)
    assert request.header.txnId == number(single.txn_id)
    assert (read.ledgerId, read.entryId) == (single.ledger_id, single.entry_id)
    is_fencing = read.HasField("flag") and read.flag == protocol.ReadRequest.FENCE_LEDGER
    assert (read.masterKey if is_fencing else None) == single.fencing_key
    assert not read.HasField("previousLAC")


def _signed(number: int) -> int:
    return number - (1 << 64) if number > INT64_MAX else number


def _v3_responses(data: bytes) -> None:
    table = scan_frames(data, len(data))
    octets = np.frombuffer(data, np.uint8)
    bodies = list(_bodies(data, table))
    for first in range(len(table)):
        if adds := v3.decode_add_responses(octets, table, first):
            assert 0 < len(adds) <= len(bodies) - first
            v3.statuses_of(adds.statuses)
            for row, body in enumerate(bodies[first : first + len(adds)]):
                response = v3.decode_response(body)
                found = response.addResponse
                assert _signed(response.header.txnId) == adds.txn_ids[row]
                assert (found.ledgerId, found.entryId) == (adds.ledger_ids[row], adds.entry_ids[row])
        if table.ends[first] > table.starts[first] and (reads := v3_reads.decode_read_responses(octets, table, first)):
            assert 0 < len(reads) <= len(bodies) - first
            v3.statuses_of(reads.statuses)
            for row, body in enumerate(bodies[first : first + len(reads)]):
                response = v3.decode_response(body)
                assert _signed(response.header.txnId) == reads.txn_ids[row]
                assert response.readResponse.body == data[reads.body_starts[row] : reads.body_ends[row]]
        _outcome(lambda first=first: v3.decode_response(bodies[first]))


def v3_request_seeds() -> Iterator[bytes]:
    """Yield frames of V3 requests."""
    batch = EntryBatch.of([b"one", b"three"], ledger_id=7, first_entry=300)
    sealed = EntryDigest(DigestType.CRC32C, b"").seal(batch, 2, 10)
    yield bytes(v3.encode_adds(sealed, 7, 1, KEY).buffer)
    yield bytes(v3.encode_adds(sealed, 7, 1, KEY, AddFlags(is_recovery=True, is_urgent=True, is_deferred=True)).buffer)
    yield bytes(v3.encode_adds(sealed, 7, 1, KEY, AddFlags(bypasses_journal=True)).buffer)
    yield v3_reads.encode_reads(7, np.arange(126, 130), 1)
    yield v3_reads.encode_reads(7, np.arange(3), 1, KEY, priority=100)
    for name, fields in (
        ("readLacRequest", {"ledgerId": 7}),
        ("writeLacRequest", {"ledgerId": 7, "lac": 3, "masterKey": KEY, "body": b"packet"}),
        ("getBookieInfoRequest", {"requested": 3}),
        ("forceLedgerRequest", {"ledgerId": 7}),
        ("getListOfEntriesOfLedgerRequest", {"ledgerId": 7}),
        ("readRequest", {"ledgerId": 7, "entryId": 3, "previousLAC": 2, "timeOut": 1000}),
        ("batchReadRequest", {"ledgerId": 7, "startEntryId": 3, "maxCount": 10, "maxSize": 1000, "requestId": 1}),
    ):
        request = protocol.Request(header=v3.header(_operation_of(name), 5))
        if name in request.DESCRIPTOR.fields_by_name:
            part = getattr(request, name)
            known = part.DESCRIPTOR.fields_by_name
            for field, value in fields.items():
                if field in known:
                    setattr(part, field, value)
            part.SetInParent()
            yield v3.encode_message(request)


def _operation_of(name: str) -> int:
    names = {
        "readLacRequest": "READ_LAC",
        "writeLacRequest": "WRITE_LAC",
        "getBookieInfoRequest": "GET_BOOKIE_INFO",
        "forceLedgerRequest": "FORCE_LEDGER",
        "getListOfEntriesOfLedgerRequest": "GET_LIST_OF_ENTRIES_OF_LEDGER",
        "readRequest": "READ_ENTRY",
        "batchReadRequest": "BATCH_READ_ENTRY",
    }
    return int(protocol.OperationType.Value(names[name])) if names[name] in dict(protocol.OperationType.items()) else 1


def _v3_response_seeds() -> Iterator[bytes]:
    ids = np.array([3, 4, 300])
    ledgers, statuses = np.full(3, 7), np.zeros(3, np.int64)
    yield v3.encode_add_responses(ids, statuses, ledgers, ids)
    yield v3.encode_add_responses(ids, np.full(3, 504), ledgers, ids, last_synced=ids)
    yield v3_reads.encode_read_failures(ids, 403, ledgers, ids)
    entries = [stored_entry(7, 3, b"one"), stored_entry(7, 4, b"three")]
    items = framed(*entries)
    sizes = np.array([len(entry) + LENGTH_BYTES for entry in entries])
    placed = FramedEntries(3, items, sizes).placed(3)
    yield bytes(v3_reads.encode_read_responses(ids[:2], np.array([7]), placed, None))
    yield bytes(v3_reads.encode_read_responses(ids[:2], np.array([7]), placed, np.array([2])))


def _v3_built(data: bytes) -> None:
    """The array codecs write what protobuf's classes write, and take what these wrote."""
    draw = Draw(data)
    count = 1 + draw.below(4)
    txn_ids = np.array([draw.entry_id() for _ in range(count)])
    ledger_id = draw.entry_id()
    entry_ids = np.array([draw.entry_id() for _ in range(count)])
    statuses = np.array([draw.choice(tuple(v3.StatusCode)) for _ in range(count)], np.int64)
    synced = np.array([draw.int64() for _ in range(count)]) if draw.flag() else None
    encoded = v3.encode_add_responses(txn_ids, statuses, np.full(count, ledger_id), entry_ids, synced)
    expected = b""
    for row in range(count):
        response = protocol.Response(header=v3.header(protocol.ADD_ENTRY, int(txn_ids[row])), status=int(statuses[row]))
        response.addResponse.status = int(statuses[row])
        response.addResponse.ledgerId, response.addResponse.entryId = ledger_id, int(entry_ids[row])
        if synced is not None and "lastAddSynced" in response.addResponse.DESCRIPTOR.fields_by_name:
            response.addResponse.lastAddSynced = int(synced[row])
        expected += v3.encode_message(response)
    if synced is None:
        assert encoded == expected
    table = scan_frames(encoded, len(encoded))
    found = v3.decode_add_responses(np.frombuffer(encoded, np.uint8), table, 0)
    assert found is not None
    assert found.entry_ids.tolist() == entry_ids[: len(found)].tolist()
    fencing_key = KEY if draw.flag() else None
    encoded = v3_reads.encode_reads(ledger_id, entry_ids, 5, fencing_key)
    table = scan_frames(encoded, len(encoded))
    reads = v3_reads.decode_reads(np.frombuffer(encoded, np.uint8), table, 0)
    assert reads is not None
    assert (reads.entry_ids.tolist(), reads.fencing_key) == (entry_ids[: len(reads)].tolist(), fencing_key)
    batch = EntryBatch.of([draw.blob() for _ in range(count)], ledger_id=ledger_id, first_entry=draw.below(1 << 16))
    sealed = EntryDigest(DigestType.CRC32, b"").seal(batch, -1, 0)
    adds = bytes(v3.encode_adds(sealed, ledger_id, 5, KEY, AddFlags(draw.flag(), is_urgent=draw.flag())).buffer)
    table = scan_frames(adds, len(adds))
    first = 0
    while first < len(table):
        decoded = v3_adds.decode_adds(np.frombuffer(adds, np.uint8), table, first)
        assert decoded is not None
        _adds_are_protobufs(adds, list(_bodies(adds, table))[first:], decoded)
        first += len(decoded)
    assert len(table) == count


# ---- digests ----


def _open_entries(data: bytes) -> None:
    """Many entries at once are judged as each is alone, and the buffer is as it was."""
    draw = Draw(data)
    digest = EntryDigest(draw.choice(tuple(DigestType)), b"secret")
    ledger_id, first = draw.entry_id(), draw.below(1 << 16)
    is_writable, is_sealed = draw.flag(), draw.flag()
    count = 1 + draw.below(20)
    if is_sealed:
        size = draw.below(64)
        payloads = [draw.blob() if draw.below(4) == 0 else bytes(size) for _ in range(count)]
        sealed = digest.seal(EntryBatch.of(payloads, ledger_id=ledger_id, first_entry=first), first - 1, 0)
        buffer = bytearray(sealed.buffer)
        starts, ends = sealed.offsets[:-1] + LENGTH_BYTES, sealed.offsets[1:]
        for _ in range(draw.below(3)):
            buffer[draw.below(1 << 16) % len(buffer)] ^= 1 << draw.below(8)
    else:
        sizes = np.array([draw.below(96) for _ in range(count)])
        buffer = bytearray(draw.rest().ljust(int(sizes.sum()), b"\0"))
        ends = np.cumsum(sizes)
        starts = ends - sizes
    before = bytes(buffer)
    ids = np.arange(first, first + count)
    opened = digest.open_entries(buffer if is_writable else before, starts, ends, ledger_id, ids)
    assert bytes(buffer) == before, "the buffer was changed"
    faults = [
        _fault_of(digest, memoryview(before)[start:end], ledger_id, entry_id)
        for start, end, entry_id in zip(starts.tolist(), ends.tolist(), ids.tolist())
    ]
    bad = next((index for index, fault in enumerate(faults) if fault is not None), None)
    assert (None if opened.bad is None else opened.bad[0]) == bad
    assert len(opened) == (count if bad is None else bad)
    batch = opened.to_batch(ledger_id, first)
    overhead = digest.overhead_bytes
    assert list(batch) == [before[s + overhead : e] for s, e in zip(starts.tolist(), ends.tolist())][: len(opened)]


def _fault_of(digest: EntryDigest, entry: memoryview, ledger_id: int, entry_id: int) -> str | None:
    """Return the error of one stored entry, or None, by numbers where `open_entries` uses arrays."""
    envelope_bytes = digest.overhead_bytes
    if len(entry) < envelope_bytes:
        return "too short"
    return digest.fault_of(entry[:envelope_bytes], entry[envelope_bytes:], ledger_id, entry_id)


def _open_one(data: bytes) -> None:
    draw = Draw(data)
    digest = EntryDigest(draw.choice(tuple(DigestType)), b"")
    ledger_id = draw.int64()
    digest.open_entry(draw.rest(), ledger_id, None)


def _open_lac(data: bytes) -> tuple[EntryDigest, int, int, bytes]:
    draw = Draw(data)
    digest = EntryDigest(draw.choice(tuple(DigestType)), b"")
    ledger_id = draw.below(3)
    packet = draw.rest()
    return digest, ledger_id, digest.open_lac(packet, ledger_id), packet


def _lac_seals_again(opened: tuple[EntryDigest, int, int, bytes]) -> None:
    digest, ledger_id, lac, packet = opened
    assert digest.seal_lac(ledger_id, lac) == packet


def _lac_rules(data: bytes) -> None:
    """Which LACs are possible is decided alike for many entries and for one."""
    draw = Draw(data)
    count = 1 + draw.below(6)
    ids = np.array([draw.int64() for _ in range(count)])
    lacs = np.array([draw.int64() for _ in range(count)])
    recovery = np.array([draw.flag() for _ in range(count)])
    bounds = lac.LacBounds(draw.choice((-1, 0, 10, INT64_MAX - 1)), draw.choice((0, 10, INT64_MAX - 1)))
    rows = list(zip(ids.tolist(), lacs.tolist(), recovery.tolist()))
    may = [may_add(entry_id, it, is_recovery=flag) for entry_id, it, flag in rows]
    assert lac.may_add_each(ids, lacs, recovery).tolist() == may
    admitted = [bounds.admits(entry_id, it) for entry_id, it, _ in rows]
    assert bounds.admit_each(ids, lacs).tolist() == admitted
    for (entry_id, it, _), is_admitted in zip(rows, admitted):
        if is_admitted:
            assert -1 <= bounds.learned(entry_id, it) <= max(entry_id - 1, bounds.copies_to)


# ---- lists of entries ----


def _decode_list(data: bytes) -> EntryRuns:
    """As for a ledger of 100,000 entries: what a list costs grows with them."""
    return entry_lists.decode_entry_list(data, runs_max=100_000)


def _runs_are_sound(runs: EntryRuns) -> None:
    starts, sizes = runs.starts.tolist(), runs.sizes.tolist()
    assert all(size > 0 for size in sizes)
    ends = [start + size for start, size in zip(starts, sizes)]
    assert all(start >= 0 for start in starts)
    assert all(end - 1 <= INT64_MAX for end in ends)
    assert all(after >= end for end, after in zip(ends, starts[1:])), "an entry twice"
    if len(starts) <= 1000:
        encoded = entry_lists.encode_entry_list(runs, 1 << 20)
        assert encoded is not None
        _alike(entry_lists.decode_entry_list(encoded), runs)


def _alike(found: EntryRuns, expected: EntryRuns) -> None:
    found, expected = found.joined(), expected.joined()
    assert (found.starts.tolist(), found.sizes.tolist()) == (expected.starts.tolist(), expected.sizes.tolist())


def _list_built(data: bytes) -> EntryRuns:
    """Whatever entries a ledger holds, their list can be written and says so."""
    draw = Draw(data)
    at, starts, sizes = 0, [], []
    while not draw.is_empty and len(starts) < 64:
        at += draw.choice((0, 1, 2, 3, 10, 1 << 31, (1 << 31) + 1, 1 << 40)) + draw.below(4)
        size = draw.choice((1, 1, 1, 2, 3, 1 << 31, (1 << 31) - 1, 1 << 33))
        if at + size > INT64_MAX:
            break
        if starts and at < starts[-1] + sizes[-1]:
            at = starts[-1] + sizes[-1]
        starts.append(at)
        sizes.append(size)
        at += size
    return EntryRuns(np.array(starts, np.int64), np.array(sizes, np.int64)).joined()


def _list_seeds() -> Iterator[bytes]:
    for ids in ([], [0], [0, 1, 2], [0, 3, 6, 9], [1, 2, 5, 6, 9, 10, 40]):
        encoded = entry_lists.encode_entry_list(EntryRuns.of(np.array(ids, np.int64)), 100)
        assert encoded is not None
        yield encoded


# ---- local reads ----


def _local_read(data: bytes) -> local_reads.LocalRead:
    return local_reads.LocalRead.decode(data)


def _local_read_encodes_again(request: local_reads.LocalRead) -> None:
    assert local_reads.LocalRead.decode(request.encode()) == request


def _offsets_encode_again(offsets: np.ndarray | None) -> None:
    if offsets is not None:
        assert (np.diff(offsets) >= LENGTH_BYTES).all()
        assert local_reads.decode_reply(local_reads.encode_found(offsets)).tolist() == offsets.tolist()  # type: ignore[union-attr]


_REFUSED = (ProtocolError,)

TARGETS = (
    Target("wire-frames", _scan, (), _are_equal, lambda: [b"\2\0" + framed(b"abc", b"abc", b"", b"x" * 9)]),
    Target("wire-items", _split, (), _are_equal, lambda: [framed(*[b"abcd"] * 6), framed(b"", b"a", b"bc")]),
    Target("wire-v2-requests", _v2_requests, _REFUSED, _are_equal, v2_request_seeds),
    Target("wire-v2-replies", _v2_replies, _REFUSED, _are_equal, _v2_reply_seeds),
    Target("wire-v2-built", _v2_built, (), None, lambda: [bytes(range(64))]),
    Target("wire-v3-requests", _v3_requests, _REFUSED, None, v3_request_seeds),
    Target("wire-v3-responses", _v3_responses, _REFUSED, None, _v3_response_seeds),
    Target("wire-v3-built", _v3_built, (), None, lambda: [bytes(range(64)), bytes(range(255, 100, -1))]),
    Target("wire-entries", _open_entries, (), None, lambda: [bytes(range(200)), bytes(300)]),
    Target("wire-entry", _open_one, (DigestMismatch,), None, lambda: [b"\2\0\7" + stored_entry(7, 3, b"x")]),
    Target(
        "wire-lac-packet",
        _open_lac,
        (DigestMismatch,),
        _lac_seals_again,
        lambda: [b"\3\1" + (1 << 64 | 5).to_bytes(16, "big")],
    ),
    Target("wire-lac-rules", _lac_rules, (), None, lambda: [bytes(range(60)), bytes(60)]),
    Target("wire-entry-list", _decode_list, _REFUSED, _runs_are_sound, _list_seeds),
    Target("wire-entry-list-built", _list_built, (), _runs_are_sound, lambda: [bytes(range(40)), b"\3\0\0" * 9]),
    Target(
        "wire-local-read",
        _local_read,
        _REFUSED,
        _local_read_encodes_again,
        lambda: [local_reads.LocalRead("127.0.0.1:3181", b"\x7f\0\0\1", 7, 3, 100, 1 << 20).encode()],
    ),
    Target(
        "wire-local-reply",
        local_reads.decode_reply,
        _REFUSED,
        _offsets_encode_again,
        lambda: [local_reads.NOT_HERE, local_reads.encode_found(np.array([1028, 1100, 1200]))],
    ),
)
