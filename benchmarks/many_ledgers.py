"""Ten million ledgers in ZooKeeper and one million on a bookie: `python -m benchmarks.many_ledgers [--only NAMES]`.

    create    ledgers that the client's own code creates, one after the other, after the others
    list      the ids of all ledgers, as garbage collection, `bkspark ledger list` and the console read them
    audit     the auditor's search for the ledgers of a lost bookie: it reads the metadata of every ledger
    bookie    a bookie with `--on-bookie` ledgers of one entry: how long opening its storage takes, its memory, and how
              long garbage collection keeps its event loop (`benchmarks.collection`)

Each runs in a process of its own, and prints seconds, processor seconds, and by how many MiB the memory of the process
grew at most. In the first three the client, the ledger store and the auditor are real, and ZooKeeper is a model that
makes names and data up (`benchmarks.made_up_ledgers`): a real one holds ten million nodes in about 6 GiB of its own
memory, and every call takes a round trip more. In the last all is real but the metadata store and the connections.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.made_up_ledgers import URI, MadeUpTree, made_up_tree
from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import DigestType
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AutoRecoveryOptions

BOOKIES = tuple(f"bookie-{number:03d}:3181" for number in range(1000))
"""Each is in three of a thousand ledgers."""

Figures = dict[str, object]


async def create(tree: MadeUpTree, count: int) -> Figures:
    """Create ledgers as a client does: an id of the generator, and a node."""
    ledgers = LedgerStore(tree, MetadataUri.parse(URI))
    metadata = LedgerMetadata(3, 3, 2, (Fragment(0, BOOKIES[:3]),), digest=DigestType.CRC32C, ctime=1)
    for _ in range(count):
        await ledgers.create(metadata)
    return {"ledgers": tree.ledgers, "created": count}


async def list_all(tree: MadeUpTree, count: int) -> Figures:
    """List all ledgers."""
    ledgers, found = LedgerStore(tree, MetadataUri.parse(URI)), 0
    async for page in ledgers.pages():
        found += len(page)
    assert found == tree.ledgers, found
    return {"ledgers": found}


async def audit(tree: MadeUpTree, count: int) -> Figures:
    """Find and list the ledgers of a lost bookie."""
    for bookie in BOOKIES:
        await tree.create(f"/ledgers/cookies/{bookie}", b"4\n", make_parents=True)
        if bookie != BOOKIES[0]:
            await tree.create(f"/ledgers/available/{bookie}", make_parents=True)
    async with Client(URI, tree=tree) as client:
        repaired = await RepairedCluster.of(client)
        listed = await repaired.auditor("here", AutoRecoveryOptions()).audit([BOOKIES[0]])
    assert abs(listed - tree.ledgers * 3 // len(BOOKIES)) <= 3, listed
    return {"ledgers": tree.ledgers, "listed": listed}


MODEL: dict[str, Callable[[MadeUpTree, int], Awaitable[Figures]]] = {"create": create, "list": list_all, "audit": audit}
NAMES = (*MODEL, "bookie")


async def _measured(name: str, ledgers: int, created: int) -> Figures:
    tree = await made_up_tree(ledgers - created if name == "create" else ledgers, BOOKIES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, processor = time.perf_counter(), time.process_time()
    figures = await MODEL[name](tree, created)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        **figures,
        "seconds": round(time.perf_counter() - began, 1),
        "processor_s": round(time.process_time() - processor, 1),
        "grown_mib": round(grown / 1024, 1),
    }


def _in_process(module: str, *words: object) -> Figures:
    """Run a module in a process of its own, and return the JSON object that it prints."""
    line = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{' '.join(line)} ended with {done.returncode}")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), metavar="NAMES", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--ledgers", type=int, default=10_000_000, help="in the model of ZooKeeper")
    parser.add_argument("--created", type=int, default=1_000_000, help="how many of these are created")
    parser.add_argument("--on-bookie", type=int, default=1_000_000)
    parser.add_argument("--here", action="store_true", help="in this process: one name, not `bookie`")
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"--only {', '.join(sorted(unknown))}: it is one of {', '.join(NAMES)}")
    if arguments.here:
        print(json.dumps(asyncio.run(_measured(names[0], arguments.ledgers, arguments.created))))
        return
    for name in names:
        if name == "bookie":
            with tempfile.TemporaryDirectory() as folder:
                words = ("--ledgers", arguments.on_bookie, "--directory", Path(folder) / "store", "--target-ms", 1e9)
                # The process that builds has grown by that.
                _in_process("benchmarks.collection", *words, "--passes", 1)
                figures = _in_process("benchmarks.collection", *words)
        else:
            counts = ("--ledgers", arguments.ledgers, "--created", arguments.created)
            figures = _in_process("benchmarks.many_ledgers", "--here", "--only", name, *counts)
        print(json.dumps({"name": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
