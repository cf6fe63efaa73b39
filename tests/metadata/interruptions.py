"""A metadata tree whose n-th call is interrupted, and which lines of the product called it then."""

from __future__ import annotations

import ast
import enum
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from bkspark.errors import MetadataError, MetadataVersion, NodeExists, NoSuchNode, SessionExpired
from bkspark.metadata.memory import MemoryStore, MemoryTree

CALLS = ("get", "exists", "children", "create", "set", "delete", "transaction", "watch", "watch_children")
TRIES_MAX = 5
Site = tuple[str, int]
"""File and first line of a call."""

_T = TypeVar("_T")


class Interruption(enum.Enum):
    """What happens to one call."""

    LOST_BEFORE = enum.auto()
    LOST_AFTER = enum.auto()
    EXPIRED_BEFORE = enum.auto()
    EXPIRED_AFTER = enum.auto()

    @property
    def expires(self) -> bool:
        return self in (Interruption.EXPIRED_BEFORE, Interruption.EXPIRED_AFTER)

    @property
    def is_after(self) -> bool:
        """Whether the server has carried the call out."""
        return self in (Interruption.LOST_AFTER, Interruption.EXPIRED_AFTER)


class InterruptedTree(MemoryTree):
    """A session in which call number `at`, counted from 0, is interrupted. `struck` says which line made it."""

    def __init__(self, store: MemoryStore, at: int, how: Interruption) -> None:
        super().__init__(store, 1 << 40, 10.0)
        self.struck: Site | None = None
        self.expired = False
        self._at = at
        self._how = how
        self._count = 0
        for name in CALLS:
            setattr(self, name, self._counted(getattr(self, name)))

    def _counted(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        def counted(*arguments: Any, **named: Any) -> Awaitable[Any]:
            number, self._count = self._count, self._count + 1
            if number != self._at:
                return call(*arguments, **named)
            frame = sys._getframe(1)
            self.struck = (frame.f_code.co_filename, frame.f_lineno)
            return self._interrupted(call, arguments, named)

        return counted

    async def _interrupted(self, call: Callable[..., Awaitable[Any]], arguments: Any, named: Any) -> Any:
        if self._how.is_after:
            await call(*arguments, **named)
        if not self._how.expires:
            raise MetadataError("the connection to the metadata store was lost")
        self.expired = True
        self.store.expire(self)
        raise SessionExpired("the session ended")


async def surely(step: Callable[[], Awaitable[_T]]) -> _T:
    """Take a step, again where it says that the store was away."""
    for _ in range(TRIES_MAX - 1):
        try:
            return await step()
        except (NodeExists, NoSuchNode, MetadataVersion):
            raise
        except MetadataError:
            continue
    return await step()


def call_sites(module: ModuleType) -> Iterator[range]:
    """Yield the lines of every call to a tree in a module: `self._tree.get(...)` and its like."""
    assert module.__file__ is not None
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
            owner = node.func.value
            if isinstance(owner, ast.Attribute) and owner.attr == "_tree":
                assert node.end_lineno is not None
                yield range(node.lineno, node.end_lineno + 1)


def not_reached(module: ModuleType, struck: set[Site]) -> list[int]:
    """Return the first lines of those calls in a module that were never interrupted."""
    lines = {line for file, line in struck if file == module.__file__}
    return [site.start for site in call_sites(module) if not lines.intersection(site)]
