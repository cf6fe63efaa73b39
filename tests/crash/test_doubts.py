"""Limbo meets garbage collection: a part of what `python -m tests.crash.doubts` enumerates."""

from __future__ import annotations

import pytest

from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.doubts import Damage, Doubts
from tests.crash.parallel import rare_collections


@pytest.mark.parametrize("damage", [Damage.REMOVED, Damage.CUT])
def test_nothing_of_a_ledger_in_doubt_is_collected_denied_or_unfenced(damage: Damage) -> None:
    doubts = Doubts()
    with rare_collections():
        doubts.run(StorageClass.INTERLEAVED, damage, 2)
    assert doubts.counts["rebuilds"] > 50
    assert doubts.counts["rebuilds crashed"] > 5
