"""Peers of the console that send nothing, or slowly, or take no answer: they end, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from bkspark.cli.console_limits import ConsoleLimits
from bkspark_console import guard
from bkspark_console.connections import LIMITS, OpenConnections
from tests.cluster import Cluster
from tests.console.process import ConsoleProcess
from tests.polling import wait_until

GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
FORM = "POST /form HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
PIECE = b"x" * 100_000


class Served:
    """What a small application has seen."""

    def __init__(self) -> None:
        self.held = 0
        self.streams_ended = 0

    async def held_page(self, request: web.Request) -> web.Response:
        self.held += 1
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(PIECE)
        finally:
            self.streams_ended += 1

    async def form(self, request: web.Request) -> web.Response:
        return web.Response(text=str(len(await guard._form(request))))


async def page(request: web.Request) -> web.Response:
    return web.Response(text="page")


async def large(request: web.Request) -> web.Response:
    return web.Response(body=PIECE * 100)


def served(act: Callable[[int, Served], object], limits: ConsoleLimits) -> object:
    """Return what `act(port, seen)` returned on another thread while an application was served."""

    async def serve() -> object:
        seen, app = Served(), web.Application(client_max_size=1 << 16)
        connections = OpenConnections(limits)
        connections.add_to(app)
        app[LIMITS] = limits
        app.router.add_get("/page", page)
        app.router.add_get("/large", large)
        app.router.add_get("/held", seen.held_page)
        app.router.add_get("/stream", seen.stream)
        app.router.add_post("/form", seen.form)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            server = runner.server
            assert server is not None
            listener = await asyncio.get_running_loop().create_server(
                lambda: connections.guarded(server()), "127.0.0.1", 0
            )
            with contextlib.closing(listener):
                port = listener.sockets[0].getsockname()[1]
                return await asyncio.wait_for(asyncio.to_thread(act, port, seen), 60)
        finally:
            await runner.cleanup()

    return asyncio.run(serve())


@contextlib.contextmanager
def peer_of(port: int, data: str = "", address: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.bind((address, 0))
        peer.settimeout(30)
        peer.connect(("127.0.0.1", port))
        peer.sendall(data.encode())
        yield peer


def status(port: int, data: str = GET.format("/page")) -> int:
    with peer_of(port, data) as peer:
        return int(peer.recv(100).split()[1])


def is_served(peer: socket.socket) -> bool:
    """Return whether a request on an open connection is answered."""
    try:
        peer.sendall(GET.format("/page").encode())
        return peer.recv(1000).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def end_of(peer: socket.socket) -> int:
    """Return how many bytes come until the connection ends."""
    came = 0
    with contextlib.suppress(ConnectionError):
        while data := peer.recv(1 << 16):
            came += len(data)
    return came


@pytest.mark.parametrize("data", ["", "GET /page HTTP/1.1\r\nHost: loc", GET.format("/page") + "GET /pa"])
def test_a_request_that_does_not_come_ends_its_connection(data: str) -> None:
    def act(port: int, seen: Served) -> None:
        with peer_of(port, data) as peer:
            end_of(peer)
        assert status(port) == 200

    served(act, ConsoleLimits(idle_s=0.2))


def test_a_head_that_comes_slowly_ends_at_the_time_of_one_that_does_not() -> None:
    """Each byte began the time again, or there was no end at all."""

    def act(port: int, seen: Served) -> None:
        with peer_of(port, "GET /page HTTP/1.1\r\nHost: localhost\r\n") as peer:
            peer.settimeout(0.05)
            for _ in range(600):
                try:
                    peer.sendall(b"X")
                    if not peer.recv(1):
                        return
                except TimeoutError:
                    continue
                except ConnectionError:
                    return
        raise AssertionError("it is still open")

    served(act, ConsoleLimits(idle_s=0.3))


@pytest.mark.parametrize("path", ["/large", "/stream"])
def test_an_answer_that_is_not_taken_ends_its_connection(path: str) -> None:
    def act(port: int, seen: Served) -> None:
        with peer_of(port, GET.format(path)) as peer:
            assert status(port) == 200
            if path == "/stream":
                wait_until(lambda: seen.streams_ended == 1, "the handler to end")
            else:
                with contextlib.suppress(ConnectionError):
                    wait_until(lambda: not is_served(peer), "the connection to end")
            assert end_of(peer) < len(PIECE) * 100

    served(act, ConsoleLimits(idle_s=0.3))


def test_a_request_that_is_handled_has_its_time() -> None:
    def act(port: int, seen: Served) -> None:
        with peer_of(port, GET.format("/held")) as held, peer_of(port) as silent:
            assert end_of(silent) == 0
            held.setblocking(False)
            with pytest.raises(BlockingIOError):
                held.recv(1)

    served(act, ConsoleLimits(idle_s=0.2))


def test_beyond_the_limit_the_silent_connections_of_the_greediest_address_end() -> None:
    def act(port: int, seen: Served) -> None:
        with contextlib.ExitStack() as held:
            other = held.enter_context(peer_of(port, GET.format("/page"), "127.0.0.9"))
            assert other.recv(1000).startswith(b"HTTP/1.1 200")
            silent = [held.enter_context(peer_of(port)) for _ in range(20)]
            assert status(port) == 200
            assert is_served(other)
            assert end_of(silent[0]) == 0
            assert is_served(silent[-1])

    served(act, ConsoleLimits(idle_s=60.0, connections=5))


def test_beyond_the_limit_of_handled_requests_a_new_connection_is_refused() -> None:
    def act(port: int, seen: Served) -> None:
        with contextlib.ExitStack() as opened:
            for _ in range(3):
                opened.enter_context(peer_of(port, GET.format("/held")))
            wait_until(lambda: seen.held == 3, "the requests to be handled")
            assert end_of(opened.enter_context(peer_of(port))) == 0
        wait_until(lambda: status_or_none(port) == 200, "those to be gone")

    served(act, ConsoleLimits(idle_s=60.0, connections=3))


def status_or_none(port: int) -> int | None:
    try:
        return status(port)
    except (ConnectionError, IndexError):
        return None


def test_a_form_that_does_not_come_is_answered() -> None:
    def act(port: int, seen: Served) -> None:
        assert status(port, f"{FORM}Content-Length: 5\r\n\r\na=b") == 408
        assert status(port, f"{FORM}Content-Length: 3\r\n\r\na=b") == 200

    served(act, ConsoleLimits(idle_s=60.0, form_s=0.2))


def test_closing_a_connection_whose_form_is_not_read_yet_is_not_reported_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Room for a new connection is made by closing one whose request has not begun."""

    def act(port: int, seen: Served) -> None:
        for _ in range(50):
            # The console may refuse a connection before its form is sent.
            with contextlib.suppress(ConnectionError), contextlib.ExitStack() as opened:
                for _ in range(10):
                    opened.enter_context(peer_of(port, f"{FORM}Content-Length: 500\r\n\r\nabc"))
        wait_until(lambda: status_or_none(port) == 200, "the forms to be gone")

    served(act, ConsoleLimits(idle_s=60.0, connections=1))
    assert "Error handling request" not in caplog.text


@pytest.mark.cluster
def test_silent_peers_and_half_forms_leave_the_console_to_others(console_cluster: Cluster, tmp_path: Path) -> None:
    """Each was kept for ever, up to the files that the process may open; each form was a traceback."""
    log, allowed = tmp_path / "console.log", 50
    options = ("--uri", console_cluster.uri, "--max-connections", str(allowed))
    with ConsoleProcess(*options, log=log) as console, contextlib.ExitStack() as opened:
        port = urlsplit(console.url).port
        assert port is not None
        for _ in range(allowed):
            with peer_of(port, f"{FORM}Content-Length: 500\r\n\r\nabc"):
                pass
        silent = [opened.enter_context(peer_of(port)) for _ in range(2 * allowed)]
        assert console.visitor().get("/").status == 200
        assert all(end_of(peer) == 0 for peer in silent[:allowed])
        assert len(list(Path(f"/proc/{console.pid}/fd").iterdir())) < allowed + 50
    assert "Traceback" not in log.read_text()
    assert "Error handling" not in log.read_text()
