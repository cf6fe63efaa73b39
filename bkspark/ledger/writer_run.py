"""WriterRun: runs a WriterCore on connections, timers and the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import assert_never

from bkspark.core import effects
from bkspark.core.writer import WriterCore, WriterState
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError
from bkspark.ledger.bookies import ClusterView
from bkspark.ledger.driver import Driver, Work
from bkspark.ledger.fanout import CONFIRM_PAUSE_S, Fanout
from bkspark.ledger.metadata_steps import is_away, write_metadata
from bkspark.ledger.ownership import Ownership
from bkspark.ledger.window import AppendWindow
from bkspark.metadata.ledgers import LedgerStore
from bkspark.net.pool import BookiePool
from bkspark.wire.adds import WireProtocol

TICK_S = 0.25
STORE_AWAY_S = 60.0
"""How long a writer that must change or close its ledger waits for an unreachable metadata store."""


class WriterRun:
    """One open writer: its core, and the parts that perform the core's effects."""

    def __init__(
        self,
        ledgers: LedgerStore,
        view: ClusterView,
        pool: BookiePool,
        core: WriterCore,
        options: WriterOptions,
        *,
        protocol: WireProtocol,
        lane: int,
        is_recovery: bool,
    ) -> None:
        self.core = core
        """The decisions."""
        self.driver = Driver[effects.WriterEffect](self._begin, self._performed)
        """Performs the effects."""
        self._loop = asyncio.get_running_loop()
        """Constant."""
        ownership = None if is_recovery else Ownership(ledgers, core.ledger_id, self._loop.time)
        self.fanout = Fanout(pool, core, self.driver, protocol, lane, ownership, options.force_timeout_s)
        """The connections to the bookies."""
        self.window = AppendWindow(core, options, self._congested)
        """Entries in flight, and the callers that wait for them."""
        self.settled = asyncio.Event()
        """Set while no compare-and-set is in progress or about to begin. Changed by `_performed` alone."""
        self.settled.set()
        self.on_failed: Callable[[BookKeeperError], None] | None = None
        """Called with the reason when the writer ended other than by `close`. Set by the writer's user."""
        self._ledgers = ledgers
        """The client's."""
        self._view = view
        """The client's."""
        self._options = options
        """Constant."""
        self._ticker: asyncio.TimerHandle | None = self._loop.call_later(TICK_S, self._tick)
        """The next tick of the core's clock; None when the writer has ended."""
        self._extra_tick: asyncio.TimerHandle | None = None
        """An additional tick that the core requested. The first of several requests is kept: the core requests
        again."""

    def stop(self) -> None:
        """Release timers, connections and work in progress."""
        for timer in (self._ticker, self._extra_tick):
            if timer is not None:
                timer.cancel()
        self._ticker = self._extra_tick = None
        self.fanout.close()
        self.driver.stop()

    # ---- effects ----

    def _begin(self, effect: effects.WriterEffect) -> Work[effects.WriterEffect] | None:
        match effect:
            case effects.SendAdds():
                self.fanout.send(effect)
            case effects.Acknowledge():
                self.window.acknowledge(effect.last_entry)
            case effects.Confirm():
                self.window.confirm(effect.last_entry)
            case effects.Force():
                return self.fanout.force(effect)
            case effects.CallAfter():
                if self._extra_tick is None:
                    self._extra_tick = self._loop.call_later(effect.delay_ns / 1e9, self._tick_once)
            case effects.FindBookies():
                for bookie in effect.failed:
                    self._view.on_failure(bookie)
                    self.fanout.drop_if_silent(bookie)
                return self._find_bookies()
            case effects.DropIfSilent():
                self.fanout.drop_if_silent(effect.bookie)
            case effects.WriteMetadata():
                return write_metadata(self._ledgers, self.core, self.core.ledger_id, effect, self._patience())
            case effects.Fail():
                self.window.fail(effect.error)
                if self.on_failed is not None:
                    self.on_failed(effect.error)
                self.stop()
            case _:
                assert_never(effect)
        return None

    def _performed(self) -> None:
        if self.core.state in (WriterState.CHANGING, WriterState.CLOSING):
            self.settled.clear()
        else:
            self.settled.set()
        self.window.look_for_room()

    async def _find_bookies(self) -> list[effects.WriterEffect]:
        has_patience = self._patience()
        while True:
            try:
                found = await self._view.replacements()
            except BookKeeperError as error:
                if not is_away(error) or not await has_patience():
                    return self.core.on_metadata_failed(error)
            else:
                return self.core.on_writable_bookies(found.writable, found.topology)

    def _patience(self) -> Callable[[], Awaitable[bool]]:
        """Return a patience for an unreachable metadata store, of STORE_AWAY_S; nothing is acknowledged meanwhile."""
        until = self._loop.time() + STORE_AWAY_S

        async def has_patience() -> bool:
            await asyncio.sleep(CONFIRM_PAUSE_S)
            return self.core.error is None and self._loop.time() < until

        return has_patience

    # ---- ticks ----

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self.driver.perform(self.core.on_tick(self.driver.now_ns(), self._congested()))

    def _tick_once(self) -> None:
        self._extra_tick = None
        self.driver.perform(self.core.on_tick(self.driver.now_ns(), self._congested()))

    def _congested(self) -> list[int]:
        return self.fanout.congested(self._options.lag_bytes_max)
