"""Traps of docs/compatibility.md that no other test steps into; `tests.interop.traps` lists them all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np

from bkspark.core.copies import settled_fragments
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.metadata import paths
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.status import Status
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AutoRecoveryOptions
from tests.bookie.serving import KEY, Serving, service_options, stored
from tests.ledger.in_process import URI, InProcessCluster, run

PULSARS_FRAME = 5 * 1024 * 1024 + 10 * 1024


def test_trap_9_an_entry_of_pulsars_largest_size_is_taken_where_its_frame_is_configured(tmp_path: Path) -> None:
    """nettyMaxFrameSizeBytes of Pulsar's bookkeeper.conf: 5 MiB of message and 10 KiB for the rest."""
    options = service_options(tmp_path, connection=ConnectionOptions(frame_bytes_max=PULSARS_FRAME))
    message = bytes(5 * 1024 * 1024 + 9 * 1024)
    with Serving(options) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [message]) == [Status.EOK]
        assert peer.read(5, 0).body == stored(5, 0, message)


def test_trap_14_copies_of_re_replication_carry_the_recovery_flag_alone() -> None:
    """docs/protocol.md §8: header word 02010002, where a ledger's recovery sends 02010006."""
    entry = stored(5, 7, b"hello")
    batch = EntryBatch(entry, np.array([0, len(entry)]), 5, 7)
    frames, _ = v2.encode_stored_adds(batch, KEY, v2.RECOVERY_ADD)
    assert frames == (4 + len(KEY) + len(entry)).to_bytes(4, "big") + bytes.fromhex("02010002") + KEY + entry


def test_trap_14_a_new_bookie_that_is_fenced_takes_the_copies(tmp_path: Path) -> None:
    """BookKeeper's PR 4163: re-replication had lost its flag, and was refused by bookies that knew a fence."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        async with await client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            await writer.append_many([b"one", b"two", b"three"])
        named = writer.metadata.last_fragment.bookies
        spare = next(bookie for bookie in cluster.bookies if bookie.id not in named)
        channel = await (await client.context()).pool.channel(spare.id)
        digest = EntryDigest(DigestType.CRC32C, b"")
        await channel.read_last_entry(writer.ledger_id, digest, v2.DO_FENCING, KEY)
        await cluster.bookie(named[0]).stop()
        repaired = await RepairedCluster.of(cluster.client())
        await repaired.store.mark(writer.ledger_id, [named[0]], 0)
        assert await repaired.worker("a worker", AutoRecoveryOptions()).repair(writer.ledger_id)
        assert (await client.metadata(writer.ledger_id)).last_fragment.bookies == (spare.id, named[1])

    run(tmp_path, test)


def test_trap_15_a_bookie_returns_bytes_that_no_digest_fits(tmp_path: Path) -> None:
    entry = stored(5, 0, b"nothing seals this")[:40] + b"\xff" * 8
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        frames, _ = v2.encode_stored_adds(EntryBatch(entry, np.array([0, len(entry)]), 5, 0), KEY)
        peer.send(frames)
        assert peer.reply().status == Status.EOK
        assert peer.read(5, 0).body == entry


def test_trap_17_the_last_entry_is_the_highest_id_also_when_lower_ones_come_later(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        for entry_id in (3, 9, 4):
            assert peer.add(5, entry_id, [b"%d" % entry_id]) == [Status.EOK]
        assert peer.read(5, v2.LAST_ENTRY).body == stored(5, 9, b"9")


def test_trap_28_a_ledger_whose_length_is_wrong_is_read_whole(tmp_path: Path) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            await writer.append_many([b"one", b"two", b"three"])
        ledgers = LedgerStore(cluster.store.session(), MetadataUri.parse(URI))
        found = await ledgers.read(writer.ledger_id)
        await ledgers.write(writer.ledger_id, replace(found.metadata, length=1), found.version)
        reader = await client.open(writer.ledger_id, recover=False)
        assert list(await reader.read(0, 2)) == [b"one", b"two", b"three"]

    run(tmp_path, test)


def test_trap_29_a_reader_continues_after_a_short_batch_answer(tmp_path: Path) -> None:
    """A bookie's answer ends at 512 KiB, or at an entry that it lacks."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        entries = [bytes([i]) * 200_000 for i in range(20)]
        async with await client.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            await writer.append_many(entries)
        reader = await client.open(writer.ledger_id, recover=False)
        assert list(await reader.read(0, 19)) == entries

    run(tmp_path, test)


def test_trap_30_a_fragment_that_ends_beyond_the_known_lac_is_settled() -> None:
    """BookKeeper's PR 3917: fragment [0..14] of an open ledger of which LAC 13 is known blocked a decommissioning."""
    fragments = (Fragment(0, ("a", "b", "c")), Fragment(15, ("a", "b", "d")))
    metadata = LedgerMetadata(
        ensemble_size=3, write_quorum=3, ack_quorum=2, digest=DigestType.CRC32C, fragments=fragments, password=b""
    )
    assert [(fragment.first_entry, end) for fragment, end in settled_fragments(metadata)] == [(0, 15)]


def test_trap_35_a_cluster_without_layout_and_with_data_at_readonly_is_used() -> None:
    """Pulsar's initialisation writes no LAYOUT; stray data at `available/readonly` are not a registration."""

    async def test() -> None:
        uri = MetadataUri.parse(URI)
        tree = MemoryStore().session()
        registry, ledgers = BookieRegistry(tree, uri), LedgerStore(tree, uri)
        await registry.initialize_cluster()
        await tree.delete(f"{uri.root}/{paths.LAYOUT}")
        await tree.set(f"{uri.root}/{paths.READ_ONLY}", b"stray", -1)
        assert await registry.read_only() == {}
        assert await registry.writable() == {}
        assert [ledger_id async for ledger_id in ledgers.ids()] == []

    asyncio.run(test())
