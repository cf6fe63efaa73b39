"""A cheap bookie for the protocol tier: what it holds, what of that is durable, the rules of fencing and sync cursors.

Requests take effect in memory at once and are answered when their journal records are durable, in order: as the real
one does. Deferred adds are answered at once and become durable later, with the next record that is waited for at the
latest. Dying loses a tail of the records that were not durable yet. The full tier has the real storage instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bkspark.wire.status import Status
from bookie_service.engine.sync_cursor import EntryRange, SyncCursor, ranges_of
from tests.simulation.history import History
from tests.simulation.world import EXPONENTIAL, MILLISECOND, UNIFORM, Node, World, place

FENCE = -1
SLOW_NS = 40 * MILLISECOND
"""A sync that takes longer may make a writer go on without the bookie: its `hold_back_ns_max` is 50 ms, and an add and
its answer take some of that on their way."""
DEFERRED_SYNCS = 6
"""Factor of a deferred record's waiting time for its sync."""


class Stored(NamedTuple):
    """An entry as its writer sealed it."""

    payload: bytes
    lac: int
    length: int


class Ledger:
    """What one bookie knows of a ledger."""

    __slots__ = ("entries", "fence_durable_at", "fenced")

    def __init__(self) -> None:
        self.fenced = False
        self.fence_durable_at = 0
        self.entries: dict[int, Stored] = {}


class ModelBookie:
    """One bookie. Methods named `on_` are what arrives from the network; each returns when its answer leaves."""

    def __init__(self, world: World, history: History, name: str, salt: int, sync_mean: int) -> None:
        self.node = Node(name)
        self.name = name
        self.ledgers: dict[int, Ledger] = {}
        # Entry ids that read as damaged, by ledger.
        self.damaged: set[tuple[int, int]] = set()
        # What is answered to adds instead of taking them, and until when; too many requests also to fencing reads.
        self.refusal = Status.EOK
        self.refuses_until = 0
        self._world = world
        self._history = history
        self._salt = salt
        self._sync_mean = sync_mean
        self._syncs = 0
        self._synced_at = 0
        # (durable at, ledger, entry id or FENCE, entry)
        self._journal: list[tuple[int, int, int, Stored | None]] = []
        self._cursors: dict[int, SyncCursor] = {}
        # Deferred adds that the cursors do not count yet: (the place of the last record in the journal, ledger, runs).
        self._unsynced: list[tuple[int, int, list[EntryRange]]] = []
        self.was_slow = False
        # (ledger, entry) of adds by an owner that a fence refused.
        self.fenced_out: set[tuple[int, int]] = set()

    def _delay(self) -> int:
        self._syncs += 1
        delay = int(EXPONENTIAL[place(self._salt, self._syncs)] * self._sync_mean)
        if delay > SLOW_NS:
            self.was_slow = True
        return delay

    def _sync_time(self) -> int:
        """Return when a record that is written now is durable: never before earlier ones."""
        self._synced_at = max(self._synced_at, self._world.now + self._delay())
        # Earlier deferred records are synced with it.
        at = len(self._journal)
        while at and self._journal[at - 1][0] > self._synced_at:
            at -= 1
            self._journal[at] = (self._synced_at, *self._journal[at][1:])
        return self._synced_at

    def _deferred_time(self) -> int:
        """Return when a deferred record that is written now is durable, if nothing makes it so before."""
        last = self._journal[-1][0] if self._journal else 0
        return max(last, self._world.now + DEFERRED_SYNCS * self._delay())

    def on_adds(
        self,
        ledger_id: int,
        first_entry: int,
        values: tuple[Stored, ...],
        positions: Any,
        recovery: bool,
        deferred: bool = False,
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Take entries; return (entry ids, statuses, when they are answered)."""
        chosen = range(len(values)) if positions is None else positions.tolist()
        ids = [first_entry + position for position in chosen]
        ledger = self.ledgers.get(ledger_id)
        status = Status.EOK
        now = self._world.now
        if now < self.refuses_until:
            status = self.refusal
        elif ledger is not None and ledger.fenced and not recovery:
            status = Status.EFENCED
            self.fenced_out.update((ledger_id, entry_id) for entry_id in ids)
        if status is not Status.EOK:
            return np.array(ids, np.int64), np.full(len(ids), status, np.int32), now
        if ledger is None:
            ledger = self.ledgers[ledger_id] = Ledger()
        when = self._deferred_time() if deferred else self._sync_time()
        for position, entry_id in zip(chosen, ids):
            ledger.entries[entry_id] = values[position]
            self._journal.append((when, ledger_id, entry_id, values[position]))
        if deferred:
            cursor = self._cursors.setdefault(ledger_id, SyncCursor())
            runs = ranges_of(np.array(ids, np.int64))
            cursor.on_taken(runs)
            cursor.on_confirmed(values[-1].lac)
            self._unsynced.append((len(self._journal) - 1, ledger_id, runs))
        return np.array(ids, np.int64), np.zeros(len(ids), np.int32), now if deferred else when

    def last_synced(self, ledger_id: int) -> int | None:
        """Return the LastAddSynced of a ledger, None where no deferred adds came since the start."""
        while self._unsynced and self._journal[self._unsynced[0][0]][0] <= self._world.now:
            _, synced_ledger, runs = self._unsynced.pop(0)
            self._cursors[synced_ledger].on_synced(runs)
        cursor = self._cursors.get(ledger_id)
        return None if cursor is None else cursor.last_synced

    def on_force(self, ledger_id: int) -> tuple[Status, int]:
        """Have all that was taken durable; return (status, when it is answered)."""
        if self._world.now < self.refuses_until:
            return self.refusal, self._world.now
        return Status.EOK, self._sync_time()

    def fence(self, ledger_id: int) -> int:
        """Fence a ledger, creating it if need be; return when that is durable."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = Ledger()
        if not ledger.fenced:
            ledger.fenced = True
            ledger.fence_durable_at = self._sync_time()
            self._journal.append((ledger.fence_durable_at, ledger_id, FENCE, None))
        return max(self._world.now, ledger.fence_durable_at)

    @property
    def _refuses_load(self) -> bool:
        return self._world.now < self.refuses_until and self.refusal is Status.ETOOMANYREQUESTS

    def on_last_entry(self, ledger_id: int, fencing: bool) -> tuple[Status, int, Stored | None, int]:
        """Return (status, entry id, last entry, when it is answered)."""
        if fencing and self._refuses_load:
            return Status.ETOOMANYREQUESTS, -1, None, self._world.now
        when = self.fence(ledger_id) if fencing else self._world.now
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or not ledger.entries:
            return (Status.ENOLEDGER if ledger is None else Status.ENOENTRY), -1, None, when
        last = max(ledger.entries)
        if (ledger_id, last) in self.damaged:
            return Status.EIO, -1, None, when
        return Status.EOK, last, ledger.entries[last], when

    def on_reads(
        self, ledger_id: int, entry_ids: list[int], fencing: bool
    ) -> tuple[list[tuple[Status, Stored | None]], int]:
        """Return (status, entry) of each id, and when they are answered."""
        if fencing and self._refuses_load:
            return [(Status.ETOOMANYREQUESTS, None)] * len(entry_ids), self._world.now
        when = self.fence(ledger_id) if fencing else self._world.now
        ledger = self.ledgers.get(ledger_id)
        answers: list[tuple[Status, Stored | None]] = []
        for entry_id in entry_ids:
            if ledger is None:
                answers.append((Status.ENOLEDGER, None))
            elif (ledger_id, entry_id) in self.damaged:
                answers.append((Status.EIO, None))
            elif entry_id in ledger.entries:
                answers.append((Status.EOK, ledger.entries[entry_id]))
            else:
                answers.append((Status.ENOENTRY, None))
        return answers, when

    # ---- faults ----

    def die(self) -> None:
        """Stop at once; of the records not yet durable only some first ones survive."""
        now = self._world.now
        durable = sum(when <= now for when, _, _, _ in self._journal)
        luck = UNIFORM[place(self._salt ^ 0x5BD1, self._syncs)]
        kept = durable + int(luck * luck * (len(self._journal) - durable + 1))
        self._journal = self._journal[: max(durable, kept)]
        self._world.kill(self.node)

    def start(self) -> None:
        """Start again and replay the journal; what is left of it is durable."""
        now = self._world.now
        self.node.is_up = True
        self.ledgers = {}
        self._cursors = {}
        self._unsynced = []
        self._journal = [(min(when, now), *record) for when, *record in self._journal]  # type: ignore[misc]
        self._synced_at = now
        for _, ledger_id, entry_id, stored in self._journal:
            ledger = self.ledgers.setdefault(ledger_id, Ledger())
            if stored is None:
                ledger.fenced = True
            else:
                ledger.entries[entry_id] = stored

    def is_fenced(self, ledger_id: int) -> bool:
        """Say whether the ledger would still be fenced after a crash now."""
        now = self._world.now
        return any(it[1] == ledger_id and it[3] is None and it[0] <= now for it in self._journal)

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        """Say whether the bookie has an entry, durably or not yet."""
        ledger = self.ledgers.get(ledger_id)
        return ledger is not None and entry_id in ledger.entries

    def durable(self, ledger_id: int) -> dict[int, Stored]:
        """Return the entries that no crash now would lose."""
        now = self._world.now
        return {
            entry_id: stored
            for when, ledger, entry_id, stored in self._journal
            if ledger == ledger_id and when <= now and stored is not None
        }
