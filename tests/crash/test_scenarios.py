"""The scenarios of bugs that bookies had (docs/reliability.md), each on a disk that can crash; the number is theirs.

The others are beside the parts that they need; `python -m tests.scenarios` lists the tests of each.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.formats import entry_log as log_format
from bookie_service.formats import index as index_format
from bookie_service.formats import journal as journal_format
from bookie_service.formats import marks as mark_format
from tests.crash.audit import audit
from tests.crash.campaign import Starts, reopened
from tests.crash.directed import crash_held_index, crash_reused_journals, crash_striped_ledger
from tests.crash.faults import misdirect_position
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles, os_error
from tests.crash.staging import (
    ROOMY,
    WRONG_KEY,
    crash_everywhere,
    file_at,
    new_bookie,
    operations_of,
    overwrite,
    put,
    restarted,
)
from tests.crash.twins import BookieTwin, Setup


@pytest.mark.parametrize("loss", list(Loss))
def test_s01_acknowledged_fence_survives_a_crash(loss: Loss) -> None:
    twin = new_bookie()
    put(twin, 1, range(3))
    twin.fence(1)
    twin.settle()
    assert twin.history.ledgers[1].fence_acknowledged
    twin = restarted(twin, loss)
    twin.add(1, [(3, b"of the old writer")])
    twin.settle()
    assert twin.history.ledgers[1].entries[3].refused


def test_s02_fence_survives_the_checkpoint_that_removes_its_journal_record() -> None:
    twin = new_bookie()
    for ledger_id in range(1, 9):
        put(twin, ledger_id, range(1))
        twin.fence(ledger_id)
    twin.settle()
    twin.checkpoint()
    restarted(twin)


def test_s03_wrong_password_neither_writes_nor_fences_nor_creates() -> None:
    twin = new_bookie()
    put(twin, 1, range(2))
    twin.checkpoint()
    submitted = twin.journals[0].is_idle
    twin.fence(1, key=WRONG_KEY)
    twin.add(1, [(2, b"intruder")], v2.RECOVERY_ADD, WRONG_KEY)
    assert submitted
    assert twin.journals[0].is_idle, "nothing was journaled"
    assert twin.store.is_clean, "nothing was changed"
    assert not twin.history.ledgers[1].fence_acknowledged
    restarted(twin)


def test_s04_index_is_written_only_after_the_entry_log_is_durable() -> None:
    twin = new_bookie()
    put(twin, 1, range(20))
    twin.bookie.checkpoint()
    done = operations_of(twin.disk, twin.settle)
    first_index = next(at for at, (operation, path) in enumerate(done) if operation == "write" and ".idx" in path)
    log = [at for at, (operation, path) in enumerate(done) if path.endswith(".log")]
    assert max(log) < first_index
    assert done[max(log)][0] == "sync_data"


def test_s04_position_beyond_the_log_is_an_error_and_replay_gets_over_it() -> None:
    twin = new_bookie()
    put(twin, 1, range(5))
    twin.checkpoint()
    put(twin, 1, range(5, 8))
    _, index = file_at(twin.disk, "/1.idx")
    overwrite(index, index_format.LAYOUT.position_at(2), (1 << 32 | 1 << 20).to_bytes(8, "big"))
    twin = reopened(crash_image(twin.disk, Loss.LOST, Random(0)), twin.setup, twin.history.after_crash())
    assert twin.read(1, 2)[0] == Status.EIO
    assert twin.read(1, 6)[0] == Status.EOK


@pytest.mark.parametrize("last_id", [None, b"", b"\xff\xfe garbage", b"0\n", b"-7"])
def test_s09_new_log_never_takes_the_id_of_another_whatever_last_id_says(last_id: bytes | None) -> None:
    twin = new_bookie()
    put(twin, 1, range(5))
    twin.checkpoint()
    disk = crash_image(twin.disk, Loss.LOST, Random(0))
    files = SimulatedFiles(disk)
    path, _ = file_at(disk, log_format.LAST_ID_NAME)
    files.remove(path)
    if last_id is not None:
        files.replace(path, last_id)
    files.sync_directory("/ledgers0/current")
    before = {name: bytes(inode.cached) for name, inode in disk.visible_files().items() if name.endswith(".log")}
    twin = reopened(disk, twin.setup, twin.history.after_crash())
    put(twin, 1, range(5, 9))
    twin.checkpoint()
    after = disk.visible_files()
    assert {name: bytes(after[name].cached) for name in before} == before
    restarted(twin)


def test_s25_ids_that_another_log_writer_used_never_come_again() -> None:
    """Its logs lie in another directory than ours, and it kept its last id where we never look."""
    twin = new_bookie(replace(ROOMY, ledger_directories=2))
    files = SimulatedFiles(twin.disk)
    put(twin, 1, range(5))
    twin.stop()
    foreign = [f"/ledgers{number}/current/{log_format.file_name(0x20 + number)}" for number in (0, 1)]
    for path in foreign:
        file = files.create(path)
        file.write([b"of another writer"], 0)
        file.sync_data()
        files.sync_directory(path.rpartition("/")[0])
    twin = restarted(twin)
    put(twin, 1, range(5, 9))
    twin.checkpoint()
    found = twin.disk.visible_files()
    assert [bytes(found[path].cached) for path in foreign] == [b"of another writer"] * 2
    ids = [log_format.parse_file_name(path.rpartition("/")[2]) for path in found]
    assert max(log_id for log_id in ids if log_id is not None) == 0x22
    restarted(twin)


@pytest.mark.parametrize("allocated", [0, 4096])
def test_s10_journal_cut_at_every_byte_of_its_last_record_starts(allocated: int) -> None:
    """Space that was allocated before is still there after the crash."""
    setup = replace(ROOMY, journal=replace(ROOMY.journal, preallocate_bytes=allocated))
    twin = new_bookie(setup)
    put(twin, 1, range(3))
    twin.add(1, [(3, b"not acknowledged")])
    history = twin.history.after_crash()
    _, journal = file_at(twin.disk, ".txn")
    begins = len(bytes(journal.cached).rstrip(b"\0"))
    twin.settle()
    ends = len(bytes(journal.cached).rstrip(b"\0"))
    assert ends - begins > journal_format.RECORD_HEADER_BYTES
    for cut in range(begins, ends):
        for size in (max(cut, allocated), len(journal.cached)):
            image = crash_image(twin.disk, Loss.LOST, Random(0))
            _, torn = file_at(image, ".txn")
            torn.durable = torn.cached[:cut] + bytes(size - cut)
            torn.cached = bytearray(torn.durable)
            audit(reopened(image, setup, history), history)


@pytest.mark.parametrize("length", [-1, -(1 << 31), (1 << 31) - 1, 0])
def test_s11_impossible_length_in_the_middle_refuses_with_file_offset_and_remedy(length: int) -> None:
    twin = new_bookie()
    put(twin, 1, range(1))
    _, journal = file_at(twin.disk, ".txn")
    offset = len(bytes(journal.cached).rstrip(b"\0"))
    put(twin, 1, range(1, 2))
    put(twin, 1, range(2, 3))
    overwrite(journal, offset + 8, length.to_bytes(4, "big", signed=True))
    with pytest.raises(StorageDamaged) as caught:
        BookieTwin(crash_image(twin.disk, Loss.LOST, Random(0)), ROOMY, History())
    assert f".txn offset {offset}" in str(caught.value)
    assert "restore the file" in str(caught.value)


def test_s14_key_of_a_new_ledger_is_flushed_before_its_journal_record_goes() -> None:
    twin = new_bookie()
    put(twin, 1, range(2))
    twin.fence(2)
    twin.settle()
    twin.bookie.checkpoint()
    assert crash_everywhere(twin, twin.settle) > 10
    put(twin, 1, range(2, 4))
    restarted(twin)


def test_s15_entries_added_while_a_flush_runs_stay_after_the_mark() -> None:
    twin = new_bookie()
    put(twin, 1, range(5))
    twin.bookie.checkpoint()
    added = 5

    def add_more(operation: str, path: str) -> None:
        nonlocal added
        if "journal" not in path:
            twin.add(1, [(added, b"while a flush runs")])
            twin.journals[0].step()
            added += 1

    twin.disk.before_operation = add_more
    twin.checkpoints.step()
    assert added > 10
    restarted(twin)


def test_s18_every_journal_has_a_mark_of_its_own() -> None:
    setup = Setup(journals=2)
    twin = new_bookie(setup)
    for round_ in range(4):
        put(twin, 1, range(4 * round_, 4 * round_ + 4), 400)
        put(twin, 2, range(round_, round_ + 1))
        twin.checkpoint()
    put(twin, 2, range(4, 8))
    marks = [name for name in SimulatedFiles(twin.disk).names("/ledgers0/current") if "lastMark" in name]
    assert marks == ["lastMark", "lastMark.1"]
    restarted(twin)


def test_s19_mark_moves_only_when_every_ledger_directory_is_flushed() -> None:
    twin = new_bookie(Setup(ledger_directories=3))
    for ledger_id in range(1, 7):
        put(twin, ledger_id, range(3))
    twin.bookie.checkpoint()
    assert crash_everywhere(twin, twin.settle) > 30


def test_s20_second_checkpoint_waits_for_the_first_and_marks_only_move_forward() -> None:
    twin = new_bookie()
    seen = []
    for first in range(0, 12, 4):
        put(twin, 1, range(first, first + 4), 600)
        assert twin.bookie.checkpoint()
        twin.add(1, [(first + 3, b"again")], v2.RECOVERY_ADD)
        assert not twin.bookie.checkpoint(), "one flush at a time"
        twin.settle()
        _, mark = file_at(twin.disk, "lastMark")
        seen.append(mark_format.decode_mark(bytes(mark.durable)))
    assert None not in seen
    assert seen == sorted(set(seen))
    restarted(twin)


def test_s21_second_crash_at_any_point_of_a_recovery_loses_nothing() -> None:
    twin = new_bookie(Setup())
    put(twin, 1, range(8), 200)
    twin.fence(1)
    put(twin, 2, range(8), 200)
    starts = Starts()
    for loss in Loss:
        image = crash_image(twin.disk, loss, Random(1))
        history = twin.history.after_crash()

        def crash(operation: str, path: str, image: SimulatedDisk = image, history: History = history) -> None:
            for second in Loss:
                starts.audit(crash_image(image, second, Random(2)), Setup(), history)

        image.before_operation = crash
        reopened(image, Setup(), history)


def test_s22_ledger_keeps_its_key_when_replayed_and_its_journal_removed() -> None:
    twin = new_bookie()
    put(twin, 1, range(2))
    for _ in range(3):
        twin = restarted(twin, Loss.KEPT)
    assert len([path for path in twin.disk.visible_files() if path.endswith(".txn")]) == 1
    twin = restarted(twin, Loss.LOST)
    twin.fence(1, key=WRONG_KEY)
    twin.settle()
    assert not twin.history.ledgers[1].fence_acknowledged


def test_s23_garbage_in_an_entry_log_header_costs_no_entry() -> None:
    twin = new_bookie()
    put(twin, 1, range(5))
    twin.checkpoint()
    _, log = file_at(twin.disk, "/1.log")
    overwrite(log, 0, Random(5).randbytes(log_format.HEADER_BYTES))
    restarted(twin)


def test_s26_half_written_group_is_not_acknowledged_and_shifts_nothing() -> None:
    twin = new_bookie()
    put(twin, 1, range(3))
    twin.add(1, [(3, b"x" * 300)])
    twin.disk.fault = lambda operation, path: os_error(errno.ENOSPC, path) if operation == "write" else None
    with pytest.raises(OSError):
        twin.settle()
    twin.disk.fault = None
    for loss in Loss:
        again = restarted(twin, loss)
        put(again, 1, range(3, 9))
        again.checkpoint()
        restarted(again)


@pytest.mark.parametrize("operation", ["create", "write", "sync_data", "rename", "sync_directory", "create_directory"])
def test_s27_failed_flush_moves_no_mark_and_is_not_tried_again(operation: str) -> None:
    twin = new_bookie()
    put(twin, 1, range(5))
    _, before = file_at(twin.disk, "lastMark")
    content = bytes(before.cached)
    twin.bookie.checkpoint()
    twin.disk.fault = lambda done, path: (
        os_error(errno.EIO, path) if done == operation and path.startswith("/ledgers") else None
    )
    with pytest.raises(OSError):
        twin.checkpoints.step()
    twin.disk.fault = None
    _, after = file_at(twin.disk, "lastMark")
    assert bytes(after.cached) == content
    assert not twin.bookie.checkpoint(), "the half that failed is never taken for flushed"
    restarted(twin, Loss.KEPT)
    restarted(twin, Loss.LOST)


def test_s29_every_add_is_acknowledged_without_later_traffic() -> None:
    twin = new_bookie()
    random = Random(29)
    for entry_id in range(30):
        twin.add(1, [(entry_id, random.randbytes(10))])
        if random.random() < 0.5:
            twin.bookie.checkpoint()
        twin.settle()
        assert twin.history.ledgers[1].entries[entry_id].acknowledged == 0


def test_s30_half_is_flushed_once_and_serves_until_it_is_on_disk() -> None:
    twin = new_bookie()
    put(twin, 1, range(6))
    assert twin.store.begin_flush() is not None
    assert twin.store.begin_flush() is None
    audit(twin, twin.history)


def test_s37_index_file_with_a_cut_header_is_made_again_by_replay() -> None:
    twin = new_bookie()
    put(twin, 1, range(3))
    history = twin.history.after_crash()
    for size in [*range(0, 600, 37), *range(4090, 4700, 37), index_format.LAYOUT.positions_at]:
        image = crash_image(twin.disk, Loss.LOST, Random(0))
        files = SimulatedFiles(image)
        directory = "/ledgers0/current/0/1"
        files.make_directory(directory)
        head = index_format.encode_head(index_format.LedgerHeader(1, 1, False, history.ledgers[1].master_key))
        files.replace(f"{directory}/1.idx", head[:size])
        audit(reopened(image, twin.setup, history), history)


@pytest.mark.parametrize("garbage", [b"\0", b"\xa5"])
def test_s38_record_whose_body_never_reached_the_disk_is_not_taken(garbage: bytes) -> None:
    twin = new_bookie()
    put(twin, 1, range(3))
    _, journal = file_at(twin.disk, ".txn")
    begins = len(bytes(journal.cached).rstrip(b"\0"))
    twin.add(1, [(3, b"not acknowledged")])
    history = twin.history.after_crash()
    twin.settle()
    body_at = begins + journal_format.RECORD_HEADER_BYTES
    ends = len(bytes(journal.cached).rstrip(b"\0"))
    overwrite(journal, body_at, garbage * (ends - body_at))
    new = reopened(crash_image(twin.disk, Loss.LOST, Random(0)), twin.setup, history)
    audit(new, history)
    assert any(f"offset {begins}: cut a record" in notice for notice in new.notices)


@pytest.mark.parametrize("entry_id", [0, 7, v2.LAST_ENTRY])
def test_x2_no_answer_to_a_fencing_read_leaves_before_the_fence_is_durable(entry_id: int) -> None:
    twin = new_bookie()
    put(twin, 1, range(1))
    for ledger_id in (1, 2):
        twin.fence(ledger_id, entry_id)
        assert not twin.history.ledger(ledger_id).fence_acknowledged
    twin.settle()
    assert twin.history.ledgers[1].fence_acknowledged
    assert twin.history.ledgers[2].fence_acknowledged
    restarted(twin)


def test_d4_stale_records_of_a_reused_journal_file_are_not_read() -> None:
    crash_reused_journals()


def test_s17_entries_between_those_of_an_earlier_flush_take_nothing_away() -> None:
    crash_striped_ledger()


def test_s07_positions_that_an_earlier_flush_left_in_memory_are_synced_before_the_mark_moves() -> None:
    crash_held_index()


def test_d6_misdirected_position_never_serves_another_entry() -> None:
    misdirect_position()


def test_d6_block_of_another_entry_is_an_error_not_data() -> None:
    twin = new_bookie()
    put(twin, 1, range(2), 100)
    put(twin, 2, range(2), 100)
    twin.checkpoint()
    _, log = file_at(twin.disk, "/1.log")
    half = (len(log.cached) - log_format.HEADER_BYTES) // 2
    overwrite(log, log_format.HEADER_BYTES, bytes(log.cached[log_format.HEADER_BYTES + half :]))
    assert twin.read(1, 0)[0] == Status.EIO
    assert twin.read(2, 0)[0] == Status.EOK


def test_index_cut_inside_a_position_is_written_again() -> None:
    twin = new_bookie()
    put(twin, 1, range(0, 6, 2))
    history = twin.history.after_crash()
    for size in range(index_format.LAYOUT.positions_at, index_format.LAYOUT.positions_at + 40):
        image = crash_image(twin.disk, Loss.LOST, Random(0))
        files = SimulatedFiles(image)
        files.make_directory("/ledgers0/current/0/1")
        head = index_format.encode_head(index_format.LedgerHeader(1, 1, False, history.ledgers[1].master_key))
        files.replace("/ledgers0/current/0/1/1.idx", (head + b"\x00\x00\x00\x01" * 99)[:size])
        audit(reopened(image, twin.setup, history), history)


def test_power_cut_after_a_kill_takes_nothing_that_the_restart_built_on() -> None:
    twin = new_bookie(Setup())
    put(twin, 1, range(3))
    twin.add(1, [(3, b"written, not synced")])
    twin.disk.fault = lambda operation, path: os_error(errno.EIO, path) if operation == "sync_data" else None
    for journal in twin.journals:
        with pytest.raises(OSError):
            journal.step()
    twin.disk.fault = None
    twin = restarted(twin, Loss.KEPT)
    assert crash_everywhere(twin, lambda: put(twin, 1, range(4, 7), 300)) > 2


def test_refusal_after_a_damaged_mark_names_it() -> None:
    """Without the mark, replay begins at records of ledgers that were deleted since, whose keys are gone."""
    setup = replace(ROOMY, journal=replace(ROOMY.journal, file_bytes_max=600))
    twin = new_bookie(setup)
    put(twin, 1, range(2), size=300)
    put(twin, 1, range(2, 4))
    twin.checkpoint()
    assert twin.store.droppable([1])
    twin.store.prepare_drop([1], [], 0)
    twin.store.sync_dropped(twin.store.drop([1]))
    _, mark = file_at(twin.disk, "lastMark")
    overwrite(mark, 12, b"\xff")
    with pytest.raises(StorageDamaged, match=r"master key.*/lastMark is damaged"):
        BookieTwin(crash_image(twin.disk, Loss.KEPT, Random(0)), setup, History())
