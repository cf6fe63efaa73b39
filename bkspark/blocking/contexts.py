"""What the end of a `with` block does to blocking objects: it closes them, or abandons a writer after an error."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, Self, TypeVar

from bkspark.blocking.loop import run
from bkspark.blocking.twins import Twin


class _Closable(Protocol):
    """An asyncio object that can be closed."""

    def close(self) -> Awaitable[object]: ...


class _Writer(_Closable, Protocol):
    """An asyncio writer."""

    def abandon(self) -> None: ...


_AnyClosable = TypeVar("_AnyClosable", bound=_Closable)
_AnyWriter = TypeVar("_AnyWriter", bound=_Writer)


class ClosingTwin(Twin[_AnyClosable]):
    """A blocking object that the end of a `with` block closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(self._asynchronous.close)


class WriterTwin(Twin[_AnyWriter]):
    """A blocking writer: the end of a `with` block closes it, and abandons it if the block raises."""

    def abandon(self) -> None:
        """Stop without closing the ledger: the next process that opens it with recovery finds its end."""
        asynchronous = self.asynchronous
        run(lambda: _abandon(asynchronous))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        writer = self._asynchronous
        self._leave(writer.close if kind is None else lambda: _abandon(writer))


async def _abandon(writer: _Writer) -> None:
    """Abandon a writer on the client's loop, the only thread that may touch it."""
    writer.abandon()
