"""HTTP requests whose bytes are meant for a proxy, the log or the next header: line ends, repeats, odd targets."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path

import pytest

from bkspark.log_lines import TextFormatter
from bkspark.security.roles import Role
from bookie_service.admin.http.messages import HttpRequest, HttpResponse, plain
from bookie_service.admin.http.routing import Routes
from bookie_service.settings.http_options import HttpOptions
from tests.security.http_serving import TOKENS, access_file, served

RIGHT, WRONG = (f"Authorization: Bearer {token}\r\n" for token in (TOKENS["destroy"], "an-unknown-token"))


def answer_to(port: int, head: str, *, host: str = "localhost") -> tuple[int, list[str], str]:
    """Return status, header lines and body of the answer to the bytes of a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
        line, _, rest = head.partition("\r\n")
        peer.sendall(f"{line}\r\nHost: {host}\r\nConnection: close\r\n{rest}\r\n".encode("latin-1"))
        with peer.makefile("rb") as file:
            answer = file.read().decode("latin-1")
    head, _, body = answer.partition("\r\n\r\n")
    first, *headers = head.split("\r\n")
    return int(first.split()[1]), headers, body


@pytest.mark.parametrize(
    "target",
    [
        "/read%0d%0aSet-Cookie:%20session=1",
        "/read%0aX-Injected:%20yes",
        "/%0d%0a%0d%0aHTTP/1.1%20200%20OK",
        "/nothing?x=%0d%0aX-Injected:%20yes",
        "/api/v2/%0d%0aX-Injected:%20yes",
        "/read%00%1b[2J",
        "/read%e2%80%a8audit:%20http:127.0.0.1:%20deleted",
    ],
)
def test_line_ends_in_a_target_become_no_header_and_no_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    with caplog.at_level(logging.DEBUG), served(HttpOptions(access_file=access_file(tmp_path))) as port:
        for credential, allowed in ((RIGHT, (200, 404)), (WRONG, (401,))):
            status, headers, _ = answer_to(port, f"GET {target} HTTP/1.1\r\n{credential}")
            assert status in allowed
            names = {header.partition(":")[0].lower() for header in headers}
            assert names <= {"content-type", "cache-control", "content-length", "connection", "www-authenticate"}
    written = [
        TextFormatter("%(message)s").format(record) for record in caplog.records if record.name.startswith("bookie")
    ]
    assert any("/" in line for line in written)
    assert all(line.isprintable() for line in written)


@pytest.mark.parametrize(
    "headers",
    [
        RIGHT + WRONG,
        WRONG + RIGHT,
        RIGHT + RIGHT,
        f"{RIGHT}Origin: http://localhost\r\nOrigin: http://evil.example\r\n",
        f"{RIGHT}Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n",
        f"{RIGHT}X-Operator: amy\r\nX-Operator: bob\r\n",
        f"{RIGHT}Host: evil.example\r\n",
        f"{RIGHT}Content-Length: 0\r\nContent-Length: 5\r\n",
        f"{RIGHT}Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        f"{RIGHT}X-Nul: a\0b\r\n",
        f"{RIGHT}X-Line: a\rX-Injected: b\r\n",
    ],
)
def test_header_that_decides_and_comes_twice_or_has_other_characters_is_refused(tmp_path: Path, headers: str) -> None:
    """A proxy and this server may otherwise see two different requests."""
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        assert answer_to(port, f"DELETE /destroy HTTP/1.1\r\n{headers}")[0] == 400
        assert answer_to(port, f"DELETE /destroy HTTP/1.1\r\n{RIGHT}")[0] == 200


def test_name_of_the_operator_ends_with_its_header_line(tmp_path: Path) -> None:
    """A folded header is one value; the name has no line end in the audit log."""
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        for sent in ("amy\r\n bob", "amy\t\x7fbob", "am\xe9"):
            status, _, body = answer_to(port, f"DELETE /destroy HTTP/1.1\r\n{RIGHT}X-Operator: {sent}\r\n")
            if status == 200:
                who = json.loads(body)[0]
                assert who.isprintable()
                assert who.isascii()
            else:
                assert status == 400


@pytest.mark.parametrize(
    "target", ["http://evil.example/destroy", "//evil.example/destroy", "/destroy;x", "*", "destroy"]
)
def test_host_of_the_header_is_checked_whatever_the_target_says(tmp_path: Path, target: str) -> None:
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        request = f"DELETE {target} HTTP/1.1\r\n{RIGHT}"
        assert answer_to(port, request, host="evil.example")[0] in (400, 421)
        assert answer_to(port, f"DELETE {target} HTTP/1.1\r\n{WRONG}")[0] in (400, 401, 404, 421)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/destroy", 200),
        ("HTTP://LOCALHOST:80/destroy?a=b", 200),
        ("https://[::1]:80/destroy", 200),
        ("http://evil.example/destroy", 421),
        ("http://evil.example:80/destroy", 421),
        ("http://localhost@evil.example/destroy", 421),
        ("http://0.0.0.0/destroy", 421),
        ("http:///destroy", 421),
        ("//evil.example/destroy", 404),
        ("//localhost/destroy", 404),
        ("evil:/destroy", 400),
        ("ftp://localhost/destroy", 400),
        ("destroy", 400),
        ("*", 400),
    ],
)
def test_host_of_a_target_counts_as_that_of_the_header(tmp_path: Path, target: str, status: int) -> None:
    """RFC 9112, 3.2.2: a host in the target replaces that of the header. A path of two slashes has no host."""
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        assert answer_to(port, f"DELETE {target} HTTP/1.1\r\n{RIGHT}")[0] == status


def test_requests_after_one_that_is_refused_are_not_served(tmp_path: Path) -> None:
    """A body that a refused request announces is not the next request, and no request is hidden in one."""
    hidden = f"DELETE /destroy HTTP/1.1\r\nHost: localhost\r\n{RIGHT}\r\n"
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        for head in (
            f"PUT /operate HTTP/1.1\r\nHost: localhost\r\n{WRONG}Content-Length: {len(hidden)}\r\n\r\n",
            f"GET /read HTTP/1.1\r\nHost: evil.example\r\n{RIGHT}Content-Length: {len(hidden)}\r\n\r\n",
            "GET /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
                peer.sendall((head + hidden).encode())
                peer.shutdown(socket.SHUT_WR)
                with peer.makefile("rb") as file:
                    answers = file.read()
            assert b" 200 " not in answers, answers


@pytest.mark.parametrize("query", [{}, {"ledger_id": "7"}])
def test_path_that_is_spelt_like_the_route_has_its_parameters_like_any_other(query: dict[str, str]) -> None:
    """`/api/v2/ledgers/{ledger_id}`, with the braces, took the ledger of the query, or failed without it."""
    routes = Routes()

    async def shown(request: HttpRequest) -> HttpResponse:
        return plain(request.query["ledger_id"])

    routes.add("GET", "/ledgers/{ledger_id}", shown)
    request = HttpRequest("GET", "/ledgers/{ledger_id}", query, role=Role.READ)
    assert asyncio.run(routes.answer(request)).body == b"{ledger_id}"
