"""Files and directories that only the user may read: clusters on this machine hold entries, master keys and passwords.

Files have mode 0600 and directories 0700, whatever the umask is; existing ones are changed to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from pathlib import Path

from bkspark.cli.output import progress

_OTHERS = 0o077
_NAME_PREFIX = 60
"""How many characters of a file's name the file beside it begins with: names have at most 255 bytes."""
_DESCRIPTORS = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
_OF_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_NOT_REPLACEABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


def opener(path: str, flags: int) -> int:
    """Open a file with mode 0600; pass this as `open(..., opener=opener)`."""
    descriptor = os.open(path, flags, 0o600)
    mode = os.fstat(descriptor).st_mode
    if mode & _OTHERS and stat.S_ISREG(mode):
        os.fchmod(descriptor, 0o600)
    return descriptor


def write_text(path: Path, text: str) -> None:
    """Write a text to a file with mode 0600."""
    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)


def put(path: Path, data: bytes) -> None:
    """Write a whole file for the user: replace it, and keep a link to it.

    Descriptors, pipes and devices are written to, and a file in a directory that is not writable.

    Raises:
        OSError: it cannot be written.
    """
    match = _DESCRIPTORS.fullmatch(str(path))
    number = int(match[1]) if match else _OF_STREAMS.get(str(path))
    if number is not None:
        # It shares its place with what the process prints.
        with open(os.dup(number), "wb") as file:
            file.write(data)
        return
    is_of_process = os.path.realpath(path.parent).startswith("/proc/")
    if not is_of_process and (path.is_file() or not path.exists()):
        try:
            replace(Path(os.path.realpath(path)), data)
            return
        except OSError as error:
            if error.errno not in _NOT_REPLACEABLE or not path.exists():
                raise
    with open(path, "wb", opener=opener) as file:
        file.write(data)


def replace(path: Path, data: bytes, like: os.stat_result | None = None) -> None:
    """Write a whole file durably. Until that is done, a file that was there before stays as it is.

    Args:
        like: the new file has this owner, and its group may read it if this says so. None: only the user may read it.

    Raises:
        OSError: it cannot be written.
    """
    descriptor, beside = tempfile.mkstemp(prefix=f"{path.name[:_NAME_PREFIX]}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            if like is not None:
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.fstat(descriptor).st_gid):
                    os.fchown(descriptor, like.st_uid, like.st_gid)
                os.fchmod(descriptor, like.st_mode & 0o640)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # a directory that may be written and not read
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def make_directory(directory: Path, *, tighten: bool = True) -> None:
    """Make a directory and its missing parents.

    Args:
        tighten: if the directory exists and is open to others, restrict its mode and report that.
    """
    for missing in reversed([each for each in (directory, *directory.parents) if not each.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    mode = stat.S_IMODE(directory.stat().st_mode)
    if tighten and mode & _OTHERS:
        directory.chmod(0o700)
        progress(f"directory {directory} had mode {mode:04o}, and has 0700 now: its files are private")
