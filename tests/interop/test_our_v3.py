"""Our client in V3 on Apache's bookies and on ours: docs/protocol.md §2, item 5 of docs/compatibility.md."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from bkspark import client as aio
from bkspark.blocking import Client
from bkspark.core.relaxed import RelaxedDurability
from bkspark.errors import LedgerFenced
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest, master_key
from tests.interop.cases import PASSWORD, SIZES
from tests.interop.conftest import Bookies
from tests.interop.peer import JavaClient, contents, payloads

pytestmark = [
    pytest.mark.interop,
    pytest.mark.cluster,
    pytest.mark.parametrize("bookies", ["apache's bookies"], indirect=True),
]

KEY = master_key(PASSWORD.encode())


def v3_client(bookies: Bookies, digest: str = "crc32c") -> Client:
    return Client(bookies.uri, digest=digest, password=PASSWORD.encode(), wire_protocol="v3")


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "mac", "dummy"])
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)], ids=["E3W3A2", "E3W2A2"])
@pytest.mark.long_except(
    *("E3W3A2-crc32c-apache's bookies", "E3W2A2-mac-apache's bookies"),
    *("E3W2A2-crc32-apache's bookies", "E3W3A2-dummy-apache's bookies"),
    reason="each digest with each quorum; the others have each digest and each quorum",
)
def test_item_5_what_our_client_writes_in_v3_it_reads_in_both_protocols(
    java: JavaClient, bookies: Bookies, digest: str, quorums: tuple[int, int, int]
) -> None:
    ensemble, write_quorum, ack_quorum = quorums
    with v3_client(bookies, digest) as client:
        with client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum) as writer:
            writer.append_many(payloads(SIZES))
        reader = client.open(writer.ledger_id)
        assert list(reader.read(0, reader.last_entry)) == payloads(SIZES)
        with Client(bookies.uri, digest=digest, password=PASSWORD.encode()) as v2_client:
            assert list(v2_client.open(writer.ledger_id).read(0, len(SIZES) - 1)) == payloads(SIZES)
        open_writer = client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        open_writer.append_many(payloads(SIZES))
        assert client.open(open_writer.ledger_id).last_entry >= -1
        closed = client.recover(open_writer.ledger_id)
        assert (closed.last_entry, closed.length) == (len(SIZES) - 1, sum(SIZES))
        with pytest.raises(LedgerFenced):
            open_writer.append(b"too late")
        open_writer.abandon()
    answer = java.read(writer.ledger_id, digest, PASSWORD, recover=False)
    assert answer["entries"] == contents(payloads(SIZES))


@pytest.mark.parametrize("ledger_type", ["VD_JOURNAL", "VD_BYPASS_JOURNAL"])
def test_relaxed_durability_is_deferred_sync_and_force_on_apaches_bookies(
    java: JavaClient, bookies: Bookies, ledger_type: str
) -> None:
    """docs/protocol.md §5.5. They say no LastAddSynced, so that nothing is confirmed before a force."""
    with Client(bookies.uri, password=PASSWORD.encode()) as client:
        writer = client.create(ledger_type=ledger_type, relaxed=RelaxedDurability(force_interval_s=0.0))
        writer.append_many(payloads(SIZES))
        assert writer.last_entry == -1
        assert writer.sync() == writer.last_entry == len(SIZES) - 1
        writer.append(b"behind the sync")
        assert client.open(writer.ledger_id).last_entry == len(SIZES) - 1
        assert writer.close().last_entry == len(SIZES)
    answer = java.read(writer.ledger_id, "crc32c", PASSWORD, recover=False)
    assert answer["entries"] == contents([*payloads(SIZES), b"behind the sync"])


def on_one_bookie(bookies: Bookies, test: Callable[[aio.Client, aio.LedgerWriter], Awaitable[None]]) -> None:
    """Run a test's coroutine with a writer of a ledger that one bookie keeps."""

    async def call() -> None:
        async with aio.Client(bookies.uri, password=PASSWORD.encode(), wire_protocol="v3") as client:
            writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
            await asyncio.wait_for(test(client, writer), 60)
            writer.abandon()

    asyncio.run(call())


def test_item_5_explicit_lac_long_poll_force_and_the_list_of_entries(bookies: Bookies) -> None:
    async def test(client: aio.Client, writer: aio.LedgerWriter) -> None:
        pool = (await client.context()).pool
        channel = await pool.v3_channel(writer.metadata.last_fragment.bookies[0])
        digest, ledger = EntryDigest(writer.metadata.digest, PASSWORD.encode()), writer.ledger_id

        nothing = await channel.read_lac(ledger, digest)
        assert (nothing.status, nothing.lac) == (v2.Status.ENOENTRY, None)
        await writer.append_many([b"zero", b"one"])
        # Entry 1 was sealed when nothing was confirmed.
        heard = await channel.read_lac(ledger, digest)
        assert (heard.status, heard.lac, heard.entry.entry_id) == (v2.Status.EOK, -1, 1)

        waiting = asyncio.ensure_future(channel.poll_entry(ledger, -1, 30.0, digest))
        assert await channel.write_lac(ledger, 1, digest, KEY) == v2.Status.EOK
        polled = await waiting
        assert (polled.status, polled.lac, polled.entry.payload) == (v2.Status.EOK, 1, b"zero")
        assert (await channel.read_lac(ledger, digest)).lac == 1
        at_once = await channel.poll_entry(ledger, 0, 30.0, digest)
        assert (at_once.lac, at_once.entry.payload) == (1, b"one")
        nothing_new = await channel.poll_entry(ledger, 1, 0.05, digest)
        assert (nothing_new.status, nothing_new.lac, nothing_new.entry) == (v2.Status.EOK, 1, None)
        unknown = await channel.poll_entry(ledger + 1_000_000, -1, 30.0, digest)
        assert unknown.status == v2.Status.ENOLEDGER

        assert await channel.force(ledger) == v2.Status.EOK
        status, runs = await channel.entry_list(ledger)
        assert (status, runs.starts.tolist(), runs.sizes.tolist()) == (v2.Status.EOK, [0], [2])
        assert (await channel.entry_list(ledger + 1_000_000))[0] == v2.Status.ENOLEDGER
        space = await channel.disk_space()
        assert 0 < space.free_bytes <= space.total_bytes

        answers = await channel.read_entries(ledger, np.array([0, 1, 2]), digest)
        assert answers.statuses.tolist() == [0, 0, v2.Status.ENOENTRY]
        wrong = master_key(b"another")
        refused = await channel.read_last_entry(ledger, digest, v2.DO_FENCING, wrong)
        assert refused.status == v2.Status.EUA
        assert await channel.write_lac(ledger, 1, digest, wrong) == v2.Status.EUA
        last = await channel.read_last_entry(ledger, digest, v2.DO_FENCING | v2.HIGH_PRIORITY, KEY)
        assert last.entry.payload == b"one"
        with pytest.raises(LedgerFenced):
            await writer.append(b"too late")

    on_one_bookie(bookies, test)
