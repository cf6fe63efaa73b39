"""The owner of a ledger: runs a WriterCore on the simulated network, as `LedgerWriter` does on sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bkspark.core import effects
from bkspark.core.pipeline import WriterStart, WriterState
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.writer import WriterCore
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookieUnavailable, BookKeeperError, LedgerFenced
from bkspark.ledger.metadata_steps import write_metadata
from bkspark.metadata.ledgers import Versioned
from bkspark.wire.digest import SealedEntries
from bkspark.wire.status import Status
from tests.simulation.bookies import ModelBookie, Stored
from tests.simulation.clients import Client, Site
from tests.simulation.history import Wait
from tests.simulation.metadata import AVAILABLE
from tests.simulation.network import Connection
from tests.simulation.world import MILLISECOND, start_task

TICK_NS = 60 * MILLISECOND
FORCE_TIMEOUT_NS = 300 * MILLISECOND
OPTIONS = WriterOptions(
    add_timeout_s=0.2,
    replacement_retry_s=0.1,
    slow_lag_entries=2,
    slow_lag_s=0.1,
    hold_back_s_max=0.05,
    probe_pause_s_min=0.05,
    probe_pause_s_max=0.2,
    trial_s=0.08,
    ensemble_change_delay_s_max=0.15,
)
DELAYING = replace(OPTIONS, delay_ensemble_change=True)
_NOTHING = memoryview(b"")


@dataclass(frozen=True)
class SimulatedEntries(SealedEntries):
    """Entries as bookies of the simulation keep them; the buffer is empty, nothing looks at it."""

    values: tuple[Stored, ...] = ()

    @classmethod
    def of(cls, first_entry: int, payloads: Iterable[bytes], length_before: int, lac: int) -> SimulatedEntries:
        values = []
        for payload in payloads:
            length_before += len(payload)
            values.append(Stored(payload, lac, length_before))
        return cls(_NOTHING, np.arange(len(values) + 1), first_entry, first_entry + len(values), tuple(values))


class Pipeline:
    """Runs a WriterCore: the owner's, or that of a recovery."""

    def __init__(
        self,
        client: Client,
        core: WriterCore,
        on_acknowledged: Callable[[int], None],
        on_failed: Callable[[BookKeeperError], None],
        *,
        recovery: bool,
        on_confirmed: Callable[[int], None] | None = None,
    ) -> None:
        """`on_confirmed`: the core's durability is relaxed, and this is called with the last synced entry."""
        self.client = client
        self.core = core
        self._on_acknowledged = on_acknowledged
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self._links: dict[int, Connection] = {}
        self._request = recovery_adds if recovery else owner_adds if on_confirmed is None else deferred_adds
        client.later(TICK_NS, self._tick)

    def perform(self, todo: list[effects.WriterEffect]) -> None:
        site = self.client.site
        for effect in todo:
            if type(effect) is effects.SendAdds:
                self._send(effect)
            elif type(effect) is effects.Acknowledge:
                self._on_acknowledged(effect.last_entry)
            elif type(effect) is effects.Confirm:
                assert self._on_confirmed is not None
                self._on_confirmed(effect.last_entry)
            elif type(effect) is effects.Force:
                self._force(effect)
            elif type(effect) is effects.CallAfter:
                self.client.later(effect.delay_ns, self._tick_once)
            elif type(effect) is effects.FindBookies:
                site.probe("change begins", self.client.name, "")
                start_task(self._find_bookies(), self.perform)
            elif type(effect) is effects.WriteMetadata:
                site.probe("change proposed", self.client.name, "")
                start_task(write_metadata(self.client.ledgers, self.core, site.ledger_id, effect), self._written)
            elif type(effect) is effects.Fail:
                self._on_failed(effect.error)
            else:
                # No connection falls silent here; the full tier lets them.
                assert type(effect) is effects.DropIfSilent, f"an effect that is not performed: {effect}"

    def _written(self, todo: list[effects.WriterEffect]) -> None:
        self.client.site.probe("change stored", self.client.name, "")
        self.perform(todo)

    def stop(self) -> None:
        self.perform(self.core.give_up(BookieUnavailable("the client went away")))
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _send(self, send: effects.SendAdds) -> None:
        site, slot, bookie = self.client.site, send.slot, send.bookie
        link = self._links.get(slot)
        if link is None or link.bookie.name != bookie or link.is_lost:

            def on_lost(lost: Connection) -> None:
                if self._links.get(slot) is lost:
                    del self._links[slot]
                    if self.core.has_outstanding(slot):
                        self.perform(self.core.on_bookie_failed(slot, bookie, self.client.now_ns))

            link = self._links[slot] = site.network.connect(self.client.node, bookie, on_lost)
        entries = send.entries
        assert isinstance(entries, SimulatedEntries)

        def on_replies(answer: tuple[np.ndarray, np.ndarray, int | None]) -> None:
            # Those of a bookie that was replaced come here too: what they count for, the core decides.
            ids, statuses, last_synced = answer
            self.perform(self.core.on_add_replies(slot, bookie, ids, statuses, self.client.now_ns, last_synced))

        link.send(
            self._request,
            site,
            self.client.name,
            link.bookie,
            entries.first_entry,
            entries.values,
            send.positions,
            reply=on_replies,
        )

    def _force(self, force: effects.Force) -> None:
        site, slot, bookie = self.client.site, force.slot, force.bookie
        link = self._links.get(slot)
        if link is None or link.bookie.name != bookie or link.is_lost:
            self.perform(self.core.on_forced(force, self.client.now_ns))
            return

        answers: list[Status] = []

        def on_answer(status: Status) -> None:
            if status is Status.ETOOMANYREQUESTS and not answers:
                self.client.later(TICK_NS, ask)
            else:
                settle(status)

        def settle(status: Status) -> None:
            if answers:
                return
            answers.append(status)
            core, now_ns = self.core, self.client.now_ns
            if self._links.get(slot) is not link:
                self.perform(core.on_force_lost(force, now_ns))
            elif status is Status.EOK:
                self.perform(core.on_forced(force, now_ns))
            else:
                self.perform(core.on_bookie_failed(slot, bookie, now_ns))

        def ask() -> None:
            link.send(forces, site, self.client.name, link.bookie, reply=on_answer)

        ask()
        self.client.later(FORCE_TIMEOUT_NS, settle, Status.EIO)

    async def _find_bookies(self) -> list[effects.WriterEffect]:
        try:
            writable = await self.client.tree.children(AVAILABLE)
        except BookKeeperError as error:
            return self.core.on_metadata_failed(error)
        return self.core.on_writable_bookies(set(writable))

    def _tick(self) -> None:
        if self.core.state in (WriterState.FAILED, WriterState.CLOSED):
            return
        self.client.later(TICK_NS, self._tick)
        self._tick_once()

    def _tick_once(self) -> None:
        self.perform(self.core.on_tick(self.client.now_ns))


def owner_adds(
    site: Site, client: str, bookie: ModelBookie, first_entry: int, values: tuple[Stored, ...], positions: Any
) -> tuple[Any, int]:
    ids, statuses, leaves = bookie.on_adds(site.ledger_id, first_entry, values, positions, False)
    site.probe("add stored" if not statuses[0] else "add refused", client, bookie.name)
    return (ids, statuses, None), leaves


def deferred_adds(
    site: Site, client: str, bookie: ModelBookie, first_entry: int, values: tuple[Stored, ...], positions: Any
) -> tuple[Any, int]:
    ids, statuses, leaves = bookie.on_adds(site.ledger_id, first_entry, values, positions, False, deferred=True)
    site.probe("add stored" if not statuses[0] else "add refused", client, bookie.name)
    return (ids, statuses, bookie.last_synced(site.ledger_id)), leaves


def forces(site: Site, client: str, bookie: ModelBookie) -> tuple[Status, int]:
    site.probe("forced", client, bookie.name)
    return bookie.on_force(site.ledger_id)


def recovery_adds(
    site: Site, client: str, bookie: ModelBookie, first_entry: int, values: tuple[Stored, ...], positions: Any
) -> tuple[Any, int]:
    ids, statuses, leaves = bookie.on_adds(site.ledger_id, first_entry, values, positions, True)
    site.probe("rewritten", client, bookie.name)
    return (ids, statuses, None), leaves


class Owner(Client):
    """The client that created the ledger and writes to it."""

    def __init__(
        self,
        site: Site,
        name: str,
        stored: Versioned,
        *,
        delays_changes: bool = False,
        relaxed: RelaxedDurability | None = None,
    ) -> None:
        """`relaxed`: what the checkers take for acknowledged is then what is confirmed: nothing else is promised."""
        super().__init__(site, name)
        options = DELAYING if delays_changes else OPTIONS
        metadata, version = stored.metadata, stored.version
        self.core = WriterCore(WriterStart(site.ledger_id, metadata, version), site.random, options, relaxed=relaxed)
        if relaxed is None:
            self._pipeline = Pipeline(self, self.core, self._promised, self._failed, recovery=False)
        else:
            self._pipeline = Pipeline(
                self, self.core, self._in_page_caches, self._failed, recovery=False, on_confirmed=self._promised
            )
        self._ledger = site.history.ledger(site.ledger_id)
        self._wants_close = False
        self._close_began = 0

    @property
    def is_done(self) -> bool:
        """Nothing is under way: all it added was acknowledged or has failed."""
        core = self.core
        if core.state in (WriterState.FAILED, WriterState.CLOSED):
            return True
        return core.state is WriterState.ACTIVE and core.lac == core.pending.next_entry - 1 and not self._wants_close

    @property
    def is_waiting(self) -> bool:
        """Entries that it added are neither acknowledged nor failed."""
        return self.core.error is None and self.core.lac < self.core.pending.next_entry - 1

    def add(self, count: int) -> None:
        """Add entries, unless the writer has ended."""
        core = self.core
        if core.error is not None or core.state in (WriterState.CLOSING, WriterState.CLOSED) or self._wants_close:
            return
        first = core.pending.next_entry
        payloads = [b"%d by %s" % (first + i, self.name.encode()) for i in range(count)]
        lac = self._ledger.last_acknowledged
        for i, payload in enumerate(payloads):
            self._ledger.invoked[first + i] = (payload, self.site.world.now)
            self._ledger.acknowledged_before[first + i] = lac
        entries = SimulatedEntries.of(first, payloads, core.length, core.lac)
        self._pipeline.perform(core.add(entries, sum(map(len, payloads)), self.now_ns))

    def sync(self) -> None:
        """Have what is acknowledged synced."""
        self._pipeline.perform(self.core.sync())

    def close(self) -> None:
        """Close the ledger once what is pending is acknowledged."""
        if self.core.error is None and self.core.state is not WriterState.CLOSED:
            self._wants_close = True
            self._close_began = self.site.world.now
            self._try_close()

    def stop(self) -> None:
        self._pipeline.stop()

    def _try_close(self) -> None:
        core = self.core
        if core.error is not None:
            self._wants_close = False
        elif core.state is WriterState.ACTIVE and core.lac == core.pending.next_entry - 1:
            self.site.probe("close begins", self.name, "")
            self._pipeline.perform(core.close())
            self.later(TICK_NS // 4, self._await_close)
        else:
            self.sync()
            self.later(TICK_NS // 4, self._try_close)

    def _await_close(self) -> None:
        if self.core.state is WriterState.CLOSED:
            self._wants_close = False
            self.learned_end(self.core.metadata)
            self._ledger.waits.append(Wait("the owner's close", self._close_began, self.site.world.now))
        elif self.core.error is None:
            self.later(TICK_NS // 4, self._await_close)
        else:
            self._wants_close = False

    def _in_page_caches(self, last_entry: int) -> None:
        """Entries that are acknowledged and not synced are not promised."""

    def _promised(self, last_entry: int) -> None:
        site = self.site
        site.audit_acknowledged(self._ledger.last_acknowledged + 1, last_entry)
        self._ledger.acknowledged.append((last_entry, site.world.now))
        site.probe("acknowledged", self.name, "")

    def _failed(self, error: BookKeeperError) -> None:
        self.site.probe("owner failed", self.name, "")
        if isinstance(error, LedgerFenced) and all(by == self.name for _, _, by in self._ledger.changes):
            self._ledger.pending.append("the owner heard that another client recovers the ledger, and no client did")
