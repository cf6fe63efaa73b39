"""Crash images of deferred adds (C11): never lost is what a force, or a LastAddSynced, said is synced."""

from __future__ import annotations

from tests.crash.campaign import STEPS, Campaign
from tests.crash.parallel import rare_collections
from tests.crash.relaxed import RelaxedScript

IMAGES = 600
_SHARE = 0.15


def test_entries_that_were_forced_or_reported_synced_survive_every_crash() -> None:
    campaign = Campaign(lambda campaign: campaign.images >= IMAGES, script=RelaxedScript, share=_SHARE)
    seed = 1
    with rare_collections():
        while campaign.images < IMAGES:
            campaign.run_script(seed, 3 * STEPS)
            seed += 1
    assert campaign.counts["double"] > 10
