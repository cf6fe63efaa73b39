"""Full ledger directories at a start: a part of what `python -m tests.crash.full_disks` enumerates."""

from __future__ import annotations

import pytest

from tests.crash.full_disks import FullStarts
from tests.crash.parallel import rare_collections
from tests.crash.recoveries import KINDS

SHARE = 0.06


@pytest.mark.long_except(
    "SortedLedgerStorage",
    "DbLedgerStorage",
    "log per ledger",
    "one store for two directories",
    reason="InterleavedLedgerStorage has the files of SortedLedgerStorage",
)
@pytest.mark.parametrize("kind", KINDS)
def test_bookie_starts_with_full_ledger_directories_and_keeps_its_promises(kind: str) -> None:
    starts = FullStarts(SHARE)
    with rare_collections():
        starts.run_script(1, kind)
    assert starts.counts["starts"] > 50
    assert starts.counts["writable again"] > 20
