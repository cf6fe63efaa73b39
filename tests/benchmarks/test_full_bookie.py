"""The benchmark of a bookie with very many ledgers runs and leaves nothing. No figure is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import full_bookie
from bookie_service.storage.ledgers.storage_class import StorageClass


@pytest.mark.cluster
@pytest.mark.long_except("StorageClass.SORTED", reason="the benchmark does the same with either storage")
@pytest.mark.parametrize("storage", [StorageClass.SORTED, StorageClass.DB])
def test_a_bookie_is_built_started_and_collected(
    storage: StorageClass, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--ledgers", "500", "--storage", storage.short_name, "--interval-s", "1.5", "--dir", str(tmp_path)]
    full_bookie.main(options)
    figures = json.loads(capsys.readouterr().out)
    assert (figures["ledgers"], figures["storage"]) == (500, storage.short_name)
    assert len(figures["start_s"]) == full_bookie.STARTS
    assert figures["dropped_after_s"] > 1.5, "there are two passes, the first after an interval"
    assert figures["read_reads"] > 0
    assert figures["quiet_read_reads"] > 0
    assert figures["loop_longest_turn_ms"] > 0
    assert 0 < figures["started_mib"] < figures["filled_mib"]
    assert list(tmp_path.iterdir()) == []
