"""What a move of a stopped bookie's data says about the time left, in virtual time."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment
from bkspark.errors import BookKeeperError
from bkspark.metadata.memory import MemoryTree
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from bookie_service.replication.operations import move_away
from tests.ledger.in_process import URI
from tests.replication.paused_workers import OPTIONS, play, register
from tests.replication.worker_parts import CLOSED, LOST, SPARE, Bench


def test_ledgers_whose_repair_fails_are_not_part_of_the_time_left() -> None:
    """Their bytes were divided by the rate of what others had moved, and the time left rose for ever."""

    async def test(bench: Bench) -> None:
        assert isinstance(bench.cluster.tree, MemoryTree)
        another = UnderreplicationStore(bench.cluster.tree.store.session(), MetadataUri.parse(URI))
        ledgers = bench.cluster.context.ledgers
        await ledgers.create(CLOSED)
        moved, stored = await ledgers.create(CLOSED)
        assert await another.lock(moved, "another")
        await register(bench, SPARE)
        lines: list[str] = []
        moving = asyncio.ensure_future(move_away(bench.cluster, LOST, OPTIONS, lines.append))
        await asyncio.sleep(0.6)
        await ledgers.write(moved, replace(CLOSED, fragments=(Fragment(0, (SPARE,)),)), stored.version)
        with pytest.raises(BookKeeperError):
            async with asyncio.timeout(3600):
                await moving
        (line,) = [line for line in lines if line.startswith("1 of 2 ledgers are moved")]
        assert re.search(r" MiB/s, time left unknown; 1 are blocked$", line), line

    play(test)
