"""Every operation boundary of seeded scripts, crashed under six loss policies: nothing promised is lost."""

from __future__ import annotations

import json

import pytest

from bookie_service.storage.storage_class import StorageClass
from tests.crash.campaign import main, run
from tests.crash.images import Loss

IMAGES = 30_000
"""A part of what the command runs: `python -m tests.crash.campaign --seed 1 --images 150000`."""
_PARTS = 6


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_crash_image_starts_and_keeps_its_promises(part: int) -> None:
    storage_class = list(StorageClass)[part % len(StorageClass)]
    counts = run(1 + 1000 * part, IMAGES // _PARTS, storage_class=storage_class)
    print(json.dumps(counts))
    assert counts["images"] >= IMAGES // _PARTS
    assert counts[storage_class.short_name] > IMAGES // _PARTS // 2
    assert all(counts[loss.value] for loss in Loss)
    assert counts["double"] > 50
    assert counts["space"] > 5


def test_same_seed_makes_the_same_campaign() -> None:
    assert run(7, 300) == run(7, 300)


def test_command_prints_one_line_of_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--images", "100"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["seed"] == 3
    assert printed["images"] >= 100
