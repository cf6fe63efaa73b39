"""Memory of large pieces is used again when it has no user, and only then; the kept memory is bounded."""

from __future__ import annotations

import numpy as np

from bkspark.memory import KEPT_BYTES_MAX, PAGES_BYTES_MIN, ReusedMemory

MIB = 1024 * 1024


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_without_a_user_is_used_again() -> None:
    memory = ReusedMemory()
    first = address(memory.take(MIB))
    assert [address(memory.take(MIB - i)) for i in range(3)] == [first] * 3


def test_memory_with_a_view_of_any_kind_is_left_alone() -> None:
    memory = ReusedMemory()
    holders = [
        memory.take(MIB),
        memory.take(MIB)[5:6],
        memory.take(MIB).data,
        memory.take(MIB).data[7:],
        np.frombuffer(memory.take(MIB).data, "V20", 3),
    ]
    held = [address(np.asarray(memoryview(holder).cast("B"))) // MIB for holder in holders]
    fresh = memory.take(MIB)
    fresh[:] = 255
    assert address(fresh) // MIB not in held
    assert len(set(held)) == len(holders)
    assert not any(np.asarray(memoryview(holder).cast("B")).any() for holder in holders)


def test_pieces_of_other_sizes_get_memory_of_theirs() -> None:
    memory = ReusedMemory()
    assert [len(memory.take(size)) for size in (1, PAGES_BYTES_MIN - 1, PAGES_BYTES_MIN, 5 * MIB, 5 * MIB + 1)] == [
        1,
        PAGES_BYTES_MIN - 1,
        PAGES_BYTES_MIN,
        5 * MIB,
        5 * MIB + 1,
    ]


def test_what_is_kept_is_bounded_however_much_was_in_use() -> None:
    memory = ReusedMemory()
    in_use = [memory.take(3 * MIB) for _ in range(20)]
    del in_use
    assert sum(map(len, memory._kept)) <= KEPT_BYTES_MAX
    assert len(memory.take(KEPT_BYTES_MAX + 1)) == KEPT_BYTES_MAX + 1
    assert memory._kept == []
