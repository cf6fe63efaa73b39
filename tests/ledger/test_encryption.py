"""Clients encrypt and open ledgers; bookies, recovery and clients without keys handle them as any others."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from bkspark.client import AdvancedLedgerWriter, EncryptionOptions, NetOptions, SnapshotReader
from bkspark.core.metadata import LedgerState
from bkspark.errors import ConfigurationError, DecryptionFailed, LedgerFenced
from bkspark.ledger.encryption import opening_metadata
from bkspark.wire.encrypted_entries import RECORD_KEY, TAG_BYTES
from tests.ledger.in_process import InProcessCluster, read_all, run
from tests.polling import until

PAYLOADS = [b"payload %d in clear" % i + bytes(i) for i in range(300)]


class KeyFile:
    """A key file that is rotated by appending a line, as its users do."""

    def __init__(self, path: Path, *key_ids: str) -> None:
        self.path = path
        for key_id in key_ids:
            self.add(key_id)

    def add(self, key_id: str, octet: int | None = None) -> None:
        key = bytes([len(key_id) if octet is None else octet]) * 31 + key_id.encode()[-1:]
        with self.path.open("a") as file:
            file.write(f"{key_id} {base64.b64encode(key).decode()}\n")

    @property
    def options(self) -> EncryptionOptions:
        return EncryptionOptions(str(self.path))


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys", "2026-10")


def on_disks(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("wire_protocol", ["v2", "v3"])
@pytest.mark.parametrize(("digest", "quorums"), [("crc32c", (3, 3, 2)), ("mac", (3, 2, 2)), ("dummy", (1, 1, 1))])
def test_entries_are_read_back_and_no_bookie_ever_has_them_in_clear(tmp_path, keys, wire_protocol, digest, quorums):
    async def test(cluster: InProcessCluster) -> None:
        ensemble, write_quorum, ack_quorum = quorums
        client = cluster.client(encryption=keys.options, digest=digest, password=b"pw", wire_protocol=wire_protocol)
        writer = await client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        assert await writer.append(PAYLOADS[0]) == 0
        assert await writer.append_many(PAYLOADS[1:]) == len(PAYLOADS) - 1
        metadata = await writer.close()
        stored_bytes = sum(map(len, PAYLOADS)) + TAG_BYTES * len(PAYLOADS)
        assert (metadata.last_entry, metadata.length) == (len(PAYLOADS) - 1, stored_bytes)
        reader = await client.open(writer.ledger_id)
        assert await read_all(reader) == PAYLOADS
        part = await reader.read(100, 250)
        assert (part.first_entry, list(part)) == (100, PAYLOADS[100:251])
        assert [entry async for batch in reader.batches(7, 9) for entry in batch] == PAYLOADS[7:9]
        for bookie in cluster.bookies:
            await bookie.flush()
        assert b"in clear" not in on_disks(tmp_path)

    run(tmp_path, test)


def test_a_follower_opens_entries_as_they_come(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        writer = await cluster.client(encryption=keys.options).create()
        reader = await cluster.client(encryption=keys.options).open(writer.ledger_id)
        found: list[bytes] = []
        await writer.append(PAYLOADS[0])
        await writer.append(PAYLOADS[1])
        async for batch in reader.follow():
            found += batch
            if len(found) < 20:
                await writer.append(PAYLOADS[len(found) + 1])
            elif not writer.metadata.is_closed:
                await writer.close()
        assert found == PAYLOADS[: len(found)]
        assert len(found) >= 20

    run(tmp_path, test)


def test_entries_under_chosen_ids_are_encrypted_too(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys.options)
        writer = AdvancedLedgerWriter(await client.create())
        above = await writer.submit(1, PAYLOADS[1:3])  # waits for entry 0
        await writer.append(0, PAYLOADS[0])
        await above
        await writer.close()
        assert await read_all(await client.open(writer.ledger_id)) == PAYLOADS[:3]

    run(tmp_path, test)


def test_a_client_without_keys_recovers_a_ledger_and_the_entries_still_open(tmp_path, keys):
    """Recovery sends stored bytes again: nothing is sealed a second time, which would raise an error."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys.options)
        writer = await client.create()
        await writer.append_many(PAYLOADS[:100])
        # An ensemble change resends what was not acknowledged by the new bookie.
        await cluster.bookie(writer.metadata.last_fragment.bookies[0]).stop()
        await writer.append_many(PAYLOADS[100:200])
        await until(lambda: len(writer.metadata.fragments) > 1, "the ensemble to change")
        metadata = await cluster.client().recover(writer.ledger_id)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 199)
        with pytest.raises(LedgerFenced):
            await writer.append(b"late")
        with pytest.raises(LedgerFenced):
            await writer.append_many([b"later"])
        assert await read_all(await client.open(writer.ledger_id)) == PAYLOADS[:200]

    run(tmp_path, test, bookies=4)


def test_rotation_encrypts_new_ledgers_with_the_newest_key_and_opens_old_ones(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys.options)
        ledgers = []
        for _ in range(3):
            async with await client.create() as writer:
                await writer.append(b"of %d" % len(ledgers))
            ledgers.append(writer.ledger_id)
            keys.add(f"2026-1{len(ledgers)}", octet=len(ledgers))  # the same client goes on
        ids = [(await client.metadata(ledger)).custom_metadata[RECORD_KEY] for ledger in ledgers]
        assert [b'"2026-1%d"' % i in record for i, record in enumerate(ids)] == [True] * 3
        assert [await read_all(await client.open(ledger)) for ledger in ledgers] == [[b"of 0"], [b"of 1"], [b"of 2"]]

    run(tmp_path, test)


def test_open_reader_needs_its_key_file_no_more(tmp_path, keys):
    """The file is read for the first entries of a ledger alone: it may be replaced while readers are open."""

    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys.options)
        async with await client.create() as writer:
            await writer.append_many(PAYLOADS)
        reader = await client.open(writer.ledger_id)
        assert list(await reader.read(0, 0)) == PAYLOADS[:1]
        keys.path.unlink()
        assert await read_all(reader) == PAYLOADS

    run(tmp_path, test)


def test_writer_that_has_ended_says_so_each_time_and_encrypts_no_id_twice(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys.options)
        writer = await client.create()
        await writer.append_many(PAYLOADS[:3])
        await cluster.client().recover(writer.ledger_id)
        for _ in range(3):
            with pytest.raises(LedgerFenced):
                await writer.append_many(PAYLOADS[:2])
            with pytest.raises(LedgerFenced):
                await writer.append(PAYLOADS[0])

    run(tmp_path, test)


def test_a_missing_and_a_wrong_key_are_one_error_that_names_option_and_key(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        async with await cluster.client(encryption=keys.options).create() as writer:
            await writer.append_many(PAYLOADS)
        other, wrong = KeyFile(tmp_path / "other", "2026-11"), KeyFile(tmp_path / "wrong")
        wrong.add("2026-10", octet=9)
        for options, reason in (
            (EncryptionOptions(), "'2026-10', and no key file is given: give encryption_key_file"),
            (other.options, f"'2026-10', which encryption_key_file {other.path} does not have"),
            (wrong.options, f"another key '2026-10' than encryption_key_file {wrong.path}"),
        ):
            reader = await cluster.client(encryption=options).open(writer.ledger_id)
            assert reader.last_entry == len(PAYLOADS) - 1
            for reading in (reader.batches(), reader.follow()):
                with pytest.raises(DecryptionFailed, match=reason):
                    await anext(aiter(reading))
            with pytest.raises(DecryptionFailed):
                await reader.read(0, 0)

    run(tmp_path, test)


def test_tools_show_entries_as_they_are_stored(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        async with await cluster.client(encryption=keys.options).create() as writer:
            await writer.append_many(PAYLOADS)
        async with await cluster.client().create() as clear:
            await clear.append(b"clear")
        shows = cluster.client(encryption=EncryptionOptions(shows_sealed=True))
        part = await (await shows.open(writer.ledger_id)).read(2, 5)
        assert part.sealed_with == part.slice(1, 3).sealed_with == "2026-10"
        assert [len(entry) for entry in part] == [len(payload) + TAG_BYTES for payload in PAYLOADS[2:6]]
        assert (await (await shows.open(clear.ledger_id)).read(0, 0)).sealed_with is None
        with_key = cluster.client(encryption=EncryptionOptions(str(keys.path), shows_sealed=True))
        assert list(await (await with_key.open(writer.ledger_id)).read(2, 2)) == [PAYLOADS[2]]

    run(tmp_path, test)


def test_clear_ledgers_are_read_by_clients_with_keys(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        async with await cluster.client().create() as writer:
            await writer.append_many(PAYLOADS)
        assert await read_all(await cluster.client(encryption=keys.options).open(writer.ledger_id)) == PAYLOADS

    run(tmp_path, test)


def test_logs_are_encrypted_read_and_followed(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        log = cluster.client(encryption=keys.options).log("clicks")
        async with await log.open_for_writing() as writer:
            await writer.append_many(PAYLOADS)
        found = [entry async for batch in log.read() for entry in batch]
        assert found == PAYLOADS
        shows = cluster.client(encryption=EncryptionOptions(shows_sealed=True)).log("clicks")
        assert {batch.sealed_with async for batch in shows.read()} == {"2026-10"}
        with pytest.raises(DecryptionFailed):
            _ = [batch async for batch in cluster.client().log("clicks").read()]

    run(tmp_path, test)


def test_a_plan_is_read_with_keys_alone(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client(encryption=keys.options)
        async with await client.create() as writer:
            await writer.append_many(PAYLOADS)
        registry = (await client.context()).registry
        addresses = {bookie.id: await registry.resolve(bookie.id) for bookie in cluster.bookies}
        metadata = await client.metadata(writer.ledger_id)
        reader = SnapshotReader(
            ledger_id=writer.ledger_id, metadata=metadata, addresses=addresses, encryption=keys.options
        )
        assert [e async for batch in reader.batches(3, 9) for e in batch] == PAYLOADS[3:9]
        await reader.close()

    run(tmp_path, test)


def test_entries_are_as_large_as_frames_allow_less_the_tag(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        net = NetOptions(frame_bytes_max=64 * 1024)
        clear = await cluster.client(net=net).create()
        client = cluster.client(net=net, encryption=keys.options)
        writer = await client.create()
        assert writer.entry_bytes_max == clear.entry_bytes_max - TAG_BYTES
        largest = bytes(writer.entry_bytes_max)
        await writer.append(largest)
        await writer.append_many([largest])
        with pytest.raises(ValueError, match="limit"):
            await writer.append(largest + b"x")
        assert (await writer.close()).length == 2 * (len(largest) + TAG_BYTES)
        await clear.close()

    run(tmp_path, test)


def test_the_records_name_is_taken_and_a_bad_key_file_creates_nothing(tmp_path, keys):
    async def test(cluster: InProcessCluster) -> None:
        with pytest.raises(ConfigurationError, match=r"bkspark\.encryption"):
            await cluster.client().create(metadata={RECORD_KEY: "x"})
        for path, reason in ((tmp_path / "missing", "No such file"), (tmp_path / "bad", "line 1")):
            (tmp_path / "bad").write_text("s3cret-without-id\n")
            with pytest.raises(ConfigurationError, match=reason) as caught:
                await cluster.client(encryption=EncryptionOptions(str(path))).create()
            assert "s3cret" not in str(caught.value)
        assert [ledger async for ledger in cluster.client().ledgers()] == []

    run(tmp_path, test)


def test_a_plan_keeps_what_opens_entries_and_nothing_else() -> None:
    """Without the record a task would take encrypted bytes for rows. Other custom metadata would make plans large."""
    custom = {RECORD_KEY: b"record", "application": b"bkspark"}
    assert opening_metadata(custom) == {RECORD_KEY: b"record"}
    assert opening_metadata({"application": b"bkspark"}) == {}


@pytest.mark.parametrize(("field", "value"), [("key_file", 5), ("option", None), ("shows_sealed", 1)])
def test_an_option_of_another_type_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=field):
        EncryptionOptions(**{field: value})


def test_there_is_nothing_to_check_without_a_key_file() -> None:
    EncryptionOptions().check_keys()
