"""How blocking writers end: closed at the end of a `with` block, or abandoned after an error."""

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
    """A blocking writer as a context manager: closed at the end of the block, and abandoned if the block raises."""

    def abandon(self) -> None:
        """Stop without closing the ledger: the next process that opens it with recovery finds its end."""

        asynchronous = self.asynchronous

        async def abandon() -> None:
            asynchronous.abandon()

        run(abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        async def abandon() -> None:
            self._asynchronous.abandon()

        self._leave(self._asynchronous.close if kind is None else abandon)
