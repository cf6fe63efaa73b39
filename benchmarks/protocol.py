"""The client and its protocol by themselves: adds to sinks, recovery, orphaned ledgers, opening a log, listing ledgers.

    python -m benchmarks.protocol [--json] [--only NAME[,NAME]] [--orphans N] [--listed N] [--rounds N]

Starts ZooKeeper and four bookies, E3/Qw3/Qa2, entries of 1 KiB. Every figure in seconds has the processor time of this
process beside it (`client_cpu_s`), as times by the clock mean little on a busy machine.

    adds        as `python -m benchmarks.client`: three sinks answer at once
    recovery    a ledger whose writer died with 3,000 entries in flight, the median of the rounds; then with one of its
                bookies killed, and with one stopped (SIGSTOP: one read time-out, `read_timeout_s`, is in it)
    orphans     a number of open ledgers, whose writers died, recovered by one client, some at a time
    log         metadata operations of opening a log for writing, by a new client and by one that did before
    listing     ledger ids streamed from a tree that makes the names up, and the memory that this takes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import client as sinks
from benchmarks.made_up_ledgers import URI, made_up_tree
from bkspark.cli.cluster_process import BookieProcess, ClusterProcess
from bkspark.client import Client
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree

BOOKIES = 4
QUORUMS: Mapping[str, Any] = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2}
IN_FLIGHT = 3000
PAYLOAD = os.urandom(1024)
ORPHANS_AT_ONCE = 16
TREE_CALLS = ("get", "exists", "children", "create", "set", "delete", "transaction", "watch", "watch_children")
NAMES = ("adds", "recovery", "orphans", "log", "listing")

Figures = dict[str, Any]


async def timed(work: Awaitable[Any]) -> dict[str, float]:
    """Return how long `work` takes, and the processor time of this process in it."""
    began, processor = time.perf_counter(), time.process_time()
    await work
    seconds, used = time.perf_counter() - began, time.process_time() - processor
    return {"seconds": round(seconds, 3), "client_cpu_s": round(used, 3)}


async def dead_writers_ledger(uri: str, entries: int) -> tuple[int, tuple[str, ...]]:
    """Leave an open ledger whose entries all carry LAC -1, as nothing was acknowledged yet when they were sealed."""
    async with Client(uri) as client:
        writer = await client.create(**QUORUMS)
        await (await writer.submit([PAYLOAD] * entries))
        bookies = writer.metadata.last_fragment.bookies
        # The slowest bookie has its copies, too, before the writer dies.
        await asyncio.sleep(0.3)
        writer.abandon()
        return writer.ledger_id, bookies


async def recovered(uri: str, ledger_id: int, entries: int) -> dict[str, float]:
    """Recover a ledger with a new, connected client."""
    async with Client(uri) as client:

        async def work() -> None:
            metadata = await client.recover(ledger_id)
            assert metadata.last_entry == entries - 1, metadata

        return await timed(work())


async def recovery(cluster: ClusterProcess, rounds: int) -> Figures:
    """Return the figures of recovery."""
    plain = []
    for _ in range(rounds):
        ledger_id, _ = await dead_writers_ledger(cluster.uri, IN_FLIGHT)
        plain.append(await recovered(cluster.uri, ledger_id, IN_FLIGHT))
    median = {name: statistics.median(one[name] for one in plain) for name in plain[0]}
    return {
        "entries": IN_FLIGHT,
        "rounds": rounds,
        "plain": median,
        "one_killed": await _with_one(cluster, lambda bookie: bookie.kill(), lambda bookie: bookie.restart()),
        "one_stopped": await _with_one(
            cluster, lambda it: os.kill(it.pid, signal.SIGSTOP), lambda it: os.kill(it.pid, signal.SIGCONT)
        ),
    }


async def _with_one(
    cluster: ClusterProcess, down: Callable[[BookieProcess], None], up: Callable[[BookieProcess], None]
) -> dict[str, float]:
    ledger_id, named = await dead_writers_ledger(cluster.uri, IN_FLIGHT)
    bookie = next(it for it in cluster.bookies if it.id == named[0])
    down(bookie)
    try:
        return await recovered(cluster.uri, ledger_id, IN_FLIGHT)
    finally:
        up(bookie)


async def orphans(cluster: ClusterProcess, count: int) -> Figures:
    """Return how long it takes to recover many ledgers of a client that died."""
    async with Client(cluster.uri) as client:
        ids = []
        for _ in range(count):
            writer = await client.create(**QUORUMS)
            await writer.append_many([PAYLOAD] * 3)
            writer.abandon()
            ids.append(writer.ledger_id)
    async with Client(cluster.uri) as client:
        slots = asyncio.Semaphore(ORPHANS_AT_ONCE)

        async def one(ledger_id: int) -> None:
            async with slots:
                assert (await client.recover(ledger_id)).last_entry == 2

        async def work() -> None:
            await asyncio.gather(*map(one, ids))

        return {"ledgers": count, "at_once": ORPHANS_AT_ONCE, **await timed(work())}


async def log_open(cluster: ClusterProcess) -> Figures:
    """Return how many metadata operations it takes to open a log for writing."""
    figures: Figures = {}
    async with Client(cluster.uri) as client, await client.log("operations").open_for_writing() as writer:
        await writer.append(PAYLOAD)
    tree = await open_tree(MetadataUri.parse(cluster.uri))
    calls: list[str] = []
    for name in TREE_CALLS:
        setattr(tree, name, _noting(getattr(tree, name), name, calls))
    async with Client(cluster.uri, tree=tree) as client:
        for who in ("new_client", "again"):
            calls.clear()
            writer = await client.log("operations").open_for_writing()
            figures[who] = len(calls)
            await writer.append(PAYLOAD)
            writer.abandon()
    return figures


def _noting(call: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    def noting(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return call(*arguments, **named)

    return noting


async def listing(ledgers: int) -> Figures:
    """Return what listing costs on the client's side."""
    tree = await made_up_tree(ledgers)
    listed = 0

    async def work() -> None:
        nonlocal listed
        async for _ in LedgerStore(tree, MetadataUri.parse(URI)).ids():
            listed += 1

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = await timed(work())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert listed == ledgers, listed
    return {"ledgers": listed, "grown_mib": round(grown / 1024, 1), **figures}


def on_cluster(names: Sequence[str], arguments: argparse.Namespace) -> Figures:
    """Return the figures that need bookies."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, ClusterProcess(BOOKIES, Path(folder)) as cluster:
        if "recovery" in names:
            figures["recovery"] = asyncio.run(recovery(cluster, arguments.rounds))
        if "orphans" in names:
            figures["orphans"] = asyncio.run(orphans(cluster, arguments.orphans))
        if "log" in names:
            figures["log_open_operations"] = asyncio.run(log_open(cluster))
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object; else a line for each figure")
    parser.add_argument("--only", metavar="NAMES", default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--orphans", type=int, default=1000)
    parser.add_argument("--listed", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="of plain recovery")
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"--only {', '.join(sorted(unknown))}: it is one of {', '.join(NAMES)}")
    # In a process that has done nothing else, so that its memory is the listing's.
    figures: Figures = {"listing": asyncio.run(listing(arguments.listed))} if "listing" in names else {}
    if "adds" in names:
        figures["adds"] = sinks.figures([])
    if {"recovery", "orphans", "log"} & {*names}:
        figures.update(on_cluster(names, arguments))
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name}: {json.dumps(value)}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
