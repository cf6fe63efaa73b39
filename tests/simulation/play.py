"""Plays a scenario on the product's cores by hand: which message arrives, which is lost, who writes metadata when.

A message is named by its first facts: ("add", "owner", slot) is the owner's add to a slot, ("fence", "recoverer", slot)
a fence, ("read", ...) a recovery's read, and "added", "fenced", "was read" are the answers to these; ("find", who) is a
look at the bookies that are up, ("failed", who, slot) a failure noticed.
"""

from __future__ import annotations

from typing import Any

from bkspark.core.metadata import LedgerMetadata
from tests.simulation.small_model import Message, Model, State

STEPS_MAX = 2_000


class Play:
    """A cluster in the hands of a scenario."""

    def __init__(self, quorums: tuple[int, int, int] = (3, 3, 2), bookies: int = 3) -> None:
        self.model = Model(quorums, 0, bookies=tuple(f"b{i + 1}" for i in range(bookies)))
        self.state: State = self.model.first()

    @property
    def stored(self) -> LedgerMetadata:
        return self.state.stored

    @property
    def acknowledged(self) -> int:
        return self.state.acknowledged

    def waiting(self, *facts: Any) -> list[Message]:
        """Return the messages under way that begin with these facts, oldest first."""
        found = [it for it in self.state.messages if it[: len(facts)] == facts]
        return sorted(found, key=lambda message: message[-1])

    def add(self) -> None:
        """The owner adds an entry."""
        self.state = self.model.with_add(self.state)

    def deliver(self, *facts: Any) -> None:
        """Let every message of a kind that is under way now arrive."""
        found = self.waiting(*facts)
        assert found, f"no message {facts} among {sorted(map(str, self.state.messages))}"
        for message in found:
            self.state = self.model.delivered(self.state, message)

    def lose(self, *facts: Any) -> None:
        """Lose every message of a kind; who waits for an answer learns that none came when that is delivered."""
        for message in self.waiting(*facts):
            self.state = self.model.lost(self.state, message)

    def drop(self, *facts: Any) -> None:
        """Lose messages silently."""
        self.state.messages -= set(self.waiting(*facts))

    def write(self, who: str) -> None:
        """Decide a client's compare-and-set."""
        self.state = self.model.written(self.state, who)

    def crash(self, bookie: str) -> None:
        """A bookie is gone for good."""
        self.state = self.model.crashed(self.state, bookie)

    def blank(self, bookie: str) -> None:
        """A bookie has never heard of the ledger, whatever it held."""
        disks = self.state.disks
        self.state.disks = {**disks, bookie: type(disks[bookie])()}

    def begin_recovery(self) -> None:
        """A recoverer begins: the first one, or another one in the place of one that is gone."""
        if not self.waiting("begin"):
            self.state = self.model.with_new_recoverer(self.state)
        self.deliver("begin")
        if "recoverer" in self.state.writes:
            self.write("recoverer")

    def finish_recovery(self, *, owner_goes_on: bool = False) -> None:
        """Let everything arrive until the recoverer has nothing under way; the owner's messages wait meanwhile."""
        for _ in range(STEPS_MAX):
            mine = [it for it in self.waiting() if it[1] != "owner" or owner_goes_on]
            if mine:
                self.state = self.model.delivered(self.state, mine[0])
            elif "recoverer" in self.state.writes:
                self.write("recoverer")
            else:
                return
        raise AssertionError("the recovery does not come to rest")

    def finish(self) -> None:
        """Let everything arrive and be written, the owner's last."""
        self.finish_recovery()
        for _ in range(STEPS_MAX):
            if self.waiting():
                self.state = self.model.delivered(self.state, self.waiting()[0])
            elif self.state.writes:
                self.write(next(iter(self.state.writes)))
            else:
                break
        assert self.model.wrong(self.state) == ""
