"""A bookie that lacks a package of `bkspark[bookie]` names the extra in one line; it needs nothing of Spark's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bookie.child import BookieChild
from tests.missing_packages import run_module_without

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("module", "settings"),
    [("rocksdict", {"ledgerStorageClass": "DbLedgerStorage"}), ("h11", {"httpServerEnabled": "true"})],
)
def test_the_extra_is_named_in_one_line(tmp_path: Path, uri: str, module: str, settings: dict[str, str]) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri, **settings, httpServerPort="0")
    words = [word for key, value in bookie.settings.items() for word in ("--set", f"{key}={value}")]
    done = run_module_without([module], "bookie_service", words)
    assert done.returncode == 1
    complaints = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert complaints == [f"bookie: {module} is not installed: pip install 'bkspark[bookie]'"]
