"""What sealing and opening entries costs: processor time per entry, no socket, no disk.

    python -m benchmarks.envelopes [--rounds N]

Batches of 4 MiB. Prints one JSON object per digest and shape: microseconds per entry to `seal` for the wire, to check
(`open`), and to check and hand out as one batch (`open_to_batch`); medians of the rounds. "mixed" are sizes that differ
from entry to entry, 100 B on average, which cannot be checked as runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.wire.digest import DigestType, EntryDigest

BATCH_BYTES = 4 << 20
SHAPES = {"1 KiB": np.full(BATCH_BYTES // 1024, 1024), "100 B": np.full(BATCH_BYTES // 100, 100)}
SHAPES["mixed"] = np.arange(BATCH_BYTES // 100) % 101 + 50


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args(argv)
    for digest_type in (DigestType.CRC32C, DigestType.CRC32, DigestType.MAC):
        for shape, sizes in SHAPES.items():
            print(json.dumps({"digest": digest_type.name, "entries": shape, **_figures(digest_type, sizes, arguments)}))


def _figures(digest_type: DigestType, sizes: np.ndarray, arguments: argparse.Namespace) -> dict[str, float]:
    digest = EntryDigest(digest_type, b"")
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    batch = EntryBatch(os.urandom(int(offsets[-1])), offsets, ledger_id=7, first_entry=1000)
    sealed = digest.seal(batch, 999, 0)
    starts, ends, ids = sealed.offsets[:-1] + 4, sealed.offsets[1:], np.arange(1000, 1000 + len(sizes))
    works: dict[str, Callable[[], object]] = {
        "seal_us": lambda: digest.seal(batch, 999, 0),
        "open_us": lambda: digest.open_entries(sealed.buffer, starts, ends, 7, ids),
        "open_to_batch_us": lambda: digest.open_entries(sealed.buffer, starts, ends, 7, ids).to_batch(7, 1000),
    }
    return {name: round(_seconds(work, arguments.rounds) / len(sizes) * 1e6, 3) for name, work in works.items()}


def _seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median of processor time, after one round that fills tables."""
    work()
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
