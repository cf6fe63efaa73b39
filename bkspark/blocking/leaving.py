"""How a writer ends, blocking."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from bkspark import client as aio
from bkspark import log as aio_log
from bkspark.blocking.loop import run


class Leaving(ABC):
    """What ends any writer. As a context manager it is closed, or abandoned when an error leaves the block."""

    _writer: aio.LedgerWriter | aio.AdvancedLedgerWriter | aio_log.LogWriter

    @abstractmethod
    def close(self) -> object:
        """Wait for what is pending and close."""

    def abandon(self) -> None:
        """Stop without closing anything: whoever opens the ledger or log next finds the end."""

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
