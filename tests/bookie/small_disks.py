"""Disks that really fill up, or stall."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class MountRefused(Exception):
    """This process may not mount or freeze a disk; the text is what the system said."""


def _run(*command: str) -> None:
    """Run a command of the system. Raises MountRefused if it fails, or is missing."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        raise MountRefused(f"there is no {missing.filename}") from missing
    if result.returncode:
        raise MountRefused(result.stderr.strip())


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """Mount a disk of this many bytes. Raises MountRefused."""
    path.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextlib.contextmanager
def disk_that_freezes(path: Path, size: int) -> Iterator[Path]:
    """Mount a disk of this many bytes that `Freeze` can freeze. Raises MountRefused, also if it cannot be frozen."""
    path.mkdir()
    image = path.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", str(image))
    _run("mount", "-o", "loop", str(image), str(path))
    try:
        _run("fsfreeze", "--freeze", str(path))
        _run("fsfreeze", "--unfreeze", str(path))
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


class Freeze:
    """Freezes a disk: a write there does not return before `end`, not even one into the page cache.

    After `seconds_max` it ends by itself, because a write may hold Python's lock.
    """

    def __init__(self, path: Path, seconds_max: int) -> None:
        script = f'fsfreeze -f "$0" && echo frozen && read -t {seconds_max}; fsfreeze -u "$0"'
        command = ["bash", "-c", script, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"frozen\n"

    @property
    def goes_on(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Let the disk go on; it may go on already."""
        self._process.communicate()


@contextlib.contextmanager
def mounted(
    path: Path, size: int, mount: Callable[[Path, int], contextlib.AbstractContextManager[Path]] = small_disk
) -> Iterator[Path]:
    """Mount a disk for a test, which is skipped where this process may not mount one."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(mount(path, size))
        except MountRefused as refused:
            pytest.skip(f"this process may not mount such a disk: {refused}")
        yield path
