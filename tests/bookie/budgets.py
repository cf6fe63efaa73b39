"""Connections as the budget of their memory sees them. The fixture `budget` has LIMIT bytes of each kind."""

from __future__ import annotations

from bookie_service.network.memory_budget import MemoryBudget

LIMIT = 1 << 20


class Receiver:
    """A connection as the budget sees it: its memory is given back when it is given up."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.held = 0
        self.resumed = 0
        self.why = ""

    def take(self, size: int) -> None:
        assert self._budget.take(size)
        self.held += size

    def keep_reply(self, size: int) -> bool:
        is_kept = self._budget.keep_reply(self, size)
        self.held += size * is_kept
        return is_kept

    def go_on_receiving(self) -> None:
        self.resumed += 1

    def give_up(self, why: str) -> None:
        self.why = why
        self._budget.forget(self)
        if "replies" in why:
            self._budget.replies.give(self.held)
        else:
            self._budget.give_back(self.held)
        self.held = 0


def waiting(budget: MemoryBudget, *wanted: int) -> list[Receiver]:
    """Return connections that wait for this much room each."""
    found = [Receiver(budget) for _ in wanted]
    for receiver, size in zip(found, wanted):
        budget.wait(receiver, size)
    return found
