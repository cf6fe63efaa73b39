"""Adversarial metadata stores: whatever they tell, garbage collection drops no ledger that exists (B8).

A bookie with a dozen ledgers collects garbage again and again, and each time the metadata tree fails in another way:
an error, a session that expires, listings that lack some names or whole levels, with direct reads that fail, nodes that
vanish meanwhile, bytes that are not metadata, another cluster's tree. Between these passes ledgers are really deleted;
the next pass with a truthful tree must drop them.

`python -m tests.bookie.listings --seed S --listings N` prints one JSON line of counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections import Counter
from pathlib import Path
from random import Random

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import MetadataError, NoSuchNode, SessionExpired
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat, Tree
from bkspark.metadata.uri import MetadataUri
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.gc.garbage_collector import GarbageCollector
from tests.bookie.collecting import OF_OTHERS, UNLIMITED, Bench
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles

URI = MetadataUri.parse("zk+longhierarchical://h/ledgers")
US = "us:1"
IDS = (0, 1, 2, 255, 256, 9_999, 10_000, 65_536, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 62) + 5)
MODES = ("fail", "expire", "partial", "empty", "vanish", "garbage", "stranger", "no instance", "truth")


class DoubtfulTree(MemoryTree):
    """A tree that tells the truth until call `at` of a pass, and from then on what its mode says."""

    def __init__(self, store: MemoryStore, stranger: MemoryTree) -> None:
        super().__init__(store, store.session().session_id, 10.0)
        self._stranger = stranger
        self.mode = "truth"
        self.at = 0
        self.lasts = True
        self.random = Random(0)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        mode = self._mode()
        if mode == "stranger":
            return await self._stranger.get(path)
        if mode == "no instance" and path.endswith("INSTANCEID"):
            raise NoSuchNode(path)
        is_ledger = "/L" in path
        if mode == "partial" and is_ledger and self.random.random() < 0.5:
            raise MetadataError("the store does not answer in time")
        data, stat = await super().get(path)
        return (b"no metadata" if mode == "garbage" and is_ledger else data), stat

    async def exists(self, path: str) -> Stat | None:
        return await (self._stranger.exists(path) if self._mode() == "stranger" else super().exists(path))

    async def children(self, path: str) -> list[str]:
        mode = self._mode()
        if mode == "stranger":
            return await self._stranger.children(path)
        if mode == "vanish":
            raise NoSuchNode(path)
        names = await super().children(path)
        if mode == "empty":
            return []
        return [name for name in names if self.random.random() < 0.5] if mode == "partial" else names

    def _mode(self) -> str:
        """Count a call; return what this one does, or raise."""
        self.at -= 1
        if self.at > 0 or (self.at < 0 and not self.lasts):
            return "truth"
        if self.mode == "fail":
            raise MetadataError("the store does not answer in time")
        if self.mode == "expire":
            raise SessionExpired("the session is over")
        return self.mode


async def initialize(tree: Tree) -> None:
    """Make a cluster with a ledger of other bookies: no listing is empty because of what was deleted."""
    await BookieRegistry(tree, URI).initialize_cluster()
    metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("other:1",)),))
    await LedgerStore(tree, URI).create(metadata, ledger_id=OF_OTHERS)


async def collect_against(seed: int, listings: int) -> Counter[str]:
    """Run a number of passes.

    Raises:
        AssertionError: a ledger that exists was dropped, or one that was deleted stays.
    """
    random = Random(seed)
    counts: Counter[str] = Counter()
    store = MemoryStore()
    stranger = MemoryStore().session()
    tree = DoubtfulTree(store, stranger)
    for each in (tree, stranger):
        await initialize(each)
    ledgers = LedgerStore(tree, URI)
    metadata_view = LedgerMetadataView(tree, URI, US)
    await metadata_view.open()
    bench = Bench(Path("/bookie"), SimulatedFiles(SimulatedDisk()))
    now_s = 0.0
    collector = GarbageCollector(
        bench.store,
        bench.compactor,
        metadata_view,
        UNLIMITED,
        bench.callbacks(),
        clock_s=lambda: now_s,
    )
    live: set[int] = set()
    try:
        while counts["listings"] < listings:
            for ledger_id in set(IDS) - live:
                if ledger_id not in bench.store.index.ledger_ids():
                    await ledgers.create(LedgerMetadata(1, 1, 1, (Fragment(0, (US,)),)), ledger_id=ledger_id)
                    bench.put(ledger_id, range(1), size=10)
                    live.add(ledger_id)
            await bench.flush_all()
            for ledger_id in random.sample(IDS, random.randrange(3)):
                if ledger_id in live:
                    await ledgers.delete(ledger_id)
                    live.discard(ledger_id)
            fault = ("truth", 1, True)
            for _ in range(random.randint(1, 8)):
                # The same fault may last from one pass to the next: two passes must not agree on what is wrong.
                if random.random() < 0.35:
                    at = random.choice((1, random.randint(1, 60)))
                    fault = (random.choice(MODES), at, random.random() < 0.7)
                tree.mode, tree.at, tree.lasts = fault
                tree.random = random
                counts["listings"] += 1
                counts[tree.mode] += 1
                what = f"seed {seed}, listing {counts['listings']}, {tree.mode} from call {tree.at} on"
                now_s += UNLIMITED.interval_s if random.random() < 0.8 else 1.0
                report = await collector.run_pass(is_forced=random.random() < 0.1)
                counts["dropped"] += report.dropped_ledgers
                held = set(bench.store.index.ledger_ids().tolist())
                assert live <= held, f"{what}: ledgers {sorted(live - held)} exist and were dropped"
            tree.mode = "truth"
            for _ in range(2):
                now_s += UNLIMITED.interval_s
                counts["dropped"] += (await collector.run_pass(is_forced=False)).dropped_ledgers
            held = set(bench.store.index.ledger_ids().tolist())
            assert held == live, f"seed {seed}: ledgers {sorted(held - live)} were deleted and are still there"
    finally:
        await collector.stop()
        bench.store.close()
    return counts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bookie.listings", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--listings", type=int, default=10_000)
    options = parser.parse_args(arguments)
    # Each pass says what it keeps.
    logging.disable()
    try:
        counts = asyncio.run(collect_against(options.seed, options.listings))
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"seed": options.seed, **counts}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
