"""A small cluster, and all that can happen to it next: the product's cores, bookies and messages between them.

Three bookies, an owner with its adds on their way, a recoverer. Any message may be delivered at any time, some may be
lost, a bookie may crash for good. What is wrong with a state: an entry acknowledged to the owner is above the end, an
entry has less than Qa copies where metadata says when the ledger is closed, or the metadata of a closed ledger was
overwritten. `exhaustive` looks at every state, `play` goes through the few of a scenario.

Durability is not in this model (an answer is given when the record is safe, and disks keep what they have): crashes
with loss of what was not synced are what schedules and `tests/crash` try.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from bkspark.core import effects
from bkspark.core.ensemble import EnsembleChange
from bkspark.core.left_out import LeftOutBookies
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.pending import PendingEntries, Synced
from bkspark.core.pipeline import Pipeline, WriterStart, WriterState
from bkspark.core.recovery import RecoveryCore, RecoveryState
from bkspark.core.recovery_window import RecoveryWindow, Response
from bkspark.core.slots import Refusal, Slot, Slots
from bkspark.core.striping import write_set
from bkspark.core.unwell import UnwellBookies
from bkspark.core.writer import WriterCore
from bkspark.errors import BookieUnavailable
from bkspark.wire.status import Status
from tests.simulation.owner import SimulatedEntries

BOOKIES = ("b1", "b2", "b3")
AWAY = BookieUnavailable("away")
LOSABLE = ("add", "added", "fence", "fenced", "read", "was read")
REQUESTS = ("add", "fence", "read")
"""Messages that may be lost, and those of them that go to a bookie, by their first fact."""

_WRITER_ENDED = (WriterState.FAILED, WriterState.CLOSED)
_RECOVERY_ENDED = (RecoveryState.DONE, RecoveryState.FAILED)
_WITHOUT_EVENT = (effects.Recovered, effects.Fail)
"""Effects after which nothing happens: the cores' states show them."""

Message = tuple[Any, ...]
_T = TypeVar("_T")


class FirstOnes:
    """A random source for placement: takes the first ones, as any choice is like any other here."""

    def sample(self, population: Sequence[_T], k: int) -> list[_T]:
        return list(population[:k])


@dataclass(frozen=True, slots=True)
class Disk:
    """One bookie."""

    is_up: bool = True
    fenced: bool = False
    entries: frozenset[int] = frozenset()


@dataclass(slots=True)
class State:
    """The cluster at one moment; cores are copied before they change, all else is never changed in place."""

    owner: WriterCore
    recovery: RecoveryCore | None
    rewriter: WriterCore | None
    rewriting_to: int
    disks: dict[str, Disk]
    stored: LedgerMetadata
    version: int
    messages: frozenset[Message]
    writes: dict[str, effects.WriteMetadata] = field(default_factory=dict)
    losses_left: int = 0
    crashes_left: int = 0
    acknowledged: int = -1
    is_overwritten: bool = False
    number: int = 0


_FIELDS = attrgetter(*(it.name for it in fields(State)))


PARTS = (
    WriterCore,
    Pipeline,
    UnwellBookies,
    Slots,
    Slot,
    Refusal,
    PendingEntries,
    Synced,
    EnsembleChange,
    LeftOutBookies,
    RecoveryCore,
    RecoveryWindow,
)
"""What cores are made of, and changes."""


def contents(part: Any) -> dict[str, Any]:
    """Return the fields of a part."""
    return vars(part) if hasattr(part, "__dict__") else {name: getattr(part, name) for name in part.__slots__}


def _copied(core: Any) -> Any:
    """Copy a core with its parts, each once, however many of the others share it."""
    return _copy(core, {})


def _copy(value: Any, copies: dict[int, Any]) -> Any:
    duplicate = _COPIES.get(type(value))
    if duplicate is not None:
        return duplicate(value, copies)
    if type(value) not in PARTS:
        return value
    known = copies.get(id(value))
    if known is None:
        known = copies[id(value)] = object.__new__(type(value))
        for name, field_value in contents(value).items():
            object.__setattr__(known, name, _copy(field_value, copies))
    return known


_COPIES: dict[type, Callable[[Any, dict[int, Any]], Any]] = {
    **{kind: lambda those, copies: type(those)(_copy(it, copies) for it in those) for kind in (list, set, deque)},
    dict: lambda those, copies: {key: _copy(it, copies) for key, it in those.items()},
    np.ndarray: lambda array, copies: array.copy(),
}


class Model:
    """The rules by which one state follows another."""

    def __init__(
        self,
        quorums: tuple[int, int, int],
        entries: int,
        losses: int = 2,
        crashes: int = 1,
        bookies: tuple[str, ...] = BOOKIES,
    ) -> None:
        self.quorums = quorums
        self.bookies = bookies
        self.entries = entries
        self.losses = losses
        self.crashes = crashes

    def first(self) -> State:
        """Return the state in which the owner has sent its adds and a recoverer is about to begin."""
        metadata = LedgerMetadata(*self.quorums, (Fragment(0, self.bookies[: self.quorums[0]]),))
        owner = WriterCore(WriterStart(1, metadata, 0), FirstOnes())
        owner.pending._votes = owner.pending._votes[:4].copy()
        disks = {name: Disk() for name in self.bookies}
        state = State(owner, None, None, -1, disks, metadata, 0, frozenset())
        state.losses_left, state.crashes_left = self.losses, self.crashes
        for _ in range(self.entries):
            state = self.with_add(state)
        self._post(state, ("begin", "recoverer"))
        return state

    def with_add(self, state: State) -> State:
        """Return the state in which the owner has added one more entry."""
        state = self._next(state)
        core = self._core(state, "owner")
        entry_id = core.pending.next_entry
        entries = SimulatedEntries.of(entry_id, [b"%d" % entry_id], entry_id, core.lac)
        self._perform(state, "owner", core.add(entries, 1, 0))
        return state

    def with_new_recoverer(self, state: State) -> State:
        """Return the state in which the recoverer is gone, with all its answers, and another one begins."""
        state = self._next(state)
        state.recovery = state.rewriter = None
        state.messages = frozenset(it for it in state.messages if it[1] == "owner")
        state.writes = {who: effect for who, effect in state.writes.items() if who == "owner"}
        self._post(state, ("begin", "recoverer"))
        return state

    def following(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield (what happened, state) for everything that can happen next."""
        for message in sorted(state.messages, key=lambda message: message[-1]):
            yield f"{message[:-1]}", self.delivered(state, message)
            if state.losses_left and message[0] in LOSABLE:
                yield f"lost: {message[:-1]}", self.lost(state, message)
        for who in state.writes:
            yield f"{who} writes metadata", self.written(state, who)
        if state.crashes_left:
            for name, disk in state.disks.items():
                if disk.is_up:
                    yield f"{name} crashes", self.crashed(state, name)

    def wrong(self, state: State) -> str:
        """Say what is wrong with a state, "" if nothing is."""
        stored = state.stored
        if state.is_overwritten:
            return "the metadata of a closed ledger was overwritten"
        if not stored.is_closed:
            return ""
        if state.acknowledged > stored.last_entry:
            return f"entry {state.acknowledged} was acknowledged, the ledger ends at {stored.last_entry}"
        for entry_id in range(stored.last_entry + 1):
            bookies = stored.fragment_of(entry_id).bookies
            slots = write_set(entry_id, stored.ensemble_size, stored.write_quorum)
            copies = sum(entry_id in state.disks[bookies[slot]].entries for slot in slots)
            if copies < stored.ack_quorum:
                return f"entry {entry_id} has {copies} copies at the close"
        return ""

    def forget(self, state: State) -> bool:
        """Take out of a state what can make nothing wrong any more; return whether there is a client that has ended.

        A writer that has ended receives nothing. Only the stored metadata of a recovery that has ended counts: its
        requests in flight could at most add copies, or fence bookies, and both only restrict.
        """
        has_owner_ended = self.has_owner_ended(state)
        if has_owner_ended:
            state.messages = frozenset(it for it in state.messages if it[1] != "owner" or it[0] == "add")
            state.writes.pop("owner", None)
        if state.recovery is None or state.recovery.state not in _RECOVERY_ENDED:
            return has_owner_ended
        state.recovery = state.rewriter = None
        state.rewriting_to = -1
        state.messages = frozenset(it for it in state.messages if it[1] == "owner")
        state.writes.pop("recoverer", None)
        return True

    def is_settled(self, state: State) -> bool:
        """Whether nothing can go wrong any more: no process is left that could acknowledge an entry or close the
        ledger."""
        return self.is_recoverer_gone(state) and (self.has_owner_ended(state) or not state.stored.is_closed)

    def has_owner_ended(self, state: State) -> bool:
        return state.owner.state in _WRITER_ENDED

    def is_recoverer_gone(self, state: State) -> bool:
        """Whether no recovery is under way, and none will begin."""
        return state.recovery is None and all(message[1] == "owner" for message in state.messages)

    # ---- what happens ----

    def _next(self, state: State, gone: Message | None = None) -> State:
        new = State(*_FIELDS(state))
        new.writes = dict(state.writes)
        if gone is not None:
            new.messages = state.messages - {gone}
        return new

    def _post(self, state: State, message: Message) -> None:
        state.number += 1
        state.messages |= {(*message, state.number)}

    def _core(self, state: State, who: str) -> Any:
        """Return a copy of a client's core, put into the state."""
        name = "recovery" if who == "recoverer" else who
        core = _copied(getattr(state, name))
        setattr(state, name, core)
        return core

    def delivered(self, state: State, message: Message) -> State:
        """Return the state after a message has arrived."""
        state = self._next(state, message)
        kind, who, *facts, _ = message
        if kind == "begin":
            state.recovery = RecoveryCore(1, state.stored, state.version)
            self._perform(state, who, state.recovery.start())
        elif kind in REQUESTS:
            self._at_bookie(state, kind, who, *facts)
        elif kind == "find":
            if getattr(state, who) is not None:
                writable = {name for name, disk in state.disks.items() if disk.is_up}
                self._perform(state, who, self._core(state, who).on_writable_bookies(writable))
        else:
            self._answered(state, kind, who, *facts)
        return state

    def _at_bookie(self, state: State, kind: str, who: str, slot: int, name: str, entry_id: int = -1) -> None:
        disk = state.disks[name]
        if kind == "add":
            if disk.fenced and who == "owner":
                self._post(state, ("added", who, slot, name, entry_id, Status.EFENCED))
                return
            disk = replace(disk, entries=disk.entries | {entry_id})
            self._post(state, ("added", who, slot, name, entry_id, Status.EOK))
        elif kind == "fence":
            disk = replace(disk, fenced=True)
            self._post(state, ("fenced", who, slot, name, Response.FOUND if disk.entries else Response.NEGATIVE))
        else:
            disk = replace(disk, fenced=disk.fenced or self.reads_fence)
            answer = Response.FOUND if entry_id in disk.entries else Response.NEGATIVE
            self._post(state, ("was read", who, slot, name, entry_id, answer))
        state.disks = {**state.disks, name: disk}

    reads_fence = True

    def _answered(self, state: State, kind: str, who: str, slot: int, name: str, *facts: Any) -> None:
        if kind in ("added", "failed"):
            if getattr(state, who) is None:
                return
            core = self._core(state, who)
            if kind == "failed":
                self._perform(state, who, core.on_bookie_failed(slot, name, 0))
            else:
                ids, statuses = np.array([facts[0]], np.int64), np.array([facts[1]], np.int32)
                self._perform(state, who, core.on_add_replies(slot, name, ids, statuses, 0))
            return
        if state.recovery is None:
            return
        core = self._core(state, who)
        answer = facts[-1]
        error = AWAY if answer is Response.FAILED else None
        if kind == "fenced":
            todo = core.on_fence_answer(slot, answer, -1, 1, error=error)
        else:
            entry_id = facts[0]
            ids, answers = np.array([entry_id]), np.array([answer], np.uint8)
            todo = core.on_read_answers(slot, ids, answers, [b"%d" % entry_id], ids + 1, error)
        self._perform(state, who, todo)

    def lost(self, state: State, message: Message) -> State:
        """Return the state after a message is lost: who waits for the answer learns that none came."""
        state = self._next(state, message)
        state.losses_left -= 1
        self._unheard(state, message)
        return state

    def _unheard(self, state: State, message: Message) -> None:
        """A process that waits for the answer learns, some time, that it will not come."""
        kind, who, slot, name = message[:4]
        if kind in ("add", "added"):
            self._post(state, ("failed", who, slot, name))
        elif kind in ("fence", "fenced"):
            self._post(state, ("fenced", who, slot, name, Response.FAILED))
        elif kind in ("read", "was read"):
            self._post(state, ("was read", who, slot, name, message[4], Response.FAILED))

    def crashed(self, state: State, name: str) -> State:
        """Return the state after a bookie is gone for good."""
        state = self._next(state)
        state.crashes_left -= 1
        state.disks = {**state.disks, name: replace(state.disks[name], is_up=False)}
        for message in state.messages:
            if message[0] in REQUESTS and message[3] == name:
                state.messages -= {message}
                self._unheard(state, message)
        return state

    def written(self, state: State, who: str) -> State:
        """Return the state after a client's compare-and-set was decided."""
        state = self._next(state)
        effect = state.writes.pop(who)
        core = self._core(state, who)
        if effect.expected_version == state.version:
            state.is_overwritten |= state.stored.is_closed
            state.stored, state.version = effect.metadata, state.version + 1
            todo = core.on_metadata_written(state.stored, state.version)
        else:
            todo = core.on_metadata_conflict(state.stored, state.version)
        self._perform(state, who, todo)
        return state

    def _perform(self, state: State, who: str, todo: list[effects.WriterEffect | effects.RecoveryEffect]) -> None:
        for effect in todo:
            if isinstance(effect, effects.SendAdds):
                ids = range(len(effect.entries)) if effect.positions is None else effect.positions.tolist()
                for position in ids:
                    entry_id = effect.entries.first_entry + position
                    self._send(state, ("add", who, effect.slot, effect.bookie, entry_id))
            elif isinstance(effect, effects.Fence):
                self._send(state, ("fence", who, effect.slot, effect.bookie))
            elif isinstance(effect, effects.RecoveryRead):
                for entry_id in effect.entry_ids.tolist():
                    self._send(state, ("read", who, effect.slot, effect.bookie, entry_id))
            elif isinstance(effect, effects.Acknowledge):
                self._acknowledged(state, who, effect.last_entry)
            elif isinstance(effect, effects.FindBookies):
                self._post(state, ("find", who))
            elif isinstance(effect, effects.WriteMetadata):
                state.writes[who] = effect
            elif isinstance(effect, effects.RewriteEntries):
                self._rewrite(state, effect)
            elif isinstance(effect, effects.AbandonRewriting):
                state.rewriter = None
            elif isinstance(effect, effects.ReadLength):
                self._perform(state, who, self._core(state, who).on_length(None))
            elif isinstance(effect, effects.Fail) and who == "rewriter":
                self._perform(state, "recoverer", self._core(state, "recoverer").on_rewrite_failed(effect.error))
            else:
                assert isinstance(effect, _WITHOUT_EVENT), f"an effect that is not performed: {effect}"

    def _send(self, state: State, message: Message) -> None:
        if state.disks[message[3]].is_up:
            self._post(state, message)
        else:
            self._unheard(state, message)

    def _rewrite(self, state: State, effect: effects.RewriteEntries) -> None:
        if state.rewriter is None:
            recovery = state.recovery
            assert recovery is not None
            last = effect.payloads.first_entry - 1
            start = WriterStart(1, recovery.metadata, recovery.version, last, is_recovery=True)
            state.rewriter = WriterCore(start, FirstOnes())
            pending = state.rewriter.pending
            pending._votes = pending._votes[:4].copy()
        batch = effect.payloads
        state.rewriting_to = batch.last_entry
        entries = SimulatedEntries.of(batch.first_entry, batch, effect.length_before, effect.lac)
        core = self._core(state, "rewriter")
        self._perform(state, "rewriter", core.add(entries, len(batch), 0))

    def _acknowledged(self, state: State, who: str, last_entry: int) -> None:
        if who == "owner":
            state.acknowledged = max(state.acknowledged, last_entry)
        elif last_entry == state.rewriting_to:
            core = self._core(state, "recoverer")
            assert state.rewriter is not None
            core.on_ensemble_changed(state.rewriter.change.fragments)
            self._perform(state, "recoverer", core.on_rewritten())


class ModelWithoutFencingReads(Model):
    """P01 planted: recovery reads carry no fence."""

    reads_fence = False
