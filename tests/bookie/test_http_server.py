"""The HTTP server with real sockets: its limits, and peers that are slow, hostile or gone."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from http.client import HTTPResponse
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import pytest

from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.security.roles import Role
from bookie_service.admin.http.access import HttpAccess
from bookie_service.admin.http.messages import HttpError, HttpRequest, HttpResponse, failed, plain
from bookie_service.admin.http.routing import Routes
from bookie_service.admin.http.server import CHUNKS_MAX, serving
from bookie_service.settings.http_options import HttpLimits, HttpOptions
from tests.polling import wait_until

LIMITS = HttpLimits(connections=8, head_bytes=2048, body_bytes=4096, idle_s=5.0)
HELD: list[HttpRequest] = []
"""Requests for /held, which are never answered."""


async def pieces() -> AsyncIterator[bytes]:
    for number in range(5):
        yield b"%d," % number
        await asyncio.sleep(0)


async def broken_pieces(error: Exception) -> AsyncIterator[bytes]:
    yield b"the first part"
    raise error


async def answer(request: HttpRequest) -> HttpResponse:
    match request.path:
        case "/echo":
            facts = [request.method, request.query, request.body.decode(), str(request.role)]
            return HttpResponse(201, json.dumps(facts).encode(), "application/json")
        case "/pieces":
            return HttpResponse(pieces=pieces())
        case "/broken":
            return HttpResponse(pieces=broken_pieces(LookupError("a defect")))
        case "/failed":
            return HttpResponse(pieces=broken_pieces(BookKeeperError("the store went away")))
        case "/large":
            return HttpResponse(body=b"x" * 8_000_000)
        case "/held":
            HELD.append(request)
            await asyncio.Event().wait()
            raise AssertionError("the event is never set")
        case "/change":
            request.need(Role.OPERATE)
            return plain("done")
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
        (head(b"PUT /echo", b"Transfer-Encoding: chunked\r\n") + (b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 5, 413),
        (head(b"PUT /echo", b"Transfer-Encoding: chunked\r\n") + b"1\r\nx\r\n" * (CHUNKS_MAX + 1), 413),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /echo?" + b"&".join(b"a%d=1" % n for n in range(200)) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"PUT /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (head(b"PUT /echo", b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + b"0\r\n\r\n", 400),
        (head(b"PUT /echo", b"Content-Length: 4\r\nContent-Length: 5\r\n") + b"12345", 400),
        (head(b"PUT /echo", b"Transfer-Encoding: identity, chunked\r\n") + b"0\r\n\r\n", 501),
        (head(b"GET /echo", b"Host: evil\r\n"), 400),
    ],
    ids=[
        "no_http",
        "long_target",
        "long_head",
        "long_body",
        "long_chunks",
        "many_chunks",
        "small_chunks",
        "no_host",
        "no_utf8",
        "many_parameters",
        "bad_length",
        "two_framings",
        "two_lengths",
        "other_coding",
        "two_hosts",
    ],
)
def test_what_is_not_a_request_or_too_large_is_refused_and_the_connection_ends(data: bytes, status: int) -> None:
    reply = served(lambda port: talk(port, data))
    assert isinstance(reply, bytes)
    assert status_of(reply) == status


def test_body_of_as_many_chunks_as_are_allowed_is_taken() -> None:
    data = head(b"PUT /echo", b"Transfer-Encoding: chunked\r\nConnection: close\r\n")
    reply = served(lambda port: talk(port, data + b"1\r\nx\r\n" * CHUNKS_MAX + b"0\r\n\r\n"))
    assert isinstance(reply, bytes)
    assert status_of(reply) == 201
    assert b"x" * CHUNKS_MAX in reply


def test_head_that_comes_at_once_and_is_too_large_is_refused_before_it_is_parsed() -> None:
    """A head of 256 KiB was parsed for a quarter of a second, in which the bookie served no client."""
    reply = served(lambda port: talk(port, head(b"GET /echo", b"a:\r\n" * 5_000)))
    assert isinstance(reply, bytes)
    assert status_of(reply) == 431
    assert b"the request's head is too large" not in reply, "h11 noticed it by the size of what it had got"


def test_a_peer_cannot_choose_what_log_lines_are_counted_together(caplog: pytest.LogCaptureFixture) -> None:
    """A text of its own in each refused request would make each a line, and cost memory for ever."""
    caplog.set_level(logging.INFO)
    texts = [b"G%b ET /\r\n\r\n" % name for name in (b"a", b"b", b"c")]
    texts += [head(b"GET /", b"x%b y: z\r\n" % name) for name in (b"a", b"b", b"c")]

    def act(port: int) -> list[int]:
        return [status_of(talk(port, data)) for data in texts]

    assert served(act) == [400] * len(texts)
    kinds = [record.__dict__["kind"] for record in caplog.records if "HTTP 400" in record.getMessage()]
    assert len(kinds) == len(texts)
    assert len(set(kinds)) <= 2


def test_slow_request_and_slow_reader_are_closed_and_others_are_served() -> None:
    def act(port: int) -> object:
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", port))
            reader.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status_of(talk(port, b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 201
            with (
                socket.create_connection(("127.0.0.1", port)) as slow,
                socket.create_connection(("127.0.0.1", port)) as silent,
            ):
                slow.sendall(b"GET /echo HTTP/1.1\r\nHost")
                for peer in (slow, silent):
                    peer.settimeout(30)
                    assert peer.recv(10) == b"", "closed without an answer"
            # The server has waited for the reader before it waited for these: it has closed the reader's connection.
            reader.settimeout(30)
            came = 0
            try:
                while data := reader.recv(1 << 20):
                    came += len(data)
            except ConnectionResetError:
                pass
            return came

    assert served(act, HttpLimits(idle_s=0.3)) < 8_000_000  # type: ignore[operator]


PATIENT = replace(LIMITS, idle_s=60.0)


def ask(peer: socket.socket, path: bytes = b"/echo") -> int | None:
    """Return the status of a request on an open connection; None: the server has closed it."""
    try:
        peer.sendall(head(b"GET " + path))
        with HTTPResponse(peer) as response:
            response.begin()
            response.read()
            return response.status
    except ConnectionError:
        return None


def test_beyond_the_limit_the_connection_whose_peer_is_waited_for_longest_is_closed() -> None:
    """Connections that send nothing cannot block probes, even if they were served before."""

    def act(port: int) -> list[int | None]:
        peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(PATIENT.connections)]
        try:
            assert [ask(peer) for peer in peers] == [201] * len(peers)
            assert [status_of(talk(port, head(b"GET /echo"))) for _ in range(3)] == [201] * 3
            return [ask(peer) for peer in peers]
        finally:
            for peer in peers:
                peer.close()

    # The three came one after another, and took the place of one.
    assert served(act, PATIENT) == [None] + [201] * (PATIENT.connections - 1)


def test_an_address_with_many_silent_connections_loses_its_own_and_not_those_of_others() -> None:
    def act(port: int) -> int | None:
        with socket.create_connection(("127.0.0.1", port), 30, source_address=("127.0.0.9", 0)) as other:
            assert ask(other) == 201
            peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(3 * PATIENT.connections)]
            try:
                assert ask(peers[-1]) == 201
                return ask(other)
            finally:
                for peer in peers:
                    peer.close()

    assert served(act, PATIENT) == 201


def test_connections_whose_requests_are_served_are_limited() -> None:
    def act(port: int) -> int | None:
        peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(PATIENT.connections)]
        try:
            for peer in peers:
                peer.sendall(head(b"GET /held"))
            wait_until(lambda: len(HELD) == len(peers), "all requests to be with their handler")
            with socket.create_connection(("127.0.0.1", port), 30) as one_more:
                return ask(one_more)
        finally:
            for peer in peers:
                peer.close()

    HELD.clear()
    assert served(act, PATIENT) is None


def test_defect_of_a_handler_is_a_500_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def act(port: int) -> list[int]:
        return [
            status_of(talk(port, b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % name))
            for name in (b"defect", b"echo")
        ]

    with caplog.at_level(logging.ERROR):
        assert served(act) == [500, 201]
    assert "a defect" in caplog.text


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (b"/failed", "GET /failed failed, and was answered in part: the store went away"),
        (b"/broken", "GET /broken failed: this is a defect"),
    ],
)
def test_an_answer_that_fails_in_its_middle_ends_the_connection_without_an_end_of_the_answer(
    path: bytes, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the peer waits for ever, and its connection counts among those that are being served."""
    reply = served(lambda port: talk(port, head(b"GET " + path), half_closes=False))
    assert isinstance(reply, bytes)
    assert b"the first part" in reply
    assert not reply.endswith(b"0\r\n\r\n")
    assert line in caplog.text


def test_change_is_completed_although_its_peer_has_left() -> None:
    """A change that is cancelled in its middle would be half done, without a line in the audit log."""

    async def test() -> list[str]:
        began, may_end, seen = asyncio.Event(), asyncio.Event(), []

        async def change(request: HttpRequest) -> HttpResponse:
            if request.method == "PUT":
                began.set()
                await may_end.wait()
                seen.append("changed")
            return plain("done")

        access = HttpAccess(HttpOptions())
        async with asyncio.timeout(30), serving("127.0.0.1", 0, "httpServerPort", change, LIMITS, access) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(b"PUT /"))
            await began.wait()
            writer.transport.abort()
            for _ in range(2):
                assert status_of(await asyncio.to_thread(talk, port, head(b"GET /"))) == 200
                may_end.set()
        return seen

    assert asyncio.run(test()) == ["changed"]


def test_a_text_that_utf8_cannot_have_is_shown_escaped() -> None:
    """Half a pair of surrogates: JSON may name one, for example in a key that an error repeats."""
    assert plain("no key \ud800").body == b"no key \\ud800"
    assert failed("/api/v1/config/server_config", HttpError(400, "no key \ud800")).body == b"no key \\ud800\n"


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


def test_a_body_that_is_announced_as_too_large_is_refused_before_it_comes() -> None:
    """The peer was asked for the rest by 100, and waited for until the time-out of a silent one."""

    def act(port: int) -> bytes:
        lines = b"Content-Length: 99999999999999\r\nExpect: 100-continue\r\n"
        return talk(port, head(b"PUT /echo", lines), half_closes=False)

    reply = served(act, replace(LIMITS, idle_s=3600.0))
    assert isinstance(reply, bytes)
    assert status_of(reply) == 413
    assert reply.endswith(b"the request's body is too large\n")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (b"/api/v2/%ff", "the path is not UTF-8"),
        (b"/api/v2/ledgers?" + b"a=1&" * 101, "it has more than 100 parameters"),
        (b"http://[/api/v2", "the target cannot be understood"),
        (b"/api/v1/ledger/delete?ledger_id=1&a=b&ledger%5fid=2", "the parameter 'ledger_id' is given more than once"),
    ],
)
def test_a_target_that_cannot_be_read_says_why(target: bytes, why: str) -> None:
    reply = served(lambda port: talk(port, head(b"GET " + target)))
    assert isinstance(reply, bytes)
    assert status_of(reply) == 400
    headers, _, body = reply.partition(b"\r\n\r\n")
    if target.startswith(b"/api/v2/"):
        assert b"application/json" in headers
        body = json.loads(body)["error"]["message"].encode() + b"\n"
    assert body.decode() == f"the request cannot be used: {why}\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head(b"HEAD /echo", b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + b"0\r\n\r\n", 400),
        (head(b"HEAD /echo", b"Content-Length: 5000\r\n") + b"x" * 5000, 413),
    ],
    ids=["two_framings", "long_body"],
)
def test_head_that_is_refused_has_no_body_either(data: bytes, status: int, caplog: pytest.LogCaptureFixture) -> None:
    reply = served(lambda port: talk(port, head(b"HEAD /echo") + data))
    assert isinstance(reply, bytes)
    _, reply = reply.split(b"\r\n\r\n", 1)
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert reply.endswith(b"\r\n\r\n")
    assert "Traceback" not in caplog.text


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
        query = {"a": "1", "ledger_id": "18"}
        return asyncio.run(routes.answer(HttpRequest(method, path, query, role=Role.READ)))

    found = json.loads(asked("GET", "/api/v2/ledgers/17/entries").body)
    assert found == {"a": "1", "ledger_id": "17"}, "the path counts, not the query"
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
