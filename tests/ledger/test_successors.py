"""A bookie that is gone, and another one with a new id at its address, as messages advise when a disk is lost.

The other one truly has none of the entries. Its answers are not those of the bookie that is gone, which had them.
"""

from __future__ import annotations

import pytest

from bkspark.errors import LedgerRecoveryFailed
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
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
