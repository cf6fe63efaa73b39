"""LedgerWriter: runs a WriterCore on sockets and the metadata store."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bkspark.client.bookies import ClusterView
from bkspark.client.explicit_lac import tell_lac
from bkspark.client.link import Link, forced, frames, reach
from bkspark.client.metadata_steps import is_away, write_metadata
from bkspark.client.ownership import Ownership
from bkspark.client.turns import Singles, Turn, Turns
from bkspark.client.writer_options import WriterOptions
from bkspark.core import effects
from bkspark.core.explicit_lac import ExplicitLac
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.writer import WriterCore, WriterState
from bkspark.entries import EntryBatch, as_batch
from bkspark.errors import BookKeeperError, ClientClosed, LedgerClosed, MetadataError, NoSuchLedger, RequestTimeout
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.net.connection import AddListener
from bkspark.net.pool import BookiePool, Channel
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire.adds import AddFlags, AddSealer, WireProtocol
from bkspark.wire.digest import EntryDigest, master_key

TICK_S = 0.25
CONFIRM_PAUSE_S = 0.25
"""Before the metadata store is asked again whether the ledger is still ours."""
STORE_AWAY_S = 60.0
"""How long a writer that must change or close its ledger waits for a metadata store that is away."""
PIECE_ENTRIES_MAX = 1024
PIECE_BYTES_MAX = 512 * 1024
"""A batch goes out in pieces, so that bookies journal the first while the next is sealed."""


@dataclass(frozen=True, slots=True)
class Services:
    """What writers, readers and recoveries of one client share."""

    ledgers: LedgerStore
    registry: BookieRegistry
    pool: BookiePool
    view: ClusterView
    random: random.Random


class LedgerWriter:
    """Appends to one open ledger; the only writer it has.

    An entry is acknowledged when Qa bookies hold it durably and all entries before it are acknowledged. After an error
    that ends the writer (fenced, not enough bookies, ...) entries not acknowledged may or may not be stored.
    """

    def __init__(
        self,
        services: Services,
        core: WriterCore,
        password: bytes,
        options: WriterOptions,
        *,
        lane: int = 0,
        flags: AddFlags = AddFlags(),
        sealed_lac: int | None = None,
    ) -> None:
        self._services = services
        self._core = core
        self._options = options
        self._lane = lane
        self._sealed_lac = sealed_lac
        digest, pool, key = EntryDigest(core.metadata.digest, password), services.pool, master_key(password)
        quorums = (core.metadata.ensemble_size, core.metadata.write_quorum, core.metadata.ack_quorum)
        self._explicit_lac = ExplicitLac(*quorums)
        self._sealer = AddSealer(pool.protocol, digest, key, pool.txn_ids, flags)
        self._loop = asyncio.get_running_loop()
        self._ownership = None if flags.is_recovery else Ownership(services.ledgers, core.ledger_id, self._loop.time)
        self._links: dict[int, Link] = {}
        # Both in entry order: bytes in flight a piece, and callers who wait for an entry.
        self._pieces: deque[tuple[int, int]] = deque()
        self._waits: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._sync_waits: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._room: asyncio.Future[None] | None = None
        self._turns = Turns()
        self._pending_bytes = 0
        # Entries that `append` gathers, until something is submitted after them.
        self._singles: Singles[int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self._settled.set()
        self._is_closing = False
        self._ticker: asyncio.TimerHandle | None = self._loop.call_later(TICK_S, self._tick)
        self._extra_tick: asyncio.TimerHandle | None = None
        self._failed: Callable[[BookKeeperError], None] | None = None
        if options.explicit_lac_interval_s > 0:
            self._spawn(tell_lac(pool, core, self._explicit_lac, digest, key, options.explicit_lac_interval_s))

    # ---- facts ----

    @property
    def ledger_id(self) -> int:
        return self._core.ledger_id

    @property
    def last_entry(self) -> int:
        """The LAC: the last entry that is acknowledged and durable on Qa bookies; -1 when there is none.

        With relaxed durability `append` returns earlier: entries above the LAC are acknowledged, and not yet synced.
        """
        return self._core.lac

    @property
    def length(self) -> int:
        """Payload bytes of every entry given to the writer so far."""
        return self._core.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._core.metadata

    @property
    def entry_bytes_max(self) -> int:
        """The largest entry that is taken: its frames fit into nettyMaxFrameSizeBytes."""
        return self._sealer.entry_bytes_max(self._services.pool.options.frame_bytes_max)

    @property
    def core(self) -> WriterCore:
        """The decisions; recovery looks at its fragments."""
        return self._core

    def on_silent(self, bookies: Mapping[int, str]) -> None:
        """Bookies, by slot, let other requests time out; see the core's."""
        self._perform(self._core.on_silent(bookies, self._now_ns()))

    async def reach_others_than(self, bookies: Collection[str]) -> None:
        """Return when nothing waits for a connection to a bookie that is not one of `bookies`, or REACH_S are over."""
        links = [link for slot, link in self._links.items() if self._core.may_hold_back(slot)]
        await reach([link for link in links if link.bookie not in bookies])

    def on_failed(self, callback: Callable[[BookKeeperError], None]) -> None:
        """Call `callback(error)` when the writer ends for another reason than `close`; the last one set is called."""
        self._failed = callback

    # ---- appending ----

    async def append(self, entry: bytes) -> int:
        """Append one entry; return its id once it is acknowledged.

        One that finds nothing under way goes out at once; calls made while others are under way travel together. Calls
        of `append`, `append_many` and `submit` are served in their order.

        Raises:
            LedgerFenced, LedgerClosed, NotEnoughBookies, UnauthorizedAccess, MetadataError: the writer has ended;
            whether the entry is stored is unknown.
        """
        if not isinstance(entry, (bytes, bytearray, memoryview)):
            raise TypeError(f"an entry is bytes, not {type(entry).__name__}")
        data = bytes(entry)
        if self._is_quiet():
            return await self.append_many([data])
        self._check_open()
        # Here, as it would fail all that it travels with.
        check_entry_size(len(data), self.entry_bytes_max)
        singles = self._singles
        if singles is None or singles.is_closed:
            singles = self._singles = Singles(self._turns.take(), self._send_singles)
        position = len(singles.entries)
        singles.entries.append(data)
        return await asyncio.shield(singles.sent) + position

    def _is_quiet(self) -> bool:
        """Return whether there is nothing that an entry could travel with, and so nothing to wait for."""
        return not (self._core.pending_count or self._turns.is_taken)

    def _take_turn(self) -> Turn:
        """Return the turn after all calls so far; entries that `append` is given from now on come after it."""
        if self._singles is not None:
            self._singles.is_closed = True
        return self._turns.take()

    def _check_open(self) -> None:
        if self._is_closing:
            raise self._core.error or LedgerClosed(f"ledger {self.ledger_id} is closed", ledger_id=self.ledger_id)

    async def _send_singles(self, turn: Turn, entries: list[bytes]) -> int:
        async with turn:
            sent = await self._submit_in_turn(as_batch(entries), None)
        return await sent - len(entries) + 1

    async def append_many(self, entries: Any) -> int:
        """Append entries (iterable of bytes, EntryBatch or Arrow binary array); return the last one's id.

        They get consecutive ids; the call returns once all are acknowledged. Raises as `append`.
        """
        return await (await self.submit(entries))

    async def submit(self, entries: Any) -> asyncio.Future[int]:
        """Send entries as soon as there is room in the window; return a future of the last one's id, done when
        acknowledged.

        Raises as `append`; so does the future.
        """
        batch = as_batch(entries)
        self._check_open()
        return await self.submit_batch(batch, None)

    async def submit_batch(self, batch: EntryBatch, length_before: int | None) -> asyncio.Future[int]:
        """`submit`, with the cumulative length before the batch set by the caller (recovery knows the original one)."""
        check_entry_sizes(batch, self.entry_bytes_max)
        async with self._take_turn():
            return await self._submit_in_turn(batch, length_before)

    async def _submit_in_turn(self, batch: EntryBatch, length_before: int | None) -> asyncio.Future[int]:
        for piece in batch.split(PIECE_ENTRIES_MAX, PIECE_BYTES_MAX):
            await self._wait_for_room()
            if length_before is not None:
                self._core.length = length_before
                length_before = length_before + piece.payload_bytes
            self._add(piece)
        return self._wait_for(self._core.next_entry - 1)

    def _wait_for(self, last_entry: int) -> asyncio.Future[int]:
        """Return a future done when `last_entry`, the newest one, is acknowledged."""
        future: asyncio.Future[int] = self._loop.create_future()
        if self._core.error is not None:
            raise self._core.error
        if last_entry <= self._core.acknowledged:
            future.set_result(last_entry)
        else:
            self._waits.append((last_entry, future))
        return future

    def _add(self, piece: EntryBatch) -> None:
        core = self._core
        core.check_open()
        numbered = EntryBatch(piece.buffer, piece.offsets, core.ledger_id, core.next_entry)
        lac = core.lac if self._sealed_lac is None else self._sealed_lac
        sealed = self._sealer.seal(numbered, lac, core.length)
        self._explicit_lac.on_sealed(lac)
        done = core.add(sealed, piece.payload_bytes, self._now_ns())
        self._pending_bytes += piece.payload_bytes
        self._pieces.append((core.next_entry - 1, piece.payload_bytes))
        self._perform(done)

    async def _wait_for_room(self) -> None:
        while self._is_full():
            # One waits at a time: it is its turn.
            self._room = self._loop.create_future()
            await self._room

    def _is_full(self) -> bool:
        options, core = self._options, self._core
        if core.error is not None:
            return False
        if core.pending_count >= options.pending_entries_max or self._pending_bytes >= options.pending_bytes_max:
            return True
        kept_bytes_max = core.unsynced_bytes_max or options.pending_bytes_max + options.lag_bytes_max
        if core.kept_bytes >= kept_bytes_max:
            return True
        if core.outstanding_max >= options.lag_entries_max:
            return True
        return any(core.may_hold_back(slot) for slot in self._congested())

    def _congested(self) -> list[int]:
        """Return the slots whose connection has so many bytes waiting that callers do, too."""
        limit = self._options.lag_bytes_max
        return [slot for slot, link in self._links.items() if link.channel and link.channel.unsent_bytes >= limit]

    async def sync(self) -> int:
        """Wait until everything appended so far is acknowledged, and durable on Qa bookies; return the last such entry.

        With relaxed durability bookies are made to sync; without, what is acknowledged is durable. Raises as `append`.
        """
        singles = self._singles
        async with self._take_turn():
            waiting = self._wait_for(self._core.next_entry - 1)
        target = await waiting
        if singles is not None:
            await asyncio.wait([singles.sent])  # calls of `append` before this one return first
        if target > self._core.lac:
            synced: asyncio.Future[int] = self._loop.create_future()
            self._sync_waits.append((target, synced))
            self._perform(self._core.sync())
            await synced
        return self._core.lac

    # ---- the end ----

    async def close(self) -> LedgerMetadata:
        """Wait for what is pending, then close the ledger at its last acknowledged entry. Closing twice is harmless.

        From the call on nothing more is taken.

        Raises:
            LedgerFenced, LedgerClosed: the ledger was not closed by us at our last entry.
            RequestTimeout: it took longer than `close_timeout_s`. Where entries or ensemble changes were pending, the
                ledger is left open, for recovery. Where its closing write was, whether it is closed is unknown. The
                message says which.
            MetadataError: whether it is closed is unknown.
        """
        core = self._core
        if core.state is WriterState.CLOSED:
            return core.metadata
        self._is_closing = True
        try:
            async with asyncio.timeout(self._options.close_timeout_s):
                await self.sync()
                await reach(link for slot, link in self._links.items() if core.may_hold_back(slot))
                while core.state is not WriterState.CLOSED:
                    # An ensemble change may begin in the turn of the event loop in which another one ends, and another
                    # call may have begun to close.
                    if core.state not in (WriterState.CHANGING, WriterState.CLOSING):
                        self._perform(core.close())
                    await self._settled.wait()
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
        finally:
            if core.state is not WriterState.CLOSED:
                self.abandon()
        if core.error is not None:
            raise core.error
        self._let_go()
        return core.metadata

    def abandon(self) -> None:
        """Stop without closing the ledger: what is pending ends with an error, recovery finds the end."""
        self._give_up(f"the writer of ledger {self.ledger_id} went away")
        self._let_go()

    def _give_up(self, why: str) -> None:
        message = f"{why}; the outcome of pending adds is unknown"
        error = ClientClosed(message, ledger_id=self.ledger_id, entry_id=self._core.lac + 1)
        self._perform(self._core.give_up(error))

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()

    def _let_go(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        if self._extra_tick is not None:
            self._extra_tick.cancel()
            self._extra_tick = None
        for link in self._links.values():
            if link.channel is not None:
                link.channel.unlisten_adds(self.ledger_id)
        self._links.clear()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    # ---- running the core ----

    def _perform(self, todo: list[effects.WriterEffect]) -> None:
        for effect in todo:
            if isinstance(effect, effects.SendAdds):
                self._send(effect)
            elif isinstance(effect, effects.Acknowledge):
                self._acknowledge(effect.last_entry)
            elif isinstance(effect, effects.Confirm):
                _settle(self._sync_waits, effect.last_entry)
            elif isinstance(effect, effects.Force):
                self._spawn(self._force(effect))
            elif isinstance(effect, effects.CallAfter):
                self._call_after(effect.delay_ns)
            elif isinstance(effect, effects.FindBookies):
                for bookie in effect.failed:
                    self._services.view.on_failure(bookie)
                    self._drop_if_silent(bookie)
                self._spawn(self._find_bookies())
            elif isinstance(effect, effects.DropIfSilent):
                self._drop_if_silent(effect.bookie)
            elif isinstance(effect, effects.WriteMetadata):
                self._spawn(self._write_metadata(effect))
            elif isinstance(effect, effects.Fail):
                self._fail(effect.error)
        if self._core.state in (WriterState.CHANGING, WriterState.CLOSING):
            self._settled.clear()
        else:
            self._settled.set()
        if self._room is not None and not self._room.done() and not self._is_full():
            self._room.set_result(None)

    def _drop_if_silent(self, bookie: str) -> None:
        for link in self._links.values():
            if link.bookie == bookie and link.channel is not None:
                # Later: who hears of it may be this writer, in the middle of its effects.
                self._loop.call_soon(link.channel.close_if_silent)

    def _send(self, send: effects.SendAdds) -> None:
        link = self._links.get(send.slot)
        if link is None or link.bookie != send.bookie or (link.channel is not None and link.channel.lost is not None):
            # The bookie may have had another slot, to which nothing was sent since it was replaced there.
            for slot in [slot for slot, it in self._links.items() if slot == send.slot or it.bookie == send.bookie]:
                self._drop_link(slot)
            link = self._links[send.slot] = Link(send.bookie)
            link.connecting = self._spawn(self._connect(send.slot, link))
        data = frames(send.entries, send.positions)
        if link.channel is None:
            link.backlog.append(data)
        else:
            link.channel.send_adds(data)

    def _drop_link(self, slot: int) -> None:
        link = self._links.pop(slot)
        if link.channel is not None:
            link.channel.unlisten_adds(self.ledger_id)

    async def _connect(self, slot: int, link: Link) -> None:
        try:
            pool = self._services.pool
            connect = pool.channel if self._sealer.protocol is WireProtocol.V2 else pool.v3_channel
            channel = await connect(link.bookie, self._lane)
            await self._confirm_ownership(slot, link, channel)
            if channel.lost is not None:
                raise channel.lost
        except ClientClosed:
            self._give_up(f"the client was closed under the writer of ledger {self.ledger_id}")
            return
        except BookKeeperError:
            if self._links.get(slot) is link:
                del self._links[slot]
                self._perform(self._core.on_bookie_failed(slot, link.bookie, self._now_ns()))
            return
        if self._links.get(slot) is not link or self._core.error is not None:
            return

        def on_replies(entry_ids: np.ndarray, statuses: np.ndarray, last_synced: int | None) -> None:
            now_ns = self._now_ns()
            self._perform(self._core.on_add_replies(slot, link.bookie, entry_ids, statuses, now_ns, last_synced))

        def on_lost(error: BookKeeperError) -> None:
            if isinstance(error, ClientClosed):
                self._give_up(f"the client was closed under the writer of ledger {self.ledger_id}")
            if self._links.get(slot) is link:
                del self._links[slot]
                if self._core.has_outstanding(slot):
                    self._perform(self._core.on_bookie_failed(slot, link.bookie, self._now_ns()))

        channel.listen_adds(self.ledger_id, AddListener(on_replies, on_lost))
        link.channel = channel
        for data in link.backlog:
            channel.send_adds(data)
        link.backlog.clear()

    async def _confirm_ownership(self, slot: int, link: Link, channel: Channel) -> None:
        """Return when the metadata, read after the connection was made, tell that the ledger is still ours, or end.

        While the store is away this goes on until the adds that wait for the connection time out.
        """
        while self._ownership is not None and self._links.get(slot) is link and self._core.error is None:
            if channel.lost is not None:
                return
            try:
                stored = await self._ownership.confirm(channel.connected_at)
            except NoSuchLedger as error:
                self._perform(self._core.give_up(error))
            except MetadataError:
                await asyncio.sleep(CONFIRM_PAUSE_S)
                continue
            else:
                if stored is not None:
                    self._perform(self._core.on_metadata_seen(stored))
            return

    async def _force(self, force: effects.Force) -> None:
        """Have a bookie sync what it acknowledged on its connection."""
        core, slot = self._core, force.slot
        link = self._links.get(slot)
        if link is None or link.bookie != force.bookie or link.channel is None:
            # Its connection went when it had nothing that could be lost.
            self._perform(core.on_forced(force, self._now_ns()))
            return
        assert isinstance(link.channel, BookieV3Channel)
        is_done = await forced(link.channel, self.ledger_id, self._options.force_timeout_s)
        if self._links.get(slot) is not link:
            self._perform(core.on_force_lost(force, self._now_ns()))
        elif is_done:
            self._perform(core.on_forced(force, self._now_ns()))
        else:
            self._perform(core.on_bookie_failed(slot, force.bookie, self._now_ns()))

    async def _find_bookies(self) -> None:
        has_patience = self._patience()
        while True:
            try:
                found = await self._services.view.replacements()
            except BookKeeperError as error:
                if not is_away(error) or not await has_patience():
                    self._perform(self._core.on_metadata_failed(error))
                    return
            else:
                self._perform(self._core.on_writable_bookies(found.writable, found.topology))
                return

    async def _write_metadata(self, effect: effects.WriteMetadata) -> None:
        ledgers, core = self._services.ledgers, self._core
        self._perform(await write_metadata(ledgers, core, self.ledger_id, effect, self._patience()))

    def _patience(self) -> Callable[[], Awaitable[bool]]:
        """Return what waits while the metadata store is away, for STORE_AWAY_S; nothing is acknowledged meanwhile."""
        until = self._loop.time() + STORE_AWAY_S

        async def has_patience() -> bool:
            await asyncio.sleep(CONFIRM_PAUSE_S)
            return self._core.error is None and self._loop.time() < until

        return has_patience

    def _acknowledge(self, last_entry: int) -> None:
        while self._pieces and self._pieces[0][0] <= last_entry:
            self._pending_bytes -= self._pieces.popleft()[1]
        _settle(self._waits, last_entry)

    def _fail(self, error: BookKeeperError) -> None:
        waits = [*self._waits, *self._sync_waits]
        self._waits.clear()
        self._sync_waits.clear()
        self._pieces.clear()
        self._pending_bytes = 0
        for _, future in waits:
            if not future.done():
                future.set_exception(error)
                future.exception()  # a caller that went away is not a programming error worth a warning
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if self._failed is not None:
            self._failed(error)
        self._let_go()

    def _now_ns(self) -> int:
        """What the event loop's clock shows: one clock for time-outs and timers."""
        return int(self._loop.time() * 1e9)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._perform(self._core.on_tick(self._now_ns(), self._congested()))

    def _call_after(self, delay_ns: int) -> None:
        """Tick once more, soon; of several requests the first is kept, as the core asks again after each tick."""
        if self._extra_tick is None:
            self._extra_tick = self._loop.call_later(delay_ns / 1e9, self._tick_once)

    def _tick_once(self) -> None:
        self._extra_tick = None
        self._perform(self._core.on_tick(self._now_ns(), self._congested()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def check_entry_sizes(batch: EntryBatch, limit: int) -> None:
    """Raise ValueError where an entry of the batch is above `limit` bytes."""
    if batch.payload_bytes > limit:
        check_entry_size(int(np.diff(batch.offsets).max()), limit)


def check_entry_size(octets: int, limit: int) -> None:
    """Raise ValueError where an entry of so many bytes is above `limit`."""
    if octets > limit:
        raise ValueError(f"an entry of {octets} bytes is above the limit of {limit} (nettyMaxFrameSizeBytes)")


def _settle(waits: deque[tuple[int, asyncio.Future[int]]], last_entry: int) -> None:
    """Tell those who wait for an entry up to `last_entry`."""
    while waits and waits[0][0] <= last_entry:
        entry_id, future = waits.popleft()
        if not future.done():
            future.set_result(entry_id)
