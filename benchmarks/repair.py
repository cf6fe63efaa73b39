"""How long a cluster takes to heal, and what that costs others: 1 of 5 bookies is lost, with 1,000 small ledgers.

    python -m benchmarks.repair [--ledgers N] [--mib M] [--turns N] [--turn-seconds S] [--rate BYTES] [--only PART]

Prints one JSON object, of the parts small, large and foreground:

* `small_s`: seconds from the kill to every ledger at full Qw, a writer and a reader at work; the metadata session of
  5 s that the lost bookie leaves is in it.
* `rate_of_copy`: how fast entries of 1 KiB of one ledger are re-replicated, beside a plain copy through the client.
* `foreground_cost`: the share of a writer's and a reader's throughput that is gone while a lost bookie's ledgers are
  copied. They work as fast as they can in turns, repair enabled and disabled, in one run; `--rate` is
  replicationRateByBytes (default: no limit).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bkspark.cli.child_process import ChildProcess
from bkspark.cli.cluster import repair_command
from bkspark.cli.cluster_process import ClusterProcess
from bkspark.client import Client
from bkspark.metadata.underreplication import UnderreplicationStore
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.operations import check_cluster
from bookie_service.replication.options import AutoRecoveryOptions

BOOKIES = 5
SESSION_TIMEOUT_MS = "5000"
PIECE = [bytes(1024)] * 1024
DEADLINE_S = 600.0
PIECE_MIB = 4
"""Size of the ledgers that are repaired in turns: a worker that is asked to stop finishes its present ledger."""
PIECES_A_TURN = 50
"""So many that there is something left to repair in every turn."""
ADDED_AT_ONCE = 64


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
    """Return the id of a ledger of this many MiB."""
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
            found = await check_cluster(await RepairedCluster.of(client), AutoRecoveryOptions(), lambda _: None)
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
        repaired = await RepairedCluster.of(client)
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


async def _foreground(uri: str, cluster: ClusterProcess, options: argparse.Namespace, log: Path) -> dict[str, Any]:
    """Return what a writer and a reader lose while autorecovery copies what a lost bookie held."""
    async with Client(uri) as client, Client(uri) as operator:
        store = UnderreplicationStore(await operator.tree(), operator.uri)
        await store.prepare()
        # By now every worker was asked to wait, so that nothing is repaired before its turn.
        await store.set_enabled(False)
        for _ in range(options.turns * PIECES_A_TURN):
            await _write_large(client, PIECE_MIB)
        read_id = await _write_large(client, PIECE_MIB)
        lost = cluster.bookies[-1]
        lost.stop()
        settings = {"metadataServiceUri": uri, "replicationRateByBytes": str(options.rate)}
        process = ChildProcess("autorecovery", repair_command("autorecovery", settings=settings, json=True), log)
        try:
            next(process.lines(time.monotonic() + 60))
            turns: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            copied = len(await _named(client, lost.id))
            for turn in range(2 * options.turns):
                is_repairing = turn % 2 == 1
                await store.set_enabled(is_repairing)
                turns[is_repairing].append(await _turn(client, read_id, options.turn_seconds))
            left = len(await _named(client, lost.id))
        finally:
            process.stop(10)
    rates = {
        what: {on: statistics.median(one[what] for one in turns[on]) for on in turns} for what in ("adds", "reads")
    }
    return {
        "foreground_ledgers_moved": copied - left,
        "foreground_ledgers_left": left,
        "foreground_mib_per_s": round((copied - left) * PIECE_MIB / (options.turns * options.turn_seconds), 1),
        "foreground_cost": {what: round(1 - rate[True] / rate[False], 2) for what, rate in rates.items()},
        "foreground_per_s": {what: round(rate[False]) for what, rate in rates.items()},
    }


async def _turn(client: Client, read_id: int, seconds: float) -> dict[str, float]:
    """Return entries a second that are added, and read, side by side."""
    counts = {"adds": 0, "reads": 0}
    ends = time.monotonic() + seconds

    async def add() -> None:
        async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            while time.monotonic() < ends:
                await writer.append_many(PIECE[:ADDED_AT_ONCE])
                counts["adds"] += ADDED_AT_ONCE
        await client.delete(writer.ledger_id)

    async def read() -> None:
        while time.monotonic() < ends:
            async for batch in (await client.open(read_id, recover=False)).batches():
                counts["reads"] += len(batch)
                if time.monotonic() >= ends:
                    break

    await asyncio.gather(add(), read())
    return {what: count / seconds for what, count in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.repair", description=__doc__.partition("\n")[0])
    parser.add_argument("--ledgers", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=100, help="of the large ledger (default 100)")
    parser.add_argument("--turns", type=int, default=5, help="with repair, and as many without (default 5)")
    parser.add_argument("--turn-seconds", type=float, default=6.0, help="default 6")
    parser.add_argument("--rate", type=int, default=-1, help="replicationRateByBytes in the foreground part")
    parser.add_argument("--only", choices=("small", "large", "foreground"), help="one part")
    options = parser.parse_args()
    settings = {"zkTimeout": SESSION_TIMEOUT_MS}
    with (
        tempfile.TemporaryDirectory() as folder,
        ClusterProcess(BOOKIES, Path(folder) / "cluster", settings=settings) as cluster,
    ):
        report: dict[str, Any] = {}
        log = Path(folder) / "autorecovery.log"
        if options.only in (None, "small"):
            report |= asyncio.run(_small(cluster.uri, cluster, options.ledgers, log))
            cluster.bookies[0].restart()
        if options.only in (None, "large"):
            report |= asyncio.run(_large(cluster.uri, cluster, options.mib))
        if options.only in (None, "foreground"):
            report |= asyncio.run(_foreground(cluster.uri, cluster, options, log))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
