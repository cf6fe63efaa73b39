"""Local reads and other users of the host: entries come from the bookie alone, and go to permitted users alone.

The abstract namespace has no permissions: the first process gets a name, and every process may connect to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import closing

import pytest

from bkspark.client import Client
from bkspark.net.local_reads import is_trusted, listener_uid
from bkspark.wire.local_reads import socket_name
from tests.ledger import other_user
from tests.ledger.in_process import InProcessCluster, run
from tests.ledger.other_user import OTHER_UID

ENTRIES = [b"true %03d" % number + b"." * 10_000 for number in range(100)]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")


async def written(client: Client) -> int:
    async with await client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        await writer.append_many(ENTRIES)
        return writer.ledger_id


async def scanned(client: Client, ledger_id: int) -> list[bytes]:
    return [entry async for batch in (await client.open(ledger_id)).batches() for entry in batch]


# ---- the client ----


@needs_root
def test_entries_are_not_taken_from_a_socket_of_another_user(tmp_path, caplog):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        ledger_id = await written(client)
        await cluster.bookies[0].flush()
        bookie = cluster.bookies[0].id
        port = int(bookie.rpartition(":")[2])
        squatter = other_user.start("squat", port, bookie, ledger_id)
        try:
            assert await asyncio.to_thread(squatter.stdout.readline) == "ready\n"
            assert await scanned(client, ledger_id) == ENTRIES
        finally:
            squatter.kill()
            squatter.wait()

    with caplog.at_level(logging.WARNING, "bkspark.net.local_reads"):
        run(tmp_path, test, bookies=1, local_reads=False)
    assert f"belongs to user {OTHER_UID}, and the bookie's port to user {os.geteuid()}" in caplog.text


def test_socket_is_trusted_if_it_belongs_to_this_user_to_root_or_to_the_user_of_the_port():
    assert is_trusted(500, own=500, of_port=None)
    assert is_trusted(0, own=500, of_port=None)
    assert is_trusted(600, own=500, of_port=600)
    assert not is_trusted(600, own=500, of_port=None)
    assert not is_trusted(600, own=500, of_port=700)
    assert not is_trusted(600, own=0, of_port=0)


def test_user_who_listens_at_a_port_is_found():
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as one,
        closing(socket.create_server(("", 0))) as all_addresses,
    ):
        for listener in (one, all_addresses):
            port = listener.getsockname()[1]
            assert listener_uid(socket.inet_aton("127.0.0.1"), port) == os.geteuid()
        assert listener_uid(socket.inet_aton("127.0.0.2"), one.getsockname()[1]) is None
        with closing(socket.create_connection(one.getsockname())) as connected:
            assert listener_uid(socket.inet_aton("127.0.0.1"), connected.getsockname()[1]) is None


# ---- the bookie ----


@needs_root
@pytest.mark.parametrize("readers", [frozenset(), frozenset({OTHER_UID})])
def test_a_user_who_is_not_permitted_gets_no_file(tmp_path, caplog, readers):
    async def test(cluster: InProcessCluster) -> None:
        client = cluster.client()
        ledger_id = await written(client)
        (bookie,) = cluster.bookies
        await bookie.flush()
        for _ in range(2):
            asking = other_user.start("ask", int(bookie.id.rpartition(":")[2]), bookie.id, ledger_id)
            said, _ = await asyncio.to_thread(asking.communicate)
            assert (said == "nothing\n") is not bool(readers)
        assert await scanned(client, ledger_id) == ENTRIES

    with caplog.at_level(logging.INFO, "bookie_service.network.local_reads"):
        run(tmp_path, test, bookies=1, local_readers=readers)
    refusals = [record for record in caplog.records if f"user {OTHER_UID}" in record.message]
    assert len(refusals) == (0 if readers else 1)


def test_bookie_warns_when_another_process_has_its_name(tmp_path, caplog):
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def test(cluster: InProcessCluster) -> None:
        (bookie,) = cluster.bookies
        await bookie.stop()
        bookie.forget_port()
        bookie._port = port
        squatter.bind(socket_name(port))
        with caplog.at_level(logging.WARNING):
            await bookie.start()

    with closing(squatter):
        run(tmp_path, test, bookies=1)
    (warning,) = (record for record in caplog.records if "local reads" in record.message)
    assert warning.levelname == "WARNING"
    assert f"bkspark-bookie-{port}" in warning.message
