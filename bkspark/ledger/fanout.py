"""Fanout: the connections from one writer to the bookies of its ensemble, and the sends that wait for them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol

import numpy as np

from bkspark.core import effects
from bkspark.core.writer import WriterCore
from bkspark.core.writer_errors import client_closed, not_enough
from bkspark.errors import (
    AuthenticationFailed,
    BookKeeperError,
    ClientClosed,
    MetadataError,
    NoSuchLedger,
    TlsFailed,
)
from bkspark.ledger.driver import Work
from bkspark.ledger.link import BookieLink, force_ledger
from bkspark.ledger.ownership import Ownership
from bkspark.net.connection import AddListener
from bkspark.net.pool import Channel
from bkspark.net.v3_channel import BookieV3Channel

Connect = Callable[[str], Coroutine[Any, Any, Channel]]

DRAIN_S = 2.0
"""How long a closing writer waits for bookies that are not connected yet."""
CONFIRM_PAUSE_S = 0.25
"""Pause before a writer asks an unreachable metadata store again."""


class EffectRunner(Protocol):
    """The part of `WriterRun` that a Fanout uses: it performs effects, in the foreground or in the background."""

    def perform(self, todo: Sequence[effects.WriterEffect]) -> None:
        """Perform effects, in order."""

    def spawn(self, work: Work[effects.WriterEffect]) -> asyncio.Task[None]:
        """Do work in the background, then perform the effects that it returns."""

    def now_ns(self) -> int:
        """Return the time to pass to the core with an event, in ns."""


class Fanout:
    """Sends a writer's adds and forces, connects where there is no connection yet, and passes answers to the core.

    Args:
        connect: coroutine function: bookie id to the channel for its adds. Forces need a V3 channel.
        ownership: confirmed for each new connection before anything is sent on it; None in a recovery, which owns the
            ledger by its fences.
        force_timeout_s: how long a bookie may take for a force, repeats after refused load included.
    """

    def __init__(
        self,
        core: WriterCore,
        run: EffectRunner,
        connect: Connect,
        ownership: Ownership | None,
        force_timeout_s: float,
    ) -> None:
        self._core = core
        """The writer's core. It gets the replies and failures of all connections."""
        self._run = run
        """Performs the effects that the core returns."""
        self._channel_to = connect
        """Coroutine function that returns the channel for adds to a bookie. Constant."""
        self._ownership = ownership
        """Confirms that the ledger is still ours; None in a recovery. Constant."""
        self._force_timeout_s = force_timeout_s
        """How long a bookie may take for a force. Constant."""
        self._links: dict[int, BookieLink] = {}
        """The link of each slot that was used. Removed when its connection is lost or the slot has another bookie."""
        self.handshake_error: TlsFailed | AuthenticationFailed | None = None
        """The last failure of TLS or authentication; NotEnoughBookies names it as the likely cause. Set by `_note`."""
        self._without_handshake: set[str] = set()
        """Bookies with which TLS or authentication failed, and which have not answered an add since."""

    # ---- sending ----

    def send(self, send: effects.SendAdds) -> None:
        """Send adds on the connection of their slot; without one, connect and keep them in the link's backlog."""
        link = self._links.get(send.slot)
        if link is None or link.bookie != send.bookie or (link.channel is not None and link.channel.lost is not None):
            # The bookie may still be linked to an earlier slot, if that slot sent nothing since it was replaced there.
            for slot in [slot for slot, it in self._links.items() if slot == send.slot or it.bookie == send.bookie]:
                self._drop(slot)
            link = self._links[send.slot] = BookieLink(send.bookie)
            link.connecting = self._run.spawn(self._connect(send.slot, link))
        data = send.entries.buffer if send.positions is None else send.entries.frames(send.positions)
        if link.channel is None:
            link.backlog.append(data)
        else:
            link.channel.send_adds(data)

    async def force(self, force: effects.Force) -> list[effects.WriterEffect]:
        """Make a bookie sync the entries that it acknowledged on its connection; return the core's next effects."""
        core, slot = self._core, force.slot
        link = self._links.get(slot)
        if link is None or link.bookie != force.bookie or link.channel is None:
            # The connection was lost when the bookie had nothing that was not synced.
            return core.on_forced(force, self._run.now_ns())
        assert isinstance(link.channel, BookieV3Channel)
        is_done = await force_ledger(link.channel, core.ledger_id, self._force_timeout_s)
        if self._links.get(slot) is not link:
            return core.on_force_lost(force, self._run.now_ns())
        if is_done:
            return core.on_forced(force, self._run.now_ns())
        return core.on_bookie_failed(slot, force.bookie, self._run.now_ns())

    def congested(self, limit_bytes: int) -> list[int]:
        """Return the slots whose connection has at least this many bytes that the socket has not taken."""
        slots = []
        for slot, link in self._links.items():
            if link.channel is not None and link.channel.unsent_bytes >= limit_bytes:
                slots.append(slot)
        return slots

    async def drain_backlogs(self, excluded: Collection[str] = ()) -> None:
        """Return when no backlog waits for a connection, or after DRAIN_S. Bookies in `excluded` are not waited for.

        A quorum may have acknowledged all of a short ledger before the last bookie was connected: if the ledger were
        closed then, that bookie's copies would be missing until a repair.
        """
        waiting = [
            link.connecting
            for slot, link in self._links.items()
            if link.backlog and link.connecting is not None and link.bookie not in excluded
            if self._core.slots.may_hold_back(slot)
        ]
        if waiting:
            await asyncio.wait(waiting, timeout=DRAIN_S)

    def drop_if_silent(self, bookie: str) -> None:
        """Drop the connection to a bookie if it has received nothing for as long as an answer may take."""
        for link in self._links.values():
            if link.bookie == bookie and link.channel is not None:
                # Not now: closing reports the loss to this writer, which is in the middle of performing effects.
                asyncio.get_running_loop().call_soon(link.channel.close_if_silent)

    def close(self) -> None:
        """Remove all links: no reply reaches the core any more. The connections stay in the pool."""
        for slot in [*self._links]:
            self._drop(slot)

    # ---- connections ----

    def _drop(self, slot: int) -> None:
        link = self._links.pop(slot)
        if link.channel is not None:
            link.channel.unlisten_adds(self._core.ledger_id)

    async def _connect(self, slot: int, link: BookieLink) -> list[effects.WriterEffect] | None:
        try:
            channel = await self._channel_to(link.bookie)
            await self._confirm_ownership(slot, link, channel)
            if channel.lost is not None:
                raise channel.lost
        except ClientClosed:
            return self._give_up()
        except BookKeeperError as error:
            if self._links.get(slot) is not link:
                return None
            self._note(error)
            del self._links[slot]
            return self._failed(slot, link.bookie)
        if self._links.get(slot) is not link or self._core.error is not None:
            return None
        on_replies = functools.partial(self._on_replies, slot, link.bookie)
        channel.listen_adds(self._core.ledger_id, AddListener(on_replies, functools.partial(self._on_lost, slot, link)))
        link.channel = channel
        for data in link.backlog:
            channel.send_adds(data)
        link.backlog.clear()
        return None

    async def _confirm_ownership(self, slot: int, link: BookieLink, channel: Channel) -> None:
        """Return when metadata that were read after the connection was made show that the ledger is still ours;
        otherwise end the writer.

        If the store is unreachable, this repeats until the adds in the backlog time out.
        """
        while self._ownership is not None and self._links.get(slot) is link and self._core.error is None:
            if channel.lost is not None:
                return
            try:
                stored = await self._ownership.confirm(channel.connected_at)
            except NoSuchLedger as error:
                self._run.perform(self._core.give_up(error))
            except MetadataError:
                await asyncio.sleep(CONFIRM_PAUSE_S)
                continue
            else:
                if stored is not None:
                    self._run.perform(self._core.on_metadata_seen(stored))
            return

    # ---- events of connections ----

    def _on_replies(
        self, slot: int, bookie: str, entry_ids: np.ndarray, statuses: np.ndarray, last_synced: int | None
    ) -> None:
        """A bookie answered adds."""
        if self._without_handshake:
            self._without_handshake.discard(bookie)
        now_ns = self._run.now_ns()
        self._run.perform(self._core.on_add_replies(slot, bookie, entry_ids, statuses, now_ns, last_synced))

    def _on_lost(self, slot: int, link: BookieLink, error: BookKeeperError) -> None:
        """A connection is lost."""
        if isinstance(error, ClientClosed):
            self._run.perform(self._give_up())
        if self._links.get(slot) is link:
            self._note(error)
            del self._links[slot]
            if self._core.has_outstanding(slot):
                self._run.perform(self._failed(slot, link.bookie))

    def _failed(self, slot: int, bookie: str) -> list[effects.WriterEffect]:
        core = self._core
        if self._without_handshake.issuperset(place.bookie for place in core.slots.all):
            # No bookie lets this client in: replacing them would try each again and again, one time-out at a time.
            return core.give_up(not_enough(core.ledger_id, core.lac, self._without_handshake))
        return core.on_bookie_failed(slot, bookie, self._run.now_ns())

    def _note(self, error: BookKeeperError) -> None:
        if isinstance(error, (TlsFailed, AuthenticationFailed)):
            self.handshake_error = error
            if error.bookie is not None:
                self._without_handshake.add(error.bookie)

    def _give_up(self) -> list[effects.WriterEffect]:
        core = self._core
        why = f"the client was closed under the writer of ledger {core.ledger_id}"
        return core.give_up(client_closed(core.ledger_id, core.lac, why))
