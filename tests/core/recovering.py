"""A RecoveryCore that is played against three bookies."""

from __future__ import annotations

import numpy as np

from bkspark.core import effects
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.recovery import RecoveryCore
from bkspark.core.recovery_window import Response
from bkspark.errors import BookieUnavailable

BOOKIES = ("b1", "b2", "b3")
ONE_FRAGMENT = (Fragment(0, BOOKIES),)
AWAY = BookieUnavailable("away")


def read_answer(core, slot, entries, answer, payload=b"x" * 10, error=None):
    """What one bookie says of some entries, the same of each."""
    ids = np.atleast_1d(np.asarray(entries))
    found = ([payload] * len(ids), 10 * (ids + 1)) if answer is Response.FOUND else ()
    return core.on_read_answers(slot, ids, np.full(len(ids), answer, np.uint8), *found, error=error)


class Recovery:
    """A core played against three bookies that hold what `held` says; `dead` never answer well."""

    tells_last = True
    entry = b"x" * 10

    def __init__(self, held, quorums=(3, 3, 2), dead=(), lacs=None, fragments=None, refusals=None):
        self.metadata = LedgerMetadata(*quorums, fragments or (Fragment(0, BOOKIES),))
        self.core = RecoveryCore(5, self.metadata, 0)
        self.held, self.dead, self.lacs = held, set(dead), lacs or {}
        self.refusals, self.rests = refusals or {}, []
        self.fenced, self.rewritten, self.reads, self.windows = set(), [], [], []
        self.outcome = None

    def run(self):
        todo = list(self.core.start())
        while todo:
            todo += self.perform(todo.pop(0))
        return self.outcome

    def perform(self, effect: object) -> list[effects.RecoveryEffect]:
        core = self.core
        if isinstance(effect, effects.WriteMetadata):
            return core.on_metadata_written(effect.metadata, effect.expected_version + 1)
        if isinstance(effect, effects.Fence):
            if effect.bookie in self.dead:
                return core.on_fence_answer(effect.slot, Response.FAILED, error=AWAY)
            if self.refuses(effect.bookie):
                return core.on_fence_answer(effect.slot, Response.REFUSED)
            self.fenced.add(effect.bookie)
            if not self.held.get(effect.bookie):
                return core.on_fence_answer(effect.slot, Response.NEGATIVE)
            last = max(self.held[effect.bookie])
            known = last if self.tells_last else -1
            lac = self.lacs.get(effect.bookie, -1)
            return core.on_fence_answer(
                effect.slot, Response.FOUND, lac, len(self.entry) * (last + 1), last_entry=known
            )
        if isinstance(effect, effects.BackOff):
            self.rests.append((effect.slot, effect.delay_ns))
            return core.on_backoff_over(effect.slot)
        if isinstance(effect, effects.RecoveryRead):
            self.reads.append((effect.bookie, effect.entry_ids.tolist()))
            return self.answer(effect)
        if isinstance(effect, effects.RewriteEntries):
            self.rewritten += range(effect.payloads.first_entry, effect.payloads.end_entry)
            assert list(effect.payloads) == [self.entry] * len(effect.payloads)
            self.windows.append(len(effect.payloads))
            self.lac_written = effect.lac
            return core.on_rewritten()
        if isinstance(effect, effects.ReadLength):
            return core.on_length(777)
        self.outcome = effect
        return []

    def refuses(self, bookie):
        """Whether the bookie refuses load once more."""
        self.refusals[bookie] = self.refusals.get(bookie, 0) - 1
        return self.refusals[bookie] >= 0

    def answer(self, effect):
        ids, slot = effect.entry_ids, effect.slot
        if effect.bookie in self.dead:
            return read_answer(self.core, slot, ids, Response.FAILED, error=AWAY)
        answers = np.array([self.answer_of(effect.bookie, entry) for entry in ids.tolist()], np.uint8)
        payloads = [self.entry if answer == Response.FOUND else None for answer in answers]
        return self.core.on_read_answers(slot, ids, answers, payloads, len(self.entry) * (ids + 1))

    def answer_of(self, bookie, entry):
        if self.refuses(bookie):
            return Response.REFUSED
        return Response.FOUND if entry in self.held.get(bookie, ()) else Response.NEGATIVE


def held(**entries):
    return {bookie: set(range(count)) for bookie, count in entries.items()}


def closed_at(recovery):
    outcome = recovery.run()
    assert isinstance(outcome, effects.Recovered), outcome
    return outcome.metadata.last_entry
