"""The sums of a drain's ledgers are those of all its ledgers, whatever became of some of them."""

from __future__ import annotations

import random

import pytest

from bkspark.core.copies import CopyEstimate
from bkspark.errors import ReadFailed
from bookie_service.replication.drain_ledgers import DrainedLedger, LedgersLeft


class Copied:
    """A repair that has copied some bytes."""

    def __init__(self, copied_bytes: int) -> None:
        self.copied_bytes = copied_bytes


def share(chance: random.Random) -> CopyEstimate:
    return CopyEstimate(1, 1, chance.randrange(1000), chance.random() < 0.3)


def failure(ledger_id: int) -> ReadFailed:
    return ReadFailed(f"ledger {ledger_id} cannot be read")


def bytes_left(ledgers: list[DrainedLedger]) -> int:
    return sum(max(0, each.share.bytes - each.copied_bytes) for each in ledgers)


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_those_of_all_ledgers_after_any_changes(seed: int) -> None:
    chance = random.Random(seed)
    ids = chance.sample(range(1000), chance.randrange(1, 60))
    left = LedgersLeft({ledger_id: share(chance) for ledger_id in ids})
    running: set[int] = set()
    for _ in range(200):
        known = [ledger_id for ledger_id in ids if ledger_id in left]
        assert len(left) == len(known)
        ledgers = [left[ledger_id] for ledger_id in known]
        movable = [each for each in ledgers if each.error is None and not each.share.is_growing]
        waiting = sorted(id for id in known if left[id].error is None and left[id].share.is_growing)
        failed = sorted(id for id in known if left[id].error is not None)
        assert left.bytes_left == bytes_left(ledgers)
        assert left.movable_bytes_left == (bytes_left(movable) if movable else None)
        assert left.copied_bytes == sum(each.copied_bytes for each in ledgers)
        assert left.done_bytes == sum(min(each.copied_bytes, each.share.bytes) for each in ledgers)
        assert left.waiting(5) == tuple(waiting[:5])
        assert list(left.blocked(5)) == [str(ledger_id) for ledger_id in failed[:5]]
        if not known:
            return
        ledger_id = chance.choice(known)
        if ledger_id not in running:
            left.begin(ledger_id, Copied(chance.randrange(2000)))
            running.add(ledger_id)
            continue
        running.remove(ledger_id)
        copied_bytes = left[ledger_id].copied_bytes
        assert left.end(ledger_id) == copied_bytes
        if chance.random() < 0.3:
            left.remove(ledger_id)
        else:
            left.change(ledger_id, share(chance), failure(ledger_id) if chance.random() < 0.4 else None)


def test_ledgers_that_are_blocked_are_named_however_many_others_come_before_them() -> None:
    """The progress named only those of the first twenty ledgers that were blocked."""
    left = LedgersLeft({ledger_id: CopyEstimate(1, 1, 10, False) for ledger_id in range(100)})
    left.change(77, CopyEstimate(1, 1, 10, False), failure(77))
    assert left.blocked(20) == {"77": "ledger 77 cannot be read"}


def test_drain_fails_when_every_ledger_has_failed_often_enough() -> None:
    left = LedgersLeft({ledger_id: CopyEstimate(1, 1, 10, False) for ledger_id in (1, 2)})
    assert left.error_if_all_failed(3) is None
    for ledger_id in (1, 2):
        left.change(ledger_id, left[ledger_id].share, failure(ledger_id))
        left[ledger_id].failures = 3
    assert str(left.error_if_all_failed(3)) == "ledger 1 cannot be read"
    left[2].failures = 2
    assert left.error_if_all_failed(3) is None
    left.change(1, left[1].share, None)
    left[2].failures = 3
    assert left.error_if_all_failed(3) is None
    left.change(1, left[1].share, failure(1))
    left.change(2, left[2].share, None)
    assert left.error_if_all_failed(3) is None, "the second one has not failed of late"
