"""A ledger that is in limbo at one bookie, which may have lost its fence: the writer continues with the others.

Its adds were answered EUA there. That ended the writer, whose password was right, although enough others served it;
also when the bookie had come back after a crash and was only probed.
"""

from __future__ import annotations

import pytest

from bkspark.errors import LedgerFenced
from tests.ledger.in_process import InProcessBookie, InProcessCluster, run


def begin_limbo(bookie: InProcessBookie, ledger_id: int) -> None:
    assert bookie.service is not None
    bookie.service.storage.store.limbo.begin([ledger_id])


@pytest.mark.parametrize("wire_protocol", ["v2", "v3"])
@pytest.mark.parametrize("bookies", [3, 4])
def test_writer_continues_with_the_other_bookies(tmp_path, bookies, wire_protocol):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(wire_protocol=wire_protocol)
        writer = await client.create()
        await writer.append_many([b"before"] * 10)
        hurt = cluster.bookie(writer.metadata.last_fragment.bookies[0])
        begin_limbo(hurt, writer.ledger_id)
        assert await writer.append(b"after") == 10
        assert (hurt.id in writer.metadata.last_fragment.bookies) == (bookies == 3)
        assert (await writer.close()).last_entry == 10
        reader = await client.open(writer.ledger_id)
        assert list(await reader.read(0, 10)) == [b"before"] * 10 + [b"after"]

    run(tmp_path, test, bookies=bookies)


def test_writer_learns_of_the_recovery_whose_fence_the_bookie_may_have_lost(tmp_path):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"before")
        begin_limbo(cluster.bookie(writer.metadata.last_fragment.bookies[0]), writer.ledger_id)
        store = (await client.context()).ledgers
        stored = await store.read(writer.ledger_id)
        await store.write(writer.ledger_id, stored.metadata.in_recovery(), stored.version)
        with pytest.raises(LedgerFenced):
            await writer.append(b"late")

    run(tmp_path, test, bookies=2)
