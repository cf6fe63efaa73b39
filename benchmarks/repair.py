"""How long a cluster takes to heal: 1 of 5 bookies is lost, with 1,000 small ledgers, and one large one.

    python -m benchmarks.repair [--ledgers N] [--mib M]

Prints one JSON object: `small_s`, seconds from the kill to every ledger at full Qw (the metadata session of 5 s that
the lost bookie leaves is in it), and how fast entries of 1 KiB of one ledger are re-replicated: `rate_of_copy`, beside
a plain copy of it through the client, in the same run. A writer and a reader are at work while the small ledgers are
repaired.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from bkspark.cli.child_process import ChildProcess
from bkspark.cli.cluster import repair_command
from bkspark.cli.cluster_process import ClusterProcess
from bkspark.client import Client
from bookie_service.replication.autorecovery import Cluster
from bookie_service.replication.operations import check_cluster
from bookie_service.replication.options import AutoRecoveryOptions

BOOKIES = 5
SESSION_TIMEOUT_MS = "5000"
PIECE = [bytes(1024)] * 1024
DEADLINE_S = 600.0


async def _named(client: Client, bookie: str) -> list[int]:
    """Return the ledgers that name a bookie."""
    found = []
    async for ledger_id in client.ledgers():
        metadata = await client.metadata(ledger_id)
        if any(bookie in fragment.bookies for fragment in metadata.fragments):
            found.append(ledger_id)
    return found


async def _write_small(client: Client, ledgers: int) -> None:
    for _ in range(ledgers):
        async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            await writer.append_many([b"small entry"] * 3)


async def _write_large(client: Client, mib: int) -> int:
    """Return the id of a ledger of so many MiB."""
    async with await client.create(ensemble=3, write_quorum=3, ack_quorum=3) as writer:
        for _ in range(mib):
            await writer.append_many(PIECE)
    return writer.ledger_id


async def _work(client: Client, counts: dict[str, int]) -> None:
    """Write and read entry by entry until cancelled."""
    writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
    reader = await client.open(writer.ledger_id)
    while True:
        last = await writer.append(b"meanwhile")
        counts["written"] += 1
        await reader.refresh()
        if reader.last_entry >= 0:
            counts["read"] += len(await reader.read(max(0, reader.last_entry - 1), min(last, reader.last_entry)))


async def _small(uri: str, cluster: ClusterProcess, ledgers: int, log: Path) -> dict[str, Any]:
    async with Client(uri) as client:
        await _write_small(client, ledgers)
        settings = {"metadataServiceUri": uri, "openLedgerRereplicationGracePeriod": "5000"}
        process = ChildProcess("autorecovery", repair_command("autorecovery", settings=settings, json=True), log)
        counts = {"written": 0, "read": 0}
        working = asyncio.ensure_future(_work(client, counts))
        try:
            next(process.lines(time.monotonic() + 60))
            lost = cluster.bookies[0]
            named = len(await _named(client, lost.id))
            began = time.monotonic()
            lost.kill()
            while await _named(client, lost.id):
                assert time.monotonic() - began < DEADLINE_S, "the ledgers are not repaired"
                await asyncio.sleep(0.5)
            seconds = time.monotonic() - began
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            found = await check_cluster(await Cluster.of(client), AutoRecoveryOptions(), lambda _: None)
            return {"ledgers": ledgers, "named": named, "small_s": round(seconds, 1), "ok": found.ok, **counts}
        finally:
            working.cancel()
            process.stop(10)


async def _large(uri: str, cluster: ClusterProcess, mib: int) -> dict[str, Any]:
    """Return how fast one slot of a large ledger is copied to another bookie, beside reading and writing it once."""
    async with Client(uri) as client:
        ledger_id = await _write_large(client, mib)
        named = (await client.metadata(ledger_id)).last_fragment.bookies
        lost = next(bookie for bookie in cluster.bookies[1:] if bookie.id in named)
        began = time.monotonic()
        async with await client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            reader = await client.open(ledger_id)
            async for batch in reader.batches():
                await writer.append_many(batch)
        copy_s = time.monotonic() - began
        await client.delete(writer.ledger_id)
        lost.stop()
        repaired = await Cluster.of(client)
        await repaired.store.mark(ledger_id, [lost.id], 0)
        began = time.monotonic()
        assert await repaired.worker("benchmark", AutoRecoveryOptions()).repair_listed([ledger_id]) == 1
        repair_s = time.monotonic() - began
        return {
            "mib": mib,
            "copy_s": round(copy_s, 2),
            "repair_s": round(repair_s, 2),
            "rate_of_copy": round(copy_s / repair_s, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.repair", description=__doc__.partition("\n")[0])
    parser.add_argument("--ledgers", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=100)
    options = parser.parse_args()
    settings = {"zkTimeout": SESSION_TIMEOUT_MS}
    with (
        tempfile.TemporaryDirectory() as folder,
        ClusterProcess(BOOKIES, Path(folder) / "cluster", settings=settings) as cluster,
    ):
        small = asyncio.run(_small(cluster.uri, cluster, options.ledgers, Path(folder) / "autorecovery.log"))
        cluster.bookies[0].restart()
        large = asyncio.run(_large(cluster.uri, cluster, options.mib))
    print(json.dumps({**small, **large}))


if __name__ == "__main__":
    main()
