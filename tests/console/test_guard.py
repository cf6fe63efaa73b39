"""What each request passes: host names, cross-site requests, sign-in, headers; changes go through bookies alone."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cluster import Cluster
from tests.console.process import ConsoleProcess, Page, Visitor

pytestmark = pytest.mark.cluster

TOKEN = "correct-horse-battery-staple"


def test_answers_forbid_foreign_content_and_frames(console: ConsoleProcess) -> None:
    page = console.visitor().get("/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert "Server" not in page.headers
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1", ""])
def test_a_request_for_another_host_name_gets_nothing(console: ConsoleProcess, host: str) -> None:
    """DNS rebinding: a page of another site whose name suddenly is this host's address."""
    page = console.visitor().get("/", Host=host)
    assert page.status in (400, 421)
    assert "Bookies that serve" not in page.text


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/healthz", 200),
        ("http://[::1]:80/healthz", 200),
        ("http://evil.example/healthz", 421),
        ("http://localhost@evil.example/healthz", 421),
        ("//evil.example/healthz", 404),
    ],
)
def test_the_host_of_a_target_counts_as_that_of_the_header(console: ConsoleProcess, target: str, status: int) -> None:
    address = urlsplit(console.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as peer:
        peer.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        with peer.makefile("rb") as file:
            assert file.readline().split()[1] == str(status).encode()


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}]
)
def test_what_is_refused_says_nothing_of_the_cluster(
    console: ConsoleProcess, console_cluster: Cluster, headers: dict[str, str]
) -> None:
    page = console.visitor().get("/ledgers", **headers)
    assert page.status in (403, 421)
    assert "ledgers in the cluster" not in page.text
    linked = console.visitor().get("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert linked.status == 200, "another page may have a link to the console"


def test_an_address_cannot_make_a_page_say_something(console: ConsoleProcess) -> None:
    page = console.visitor().get("/?said=Call+the+help+desk&done=Call+the+help+desk")
    assert "help desk" not in page.text


def _action(visitor: Visitor, cluster: Cluster, csrf: str, **headers: str) -> Page:
    form = {"csrf": csrf, "read_only": "yes", "reason": "forged"}
    return visitor.post(f"/bookies/{cluster.bookies[0].id}/read-only", form, **headers)


def _is_read_only(visitor: Visitor, cluster: Cluster) -> bool:
    return "forged" in visitor.get(f"/bookies/{cluster.bookies[0].id}").text


def test_cross_site_requests_change_nothing(console: ConsoleProcess, console_cluster: Cluster) -> None:
    visitor, stranger = console.visitor(), console.visitor()
    csrf = visitor.get(f"/bookies/{console_cluster.bookies[0].id}").csrf
    foreign = stranger.get(f"/bookies/{console_cluster.bookies[0].id}").csrf
    for given, headers in (
        ("", {}),
        (foreign, {}),
        ("0" * 64, {}),
        (csrf, {"Origin": "http://evil.example"}),
        (csrf, {"Origin": "null"}),
        (csrf, {"Sec_Fetch_Site": "cross-site"}),
        (csrf, {"Sec_Fetch_Site": "same-site"}),
    ):
        assert _action(visitor, console_cluster, given, **headers).status == 403, (given, headers)
    assert visitor.get(f"/bookies/{console_cluster.bookies[0].id}/read-only").status == 405
    assert not _is_read_only(visitor, console_cluster)


def test_a_change_goes_to_the_bookie_and_into_its_audit_log(console: ConsoleProcess, console_cluster: Cluster) -> None:
    visitor, bookie = console.visitor(), console_cluster.bookies[1].id
    csrf = visitor.get(f"/bookies/{bookie}").csrf
    done = visitor.post(f"/bookies/{bookie}/read-only", {"csrf": csrf, "read_only": "yes", "reason": "a new disk"})
    assert (done.status, done.headers["Location"].partition("?")[0]) == (303, f"/bookies/{bookie}")
    page = visitor.get(f"/bookies/{bookie}")
    assert "State readonly" in page.words
    assert "a new disk" in page.words
    assert "bookie_readonly" in visitor.get("/").words
    visitor.post(f"/bookies/{bookie}/read-only", {"csrf": page.csrf, "read_only": "no"})
    assert "State available" in visitor.get(f"/bookies/{bookie}").words
    audit = visitor.get(f"/audit?bookie={bookie}").words
    assert "http:127.0.0.1 (for console:127.0.0.1) set read-only (a new disk)" in audit
    assert "set writable" in audit


def test_a_bookies_refusal_is_shown_and_recorded(console: ConsoleProcess, console_cluster: Cluster) -> None:
    visitor, bookie = console.visitor(), console_cluster.bookies[2].id
    csrf = visitor.get(f"/bookies/{bookie}").csrf
    refused = visitor.post(f"/bookies/{bookie}/keys", {"csrf": csrf, "key": "bookiePort", "value": "1"})
    assert refused.status == 502
    assert "bookiePort" in refused.words
    audit = visitor.get("/audit?change=bookiePort").words
    assert "refused:" in audit
    assert visitor.post(f"/bookies/{bookie}/keys", {"csrf": csrf, "key": "", "value": "1"}).status == 400
    assert visitor.post(f"/bookies/{bookie}/suspend", {"csrf": csrf, "what": "everything"}).status == 400


def test_a_form_that_is_too_large_is_refused(console: ConsoleProcess, console_cluster: Cluster) -> None:
    visitor = console.visitor()
    page = visitor.post(f"/bookies/{console_cluster.bookies[0].id}/keys", {"csrf": "x" * 200_000})
    assert page.status == 413


FORM = "application/x-www-form-urlencoded"
UNREADABLE: tuple[tuple[dict[str, str], bytes, int], ...] = (
    ({"Content-Type": f"{FORM}; charset=unicode_escape"}, b"csrf=\\ud800", 403),
    ({"Content-Type": FORM, "Origin": "http://["}, b"csrf=1", 403),
    ({"Content-Type": FORM, "Cookie": 'bkspark-console-PORT="\xff"'}, b"csrf=1", 403),
    ({"Content-Type": f"{FORM}; charset=none-of-these"}, b"csrf=1", 400),
    ({"Content-Type": f"{FORM}; charset=ascii"}, b"csrf=\xff", 400),
    ({"Content-Type": FORM, "Content-Encoding": "gzip"}, b"csrf=1", 400),
    ({"Content-Type": "multipart/form-data"}, b"csrf=1", 415),
    ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x\r\nnothing\r\n\r\n1", 415),
    ({"Content-Type": "application/json"}, b"{}", 415),
    ({"Authorization": f"Bearer {TOKEN}\r"}, b"", 400),
    ({"Authorization ": f"Bearer {TOKEN}"}, b"", 400),
)


def _status(console: ConsoleProcess, headers: dict[str, str], body: bytes) -> int:
    """Send a form as it is, and return the status of the answer."""
    address = urlsplit(console.url)
    lines = [f"{name}: {text}" for name, text in headers.items()]
    head = ["POST /sign-in HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *lines, "", ""]
    with socket.create_connection((address.hostname, address.port), timeout=30) as peer:
        peer.sendall("\r\n".join(head).replace("PORT", str(address.port)).encode("latin-1") + body)
        with peer.makefile("rb") as answer:
            return int(answer.readline().split()[1])


def test_a_request_that_cannot_be_read_is_answered_and_says_nothing_in_the_log(
    console_cluster: Cluster, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with ConsoleProcess("--uri", console_cluster.uri, log=log) as console:
        for headers, body, status in UNREADABLE:
            assert _status(console, headers, body) == status, headers
    for word in ("Traceback", "ERROR", TOKEN):
        assert word not in log.read_text()


# ---- sign-in ----


@pytest.fixture(scope="module")
def guarded(console_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(f"{TOKEN}\n")
    with ConsoleProcess("--uri", console_cluster.uri, "--token-file", str(token)) as process:
        yield process


def test_with_a_token_every_page_needs_it(guarded: ConsoleProcess) -> None:
    visitor = guarded.visitor()
    for path in ("/", "/bookies", "/ledgers/0/entries", "/ledgers/0/tail", "/logs", "/audit", "/operations"):
        refused = visitor.get(path)
        assert refused.status == 401, path
        assert "zk://" not in refused.text
    assert visitor.get("/", Accept="text/html").headers["Location"] == "/sign-in"
    assert visitor.get("/healthz").status == 200
    assert visitor.get("/", Authorization="Bearer wrong").status == 401
    assert visitor.get("/", Authorization=f"Bearer {TOKEN}").status == 200


def test_signing_in_gives_a_cookie_that_scripts_cannot_read(guarded: ConsoleProcess) -> None:
    visitor = guarded.visitor()
    csrf = visitor.get("/sign-in").csrf
    assert visitor.post("/sign-in", {"csrf": csrf, "token": "wrong"}).status == 403
    assert visitor.get("/").status == 401
    assert visitor.post("/sign-in", {"csrf": "", "token": TOKEN}).status == 403
    done = visitor.post("/sign-in", {"csrf": csrf, "token": TOKEN})
    assert done.status == 303
    assert "HttpOnly" in done.headers["Set-Cookie"]
    assert "SameSite=Strict" in done.headers["Set-Cookie"]
    page = visitor.get("/")
    assert page.status == 200
    assert visitor.post("/sign-out", {"csrf": page.csrf}).status == 303
    assert visitor.get("/").status == 401


# ---- the command ----


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["--host", "0.0.0.0"], 2, "--token-file"),
        (["--host", "a..b"], 2, "--host 'a..b' must be"),
        (["--token-file", "/nonexistent"], 2, "cannot be read"),
        (["--token-file", "/dev/null"], 2, "at least 16"),
        (["--port", "70000"], 2, "70000"),
        (["--uri", "http://x"], 2, "http://x"),
    ],
)
def test_a_wrong_option_ends_the_command_with_one_line(
    console_cluster: Cluster, options: list[str], code: int, reason: str
) -> None:
    command = [sys.executable, "-m", "bkspark.cli.__main__", "console", "--uri", console_cluster.uri, "--port", "0"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert reason in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_port_in_use_ends_the_command_with_one_line(console: ConsoleProcess, console_cluster: Cluster) -> None:
    port = console.url.rsplit(":", 1)[1].rstrip("/")
    command = [sys.executable, "-m", "bkspark.cli.__main__", "console", "--uri", console_cluster.uri, "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"--port {port} cannot be used" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.usefixtures("cold_starts")
def test_the_password_is_not_among_the_arguments_of_the_process(console_cluster: Cluster) -> None:
    with ConsoleProcess("--uri", console_cluster.uri, "--password", "s3cret") as process:
        assert process.visitor().get("/healthz").status == 200
        assert b"s3cret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
