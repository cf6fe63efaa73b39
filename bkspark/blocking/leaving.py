"""How a writer ends, blocking."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from bkspark import client as aio
from bkspark import log as aio_log
from bkspark.blocking.loop import run


class Leaving(ABC):
    """The end of any writer. As a context manager it is closed, or abandoned when an error leaves the block."""

    _writer: aio.LedgerWriter | aio.AdvancedLedgerWriter | aio_log.LogWriter

    @abstractmethod
    def close(self) -> object:
        """Wait for pending entries and close."""

    def abandon(self) -> None:
        """Stop without closing anything: the next client that opens the ledger or log finds the end."""

        async def abandon() -> None:
            self._writer.abandon()

        run(abandon)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
