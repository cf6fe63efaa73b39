"""ClosedAtExit: writers as context managers: closed at the end of the block, abandoned if it raises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class ClosedAtExit(ABC):
    """`async with` closes a writer at the end of the block, and abandons it when the block raises."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> object:
        """Wait for pending entries, then close."""

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
