"""An asyncio event loop on virtual time: sleeping costs nothing, and the simulation makes the connections."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Connect = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Coroutine[Any, Any, Any]]


class Stuck(AssertionError):
    """All tasks wait, and no timer is left that could wake any of them."""


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: time jumps to the next timer instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        if timeout is None:
            raise Stuck("the simulated processes wait for each other")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`connect(factory, host, port)`, given by the simulation, is what `create_connection` does."""

    def __init__(self, connect: Connect) -> None:
        self._jumping = _Jumping()
        self._connect = connect
        super().__init__(self._jumping)

    @property
    def turns(self) -> int:
        """How many turns the loop has taken."""
        return self._jumping.turns

    def time(self) -> float:
        return self._jumping.now_s

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._connect(protocol_factory, host, port)


async def no_connections(*_: Any) -> Any:
    """For a `VirtualLoop` in which nothing may connect."""
    raise AssertionError("nothing connects here")


async def refused_connections(*_: Any) -> Any:
    """For a `VirtualLoop` without a server."""
    raise ConnectionRefusedError


def run_in_virtual_time(program: Coroutine[Any, Any, T], connect: Connect = no_connections) -> T:
    """Run a program on a loop of its own, whose time begins at 0."""
    with contextlib.closing(VirtualLoop(connect)) as loop:
        return loop.run_until_complete(program)
