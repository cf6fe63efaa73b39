"""The counts of stored ledgers and entries, which the metrics show."""

from __future__ import annotations

import asyncio
import errno
import os

from bookie_service.operation.stored_counts import StoredCounts


def test_last_counts_stay_while_a_disk_fails() -> None:
    failures: list[OSError] = []

    def count() -> tuple[int, int]:
        if failures:
            raise failures[0]
        return 3, 40

    now_s = 0.0
    counts = StoredCounts(count, lambda: now_s)

    async def refresh() -> None:
        nonlocal now_s
        await counts.refresh()
        failures.append(OSError(errno.EIO, os.strerror(errno.EIO), "positions"))
        now_s += 3600
        await counts.refresh()

    asyncio.run(refresh())
    assert (counts.ledgers, counts.entries) == (3, 40)
