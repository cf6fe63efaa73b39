"""No nonce repeats (docs/security.md, encrypted ledgers): an entry id has one ciphertext, wherever and however often it
was sent. What holds for clear ledgers, such as relaxed durability and chosen ids, holds for encrypted ones."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.client import AdvancedLedgerWriter, EncryptionOptions
from bkspark.core.metadata import LedgerState
from bkspark.errors import BookKeeperError, ConfigurationError, DuplicateEntryId
from bkspark.wire.encrypted_entries import TAG_BYTES
from bookie_service.formats.entry_log import HEADER_BYTES
from tests.ledger.in_process import InProcessCluster, read_all, run
from tests.polling import until

RECORD = struct.Struct(">iqq")
ENVELOPE_BYTES = 36
"""The bytes before a payload with CRC32C: ledger, entry, LAC, length and digest."""
PAYLOADS = [b"payload %d" % number + bytes(number % 97) for number in range(400)]


@pytest.fixture
def keys(tmp_path: Path) -> EncryptionOptions:
    path = tmp_path / "keys"
    path.write_text(f"2026-11 {base64.b64encode(os.urandom(32)).decode()}\n")
    return EncryptionOptions(str(path))


def stored(log: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (ledger, entry, stored payload) of each record of an entry log."""
    at = HEADER_BYTES
    while at + RECORD.size <= len(log):
        size, ledger, entry = RECORD.unpack_from(log, at)
        if size <= 0:
            return
        if ledger >= 0:
            yield ledger, entry, log[at + 4 + ENVELOPE_BYTES : at + 4 + size]
        at += 4 + size


async def ciphertexts(cluster: InProcessCluster, ledger_id: int) -> dict[int, set[bytes]]:
    """Stop all bookies; return every ciphertext that any of them has, by entry id."""
    found: dict[int, set[bytes]] = defaultdict(set)
    for bookie in cluster.bookies:
        await bookie.stop()
        for path in bookie.directory.rglob("*.log"):
            for ledger, entry, payload in stored(path.read_bytes()):
                if ledger == ledger_id:
                    found[entry].add(payload)
    return found


def assert_one_each(found: dict[int, set[bytes]], count: int) -> None:
    assert {entry: len(texts) for entry, texts in found.items()} == dict.fromkeys(range(count), 1)
    assert all(len(text) == len(PAYLOADS[entry]) + TAG_BYTES for entry, (text,) in found.items())


@pytest.mark.parametrize("wire_protocol", ["v2", "v3"])
def test_entry_has_one_ciphertext_after_changed_ensembles_and_a_recovery_by_another_client(
    tmp_path: Path, keys: EncryptionOptions, wire_protocol: str
) -> None:
    """Bookies go away in the middle of adds, so entries are sent again. Then a client without keys recovers."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys, wire_protocol=wire_protocol)
        writer = await client.create(ensemble=3, write_quorum=2, ack_quorum=2)
        for begin in range(0, 400, 100):
            adding = [asyncio.ensure_future(writer.append(each)) for each in PAYLOADS[begin : begin + 50]]
            adding.append(asyncio.ensure_future(writer.append_many(PAYLOADS[begin + 50 : begin + 100])))
            gone = cluster.bookie(writer.metadata.last_fragment.bookies[begin // 100 % 3])
            await gone.stop()
            await asyncio.gather(*adding)
            await gone.start()
        assert len(writer.metadata.fragments) > 1
        metadata = await cluster.client().recover(writer.ledger_id)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 399)
        writer.abandon()
        assert await read_all(await client.open(writer.ledger_id)) == PAYLOADS
        assert_one_each(await ciphertexts(cluster, writer.ledger_id), 400)

    run(tmp_path, test, bookies=5)


def test_calls_that_are_cancelled_leave_no_id_that_is_encrypted_twice(tmp_path: Path, keys: EncryptionOptions) -> None:
    """Cancelling a call does not withdraw its entry. What was not sent yet gets its id with the next call."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys)
        writer = await client.create()
        for number in range(40):
            adding = [asyncio.ensure_future(writer.append(b"of a cancelled call")) for _ in range(3)]
            adding.append(asyncio.ensure_future(writer.append_many([b"of a cancelled batch"] * 300)))
            for _ in range(number):
                await asyncio.sleep(0)
            for each in adding:
                each.cancel()
            await asyncio.wait(adding)
        last = await writer.append(b"the last")
        await writer.close()
        entries = await read_all(await client.open(writer.ledger_id))
        assert (len(entries), entries[-1]) == (last + 1, b"the last")
        assert {b"of a cancelled call", b"of a cancelled batch"} < set(entries)
        found = await ciphertexts(cluster, writer.ledger_id)
        assert {len(texts) for texts in found.values()} == {1}

    run(tmp_path, test)


def test_chosen_ids_in_any_order_and_given_twice_are_encrypted_once(tmp_path: Path, keys: EncryptionOptions) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys)
        writer = AdvancedLedgerWriter(await client.create())
        adding = [asyncio.ensure_future(writer.append(number, PAYLOADS[number])) for number in reversed(range(1, 400))]
        await asyncio.sleep(0)
        for taken in (1, 200, 399):
            with pytest.raises(DuplicateEntryId):
                await writer.append(taken, b"another payload under the same id")
        await writer.append(0, PAYLOADS[0])
        await asyncio.gather(*adding)
        with pytest.raises(DuplicateEntryId):
            await writer.append(0, b"another payload under the same id")
        await writer.close()
        assert await read_all(await client.open(writer.ledger_id)) == PAYLOADS
        assert_one_each(await ciphertexts(cluster, writer.ledger_id), 400)

    run(tmp_path, test)


def test_relaxed_ledgers_are_encrypted_synced_and_recovered(tmp_path: Path, keys: EncryptionOptions) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys)
        writer = await client.create(ledger_type="VD_JOURNAL")
        await writer.append_many(PAYLOADS[:200])
        assert await writer.sync() == 199
        await writer.append_many(PAYLOADS[200:])
        metadata = await cluster.client().recover(writer.ledger_id)
        assert metadata.last_entry >= 199
        with contextlib.suppress(BookKeeperError):
            await writer.append(b"late")
        entries = await read_all(await client.open(writer.ledger_id))
        assert entries == PAYLOADS[: metadata.last_entry + 1]
        found = await ciphertexts(cluster, writer.ledger_id)
        assert {len(texts) for texts in found.values()} == {1}

    run(tmp_path, test)


def test_length_in_metadata_and_in_each_entry_is_that_of_the_stored_payloads(
    tmp_path: Path, keys: EncryptionOptions
) -> None:
    """Bookies, recovery and Apache's peers add up what they see: stored bytes."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys)
        writer = await client.create()
        for each in PAYLOADS[:5]:
            await writer.append(each)
        await writer.append_many(PAYLOADS[5:])
        whole = sum(map(len, PAYLOADS)) + TAG_BYTES * len(PAYLOADS)
        assert writer.length == whole
        recovered = await cluster.client().recover(writer.ledger_id)
        assert (recovered.last_entry, recovered.length) == (399, whole)
        writer.abandon()

    run(tmp_path, test)


def test_follower_of_one_entry_at_a_time_opens_what_came_with_the_confirmation(
    tmp_path: Path, keys: EncryptionOptions
) -> None:
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys)
        writer = await client.create()
        found: list[bytes] = []

        async def follow() -> None:
            reader = await client.open(writer.ledger_id)
            async for batch in reader.follow():
                found.extend(batch)

        following = asyncio.ensure_future(follow())
        for number, each in enumerate(PAYLOADS[:30]):
            await writer.append(each)
            # The LAC comes with the next entry.
            await until(lambda least=number: len(found) >= least, "the follower to read on")
        await writer.close()
        await following
        assert found == PAYLOADS[:30]

    run(tmp_path, test)


def test_pipe_as_key_file_is_refused_at_once(tmp_path: Path) -> None:
    """The file is read again for each ledger, and a pipe has its keys once: the client would wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    options = EncryptionOptions(str(pipe))
    for read in (options.check_keys, options.new_ledger):
        with pytest.raises(ConfigurationError, match=f"encryption_key_file {pipe}: it is a pipe"):
            read()
