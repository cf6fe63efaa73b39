"""Registered readers of a log (consumers): retention keeps what they have not read. Their nodes: `consumer_nodes`."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    DataLoss,
    MetadataAccessDenied,
    MetadataError,
    MetadataFormat,
    MetadataVersion,
    NoSuchNode,
)
from bkspark.ids import LOG_NAME_RULE
from bkspark.ledger import arguments
from bkspark.log.consumer_nodes import CONSUMERS, Consumer, decode_consumer, encode_consumer, is_consumer_name
from bkspark.log.formats import LogHead, log_path
from bkspark.log.heads import Change, HeadStore, new_token
from bkspark.log.positions import Position
from bkspark.log.reading import OpenListed
from bkspark.log.snapshot import LogSegment, LogSnapshot
from bkspark.metadata.tree import Create, Operation, Set
from bkspark.tasks import each_of

CONSUMERS_MAX = 1_000
"""Registered readers of one log, at most: each change that removes ledgers reads all of them."""
ADVANCE_TRIES_MAX = 3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class ConsumerStore:
    """The nodes of registered readers of logs."""

    def __init__(self, heads: HeadStore) -> None:
        self._heads = heads

    async def all(self, log: str) -> list[Consumer]:
        """Return the registered readers of a log, by name. Raises as `listed` returns."""
        found = []
        for _, consumer in await self.listed(log):
            if isinstance(consumer, BookKeeperError):
                raise consumer
            found.append(consumer)
        return found

    async def listed(self, log: str) -> list[tuple[str, Consumer | BookKeeperError]]:
        """Return the name of each registered reader of a log, with the reader, or with the error if its node cannot be
        read: MetadataFormat, MetadataAccessDenied, or ConfigurationError for an unusable name."""
        try:
            names = await self._heads.tree.children(f"{log_path(log)}/{CONSUMERS}")
        except NoSuchNode:
            return []
        found = await each_of(partial(self._find_or_error, log), names)
        return [(name, consumer) for name, consumer in zip(names, found) if consumer is not None]

    async def _find_or_error(self, log: str, name: str) -> Consumer | BookKeeperError | None:
        try:
            return await self._find(log, name)
        except (MetadataFormat, MetadataAccessDenied, ConfigurationError) as error:
            return error

    async def _find(self, log: str, name: str) -> Consumer | None:
        path = consumer_path(log, name)
        try:
            data, stat = await self._heads.tree.get(path)
        except NoSuchNode:
            return None
        return decode_consumer(data, path, stat.mtime_ms, stat.version)

    async def register(self, log: str, name: str, position: Position, expiry_ms: int) -> Consumer:
        """Register a reader that reads from `position` on; it takes the name from a reader that is registered under it.

        From then on no expiry removes what the reader needs. A concurrent expiry either takes effect before the
        registration, which then fails if its position is gone, or is decided again.

        Raises:
            DataLoss: the log begins after the position.
            ConfigurationError: the name is unusable, or the log has too many readers.
        """
        wanted = Consumer(name, position, expiry_ms, new_token())
        await self._heads.change(log, partial(self._decide, log, wanted))
        found = await self._find(log, name)
        if found is None or found.reader != wanted.reader:
            raise another_reader(log, name)
        return found

    async def _decide(self, log: str, wanted: Consumer, head: LogHead) -> Change[None]:
        if wanted.position < head.start:
            raise DataLoss(
                f"consumer {wanted.name} cannot be registered: log {log} begins at {head.start}; what follows "
                f"{wanted.position} has been truncated or has expired"
            )
        folder = f"{log_path(log)}/{CONSUMERS}"
        path, data = consumer_path(log, wanted.name), encode_consumer(wanted)
        operations: list[Operation] = []
        try:
            names = await self._heads.tree.children(folder)
            if len(names) >= CONSUMERS_MAX and wanted.name not in names:
                raise ConfigurationError(
                    f"log {log} has {CONSUMERS_MAX} registered readers, the limit: remove some with "
                    "`bkspark log consumers`"
                )
        except NoSuchNode:
            operations.append(Create(folder))
        present = await self._heads.tree.exists(path)
        operations.append(Create(path, data) if present is None else Set(path, data, present.version))
        return Change(head, None, also=operations)

    async def advance(self, log: str, consumer: Consumer, position: Position) -> Consumer:
        """Move a reader forward to a position, and renew its registration.

        Raises:
            ConfigurationError: another reader has registered under its name.
            NoSuchNode: it is not registered any more.
        """

        async def move(stored: Consumer) -> Consumer:
            wanted = replace(consumer, position=max(stored.position, position))
            path = consumer_path(log, consumer.name)
            stat = await self._heads.tree.set(path, encode_consumer(wanted), stored.version)
            return replace(wanted, written_ms=stat.mtime_ms, version=stat.version)

        return await self._changed(log, consumer, move)

    async def end(self, log: str, consumer: Consumer) -> None:
        """End a reader's registration, if it is registered. Raises ConfigurationError as `advance`."""

        async def end(stored: Consumer) -> None:
            await self._heads.tree.delete(consumer_path(log, consumer.name), stored.version)

        with contextlib.suppress(NoSuchNode):
            await self._changed(log, consumer, end)

    async def _changed(self, log: str, consumer: Consumer, change: Callable[[Consumer], Awaitable[T]]) -> T:
        """Return what `change` returns for the node as it is now; it is called again if the node changed meanwhile."""
        for _ in range(ADVANCE_TRIES_MAX):
            # Versions begin at 0 again when the node is made again, so they do not tell whose it is.
            stored = await self._find(log, consumer.name)
            if stored is None:
                raise NoSuchNode(f"metadata node {consumer_path(log, consumer.name)} does not exist")
            if stored.reader != consumer.reader:
                raise another_reader(log, consumer.name)
            with contextlib.suppress(MetadataVersion):
                return await change(stored)
        raise MetadataError(f"consumer {consumer.name} of log {log} was changed repeatedly meanwhile: try again later")

    async def remove(self, log: str, name: str) -> bool:
        """End a registration; return whether there was one."""
        try:
            await self._heads.tree.delete(consumer_path(log, name))
        except NoSuchNode:
            return False
        return True


class ConsumerRegistration:
    """A reader's registration in one log, from `Log.register_consumer`. Call `move` when entries are processed."""

    def __init__(self, store: ConsumerStore, log: str, consumer: Consumer) -> None:
        self._store = store
        self._log = log
        self._consumer = consumer
        """The registration as it was last written by this process. Replaced by `move`."""

    @property
    def position(self) -> Position:
        """The log keeps the entries from this position on for this reader."""
        return self._consumer.position

    async def move(self, position: Position) -> None:
        """Record that entries before `position` are not needed any more, and renew the registration.

        If `position` is before the present one, this only renews it.

        Raises:
            ConfigurationError: another reader has registered under the name.
            NoSuchNode: the registration was removed: register again.
        """
        arguments.instance("position", position, Position)
        self._consumer = await self._store.advance(self._log, self._consumer, position)

    async def end(self) -> None:
        """End the registration: nothing is kept for this reader any more. If another reader has registered under the
        name since, its registration stays."""
        with contextlib.suppress(ConfigurationError):
            await self._store.end(self._log, self._consumer)


def another_reader(log: str, name: str) -> ConfigurationError:
    """Return the error for a reader whose name another one has taken."""
    return ConfigurationError(
        f"consumer {name} of log {log}: another reader has registered under this name since: give each query its own"
    )


def consumer_path(log: str, name: str) -> str:
    """Return the path of a registered reader. Raises ConfigurationError for an unusable name."""
    if not is_consumer_name(name):
        raise ConfigurationError(f"consumer {str(name)[:200]!r} is not usable: {LOG_NAME_RULE}")
    return f"{log_path(log)}/{CONSUMERS}/{name}"


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A registered reader and how far it lags behind the end of its log. `expires`: when its registration ends.

    error: why the registration cannot be read; None if it can. All other fields but the name are None then.
    """

    name: str
    position: Position | None
    entries_behind: int | None
    """How many entries are after `position`; `bytes_behind`: their payload bytes."""
    bytes_behind: int | None
    expires: datetime | None
    is_expired: bool | None
    """Whether `expires` has passed: then retention does not wait for the reader."""
    error: str | None = None


def state_of(consumer: Consumer, behind: tuple[int, int], now_ms: int) -> ConsumerState:
    """Return the state of a registered reader. `behind`: entries and bytes between it and the end of the log."""
    expires = _EPOCH + timedelta(milliseconds=consumer.expires_ms)
    return ConsumerState(consumer.name, consumer.position, *behind, expires, consumer.is_expired(now_ms))


def state_of_unreadable(name: str, error: BookKeeperError) -> ConsumerState:
    """Return the state of a registered reader whose node cannot be read."""
    return ConsumerState(name, None, None, None, None, None, str(error))


def first_needed(consumers: Sequence[Consumer], start: Position) -> list[Position]:
    """Return the position of the first entry that each reader still needs.

    A log that was truncated or overwritten may begin after a reader's position: the reader needs what is left. It may
    have read what is gone, as it moves its registration later.
    """
    return [max(consumer.position, start) for consumer in consumers]


async def behind(open_ledger: OpenListed, snapshot: LogSnapshot, position: Position, end: Position) -> tuple[int, int]:
    """Return how many entries, and about how many bytes, lie between a position and the readable end of a log."""
    entries = byte_count = 0
    position = max(position, snapshot.start)
    async for run in snapshot.runs(position.ordinal, end.ordinal + 1):
        for listed in run:
            last_entry, length = await _extent(open_ledger, listed)
            stop = end.entry_id if listed.ordinal == end.ordinal else last_entry + 1
            if listed.last_entry is not None:
                stop = min(stop, last_entry + 1)
            first = max(listed.first_entry, position.entry_id if listed.ordinal == position.ordinal else 0)
            count = max(0, stop - first)
            entries += count
            byte_count += round(length * count / max(1, last_entry + 1 - listed.first_entry))
    return entries, byte_count


async def _extent(open_ledger: OpenListed, listed: LogSegment) -> tuple[int, int]:
    """Return the last entry and the bytes of a listed ledger, as a reader of it finds them if the list does not say."""
    if listed.last_entry is not None and listed.length is not None:
        return listed.last_entry, listed.length
    try:
        reader = await open_ledger(listed)
    except DataLoss:  # it was deleted by itself
        reader = None
    return (listed.first_entry - 1, 0) if reader is None else (reader.last_entry, reader.length)
