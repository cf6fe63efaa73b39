"""The benchmark of the distance to the disk's limit runs and leaves nothing. No figure is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import write_limit
from benchmarks.bare_writes import bare_bytes_per_s
from benchmarks.thread_waits import ThreadWaits
from tests.polling import wait_until


@pytest.mark.long(reason="the benchmark runs by hand; its parts are tried below")
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


@pytest.mark.parametrize("fresh", [True, False])
def test_bare_writes_have_a_rate_and_leave_no_file(fresh: bool, tmp_path: Path) -> None:
    assert bare_bytes_per_s(tmp_path, 2, 0.1, fresh=fresh) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.access("/proc/self/stack", os.R_OK) or os.geteuid() != 0, reason="needs root")
def test_threads_are_found_where_they_are() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        waits = ThreadWaits({"here": os.getpid()})
        with waits.running_with("busy", busy.pid):
            wait_until(lambda: any(name.startswith("busy") for name in waits.shares()), "a sample of the busy process")
    finally:
        busy.kill()
        busy.wait()
    (shares,) = (shares for name, shares in waits.shares().items() if name.startswith("busy"))
    assert shares["running"] > 0
    assert shares["ran"] + shares["ready"] > 0
