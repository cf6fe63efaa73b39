"""A topic as brokers store it, on real bookies and in a real ZooKeeper, without a broker."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from bkspark.blocking import Client, LedgerWriter, run
from bkspark.errors import NodeExists
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.names import POLICIES, TopicName, encoded
from bkspark.pulsar.schemas import STORED_TYPES
from tests.pulsar.entries import Message, single


class StoredTopic:
    """One topic or partition: ledgers, their list, subscriptions and schemas."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = TopicName.parse(name)
        self.info = formats.ManagedLedgerInfo()
        self.writer: LedgerWriter | None = None
        self._save()

    def ledger(self, entries: Sequence[bytes], *, is_open: bool = False, closed_ms: int | None = None) -> int:
        """Add a ledger of these entries; one that is left open ends with the next."""
        writer = self.client.create(
            ensemble=1,
            write_quorum=1,
            ack_quorum=1,
            metadata={"application": b"pulsar", "pulsar/managed-ledger": self.name.managed_ledger.encode()},
        )
        listed = self.info.ledgerInfo.add(ledgerId=writer.ledger_id, timestamp=0)
        if entries:
            writer.append_many(entries)
        if is_open:
            self.writer = writer
        else:
            writer.close()
            listed.entries, listed.size = len(entries), sum(map(len, entries))
            listed.timestamp = closed_ms or time.time_ns() // 1_000_000
        self._save()
        return writer.ledger_id

    def roll(self, entries: Sequence[bytes] = (), *, is_open: bool = True) -> int:
        """Close the open ledger as a broker does, and begin another one."""
        assert self.writer is not None
        listed = self.info.ledgerInfo[-1]
        listed.entries, listed.size = self.writer.last_entry + 1, self.writer.length
        listed.timestamp = time.time_ns() // 1_000_000
        self.writer.close()
        return self.ledger(entries, is_open=is_open)

    def trim(self, count: int = 1, *, delete: bool = True) -> None:
        gone = [each.ledgerId for each in self.info.ledgerInfo[:count]]
        del self.info.ledgerInfo[:count]
        self._save()
        for ledger_id in gone if delete else ():
            self.client.delete(ledger_id)

    def save(self) -> None:
        self._save()

    def _save(self) -> None:
        self._put(self.name.managed_ledger_path, self.info.SerializeToString())

    def partitioned(self, count: int) -> None:
        self._put(self.name.whole.partitions_path, json.dumps({"partitions": count}).encode())

    def subscription(self, name: str, cursor: formats.ManagedCursorInfo, entries: Sequence[bytes] = ()) -> None:
        if entries:
            with self.client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                writer.append_many(entries)
                cursor.cursorsLedgerId = writer.ledger_id
        self._put(f"{self.name.managed_ledger_path}/{encoded(name)}", cursor.SerializeToString())

    def schemas(
        self,
        *versions: tuple[str | int, bytes, Mapping[str, str]],
        deleted: Collection[int] = (),
        empty: Collection[int] = (),
    ) -> list[int]:
        """Store the versions 0, 1, … of its schema: type, definition and properties each; return their ledgers.

        Args:
            deleted: versions that say that the schemas before them were deleted.
            empty: versions whose ledgers have no entry.
        """
        locator = formats.SchemaLocator()
        ledgers = []
        for version, (kind, definition, properties) in enumerate(versions):
            number = kind if isinstance(kind, int) else STORED_TYPES.index(kind) + 1
            info = formats.SchemaInfo(
                schema_id="s", user="", type=number, schema=definition, timestamp=1, deleted=version in deleted
            )
            for key, value in properties.items():
                info.props.add(key=key, value=value)
            entry = formats.SchemaEntry(schema_data=info.SerializeToString())
            with self.client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                if version not in empty:
                    writer.append(entry.SerializeToString())
            ledgers.append(writer.ledger_id)
            position = formats.SchemaPosition(ledgerId=writer.ledger_id, entryId=0)
            index = formats.IndexEntry(version=version, position=position, hash=b"")
            locator.index.append(index)
            locator.info.CopyFrom(index)
        self._put(self.name.schema_path, locator.SerializeToString())
        return ledgers

    def put(self, data: bytes) -> None:
        """Store something as the list of its ledgers."""
        self._put(self.name.managed_ledger_path, data)

    def put_subscription(self, name: str, data: bytes) -> None:
        """Store something as a subscription."""
        self._put(f"{self.name.managed_ledger_path}/{encoded(name)}", data)

    def put_policies(self, data: bytes) -> None:
        """Store something as the policies of its namespace."""
        self._put(f"{POLICIES}/{self.name.namespace_path}", data)

    def delete(self) -> None:
        async def delete() -> None:
            tree = await self.client.asynchronous.tree()
            for child in await tree.children(self.name.managed_ledger_path):
                await tree.delete(f"{self.name.managed_ledger_path}/{child}")
            await tree.delete(self.name.managed_ledger_path)

        run(delete)

    def _put(self, path: str, data: bytes) -> None:
        async def put() -> None:
            tree = await self.client.asynchronous.tree()
            with contextlib.suppress(NodeExists):
                await tree.create(path, data, make_parents=True)
                return
            await tree.set(path, data, -1)

        run(put)


@contextlib.contextmanager
def transaction_snapshots(client: Client, *topics: StoredTopic) -> Iterator[StoredTopic]:
    """Yield the namespace's topic of snapshots of transactions, which names these topics. It is deleted at the end."""
    snapshots = StoredTopic(client, "public/default/__transaction_buffer_snapshot")
    try:
        if topics:
            # As brokers leave it: the ledger is open, and its last entry is not confirmed.
            snapshots.ledger([single(Message(b"", str(topic.name))) for topic in topics], is_open=True)
        yield snapshots
    finally:
        snapshots.delete()
