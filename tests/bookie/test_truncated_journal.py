"""The newest journal file was truncated. It must not look like a file whose end a crash has torn: what is missing may
have been acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import FILE_HEADER_BYTES, FileHeader
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.journal.journal import Journal, JournalOptions
from tests.bookie.journals import FILES, OPTIONS, START, open_journal, path_of, record, replayed
from tests.bookie.serving import Serving, service_options

ALIGNED = replace(OPTIONS, alignment_bytes=512)


def write(journal: Journal, count: int, size: int = 100) -> list[int]:
    """Append groups; return where each ends."""
    ends = []
    for number in range(count):
        journal.append([record(bytes([number + 1]) * size)])
        ends.append(journal.end.offset)
    return ends


def check_refused(directory: Path, mark: JournalPosition | None, lengths: Sequence[int], once: str) -> None:
    """Check that a file is refused when it is cut to any of these lengths, and not when it is whole.

    `once`: a pattern of the length that it had.
    """
    path = path_of(directory)
    content = path.read_bytes()
    for length in lengths:
        path.write_bytes(content[:length])
        with pytest.raises(StorageDamaged, match=rf"offset {length}: .*had {once} bytes once.*restore the file"):
            replayed(directory, mark)
    path.write_bytes(content)
    replayed(directory, mark)


@pytest.mark.parametrize("options", [OPTIONS, ALIGNED], ids=["adjacent", "aligned"])
def test_file_of_a_crash_that_was_cut_at_or_after_the_mark_refuses(tmp_path: Path, options: JournalOptions) -> None:
    journal = open_journal(tmp_path, options=options)
    mark = journal.end
    ends = write(journal, 3)
    lengths = [mark.offset, *(end + beside for end in ends for beside in (-1, 0, 1))]
    check_refused(tmp_path, mark, lengths, "4096")
    check_refused(tmp_path, JournalPosition(1, ends[1]), lengths[5:], "4096")
    path_of(tmp_path).write_bytes(path_of(tmp_path).read_bytes()[:-1])
    assert replayed(tmp_path, mark)[1].end == journal.end, "nothing is missing"


def test_file_without_a_mark_refuses_once_it_has_a_group(tmp_path: Path) -> None:
    ends = write(open_journal(tmp_path), 3)
    check_refused(tmp_path, None, ends, "4096")


def test_file_that_grew_refuses_when_it_is_cut_to_a_length_that_it_had_before(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=ALIGNED)
    mark = journal.end
    ends = write(journal, 40)
    assert ends[-1] > 5 * 4096
    check_refused(tmp_path, mark, ends[-6:], r"(20480|24576)")


def test_file_that_was_closed_in_order_refuses_when_it_is_cut(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=ALIGNED)
    mark = journal.end
    ends = write(journal, 5)
    journal.write_durability_marker()
    marked_at = journal.end.offset
    journal.close()
    assert path_of(tmp_path).stat().st_size == journal.end.offset > marked_at
    check_refused(tmp_path, mark, [mark.offset, *ends, marked_at], r"(4096|8192)")
    assert replayed(tmp_path, mark)[1].end == journal.end


def test_file_that_followed_another_refuses_without_a_mark_in_it(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=600))
    write(journal, 2)
    assert journal.end.file_id == 2
    second = path_of(tmp_path, 2)
    second.write_bytes(second.read_bytes()[:FILE_HEADER_BYTES])
    with pytest.raises(StorageDamaged, match=r"0002\.txn offset 512: .*had 4096 bytes once"):
        replayed(tmp_path)


@pytest.mark.parametrize("content", [b"", bytes(4096)], ids=["empty", "zeros"])
def test_file_that_the_mark_is_in_was_begun_once_though_nothing_of_it_is_left(tmp_path: Path, content: bytes) -> None:
    """A file without a header is taken for one that a crash kept from being begun. This one held records."""
    journal = open_journal(tmp_path)
    mark = journal.end
    write(journal, 2)
    path_of(tmp_path).write_bytes(content)
    with pytest.raises(StorageDamaged, match="the file header is unreadable"):
        replayed(tmp_path, mark)
    assert path_of(tmp_path).exists()


def test_reused_file_keeps_its_length(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=replace(ALIGNED, file_bytes_max=2000, reuse_files=True))
    write(journal, 8)
    journal.forget_before(journal.end)
    ends = write(journal, 4)
    newest = path_of(tmp_path, journal.end.file_id)
    content = newest.read_bytes()
    newest.write_bytes(content[: ends[-1]])
    mark = JournalPosition(journal.end.file_id, FILE_HEADER_BYTES)
    assert len(content) > ends[-1]
    with pytest.raises(StorageDamaged, match="it was truncated"):
        replayed(tmp_path, mark)
    newest.write_bytes(content)
    replayed(tmp_path, mark)


def test_file_without_allocated_space_may_end_anywhere(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=replace(ALIGNED, preallocate_bytes=0))
    mark = journal.end
    ends = write(journal, 3)
    content = path_of(tmp_path).read_bytes()
    for length in (mark.offset, *ends):
        path_of(tmp_path).write_bytes(content[:length])
        assert replayed(tmp_path, mark)[1].end.offset == length


def test_full_disk_leaves_room_to_close(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=replace(ALIGNED, preallocate_bytes=1024))
    for size in range(1, 3000, 111):
        journal.append([record(b"x" * size)])
        journal.write_durability_marker()
    allocated = path_of(tmp_path).stat().st_size
    journal.close()
    assert path_of(tmp_path).stat().st_size <= allocated


def test_length_in_the_header_is_optional_and_checked() -> None:
    header = FileHeader(2, 1, 1000, 4096)
    encoded = bytearray(journal_format.encode_file_header(header))
    assert journal_format.decode_file_header(bytes(encoded), 2) == header
    encoded[40] ^= 1
    assert journal_format.decode_file_header(bytes(encoded), 2) == FileHeader(2, 1, 1000)
    assert journal_format.decode_file_header(bytes(encoded[:36]), 2) == FileHeader(2, 1, 1000)


def test_bookie_refuses_to_start_without_what_it_acknowledged(tmp_path: Path) -> None:
    options = service_options(tmp_path)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"one", b"two"]) == [Status.EOK] * 2
        serving.abandon()
    newest = max((tmp_path / "journal" / "current").glob("*.txn"))
    with newest.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(StorageDamaged, match="it was truncated"):
        Serving(options).__enter__()


def test_chain_goes_on_after_a_file_that_was_closed_in_order(tmp_path: Path) -> None:
    end = START
    for number in range(4):
        journal = Journal(FILES, str(tmp_path), ALIGNED, end)
        journal.append([record(b"%d" % number)])
        journal.close()
        end = replayed(tmp_path)[1].end
        assert end == journal.end
    assert replayed(tmp_path)[0] == [b"0", b"1", b"2", b"3"]


def test_missing_file_in_which_replay_begins_is_named_though_later_ones_are_there(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=600))
    for number in range(3):
        journal.append([record(bytes([number]) * 200)])
    path_of(tmp_path, 2).unlink()
    with pytest.raises(StorageDamaged, match=r"0002\.txn, where replay begins, is missing"):
        replayed(tmp_path, JournalPosition(2, 512))


def test_record_that_goes_beyond_the_end_which_the_next_file_knows_refuses(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=replace(OPTIONS, file_bytes_max=600))
    journal.append([record(b"x" * 200)])
    end = journal.end.offset
    journal.append([record(b"y" * 200)])
    journal.close()
    assert len(replayed(tmp_path)[0]) == 2
    with path_of(tmp_path, 2).open("r+b") as file:
        file.write(journal_format.encode_file_header(FileHeader(2, 1, end - 1)))
    with pytest.raises(StorageDamaged, match=rf"0001\.txn offset {end}: the record there is unreadable"):
        replayed(tmp_path)
