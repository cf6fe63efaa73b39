"""Adversarial metadata stores against garbage collection; the command `tests.bookie.listings` runs 10,000 and more."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager
from typing import Any

import pytest

from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from tests.bookie.listings import MODES, collect_against, main
from tests.planting import changed, replaced


async def _nothing(self: LedgerMetadataView) -> None:
    """Check nothing."""


async def _always(self: LedgerMetadataView, ledger_id: int) -> bool:
    return True


def _swallowing(old: Any) -> Any:
    async def is_deleted(self: LedgerMetadataView, ledger_id: int) -> bool:
        try:
            return await old(self, ledger_id)
        except Exception:
            return True

    return is_deleted


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.long(reason="another seed of the same search"))])
def test_no_live_ledger_is_dropped_whatever_the_metadata_store_reports(seed: int) -> None:
    """B8."""
    counts = asyncio.run(collect_against(seed, 250))
    assert all(counts[mode] > 2 for mode in MODES)
    assert counts["dropped"] > 20, "deleted ledgers are dropped as soon as the store tells the truth"


@pytest.mark.parametrize(
    "plant",
    [
        replaced(LedgerMetadataView, "_check_instance", _nothing),
        replaced(LedgerMetadataView, "is_deleted", _always),
        changed(LedgerMetadataView, "is_deleted", _swallowing),
    ],
    ids=["another cluster's tree is believed", "one proof is enough", "a failed read is a proof"],
)
def test_defects_are_noticed(plant: AbstractContextManager[None]) -> None:
    with plant, pytest.raises(AssertionError, match="exist and were dropped"):
        asyncio.run(collect_against(1, 400))


def test_command_prints_one_line_of_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5", "--listings", "20"]) == 0
    assert json.loads(capsys.readouterr().out)["listings"] >= 20
