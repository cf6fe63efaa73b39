"""When a worker tries listed ledgers again, and what it keeps of them; in virtual time, where no bookie is needed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bkspark.errors import MetadataError
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from bkspark.net.pool import AVOID_FAILED_S
from bookie_service.replication import worker as worker_module
from tests.replication.paused_workers import EMPTY, play, register
from tests.replication.worker_parts import ALSO_LOST, CLOSED, LOST, SPARE, Bench


async def unlist(bench: Bench, ledger_id: int) -> None:
    """Take a ledger off the list, as another worker does that repaired it."""
    work = await bench.cluster.store.find(ledger_id)
    assert work is not None
    assert await bench.cluster.store.finish(work)


def test_pause_before_a_repair_that_failed_doubles_up_to_the_limit() -> None:
    async def test(bench: Bench) -> None:
        await bench.new(CLOSED)
        began_s = asyncio.get_running_loop().time()
        running = asyncio.ensure_future(bench.worker.run())
        times: list[float] = []
        while len(times) < 6:
            await asyncio.sleep(0.01)
            if bench.worker.failures > len(times):
                times.append(asyncio.get_running_loop().time() - began_s)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert [round(time) for time in times] == [0, 1, 3, 7, 12, 17]
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(left, timeout=0.01) if left else None
        assert asyncio.all_tasks() == {asyncio.current_task()}, "it reports nothing any more"

    play(test)


def test_ledger_that_left_the_list_is_tried_at_once_when_it_is_listed_again() -> None:
    async def test(bench: Bench) -> None:
        ledger_id, other = [await bench.new(CLOSED) for _ in range(2)]
        await bench.worker.repair_listed()
        await bench.worker.repair_listed()
        assert bench.worker.failures == 2
        assert bench.worker.report().postponed == 2
        await unlist(bench, ledger_id)
        await bench.worker.repair_listed()
        assert bench.worker.report().postponed == 1
        await bench.cluster.store.mark(ledger_id, [LOST], 0)
        await bench.worker.repair_listed()
        assert bench.worker.failures == 3
        assert [each.failures for each in bench.worker.report().postponements] == [1, 1]
        assert other in {each.ledger for each in bench.worker.report().postponements}

    play(test)


def test_repaired_ledger_is_neither_postponed_nor_in_progress() -> None:
    async def test(bench: Bench) -> None:
        ledger_id = await bench.new(EMPTY)
        assert not await bench.worker.repair(ledger_id)
        assert bench.worker.report().postponed == 1
        await register(bench, SPARE)
        assert await bench.worker.repair(ledger_id)
        report = bench.worker.report()
        assert (report.postponed, report.repairs) == (0, ())
        assert await bench.cluster.store.locked() == set()

    play(test)


def test_worker_remembers_a_limited_number_of_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "DEFERRED_MAX", 2)

    async def test(bench: Bench) -> None:
        ledgers = [await bench.new(CLOSED) for _ in range(3)]
        for ledger_id in (*ledgers, ledgers[2]):
            assert not await bench.worker.repair(ledger_id)
        assert sorted(each.ledger for each in bench.worker.report().postponements) == ledgers[1:]

    play(test)


def test_listing_without_bookies_concerns_those_that_do_not_serve_and_a_read_only_one_does() -> None:
    async def test(bench: Bench) -> None:
        await register(bench, SPARE)
        await register(bench, ALSO_LOST, read_only=True)
        fragment = replace(EMPTY.last_fragment, bookies=(LOST, ALSO_LOST))
        metadata = replace(EMPTY, ensemble_size=2, write_quorum=2, ack_quorum=2, fragments=(fragment,))
        ledger_id, _ = await bench.cluster.context.ledgers.create(metadata)
        await bench.cluster.store.mark(ledger_id, [], 0)
        assert await bench.worker.repair(ledger_id)
        assert (await bench.metadata(ledger_id)).last_fragment.bookies == (SPARE, ALSO_LOST)

    play(test)


class BrokenTree(MemoryTree):
    """A session in which one ledger's listing cannot be read, and that of another one is never answered."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.fails = self.hangs = "no ledger"

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if "/underreplication/" in path and path.endswith(self.fails):
            raise MetadataError("away")
        if "/underreplication/" in path and path.endswith(self.hangs):
            await asyncio.get_running_loop().create_future()
        return await super().get(path)


def test_failure_of_the_metadata_store_ends_the_other_repairs_too() -> None:
    trees: list[BrokenTree] = []

    def tree(store: MemoryStore) -> MemoryTree:
        trees.append(BrokenTree(store))
        return trees[0]

    async def test(bench: Bench) -> None:
        failing, hanging = [await bench.new(CLOSED) for _ in range(2)]
        trees[0].fails, trees[0].hangs = f"urL{failing:010d}", f"urL{hanging:010d}"
        with pytest.raises(MetadataError, match="away"):
            await bench.worker.repair_listed()
        assert await bench.cluster.store.locked() == set()

    play(test, tree)


def test_bookie_that_takes_no_copies_again_and_again_is_avoided_for_longer_than_its_connection() -> None:
    """It goes into quarantine, as one that fails writers does."""

    async def test(bench: Bench) -> None:
        await register(bench, SPARE)
        ledger_id = await bench.new(CLOSED)
        watcher = bench.cluster.context.watcher
        for number in range(8):
            assert not await bench.worker.repair(ledger_id)
            assert bench.worker.failures == number + 1
            await asyncio.sleep(AVOID_FAILED_S)
        assert SPARE in (await watcher.replacements()).topology.avoided

    play(test)
