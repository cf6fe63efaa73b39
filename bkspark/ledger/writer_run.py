"""WriterRun: runs a WriterCore on connections, timers and the metadata store."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import assert_never

from bkspark.core import effects
from bkspark.core.pipeline import WriterState
from bkspark.core.writer import WriterCore
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, NotEnoughBookies, RequestTimeout
from bkspark.ledger.context import ClientContext
from bkspark.ledger.driver import Driver, Work
from bkspark.ledger.fanout import CONFIRM_PAUSE_S, Connect, Fanout
from bkspark.ledger.metadata_steps import is_away, write_metadata
from bkspark.ledger.ownership import Ownership
from bkspark.ledger.window import AppendWindow

TICK_S = 0.25
"""Interval of the core's regular ticks, which find time-outs."""
STORE_AWAY_S = 60.0
"""How long a writer retries an ensemble change or a close while the metadata store is unreachable."""


class WriterRun:
    """Runs the core of one open writer; `fanout` and `window` perform its effects.

    Args:
        connect: coroutine function: bookie id to the channel for its adds.
        is_recovery: the writer rewrites entries for a recovery, which owns the ledger by its fences.
    """

    def __init__(
        self,
        context: ClientContext,
        core: WriterCore,
        options: WriterOptions,
        connect: Connect,
        *,
        is_recovery: bool,
    ) -> None:
        self.core = core
        """Decides what the writer does. It gets events only on `_loop`."""
        self._driver = Driver[effects.WriterEffect](self.perform)
        """Runs the background work that effects take."""
        self._loop = asyncio.get_running_loop()
        """The event loop on which this object was made, and on which all its calls are. Constant."""
        ownership = None if is_recovery else Ownership(context.ledgers, core.ledger_id, self._loop.time)
        self.fanout = Fanout(core, self, connect, ownership, options.force_timeout_s)
        """Sends entries to the bookies of the ensemble, and passes their answers to the core."""
        self._congested = functools.partial(self.fanout.congested, options.lag_bytes_max)
        """Returns the slots whose connections have at least `lag_bytes_max` unsent bytes. Constant."""
        self.window = AppendWindow(core, options, self._congested)
        """Entries in flight, and the callers that wait for them."""
        self.settled = asyncio.Event()
        """Set unless the core is changing the ensemble or closing the ledger. Changed by `perform` alone."""
        self.settled.set()
        self.on_failed: Callable[[BookKeeperError], None] | None = None
        """Called once with the error if the writer ends other than by `close`. Set by the user of the writer."""
        self._ledgers = context.ledgers
        """The ledger metadata, for compare-and-sets. Constant."""
        self._watcher = context.watcher
        """Finds replacements, and learns which bookies failed. Constant."""
        self._options = options
        """Limits and time-outs. Constant."""
        self._ticker: asyncio.TimerHandle | None = self._loop.call_later(TICK_S, self._tick)
        """The next regular tick; None after `stop`."""
        self._extra_tick: asyncio.TimerHandle | None = None
        """An earlier tick that the core requested; None if none is pending. A request while one is pending is dropped:
        the core requests again after the tick."""

    def stop(self) -> None:
        """Cancel timers and background work, and release the connections."""
        for timer in (self._ticker, self._extra_tick):
            if timer is not None:
                timer.cancel()
        self._ticker = self._extra_tick = None
        self.fanout.close()
        self._driver.stop()

    def close_deadline_s(self) -> float:
        """Return when a close that begins now must end, by the event loop's clock."""
        return self._loop.time() + self._options.close_timeout_s

    async def close(self, drain: Callable[[], Awaitable[object]], deadline_s: float) -> None:
        """Wait for `drain()`, which returns when no entry is pending, then close the ledger; until `deadline_s`.

        Raises as `LedgerWriter.close`.
        """
        core = self.core
        try:
            async with asyncio.timeout_at(deadline_s):
                await drain()
                await self.fanout.drain_backlogs()
                while (state := core.state) is not WriterState.CLOSED:
                    # Another ensemble change may begin in the turn of the event loop in which one ends, and a
                    # concurrent call may be closing the ledger already.
                    if state not in (WriterState.CHANGING, WriterState.CLOSING):
                        self.perform(core.close())
                    await self.settled.wait()
        except TimeoutError:
            outcome = (
                f"whether it was closed at entry {core.lac} is unknown: its metadata could not be written for certain"
                if core.state is WriterState.CLOSING
                else f"it is left open, its last acknowledged entry is {core.lac}"
            )
            raise RequestTimeout(
                f"ledger {core.ledger_id} did not settle in {self._options.close_timeout_s:g} s; {outcome}",
                ledger_id=core.ledger_id,
                entry_id=core.lac + 1,
            ) from None

    # ---- effects ----

    def now_ns(self) -> int:
        """Return the event loop's time in ns, which time-outs and timers share."""
        return int(self._loop.time() * 1e9)

    def spawn(self, work: Work[effects.WriterEffect]) -> asyncio.Task[None]:
        """Do work in the background, then perform the effects that it returns."""
        return self._driver.spawn(work)

    def perform(self, todo: Sequence[effects.WriterEffect]) -> None:
        """Perform effects, in order."""
        for effect in todo:
            match effect:
                case effects.SendAdds():
                    self.fanout.send(effect)
                case effects.Acknowledge():
                    self.window.acknowledge(effect.last_entry)
                case effects.Confirm():
                    self.window.confirm(effect.last_entry)
                case effects.Force():
                    self.spawn(self.fanout.force(effect))
                case effects.CallAfter():
                    if self._extra_tick is None:
                        self._extra_tick = self._loop.call_later(effect.delay_ns / 1e9, self._tick_once)
                case effects.FindBookies():
                    for bookie in effect.failed:
                        self._watcher.on_failure(bookie)
                        self.fanout.drop_if_silent(bookie)
                    self.spawn(self._find_bookies())
                case effects.DropIfSilent():
                    self.fanout.drop_if_silent(effect.bookie)
                case effects.WriteMetadata():
                    self.spawn(self._write_metadata(effect))
                case effects.Fail():
                    if isinstance(effect.error, NotEnoughBookies) and self.fanout.handshake_error is not None:
                        effect.error.explain(self.fanout.handshake_error)
                    self.window.fail(effect.error)
                    if self.on_failed is not None:
                        self.on_failed(effect.error)
                    self.stop()
                case _:
                    assert_never(effect)
        if self.core.state in (WriterState.CHANGING, WriterState.CLOSING):
            self.settled.clear()
        else:
            self.settled.set()
        self.window.look_for_room()

    def _write_metadata(self, write: effects.WriteMetadata) -> Work[effects.WriterEffect]:
        return write_metadata(self._ledgers, self.core, self.core.ledger_id, write, self._patience())

    async def _find_bookies(self) -> list[effects.WriterEffect]:
        has_patience = self._patience()
        while True:
            try:
                found = await self._watcher.replacements()
            except BookKeeperError as error:
                if not is_away(error) or not await has_patience():
                    return self.core.on_metadata_failed(error)
            else:
                return self.core.on_writable_bookies(found.writable, found.topology)

    def _patience(self) -> Callable[[], Awaitable[bool]]:
        """Return a coroutine function that waits a moment and returns whether to ask the metadata store again.

        It is True until STORE_AWAY_S after this call. The end of the writer cancels what waits (`stop`).
        """
        until = self._loop.time() + STORE_AWAY_S

        async def has_patience() -> bool:
            await asyncio.sleep(CONFIRM_PAUSE_S)
            return self._loop.time() < until

        return has_patience

    # ---- ticks ----

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self.perform(self.core.on_tick(self.now_ns(), self._congested()))

    def _tick_once(self) -> None:
        self._extra_tick = None
        self.perform(self.core.on_tick(self.now_ns(), self._congested()))
