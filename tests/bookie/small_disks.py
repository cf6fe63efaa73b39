"""Disks that really fill up."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class MountRefused(Exception):
    """This process may not mount a disk; the text is what the system said."""


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """Mount a disk of this many bytes. Raises MountRefused."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MountRefused(result.stderr.strip())
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextlib.contextmanager
def mounted(path: Path, size: int) -> Iterator[Path]:
    """`small_disk` for a test, which is skipped where this process may not mount one."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(small_disk(path, size))
        except MountRefused as refused:
            pytest.skip(f"this process may not mount a small disk: {refused}")
        yield path
