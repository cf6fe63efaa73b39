"""What each call of `storage/files.py` does to real files, in which order, and what its errors say."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookie_service.storage.io import files as files_module
from bookie_service.storage.io.disk_threads import DiskStalled
from bookie_service.storage.io.files import (
    DISK_FAILURES,
    DirectoryLock,
    File,
    FileSystem,
    LocalFiles,
    ReadOnlyFiles,
    SyncFailed,
    is_disk_failure,
    is_out_of_space,
    may_be_repeated,
    refuses_writes,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


@pytest.fixture
def file(path: str) -> Iterator[File]:
    opened = LocalFiles().create(path)
    yield opened
    opened.close()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


class Calls:
    """Records calls of the operating system, and makes them: (name, file)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.made: list[tuple[str, str]] = []
        for name in names:
            monkeypatch.setattr(os, name, self._recorded(name, getattr(os, name)))

    def _recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(first: Any, *others: Any, **named: Any) -> Any:
            where = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            self.made.append((name, os.path.basename(where)))
            return call(first, *others, **named)

        return recorded


# ---- bytes ----


def test_any_number_of_buffers_is_written_back_to_back(file: File) -> None:
    """The operating system takes 1,024 buffers a call."""
    for count in (1, 1023, 1024, 1025, 2500):
        buffers = [b"%06d" % number for number in range(count)]
        assert file.write(buffers, 17) == 6 * count
        assert file.read(6 * count, 17) == b"".join(buffers)
        assert file.size() == 17 + 6 * count
    assert file.write([], 5) == 0


def test_short_write_is_continued(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux stops at 2 GiB a call, and at a disk that is almost full."""
    whole_v, whole = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: whole_v(fd, [b"".join(buffers)[:3]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, bytes(data[:4]), at))
    assert file.write([b"abcdef", b"", b"ghijklmnop", b"q"], 2) == 17
    assert file.read(100, 0) == b"\0\0abcdefghijklmnopq"


def test_short_read_is_continued(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write([b"abcdefghij"], 0)
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 3), at))
    assert file.read(10, 0) == b"abcdefghij"
    assert file.read(7, 2) == b"cdefghi"
    assert file.read(100, 4) == b"efghij"
    assert file.read(5, 10) == b""


def test_cached_read_returns_nothing_instead_of_waiting(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write([b"abcdefghij"], 0)
    buffer = bytearray(20)
    assert file.read_cached(memoryview(buffer), 4) == 6
    assert bytes(buffer[:6]) == b"efghij"
    assert file.read_cached(memoryview(buffer), 10) == 0

    def failing(code: int) -> Callable[..., int]:
        def preadv(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        return preadv

    for code in (errno.EAGAIN, errno.EOPNOTSUPP):
        monkeypatch.setattr(os, "preadv", failing(code))
        assert file.read_cached(memoryview(buffer), 0) == 0
    monkeypatch.setattr(os, "preadv", failing(errno.EIO))
    with pytest.raises(OSError) as raised:
        file.read_cached(memoryview(buffer), 0)
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, file.path)


def test_cached_read_returns_nothing_on_a_system_without_such_reads(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write([b"abc"], 0)
    monkeypatch.setattr(files_module, "_NO_WAIT", None)
    assert file.read_cached(memoryview(bytearray(3)), 0) == 0


def test_next_data_skips_a_hole(file: File) -> None:
    file.write([b"x"], 1 << 20)
    found = file.next_data(0)
    assert found is not None
    assert 0 < found <= 1 << 20
    assert file.next_data(1 << 20) == 1 << 20
    assert file.next_data((1 << 20) + 1) is None


def test_reserve_keeps_the_length_and_preallocate_extends_it(file: File) -> None:
    file.write([b"abc"], 0)
    file.reserve(0, 1 << 20)
    assert file.size() == 3
    assert os.stat(file.path).st_blocks * 512 >= 1 << 20
    file.truncate(2)
    assert file.read(10, 0) == b"ab"
    file.preallocate(100, 50)
    assert file.size() == 150
    assert file.read(150, 0) == b"ab" + bytes(148)


def test_sync_data_syncs_that_file(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, "fdatasync", "fsync")
    file.sync_data()
    assert calls.made == [("fdatasync", "file")]


def test_advice_is_about_the_bytes_that_were_asked_for(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *advice: given.append(advice))
    descriptor = int(next(name for name in descriptors() if _is_open_at(name, file.path)))
    file.read_ahead(100, 7)
    file.drop_page_cache(10, 40)
    assert given == [(descriptor, 7, 100, os.POSIX_FADV_WILLNEED), (descriptor, 10, 30, os.POSIX_FADV_DONTNEED)]


def _is_open_at(descriptor: str, path: str) -> bool:
    link = f"/proc/self/fd/{descriptor}"
    return os.path.exists(link) and os.readlink(link) == path


def test_file_system_is_opened_by_a_directory_alone(tmp_path: Path, path: str) -> None:
    LocalFiles().create(path).close()
    with pytest.raises(NotADirectoryError):
        LocalFiles().open_file_system(path)


# ---- errors ----


@pytest.mark.parametrize(
    "act",
    [
        lambda file: file.write([b"x"], 0),
        lambda file: file.write([b"x"] * 2000, 0),
        lambda file: file.read(1, 0),
        lambda file: file.read_cached(memoryview(bytearray(1)), 0),
        lambda file: file.size(),
        lambda file: file.next_data(0),
        lambda file: file.sync_data(),
        lambda file: file.preallocate(0, 1),
        lambda file: file.reserve(0, 1),
        lambda file: file.truncate(0),
    ],
)
def test_errors_name_the_file(path: str, act: Callable[[File], object]) -> None:
    file = LocalFiles().create(path)
    file.close()
    with pytest.raises(OSError) as raised:
        act(file)
    assert (raised.value.errno, raised.value.filename) == (errno.EBADF, path)


def test_sync_of_a_file_system_reports_its_error_with_the_path(tmp_path: Path) -> None:
    system = LocalFiles().open_file_system(str(tmp_path))
    assert system is not None
    system.sync()
    system.close()
    with pytest.raises(OSError) as raised:
        system.sync()
    assert (raised.value.errno, raised.value.filename) == (errno.EBADF, str(tmp_path))


# ---- descriptors ----


def test_closed_files_hold_no_descriptor(tmp_path: Path, path: str) -> None:
    """A bookie opens and closes thousands of files an hour."""
    files, before = LocalFiles(), descriptors()
    files.create(path).close()
    files.open(path).close()
    ReadOnlyFiles().open(path).close()
    files.read_all(path)
    files.replace(path, b"other")
    files.sync_directory(str(tmp_path))
    files.make_directory(str(tmp_path / "a" / "b"))
    system = files.open_file_system(str(tmp_path))
    assert isinstance(system, FileSystem)
    system.close()
    lock = files.lock(str(tmp_path))
    assert isinstance(lock, DirectoryLock)
    with pytest.raises(BlockingIOError) as raised:
        files.lock(str(tmp_path))
    assert raised.value.filename == str(tmp_path)
    lock.release()
    files.lock(str(tmp_path)).release()
    assert descriptors() == before


def test_error_of_a_close_says_nothing_that_a_sync_has_not_said(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system in user space gives one for each close when its process is gone, also after reads alone."""
    files, before = LocalFiles(), descriptors()
    closable = [files.create(path), files.open(path), files.lock(str(tmp_path)), files.open_file_system(str(tmp_path))]
    close = os.close

    def failing(fd: int) -> None:
        close(fd)
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", failing)
        for each in closable:
            (each.release if isinstance(each, DirectoryLock) else each.close)()
        files.sync_directory(str(tmp_path))
    assert descriptors() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        closable[0].close()


# ---- names ----


def test_open_needs_a_file_and_create_needs_none(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        LocalFiles().open(path)
    LocalFiles().create(path).close()
    with pytest.raises(FileExistsError):
        LocalFiles().create(path)
    file = LocalFiles().open(path)
    file.write([b"abc"], 0)
    file.close()
    assert ReadOnlyFiles().read_all(path) == b"abc"


def test_read_only_files_cannot_be_changed(path: str) -> None:
    LocalFiles().replace(path, b"abc")
    file = ReadOnlyFiles().open(path)
    for change in (lambda: file.write([b"x"], 0), lambda: file.truncate(0), lambda: file.preallocate(0, 10)):
        with pytest.raises(OSError):
            change()
    file.close()
    assert ReadOnlyFiles().read_all(path) == b"abc"


def test_replacement_is_synced_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash leaves the old contents or the new ones. Marks and cookies rely on that."""
    LocalFiles().replace(path, b"old")
    (tmp_path / "file.new").write_bytes(b"left by a crash")
    calls = Calls(monkeypatch, "pwritev", "fdatasync", "rename", "fsync")
    LocalFiles().replace(path, b"new")
    written = ["pwritev", "fdatasync", "rename"]
    assert calls.made == [*((name, "file.new") for name in written), ("fsync", tmp_path.name)]
    assert (ReadOnlyFiles().read_all(path), os.listdir(tmp_path)) == (b"new", ["file"])
    calls.made.clear()
    LocalFiles().replace(path, b"newer", durably=False)
    assert calls.made == [("pwritev", "file.new"), ("rename", "file.new")]
    assert ReadOnlyFiles().read_all(path) == b"newer"


def test_new_directories_are_synced_from_the_top_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, "mkdir", "fsync")
    LocalFiles().make_directory(str(tmp_path / "a" / "b"))
    assert calls.made == [("mkdir", "a"), ("fsync", tmp_path.name), ("mkdir", "b"), ("fsync", "a")]
    LocalFiles().make_directory(str(tmp_path / "a" / "b"))
    assert len(calls.made) == 4


def test_directory_that_another_process_makes_first_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = str(tmp_path / "a")
    monkeypatch.setattr(LocalFiles, "is_directory", lambda self, path: path != target)
    os.mkdir(target)
    LocalFiles().make_directory(target)


def test_names_sizes_and_kinds_are_reported_as_on_the_disk(tmp_path: Path, path: str) -> None:
    files = LocalFiles()
    assert (files.exists(path), files.file_size(path)) == (False, None)
    for name in ("b", "a", "c"):
        files.replace(str(tmp_path / name), b"x" * 5)
    assert files.names(str(tmp_path)) == ["a", "b", "c"]
    assert (files.exists(str(tmp_path / "a")), files.file_size(str(tmp_path / "a"))) == (True, 5)
    assert (files.is_directory(str(tmp_path)), files.is_directory(str(tmp_path / "a"))) == (True, False)
    files.rename(str(tmp_path / "a"), path)
    files.remove(str(tmp_path / "b"))
    files.create_directory(str(tmp_path / "d"))
    files.remove_directory(str(tmp_path / "d"))
    assert files.names(str(tmp_path)) == ["c", "file"]
    space, found = files.space(str(tmp_path)), os.statvfs(tmp_path)
    assert space.total_bytes == found.f_blocks * found.f_frsize
    assert 0 < space.free_bytes <= space.total_bytes


@pytest.mark.parametrize(
    ("release", "reports"),
    [("5.7.19-generic", False), ("5.8.0", True), ("5.10.0-21-amd64", True), ("4.19.0", False), ("6.0.1", True)],
)
def test_syncfs_is_used_only_where_linux_reports_earlier_write_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, reports: bool
) -> None:
    """Since 5.8 `syncfs` reports them. Before 5.8 an error is lost, so files are synced one by one."""
    found = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((found[0], found[1], release, found[3], found[4])))
    system = LocalFiles().open_file_system(str(tmp_path))
    assert (system is not None) == reports
    if system is not None:
        system.close()


# ---- access ----


def access(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return stat.S_IMODE(found.st_mode), found.st_gid


def test_new_files_are_for_their_user_or_for_the_group_that_is_named_too(tmp_path: Path) -> None:
    group_id = max({os.getegid(), *os.getgroups()})
    before = os.umask(0)
    try:
        for files, expected in ((LocalFiles(), (0o600, 0o700)), (LocalFiles(group_id), (0o640, 0o2750))):
            folder = str(tmp_path / oct(expected[1]))
            files.make_directory(os.path.join(folder, "below"))
            files.create(os.path.join(folder, "file")).close()
            files.replace(os.path.join(folder, "other"), b"x")
            assert {access(os.path.join(folder, name))[0] for name in ("file", "other")} == {expected[0]}
            assert {access(each)[0] for each in (folder, os.path.join(folder, "below"))} == {expected[1]}
            assert {access(each)[1] for each in (folder, os.path.join(folder, "file"))} == {group_id}
    finally:
        os.umask(before)


@pytest.mark.parametrize("group", [False, True])
def test_directory_that_is_open_to_others_is_closed_and_one_that_is_right_is_left(tmp_path: Path, group: bool) -> None:
    files = LocalFiles(max({os.getegid(), *os.getgroups()})) if group else LocalFiles()
    tmp_path.chmod(0o2755)
    right = 0o2750 if group else 0o700
    assert files.protect(str(tmp_path)) == f"directory {tmp_path} had mode 2755, and has {right:04o} now"
    assert access(str(tmp_path))[0] & 0o777 == right & 0o777
    assert files.protect(str(tmp_path)) is None
    if group:
        tmp_path.chmod(0o750)
        assert files.protect(str(tmp_path)) is not None, "new files would not inherit the group"
        assert access(str(tmp_path))[0] == right


def test_group_that_the_user_is_not_in_is_an_error_that_names_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(OSError, match="this user is not in group 4711 of permittedFileGroup"):
        LocalFiles(4711).create_directory(str(tmp_path / "new"))


def test_file_of_a_file_system_that_was_made_read_only_can_be_read_and_refuses_changes(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalFiles().replace(path, b"abc")
    whole = os.open

    def read_only(name: str, flags: int, *more: int) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        return whole(name, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    file = LocalFiles().open(path)
    assert file.read(10, 0) == b"abc"
    for change in (lambda: file.write([b"x"], 0), lambda: file.truncate(0), lambda: file.preallocate(0, 10)):
        with pytest.raises(OSError) as raised:
            change()
        assert (raised.value.errno, raised.value.filename) == (errno.EROFS, path)
    file.close()
    assert ReadOnlyFiles().read_all(path) == b"abc"


@pytest.mark.parametrize(
    ("codes", "raises"),
    [
        ([errno.EOPNOTSUPP], None),
        ([errno.ENOSYS], None),
        ([errno.EINTR, errno.EINTR, 0], None),
        ([errno.EINTR, errno.ENOSPC], errno.ENOSPC),
    ],
)
def test_space_is_reserved_where_the_file_system_can_and_its_lack_is_an_error(
    file: File, monkeypatch: pytest.MonkeyPatch, codes: list[int], raises: int | None
) -> None:
    left = list(codes)

    def fallocate(*_: object) -> int:
        code = left.pop(0)
        ctypes.set_errno(code)
        return -1 if code else 0

    monkeypatch.setattr(files_module, "_fallocate", fallocate)
    if raises is None:
        file.reserve(0, 10)
    else:
        with pytest.raises(OSError) as raised:
            file.reserve(0, 10)
        assert (raised.value.errno, raised.value.filename) == (raises, file.path)
    assert left == []


# ---- what an error means ----


def test_error_of_a_disk_says_whether_it_may_be_tried_again_or_elsewhere() -> None:
    kinds = {
        "full": [OSError(code, "") for code in (errno.ENOSPC, errno.EDQUOT)],
        "failing": [OSError(getattr(errno, name), "") for name in DISK_FAILURES],
        "failed sync": [SyncFailed(errno.ENOSPC, "")],
        "stalled": [DiskStalled("/a", 1.0)],
        "other": [OSError(errno.EACCES, ""), ValueError()],
    }

    def which(says: Callable[[BaseException], bool]) -> set[str]:
        return {kind for kind, errors in kinds.items() for error in errors if says(error)}

    assert which(is_out_of_space) == {"full"}
    assert which(may_be_repeated) == {"full", "stalled"}
    assert which(is_disk_failure) == {"failing"}
    assert which(refuses_writes) == {"full", "failing"}
    assert is_disk_failure(SyncFailed(errno.EIO, ""))
