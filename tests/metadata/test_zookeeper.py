"""What happens to a ZooKeeper session when the network or the server fails (docs/reliability.md, Z1 to Z9)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import threading
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from kazoo.protocol.serialization import SetData

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import MetadataError, SessionExpired
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from tests.metadata.severed import SeverableLink
from tests.polling import until

DEADLINE_S = 120.0
CLOSE = struct.pack(">i", -11)
METADATA = LedgerMetadata(3, 3, 2, (Fragment(0, ("b:1", "b:2", "b:3")),))


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.fixture
def run(zookeeper):
    """Runs a coroutine with a severable link, a tree that uses it and one that does not, and a root that exists."""
    host, port = zookeeper.connect_string.split(":")
    root = f"/{uuid.uuid4().hex}"

    async def call(test, session_timeout_s: float) -> None:
        async with SeverableLink(host, int(port)) as link:
            uri = MetadataUri.parse(f"zk://127.0.0.1:{link.port}{root}")
            severed = await open_tree(uri, session_timeout_s=session_timeout_s, call_timeout_s=1.0)
            other = await open_tree(MetadataUri.parse(f"zk://{host}:{port}{root}"))
            try:
                await BookieRegistry(other, uri).initialize_cluster()
                await test(link, severed, other, uri)
            finally:
                await severed.close()
                await other.close()

    return lambda test, session_timeout_s=20.0: asyncio.run(call(test, session_timeout_s))


async def loses(tree: Tree) -> bool:
    try:
        await tree.exists("/")
    except MetadataError:
        return True
    return False


def test_write_given_up_while_disconnected_never_takes_effect(run):
    async def test(link, severed, other, uri):
        link.cut()
        await eventually(lambda: loses(severed))
        with pytest.raises(MetadataError, match=f"127.0.0.1:{link.port}"):
            await severed.create(f"{uri.root}/late")
        link.restore()
        # The session's requests are done in order: what follows a write that took effect sees it.
        await eventually(lambda: works(severed))
        assert await severed.exists(f"{uri.root}/late") is None

    run(test)


@pytest.mark.parametrize(
    "read", [lambda tree: tree.get("/"), lambda tree: tree.exists("/"), lambda tree: tree.children("/")]
)
def test_read_whose_connection_is_lost_is_asked_again(run, read):
    async def test(link, severed, other, uri):
        patient = await open_tree(uri, call_timeout_s=DEADLINE_S)
        try:
            for _ in range(3):
                asked = asyncio.ensure_future(read(patient))
                await asyncio.sleep(0)
                link.cut()
                link.restore()
                assert await asked
        finally:
            await patient.close()

    run(test)


async def works(tree: Tree) -> bool:
    return not await loses(tree)


def test_watches_tell_what_changed_while_disconnected(run):
    async def test(link, severed, other, uri):
        heard, listed = asyncio.Event(), asyncio.Event()
        await severed.watch(f"{uri.root}/LAYOUT", heard.set)
        await severed.watch_children(uri.root, listed.set)
        link.cut()
        await eventually(lambda: loses(severed))
        heard.clear()
        listed.clear()
        await other.set(f"{uri.root}/LAYOUT", b"changed", -1)
        link.restore()
        async with asyncio.timeout(DEADLINE_S):
            await heard.wait()
            await listed.wait()
        heard.clear()
        listed.clear()
        await other.set(f"{uri.root}/LAYOUT", b"again", -1)
        await other.create(f"{uri.root}/new")
        async with asyncio.timeout(DEADLINE_S):
            await heard.wait()
            await listed.wait()

    run(test)


def test_expired_session_is_reported_and_its_bookie_registers_again(run):
    """Z3, M3: the same identity, owned by the new session."""

    async def test(link, severed, other, uri):
        registry, seen = BookieRegistry(severed, uri), BookieRegistry(other, uri)
        await registry.register("b-1", BookieAddress("h", 1))
        expired = asyncio.Event()
        registry.on_session_expired(expired.set)
        before = severed.session_id
        link.cut()

        async def is_gone() -> bool:
            return await seen.writable() == {}

        await eventually(is_gone)
        assert not expired.is_set()
        link.restore()
        async with asyncio.timeout(DEADLINE_S):
            await expired.wait()
        await eventually(lambda: works(severed))
        await registry.register("b-1", BookieAddress("h", 2))
        assert severed.session_id != before
        assert await seen.resolve("b-1") == ("h", 2)

    run(test, session_timeout_s=4.0)


def test_late_end_of_an_expired_bookie_leaves_its_successor_registered(run):
    async def test(link, severed, other, uri):
        old, new = BookieRegistry(severed, uri), BookieRegistry(other, uri)
        await old.register("b-1", BookieAddress("h", 1))
        link.cut()
        await new.register("b-1", BookieAddress("h", 2))
        link.restore()
        await eventually(lambda: works(severed))
        await old.unregister("b-1")
        assert await new.resolve("b-1") == ("h", 2)
        await new.unregister("b-1")
        assert await new.writable() == {}

    run(test, session_timeout_s=4.0)


def test_node_above_zookeepers_limit_is_an_error_that_says_so(run):
    async def test(link, severed, other, uri):
        for write in (
            other.create(f"{uri.root}/big", bytes(1 << 20)),
            other.set(f"{uri.root}/LAYOUT", bytes(1 << 20), -1),
        ):
            with pytest.raises(MetadataError, match=r"jute\.maxbuffer"):
                await write
        await eventually(lambda: works(other))

    run(test)


def test_ledger_metadata_above_zookeepers_limit_are_refused_and_written_once(run):
    """Each try costs the session its connection. A writer would have tried for a minute, and then named no cause."""

    async def test(link, severed, other, uri):
        patient = await open_tree(uri, call_timeout_s=DEADLINE_S)
        try:
            ledgers = LedgerStore(patient, uri)
            ledger_id, stored = await ledgers.create(METADATA)
            large = replace(stored.metadata, custom_metadata={"k": bytes(1 << 20)})
            before = link.connections
            with pytest.raises(MetadataError, match=r"jute\.maxbuffer") as refused:
                await ledgers.write(ledger_id, large, stored.version)
            assert not refused.value.is_outage
            assert (await ledgers.read(ledger_id)).metadata == stored.metadata
            assert link.connections == before + 1
        finally:
            await patient.close()

    run(test)


def test_error_that_zookeeper_answers_is_not_an_outage(run):
    """Commands that wait for ZooKeeper waited for ten minutes, although it had answered: here, refused."""

    async def test(link, severed, other, uri):
        await other.create(f"{uri.root}/ours", ephemeral=True)
        with pytest.raises(MetadataError, match="failed the creation of") as refused:
            await other.create(f"{uri.root}/ours/below")
        assert not refused.value.is_outage
        link.cut()
        with pytest.raises(MetadataError) as lost:
            await severed.get(uri.root)
        assert lost.value.is_outage

    run(test)


def test_no_log_line_shows_what_a_node_holds(run, caplog):
    """Metadata of ledgers have passwords. A program that logs everything has them in its log otherwise."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "bkspark.kazoo")

    async def test(link, severed, other, uri):
        ledgers = LedgerStore(severed, uri)
        ledger_id, stored = await ledgers.create(replace(METADATA, password=b"s3cret"))
        await ledgers.write(ledger_id, stored.metadata.closed(-1, 0), stored.version)
        assert (await ledgers.read(ledger_id)).metadata.password == b"s3cret"
        link.cut()
        link.restore()
        await eventually(lambda: works(severed))

    run(test)
    # kazoo logs a request whose answer it cannot read.
    logging.getLogger("bkspark.kazoo").error("request: %s", SetData("/ledgers/L1", b"s3cret", -1))
    assert "bkspark.kazoo" in {record.name for record in caplog.records}
    assert "s3cret" not in caplog.text


def test_connecting_that_is_cancelled_leaves_no_thread(run):
    """kazoo's threads would try to connect until the process ends, and no caller could close them."""

    async def test(link, severed, other, uri):
        link.cut()
        before = set(threading.enumerate())
        connecting = asyncio.ensure_future(open_tree(MetadataUri.parse(f"zk://127.0.0.1:{link.port}/ledgers")))
        await until(lambda: set(threading.enumerate()) - before, "kazoo's threads to start")
        connecting.cancel()
        await asyncio.wait([connecting])
        await until(lambda: not set(threading.enumerate()) - before, "kazoo's threads to end")

    run(test)


def test_watch_that_is_cancelled_while_it_is_set_reports_nothing(run):
    async def test(link, severed, other, uri):
        called = []
        setting = asyncio.ensure_future(other.watch(f"{uri.root}/LAYOUT", lambda: called.append("cancelled")))
        await asyncio.sleep(0)
        setting.cancel()
        await asyncio.wait([setting])
        await other.watch(f"{uri.root}/LAYOUT", lambda: called.append("kept"))
        await severed.set(f"{uri.root}/LAYOUT", b"changed", -1)
        await until(lambda: "kept" in called, "the other watch to report the change")
        assert "cancelled" not in called

    run(test)


def test_closed_session_refuses_calls(run):
    async def test(link, severed, other, uri):
        await severed.close()
        with pytest.raises(SessionExpired):
            await severed.exists("/")

    run(test)


def test_server_whose_answer_to_a_login_cannot_be_read_is_named_at_once(tmp_path, capfd):
    """kazoo's thread ended with struct.error: it never connected again, printed a traceback, and no caller knew why."""
    session = struct.pack(">iiqi16sB", 0, 10_000, 1, 16, bytes(16), 0)
    cut_off = struct.pack(">iqi", 1, 0, 0) + b"\0"
    jaas = tmp_path / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f'Client {{ {module} required username="u" password="p"; }};')

    async def test() -> None:
        has_left = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for reply in (session, cut_off):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                writer.write(struct.pack(">i", len(reply)) + reply)
            await reader.read()
            writer.close()
            has_left.set()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            address = "{}:{}".format(*server.sockets[0].getsockname())
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(MetadataError, match=f"{address}.*does not answer as ZooKeeper does"):
                    await open_tree(
                        MetadataUri.parse(f"zk://{address}/ledgers"),
                        ZooKeeperOptions(jaas_file=str(jaas)),
                        call_timeout_s=DEADLINE_S,
                    )
                await has_left.wait()

    asyncio.run(test())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("wrong", "is_repeated"),
    [
        (struct.pack(">i", 3) + b"abc", True),
        (struct.pack(">i", -1), True),
        (struct.pack(">iiqi", 16, 99, 1, 0), False),  # the answer to another request
        (struct.pack(">iiqi", 16, 1, 1, -999), True),  # an error that has no name
        (struct.pack(">iiqi", 17, 1, 1, 0) + b"x", False),  # a cut off body
    ],
)
def test_answer_that_is_not_zookeepers_ends_one_connection_at_most(capfd, wrong, is_repeated):
    """kazoo's thread ended for ever: a bookie lost its registration, and no call of the process was answered again."""
    session = struct.pack(">iiqi16sB", 0, 10_000, 1, 16, bytes(16), 0)

    async def test() -> None:
        answers = iter([wrong])

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(struct.pack(">i", len(session)) + session)
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    request = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                    no_node = struct.pack(">iiqi", 16, int.from_bytes(request[:4], signed=True), 1, -101)
                    writer.write(no_node if request[4:8] == CLOSE else next(answers, no_node))
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            address = "{}:{}".format(*server.sockets[0].getsockname())
            tree = await open_tree(MetadataUri.parse(f"zk://{address}/ledgers"), call_timeout_s=DEADLINE_S)
            if not is_repeated:
                with pytest.raises(MetadataError, match="cannot be read"):
                    await tree.exists("/a")
            async with asyncio.timeout(DEADLINE_S):
                assert await tree.exists("/a") is None
            await tree.close()

    asyncio.run(test())
    assert capfd.readouterr() == ("", "")


def test_server_that_accepts_and_stays_mute_is_an_error_and_prints_nothing(capfd):
    async def test() -> None:
        async def stay_mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with await asyncio.start_server(stay_mute, "127.0.0.1", 0) as server:
            address = "{}:{}".format(*server.sockets[0].getsockname())
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(MetadataError, match=address):
                    await open_tree(MetadataUri.parse(f"zk://{address}/ledgers"), call_timeout_s=0.3)

    asyncio.run(test())
    assert capfd.readouterr() == ("", "")
