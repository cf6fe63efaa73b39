"""The ledgers whose state a plan has read, and the addresses of their bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from bkspark.client import Client, LedgerReader
from bkspark.errors import BookieUnavailable, DataLoss, NoSuchLedger, UnauthorizedAccess
from bkspark.log.formats import ledger_identity
from bkspark.log.reading import gone
from bkspark.spark.options import SourceOptions
from bkspark.tasks import CALLS_AT_ONCE, each_of


class OpenedLedgers:
    """Reads the state of each ledger, and looks up the address of each bookie, once.

    The methods are coroutines of the client's loop.

    Args:
        kind, remedy: what ledgers belong to, and what to do about a loss, for messages.
    """

    def __init__(self, client: Client, options: SourceOptions, kind: str, remedy: str) -> None:
        self._client = client
        self._options = options
        self._kind = kind
        self._remedy = remedy
        self._opened: dict[int, LedgerReader] = {}
        """Ledgers that were read, by id. Only grows."""
        self._logs: dict[int, str] = {}
        """The log of each of these ledgers, by id. Only grows."""
        self._ahead: dict[int, LedgerReader] = {}
        """Ledgers that `look_ahead` read; `open` moves those that are needed to `_opened`."""
        self._resolved: dict[str, tuple[str, int]] = {}
        """The addresses of bookies that were looked up. Only grows."""

    def get(self, ledger_id: int) -> LedgerReader | None:
        """Return an opened ledger; None if it was not opened, or did not exist."""
        return self._opened.get(ledger_id)

    async def open(self, ledgers: Mapping[int, str], *, must_exist: bool = True) -> None:
        """Read the state of ledgers. `ledgers`: the name of the log or topic of each, empty without one.

        A ledger that was created with the id of a log's deleted one does not count as existing.

        Raises:
            NoSuchLedger, DataLoss: one does not exist, although it `must_exist` (failOnDataLoss).
            UnauthorizedAccess: one has another password.
        """
        self._opened |= {ledger_id: self._ahead.pop(ledger_id) for ledger_id in ledgers if ledger_id in self._ahead}
        todo = [ledger_id for ledger_id in ledgers if ledger_id not in self._opened]
        await each_of(lambda ledger_id: self._open_one(ledger_id, ledgers[ledger_id], must_exist=must_exist), todo)

    async def _open_one(self, ledger_id: int, log: str, *, must_exist: bool) -> None:
        try:
            recover, having = self._options.recover, self._identity(log)
            self._opened[ledger_id] = await self._client.open(ledger_id, recover=recover, having=having)
            self._logs[ledger_id] = log
        except NoSuchLedger as error:
            if not (must_exist and self._options.fail_on_data_loss):
                return
            if not self._options.reads_logs:
                raise NoSuchLedger(
                    f"option 'ledgers' names ledger {ledger_id}, which does not exist: leave it out, or allow the loss "
                    "(failOnDataLoss=false)",
                    ledger_id=ledger_id,
                ) from None
            raise DataLoss(f"{gone(error, log)}: {self._remedy}", ledger_id=ledger_id) from None
        except UnauthorizedAccess as error:
            is_many = any(not each.is_one for each in self._options.ledgers or ())
            narrow = (
                "; a read has one password, so choose the ledgers that have it, by their ids or by ledgerMetadata.KEY"
            )
            message = f"{f'{self._kind} {log}: ' if log else ''}{error}{narrow if is_many else ''}"
            raise UnauthorizedAccess(
                f"option '{self._options.ledger_password.option}': {message}", ledger_id=ledger_id
            ) from None

    def _identity(self, log: str) -> dict[str, bytes] | None:
        """Return the custom metadata that a ledger must have; None if it is of no log."""
        return ledger_identity(log) if log and self._options.reads_logs else None

    async def look_ahead(self, before: OpenedLedgers | None) -> None:
        """Prefetch what an earlier plan needed and this one is likely to need: open ledgers, and bookies.

        This runs while others read the present list of ledgers. A failed look-up is repeated on demand; the next
        plan does not prefetch what was not needed.
        """
        if before is None:
            return
        open_ones = [ledger_id for ledger_id, reader in before._opened.items() if not reader.is_closed]
        self._logs |= {ledger_id: before._logs[ledger_id] for ledger_id in open_ones}
        await asyncio.gather(
            *map(self._open_ahead, open_ones[:CALLS_AT_ONCE]),
            *map(self._resolve, list(before._bookies())[:CALLS_AT_ONCE]),
            return_exceptions=True,
        )

    async def _open_ahead(self, ledger_id: int) -> None:
        self._ahead[ledger_id] = await self._client.open(ledger_id, having=self._identity(self._logs[ledger_id]))

    async def addresses(self) -> dict[str, tuple[str, int]]:
        """Return the known addresses of the bookies of all opened ledgers."""
        todo = [bookie for bookie in self._bookies() if bookie not in self._resolved]
        await each_of(self._resolve, todo)
        return self._resolved

    def _bookies(self) -> set[str]:
        return {
            bookie
            for reader in self._opened.values()
            for fragment in reader.metadata.fragments
            for bookie in fragment.bookies
        }

    async def _resolve(self, bookie: str) -> None:
        registry = (await self._client.context()).registry
        with suppress(BookieUnavailable):  # a task that needs it asks another replica, and names it if there is none
            self._resolved[bookie] = await registry.resolve(bookie)
