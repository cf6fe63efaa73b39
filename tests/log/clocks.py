"""Logs whose clock a test sets."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from bkspark.client import Client
from bkspark.log import Log
from bkspark.log.heads import Change
from bkspark.log.store import LogStore
from bkspark.log.times import EMPTY
from bkspark.metadata.memory import MemoryTree


class Clock:
    """The clock of a process, which goes as it is set."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def log_of(client: Client, clock: Clock, name: str = "clicks") -> Log:
    log = client.log(name)

    async def store() -> LogStore:
        tree = await client.tree()
        assert isinstance(tree, MemoryTree)
        tree.store.now_ms = max(tree.store.now_ms, clock.now_ms)  # the metadata store's clock shows at least that
        return LogStore(tree, client.uri.root, clock)

    log.store = store  # type: ignore[method-assign]
    return log


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


async def without_times(head):
    return Change(replace(head, times=EMPTY), None)
