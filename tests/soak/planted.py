"""A bookie with a defect, which a soak must report: `python -m tests.soak.planted DEFECT -m bookie_service ...`.

entry        entry 1000 of each ledger is acknowledged and not kept
descriptors  a descriptor a second stays open
memory       a MiB a second stays in use
log          twenty lines a second

EVERY_S in the environment is another time than the second.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bookie_service.storage.ledgers.base import BaseLedgerStorage
from tests.planting import around

LOST_ENTRY = 1_000
LEAK_BYTES = 1 << 20
LINES = 20
_PLANTED = contextlib.ExitStack()
"""Open for as long as the process lives."""
EVERY_S = "BKSPARK_PLANTED_EVERY_S"


def lose_an_entry() -> None:
    def insert(old: Any, self: BaseLedgerStorage, ledger: Any, ids: np.ndarray, addresses: np.ndarray) -> None:
        kept = ids != LOST_ENTRY
        if kept.any():
            old(self, ledger, ids[kept], addresses[kept])

    def add_single(
        old: Any, self: BaseLedgerStorage, ledger: Any, entry_id: int, octets: np.ndarray, at: int, size: int
    ) -> memoryview:
        if entry_id != LOST_ENTRY:
            return old(self, ledger, entry_id, octets, at, size)
        return memoryview(size.to_bytes(4, "big") + octets[at : at + size].tobytes())

    _PLANTED.enter_context(around(BaseLedgerStorage, "insert", insert))
    _PLANTED.enter_context(around(BaseLedgerStorage, "add_single", add_single))


def _again_and_again(act: Callable[[], object]) -> None:
    kept: list[object] = []

    def leak() -> None:
        while True:
            kept.append(act())
            time.sleep(float(os.environ.get(EVERY_S, "1")))

    threading.Thread(target=leak, daemon=True).start()


def leak_descriptors() -> None:
    _again_and_again(lambda: os.open(os.devnull, os.O_RDONLY))


def leak_memory() -> None:
    _again_and_again(lambda: b"x" * LEAK_BYTES)


def flood_the_log() -> None:
    def write() -> None:
        # Past the bookie's limit of lines a second.
        print("a line\n" * LINES, end="", file=sys.stderr, flush=True)

    _again_and_again(write)


DEFECTS: dict[str, Callable[[], None]] = {
    "entry": lose_an_entry,
    "descriptors": leak_descriptors,
    "memory": leak_memory,
    "log": flood_the_log,
}


def python_options(defect: str | None) -> tuple[str, ...]:
    """Return what goes before `-m bookie_service` for a bookie with this defect, or with none."""
    return () if defect is None else ("-m", "tests.soak.planted", defect)


def main() -> None:
    _, defect, _, module, *arguments = sys.argv
    DEFECTS[defect]()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
