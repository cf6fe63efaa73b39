"""Where the HTTP servers of bookies are asked, by what their registrations say."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from kazoo.client import KazooClient

from bkspark.cli.bookie_http import BookieHttpAccess, http_origin, http_problem, is_this_host
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.registration import BookieAddress, encode
from bkspark.tls.options import TlsOptions
from bkspark_console.bookie_http import BookieHttp, BookieHttpError
from tests.bookie.child import BookieChild, new_cluster
from tests.cli.console import Console
from tests.clock import Clock
from tests.security.certificates import Authority

ELSEWHERE = "192.0.2.7"
"""An address that no host has."""
HTTP = {"httpServerEnabled": "true", "httpServerPort": "0"}


@pytest.mark.parametrize(
    ("host", "http", "origin"),
    [
        (ELSEWHERE, ("0.0.0.0", 8080), f"http://{ELSEWHERE}:8080"),
        (ELSEWHERE, ("", 8080), f"http://{ELSEWHERE}:8080"),
        ("2001:db8::7", ("::", 8080), "http://[2001:db8::7]:8080"),
        (ELSEWHERE, ("192.0.2.8", 8080), "http://192.0.2.8:8080"),
        ("127.0.0.1", ("127.0.0.1", 8080), "http://127.0.0.1:8080"),
        (socket.gethostname(), ("127.0.0.1", 8080), "http://127.0.0.1:8080"),
    ],
)
def test_a_server_is_asked_where_the_registration_says(host: str, http: tuple[str, int], origin: str) -> None:
    address = BookieAddress(host, 3181, http=http)
    assert http_problem(address) == ""
    assert http_origin(address) == origin


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
@pytest.mark.parametrize("host", [ELSEWHERE, "bookie7.example"])
def test_a_loopback_address_of_another_host_is_not_asked(host: str, loopback: str) -> None:
    """On this host it leads to another bookie, which would be shown, or changed, in place of that one."""
    assert not is_this_host(host)
    assert http_problem(BookieAddress(host, 3181, http=(loopback, 8080))) == "its HTTP server serves its own host alone"


def test_without_a_server_the_port_of_the_metrics_counts() -> None:
    address = BookieAddress(ELSEWHERE, 3181)
    assert http_problem(address) == "no HTTP server is registered"
    assert http_problem(address, (ELSEWHERE, 8000)) == ""
    assert http_origin(address, (ELSEWHERE, 8000)) == f"http://{ELSEWHERE}:8000"


def test_many_servers_are_asked_at_once() -> None:
    """With the six threads of a small host, a hundred dead bookies held up `bkspark top` for more than a minute."""
    count = 40

    async def test() -> None:
        together = asyncio.Barrier(count)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await together.wait()
            writer.write(b"HTTP/1.0 200 OK\r\n\r\nyes")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            access = BookieHttpAccess(None, None)
            found = await asyncio.gather(*(access.fetch(f"http://127.0.0.1:{port}/metrics") for _ in range(count)))
            assert found == [b"yes"] * count

    asyncio.run(test())


def test_a_changed_token_is_sent_with_the_next_request(tmp_path: Path) -> None:
    """The console runs for months. It sent the token of its start, and bookies refuse a host after ten wrong tokens."""
    clock, path = Clock(), tmp_path / "token"
    path.write_text("the-first-token-of-ops\n")
    access = BookieHttpAccess(str(path), None, clock)
    assert access.headers("http://b:1") == {"Authorization": "Bearer the-first-token-of-ops"}
    path.write_text("the-next-token-of-ops\n")
    clock.now += 1.0
    assert access.headers("http://b:1") == {"Authorization": "Bearer the-next-token-of-ops"}
    path.write_text("short")
    clock.now += 1.0
    assert access.headers("http://b:1") == {"Authorization": "Bearer the-next-token-of-ops"}


def test_files_are_read_beside_the_event_loop_and_by_one_thread(tmp_path: Path) -> None:
    """The pages of the console, and the picture of `top`, waited while a key store was parsed."""
    readers = set()

    def clock() -> float:
        readers.add(threading.get_ident())
        return 0.0

    path = tmp_path / "token"
    path.write_text("the-first-token-of-ops\n")
    trusted = Authority(tmp_path)

    async def test() -> None:
        access = BookieHttpAccess(str(path), TlsOptions(trust_store=trusted.pem), clock)
        readers.clear()
        console = BookieHttp(access)
        await asyncio.gather(*(access.fetch("https://127.0.0.1:1/metrics") for _ in range(8)))
        with pytest.raises(BookieHttpError):
            await console.text("https://127.0.0.1:1", "/metrics")
        await console.close()

    asyncio.run(test())
    assert len(readers) == 1
    assert threading.get_ident() not in readers


def test_changed_certificates_count_for_the_next_request(tmp_path: Path) -> None:
    """docs/security.md: files are read again when they have changed."""
    clock = Clock()
    first = Authority(tmp_path)
    access = BookieHttpAccess(None, TlsOptions(trust_store=first.pem), clock)
    before = access.tls_context
    assert access.tls_context is before
    second = Authority(tmp_path)
    assert second.pem == first.pem
    clock.now += 61
    (trusted,) = access.tls_context.get_ca_certs(binary_form=True)
    assert trusted == second.certificate.public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500 + b"\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 200 OK\r\n\r\n\xff",
        b"HTTP/1.1 200 OK\r\n\r\n[1]",
    ],
)
def test_program_of_another_kind_at_the_port_answers_nothing(answer: bytes) -> None:
    """`bkspark top` and `cluster bookies` ended with the exception, for all bookies."""

    async def test() -> None:
        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            access = BookieHttpAccess(None, None)
            assert await access.fetch_object(f"http://127.0.0.1:{port}/api/v2/bookie") is None

    asyncio.run(test())


@contextlib.contextmanager
def beside_another(
    zookeeper: ZooKeeperProcess, folder: Path
) -> Iterator[tuple[str, BookieChild, Callable[[str, BookieAddress], None]]]:
    """Yield the URI of a cluster, its bookie, and a function that registers another bookie with an address."""
    uri = new_cluster(zookeeper.connect_string, f"beside-{folder.name}")
    root = re.sub(r"^zk://[^/]*", "", uri)
    child, store = BookieChild(folder / "bookie", uri, **HTTP), KazooClient(zookeeper.connect_string)

    def register(bookie: str, address: BookieAddress) -> None:
        store.create(f"{root}/available/{bookie}", encode(address), ephemeral=True)

    with child.running():
        store.start()
        try:
            yield uri, child, register
        finally:
            store.stop()
            store.close()


@pytest.mark.cluster
def test_a_bookie_of_another_host_is_not_shown_by_the_figures_of_the_bookie_here(
    zookeeper: ZooKeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with beside_another(zookeeper, tmp_path) as (uri, child, register):
        there = f"{ELSEWHERE}:3181"
        register(there, BookieAddress(ELSEWHERE, 3181, http=("127.0.0.1", child.facts["http_port"])))
        console = Console(uri, monkeypatch, capfd)
        rows = {each["id"]: each for each in console.json("top", "--interval", "0.1")["bookies"]}
        assert rows[there]["problem"] == "its HTTP server serves its own host alone"
        assert rows[child.id]["problem"] == ""
        bookies = {each["id"]: each for each in console.json("cluster", "bookies")["bookies"]}
        assert bookies[there]["directories"] == []
        assert bookies[child.id]["directories"]


@pytest.mark.cluster
def test_directories_that_another_bookie_reports_are_not_shown(
    zookeeper: ZooKeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """After a move, the HTTP address of a registration may be that of another bookie on the same host."""
    with beside_another(zookeeper, tmp_path) as (uri, child, register):
        other, http = "other-bookie:3181", ("127.0.0.1", child.facts["http_port"])
        register(other, BookieAddress("127.0.0.1", child.port, {"bkspark.version": "0.1.0"}, http))
        console = Console(uri, monkeypatch, capfd)
        bookies = {each["id"]: each for each in console.json("cluster", "bookies")["bookies"]}
        assert bookies[other]["reachable"], "its HTTP server is asked"
        assert bookies[other]["directories"] == []
        rows = {each["id"]: each for each in console.json("top", "--interval", "0.1")["bookies"]}
        assert rows[other]["problem"].endswith(f" is the HTTP server of bookie {child.id}")
        assert (rows[other]["disk"], rows[child.id]["problem"]) == (None, "")
        directories = [each["directory"] for each in bookies[child.id]["directories"]]
        assert {str(tmp_path / "bookie" / kind) for kind in ("journal", "ledgers")} == set(directories)
