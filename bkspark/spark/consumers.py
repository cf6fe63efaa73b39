"""The registration of a streaming query in the logs that it reads (option `consumer`).

It moves when Spark has committed a batch: a trigger begins where the last committed batch ended, and Spark also reports
the commit when the next batch begins. A registration that lags behind only means that the log keeps more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from bkspark.errors import BookKeeperError, NoSuchLog, NoSuchNode
from bkspark.log import ConsumerRegistration
from bkspark.log.log import Log
from bkspark.log.positions import Position
from bkspark.spark.connection import connect
from bkspark.spark.options import SourceOptions

RENEWALS = 4
"""A registration that does not move is renewed this often within its expiry."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    registration: ConsumerRegistration
    """The registration of the query as a consumer of one log."""
    moved_s: float
    """When `registration` was last moved."""


class StreamConsumer:
    """Registers a query in each of its logs, and moves the registrations. The coroutines run on the client's loop."""

    def __init__(self, name: str, options: SourceOptions) -> None:
        self._name = name
        self._options = options
        self._held: dict[str, _Held] = {}
        """Registrations of this process, by log."""
        self._log_ids: Mapping[str, str] = {}
        """The ids of the logs that the last trigger found, by name."""

    def found(self, log_ids: Mapping[str, str]) -> None:
        """Forget the registrations in logs that were deleted since the last trigger, also where a log of the same name
        was created since."""
        for log in [log for log in self._held if log_ids.get(log) != self._log_ids.get(log)]:
            del self._held[log]
        self._log_ids = log_ids

    async def hold(self, positions: Mapping[str, Position]) -> None:
        """Move the registrations of these logs to the positions, before which everything is read and committed.

        Raises:
            ConfigurationError: another query has registered under the name.
            DataLoss: the entries after a position are gone.
        """
        await asyncio.gather(*(self._hold(log, position) for log, position in positions.items()))
        for log in self._held.keys() - positions.keys():
            try:
                await self._hold(log, self._held[log].registration.position)
            except NoSuchLog:
                del self._held[log]

    async def _hold(self, log: str, position: Position) -> None:
        held = self._held.get(log)
        if held is not None and position <= held.registration.position and not self._is_due(held):
            return
        try:
            if held is not None:
                await held.registration.move(position)
                held.moved_s = time.monotonic()
                return
        except NoSuchNode:
            _log.warning("consumer %s of log %s was removed, and is registered again", self._name, log)
        expiry_s = self._options.consumer_expiry_ms / 1000
        client = connect(self._options).asynchronous
        made = await Log(client, log).register_consumer(self._name, position, expiry_s=expiry_s)
        self._held[log] = _Held(made, time.monotonic())

    def _is_due(self, held: _Held) -> bool:
        return (time.monotonic() - held.moved_s) * 1000 * RENEWALS >= self._options.consumer_expiry_ms

    async def note(self, positions: Mapping[str, Position]) -> None:
        """As `hold`, at a commit: a failure is ignored, because the next trigger repeats it."""
        try:
            await self.hold({log: position for log, position in positions.items() if log in self._held})
        except BookKeeperError as error:
            _log.warning("consumer %s was not moved, so its logs keep more than it needs: %s", self._name, error)
