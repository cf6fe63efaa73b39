"""A few crashes of each storage, among the fast tests: the beginning of the campaigns of `tests/crash`.

Most defects that cost durable data break one of the first hundred crash images.
"""

from __future__ import annotations

import pytest

from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.campaign import Campaign

IMAGES = 120
_STEPS = 5


@pytest.mark.parametrize("storage_class", StorageClass, ids=lambda each: each.short_name)
def test_crashes_of_a_short_script_lose_nothing(storage_class: StorageClass) -> None:
    campaign = Campaign(lambda campaign: campaign.images >= IMAGES, storage_class=storage_class, deep_every=20)
    campaign.run_script(2026, _STEPS)
    assert campaign.images > IMAGES // 2
