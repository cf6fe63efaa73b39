"""ClosedAtExit: a context manager that closes at its end, and abandons after an error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class ClosedAtExit(ABC):
    """`async with` closes a writer at the end of the block, and abandons it when the block raises."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> object:
        """Finish what was begun."""

    @abstractmethod
    def abandon(self) -> None:
        """Stop without closing anything."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()
