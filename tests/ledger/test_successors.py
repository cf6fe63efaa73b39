"""A bookie that is gone, and another one with a new id at its address, as messages advise when a disk is lost.

The other one truly has none of the entries. Its answers are not those of the bookie that is gone, which had them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import LedgerRecoveryFailed
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import MetadataUri
from tests.ledger.holders import PATIENT, Holder
from tests.ledger.hostile import HostileBookie, World, play
from tests.ledger.in_process import URI, InProcessBookie, InProcessCluster, run


async def replace_bookie(bookie: InProcessBookie, new_id: str) -> None:
    """Lose the disks of a bookie, and start another one at its address."""
    await bookie.stop()
    bookie.wipe()
    await bookie.start()
    registry = BookieRegistry(bookie._tree, MetadataUri.parse(URI))
    await registry.unregister(bookie.id)
    host, _, port = bookie.id.rpartition(":")
    await registry.register(new_id, BookieAddress(host, int(port)))


def test_recovery_does_not_take_the_answer_of_a_successor_for_that_of_the_bookie_before(tmp_path):
    """It closed the ledger below acknowledged entries: the successor and the bookie that lacked them were enough."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append(b"everywhere")
        holder, lost, without = map(cluster.bookie, writer.metadata.last_fragment.bookies)
        await without.stop()
        assert await writer.append_many([b"acknowledged by two"] * 3) == 3
        writer.abandon()
        await replace_bookie(lost, "successor")
        await without.start()
        await holder.stop()
        with pytest.raises(LedgerRecoveryFailed):
            await client.recover(writer.ledger_id)
        await holder.start()
        assert (await client.recover(writer.ledger_id)).last_entry == 3

    run(tmp_path, test)


class MovingTree(MemoryTree):
    """A session in which a bookie moves right after its registration was read, once."""

    def __init__(self, store: MemoryStore, bookie: str, move: Callable[[], Awaitable[None]]) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self._bookie = bookie
        self._move: Callable[[], Awaitable[None]] | None = move

    async def get(self, path: str) -> tuple[bytes, Stat]:
        found = await super().get(path)
        if path.endswith(f"/{self._bookie}") and self._move is not None:
            move, self._move = self._move, None
            await move()
        return found


def test_client_asks_for_the_address_of_a_bookie_again_when_it_is_connected():
    """The bookie at the address that was read first has none of the entries, and truly says so."""

    async def test(world: World) -> None:
        async with HostileBookie(Holder()) as other, HostileBookie(Holder(range(4))) as moved:
            session = world.store.session()
            registry = BookieRegistry(session, MetadataUri.parse(URI))

            async def register(bookie: HostileBookie) -> None:
                host, port = bookie.id.split(":")
                await registry.register("moving", BookieAddress(host, int(port)))

            async def move() -> None:
                await registry.unregister("moving")
                await register(moved)

            await register(other)
            fragments = (Fragment(0, ("moving",)),)
            ledger_id = await world.ledger(metadata=LedgerMetadata(1, 1, 1, fragments))
            async with Client(URI, tree=MovingTree(world.store, "moving", move), net=PATIENT) as client:
                with pytest.raises(LedgerRecoveryFailed, match="moved from"):
                    await client.recover(ledger_id)
                assert other.asked == []
                assert (await client.recover(ledger_id)).last_entry == 3

    play(test, 20)
