"""What the answers of a bookie without threads promise: what is durable, which entry is the last, which copy counts."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.bookie.changing import KEY, Client, add, entry, write_lac
from tests.bookie.taken_adds import after_crash, new_twin, offer, run_of
from tests.crash.twins import BookieTwin, add_frame, lac_packet, sealed


def test_adds_are_answered_up_to_the_record_that_is_durable_and_no_further() -> None:
    """A reply leaves after its record, and all before it, are durable."""
    twin, client = new_twin(), Client()
    for entry_id in range(3):
        assert offer(twin, client, run_of(5, [entry_id]))
    for sequence in (1, 2, 3):
        twin.bookie.on_durable(0, sequence)
        assert client.statuses == [Status.EOK] * sequence


@pytest.mark.parametrize("ledger_id", [4, 5])
def test_checkpoint_marks_each_journal_where_that_one_ends(ledger_id: int) -> None:
    """What comes after the checkpoint is found in its own journal, however long the others are."""
    twin = new_twin(journals=2)
    add(twin, *((9 - ledger_id, entry_id) for entry_id in range(12)))
    add(twin, (ledger_id, 0))
    twin.checkpoint()
    add(twin, (ledger_id, 1))
    reopened = after_crash(twin)
    assert [reopened.read(ledger_id, entry_id)[0] for entry_id in (0, 1)] == [Status.EOK, Status.EOK]


def test_last_entry_is_the_highest_one_in_whatever_order_they_come() -> None:
    twin, client = new_twin(), Client()
    assert add(twin, (5, 0)) == [Status.EOK]
    for entry_id in (7, 3):
        assert offer(twin, client, run_of(5, [entry_id]))
        twin.settle()
    assert twin.read(5, v2.LAST_ENTRY)[2] == entry(5, 7)


def test_entry_that_came_again_is_read_as_it_came_last_also_among_others() -> None:
    """A recovery writes entries again: the later copy counts, in a batch as in a single read."""
    twin = new_twin()
    add(twin, *((5, entry_id) for entry_id in range(4)))
    twin.checkpoint()
    newer = sealed(struct.pack(">qqq", 5, 2, 1) + b"another")
    twin.serve(Client(), add_frame(KEY, newer, v2.RECOVERY_ADD))
    twin.settle()
    assert everything(twin) == [entry(5, 0), entry(5, 1), newer, entry(5, 3)]
    twin.checkpoint()
    assert everything(twin) == [entry(5, 0), entry(5, 1), newer, entry(5, 3)]


def test_ledger_in_limbo_has_no_known_last_entry_and_no_certain_absence() -> None:
    """docs/protocol.md §6.10: a negative answer would be taken as certain. V2 says EIO instead."""
    twin, client = new_twin(), Client()
    add(twin, (5, 0), (5, 1))
    twin.store.limbo.begin([5])
    assert twin.read(5, v2.LAST_ENTRY)[0] == Status.EIO
    twin.serve(client, v2.encode_reads(5, np.array([7, 8, 9]), 0, KEY))
    twin.settle()
    assert client.statuses == [Status.EIO] * 3


def test_only_a_higher_explicit_lac_is_kept() -> None:
    """A lower one is answered as if it were kept. A read returns the highest one, also after a crash."""
    twin = new_twin()
    add(twin, (5, 0))
    for lac, highest in ((3, 3), (3, 3), (2, 3), (4, 4)):
        assert write_lac(twin, 5, lac) == [Status.EOK]
        assert twin.read_lac(5) == (Status.EOK, lac_packet(5, highest))
    assert after_crash(twin).read_lac(5) == (Status.EOK, lac_packet(5, 4))


def everything(twin: BookieTwin) -> list[bytes]:
    status, found = twin.batch_read(5, 0)
    assert status == Status.EOK
    return [bytes(each) for each in found]
