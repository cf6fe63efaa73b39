"""SnapshotKeys: which topics of a namespace may have transactions, from the topic of brokers' snapshots of them.

A broker stores a topic's first snapshot, with the topic's name as its key, before it stores the first message of a
transaction. A topic without a snapshot therefore has no transactions, and need not be scanned for markers. The contents
of snapshots are not used, because they lag behind.

Brokers compact that topic: a key may be in the compacted ledger only.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import NoSuchLedger
from bkspark.ledger.cluster import Cluster
from bkspark.pulsar.entries import decode_entries
from bkspark.pulsar.message_columns import keys
from bkspark.pulsar.messages import messages_of
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.topic import PulsarStore


class SnapshotKeys:
    """The names of topics that have snapshots. Each call of `among` reads what was stored since the one before.

    Args:
        cluster: the cluster, with the password of topics.
        without_password: the same cluster with the empty password, which compacted ledgers have.
    """

    def __init__(self, cluster: Cluster, without_password: Cluster) -> None:
        self._cluster = cluster
        self._without_password = without_password
        self._names: set[bytes] = set()
        """Topics that have snapshots. Only grows."""
        self._read: dict[int, int] = {}
        """The next entry to read of each ledger."""
        self._is_certain = True
        """Whether all snapshots could be read; otherwise every topic may have transactions. Cleared once."""

    async def among(self, store: PulsarStore, topics: Iterable[TopicName]) -> list[TopicName]:
        """Return those topics that may have transactions in their confirmed entries. Each namespace is read at most
        once, and not at all if all of its topics are known to have snapshots."""
        by_namespace: dict[str, list[TopicName]] = {}
        for topic in topics:
            by_namespace.setdefault(topic.namespace_path, []).append(topic)
        found: list[TopicName] = []
        for some in by_namespace.values():
            if not all(map(self._may_have, some)):
                for snapshots in await store.transaction_snapshots(some[0]):
                    await self._look(store, snapshots)
            found += filter(self._may_have, some)
        return found

    def _may_have(self, topic: TopicName) -> bool:
        return str(topic).encode() in self._names or not self._is_certain

    async def _look(self, store: PulsarStore, snapshots: TopicName) -> None:
        try:
            compacted = await store.compacted_ledger(snapshots, self._cluster)
            if compacted is not None and compacted >= 0 and compacted not in self._read:
                await self._take(self._without_password, compacted, is_compacted=True)
            for listed in (await store.ledgers(snapshots)).ledgers:
                await self._take(self._cluster, listed.ledger_id)
        except (NoSuchLedger, ValueError):
            # Deleted meanwhile, or unreadable: then every topic must be scanned.
            self._is_certain = False

    async def _take(self, cluster: Cluster, ledger_id: int, *, is_compacted: bool = False) -> None:
        """Add the keys of a ledger's entries, also of those that are not confirmed yet."""
        reader = await cluster.open(ledger_id)
        last = reader.last_entry if reader.is_closed else max(reader.last_entry, reader.last_unconfirmed)
        first = self._read.get(ledger_id, 0)
        if first > last:
            return
        async for batch in reader.batches(first, last + 1, unconfirmed=not reader.is_closed):
            self._names |= _keys_of(batch, is_compacted=is_compacted)
        self._read[ledger_id] = last + 1


def _keys_of(batch: EntryBatch, *, is_compacted: bool) -> set[bytes]:
    entries = decode_entries(batch, is_compacted=is_compacted)
    rows = np.flatnonzero(~entries.is_marker)
    return {key for key in keys(messages_of(entries, rows, {})).to_pylist() if key is not None}
