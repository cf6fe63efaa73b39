"""A writer that connects to a bookie again first makes sure that the ledger is still its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import LedgerFenced
from bkspark.ledger.ownership import Ownership
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import DigestType, EntryDigest
from tests.clock import Clock
from tests.ledger.away import Away
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.polling import until


def test_new_connection_gets_no_add_before_the_store_says_that_the_ledger_is_ours(tmp_path):
    """The bookie may be another one than before, and not fenced as the one before was."""

    async def test(cluster: InProcessCluster) -> None:
        tree = Away(cluster.store)
        client = Client(URI, tree=tree)
        try:
            writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await writer.append(b"one")
            restarted = cluster.bookie(writer.core.slots.ensemble[0])
            await restarted.stop()
            restarted.wipe()
            await restarted.start()
            # Another client recovers the ledger; two bookies have not heard of it.
            ledgers = LedgerStore(cluster.store.session(), MetadataUri.parse(URI))
            stored = await ledgers.read(writer.ledger_id)
            await ledgers.write(writer.ledger_id, stored.metadata.in_recovery(), stored.version)
            tree.is_away = True
            await writer.append(b"two")
            await until(lambda: tree.tried >= 3, "the writer to ask several times")
            assert writer.core.error is None
            context = await cluster.client().context()
            channel = await context.pool.channel(restarted.id)
            answer = await channel.read_last_entry(writer.ledger_id, EntryDigest(DigestType.CRC32C, b""))
            assert answer.entry is None
            tree.is_away = False
            await until(lambda: writer.core.error is not None, "the writer to learn that it is fenced")
            assert isinstance(writer.core.error, LedgerFenced)
            writer.abandon()
        finally:
            await client.close()

    run(tmp_path, test)


class Lagging(MemoryTree):
    """A session that sees what others wrote once it has caught up, and counts how often it did."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 40, 10.0)
        self.seen: dict[str, tuple[bytes, Stat]] = {}
        self.caught_up = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while the session reads a ledger's metadata."""

    async def catch_up(self) -> None:
        self.caught_up += 1
        await asyncio.sleep(0)  # as a real store, it answers in a later turn of the loop
        self.seen.clear()
        await super().catch_up()

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path not in self.seen:
            self.seen[path] = await super().get(path)
        self.meanwhile()
        return self.seen[path]


def with_ownership(test: Callable[[Ownership, Clock, Lagging, LedgerStore], Awaitable[None]]) -> None:
    """Run a test with the ownership of a ledger that was created at 100 s, its store, and another client's."""

    async def call() -> None:
        store, clock = MemoryStore(), Clock(100.0)
        tree, uri = Lagging(store), MetadataUri.parse(URI)
        await BookieRegistry(store.session(), uri).initialize_cluster()
        other = LedgerStore(store.session(), uri)
        ledger_id, _ = await other.create(LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),)))
        ledgers = LedgerStore(tree, uri)
        await ledgers.read(ledger_id)
        await test(Ownership(ledgers, ledger_id, clock), clock, tree, other)

    asyncio.run(call())


def test_connection_that_was_made_up_to_the_last_read_is_confirmed_and_a_later_one_is_not() -> None:
    async def test(ownership: Ownership, clock: Clock, tree: Lagging, other: LedgerStore) -> None:
        clock.now = 105.0
        assert await ownership.confirm(100.0) is None
        assert await ownership.confirm(100.5) is not None
        assert await ownership.confirm(105.0) is None
        assert await ownership.confirm(105.5) is not None
        assert tree.caught_up == 2

    with_ownership(test)


def test_connection_that_is_made_while_the_metadata_are_read_is_not_confirmed_by_them() -> None:
    """P20: metadata that are read *after* the connection was made show that the ledger has moved."""

    async def test(ownership: Ownership, clock: Clock, tree: Lagging, other: LedgerStore) -> None:
        def pass_time() -> None:
            clock.now = 110.0

        tree.meanwhile = pass_time
        assert await ownership.confirm(102.0) is not None
        assert await ownership.confirm(105.0) is not None
        assert tree.caught_up == 2

    with_ownership(test)


def test_connections_that_are_made_at_the_same_time_share_one_read_of_the_metadata() -> None:
    async def test(ownership: Ownership, clock: Clock, tree: Lagging, other: LedgerStore) -> None:
        clock.now = 105.0
        found = await asyncio.gather(*(ownership.confirm(connected_at) for connected_at in (101.0, 102.0, 103.0)))
        assert [each is None for each in found] == [False, True, True]
        assert tree.caught_up == 1

    with_ownership(test)


def test_ownership_is_read_from_a_session_that_has_caught_up() -> None:
    """A session may be late, and show a ledger as open that another client has recovered."""

    async def test(ownership: Ownership, clock: Clock, tree: Lagging, other: LedgerStore) -> None:
        (ledger_id,) = [ledger_id async for ledger_id in other.ids()]
        stored = await other.read(ledger_id)
        await other.write(ledger_id, stored.metadata.in_recovery(), stored.version)
        clock.now = 105.0
        assert await ownership.confirm(101.0) == (await other.read(ledger_id)).metadata

    with_ownership(test)
