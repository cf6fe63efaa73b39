"""A WriterCore whose events and effects are written down as tests read them."""

from __future__ import annotations

import random

import numpy as np

from bkspark.core import effects
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.pipeline import WriterStart
from bkspark.core.writer import WriterCore
from bkspark.wire.digest import SealedEntries
from bkspark.wire.status import Status

SECOND_NS = 1_000_000_000


def entries(first_entry, count):
    return SealedEntries.framed(memoryview(bytes(count)), np.arange(count + 1), first_entry)


class Writer:
    """A core and the effects it returned; acknowledged entries and sends are read off those."""

    def __init__(self, quorums=(3, 3, 2), **options):
        ensemble_size, write_quorum, ack_quorum = quorums
        bookies = tuple(f"b{number}" for number in range(1, ensemble_size + 1))
        self.metadata = LedgerMetadata(ensemble_size, write_quorum, ack_quorum, (Fragment(0, bookies),))
        where = {name: options.pop(name) for name in ("lac", "is_recovery") if name in options}
        self.core = WriterCore(WriterStart(5, self.metadata, 0, **where), random.Random(1), **options)
        self.log = []

    def add(self, count=1, now_ns=0):
        return self.take(self.core.add(entries(self.core.pending.next_entry, count), count, now_ns))

    def reply(self, slot, *ids, status=Status.EOK, bookie=None, now_ns=0):
        bookie = bookie or self.core.slots.ensemble[slot]
        statuses = np.full(len(ids), status)
        return self.take(self.core.on_add_replies(slot, bookie, np.array(ids, np.int64), statuses, now_ns))

    def fail(self, slot, now_ns=0):
        return self.take(self.core.on_bookie_failed(slot, self.core.slots.ensemble[slot], now_ns))

    def change_to(self, *writable):
        """Answer FindBookies, and the compare-and-set that follows."""
        done = self.take(self.core.on_writable_bookies({*self.core.slots.ensemble, *writable}))
        for effect in [effect for effect in done if isinstance(effect, effects.WriteMetadata)]:
            done += self.take(self.core.on_metadata_written(effect.metadata, effect.expected_version + 1))
        return done

    def take(self, done):
        self.log += done
        return list(done)

    @property
    def acknowledged(self):
        return max((effect.last_entry for effect in self.log if isinstance(effect, effects.Acknowledge)), default=-1)


def sent_to(done):
    result = {}
    for effect in done:
        if isinstance(effect, effects.SendAdds):
            first = effect.entries.first_entry
            positions = range(len(effect.entries)) if effect.positions is None else effect.positions.tolist()
            result.setdefault(effect.bookie, []).extend(first + position for position in positions)
    return result
