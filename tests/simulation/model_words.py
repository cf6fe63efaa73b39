"""States of the small model as words of 64 bits, and its rules on words.

What one step does depends on little of the state: an answer concerns one client's cores, a request one bookie. So each
rule of the model is carried out on the product's cores once for all that it depends on, in a state that holds nothing
else, and its outcome is kept. That is sound because cores are pure: equal contents and equal events give equal contents
and equal effects. All contents of a core count, but for `_REPORTED_TO_NO_CALLER`.

A word has the numbers of the owner and the recoverer (each with its cores, its pending compare-and-set and its messages
on their way, as a multiset), of the disks and of the stored metadata, and the losses and crashes that are left. Two
states with one word are equal in all of that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import numpy as np

from bkspark.core.metadata import LedgerMetadata
from bkspark.core.pending import PendingEntries
from bkspark.core.pipeline import Pipeline
from tests.simulation.owner import SimulatedEntries
from tests.simulation.small_model import LOSABLE, PARTS, REQUESTS, Disk, Message, Model, State, contents

Words = np.ndarray
"""States, uint64: _IN_USE | recoverer | owner | stored metadata | disks | crashes left | losses left."""

_Value = TypeVar("_Value")
_Facts = ParamSpec("_Facts")


@dataclass(frozen=True, slots=True)
class Field:
    """Some bits of a word."""

    name: str
    shift: int
    bits: int

    @property
    def mask(self) -> int:
        return ((1 << self.bits) - 1) << self.shift

    def of(self, words: Words) -> np.ndarray:
        return (words & np.uint64(self.mask)) >> np.uint64(self.shift)


LOSSES = Field("losses", 0, 2)
CRASHES = Field("crashes", 2, 2)
DISKS = Field("states of the disks", 4, 13)
STORED = Field("stored metadata", 17, 7)
OWNER = Field("states of the owner", 24, 15)
RECOVERER = Field("states of the recoverer", 39, 24)
_IN_USE = 1 << 63
WORD = (1 << 64) - 1


class _Numbered(Generic[_Value]):
    """Numbers for values, in the order in which they come; equal keys have one number."""

    def __init__(self, place: Field | None = None) -> None:
        self.values: list[_Value] = []
        self._numbers: dict[Hashable, int] = {}
        self._place = place

    def number(self, key: Hashable, value: _Value) -> int:
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.values)
            self.values.append(value)
            if self._place and len(self.values) >> self._place.bits:
                raise OverflowError(f"{self._place.name}: more than {self._place.bits} bits can tell apart")
        return known

    def __len__(self) -> int:
        return len(self.values)


# ---- what decides the future of a core ----

_REPORTED_TO_NO_CALLER = frozenset({"error", "_first_error", "_random", "_limits", "_pauses", "bit", "stripe"})
"""Errors of ended cores, constants."""
_SHARED = frozenset({"slots", "pending", "durability", "change", "_slots", "_pending", "_left_out", "_unwell"})
"""What a writer's core and its parts refer to, and its pipeline has."""


def _contents(core: Any) -> Hashable:
    """Return all that a core is made of, as a key."""
    if core is None:
        return None
    found = {name: value for name, value in contents(core).items() if name not in _REPORTED_TO_NO_CALLER}
    if isinstance(core, PendingEntries):
        found["_votes"] = core.votes
    elif not isinstance(core, Pipeline):
        # Parts share these with the pipeline that they belong to.
        found = {name: value for name, value in found.items() if name not in _SHARED}
    return _keys(found.values())


def _keys(values: Iterable[Any]) -> tuple[Hashable, ...]:
    return tuple([_KEYS[type(value)](value) if type(value) in _KEYS else value for value in values])


_KEYS: dict[type, Callable[[Any], Hashable]] = {
    np.ndarray: np.ndarray.tobytes,
    **dict.fromkeys((list, tuple, deque), _keys),
    dict: lambda those: tuple(sorted(those.items())),
    set: frozenset,
    LedgerMetadata: lambda it: (it.state, it.fragments, it.last_entry),
    SimulatedEntries: lambda batch: (batch.first_entry, len(batch)),
    **dict.fromkeys(PARTS, _contents),
}
"""How what is in a core becomes part of a key; what is not named here is hashed as it is."""


# ---- the rules, each carried out once ----

Mail = tuple[int, ...]
"""Numbers of messages on their way, ascending; one that is on its way twice is there twice."""


@dataclass(frozen=True, slots=True)
class _Party:
    """A client and the messages from and to it. `cores` is the number of a state that has only its cores."""

    cores: int
    mail: Mail


class Client:
    """What there is of one client: the owner, or the recoverer with its rewriter."""

    def __init__(self, who: str, place: Field) -> None:
        self.who = who
        self.place = place
        self.parties = _Numbered[_Party](place)
        # Whether it can do nothing any more, by party; and of the owner the last entry acknowledged.
        self.has_ended: list[bool] = []
        self.acknowledged: list[int] = []

    @property
    def footprint(self) -> int:
        """The bits of a word that decide what can happen to the client, losses and crashes apart."""
        return self.place.mask | DISKS.mask | STORED.mask


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the metadata store has."""

    metadata: LedgerMetadata
    version: int
    is_overwritten: bool


def _once(rule: Callable[Concatenate[Rules, _Facts], _Value]) -> Callable[Concatenate[Rules, _Facts], _Value]:
    """Work out a rule once for equal facts; the outcome is kept with the rules."""

    def known(rules: Rules, /, *facts: _Facts.args, **named: _Facts.kwargs) -> _Value:
        key = (rule, facts)
        if key not in rules.outcomes:
            rules.outcomes[key] = rule(rules, *facts, **named)
        return rules.outcomes[key]

    return known


class Rules:
    """A model's rules on numbered parts of its states."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.owner = Client("owner", OWNER)
        self.recoverer = Client("recoverer", RECOVERER)
        self.outcomes: dict[Hashable, Any] = {}
        self._messages = _Numbered[Message]()
        self._cores = _Numbered[State]()
        self._disks = _Numbered[tuple[Disk, ...]](DISKS)
        self._stored = _Numbered[_Stored](STORED)
        self._empty = replace(model.first(), messages=frozenset())

    # ---- states as words ----

    def word(self, state: State) -> int:
        """Return the word of a whole state."""
        word = _IN_USE | state.losses_left | state.crashes_left << CRASHES.shift
        mine = {self.owner: [], self.recoverer: []}
        for message in state.messages:
            mine[self.owner if message[1] == "owner" else self.recoverer].append(message)
        for client, messages in mine.items():
            party = self._party(client, self._cores_of(client, state), self._mail(messages))
            word |= party << client.place.shift
        return word | self._place(self._disks_of(state), self._stored_of(state))

    def _place(self, disks: int, stored: int) -> int:
        return disks << DISKS.shift | stored << STORED.shift

    def _cores_of(self, client: Client, state: State) -> int:
        write = state.writes.get(client.who)
        writes = {} if write is None else {client.who: write}
        key: Hashable = None if write is None else (write.expected_version, _keys([write.metadata]))
        if client is self.owner:
            part = replace(self._empty, owner=state.owner, acknowledged=state.acknowledged, writes=writes)
            return self._cores.number(("owner", _contents(state.owner), state.acknowledged, key), part)
        part = replace(
            self._empty,
            recovery=state.recovery,
            rewriter=state.rewriter,
            rewriting_to=state.rewriting_to,
            writes=writes,
        )
        cores = (_contents(state.recovery), _contents(state.rewriter), state.rewriting_to)
        return self._cores.number(("recoverer", *cores, key), part)

    def _mail(self, messages: Sequence[Message] | frozenset[Message]) -> Mail:
        return tuple(sorted(self._messages.number(message[:-1], message[:-1]) for message in messages))

    def _disks_of(self, state: State) -> int:
        disks = tuple(state.disks.values())
        return self._disks.number(disks, disks)

    def _stored_of(self, state: State) -> int:
        key = (_keys([state.stored]), state.version, state.is_overwritten)
        return self._stored.number(key, _Stored(state.stored, state.version, state.is_overwritten))

    @_once
    def _party(self, client: Client, cores: int, mail: Mail) -> int:
        """Return the number of a client with its messages, without what the model forgets of it."""
        state = self._with_mail(cores, mail)
        if self.model.forget(state):
            cores, mail = self._cores_of(client, state), self._mail(state.messages)
        party = _Party(cores, mail)
        number = client.parties.number(party, party)
        if number == len(client.has_ended):
            has_ended = self.model.has_owner_ended if client is self.owner else self.model.is_recoverer_gone
            client.has_ended.append(has_ended(state))
            client.acknowledged.append(state.acknowledged)
        return number

    def _with_mail(self, cores: int, mail: Mail) -> State:
        messages = frozenset((*self._messages.values[message], number) for number, message in enumerate(mail))
        part = self._cores.values[cores]
        return replace(part, messages=messages, number=len(mail), writes=dict(part.writes))

    # ---- what can happen ----

    def moves(self, client: Client, word: int) -> tuple[list[int], list[int]]:
        """Return what can happen to a client in a state, without a loss and with one, crashes apart.

        A move is what is added to `word` without the client's footprint.
        """
        party = client.parties.values[(word & client.place.mask) >> client.place.shift]
        disks, stored = (word & DISKS.mask) >> DISKS.shift, (word & STORED.mask) >> STORED.shift
        moves, losses = [], []
        for at, message in enumerate(party.mail):
            if at and party.mail[at - 1] == message:
                continue
            others = party.mail[:at] + party.mail[at + 1 :]
            kind = self._messages.values[message][0]
            if kind in REQUESTS:
                after, answer = self._at_bookie(message, disks)
                moves.append(self._move(client, party.cores, others + answer, after, stored))
            else:
                cores, sent, _ = self._at_client(client, party.cores, message, disks, stored)
                moves.append(self._move(client, cores, others + sent, disks, stored))
            if kind in LOSABLE:
                lost = self._move(client, party.cores, others + self._lost(message), disks, stored)
                losses.append(lost - (1 << LOSSES.shift) & WORD)
        if self._cores.values[party.cores].writes:
            cores, sent, after = self._at_client(client, party.cores, -1, disks, stored)
            moves.append(self._move(client, cores, party.mail + sent, disks, after))
        return moves, losses

    def _move(self, client: Client, cores: int, mail: Mail, disks: int, stored: int) -> int:
        party = self._party(client, cores, tuple(sorted(mail)))
        return party << client.place.shift | self._place(disks, stored)

    def _at_client(self, client: Client, cores: int, message: int, disks: int, stored: int) -> tuple[int, Mail, int]:
        """Deliver a message to a client, or with -1 decide its compare-and-set.

        Which bookies are up decides what it finds, and what becomes of its requests; what is stored matters to a
        compare-and-set and to a recovery that begins.

        Returns:
            Its cores, what it sends, and what a compare-and-set stored.
        """
        ups = tuple([disk.is_up for disk in self._disks.values[disks]])
        looks_at = stored if message < 0 or self._messages.values[message][0] == "begin" else -1
        return self._step(client, cores, message, ups, looks_at)

    @_once
    def _step(
        self, client: Client, cores: int, message: int, ups: tuple[bool, ...], stored: int
    ) -> tuple[int, Mail, int]:
        state = replace(
            self._cores.values[cores], disks={name: Disk(is_up) for name, is_up in zip(self.model.bookies, ups)}
        )
        if stored >= 0:
            seen = self._stored.values[stored]
            state.stored, state.version, state.is_overwritten = seen.metadata, seen.version, seen.is_overwritten
        if message < 0:
            state = self.model.written(state, client.who)
            stored = self._stored_of(state)
        else:
            state = self._delivered(state, message)
        return self._cores_of(client, state), self._mail(state.messages), stored

    @_once
    def _at_bookie(self, message: int, disks: int) -> tuple[int, Mail]:
        """Deliver a request to a bookie: the disks, and the answer."""
        state = self._delivered(replace(self._empty, disks=self._by_name(disks)), message)
        return self._disks_of(state), self._mail(state.messages)

    def _delivered(self, state: State, message: int) -> State:
        facts = (*self._messages.values[message], 0)
        state.messages = frozenset({facts})
        return self.model.delivered(state, facts)

    @_once
    def _lost(self, message: int) -> Mail:
        facts = (*self._messages.values[message], 0)
        state = self.model.lost(replace(self._empty, messages=frozenset({facts})), facts)
        return self._mail(state.messages)

    @_once
    def crashed(self, name: str, client: Client, party: int) -> int:
        """Return what becomes of a client when a bookie is gone for good."""
        one = client.parties.values[party]
        state = self.model.crashed(self._with_mail(one.cores, one.mail), name)
        return self._party(client, one.cores, self._mail(state.messages))

    @_once
    def disks_crashed(self, name: str, disks: int) -> int:
        """Return the disks when a bookie is gone for good, -1 where it is already."""
        state = replace(self._empty, disks=self._by_name(disks))
        return self._disks_of(self.model.crashed(state, name)) if state.disks[name].is_up else -1

    # ---- what is looked at ----

    def has_been_closed(self, stored: int) -> bool:
        it = self._stored.values[stored]
        return it.metadata.is_closed or it.is_overwritten

    @_once
    def wrong(self, acknowledged: int, disks: int, stored: int) -> str:
        """Say what is wrong with a state of which this is known, "" if nothing is."""
        it = self._stored.values[stored]
        state = replace(self._empty, acknowledged=acknowledged, disks=self._by_name(disks), stored=it.metadata)
        state.is_overwritten = it.is_overwritten
        return self.model.wrong(state)

    def _by_name(self, disks: int) -> dict[str, Disk]:
        return dict(zip(self.model.bookies, self._disks.values[disks]))
