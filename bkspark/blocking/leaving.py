"""How a writer ends, blocking."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, Self, TypeVar

from bkspark.blocking.loop import run
from bkspark.blocking.twins import Twin


class _Writer(Protocol):
    """An asyncio writer."""

    def close(self) -> Awaitable[object]: ...

    def abandon(self) -> None: ...


_AnyWriter = TypeVar("_AnyWriter", bound=_Writer)


class Leaving(Twin[_AnyWriter]):
    """The end of any writer. As a context manager it is closed, or abandoned when an error leaves the block."""

    def abandon(self) -> None:
        """Stop without closing anything: the process that opens the ledger or log next finds the end."""

        async def abandon() -> None:
            self.asynchronous.abandon()

        run(abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            run(self.asynchronous.close)
        else:
            self.abandon()
