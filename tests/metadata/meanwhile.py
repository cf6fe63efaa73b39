"""A metadata session in which others act between two of its calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from bkspark.metadata.memory import MemoryStore, MemoryTree

Act = Callable[[], Awaitable[None]]


class Meanwhile(MemoryTree):
    """A session of a store; `before` has, by the name of a call, what happens once before the next call of it.

    An act may raise: then the call is not carried out.
    """

    def __init__(self, store: MemoryStore, **before: Act) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        store._sessions[session.session_id] = self
        self.before = before
        for name in ("get", "exists", "children", "create", "set", "delete", "transaction", "watch"):
            setattr(self, name, self._preceded(name, getattr(self, name)))

    def _preceded(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def preceded(*arguments: Any, **named: Any) -> Any:
            act = self.before.pop(name, None)
            if act is not None:
                await act()
            return await call(*arguments, **named)

        return preceded
