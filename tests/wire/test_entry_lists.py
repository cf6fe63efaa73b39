"""The list of a ledger's entries: bookkeeper-interop.md §2.9."""

from __future__ import annotations

import struct

import pytest

from bkspark.errors import ProtocolError
from bkspark.wire.entry_lists import decode_entry_list


def entry_list(*groups: tuple[int, int, int, int], version: int = 0, count: int | None = None) -> bytes:
    head = struct.pack(">ii", version, len(groups) if count is None else count).ljust(64, b"\0")
    return head + b"".join(struct.pack(">qqii", *group) for group in groups)


def test_groups_are_runs_at_equal_distances():
    runs = decode_entry_list(entry_list((2, 11, 2, 3), (100, 100, 5, 0), (0, 0, 1, 0)))
    assert runs.starts.tolist() == [0, 2, 5, 8, 11, 100]
    assert runs.sizes.tolist() == [1, 2, 2, 2, 2, 5]
    assert runs.entries == 14
    assert [entry for entry in range(110) if entry in runs] == [0, 2, 3, 5, 6, 8, 9, 11, 12, 100, 101, 102, 103, 104]


def test_no_groups_are_no_entries():
    assert decode_entry_list(entry_list()).entries == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        entry_list()[:-1],
        entry_list(version=1),
        entry_list((0, 0, 1, 0), count=2),
        entry_list(count=-1),
        entry_list((5, 4, 1, 1)),
        entry_list((-1, -1, 1, 0)),
        entry_list((0, 0, 0, 0)),
        entry_list((0, 10, 1, 0)),
        entry_list((0, 10, 1, 3)),
        entry_list((0, 9, 4, 3)),
        entry_list((0, 0, 5, 0), (4, 4, 1, 0)),
        entry_list((0, (1 << 62), 1, 1)),
    ],
)
def test_what_is_no_list_is_refused(data):
    with pytest.raises(ProtocolError):
        decode_entry_list(data)
