"""Crash images of deferred adds (C11): never lost is what a force, or a LastAddSynced, said is synced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookie_service.bookie import Bookie
from bookie_service.deferrals import Deferrals
from bookie_service.storage.journal import Journal
from tests.crash.audit import Violation
from tests.crash.campaign import STEPS, Campaign, rare_collections
from tests.crash.relaxed import RelaxedScript
from tests.planting import Plant, changed, replaced

IMAGES, MUTANT_IMAGES = 600, 3000
SHARE = 0.15
"""Of the boundaries: many scripts find more than few that are crashed everywhere."""


def crash_scripts(images: int) -> Campaign:
    """Crash scripts until there are so many images, or something is found."""
    campaign = Campaign(lambda campaign: campaign.images >= images, script=RelaxedScript, share=SHARE)
    seed = 1
    with rare_collections():
        while campaign.images < images:
            campaign.run_script(seed, 3 * STEPS)
            seed += 1
    return campaign


def test_what_was_forced_or_told_synced_survives_every_crash() -> None:
    counts = crash_scripts(IMAGES).counts
    assert counts["images"] >= IMAGES
    assert counts["double"] > 10


def force_answered_at_once() -> Plant:
    def force(self: Bookie, client: Any, ledger_id: int, encode: Any) -> None:
        client.send(encode(0))

    return replaced(Bookie, "force", force)


def bypassing_not_flushed() -> Plant:
    return replaced(Deferrals, "is_unflushed", lambda self, ledger_id: False)


def flush_counted_when_begun() -> Plant:
    def make(old: Callable[[Deferrals], None]) -> Callable[[Deferrals], None]:
        def on_flush_begun(self: Deferrals) -> None:
            for cursor, runs in self._unflushed.values():
                cursor.on_synced(runs)
            old(self)

        return on_flush_begun

    return changed(Deferrals, "on_flush_begun", make)


def deferred_groups_counted_as_synced() -> Plant:
    def make(old: Callable[..., None]) -> Callable[..., None]:
        def append(self: Journal, records: Any, *, deferred: bool = False) -> None:
            old(self, records, deferred=deferred)
            self._synced = self._end

        return append

    return changed(Journal, "append", make)


@pytest.mark.parametrize(
    "plant",
    [
        force_answered_at_once,
        bypassing_not_flushed,
        flush_counted_when_begun,
        deferred_groups_counted_as_synced,
    ],
)
def test_planted_defect_of_deferred_adds_is_found(plant: Callable[[], Plant]) -> None:
    with plant(), pytest.raises(Violation):
        crash_scripts(MUTANT_IMAGES)
