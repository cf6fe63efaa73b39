"""A storage whose only entry log is half live, and the ids of its logs."""

from __future__ import annotations

import os
from pathlib import Path

from bookie_service.storage.io.files import LocalFiles
from tests.bookie.collecting import Bench


def half_live(tmp_path: Path, files: LocalFiles | None = None) -> Bench:
    """Return a bench whose log 0 holds entries of ledger 1, which stays, and 2, which is gone."""
    bench = Bench(tmp_path, files)
    bench.put(1, range(20))
    bench.put(2, range(20))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(2)
    return bench


def log_ids(bench: Bench) -> list[int]:
    return sorted(int(os.path.basename(path).removesuffix(".log"), 16) for path in bench.log_paths)
