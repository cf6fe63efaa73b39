"""Tools for planting defects: one operation of the simulated disk does nothing, or errors go unnoticed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.crash.simulated_files import SimulatedDisk, SimulatedFile, SimulatedFiles, SimulatedFileSystem
from tests.planting import changed


@contextlib.contextmanager
def skipping(owner: Any, name: str, operation: str) -> Iterator[None]:
    """Make `sync_data`, `sync_directory`, or `sync` of a file system, do nothing while a method runs."""
    depth = 0

    def counting(old: Any) -> Any:
        def method(*arguments: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return old(*arguments, **named)
            finally:
                depth -= 1

        return method

    def apart(old: Any) -> Any:
        def begin(*arguments: Any) -> Any:
            """Crash images are opened between two operations; what runs there is another process."""
            nonlocal depth
            outer, depth = depth, 0
            try:
                return old(*arguments)
            finally:
                depth = outer

        return begin

    def unless_inside(old: Any) -> Any:
        return lambda *arguments: None if depth else old(*arguments)

    owner_of = {"sync_data": SimulatedFile, "sync_directory": SimulatedFiles, "sync": SimulatedFileSystem}[operation]
    with (
        changed(owner, name, counting),
        changed(SimulatedDisk, "begin", apart),
        changed(owner_of, operation, unless_inside),
    ):
        yield


def ignoring_errors(old: Any) -> Any:
    def method(*arguments: Any, **named: Any) -> None:
        with contextlib.suppress(OSError):
            old(*arguments, **named)

    return method
