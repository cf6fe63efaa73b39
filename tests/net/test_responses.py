"""Groups of single reads: whatever order their answers come in, and whichever of them fail, each goes to its entry."""

from __future__ import annotations

import asyncio
import itertools
from random import Random

import numpy as np
import pytest

from bkspark.entries import EntryBatch
from bkspark.net.responses import BAD_DIGEST, EntryResponses, ReadGroup
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.framing import split_items

FIRST = 7
DIGEST = EntryDigest(DigestType.CRC32C, b"secret")


def answered(
    payloads: list[bytes], pieces: list[list[int]], statuses: dict[int, int], damaged: set[int]
) -> EntryResponses:
    """Return what a group has once these positions were answered, a list of them at a time.

    Args:
        statuses: of the positions that fail; the others are EOK.
        damaged: positions of which the last byte is another one.
    """
    sealed = DIGEST.seal(EntryBatch.of(payloads, 5, FIRST), FIRST - 1, 0)
    buffer = bytearray(sealed.buffer)
    starts, ends = split_items(buffer, 0, len(buffer))
    for position in damaged:
        buffer[int(ends[position]) - 1] ^= 1

    async def settle() -> EntryResponses:
        future: asyncio.Future[EntryResponses] = asyncio.get_running_loop().create_future()
        group = ReadGroup(5, np.arange(FIRST, FIRST + len(payloads)), DIGEST, future)
        for piece in pieces:
            at = np.array(piece)
            codes = np.array([statuses.get(position, v2.EOK) for position in piece])
            group.settle(at, codes, memoryview(buffer), starts[at], ends[at])
        buffer[:] = bytes(len(buffer))
        return await future

    return asyncio.run(settle())


@pytest.mark.parametrize("seed", range(20))
def test_answers_in_any_order_and_of_any_size_are_handed_out_as_they_were_written(seed: int) -> None:
    chance = Random(seed)
    count = chance.choice((1, 2, 200))
    sizes = [chance.choice((0, 1, 300, 70_000)) if seed % 2 else 100 for _ in range(count)]
    payloads = [chance.randbytes(size) for size in sizes]
    order = list(range(count))
    if seed % 3:
        chance.shuffle(order)
    cuts = sorted({0, count, *(chance.randrange(count) for _ in range(4))})
    pieces = [order[low:high] for low, high in itertools.pairwise(cuts)]
    answers = answered(payloads, pieces, {}, set())
    assert answers.statuses.tolist() == [v2.EOK] * count
    assert answers.lengths.tolist() == np.cumsum(sizes).tolist()
    assert answers.largest_bytes == max(sizes)
    assert [bytes(payload) for payload in answers.payloads if payload is not None] == payloads
    batch = answers.before(count)
    assert (list(batch), batch.first_entry, batch.ledger_id) == (payloads, FIRST, 5)
    assert list(answers.before(count // 2)) == payloads[: count // 2]


def test_answers_that_fail_among_others_take_none_of_these_with_them() -> None:
    payloads = [b"%d" % i * 50 for i in range(100)]
    answers = answered(payloads, [list(range(60)), list(range(60, 100))], {30: v2.Status.ENOENTRY}, {0, 45, 70})
    expected = [v2.EOK] * 100
    expected[30] = v2.Status.ENOENTRY
    for position in (0, 45, 70):
        expected[position] = BAD_DIGEST
    assert answers.statuses.tolist() == expected
    for status, payload, wanted in zip(expected, answers.payloads, payloads):
        assert (None if payload is None else bytes(payload)) == (wanted if status == v2.EOK else None)


def test_nothing_before_the_first_answer_is_an_empty_batch() -> None:
    answers = answered([b"gone"], [[0]], {0: v2.Status.ENOLEDGER}, set())
    assert (list(answers.before(0)), answers.largest_bytes, answers.payloads) == ([], 0, [None])
