"""V2 frames against the vectors of the interoperability reference, section 11; every truncation; random bytes."""

import struct

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import ProtocolError
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from bkspark.wire.framing import EQUAL_FRAMES_MAX, scan_frames, split_items

KEY = master_key(b"testPasswd")
ADD_5_7 = bytes.fromhex(
    "00000041020100002e2a69d870796fe05c0e77c52a29ce5e4222b758"
    "00000000000000050000000000000007000000000000000600000000000000699486248768656c6c6f"
)
ADD_REPLY = bytes.fromhex("00000018020100000000000000000000000000050000000000000007")
READ_5_7 = bytes.fromhex("000000140202000000000000000000050000000000000007")
FENCE_5 = bytes.fromhex("00000028020200010000000000000005ffffffffffffffff2e2a69d870796fe05c0e77c52a29ce5e4222b758")
BATCH_5_7 = bytes.fromhex("00000028020700000000000000000005000000000000000700000000000000630000000a0000000000100000")
REQUESTS = [ADD_5_7, READ_5_7, FENCE_5, BATCH_5_7]


def requests_of(data):
    return v2.decode_requests(data, scan_frames(data, len(data)))


def replies_of(data):
    return v2.decode_replies(data, scan_frames(data, len(data)))


def test_add_matches_vector():
    digest = EntryDigest(DigestType.CRC32C, b"testPasswd")
    frames = v2.encode_adds(EntryBatch.of([b"hello"], 5, 7), 6, 100, digest, KEY)
    assert bytes(frames.buffer) == ADD_5_7


def test_reads_match_vectors():
    assert v2.encode_reads(5, np.array([7])) == READ_5_7
    assert v2.encode_reads(5, np.array([-1]), v2.DO_FENCING, KEY) == FENCE_5
    assert v2.encode_batch_read(5, 7, 99, 10, 1 << 20) == BATCH_5_7


def test_add_reply_matches_vector():
    assert v2.encode_replies(v2.ADD, v2.Status.EOK, np.array([5]), np.array([7])) == ADD_REPLY


def test_header_words_match_vectors():
    words = [(v2.ADD, 0), (v2.ADD, 6), (v2.ADD, 2), (v2.READ, 0), (v2.READ, 1), (v2.READ, 5), (v2.AUTH, 0), (7, 0)]
    assert [f"{v2.header_word(*word):08x}" for word in words] == (
        ["02010000", "02010006", "02010002", "02020000", "02020001", "02020005", "02030000", "02070000"]
    )


@pytest.mark.parametrize("copies", [1, v2.FEW_REQUESTS])
def test_requests_of_all_kinds_in_one_buffer_are_distinguished(copies):
    """Few requests are decoded with numbers, more with arrays."""
    data = b"".join([*REQUESTS, v2.encode_auth_reply(b"xyz")]) * copies
    requests = requests_of(data)
    assert requests.opcodes.tolist() == [v2.ADD, v2.READ, v2.READ, v2.BATCH_READ, v2.AUTH] * copies
    assert requests.flags.tolist() == [0, 0, v2.DO_FENCING, 0, 0] * copies
    assert requests.ledger_ids.tolist() == [5, 5, 5, 5, -1] * copies
    assert requests.entry_ids.tolist() == [7, 7, -1, 7, -1] * copies
    keys = requests.key_starts().tolist()
    assert [data[at : at + 20] == KEY if at >= 0 else None for at in keys] == [True, None, True, None, None] * copies
    assert v2.decode_batch_read_limits(data, int(requests.starts[3])) == (99, 10, 1 << 20)


@pytest.mark.parametrize("frame", REQUESTS, ids=["add", "read", "fence", "batch"])
def test_half_a_frame_is_neither_a_request_nor_an_error(frame):
    for length in range(len(frame)):
        table = scan_frames(frame[:length], length)
        assert len(table) == 0
        assert table.consumed == 0


@pytest.mark.parametrize("frame", REQUESTS, ids=["add", "read", "fence", "batch"])
def test_frame_whose_length_word_was_cut_short_is_refused(frame):
    minimum = 4 + 24 + 16 if frame is ADD_5_7 else len(frame)
    for length in range(4, minimum):
        cut = (length - 4).to_bytes(4, "big") + frame[4:length]
        with pytest.raises(ProtocolError):
            requests_of(cut)


def test_reply_with_short_body_is_refused():
    for length in range(4, len(ADD_REPLY)):
        with pytest.raises(ProtocolError):
            replies_of((length - 4).to_bytes(4, "big") + ADD_REPLY[4:length])
    batch = v2.encode_batch_reply_head(5, 7, 99, 0, 0)
    for length in range(4, len(batch)):
        with pytest.raises(ProtocolError):
            replies_of((length - 4).to_bytes(4, "big") + batch[4:length])


def test_replies_of_all_kinds_in_one_buffer_are_distinguished():
    data = ADD_REPLY + v2.encode_read_reply_head(5, -1, 3) + b"abc" + v2.encode_batch_reply_head(5, 7, 99, 0, 6)
    data += b"\0\0\0\2hi"
    replies = replies_of(data)
    assert replies.opcodes.tolist() == [v2.ADD, v2.READ, v2.BATCH_READ]
    assert replies.entry_ids.tolist() == [7, -1, 7]
    assert replies.request_ids.tolist() == [-1, -1, 99]
    bodies = [data[a:b] for a, b in zip(replies.body_starts.tolist(), replies.body_ends.tolist())]
    assert bodies == [b"", b"abc", b"\0\0\0\2hi"]


def test_length_word_that_is_negative_or_above_the_limit_is_refused():
    for length in (-1, -(1 << 31), 1001, (1 << 31) - 1):
        with pytest.raises(ProtocolError, match="nettyMaxFrameSizeBytes"):
            scan_frames(length.to_bytes(4, "big", signed=True), 4, frame_bytes_max=1000)


@pytest.mark.parametrize("seed", range(20))
def test_frames_of_mixed_sizes_are_found_where_they_lie(seed):
    generator = np.random.default_rng(seed)
    bodies = []
    while len(bodies) < 200:
        size = int(generator.integers(0, 40))
        bodies += [generator.bytes(size) for _ in range(int(generator.choice([1, 1, 2, 30])))]
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    tail = int(generator.integers(0, 4))
    data += b"\0\0\0\1"[:tail]
    table = scan_frames(data, len(data))
    assert [data[a:b] for a, b in zip(table.starts.tolist(), table.ends.tolist())] == bodies
    assert table.consumed == len(data) - tail


@pytest.mark.parametrize("frames_max", [1, 2048, EQUAL_FRAMES_MAX, 20_000])
def test_a_look_finds_a_limited_number_of_frames_of_one_size(frames_max):
    """One read of a socket may bring 200,000 of them: serving them all would take a turn of tens of milliseconds."""
    data = struct.pack(">i", 1) + b"x"
    buffer, found = data * 20_000, []
    while len(found) < 20_000:
        table = scan_frames(buffer, len(buffer), start=5 * len(found), frames_max=frames_max)
        assert 0 < len(table) <= frames_max
        found += table.starts.tolist()
        assert table.consumed == 5 * len(found)
    assert found == list(range(4, len(buffer), 5))


def test_items_must_fill_their_span():
    assert [x.tolist() for x in split_items(b"..\0\0\0\1a\0\0\0\0", 2, 11)] == [[6, 11], [7, 11]]
    with pytest.raises(ProtocolError):
        split_items(b"\0\0\0\2a", 0, 5)


@pytest.mark.slow
def test_random_bytes_raise_only_protocol_errors():
    generator = np.random.default_rng(11)
    refused = 0
    for _ in range(20_000):
        size = int(generator.integers(0, 100))
        data = (size % 61).to_bytes(4, "big") + generator.bytes(size)
        if generator.random() < 0.7 and size >= 2:
            data = data[:4] + b"\2" + bytes([int(generator.integers(0, 9))]) + data[6:]
        for decode in (requests_of, replies_of):
            try:
                decode(data)
            except ProtocolError:
                refused += 1
    assert refused > 10_000


@pytest.mark.parametrize(
    "sizes", [[5] * 100, [1, 2] * 50, [7, 7, 7, 7, 7, 1, 2, 2, 2, 2, 2, 2]], ids=["equal", "alternating", "runs"]
)
@pytest.mark.parametrize("items_max", [1, 3, 6, 10])
def test_items_beyond_those_asked_for_are_not_looked_at(sizes, items_max):
    items = b"".join(size.to_bytes(4, "big") + bytes(size) for size in sizes)
    starts, ends = split_items(items + b"\xff\xff\xff\xff", 0, len(items) + 4, items_max)
    assert (ends - starts).tolist() == sizes[:items_max]
    with pytest.raises(ProtocolError):
        split_items(items[:-1], 0, len(items) - 1, len(sizes))
