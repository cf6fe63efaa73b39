"""What one bookie without threads takes, counts, journals and answers: exact limits, and each step in its order."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bkspark.wire import v2
from bkspark.wire.framing import FRAME_BYTES_MAX, LENGTH_BYTES
from bkspark.wire.status import Status
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.formats.index import STORED_ENTRY_ID_MAX
from bookie_service.metrics.requests import RequestTimes
from bookie_service.storage.ledgers.write_cache import INDEX_BYTES_PER_ENTRY
from tests.bookie.changing import KEY, OTHER_KEY, Client, Statuses, add, entry, fence, mark, write_lac
from tests.bookie.taken_adds import after_crash, batch_of, new_twin, offer, run_of, settle_journals
from tests.crash.twins import BookieTwin, add_frame, lac_packet


def alone(
    twin: BookieTwin, client: Client, ledger_id: int, entry_id: int, *, lac: int = -1, flags: int = 0, size: int = 7
) -> bool:
    """Offer an add that came alone; return whether it was taken."""
    content = np.array([ledger_id, entry_id, lac], ">i8").tobytes() + bytes(size)
    octets = np.frombuffer(bytearray(add_frame(KEY, content, flags)), np.uint8)
    found = v2.decode_single_add(octets.data, len(octets), FRAME_BYTES_MAX)
    assert found is not None
    return twin.bookie.add_single(client, octets, found)


ITEM_BYTES = LENGTH_BYTES + len(entry(5, 0)) + INDEX_BYTES_PER_ENTRY
"""What an add of `entry` takes of the write cache."""


# ---- adds that come alone ----


def test_a_run_of_adds_ends_a_series_of_single_ones() -> None:
    """After it, a single add waits for company again."""
    twin, client = new_twin(), Client()
    assert add(twin, (5, 0)) == [Status.EOK]
    for entry_id in range(1, 5):
        assert alone(twin, client, 5, entry_id)
        twin.settle()
    assert alone(twin, client, 5, 5)
    assert len(client.statuses) == 5
    assert offer(twin, client, run_of(5, range(6, 16)))
    twin.settle()
    assert len(client.statuses) == 15
    assert alone(twin, client, 5, 16)
    assert len(client.statuses) == 15
    twin.settle()
    assert client.statuses == [Status.EOK] * 16


def test_a_closed_connection_is_not_the_last_one_that_added() -> None:
    twin, client, other = new_twin(), Client(), Client()
    assert add(twin, (5, 0)) == [Status.EOK]
    for entry_id in range(1, 5):
        assert alone(twin, client, 5, entry_id)
        twin.settle()
    twin.bookie.forget(other)
    assert alone(twin, client, 5, 5)
    assert len(client.statuses) == 5
    twin.bookie.forget(client)
    assert alone(twin, client, 5, 6)
    assert len(client.statuses) == 5


@pytest.mark.parametrize(
    ("entry_id", "lac", "is_taken"),
    [
        (0, -1, True),
        (3, 2, True),
        (3, 3, False),
        (3, 4, False),
        (3, -2, False),
        (STORED_ENTRY_ID_MAX, -1, True),
        (STORED_ENTRY_ID_MAX, STORED_ENTRY_ID_MAX - 1, True),
        (STORED_ENTRY_ID_MAX + 1, -1, False),
    ],
)
def test_ids_and_lacs_of_single_adds_are_judged_at_their_bounds(entry_id: int, lac: int, is_taken: bool) -> None:
    twin, client = new_twin(), Client()
    twin.store.create_ledger(5, KEY)
    assert alone(twin, client, 5, entry_id, lac=lac) == is_taken
    twin.settle()
    assert client.statuses == [Status.EOK] * is_taken


def test_single_recovery_add_is_taken_whether_its_ledger_is_fenced_or_not() -> None:
    twin, client = new_twin(), Client()
    add(twin, (5, 0))
    assert alone(twin, client, 5, 1, flags=v2.RECOVERY_ADD)
    fence(twin, 5)
    assert alone(twin, client, 5, 2, flags=v2.RECOVERY_ADD)
    assert not alone(twin, client, 5, 3)
    twin.settle()
    assert client.statuses == [Status.EOK] * 2


def test_adds_of_a_recovery_wait_for_others_and_other_adds_for_the_end_of_the_turn() -> None:
    twin = new_twin()
    add(twin, (5, 0))
    for flags, is_answered in ((0, True), (v2.RECOVERY_ADD, False)):
        single, run = Client(), Client()
        assert alone(twin, single, 5, 1, flags=flags)
        twin.loop.turn()
        assert bool(single.statuses) == is_answered
        twin.settle()
        assert offer(twin, run, run_of(5, range(2, 9), flags))
        twin.loop.turn()
        assert bool(run.statuses) == is_answered
        twin.settle()
        assert (single.statuses, run.statuses) == ([Status.EOK], [Status.EOK] * 7)


def test_read_only_bookie_handles_single_adds_as_runs() -> None:
    twin, client = new_twin(), Client()
    add(twin, (5, 0))
    twin.disks.set_read_only("an operator")
    twin.bookie.look_at_disks()
    assert not alone(twin, client, 5, 1)
    assert add(twin, (5, 1)) == [Status.EREADONLY]
    twin.disks.set_read_only("")
    twin.bookie.look_at_disks()
    assert alone(twin, client, 5, 1)


def test_single_add_that_fills_the_write_cache_to_the_last_byte_is_taken() -> None:
    for excess, is_taken in ((0, True), (1, False)):
        twin, client = new_twin(), Client()
        add(twin, (5, 0))
        size = twin.store.active.room - LENGTH_BYTES - INDEX_BYTES_PER_ENTRY - 24 + excess
        assert alone(twin, client, 5, 1, size=size) == is_taken
        assert (twin.store.active.room == 0) == is_taken


@pytest.mark.parametrize("options", [BookieOptions(adds_in_flight_max=9), BookieOptions(journals_entries=False)])
def test_single_adds_are_runs_where_adds_are_counted_or_not_journaled(options: BookieOptions) -> None:
    twin, client = new_twin(options), Client()
    twin.store.create_ledger(5, KEY)
    assert not alone(twin, client, 5, 0)
    assert offer(twin, client, run_of(5, [0]))
    twin.settle()
    assert client.statuses == [Status.EOK]


def test_single_adds_are_runs_where_there_are_several_journals() -> None:
    twin, client = new_twin(journals=2), Client()
    twin.store.create_ledger(5, KEY)
    assert not alone(twin, client, 5, 0)


# ---- room ----


def test_run_that_fits_exactly_is_taken_whole_and_one_add_more_waits() -> None:
    for excess in (0, 1):
        twin, client = new_twin(), Client()
        add(twin, (5, 0))
        count, rest = divmod(twin.store.active.room, ITEM_BYTES)
        last = add_frame(KEY, entry(5, count) + bytes(rest + excess))
        octets, _ = twin.received(client, run_of(5, range(1, count)) + last)
        run = batch_of(octets)
        assert twin.bookie.add(client, octets, run) == count - excess
        assert twin.checkpoints.is_idle
        twin.settle()
        assert client.statuses == [Status.EOK] * (count - excess)
        assert twin.read(5, count - 1)[0] == Status.EOK
        assert twin.read(5, count)[0] == (Status.ENOENTRY if excess else Status.EOK)


def test_run_of_one_add_that_lacks_a_byte_of_room_waits() -> None:
    for excess in (0, 1):
        twin, client = new_twin(), Client()
        add(twin, (5, 0))
        payload = twin.store.active.room - LENGTH_BYTES - INDEX_BYTES_PER_ENTRY - 24 + excess
        content = np.array([5, 1, -1], ">i8").tobytes() + bytes(payload)
        octets, _ = twin.received(client, add_frame(KEY, content))
        assert batch_of(octets).count_within(twin.store.active.room, INDEX_BYTES_PER_ENTRY) == 1 - excess


def fill(twin: BookieTwin, first_entry: int = 0) -> int:
    """Fill the half of the write cache that takes adds; return the next entry."""
    client = Client()
    while twin.store.active.room >= ITEM_BYTES:
        count = min(8, twin.store.active.room // ITEM_BYTES)
        assert offer(twin, client, run_of(5, range(first_entry, first_entry + count)))
        first_entry += count
        settle_journals(twin)
    return first_entry


def fill_both(twin: BookieTwin) -> int:
    """Fill both halves, the first of which waits for its flush; return the next entry."""
    next_entry = fill(twin)
    assert twin.bookie.checkpoint(advances_checkpoint=False)
    return fill(twin, next_entry)


def test_full_half_is_flushed_without_moving_the_marks_and_the_adds_go_on_at_once() -> None:
    twin, client = new_twin(), Client()
    begin, next_entry = mark(twin), fill(twin)
    assert offer(twin, client, run_of(5, range(next_entry, next_entry + 6)))
    assert (twin.checkpoints.is_idle, twin.bookie.blocked_clients) == (False, 0)
    twin.settle()
    assert mark(twin) == begin
    assert client.statuses == [Status.EOK] * 6


def test_connection_whose_adds_find_no_room_is_resumed_when_there_is_some() -> None:
    twin, client = new_twin(), Client()
    next_entry = fill_both(twin)
    assert not offer(twin, client, run_of(5, range(next_entry, next_entry + 6)))
    assert (client.sent, client.resumed, twin.bookie.blocked_clients) == (b"", 0, 1)
    twin.settle()
    assert (client.resumed, twin.bookie.blocked_clients) == (1, 0)
    assert offer(twin, client, run_of(5, range(next_entry, next_entry + 6)))
    twin.settle()
    assert client.statuses == [Status.EOK] * 6


def test_adds_without_room_are_refused_while_a_flush_finds_no_space_and_taken_where_there_is_room() -> None:
    now = iter(range(0, 1 << 40, 1000))
    twin, client, refused = new_twin(BookieOptions(), RequestTimes(lambda: next(now))), Client(), Client()
    next_entry = fill(twin)
    recovery = v2.RECOVERY_ADD | v2.HIGH_PRIORITY
    assert offer(twin, client, run_of(5, range(next_entry, next_entry + 6)))
    twin.bookie.on_checkpoint_stuck()
    assert offer(twin, client, run_of(5, range(next_entry + 6, next_entry + 12), recovery))
    settle_journals(twin)
    assert client.statuses == [Status.EOK] * 12, "a recovery uses what is left in memory"
    twin.disks.is_stuck = False
    twin.bookie.look_at_disks()
    fill(twin, next_entry + 12)
    twin.bookie.on_checkpoint_stuck()
    octets, _ = twin.received(refused, run_of(5, range(1000, 1007), recovery))
    assert twin.bookie.add(refused, octets, batch_of(octets)) == 7
    assert refused.statuses == [Status.EREADONLY] * 7
    assert twin.bookie.times.failed_adds.count(0) == 7
    assert twin.bookie.blocked_clients == 0


def test_adds_in_flight_are_counted_from_their_run_to_their_answer() -> None:
    twin, client = new_twin(), Client()
    add(twin, (5, 0))
    assert offer(twin, client, run_of(5, range(1, 11)))
    assert twin.bookie.adds_in_flight == 10
    assert alone(twin, client, 5, 11)
    assert twin.bookie.adds_in_flight == 11
    write_lac_later(twin, 5, 0)
    twin.bookie.force(Statuses(), 5, lambda status: (bytes([status]),))
    assert twin.bookie.adds_in_flight == 11
    twin.settle()
    assert twin.bookie.adds_in_flight == 0


def write_lac_later(twin: BookieTwin, ledger_id: int, lac: int) -> Statuses:
    """Send an explicit LAC, whose answer may wait."""
    client = Statuses()
    twin.bookie.write_lac(client, ledger_id, KEY, lac_packet(ledger_id, lac), lambda status: (bytes([status]),))
    return client


@pytest.mark.parametrize("most", [1, 3])
def test_as_many_adds_as_the_limit_may_be_in_flight_and_the_next_connection_waits(most: int) -> None:
    twin, client, other = new_twin(BookieOptions(adds_in_flight_max=most)), Client(), Client()
    for entry_id in range(most):
        assert offer(twin, client, run_of(5, [entry_id]))
    assert not offer(twin, other, run_of(5, range(most, most + 8)))
    assert (twin.bookie.blocked_clients, other.resumed) == (1, 0)
    twin.settle()
    assert (twin.bookie.blocked_clients, other.resumed, twin.bookie.adds_in_flight) == (0, 1, 0)
    assert offer(twin, other, run_of(5, range(most, most + 8)))
    twin.settle()
    assert (client.statuses, other.statuses) == ([Status.EOK] * most, [Status.EOK] * 8)


def test_bytes_of_entries_are_counted_whether_they_come_alone_or_in_a_run() -> None:
    twin, client, size = new_twin(), Client(), len(entry(5, 0))
    assert offer(twin, client, run_of(5, range(7)))
    assert twin.bookie.added_bytes == 7 * size
    assert alone(twin, client, 5, 7, size=size - 24)
    assert twin.bookie.added_bytes == 8 * size
    assert offer(twin, client, run_of(5, range(8, 16)) + add_frame(OTHER_KEY, entry(5, 16)))
    assert twin.bookie.added_bytes == 16 * size, "refused ones do not count"


@pytest.mark.parametrize("at_once", [1, 6])
def test_disks_are_looked_at_after_more_bytes_than_they_had_room_for(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    twin, client, looks = new_twin(), Client(), []
    add(twin, (5, 0))
    item = LENGTH_BYTES + len(entry(5, 0))
    twin.disks.verdict = dataclasses.replace(twin.disks.verdict, room_bytes=2 * at_once * item)
    monkeypatch.setattr(twin.disks, "check_now", looks.append)
    twin.bookie.look_at_disks()
    assert looks == [twin.store.waiting_bytes]
    for number in range(1, 10):
        if at_once == 1:
            assert alone(twin, client, 5, number, size=len(entry(5, 0)) - 24)
        else:
            assert offer(twin, client, run_of(5, range(at_once * number, at_once * (number + 1))))
        assert len(looks) == 1 + number // 3
        twin.settle()


def test_times_of_adds_are_counted_once_for_each_however_they_come() -> None:
    now = iter(range(1000, 1 << 40, 1000))
    twin, client = new_twin(BookieOptions(serial_writer_after=2), RequestTimes(lambda: next(now))), Client()
    times, (journal,) = twin.bookie.times, twin.bookie.times.journals
    assert offer(twin, client, run_of(5, range(6)))
    for entry_id in range(6, 16):
        assert alone(twin, client, 5, entry_id)
        settle_journals(twin)
    assert len(journal.alone) >= 9 * 8, "the last eight were committed at once"
    times.fold()
    histograms, row = times.whole_add
    assert histograms.count(row) == 16
    assert times.journal_adds[0].count(0) == 16
    assert (
        journal.written_bytes
        == sum(len(each) + LENGTH_BYTES for each in (*[entry(5, 0)] * 6, *[bytes(24 + 7)] * 10)) + len(KEY) + 8
    )


def test_single_adds_are_folded_into_the_histograms_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_service.engine.bookie.ALONE_MAX", 27)
    now = iter(range(1000, 1 << 40, 1000))
    twin, client = new_twin(BookieOptions(serial_writer_after=0), RequestTimes(lambda: next(now))), Client()
    twin.store.create_ledger(5, KEY)
    noted = []
    for entry_id in range(7):
        assert alone(twin, client, 5, entry_id)
        noted.append(len(twin.bookie.times.journals[0].alone))
    assert noted == [9, 18, 0, 9, 18, 0, 9]


# ---- what is refused ----


def test_each_add_of_a_run_gets_its_own_answer_and_only_accepted_ones_are_stored() -> None:
    now = iter(range(0, 1 << 40, 1000))
    twin, client = new_twin(BookieOptions(), RequestTimes(lambda: next(now))), Client()
    assert add(twin, (5, 0), (6, 0)) == [Status.EOK] * 2
    fence(twin, 6)
    frames = [
        add_frame(KEY, entry(5, 1)),
        add_frame(KEY, entry(6, 1)),
        add_frame(OTHER_KEY, entry(5, 2)),
        add_frame(KEY, entry(6, 2), v2.RECOVERY_ADD),
        add_frame(KEY, entry(7, 0)),
        add_frame(OTHER_KEY, entry(7, 1)),
        add_frame(KEY, entry(5, 3)),
    ]
    assert offer(twin, client, b"".join(frames))
    assert client.sent == b"", "no answer leaves before the accepted adds are durable"
    twin.settle()
    ok, fenced, wrong_key = Status.EOK, Status.EFENCED, Status.EUA
    assert client.statuses == [ok, fenced, wrong_key, ok, ok, wrong_key, ok]
    assert twin.bookie.times.failed_adds.count(0) == 3
    for reopened in (twin, after_crash(twin)):
        held = [(5, 1), (5, 3), (6, 2), (7, 0)]
        assert [reopened.read(*each)[2] for each in held] == [entry(*each) for each in held]
        assert [reopened.read(*each)[0] for each in ((6, 1), (5, 2), (7, 1))] == [Status.ENOENTRY] * 3


def test_ledger_in_limbo_takes_recovery_adds_alone() -> None:
    twin = new_twin()
    add(twin, (5, 0))
    twin.store.limbo.begin([5, 6])
    assert add(twin, (5, 1)) == [Status.EIO]
    assert add(twin, (6, 0)) == [Status.EIO]
    assert add(twin, (5, 1), (6, 0), flags=v2.RECOVERY_ADD) == [Status.EOK] * 2
    assert add(twin, (7, 0)) == [Status.EOK]


def test_read_only_bookie_takes_adds_of_a_recovery_while_there_is_a_reserve() -> None:
    twin = new_twin()
    twin.disks.set_read_only("an operator")
    twin.bookie.look_at_disks()
    flags = v2.RECOVERY_ADD | v2.HIGH_PRIORITY
    assert add(twin, (5, 0), (5, 1), flags=flags) == [Status.EOK] * 2
    twin.disks.verdict = dataclasses.replace(twin.disks.verdict, takes_recovery_adds=False)
    assert add(twin, (5, 2), (5, 3), flags=flags) == [Status.EREADONLY] * 2


def test_run_of_refused_adds_is_answered_at_once_and_begins_no_ledger() -> None:
    now = iter(range(0, 1 << 40, 1000))
    twin, client = new_twin(BookieOptions(), RequestTimes(lambda: next(now))), Client()
    assert offer(twin, client, run_of(-5, range(6)))
    assert client.statuses == [Status.EBADREQ] * 6
    assert twin.bookie.times.failed_adds.count(0) == 6
    twin.disks.set_read_only("an operator")
    twin.bookie.look_at_disks()
    assert offer(twin, client, run_of(5, range(6)))
    assert client.statuses[6:] == [Status.EREADONLY] * 6
    assert twin.store.ledger(5) is None
    assert twin.journals[0].is_idle


def test_ledger_that_was_fenced_and_dropped_takes_recovery_adds_alone_and_stays_fenced() -> None:
    twin = new_twin()
    add(twin, (5, 0), (6, 0))
    fence(twin, 5)
    twin.checkpoint()
    twin.store.prepare_drop([5, 6], [5], 1)
    assert twin.store.drop([5, 6]) == [5, 6]
    assert add(twin, (5, 1)) == [Status.EFENCED]
    assert twin.store.ledger(5) is None
    assert add(twin, (5, 0), flags=v2.RECOVERY_ADD) == [Status.EOK]
    assert add(twin, (6, 1)) == [Status.EOK]
    for reopened in (twin, after_crash(twin)):
        assert reopened.header(5).fenced
        assert not reopened.header(6).fenced
        assert reopened.header(5).master_key == KEY
        assert add(reopened, (5, 1)) == [Status.EFENCED]


# ---- fences ----


def test_every_fence_is_answered_after_the_record_that_makes_it_durable() -> None:
    twin, first, second, third = new_twin(), Client(), Client(), Client()
    add(twin, (5, 0))
    frames = v2.encode_reads(5, np.array([0]), v2.DO_FENCING, KEY)
    assert offer(twin, first, frames)
    assert offer(twin, second, frames)
    assert (first.sent, second.sent) == (b"", b"")
    assert after_crash(twin).read(5, 0)[0] == Status.EOK
    assert not after_crash(twin).header(5).fenced
    twin.settle()
    assert (first.statuses, second.statuses) == ([Status.EOK], [Status.EOK])
    assert after_crash(twin).header(5).fenced
    assert offer(twin, third, frames)
    assert third.statuses == [Status.EOK], "it is durable already"
    twin.bookie.on_durable(0, 0)
    assert offer(twin, third, frames)
    assert third.statuses == [Status.EOK] * 2, "an old report takes nothing back"


def test_refused_fence_and_refused_lac_begin_no_ledger() -> None:
    twin = new_twin()
    assert fence(twin, -5) == [Status.EBADREQ]
    assert write_lac(twin, -5, 0) == [Status.EBADREQ]
    assert twin.journals[0].is_idle
    assert twin.store.is_clean


def test_unknown_ledger_that_is_fenced_or_gets_a_lac_is_known_with_its_key_after_a_crash() -> None:
    twin = new_twin()
    assert fence(twin, 5) == [Status.ENOENTRY]
    assert write_lac(twin, 6, 3) == [Status.EOK]
    reopened = after_crash(twin)
    assert reopened.header(5) == (True, KEY, b"")
    assert reopened.header(6) == (False, KEY, lac_packet(6, 3))
    assert fence(reopened, 5, OTHER_KEY) == [Status.EUA]
    assert fence(reopened, 6, OTHER_KEY) == [Status.EUA]


def test_ledger_whose_key_is_unknown_believes_the_first_one_that_comes_and_keeps_it() -> None:
    for ask in (fence, lambda twin, ledger_id, key=KEY: write_lac(twin, ledger_id, 0, key)):
        twin = new_twin()
        twin.store.create_ledger(5, bytes(20))
        assert ask(twin, 5) in ([Status.ENOENTRY], [Status.EOK])
        assert after_crash(twin).header(5).master_key == KEY
        assert ask(twin, 5, OTHER_KEY) == [Status.EUA]
    twin = new_twin()
    twin.store.create_ledger(5, bytes(20))
    assert add(twin, (5, 0)) == [Status.EOK]
    assert add(twin, (5, 1), key=OTHER_KEY) == [Status.EUA]
    assert after_crash(twin).header(5).master_key == KEY


def leave_room(twin: BookieTwin, room: int, first_entry: int = 0) -> int:
    """Leave this many bytes of the half that takes adds; return the next entry."""
    client, next_entry = Client(), first_entry
    while twin.store.active.room > 500:
        assert offer(twin, client, run_of(5, range(next_entry, next_entry + 2)))
        next_entry += 2
    settle_journals(twin)
    payload = twin.store.active.room - room - LENGTH_BYTES - INDEX_BYTES_PER_ENTRY - 24
    assert alone(twin, client, 5, next_entry, size=payload)
    settle_journals(twin)
    assert twin.store.active.room == room
    return next_entry + 1


def offer_fence(twin: BookieTwin, client: Client, ledger_id: int) -> bool:
    return offer(twin, client, v2.encode_reads(ledger_id, np.array([0]), v2.DO_FENCING, KEY))


def test_unknown_ledgers_begin_up_to_the_last_byte_of_the_write_cache_and_then_wait() -> None:
    twin, fencing = new_twin(), Client()
    next_entry = leave_room(twin, 0)
    assert offer_fence(twin, fencing, 6)
    (begun,) = twin.checkpoints._queue
    assert not begun.flush.advances_checkpoint, "a flush makes room for the ledger, and moves no mark"
    leave_room(twin, 1, next_entry)
    assert offer_fence(twin, fencing, 7)
    assert twin.store.active.room <= 0
    assert not offer_fence(twin, fencing, 8)
    lac = write_lac_later(twin, 9, 0)
    assert (lac.got, twin.bookie.blocked_clients) == ([], 2)
    twin.settle()
    assert fencing.statuses == [Status.ENOENTRY] * 2
    assert (fencing.resumed, lac.resumed, twin.bookie.blocked_clients) == (1, 1, 0)
    assert offer_fence(twin, fencing, 8)
    lac = write_lac_later(twin, 9, 0)
    twin.settle()
    assert (fencing.statuses[2:], lac.got) == ([Status.ENOENTRY], [Status.EOK])


def test_unknown_ledgers_are_refused_without_room_while_a_flush_finds_no_space() -> None:
    twin, fencing = new_twin(), Client()
    next_entry = leave_room(twin, 0)
    assert twin.bookie.checkpoint(advances_checkpoint=False)
    leave_room(twin, 0, next_entry)
    twin.bookie.on_checkpoint_stuck()
    assert offer_fence(twin, fencing, 6)
    assert fencing.statuses == [Status.ETOOMANYREQUESTS]
    assert twin.store.ledger(6) is None
