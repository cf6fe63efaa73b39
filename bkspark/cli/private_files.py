"""Files and directories that only the user may read: clusters on this machine hold entries, master keys and passwords.

Files have mode 0600 and directories 0700, whatever the umask is; existing ones are changed to it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from bkspark.cli.output import progress

_OTHERS = 0o077
_NAME_PREFIX = 100
"""How much of a file's name the file beside it begins with: a whole name may be as long as names may be."""


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
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
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
