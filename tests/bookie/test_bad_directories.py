"""Files that every ledger directory has, or that move between them, when the disk of one directory fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from bookie_service.formats import index_files
from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index import IndexPaths, LedgerUpdate
from bookie_service.storage.ledgers.limbo import DirtyMarker
from tests.bookie.faulty_files import FaultyFiles, GoneFiles
from tests.bookie.file_indexes import KEY, update
from tests.bookie.moved_files import Moving, at, files_of


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    found = [str(tmp_path / name) for name in "abc"]
    for each in found:
        os.mkdir(each)
    return found


# ---- the marker of a run ----


def marked(directories: list[str]) -> str:
    """Return the names of the directories that have a marker."""
    return "".join(Path(each).name for each in directories if os.listdir(each))


def test_marker_is_read_where_a_disk_tells_and_says_too_much_where_none_does(directories: list[str]) -> None:
    files = FaultyFiles()
    assert not DirtyMarker(files, directories).is_journal_incomplete()
    DirtyMarker(files, directories).set(journal_is_complete=True)
    for bad, incomplete in (("", False), ("a", False), ("bc", False), ("abc", True)):
        files.fault = at(bad, "read")
        assert DirtyMarker(files, directories).is_journal_incomplete() == incomplete, bad
    files.fault = None
    DirtyMarker(files, directories[2:]).set(journal_is_complete=False)
    for bad, incomplete in (("", True), ("a", True), ("c", False), ("abc", True)):
        files.fault = at(bad, "read")
        assert DirtyMarker(files, directories).is_journal_incomplete() == incomplete, bad
    files.fault, files.code = at("a", "read"), errno.EACCES
    with pytest.raises(PermissionError):
        DirtyMarker(files, directories).is_journal_incomplete()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_run_with_an_incomplete_journal_begins_only_with_a_marker(directories: list[str], code: int) -> None:
    files = FaultyFiles()
    files.code = code
    for bad in ("a", "bc", "abc"):
        files.fault = at(bad, "create")
        if bad == "abc":
            with pytest.raises(OSError) as raised:
                DirtyMarker(files, directories).set(journal_is_complete=False)
            assert raised.value.errno == code
        else:
            DirtyMarker(files, directories).set(journal_is_complete=False)
        files.fault = None
        assert marked(directories) == "".join(sorted(set("abc") - set(bad)))
        for each in directories:
            for name in os.listdir(each):
                os.remove(os.path.join(each, name))
    files.fault = at("abc", "create")
    DirtyMarker(files, directories).set(journal_is_complete=True)  # it would only say what its absence says
    files.code = errno.EACCES
    with pytest.raises(PermissionError):
        DirtyMarker(files, directories).set(journal_is_complete=True)


def test_marker_of_a_killed_run_is_made_durable_and_not_written_again(directories: list[str]) -> None:
    files = FaultyFiles()
    DirtyMarker(files, directories).set(journal_is_complete=False)
    files.operations.clear()
    files.fault = at("abc", "create")
    DirtyMarker(files, directories).set(journal_is_complete=False)
    assert [each for each in files.operations if each[0] == "sync_directory"] == [
        ("sync_directory", each) for each in directories
    ]
    files.fault = None
    DirtyMarker(files, directories).set(journal_is_complete=True)
    assert not DirtyMarker(files, directories).is_journal_incomplete()


def test_marker_goes_where_its_disk_lets_it_go(directories: list[str]) -> None:
    files = FaultyFiles()
    marker = DirtyMarker(files, directories)
    marker.set(journal_is_complete=False)
    files.fault = at("b", "remove")
    marker.clear()
    assert marked(directories) == "b"
    files.code = errno.EACCES
    with pytest.raises(PermissionError):
        marker.clear()
    files.fault = None
    files.operations.clear()
    marker.clear()
    assert [operation for operation, _ in files.operations if operation != "read"] == ["remove", "sync_directory"]
    assert marked(directories) == ""


# ---- index files that move ----


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "create"])
def test_index_file_moves_with_all_its_positions_and_the_old_one_goes(
    directories: list[str], code: int, operation: str
) -> None:
    files = FaultyFiles()
    files.code = code
    moving = Moving(directories, files)
    known = [3, 4] if operation == "write" else []  # 3 belongs to directory a, 4 to b
    for ledger_id in known:
        moving.index.hold([update(ledger_id, 0, [7, 8], generation=1)])
        moving.index.sync()
    files.fault = at("a", operation)
    for ledger_id in (3, 4):
        generation = 0 if ledger_id in known else 1
        moving.index.hold([update(ledger_id, 2, [9], generation=generation)])
    moving.index.sync()
    first = [7, 8] if known else [0, 0]
    assert moving.held(3)[:3] == moving.held(4)[:3] == [*first, 9]
    assert moving.index.header(3) == moving.index.header(3)
    assert files_of(directories) == ["b/3.idx", "b/4.idx"]
    assert moving.doubted == []
    # It stays there, when the disk takes writes again, too.
    files.fault = None
    moving.index.hold([update(3, 3, [10])])
    moving.index.sync()
    moving.index.close()
    again = Moving(directories)
    assert again.held(3)[:4] == [*first, 9, 10]
    header = again.index.header(3)
    assert header is not None
    assert (header.ledger_id, header.master_key) == (3, KEY)
    assert again.index.ledger_ids().tolist() == [3, 4]
    assert again.index.all_lost() == []
    again.index.remove(3)
    again.index.sync_removed([3])
    assert files_of(directories) == ["b/4.idx"]
    assert not again.index.has(3)
    again.index.close()


def test_index_file_moves_on_when_the_next_directory_refuses_it_as_well(directories: list[str]) -> None:
    files = FaultyFiles()
    moving = Moving(directories, files)
    moving.index.hold([update(3, 0, [7], generation=1)])
    moving.index.sync()
    files.fault = at("ab", "write", "create")
    moving.index.hold([update(3, 1, [8])])
    moving.index.sync()
    assert files_of(directories) == ["c/3.idx"]
    assert moving.held(3)[:2] == [7, 8]
    files.fault = at("abc", "write", "create")
    moving.index.hold([update(3, 2, [9])])
    with pytest.raises(OSError, match="Input/output"):
        moving.index.sync()
    # Nothing is lost: it is held, and written once a disk takes it.
    assert moving.held(3)[:3] == [7, 8, 9]
    files.fault = None
    moving.index.sync()
    moving.index.close()
    assert Moving(directories).held(3)[:3] == [7, 8, 9]


def test_copy_that_fails_in_the_middle_leaves_no_file(directories: list[str]) -> None:
    files = FaultyFiles()
    moving = Moving(directories, files)
    moving.index.hold([update(3, 0, [7], generation=1)])
    moving.index.sync()
    files.fault = at("abc", "write")
    moving.index.hold([update(3, 1, [8])])
    with pytest.raises(OSError, match="Input/output"):
        moving.index.sync()
    files.fault = None
    assert files_of(directories) == ["a/3.idx"]
    moving.index.sync()
    assert files_of(directories) == ["a/3.idx"]
    moving.index.close()
    assert Moving(directories).held(3)[:2] == [7, 8]


def test_unreadable_file_moves_with_what_memory_has_and_its_ledger_is_in_doubt(
    directories: list[str],
) -> None:
    files = FaultyFiles()
    moving = Moving(directories, files)
    moving.index.hold([update(3, 0, [7, 8], generation=1)])
    moving.index.sync()
    moving.index.close()
    moving = Moving(directories, files)
    moving.headers[3] = LedgerHeader(3, 5, True, KEY)
    moving.index.hold([update(3, 4, [9])])
    files.fault = at("a", "write", "read")
    moving.index.sync()
    assert moving.doubted == [3]
    assert files_of(directories)[-1] == "b/3.idx"
    files.fault = None
    assert moving.held(3)[4] == 9
    header = moving.index.header(3)
    assert header is not None
    assert header.fenced
    moving.index.close()


def test_file_that_moved_unread_is_not_lost_for_being_shorter_than_the_old_one(directories: list[str]) -> None:
    """It is in doubt already. It must be able to leave limbo."""
    files = FaultyFiles()
    moving = Moving(directories, files)
    moving.index.hold([update(3, 0, [7] * 3000, generation=1)])
    moving.index.sync()
    moving.index.close()
    moving = Moving(directories, files)
    moving.headers[3] = LedgerHeader(3, 5, False, KEY)
    moving.index.hold([update(3, 1, [9])])
    files.fault = at("a", "write", "read")
    moving.index.sync()
    files.fault = None
    assert (moving.doubted, moving.index.lost(3)) == ([3], "")
    moving.index.close()


def leave_both_files(directories: list[str], later: list[LedgerUpdate]) -> None:
    """Move ledger 3 to another file, with position 8 in place of 7, hold `later`, and put the old file back, too."""
    files = FaultyFiles()
    moving = Moving(directories, files)
    moving.index.hold([update(3, 0, [7], generation=1)])
    moving.index.sync()
    old = Path(IndexPaths(directories).path(3))
    left = old.read_bytes()
    files.fault = at("a", "write")
    moving.index.hold([update(3, 0, [8])])
    moving.index.sync()
    files.fault = None
    moving.index.hold(later)
    moving.index.sync()
    moving.index.close()
    old.write_bytes(left)


def test_the_recorded_one_of_two_files_of_a_ledger_counts(directories: list[str]) -> None:
    """A crash may leave both."""
    leave_both_files(directories, [])
    again = Moving(directories)
    assert again.held(3)[0] == 8
    assert again.index.ledger_ids().tolist() == [3]
    assert np.array_equal(again.index.holding_entries(np.array([3, 4])), [3])
    assert again.doubted == []
    again.index.close()
    for each in directories:
        Path(each, index_files.FILE_NAME).unlink(missing_ok=True)
    without_record = Moving(directories)
    assert without_record.doubted == [3], "it is unknown which of the two counts"
    without_record.index.close()


def test_the_recorded_one_of_two_files_counts_though_a_crash_tore_the_last_record(directories: list[str]) -> None:
    """Both may be whole, and the older one lacks positions. So its ledger is in doubt, too."""
    leave_both_files(directories, [update(4, 0, [9], generation=1)])
    record = Path(directories[1], index_files.FILE_NAME)
    record.write_bytes(record.read_bytes()[:-1])
    again = Moving(directories)
    assert (again.doubted, again.held(3)[0], again.held(4)[0]) == ([3], 8, 9)
    assert files_of(directories) == ["a/3.idx", "b/3.idx", "b/4.idx"]
    again.index.close()


def test_directory_that_takes_writes_again_takes_files_of_another_that_refuses_them(directories: list[str]) -> None:
    files = FaultyFiles()
    moving = Moving(directories, files)
    moving.index.hold([update(3, 0, [7], generation=1)])
    moving.index.sync()
    files.fault = at("a", "write", "create")
    moving.index.hold([update(3, 1, [8])])
    moving.index.sync()
    files.fault = at("bc", "write", "create")
    moving.index.hold([update(3, 2, [9])])
    moving.index.sync()
    assert files_of(directories) == ["a/3.idx"]
    assert moving.held(3)[:3] == [7, 8, 9]
    moving.index.close()


def test_copy_whose_positions_are_refused_goes_to_the_next_directory_and_is_whole(directories: list[str]) -> None:
    """The old file can be read, so nothing of its ledger is in doubt."""
    files = FaultyFiles()
    moving = Moving(directories, files)
    moving.index.hold([update(3, 0, [7, 8], generation=1)])
    moving.index.sync()
    moving.index.close()
    moving = Moving(directories, files)
    moving.index.hold([update(3, 2, [9])])
    writes: list[str] = []

    def fault(operation: str, path: str) -> bool:
        if operation != "write" or not path.endswith(".idx"):
            return False
        writes.append(path)
        return "/a/" in path or ("/b/" in path and len([each for each in writes if "/b/" in each]) > 1)

    files.fault = fault
    moving.index.sync()
    assert moving.doubted == []
    assert files_of(directories)[-1] == "c/3.idx"
    assert moving.held(3)[:3] == [7, 8, 9]
    moving.index.close()
    assert Moving(directories).held(3)[:3] == [7, 8, 9]


def test_file_that_finds_no_place_waits_for_space_if_a_healthy_disk_may_take_it(directories: list[str]) -> None:
    files = FaultyFiles()
    moving = Moving(directories, files)
    moving.index.hold([update(4, 0, [11, 12, 13], 1)])
    moving.index.sync()

    def fault(operation: str, path: str) -> bool:
        if operation not in ("write", "create", "sync_data", "sync_directory"):
            return False
        if "/b/" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if operation in ("write", "create"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return False

    for _ in range(2):
        files.fault = fault
        moving.index.hold([update(4, 3, [14, 15, 16])])
        with pytest.raises(OSError, match="No space left"):
            moving.index.sync()
    files.fault = lambda operation, path: "/b/" in path and operation != "read"
    moving.index.sync()
    assert moving.held(4) == [11, 12, 13, 14, 15, 16]
    assert files_of(directories) == ["a/4.idx", "b/4.idx"] or files_of(directories) == ["b/4.idx", "c/4.idx"]
    assert not moving.doubted


def test_marker_in_a_journal_directory_says_how_the_run_ended_whatever_disk_fails(
    directories: list[str], tmp_path: Path
) -> None:
    files = GoneFiles()
    (tmp_path / "j").mkdir()
    journals = [str(tmp_path / "j")]
    gone = at("ab", "stat", "open", "read")
    for is_complete in (True, False):
        DirtyMarker(files, directories[:2], journals).set(journal_is_complete=is_complete)
        files.fault = gone
        assert DirtyMarker(files, directories[:2], journals).is_journal_incomplete() == (not is_complete)
        files.fault = None
    DirtyMarker(files, directories[:2], journals).clear()
    files.fault = gone
    assert not DirtyMarker(files, directories[:2], journals).is_journal_incomplete()
    assert DirtyMarker(files, directories[:2]).is_journal_incomplete(), "no directory tells"
    DirtyMarker(files, directories[:2], journals).clear()
    files.fault = at("j", "create")
    with pytest.raises(OSError, match="j/DIRTY"):
        DirtyMarker(files, directories[:2], journals).set(journal_is_complete=False)
    DirtyMarker(files, directories[:2], journals).set(journal_is_complete=True)
