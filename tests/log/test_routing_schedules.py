"""Routed commits through random schedules: processes that end, lost answers, and others that change the logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bkspark.errors import DataLoss, MetadataError
from bkspark.log.formats import Publisher, SegmentOwner
from bkspark.log.routing import Part, RoutedCommits
from bkspark.log.store import LogStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import ANY_VERSION, Operation, Stat
from tests.log.world import closed

LOGS = ("a", "b", "c", "d")
EPOCHS = 6
QUERIES = ("q1", "q2", "q3")


class Ended(BaseException):
    """The process ends here."""


class TroubledTree(MemoryTree):
    """A session in which others take turns before each call, answers of writes are lost, and its process may end."""

    def __init__(self, server: MemoryStore, chance: random.Random, trouble: float) -> None:
        super().__init__(server, session_id=chance.randrange(1, 1 << 60), timeout_s=10.0)
        self._chance = chance
        self._trouble = trouble

    async def _take_turns(self) -> None:
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)

    def _fail(self) -> None:
        if self._chance.random() < self._trouble:
            raise (
                MetadataError("the connection to the metadata store was lost") if self._chance.random() < 0.7 else Ended
            )

    async def get(self, path: str) -> tuple[bytes, Stat]:
        await self._take_turns()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        await self._take_turns()
        return await super().children(path)

    async def exists(self, path: str) -> Stat | None:
        await self._take_turns()
        return await super().exists(path)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._take_turns()
        await super().delete(path, version)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await self._take_turns()
        self._fail()
        await super().transaction(operations)
        self._fail()


@dataclass
class Schedule:
    """Queries that commit their epochs, each from two drivers at once, and others that work on the same logs."""

    seed: int
    server: MemoryStore = field(default_factory=MemoryStore)
    attempts: dict[tuple[str, int], list[dict[str, int]]] = field(default_factory=dict)
    singles: list[tuple[str, int]] = field(default_factory=list)
    next_ledger: int = 0
    running: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        plan = random.Random(self.seed + 1)
        self.logs = {
            (query, epoch): plan.sample(LOGS, plan.randrange(1, len(LOGS) + 1))
            for query in QUERIES
            for epoch in range(EPOCHS)
        }

    def store(self, trouble: float) -> LogStore:
        return LogStore(TroubledTree(self.server, self.chance, trouble), "/ledgers")

    def ledger(self) -> int:
        self.next_ledger += 1
        return self.next_ledger

    async def run(self) -> None:
        for log in LOGS:
            await self.store(0).create(log)
        drivers = [self._drive(query) for query in QUERIES for _ in range(2)]
        self.running = len(drivers)
        await asyncio.gather(*drivers, self._append(), self._watch())
        await self._check()

    async def _drive(self, query: str) -> None:
        """Commit all epochs; go on in another process where one ended."""
        for epoch in range(EPOCHS):
            while not await self._commit(query, epoch):
                pass
        self.running -= 1

    async def _commit(self, query: str, epoch: int) -> bool:
        store, ids = self.store(0.05), {log: self.ledger() for log in self.logs[query, epoch]}
        self.attempts.setdefault((query, epoch), []).append(ids)
        owner = SegmentOwner("query", query, epoch, 0, self.chance.randrange(9))
        try:
            for log, ledger_id in ids.items():
                await store.attempts.add(log, ledger_id, owner)
            parts = [Part(log, tuple(closed(ledger_id))) for log, ledger_id in ids.items()]
            await RoutedCommits(store).publish(parts, query, Publisher(query, epoch))
        except (MetadataError, DataLoss, Ended):
            return False  # Spark begins the epoch again
        return True

    async def _append(self) -> None:
        """Append to single logs, and regard attempts as dead."""
        while self.running:
            log, store = self.chance.choice(LOGS), self.store(0)
            if self.chance.random() < 0.3:
                await store.attempts.condemn(log, lambda pending, _: pending.owner.kind == "query")
                continue
            ledger_id = self.ledger()
            await store.attempts.add(log, ledger_id, SegmentOwner("job", "j"))
            await store.append_ledgers(log, closed(ledger_id), publisher=Publisher(f"s{log}", ledger_id))
            self.singles.append((log, ledger_id))

    async def _content(self) -> dict[str, list[int]]:
        async def names() -> Sequence[str]:
            return LOGS

        found = await RoutedCommits(self.store(0)).snapshots(names)
        return {each.name: [listed.ledger_id for listed in await each.ledgers()] for each in found}

    async def _watch(self) -> None:
        while self.running:
            self._look(await self._content())

    def _look(self, content: dict[str, list[int]]) -> dict[tuple[str, int], int]:
        """Return how often each epoch is there; half of an attempt, or two attempts of an epoch, are wrong."""
        counts = {}
        for key, attempts in self.attempts.items():
            seen = [sum(ledger_id in content[log] for log, ledger_id in ids.items()) for ids in attempts]
            for count, ids in zip(seen, attempts):
                assert count in (0, len(ids)), f"seed {self.seed}: half of {key}"
            counts[key] = sum(map(bool, seen))
            assert counts[key] <= 1, f"seed {self.seed}: {key} twice"
        return counts

    async def _check(self) -> None:
        content = await self._content()
        assert set(self._look(content).values()) == {1}, f"seed {self.seed}: an epoch is missing"
        assert all(ledger_id in content[log] for log, ledger_id in self.singles)
        epoch_of = {
            ledger_id: key for key, attempts in self.attempts.items() for ids in attempts for ledger_id in ids.values()
        }
        for ids in content.values():
            assert len(set(ids)) == len(ids)
            for query in QUERIES:
                epochs = [epoch_of[each][1] for each in ids if each in epoch_of and epoch_of[each][0] == query]
                assert epochs == sorted(epochs), f"seed {self.seed}: epochs of {query} are out of order"


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 25))])
def test_every_epoch_is_in_all_of_its_logs_once_and_in_order(seed: int) -> None:
    asyncio.run(Schedule(seed).run())
