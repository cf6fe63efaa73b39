"""TailWatch: waits until a ledger that is being written grows. It runs a Tail core on connections and timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from bkspark.core import effects
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.tail import Tail, TailLimits
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError
from bkspark.ledger.context import ClientContext
from bkspark.ledger.driver import Driver
from bkspark.ledger.metadata_steps import may_pass
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest


class Growing(Protocol):
    """The part of a LedgerReader that a TailWatch uses and updates."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def metadata(self) -> LedgerMetadata: ...

    @property
    def digest(self) -> EntryDigest: ...

    @property
    def last_entry(self) -> int: ...

    async def refresh(self) -> int: ...

    def learn_lac(self, lac: int) -> None: ...


class TailWatch:
    """Waits for one reader's ledger to grow or to be closed, and updates the reader."""

    def __init__(self, context: ClientContext, reader: Growing, limits: TailLimits = TailLimits()) -> None:
        self._context = context
        """The parts that all users of the cluster share. Constant."""
        self._reader = reader
        """The reader whose ledger is watched. Every new LAC and change of the metadata is passed to it."""
        self._loop = asyncio.get_running_loop()
        """The event loop on which this object was made, and on which all its calls are. Constant."""
        ensemble_size = reader.metadata.ensemble_size
        self._core = Tail(reader.metadata, reader.last_entry, context.random.randrange(ensemble_size), limits)
        """Decides whom to ask and when; all its events come from here, on `_loop`."""
        self._driver = Driver[effects.TailEffect](self.perform)
        """Does the work that the core's effects take."""
        self._news: asyncio.Future[None] | None = None
        """What `wait_beyond` awaits. Made for each wait; done when the LAC grew, the ledger was closed, or the tail
        failed."""
        self._timer: asyncio.TimerHandle | None = None
        """The tick that the core requested last; None if none is pending."""
        self._has_begun = False
        """Whether `wait_beyond` was called. Set once."""
        self._unwatch: Callable[[], None] | None = None
        """Ends the watch on the metadata; None before the first refresh has set one."""
        self._early: EntryBatch | None = None
        """The last entry that a bookie sent with a LAC that confirms it. Removed by `take_entry`."""
        self._error: BookKeeperError | None = None
        """The error that ended the tail; every later wait raises it. Set once."""

    async def wait_beyond(self, lac: int) -> None:
        """Return when the LAC is above `lac`, or the ledger is closed.

        Raises:
            NoSuchLedger: it was deleted.
            ReadFailed, MetadataError: too few bookies, or not the metadata store, could be reached for
                `TailLimits.patience_ns`.
        """
        if not self._has_begun:
            # The first refresh sets the watch and then reads the metadata, so no change is missed.
            self._has_begun = True
            self.perform(self._core.on_metadata_changed(self._now_ns()))
        if self._error is not None:
            raise self._error
        while self._core.lac <= lac and not self._core.is_closed:
            self._news = self._loop.create_future()
            self.perform(self._core.wait(self._now_ns()))
            await self._news
            if self._error is not None:
                raise self._error

    def take_entry(self, entry_id: int) -> EntryBatch | None:
        """Return entry `entry_id` if a bookie sent it with a LAC that confirms it; None otherwise."""
        early, self._early = self._early, None
        return early if early is not None and early.first_entry == entry_id <= self._core.lac else None

    async def aclose(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._driver.stop(), return_exceptions=True)
        if self._unwatch is not None:
            self._unwatch()

    # ---- running the core ----

    def perform(self, todo: Sequence[effects.TailEffect]) -> None:
        for effect in todo:
            match effect:
                case effects.LongPoll():
                    self._driver.spawn(self._poll(effect))
                case effects.ProveLac():
                    self._driver.spawn(self._prove(effect.bookie))
                case effects.Refresh():
                    self._driver.spawn(self._refresh())
                case effects.Fail():
                    self._error = effect.error
                case effects.CallAfter():
                    self._call_after(effect.delay_ns)
                case _:
                    assert_never(effect)
        self._reader.learn_lac(self._core.lac)
        has_news = self._error is not None or not self._core.is_waiting
        if has_news and self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _now_ns(self) -> int:
        """Return the time on the event loop's clock."""
        return int(self._loop.time() * 1e9)

    async def _poll(self, poll: effects.LongPoll) -> list[effects.TailEffect]:
        ledger_id = self._reader.ledger_id
        try:
            channel = await self._context.pool.v3_channel(poll.bookie)
            answer = await channel.poll_entry(ledger_id, poll.previous_lac, poll.wait_ns / 1e9, self._reader.digest)
        except BookKeeperError:
            return self._core.on_poll_failed(poll.bookie, self._now_ns())
        if answer.status != v2.EOK:
            return self._core.on_poll_failed(poll.bookie, self._now_ns())
        if answer.entry is not None and answer.lac is not None and answer.lac > self._core.lac:
            self._early = EntryBatch.of([answer.entry.payload], ledger_id, answer.entry.entry_id)
        return self._core.on_polled(poll.bookie, answer.lac, self._now_ns())

    async def _prove(self, bookie: str) -> list[effects.TailEffect]:
        try:
            channel = await self._context.pool.v3_channel(bookie)
            lac = (await channel.read_lac(self._reader.ledger_id, self._reader.digest)).lac
        except BookKeeperError:
            lac = None
        return self._core.on_proven(bookie, lac, self._now_ns())

    async def _refresh(self) -> list[effects.TailEffect]:
        try:
            if self._unwatch is None:
                self._unwatch = await self._context.ledgers.watch(self._reader.ledger_id, self._metadata_changed)
            lac = await self._reader.refresh()
        except BookKeeperError as error:
            return self._core.on_refresh_failed(error, self._now_ns(), may_pass=may_pass(error))
        return self._core.on_refreshed(self._reader.metadata, lac, self._now_ns())

    def _metadata_changed(self) -> None:
        self.perform(self._core.on_metadata_changed(self._now_ns()))

    def _call_after(self, delay_ns: int) -> None:
        """Replace the timer: the core requests a tick after every event, and only the last request counts."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_ns / 1e9, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.perform(self._core.on_tick(self._now_ns()))
