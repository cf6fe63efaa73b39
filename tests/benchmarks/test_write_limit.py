"""The benchmark of the distance to the disk's limit runs and leaves nothing. No figure is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import write_limit


@pytest.mark.cluster
def test_a_round_prints_the_share_of_the_disk_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["write_limit", "--rounds", "1", "--seconds", "0.2", "--sizes", "1024", "--dir", str(tmp_path)]
    )
    write_limit.main()
    figures = json.loads(capsys.readouterr().out)["1024 B"]
    assert figures["share_of_limit"] > 0
    assert figures["written_bytes_per_entry"] > 3 * 1024, "three bookies write it to their journals at least"
    assert min(figures["client_rss_mib"], figures["bookie_rss_mib"]) > 10
    assert list(tmp_path.iterdir()) == []
