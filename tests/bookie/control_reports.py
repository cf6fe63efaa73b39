"""What a control socket of a test answers, and where it lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bookie_service.gc.collection_status import PassReport

REPORT = PassReport(dropped_ledgers=3, removed_logs=2, freed_bytes=1000, kept_because="a reason")


async def report(request: Mapping[str, Any], who: str) -> dict[str, Any]:
    """Carry out every request as a garbage collection."""
    return dataclasses.asdict(REPORT)


def ledgers(tmp_path: Path, name: str = "ledgers") -> list[str]:
    (tmp_path / name / "current").mkdir(parents=True)
    return [str(tmp_path / name)]
