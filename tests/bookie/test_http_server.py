"""The HTTP server with real sockets: its limits, and peers that are slow, hostile or gone."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import pytest

from bkspark.errors import ConfigurationError
from bkspark.security.roles import Role
from bookie_service.admin.http.access import HttpAccess
from bookie_service.admin.http.messages import HttpError, HttpRequest, HttpResponse, failed, plain
from bookie_service.admin.http.routing import Routes
from bookie_service.admin.http.server import serving
from bookie_service.settings.http_options import HttpLimits, HttpOptions
from tests.polling import wait_until

LIMITS = HttpLimits(connections=8, head_bytes=2048, body_bytes=4096, idle_s=5.0)


async def pieces() -> AsyncIterator[bytes]:
    for number in range(5):
        yield b"%d," % number
        await asyncio.sleep(0)


HELD: list[HttpRequest] = []
"""Requests that are being answered, for ever."""


async def answer(request: HttpRequest) -> HttpResponse:
    match request.path:
        case "/echo":
            facts = [request.method, request.query, request.body.decode(), str(request.role)]
            return HttpResponse(201, json.dumps(facts).encode(), "application/json")
        case "/pieces":
            return HttpResponse(pieces=pieces())
        case "/large":
            return HttpResponse(body=b"x" * 8_000_000)
        case "/change":
            request.need(Role.OPERATE)
            return plain("done")
        case "/hold":
            HELD.append(request)
            await asyncio.Event().wait()
            raise AssertionError("it is never answered")
        case "/defect":
            raise RuntimeError("a defect")
        case _:
            raise HttpError(404, "there is nothing at this path")


def served(act: Callable[[int], object], limits: HttpLimits = LIMITS) -> object:
    """Return what `act(port)` returned on another thread while the server ran."""

    async def serve() -> object:
        async with serving("127.0.0.1", 0, "httpServerPort", answer, limits, HttpAccess(HttpOptions())) as port:
            return await asyncio.wait_for(asyncio.to_thread(act, port), 60)

    return asyncio.run(serve())


def head(asked: bytes, lines: bytes = b"") -> bytes:
    """Return a request without a body."""
    return asked + b" HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n"


def talk(port: int, data: bytes, *, half_closes: bool = True) -> bytes:
    """Send bytes and return everything that comes until the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), 30) as peer:
        peer.sendall(data)
        if half_closes:
            peer.shutdown(socket.SHUT_WR)
        return peer.makefile("rb").read()


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def test_request_has_method_query_and_body() -> None:
    def ask(port: int) -> object:
        with urlopen(UrlRequest(f"http://127.0.0.1:{port}/echo?a=1&b=x%20y&a=2", b"body", method="PUT")) as reply:
            return reply.status, reply.headers["Content-Type"], json.load(reply)

    assert served(ask) == (201, "application/json", ["PUT", {"a": "1", "b": "x y"}, "body", "destroy"])


def test_one_connection_takes_many_requests_also_when_they_come_at_once() -> None:
    def ask(port: int) -> bytes:
        return talk(
            port,
            b"GET /pieces HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3 + b"GET /no HTTP/1.1\r\nHost: localhost\r\n\r\n",
        )

    reply = served(ask)
    assert isinstance(reply, bytes)
    assert reply.count(b"HTTP/1.1 200 ") == 3
    assert reply.count(b"4,\r\n0\r\n\r\n") == 3
    assert reply.count(b"HTTP/1.1 404 ") == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x00\x00\x40 this is not HTTP\r\n\r\n", 400),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 1000, 431),
        (b"PUT /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000, 413),
        (b"PUT /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n" + b"x" * 5000, 413),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /echo?" + b"&".join(b"a%d=1" % n for n in range(200)) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"PUT /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
    ],
    ids=[
        "no_http",
        "long_target",
        "long_head",
        "long_body",
        "long_chunks",
        "no_host",
        "no_utf8",
        "many_parameters",
        "bad_length",
    ],
)
def test_what_is_not_a_request_or_too_large_is_refused_and_the_connection_ends(data: bytes, status: int) -> None:
    reply = served(lambda port: talk(port, data))
    assert isinstance(reply, bytes)
    assert status_of(reply) == status


def test_slow_request_and_slow_reader_are_closed_and_others_are_served() -> None:
    def act(port: int) -> object:
        with (
            socket.create_connection(("127.0.0.1", port)) as slow,
            socket.socket() as reader,
            socket.create_connection(("127.0.0.1", port)) as silent,
        ):
            slow.sendall(b"GET /echo HTTP/1.1\r\nHost")
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", port))
            reader.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status_of(talk(port, b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 201
            for peer in (slow, silent):
                peer.settimeout(30)
                assert peer.recv(10) == b"", "closed without an answer"
            reader.settimeout(30)
            came = 0
            try:
                while data := reader.recv(1 << 20):
                    came += len(data)
            except ConnectionResetError:
                pass
            return came

    assert served(act, HttpLimits(idle_s=0.3)) < 8_000_000  # type: ignore[operator]


def test_idle_connections_do_not_keep_a_probe_out() -> None:
    """64 connections without a request made every probe fail, and an orchestrator restart the bookie."""

    def act(port: int) -> list[bytes]:
        peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(LIMITS.connections)]
        try:
            for peer in peers:  # served, so they are all accepted
                peer.sendall(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert b"201" in peer.recv(12)
            probes = [talk(port, b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(3)]
            # The oldest made room for the first probe; each later one had the place of the probe before.
            peers[-1].sendall(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status_of(_whole(peers[-1])) == 201
            return probes
        finally:
            for peer in peers:
                peer.close()

    probes = served(act)
    assert isinstance(probes, list)
    assert [status_of(each) for each in probes] == [201, 201, 201]


def _whole(peer: socket.socket) -> bytes:
    """Return what a connection has to read, from a response that was begun to be read up to the next one."""
    came = b""
    while came.count(b"HTTP/1.1") < 1 or not came.endswith(b"]"):
        came += peer.recv(1 << 16)
    return came[came.index(b"HTTP/1.1") :]


def test_connections_are_limited() -> None:
    def act(port: int) -> bytes:
        peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(LIMITS.connections)]
        try:
            for peer in peers:
                peer.sendall(b"GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until(lambda: len(HELD) == LIMITS.connections, "all requests to be answered")
            with socket.create_connection(("127.0.0.1", port), 30) as one_more:
                try:
                    return one_more.recv(10)
                except ConnectionResetError:
                    return b""
        finally:
            for peer in peers:
                peer.close()

    assert served(act) == b""


def test_defect_of_a_handler_is_a_500_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def act(port: int) -> list[int]:
        return [
            status_of(talk(port, b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % name))
            for name in (b"defect", b"echo")
        ]

    with caplog.at_level(logging.ERROR):
        assert served(act) == [500, 201]
    assert "a defect" in caplog.text


def test_page_of_a_browser_may_change_nothing() -> None:
    """A page that an operator's browser shows can send requests to 127.0.0.1; browsers name its origin then."""

    def act(port: int) -> list[int]:
        heads = (b"", b"Origin: http://evil.example\r\n", b"Origin: null\r\n")
        return [
            status_of(talk(port, b"PUT /change HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")) for head in heads
        ]

    assert served(act) == [200, 403, 403]


def test_head_has_no_body_and_100_continue_is_answered() -> None:
    def act(port: int) -> tuple[bytes, bytes]:
        answered = talk(port, head(b"HEAD /echo"))
        with socket.create_connection(("127.0.0.1", port), 30) as peer:
            peer.sendall(b"PUT /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            first = peer.recv(100)
            peer.sendall(b"ab")
            return answered, first

    answered, first = served(act)  # type: ignore[misc]
    assert answered.endswith(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 100 ")


def test_port_in_use_is_an_error_that_names_the_key() -> None:
    def act(port: int) -> str:
        async def again() -> None:
            async with serving(
                "127.0.0.1", port, "httpServerHost:httpServerPort", answer, LIMITS, HttpAccess(HttpOptions())
            ):
                pass

        with pytest.raises(ConfigurationError) as caught:
            asyncio.run(again())
        return str(caught.value)

    message = served(act)
    assert isinstance(message, str)
    assert message.startswith("httpServerHost:httpServerPort=127.0.0.1:")


def test_routes_find_parameters_and_wrong_methods() -> None:
    routes = Routes()

    async def show(request: HttpRequest) -> HttpResponse:
        return plain(json.dumps(request.query))

    routes.add("GET PUT", "/api/v2/ledgers/{ledger_id}/entries", show)
    routes.add("GET", "/api/v1/bookie/state", show, wrong_method=404)

    def asked(method: str, path: str) -> HttpResponse:
        return asyncio.run(routes.answer(HttpRequest(method, path, {"a": "1"}, role=Role.READ)))

    assert json.loads(asked("GET", "/api/v2/ledgers/17/entries").body) == {"a": "1", "ledger_id": "17"}
    for method, path, status in (
        ("POST", "/api/v2/ledgers/17/entries", 405),
        ("GET", "/api/v2/ledgers/17/18/entries", 404),
        ("PUT", "/api/v1/bookie/state", 404),
        ("GET", "/api/v1/nothing", 404),
    ):
        with pytest.raises(HttpError) as caught:
            asked(method, path)
        assert caught.value.status == status
        if path.startswith("/api/v2"):
            body = json.loads(failed(path, caught.value).body)
            assert body["error"]["status"] == status
