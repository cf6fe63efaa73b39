"""Frames and evenly spaced items in arrays, against the plainest way to say the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import ProtocolError
from bkspark.wire import v2
from bkspark.wire.digest import RUN_ENTRIES_MIN, OpenedEntries
from bkspark.wire.framing import count_leading, equal_step, gather, places, scan_frames

KEY = bytes(20)


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def step_of(at: list[int]) -> int:
    steps = {after - before for before, after in itertools.pairwise(at)}
    if not steps:
        return len(at)
    return steps.pop() if len(steps) == 1 and min(steps) > 0 else 0


@pytest.mark.parametrize("count", range(6))
def test_equal_step_is_that_of_all_neighbours(count: int) -> None:
    for at in itertools.product(range(7), repeat=count):
        assert equal_step(np.array(at, np.int64)) == step_of(list(at)), at


def test_places_and_gather_name_the_items_at_positions_even_or_not() -> None:
    octets = np.arange(100, dtype=np.uint8)
    for at in ([0], [3, 10, 17], [3, 10, 18, 24], [5, 5], [9, 2]):
        positions = np.array(at, np.int64)
        wanted = [int.from_bytes(octets[each : each + 4].tobytes(), "big") for each in at]
        assert gather(octets, positions, ">i4").tolist() == wanted
        assert np.ndarray((97,), ">i4", octets, 0, (1,))[places(positions)].tolist() == wanted


@pytest.mark.parametrize("count", range(5))
def test_leading_frames_are_counted_up_to_the_first_that_begins_otherwise(count: int) -> None:
    for bodies in itertools.product((b"\x08", b"\x08x", b"\x09", b""), repeat=count):
        data = framed(*bodies)
        table = scan_frames(data, len(data))
        wanted = len(list(itertools.takewhile(lambda body: body.startswith(b"\x08"), bodies)))
        assert count_leading(np.frombuffer(data, np.uint8), table, 8) == wanted, bodies


@pytest.mark.parametrize("frames", [1, 2, 100])
def test_frames_of_the_largest_size_pass_and_of_one_byte_more_do_not(frames: int) -> None:
    data = framed(*[bytes(10)] * frames)
    assert len(scan_frames(data, len(data), 10)) == frames
    with pytest.raises(ProtocolError, match=r"frame of 10 bytes: the limit .* is 9"):
        scan_frames(data, len(data), 9)


def test_stored_adds_have_the_bounds_of_their_frames() -> None:
    stored = [b"x" * 50, b"", b"yy" * 40]
    data, bounds = v2.encode_stored_adds(EntryBatch.of(stored, 5, 0), KEY)
    table = scan_frames(data, len(data))
    assert bounds.tolist() == [0, *table.ends.tolist()]
    assert [data[end - len(entry) : end] for end, entry in zip(table.ends.tolist(), stored)] == stored


@pytest.mark.parametrize("key", [None, b"", bytes(19), bytes(21)])
def test_reads_that_fence_need_a_whole_master_key(key: bytes | None) -> None:
    with pytest.raises(ValueError, match="20-byte master key"):
        v2.encode_batch_read(1, 0, 0, 1, 100, v2.DO_FENCING, key)
    with pytest.raises(ValueError, match="20-byte master key"):
        v2.encode_reads(1, np.array([0]), v2.DO_FENCING, key)


def test_other_replies_than_one_to_an_add_are_left_to_the_decoder_of_all() -> None:
    reply = v2.encode_replies(v2.ADD, np.array([0]), np.array([7]), np.array([3]))
    assert v2.decode_single_add_reply(reply, len(reply)) == (0, 7, 3)
    assert v2.decode_single_add_reply(reply, len(reply) - 1) is None
    assert v2.decode_single_add_reply(reply * 2, 2 * len(reply)) is None


@pytest.mark.parametrize("odd_at", [0, 1, 7, RUN_ENTRIES_MIN, 3 * RUN_ENTRIES_MIN])
def test_payloads_of_which_one_has_another_size_are_copied_as_they_are(odd_at: int) -> None:
    """The gaps between them are all equal: only sizes end a run."""
    payloads = [b"%07d" % number for number in range(4 * RUN_ENTRIES_MIN)]
    payloads[odd_at] = b"another size"
    gap = b"gap"
    data = gap.join(payloads)
    sizes = np.array([len(payload) for payload in payloads])
    starts = np.append(0, np.cumsum(sizes + len(gap))[:-1])
    opened = OpenedEntries(memoryview(data), starts, starts + sizes, np.empty(len(payloads)), None)
    assert list(opened.to_batch(5, 0)) == payloads
