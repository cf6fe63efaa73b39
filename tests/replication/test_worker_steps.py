"""What a worker does with one listed ledger, decision by decision, where no bookie is needed for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.client import Client
from bkspark.core.metadata import LedgerState
from bkspark.errors import NotEnoughBookies
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AutoRecoveryOptions, RepairOptions
from bookie_service.replication.worker import FAILURES_REPORTED
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.replication.worker_parts import ALSO_LOST, CLOSED, LOST, OPENED, SPARE, Bench

OPTIONS = AutoRecoveryOptions(repair=RepairOptions(grace_s=3600.0))


def play(
    tmp_path: Path,
    test: Callable[[Bench], Awaitable[None]],
    options: AutoRecoveryOptions = OPTIONS,
    tree: Callable[[MemoryStore], MemoryTree] = MemoryStore.session,
) -> None:
    async def play_in(cluster: InProcessCluster) -> None:
        client = Client(URI, tree=tree(cluster.store))
        try:
            await test(Bench(await RepairedCluster.of(client), options))
        finally:
            await client.close()

    run(tmp_path, play_in, bookies=0)


def test_an_open_ledger_that_waits_for_its_writer_stays_listed_and_is_not_locked(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        ledger_id = await bench.new(OPENED)
        assert not await bench.worker.repair(ledger_id)
        assert await bench.listed() == [ledger_id]
        assert await bench.cluster.store.locked() == set()
        assert (await bench.metadata(ledger_id)).state is LedgerState.OPEN
        assert bench.worker.repaired == 0

    play(tmp_path, test)


def test_the_grace_period_of_a_writer_that_goes_on_begins_again(tmp_path: Path) -> None:
    """A changed last fragment shows that the writer lives, even if it names a lost bookie, too."""

    async def test(bench: Bench) -> None:
        ledger_id = await bench.new(OPENED)
        assert not await bench.worker.repair(ledger_id)
        ledgers = bench.cluster.context.ledgers
        stored = await ledgers.read(ledger_id)
        await ledgers.write(ledger_id, stored.metadata.with_ensemble(0, (ALSO_LOST,)), stored.version)
        await bench.cluster.store.mark(ledger_id, [ALSO_LOST], 0)
        assert not await bench.worker.repair(ledger_id)
        assert (await bench.metadata(ledger_id)).state is LedgerState.OPEN

    play(tmp_path, test, AutoRecoveryOptions(repair=RepairOptions(grace_s=1e-6)))


def test_a_failure_is_raised_when_every_ledger_has_failed_a_few_times(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        ledgers = [await bench.new(CLOSED) for _ in range(2)]
        for number in range(FAILURES_REPORTED):
            bench.worker.raise_failure(ledgers)
            assert not await bench.worker.repair(ledgers[0])
            assert bench.worker.failures == number + 1
        bench.worker.raise_failure(ledgers)
        with pytest.raises(NotEnoughBookies):
            bench.worker.raise_failure(ledgers[:1])
        bench.worker.raise_failure([])

    play(tmp_path, test)


def test_a_worker_leaves_the_list_alone_while_autorecovery_is_disabled(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        ledger_id = await bench.new(CLOSED)
        await bench.cluster.store.set_enabled(False)
        assert await bench.worker.repair_listed() == 0
        assert bench.worker.failures == 0
        assert await bench.worker.repair_listed({ledger_id}) == 0
        assert bench.worker.failures == 1, "an operator asked for it"
        await bench.cluster.store.set_enabled(True)
        other = await bench.new(CLOSED)
        assert await bench.worker.repair_listed() == 0
        assert bench.worker.failures == 2
        assert await bench.listed() == [ledger_id, other]

    play(tmp_path, test)


class NewSession(MemoryTree):
    """A session that is replaced by another one when the ledger's metadata have been read."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.is_replaced = False

    @property
    def session_id(self) -> int:
        return super().session_id + self.is_replaced


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_worker_that_lost_its_lock_with_its_session_changes_nothing(tmp_path: Path, is_replaced: bool) -> None:
    """Another worker may have the lock by then."""
    trees: list[NewSession] = []

    def tree(store: MemoryStore) -> MemoryTree:
        trees.append(NewSession(store))
        return trees[0]

    async def test(bench: Bench) -> None:
        registry = bench.cluster.context.registry
        await registry.register(SPARE, BookieAddress("10.0.0.2", 3181))
        # It has no entries, so that a change of its metadata is all that there is to do.
        ledger_id = await bench.new(replace(CLOSED, last_entry=-1, length=0))
        reading = bench.cluster.context.watcher.replacements

        async def replacements() -> object:
            trees[0].is_replaced = is_replaced
            return await reading()

        bench.cluster.context.watcher.replacements = replacements  # type: ignore[method-assign, assignment]
        assert await bench.worker.repair(ledger_id) == (not is_replaced)
        named = (await bench.metadata(ledger_id)).last_fragment.bookies
        assert named == ((LOST,) if is_replaced else (SPARE,))

    play(tmp_path, test, tree=tree)


def test_a_worker_spreads_its_copies_over_the_bookies_that_can_take_them(tmp_path: Path) -> None:
    """No bookie is needed: the ledgers have no entries, so only their metadata change."""
    spares = [f"10.0.1.{number}:3181" for number in range(8)]

    async def test(bench: Bench) -> None:
        context = bench.cluster.context
        context.random.seed(1)
        for bookie in spares:
            await context.registry.register(bookie, BookieAddress(bookie.partition(":")[0], 3181))
        ledgers = [await bench.new(replace(CLOSED, last_entry=-1, length=0)) for _ in range(64)]
        assert await bench.worker.repair_listed() == len(ledgers)
        received = Counter([(await bench.metadata(each)).last_fragment.bookies[0] for each in ledgers])
        assert set(received) == set(spares)
        assert max(received.values()) <= 10

    play(tmp_path, test)
