"""What tests of logs on bookies in this process share."""

from __future__ import annotations

import asyncio

from bkspark.log import Log, SegmentFacts, SegmentOwner
from bkspark.log.writer import LedgerOptions
from bkspark.metadata.memory import MemoryStore, MemoryTree

ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, end)]


async def read_all(log: Log, *places: object) -> list[bytes]:
    return [entry async for batch in log.read(*places) for entry in batch]


async def publish(log: Log, *payloads: list[bytes], owner: str = "job") -> list[int]:
    """Publish a ledger for each list of payloads; return their ids."""
    facts = []
    for partition, entries in enumerate(payloads):
        writer = await log.create_attempt(SegmentOwner("job", owner, partition=partition), LedgerOptions(1, 1, 1))
        if entries:
            await writer.append_many(entries)
        metadata = await writer.close()
        facts.append(SegmentFacts(writer.ledger_id, metadata.last_entry, metadata.length))
    await log.publish(facts)
    return [ledger.ledger_id for ledger in facts]


class NotingTree(MemoryTree):
    """A session that notes every call."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 40, 10.0)
        self.calls: list[str] = []
        for name in ("get", "exists", "children", "create", "set", "delete", "transaction", "watch", "watch_children"):
            setattr(self, name, self._noting(name))

    def _noting(self, name):
        call = getattr(self, name)

        def noting(*arguments, **named):
            self.calls.append(f"{name} {arguments[0]}")
            return call(*arguments, **named)

        return noting


async def until(condition, what: str) -> None:
    """Wait until a coroutine function returns true."""
    async with asyncio.timeout(120):
        while not await condition():
            await asyncio.sleep(0.01)
