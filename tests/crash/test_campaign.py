"""Every operation boundary of seeded scripts, crashed under six loss policies: nothing promised is lost."""

from __future__ import annotations

import itertools
import json

import pytest

from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.campaign import LOG_PER_LEDGER, SEVERAL, Campaign, coverage, main, run
from tests.crash.images import Loss
from tests.crash.scripts import DirectoriesScript

IMAGES = 5_000
"""A part of what the command runs: `python -m tests.crash.campaign --seed 1 --images 150000`.

Half of the planted defects that crashes find are found within 110 images, nine of ten within 1,000.
"""
_PARTS = 2
_STEPS = 8
"""A little more than half of what the command's scripts have: an image then costs half as much to make and to read."""


@pytest.mark.long_except("0", reason="a part has more than twice the images that find nine of ten planted defects")
@pytest.mark.parametrize("part", range(_PARTS))
def test_every_crash_image_starts_and_keeps_its_promises(part: int) -> None:
    counts = run(1 + 1000 * part, IMAGES // _PARTS, steps=_STEPS)
    assert counts["images"] >= IMAGES // _PARTS
    kinds = [storage.short_name for storage in StorageClass] + [LOG_PER_LEDGER, SEVERAL]
    assert coverage(counts) == dict.fromkeys(kinds, 1.0)
    assert all(counts[loss.value] for loss in Loss)
    assert counts["double"] > 50
    assert counts["space"] > 5


@pytest.mark.long_except("1000", reason="nine of ten planted defects are found within as many images")
@pytest.mark.parametrize("images", [1000, IMAGES // _PARTS])
def test_no_crash_loses_anything_while_disks_of_several_directories_are_late(images: int) -> None:
    campaign = Campaign(lambda campaign: campaign.images >= images, script=DirectoriesScript, share=0.2)
    for seed in itertools.count(1):
        if campaign.images >= images:
            break
        campaign.run_script(seed)
    assert campaign.counts["double"] > images // 50


def test_coverage_is_what_was_crashed_of_what_the_disks_counted() -> None:
    campaign = Campaign(share=0.5)
    campaign.run_script(5)
    assert all(0.3 < covered < 0.7 for covered in coverage(campaign.counts).values())


def test_same_seed_makes_the_same_campaign_in_any_number_of_processes() -> None:
    counts = run(7, 120, steps=2)
    assert counts["scripts"] > 2, "each process has some"
    assert counts == run(7, 120, steps=2, processes=2)


def test_command_prints_one_line_of_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--images", "100"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["seed"] == 3
    assert printed["images"] >= 100
    assert printed["violations"] == 0
    assert set(printed["coverage"].values()) == {1.0}
