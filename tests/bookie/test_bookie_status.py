"""The status file: Apache's form, and what is not of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_service.formats.bookie_status import CHANGED_MS_MAX, BookieStatus, decode_status, encode_status, latest
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.status_file import StatusFile


def test_form_is_apaches() -> None:
    assert encode_status(BookieStatus(True, 1763900000000)) == b"1,READ_ONLY,1763900000000,true\n"
    assert encode_status(BookieStatus(False, 1763900000000)) == b"1,READ_WRITE,1763900000000,false\n"
    assert decode_status(b"1,READ_WRITE,17,false\n") == BookieStatus(False, 17)
    assert decode_status(b"1,READ_ONLY,17,true\n") == BookieStatus(True, 17)
    assert decode_status(b"1,READ_ONLY,17\n") == BookieStatus(True, 17), "of an older bookie"


def test_bookie_that_a_full_disk_made_read_only_is_not_so_at_the_next_start() -> None:
    assert decode_status(b"1,READ_ONLY,17,false\n") == BookieStatus(False, 17)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"1\n",
        b"2,READ_ONLY,17\n",
        b"1,READONLY,17\n",
        b"1,READ_ONLY,x\n",
        b"1,READ_ONLY,-1",
        b"\xff" * 9,
        b"1,READ_ONLY," + b"9" * 2000,
    ],
)
def test_other_bytes_are_not_a_status(data: bytes) -> None:
    assert decode_status(data) is None


def test_latest_of_several_directories_counts(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in "abc"]
    for directory in directories[:2]:
        Path(directory).mkdir()
    stored = StatusFile(LocalFiles(), directories)
    assert stored.read() is None
    stored.write(BookieStatus(True, 5))  # the third directory is missing: two of three suffice
    assert stored.read() == BookieStatus(True, 5)
    (tmp_path / "a" / "BOOKIE_STATUS").write_bytes(encode_status(BookieStatus(False, 6)))
    assert stored.read() == BookieStatus(False, 6)
    assert latest([None, None]) is None


def test_change_after_the_clock_was_set_back_counts_also_where_a_directory_does_not_take_it(tmp_path: Path) -> None:
    """The status of before looked like the later one: the bookie was read-only again after a restart."""
    hurt, hidden = tmp_path / "b", tmp_path / "hidden"
    for directory in (tmp_path / "a", hurt):
        directory.mkdir()
    stored = StatusFile(LocalFiles(), [str(tmp_path / "a"), str(hurt)])
    stored.write(BookieStatus(True, 2000))
    hurt.rename(hidden)
    stored.write(BookieStatus(False, 1000))
    hidden.rename(hurt)
    status = stored.read()
    assert status is not None
    assert not status.is_read_only
    (tmp_path / "a" / "BOOKIE_STATUS").write_bytes(encode_status(BookieStatus(True, CHANGED_MS_MAX)))
    stored.write(BookieStatus(False, 3000))
    assert stored.read() == BookieStatus(False, CHANGED_MS_MAX)


def test_status_that_no_directory_takes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        StatusFile(LocalFiles(), [str(tmp_path / "gone")]).write(BookieStatus(True, 5))
