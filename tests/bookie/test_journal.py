"""The journal: what was appended comes back; torn is cut, damaged refuses (B3, B4)."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, FileHeader, RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.io.files import LocalFiles, physical_block_bytes
from bookie_service.storage.journal.journal import SPARES_MAX, Journal, JournalOptions, Record
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.journals import FILES, OPTIONS, START, open_journal, path_of, record, replayed
from tests.bookie.serving import Serving, service_options


def names_of(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_golden_file_header() -> None:
    expected = bytes.fromhex("424b534a 00000001 0000000000000002 0000000000000001 00000000000003e8")
    expected += struct.pack(">I", crc32c(expected))
    encoded = journal_format.encode_file_header(FileHeader(2, 1, 1000))
    assert encoded == expected.ljust(512, b"\0")
    assert journal_format.decode_file_header(encoded, 2) == FileHeader(2, 1, 1000)


def test_golden_record_header() -> None:
    expected = bytes.fromhex("424b4a52 00000003 00000005 00000001 0000000000000002 0000000000000200 0000000000000200")
    expected += struct.pack(">I", crc32c(b"hello"))
    expected += struct.pack(">I", crc32c(expected))
    encoded = journal_format.encode_record_header(
        RecordKind.FENCE, 5, 1, file_id=2, offset=512, synced=512, body_crc=crc32c(b"hello")
    )
    assert encoded == expected
    header = journal_format.decode_record_header(encoded, 0, file_id=2, offset=512)
    assert header is not None
    assert (header.kind, header.body_bytes, header.count, header.synced) == (3, 5, 1, 512)


@pytest.mark.parametrize(("file_id", "offset"), [(3, 512), (2, 513)])
def test_record_of_another_file_or_place_is_not_read(file_id: int, offset: int) -> None:
    encoded = journal_format.encode_record_header(RecordKind.FENCE, 5, 1, file_id=2, offset=512, synced=512, body_crc=0)
    assert journal_format.decode_record_header(encoded, 0, file_id=file_id, offset=offset) is None


def test_every_damaged_byte_of_a_header_is_noticed() -> None:
    file_header = journal_format.encode_file_header(FileHeader(2, 1, 1000))[:36]
    record_header = journal_format.encode_record_header(
        RecordKind.FENCE, 5, 1, file_id=2, offset=512, synced=512, body_crc=0
    )
    for position in range(36):
        damaged = bytearray(file_header)
        damaged[position] ^= 0x10
        assert journal_format.decode_file_header(bytes(damaged), 2) is None
    for position in range(RECORD_HEADER_BYTES):
        damaged = bytearray(record_header)
        damaged[position] ^= 0x10
        assert journal_format.decode_record_header(bytes(damaged), 0, file_id=2, offset=512) is None


def test_keys_and_fences_come_back() -> None:
    keys = [(5, b"k" * 20), (1 << 62, b"q" * 20)]
    assert journal_format.decode_keys(journal_format.encode_keys(keys), 2) == keys
    assert journal_format.decode_fences(journal_format.encode_fences([7, 1 << 62]), 2) == [7, 1 << 62]
    with pytest.raises(ValueError, match="does not hold 3 keys"):
        journal_format.decode_keys(journal_format.encode_keys(keys), 3)
    with pytest.raises(ValueError, match="does not hold 1 ledger ids"):
        journal_format.decode_fences(b"123", 1)


def test_record_that_names_a_negative_ledger_is_refused() -> None:
    negative = (-5).to_bytes(8, "big", signed=True)
    with pytest.raises(ValueError, match="names ledger -5"):
        journal_format.decode_keys(negative + bytes(20), 1)
    with pytest.raises(ValueError, match="names ledger -5"):
        journal_format.decode_fences(bytes(8) + negative, 2)
    assert journal_format.decode_keys(b"", 0) == journal_format.decode_fences(b"", 0) == []


def test_appended_records_are_replayed_in_order(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append([record(b"one"), Record(RecordKind.ENTRIES, 1, [b"tw", b"o"], 3)])
    journal.append([record(b"three")])
    assert replayed(tmp_path)[0] == [b"one", b"two", b"three"]
    journal.close()
    bodies, result = replayed(tmp_path)
    assert bodies == [b"one", b"two", b"three"]
    assert (result.end, result.torn) == (journal.end, None)


def test_replay_begins_at_the_mark(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append([record(b"one")])
    mark = journal.end
    journal.append([record(b"two")])
    assert replayed(tmp_path, mark)[0] == [b"two"]
    assert replayed(tmp_path, journal.end)[0] == []


def test_full_file_is_followed_by_another(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=1000))
    bodies = [bytes([65 + i]) * 300 for i in range(10)]
    marks = []
    for body in bodies:
        marks.append(journal.end)
        journal.append([record(body)])
    assert len(list(tmp_path.iterdir())) == 5
    assert replayed(tmp_path)[0] == bodies
    for i, mark in enumerate(marks):
        assert replayed(tmp_path, mark)[0] == bodies[i:]


def test_files_before_the_mark_go_and_backups_stay(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=600, backups_max=2))
    for i in range(6):
        journal.append([record(b"%d" % i * 200)])
    mark = journal.end
    journal.forget_before(mark)
    assert sorted(path.name for path in tmp_path.iterdir()) == [journal_format.file_name(i) for i in (4, 5, 6)]
    journal.append([record(b"after")])
    assert replayed(tmp_path, mark)[0] == [b"after"]


def test_reused_file_yields_none_of_its_old_records(tmp_path: Path) -> None:
    """Fault D4: stale bytes of a file that had another name."""
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=600, reuse_files=True))
    for i in range(4):
        journal.append([record(b"%d" % i * 200)])
    mark = journal.end
    journal.forget_before(mark)
    for i in range(4, 7):
        journal.append([record(b"%d" % i * 10), record(b"%d" % i * 200)])
    assert len(list(tmp_path.iterdir())) == 4
    expected = [b"%d" % i * size for i in range(4, 7) for size in (10, 200)]
    assert replayed(tmp_path, mark)[0] == expected


@pytest.mark.parametrize("leaves", [True, False])
def test_durable_part_leaves_the_page_cache_and_is_read_back_from_the_disk(tmp_path: Path, leaves: bool) -> None:
    """journalRemoveFromPageCache: "Should we remove pages from page cache after force write" (default true)."""
    options = replace(OPTIONS, leaves_page_cache=leaves)
    journal = open_journal(tmp_path, options=options)
    bodies = [bytes([65 + i]) * (OPTIONS.cached_bytes // 4) for i in range(7)]
    for body in bodies:
        journal.append([record(body)])
    (path,) = tmp_path.iterdir()
    file = FILES.open(str(path))
    try:
        if _can_leave_cache(tmp_path):
            assert (file.read_cached(memoryview(bytearray(4096)), OPTIONS.cached_bytes // 2) == 0) == leaves
    finally:
        file.close()
    assert replayed(tmp_path)[0] == bodies


def _can_leave_cache(directory: Path) -> bool:
    """Whether the directory's file system lets go of cached pages, which one in memory does not."""
    path = directory / "probe"
    path.write_bytes(bytes(1 << 20))
    file = FILES.open(str(path))
    try:
        file.sync_data()
        file.drop_page_cache(0, 1 << 20)
        return file.read_cached(memoryview(bytearray(4096)), 1 << 16) == 0
    finally:
        file.close()
        path.unlink()


def test_files_kept_for_reuse_do_not_grow_in_number_with_every_start(tmp_path: Path) -> None:
    end, counts = START, []
    for _ in range(12):
        journal = open_journal(tmp_path, end, replace(OPTIONS, reuse_files=True, backups_max=2))
        journal.forget_before(journal.end)
        end = journal.end
        journal.close()
        counts.append(len(list(tmp_path.iterdir())))
    assert counts[-6:] == [1 + 2 + SPARES_MAX] * 6


@pytest.mark.parametrize("backups", [0, 1, 3, 20])
def test_the_newest_backups_stay_however_few_files_there_are(tmp_path: Path, backups: int) -> None:
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=600, backups_max=backups))
    for files in range(1, 9):
        journal.append([record(b"x" * 600)])
        journal.forget_before(journal.end)
        first_kept = max(1, files - backups)
        assert names_of(tmp_path) == [journal_format.file_name(i) for i in range(first_kept, files + 1)]


@pytest.mark.parametrize("allocated", [0, 4096])
def test_torn_tail_is_cut_at_every_byte_and_said(tmp_path: Path, allocated: int) -> None:
    """Fault D3. Allocated space is still there after a crash."""
    journal = open_journal(tmp_path, options=replace(OPTIONS, preallocate_bytes=allocated))
    journal.append([record(b"kept")])
    kept = journal.end
    journal.append([record(b"torn off")])
    end = journal.end
    content = path_of(tmp_path).read_bytes()
    for length in range(kept.offset, end.offset):
        for size in (allocated, max(allocated, length + 100)):
            path_of(tmp_path).write_bytes(content[:length].ljust(size, b"\0"))
            bodies, result = replayed(tmp_path)
            assert bodies == [b"kept"]
            assert result.end == kept
            assert (result.torn is not None) == (length >= kept.offset + 4)


def test_group_of_which_only_the_end_reached_the_disk_is_torn(tmp_path: Path) -> None:
    """Fault D2: a group whose sync did not return was not acknowledged."""
    journal = open_journal(tmp_path)
    journal.append([record(b"kept")])
    kept = journal.end.offset
    journal.append([record(b"first of group"), record(b"second of group")])
    content = bytearray(path_of(tmp_path).read_bytes())
    content[kept : kept + RECORD_HEADER_BYTES + 14] = bytes(RECORD_HEADER_BYTES + 14)
    path_of(tmp_path).write_bytes(content)
    bodies, result = replayed(tmp_path)
    assert bodies == [b"kept"]
    assert result.end.offset == kept


def test_every_damaged_byte_of_a_synced_record_refuses_with_file_offset_and_remedy(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append([record(b"one")])
    first = journal.end.offset
    journal.append([record(b"two")])
    second = journal.end.offset
    journal.append([record(b"three")])
    content = path_of(tmp_path).read_bytes()
    for position in range(first, second):
        damaged = bytearray(content)
        damaged[position] ^= 0x40
        path_of(tmp_path).write_bytes(damaged)
        with pytest.raises(StorageDamaged, match=f"0001.txn offset {first}: .*restore the file"):
            replayed(tmp_path)


def test_damage_at_the_end_of_a_file_that_has_a_successor_refuses(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=600))
    journal.append([record(b"x" * 100)])
    end = journal.end.offset
    journal.append([record(b"y" * 100)])
    journal.close()
    content = bytearray(path_of(tmp_path).read_bytes())
    content[end - 1] ^= 1
    path_of(tmp_path).write_bytes(content)
    with pytest.raises(StorageDamaged, match=r"0001.txn offset 512"):
        replayed(tmp_path)


def test_file_that_ends_before_the_place_where_replay_begins_refuses(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append([record(b"behind the mark")])
    mark = journal.end
    journal.append([record(b"acknowledged")])
    journal.close()
    for length in (FILE_HEADER_BYTES, mark.offset - 1):
        with path_of(tmp_path).open("r+b") as file:
            file.truncate(length)
        with pytest.raises(
            StorageDamaged, match=rf"1\.txn offset {length}: .* replay begins at {mark.offset}, .*restore"
        ):
            replayed(tmp_path, mark)


def test_damaged_header_of_a_file_with_records_refuses(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append([record(b"x")])
    content = bytearray(path_of(tmp_path).read_bytes())
    content[9] ^= 1
    path_of(tmp_path).write_bytes(content)
    with pytest.raises(StorageDamaged, match="offset 0: the file header is unreadable"):
        replayed(tmp_path)


def test_missing_files_refuse(tmp_path: Path) -> None:
    """Fault D12: a lost journal is not an empty one."""
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=600))
    for i in range(3):
        journal.append([record(b"%d" % i * 200)])
    with pytest.raises(StorageDamaged, match=r"0004\.txn, where replay begins, is missing"):
        replayed(tmp_path, JournalPosition(4, 512))
    path_of(tmp_path, 2).unlink()
    with pytest.raises(StorageDamaged, match=r"the file before it, 0000000000000002\.txn, is missing"):
        replayed(tmp_path)


@pytest.mark.parametrize("remains", [None, b"", bytes(512), bytes(5000), b"BKSJ\0\0"])
@pytest.mark.parametrize("file_bytes", [600, 1100])
def test_newest_file_that_is_lost_or_emptied_after_its_first_acknowledged_record_refuses(
    tmp_path: Path, remains: bytes | None, file_bytes: int
) -> None:
    """Fault D12: no later file misses it, so the one before says that it is there."""
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=file_bytes))
    mark = journal.end
    while journal.end.file_id < 3:
        journal.append([record(b"x" * 500)])
    newest = path_of(tmp_path, 3)
    newest.unlink()
    if remains is not None:
        newest.write_bytes(remains)
    for start in (None, mark):
        with pytest.raises(StorageDamaged, match=r"0002\.txn offset \d+: .* 0000000000000003\.txn .*restore"):
            replayed(tmp_path, start)
    assert newest.exists() == (remains is not None), "what is left of it is evidence"


def test_file_is_named_by_the_one_before_it_after_it_is_durable_and_before_its_first_record(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = Journal(files, str(tmp_path), replace(OPTIONS, file_bytes_max=600), START)
    journal.append([record(b"x" * 500)])
    files.operations.clear()
    journal.append([record(b"y")])
    first, second = str(path_of(tmp_path, 1)), str(path_of(tmp_path, 2))
    calls = [call for call in files.operations if call[0] in ("create", "write", "sync_data", "sync_directory")]
    named = calls.index(("write", first))
    assert ("sync_data", second) in calls[:named]
    assert ("sync_directory", str(tmp_path)) in calls[:named]
    assert calls[named:] == [("write", first), ("sync_data", first), ("write", second), ("sync_data", second)]


@pytest.mark.parametrize("remains", [b"", bytes(512), b"BKSJ\0\0"])
def test_file_whose_creation_a_crash_interrupted_is_removed(tmp_path: Path, remains: bytes) -> None:
    journal = open_journal(tmp_path)
    journal.append([record(b"kept")])
    path_of(tmp_path, 2).write_bytes(remains)
    bodies, result = replayed(tmp_path)
    assert (bodies, result.end) == ([b"kept"], journal.end)
    open_journal(tmp_path, result.end).append([record(b"next")])
    assert replayed(tmp_path)[0] == [b"kept", b"next"]


def test_chain_goes_on_after_a_torn_tail(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append([record(b"kept")])
    journal.append([record(b"torn")])
    content = path_of(tmp_path).read_bytes()
    path_of(tmp_path).write_bytes(content[: journal.end.offset - 1].ljust(len(content), b"\0"))
    result = replayed(tmp_path)[1]
    open_journal(tmp_path, result.end).append([record(b"next")])
    assert replayed(tmp_path)[0] == [b"kept", b"next"]


def test_first_file_alone_without_records_is_an_empty_journal(tmp_path: Path) -> None:
    open_journal(tmp_path)
    bodies, result = replayed(tmp_path)
    assert (bodies, result.end) == ([], JournalPosition(1, FILE_HEADER_BYTES))
    assert result.torn is None


def test_newer_version_is_refused_not_misread(tmp_path: Path) -> None:
    head = struct.pack(">4siqqq", b"BKSJ", 2, 1, 0, 0)
    path_of(tmp_path).write_bytes((head + struct.pack(">I", crc32c(head))).ljust(512, b"\0"))
    with pytest.raises(StorageDamaged, match="version 2"):
        replayed(tmp_path)


@pytest.mark.parametrize("alignment", [512, 1000, 4096])
def test_every_group_begins_at_a_multiple_of_the_alignment(tmp_path: Path, alignment: int) -> None:
    """No write touches a sector that holds what was synced before."""
    journal = open_journal(tmp_path, options=replace(OPTIONS, alignment_bytes=alignment))
    bodies = [b"x" * size for size in (1, 400, 463, 464, 465, 511, 512, 5000)]
    for body in bodies:
        assert journal.end.offset % alignment == 0
        journal.append([record(body)])
    content = path_of(tmp_path).read_bytes()
    assert [body for body in replayed(tmp_path)[0] if any(body)] == bodies
    starts = [content.find(body[:400] if len(body) > 1 else b"BKJR") for body in bodies]
    assert all(start >= FILE_HEADER_BYTES for start in starts)


class LargeBlocks(LocalFiles):
    """A disk with physical blocks of 16384 bytes."""

    def block_bytes(self, directory: str) -> int:
        return 16384


def test_groups_are_aligned_to_the_disks_physical_blocks_unless_configured(tmp_path: Path) -> None:
    """A disk with blocks of 4096 bytes may lose a whole one when the power goes in the middle of a write."""
    (tmp_path / "journal").mkdir()
    journal = Journal(LargeBlocks(), str(tmp_path / "journal"), JournalOptions(), JournalPosition(0, 0))
    for _ in range(3):
        assert journal.end.offset % 16384 == 0
        journal.append([record(b"group")])
    journal.close()


@pytest.mark.parametrize(("configured", "used"), [(512, 16384), (20480, 32768), (16384, 16384), (32768, 32768)])
def test_alignment_below_the_physical_blocks_is_raised_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, configured: int, used: int
) -> None:
    """Sector assumptions follow the disk (B1). Apache's file shows journalAlignmentSize=512, and a group that
    shares a physical block with an acknowledged one can take that with it when the power goes."""
    options = service_options(tmp_path, journal=JournalOptions(alignment_bytes=configured))
    (tmp_path / "journal").mkdir()
    with Serving(options, LargeBlocks()) as serving, serving.connect() as peer:
        journal, *_ = serving.service.storage.journals
        for entry_id in range(3):
            assert peer.add(5, entry_id, [b"entry"]) == [Status.EOK]
            assert serving.call(lambda: journal.end.offset % used) == 0
    lines = [line for line in caplog.messages if line.startswith(f"journalAlignmentSize={configured}: ")]
    assert len(lines) == (used != configured)
    assert all(line.endswith(f"begin at multiples of {used}") for line in lines)


@pytest.mark.parametrize(("written", "expected"), [("4096", 4096), ("512\n", 512), ("0", None), ("?", None)])
@pytest.mark.parametrize("is_partition", [False, True])
def test_physical_block_size_is_that_of_the_disk_also_for_a_partition(
    tmp_path: Path, is_partition: bool, written: str, expected: int | None
) -> None:
    disk = tmp_path / "devices" / "sda"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "physical_block_size").write_text(written)
    (disk / "sda1").mkdir()
    (tmp_path / "dev" / "block").mkdir(parents=True)
    (tmp_path / "dev" / "block" / "8:1").symlink_to(disk / "sda1" if is_partition else disk)
    assert physical_block_bytes(os.makedev(8, 1), str(tmp_path)) == expected
    assert physical_block_bytes(os.makedev(8, 2), str(tmp_path)) is None
    assert LocalFiles().block_bytes(str(tmp_path)) >= 512


def test_settled_journal_refuses_damage_in_its_last_group(tmp_path: Path) -> None:
    """Without the record that says so, damage there cannot be distinguished from a torn write."""
    journal = open_journal(tmp_path)
    journal.append([record(b"one")])
    last = journal.end.offset
    journal.append([record(b"two")])
    end = journal.end.offset
    journal.write_durability_marker()
    content = path_of(tmp_path).read_bytes()
    assert replayed(tmp_path)[1].records == 3
    for position in range(last, end):
        damaged = bytearray(content)
        damaged[position] ^= 0x40
        path_of(tmp_path).write_bytes(damaged)
        with pytest.raises(StorageDamaged, match=f"offset {last}: "):
            replayed(tmp_path)
    for position in range(end, journal.end.offset):
        damaged = bytearray(content)
        damaged[position] ^= 0x40
        path_of(tmp_path).write_bytes(damaged)
        assert replayed(tmp_path)[0] == [b"one", b"two"]


def test_journal_is_settled_once_and_needs_no_new_space_for_that(tmp_path: Path) -> None:
    files = FaultyFiles()
    journal = Journal(files, str(tmp_path), replace(OPTIONS, preallocate_bytes=1024), START)
    journal.write_durability_marker()
    size = path_of(tmp_path).stat().st_size
    for length in range(0, 2000, 7):
        journal.append([record(b"x" * length)])
        files.operations.clear()
        size = path_of(tmp_path).stat().st_size
        journal.write_durability_marker()
        journal.write_durability_marker()
        assert [operation for operation, _ in files.operations] == ["write", "sync_data"]
        assert path_of(tmp_path).stat().st_size == size


def test_journal_that_does_not_sync_its_groups_claims_nothing_that_is_not_durable(tmp_path: Path) -> None:
    """journalSyncData=false: what `synced` says, marks and file ends stay true nevertheless."""
    files = FaultyFiles()
    journal = Journal(files, str(tmp_path), replace(OPTIONS, sync_groups=False, file_bytes_max=700), START)
    begin = journal.end.offset
    files.operations.clear()
    journal.append([record(b"one")])
    second = journal.end.offset
    journal.append([record(b"two")])
    assert [operation for operation, _ in files.operations] == ["write", "write"]
    header = path_of(tmp_path).read_bytes()[second : second + RECORD_HEADER_BYTES]
    found = journal_format.decode_record_header(header, 0, file_id=1, offset=second)
    assert found is not None
    assert found.synced == begin
    journal.append([record(b"x" * 100)])
    assert journal.end.file_id == 1
    files.operations.clear()
    journal.append([record(b"in the next file")])
    assert journal.end.file_id == 2
    first_file = [operation for operation, path in files.operations if path == str(path_of(tmp_path))]
    assert first_file == ["sync_data", "write", "sync_data"], "the next file says where this one ends, and it that"
    files.operations.clear()
    journal.sync()
    journal.sync()
    assert [operation for operation, _ in files.operations] == ["sync_data"]


def test_old_file_that_cannot_be_removed_stays_and_the_journal_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    journal = Journal(files, str(tmp_path), replace(OPTIONS, file_bytes_max=600), START)
    files.fault = lambda operation, path: operation == "remove" and path.endswith("01.txn")
    for number in range(4):
        journal.append([record(b"%d" % number * 200)])
        journal.forget_before(journal.end)
    assert [int(name[:16], 16) for name in names_of(tmp_path)] == [1, journal.end.file_id]
    assert caplog.text.count("cannot be removed") == 1
    files.fault = None
    journal.forget_before(journal.end)
    assert [int(name[:16], 16) for name in names_of(tmp_path)] == [journal.end.file_id]
