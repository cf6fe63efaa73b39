"""HTTP of a bookie: who may do what, by token, certificate and host; pages of other sites; TLS and its limits.

The server is the real one, on real sockets. `/api/v2` and `/api/v1` of a whole bookie: `test_http_processes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import subprocess
import time
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from threading import Event, Thread

import pytest
from cryptography import x509

from bkspark.errors import ConfigurationError
from bkspark.tls.options import TlsOptions
from bookie_service.admin.http.face import check_credentials, http_serving
from bookie_service.metrics.families import Registry
from bookie_service.settings.configuration import configure
from bookie_service.settings.http_options import HttpLimits, HttpOptions
from tests.polling import wait_until
from tests.security.certificates import UNREADABLE_NAME, Authority, Leaf
from tests.security.http_serving import ACCESS, TOKENS, access_file, add_paths, served


def ask(port: int, method: str, path: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    if context is not None:
        connection = HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    with contextlib.closing(connection):
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[role]}"}


# ---- tokens and roles ----


def test_each_role_may_do_its_own_and_what_the_lower_ones_may(tmp_path: Path) -> None:
    asked = (("GET", "/metrics"), ("GET", "/read"), ("PUT", "/operate"), ("DELETE", "/destroy"))
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        for allowed, role in enumerate(TOKENS, 1):
            statuses = [ask(port, *each, **bearer(role))[0] for each in asked]
            assert statuses == [200] * allowed + [403] * (4 - allowed), role
        assert [ask(port, *each)[0] for each in asked] == [401] * 4
        assert ask(port, "GET", "/open")[0] == 200
        assert ask(port, "GET", "/nothing")[0] == 401, "a stranger does not learn which paths there are"
        assert ask(port, "GET", "/nothing", **bearer("metrics"))[0] == 404
        assert ask(port, "PATCH", "/destroy")[0] == 401
        # The rest of a line of the audit log is not the caller's to write.
        forged = json.loads(ask(port, "DELETE", "/destroy", X_Operator="a): delete (b", **bearer("destroy"))[1])[0]
        assert forged == "http:127.0.0.1 token:destroyer (for a]: delete [b)"
        who, principal, _ = json.loads(ask(port, "DELETE", "/destroy", X_Operator="amy", **bearer("destroy"))[1])
        assert (who, principal) == ("http:127.0.0.1 token:destroyer (for amy)", "token:destroyer")


def test_a_token_counts_in_its_header_alone(tmp_path: Path) -> None:
    token = TOKENS["destroy"]
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        for path in (f"/read?token={token}", f"/read?access_token={token}"):
            assert ask(port, "GET", path)[0] == 401
        for headers in ({"Cookie": f"token={token}"}, {"Authorization": token}, {"Authorization": f"Basic {token}"}):
            assert ask(port, "GET", "/read", **headers)[0] == 401
        assert ask(port, "GET", "/read", Authorization=f"bearer  {token}")[0] == 200


def test_wrong_tokens_are_limited_and_logged_without_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        wrong = [ask(port, "GET", "/read", Authorization=f"Bearer guess-{number:020}")[0] for number in range(12)]
        assert wrong == [401] * 10 + [429] * 2
        # Otherwise the answer would show that a guess is right.
        assert ask(port, "GET", "/read", **bearer("read"))[0] == 429
        assert ask(port, "GET", "/open")[0] == 200
        # A peer without a token chose how long a line of the log is.
        assert ask(port, "M" * 2000, f"/{'x' * 9000}")[0] == 401
    assert "guess-" not in caplog.text
    assert "this token is not known" in caplog.text
    assert any("/xxx" in record.getMessage() for record in caplog.records)
    assert all(len(record.getMessage()) < 500 for record in caplog.records)


def test_a_request_that_is_not_http_is_logged_and_answered_without_its_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = TOKENS["destroy"]
    requests = (
        f"GET /read HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\r\n\r\n",
        f"GET /read HTTP/1.1\r\nHost: localhost\r\nAuthorization : Bearer {token}\r\n\r\n",
        f"GET /read?token={token} HTTP/1.1 again\r\nHost: localhost\r\n\r\n",
        f"POST /operate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{token}\r\n",
        f"POST /operate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n.{token}\r\n",
    )
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        for request in requests:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
                peer.sendall(request.encode())
                with peer.makefile("rb") as answers:
                    answer = answers.read().decode()
            assert answer.startswith("HTTP/1.1 40"), request
            assert token not in answer
    assert token not in caplog.text
    assert "illegal header line" in caplog.text


def test_a_token_is_revoked_and_given_by_the_file_while_the_server_runs(tmp_path: Path) -> None:
    with served(HttpOptions(access_file=access_file(tmp_path))) as port:
        assert ask(port, "GET", "/read", **bearer("read"))[0] == 200
        access_file(tmp_path, f"token read other {TOKENS['operate']}\n")
        wait_until(lambda: ask(port, "PUT", "/operate", **bearer("operate"))[0] == 403, "the file to be read again")
        assert ask(port, "GET", "/read", **bearer("read"))[0] == 401


# ---- loopback ----


def test_without_credentials_this_host_may_do_everything(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), served(HttpOptions()) as port:
        assert "HTTP listens at this host alone" in caplog.text
        assert json.loads(ask(port, "DELETE", "/destroy")[1]) == ["http:127.0.0.1", "local:loopback", "destroy"]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"httpServerEnabled": "true", "httpServerHost": "0.0.0.0"}, "httpServerHost=0.0.0.0"),
        ({"httpServerEnabled": "true", "httpServerHost": "::"}, "httpServerHost=::"),
        ({"httpServerEnabled": "true", "httpServerHost": "bookie1.example.org"}, "httpServerHost=bookie1"),
        ({"httpServerEnabled": "true", "httpServerHost": "0.0.0.0", "httpServerTlsEnable": "true"}, "httpServerHost="),
        (
            {"statsProviderClass": "PrometheusMetricsProvider", "prometheusStatsHttpAddress": "0.0.0.0"},
            "prometheusStatsHttpAddress=0.0.0.0",
        ),
    ],
)
def test_beyond_loopback_without_credentials_is_refused_and_says_what_to_set(keys: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configure(keys)
    message = str(caught.value)
    assert message.startswith(key)
    for right in ("httpServerAccessFile", "httpServerTlsEnable=true", "httpServerTrustStorePath", "127.0.0.1"):
        assert right in message


def test_where_no_host_is_set_credentials_open_the_server_to_others(tmp_path: Path) -> None:
    """Apache's default is 0.0.0.0 with nothing to prove. Its files still start a bookie, and its log says so."""
    keys = {"httpServerEnabled": "true", "statsProviderClass": "PrometheusMetricsProvider"}
    alone = configure(keys)
    assert (alone.http.host, alone.http.metrics_host) == ("127.0.0.1", "127.0.0.1")
    assert alone.notes == ()
    guarded = configure({**keys, "httpServerAccessFile": access_file(tmp_path)})
    assert (guarded.http.host, guarded.http.metrics_host) == ("0.0.0.0", "0.0.0.0")
    certificates = {"httpServerTlsEnable": "true", "httpServerKeyStorePath": "k", "httpServerTrustStorePath": "t"}
    assert configure({**keys, **certificates}).http.host == "0.0.0.0"


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_bookie_that_serves_this_host_alone_has_its_http_server_there_too(tmp_path: Path, address: str) -> None:
    """With credentials, too, `bkspark local` opens no port to other hosts: tokens would cross the network in clear."""
    keys = {
        "httpServerEnabled": "true",
        "statsProviderClass": "PrometheusMetricsProvider",
        "httpServerAccessFile": access_file(tmp_path),
        "advertisedAddress": address,
        "allowLoopback": "true",
    }
    local = configure(keys)
    assert (local.http.host, local.http.metrics_host) == ("127.0.0.1", "127.0.0.1")
    assert configure({**keys, "httpServerHost": "0.0.0.0"}).http.host == "0.0.0.0"
    assert configure({**keys, "listeningInterface": "eth0"}).http.host == "0.0.0.0"


# ---- pages of browsers ----


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        # No page of this server sends changes, so this one is of another program that had the port.
        {"Origin": "http://127.0.0.1:{port}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
    ],
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str]) -> None:
    with served(HttpOptions()) as port:
        headers = {name: text.format(port=port) for name, text in headers.items()}
        for method, path in (("PUT", "/operate"), ("POST", "/operate"), ("DELETE", "/destroy")):
            assert ask(port, method, path, **headers)[0] == 403
            assert ask(port, method, path, Sec_Fetch_Site="none")[0] == 200
        status, _ = ask(port, "OPTIONS", "/destroy", **headers)
        assert status in (403, 405), "no preflight is granted"


def test_another_host_name_gets_nothing(tmp_path: Path) -> None:
    """DNS rebinding: a page of another site whose name suddenly is this host's address."""
    options = HttpOptions(allowed_hosts=("Bookies.Example.org",))
    with served(options, "bookie1") as port:
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1", ""):
            assert ask(port, "GET", "/read", Host=host)[0] in (400, 421), host
        # A name of this host for which browsers send no Sec-Fetch-Site, as they do for 127.0.0.1.
        for host in ("0.0.0.0", "0.0.0.0:8080", "[::]:80", "[::ffff:0.0.0.0]"):
            assert ask(port, "GET", "/read", Host=host)[0] == 421, host
        for host in ("user@evil.example", "127.0.0.1@evil.example:80", "127.1", "2130706433"):
            assert ask(port, "GET", "/read", Host=host)[0] in (400, 421), host
        for host in ("localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:80", "bookie1:1", "bookies.example.org."):
            assert ask(port, "GET", "/read", Host=host)[0] == 200, host


def test_another_page_cannot_have_an_answer_as_a_part_of_itself() -> None:
    with served(HttpOptions()) as port:
        assert ask(port, "GET", "/read", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
        assert ask(port, "GET", "/read", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


# ---- TLS ----


def tls(leaf: Leaf, authority: Authority | None = None, *, optional: bool = False) -> TlsOptions:
    key, chain = leaf.pem()
    return TlsOptions(
        key_store=key,
        certificate_path=chain,
        trust_store=None if authority is None else authority.pem,
        client_authentication=authority is not None,
        optional_certificate=optional,
        refresh_s=1e-6,
    )


def client_context(authority: Authority, leaf: Leaf | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.pem)
    if leaf is not None:
        key, chain = leaf.pem()
        context.load_cert_chain(chain, key)
    return context


def test_certificates_have_the_roles_of_the_file_and_tokens_do_without(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "other")
    path = access_file(tmp_path, f"{ACCESS}certificate operate CN=ops\n")
    options = HttpOptions(access_file=path, tls=tls(authority.issue("bookie"), authority, optional=True))
    with served(options) as port:
        ops, stranger_to_file = (client_context(authority, authority.issue(name)) for name in ("ops", "unnamed"))
        assert json.loads(ask(port, "PUT", "/operate", ops)[1])[1:] == ["certificate:CN=ops", "operate"]
        assert ask(port, "DELETE", "/destroy", ops)[0] == 403
        assert ask(port, "GET", "/read", stranger_to_file)[0] == 403
        bare = client_context(authority)
        assert ask(port, "GET", "/read", bare)[0] == 401
        assert ask(port, "DELETE", "/destroy", bare, **bearer("destroy"))[0] == 200
        assert ask(port, "DELETE", "/destroy", ops, **bearer("read"))[0] == 403, "a token wins over a certificate"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(port, "GET", "/open", client_context(authority, stranger.issue("ops")))
        with pytest.raises((ConnectionError, OSError)):
            ask(port, "GET", "/open")
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(port, "GET", "/open", client_context(stranger))


def test_as_apaches_a_trust_store_alone_demands_a_certificate_that_may_do_everything(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with served(HttpOptions(tls=tls(authority.issue("bookie"), authority))) as port:
        assert ask(port, "DELETE", "/destroy", client_context(authority, authority.issue("any")))[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(port, "GET", "/open", client_context(authority))


def test_a_certificate_without_a_name_may_do_nothing(tmp_path: Path) -> None:
    """It proves no identity, so the audit log could not say who made a change."""
    authority = Authority(tmp_path)
    nameless = authority.issue_to("nameless", x509.Name([]))
    with served(HttpOptions(tls=tls(authority.issue("bookie"), authority))) as port:
        assert ask(port, "GET", "/open", client_context(authority, nameless))[0] == 200
        for method, path in (("GET", "/read"), ("DELETE", "/destroy")):
            assert ask(port, method, path, client_context(authority, nameless))[0] == 401


def test_a_certificate_that_cannot_be_read_closes_its_own_connection_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    strange = authority.issue_to("strange", x509.Name([]), [UNREADABLE_NAME])
    with caplog.at_level(logging.INFO), served(HttpOptions(tls=tls(authority.issue("bookie"), authority))) as port:
        with pytest.raises((ssl.SSLError, OSError)):
            ask(port, "GET", "/read", client_context(authority, strange))
        assert ask(port, "GET", "/read", client_context(authority, authority.issue("any")))[0] == 200
    assert "no TLS (its certificate cannot be read)" in caplog.text
    assert "never retrieved" not in caplog.text


def test_changed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = HttpOptions(tls=tls(authority.issue("bookie")))
    context = client_context(authority)
    with served(options) as port:
        before = shown_certificate(port, context)
        key, chain = authority.issue("renewed").pem()
        Path(key).replace(tmp_path / "bookie.key")
        Path(chain).replace(tmp_path / "bookie.pem")
        assert shown_certificate(port, context) != before
        assert ask(port, "GET", "/read", context)[0] == 200


def shown_certificate(port: int, context: ssl.SSLContext) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), 30) as outside,
        context.wrap_socket(outside, server_hostname="127.0.0.1") as inside,
    ):
        found = inside.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_pkcs12_and_an_error_names_the_key_of_http(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    store = authority.issue("bookie").pkcs12(b"pass word")
    (tmp_path / "password").write_bytes(b"pass word\n")
    keys = {
        "httpServerEnabled": "true",
        "httpServerTlsEnable": "true",
        "httpServerKeyStorePath": store,
        "httpServerKeyStorePasswordPath": str(tmp_path / "password"),
    }
    with served(configure(keys).http) as port:
        assert ask(port, "GET", "/read", client_context(authority))[0] == 200
    (tmp_path / "password").write_bytes(b"wrong")
    with pytest.raises(ConfigurationError, match=f"^httpServerKeyStorePath={store}: .* httpServerKeyStorePasswordPath"):
        check_credentials(configure(keys).http)
    with pytest.raises(ConfigurationError, match=r"^httpServerKeyStorePassword=\*\*\*: .*PasswordPath"):
        configure({**keys, "httpServerKeyStorePassword": "hunter2"})
    fallback = {"tlsKeyStore": "a.key", "tlsCertificatePath": "a.pem", "httpServerTlsEnable": "true"}
    of_port = configure({"httpServerEnabled": "true", **fallback}).http.tls
    assert of_port is not None
    assert (of_port.key_store, of_port.certificate_path, of_port.client_authentication) == ("a.key", "a.pem", False)


def test_half_open_and_slow_handshakes_end_and_others_are_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = client_context(authority)
    limits = HttpLimits(handshake_s=1.0, handshakes=16)
    with served(HttpOptions(tls=tls(authority.issue("bookie")), limits=limits)) as port:
        with contextlib.ExitStack() as held:
            silent = [held.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(40)]
            halves = [held.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(3)]
            for half in halves:
                half.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert ask(port, "GET", "/read", context)[0] == 200
            assert all(_is_closed(each) for each in (*silent, *halves))
        assert ask(port, "GET", "/read", context)[0] == 200


def _is_closed(peer: socket.socket) -> bool:
    """Whether the server ends a connection, by its deadline at the latest."""
    try:
        return peer.recv(100) == b""
    except ConnectionResetError:
        return True


def test_garbage_and_plain_http_at_a_port_of_tls_close_the_connection_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with served(HttpOptions(tls=tls(authority.issue("bookie")))) as port:
        for data in (
            b"GET /open HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\x16\x03\x01\xff\xff" + b"x" * 70_000,
            b"\x00",
        ):
            with socket.create_connection(("127.0.0.1", port), 30) as peer, contextlib.suppress(ConnectionError):
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                assert b"HTTP" not in peer.makefile("rb").read()
        assert ask(port, "GET", "/read", client_context(authority))[0] == 200


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-tls1_2"], "no renegotiation"),
        (["-tls1_1"], "Cipher is (NONE)"),
        (["-tls1_2", "-cipher", "aNULL:eNULL@SECLEVEL=0"], "Cipher is (NONE)"),
    ],
    ids=["renegotiation", "TLS 1.1", "no certificate"],
)
def test_neither_renegotiation_nor_what_is_weak_is_served(tmp_path: Path, flags: list[str], said: str) -> None:
    """`openssl s_client` renegotiates at a line R. Bookies' ports have the same contexts."""
    authority = Authority(tmp_path)
    with served(HttpOptions(tls=tls(authority.issue("bookie")))) as port:
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", authority.pem, *flags],
            input=b"R\nGET /open HTTP/1.1\r\nHost: localhost\r\n\r\n",
            capture_output=True,
            check=False,
            timeout=60,
        )
        shown = (done.stdout + done.stderr).decode(errors="replace")
        assert said in shown
        assert "HTTP/1.1 200" not in shown
        assert ask(port, "GET", "/open", client_context(authority))[0] == 200


def test_a_flood_of_handshakes_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    """No turn of the loop is longer than a few handshakes, because they begin one by one."""
    authority = Authority(tmp_path)
    options = HttpOptions(tls=tls(authority.issue("bookie")), serves_api=True, port=0)
    context = client_context(authority)
    is_over = Event()
    turns: list[float] = []

    def flood(port: int) -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as peer:
                context.wrap_socket(peer, server_hostname="127.0.0.1").close()

    async def serve() -> None:
        async def at_once() -> None:
            pass

        async with http_serving(options, Registry(), at_once, add_paths, ()) as at:
            assert at.api is not None
            threads = [Thread(target=flood, args=(at.api[1],)) for _ in range(8)]
            for thread in threads:
                thread.start()
            try:
                for _ in range(300):
                    began = time.thread_time()
                    await asyncio.sleep(0.002)
                    turns.append(time.thread_time() - began)
            finally:
                is_over.set()
                await asyncio.to_thread(_join, threads)

    asyncio.run(serve())
    # Processor time of this thread, which the machine's load does not change; three of 300 may be of the collector.
    assert sorted(turns)[-4] < 0.05


def _join(threads: list[Thread]) -> None:
    for thread in threads:
        thread.join()
