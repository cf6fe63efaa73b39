"""Chains with intermediates, and names, times and purposes of certificates.

The contexts of both sides shake hands in memory, so each case takes some milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from bkspark.errors import ConfigurationError
from bkspark.security.principal import Principal, principal_of_certificate
from bkspark.tls import contexts
from bkspark.tls.contexts import TlsContext, has_expired
from bkspark.tls.gate import TlsGate
from bkspark.tls.options import TlsOptions
from bkspark.wall_clock import wall_clock_ms
from bkspark.wire import v2
from bkspark.wire.start_tls import encode_start_tls
from tests.bookie.serving import Peer
from tests.security.certificates import Authority, Leaf
from tests.security.tls_serving import is_closed, listener, serving

STEPS_MAX = 6
DAY_MS = 24 * 3600 * 1000
PASSWORD = "changeit"


@pytest.fixture
def root(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def intermediate(tmp_path: Path, root: Authority) -> Authority:
    return Authority(tmp_path, "intermediate", root)


def context(options: TlsOptions, *, is_server: bool) -> ssl.SSLContext:
    return TlsContext(options, is_server=is_server).current()


def trusting(authority: Authority | str, **changes: object) -> ssl.SSLContext:
    """Return the context of a client that trusts an authority, or the certificates of a file."""
    trusted = authority.pem if isinstance(authority, Authority) else authority
    return context(TlsOptions(trust_store=trusted, **changes), is_server=False)  # type: ignore[arg-type]


def showing(pair: tuple[str, str], **changes: object) -> ssl.SSLContext:
    """Return the context of a bookie with a key and a chain."""
    return context(TlsOptions(key_store=pair[0], certificate_path=pair[1], **changes), is_server=True)  # type: ignore[arg-type]


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost", session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends after a complete handshake. Raises what the side that refuses the other raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    served = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server, server_hostname=host, session=session)
    done: set[ssl.SSLObject] = set()
    for _ in range(STEPS_MAX):
        for end in (asking, served):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
    assert len(done) == 2
    return served, asking


# ---- chains ----


def test_bookie_shows_the_intermediates_of_its_chain(root: Authority, intermediate: Authority) -> None:
    leaf = intermediate.issue("bookie")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer certificate"):
        shake_hands(showing(leaf.pem()), trusting(root))
    whole = showing(leaf.pem_with(intermediate.certificate))
    shake_hands(whole, trusting(root))
    # An intermediate in the trust store is an anchor, as in Java.
    shake_hands(showing(leaf.pem()), trusting(intermediate))
    other = Authority(leaf.directory, "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(whole, trusting(other))


def test_bookie_takes_the_intermediates_of_a_client(root: Authority, intermediate: Authority) -> None:
    server = showing(root.issue("bookie").pem(), client_authentication=True, trust_store=root.pem)
    writer = intermediate.issue("writer")
    for others in ([], [intermediate.certificate]):
        key, chain = writer.pem_with(*others)
        client = trusting(root, key_store=key, certificate_path=chain, client_authentication=True)
        if others:
            served, _ = shake_hands(server, client)
            assert served.getpeercert()["subject"] == ((("commonName", "writer"),),)
        else:
            with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer certificate"):
                shake_hands(server, client)


@pytest.mark.parametrize("order", ["as it is", "reversed", "with a stranger"])
def test_store_with_intermediates_shows_them_in_any_order(
    tmp_path: Path, root: Authority, intermediate: Authority, order: str
) -> None:
    leaf = intermediate.issue("bookie")
    others = [intermediate.certificate, root.certificate]
    if order == "reversed":
        others.reverse()
    if order == "with a stranger":
        others.insert(0, Authority(tmp_path, "stranger").certificate)
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    store = leaf.pkcs12(PASSWORD.encode(), others)
    server = context(TlsOptions(key_store=store, key_store_password_path=str(password)), is_server=True)
    _, asking = shake_hands(server, trusting(root))
    assert shown_by(asking) == ["bookie", "intermediate", "ca"]


def shown_by(asking: ssl.SSLObject) -> list[str]:
    """Return the common names of the certificates that the other side has sent."""
    # Public from Python 3.13 on.
    chain = asking._sslobj.get_unverified_chain()  # type: ignore[attr-defined]
    return [value for each in chain for ((name, value),) in each.get_info()["subject"] if name == "commonName"]


def test_chain_that_does_not_begin_with_the_leaf_is_a_clear_error(root: Authority, intermediate: Authority) -> None:
    leaf = intermediate.issue("bookie")
    key, chain = leaf.pem()
    wrong = leaf.directory / "wrong-order.pem"
    wrong.write_bytes(intermediate.certificate.public_bytes(Encoding.PEM) + Path(chain).read_bytes())
    with pytest.raises(ConfigurationError, match="fit the first certificate"):
        showing((key, str(wrong)))


def test_trusted_leaf_cannot_issue_certificates(tmp_path: Path, root: Authority) -> None:
    """Any certificate in a trust store is an anchor, but only an authority may sign others."""
    leaf = root.issue("bookie")
    forger = Authority(tmp_path, "forger")
    forger._key, forger.certificate = leaf.key, leaf.certificate
    forged = forger.issue("forged")
    _, trusted = leaf.pem()
    shake_hands(showing(leaf.pem()), trusting(trusted))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(showing(forged.pem()), trusting(trusted))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(showing(forged.pem_with(leaf.certificate)), trusting(trusted))


def test_store_with_several_keys_serves_one_with_its_own_certificate(tmp_path: Path) -> None:
    """As keytool writes them: two keys with their certificates, and a trusted certificate."""
    store, password = tmp_path / "several.p12", tmp_path / "password"
    password.write_text(PASSWORD)
    given = ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", PASSWORD]
    new = ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-ext", "SAN=DNS:localhost"]
    trusted = Authority(tmp_path, "trusted")
    for command in (
        [*new, "-alias", "first", "-dname", "CN=first"],
        [*new, "-alias", "second", "-dname", "CN=second"],
        ["-importcert", "-noprompt", "-alias", "trusted", "-file", trusted.pem],
    ):
        subprocess.run(["keytool", *command, *given], check=True, capture_output=True, timeout=60)
    server = context(TlsOptions(key_store=str(store), key_store_password_path=str(password)), is_server=True)
    anchors = context(TlsOptions(trust_store=str(store), trust_store_password_path=str(password)), is_server=False)
    _, asking = shake_hands(server, anchors)
    # The other key's certificate is not for this peer.
    assert shown_by(asking) in (["first"], ["second"])


# ---- times and purposes ----


def test_certificate_that_is_not_valid_yet_is_refused_by_both_sides(root: Authority) -> None:
    early = root.issue("early", begins_in_days=2)
    with pytest.raises(ConfigurationError, match="is not valid: it is valid from"):
        showing(early.pem())
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    plain.load_cert_chain(*reversed(early.pem()))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate is not yet valid"):
        shake_hands(plain, trusting(root))
    server = showing(root.issue("bookie").pem(), client_authentication=True, trust_store=root.pem)
    client = ssl.create_default_context(cafile=root.pem)
    client.load_cert_chain(*reversed(early.pem()))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate is not yet valid"):
        shake_hands(server, client)


def test_certificate_of_another_purpose_is_refused_by_both_sides(root: Authority) -> None:
    """A bookie's certificate that is for servers alone opens no door as a client's, and the reverse."""
    of_server = root.issue("of server", usages=[ExtendedKeyUsageOID.SERVER_AUTH])
    of_client = root.issue("of client", usages=[ExtendedKeyUsageOID.CLIENT_AUTH])
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        shake_hands(showing(of_client.pem()), trusting(root))
    server = showing(of_server.pem(), client_authentication=True, trust_store=root.pem)
    for leaf, is_served in ((of_client, True), (of_server, False)):
        key, chain = leaf.pem()
        client = trusting(root, key_store=key, certificate_path=chain, client_authentication=True)
        if is_served:
            shake_hands(server, client)
        else:
            with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
                shake_hands(server, client)


# ---- names ----


@pytest.mark.parametrize(
    ("names", "host", "is_right"),
    [
        (["*.example.org"], "bookie-1.example.org", True),
        (["*.example.org"], "BOOKIE-1.EXAMPLE.ORG", True),
        (["*.example.org"], "a.bookie-1.example.org", False),
        (["*.example.org"], "example.org", False),
        (["bookie-*.example.org"], "bookie-1.example.org", False),
        (["*"], "localhost", False),
        (["*.org"], "example.org", False),
        (["a.example.org", "b.example.org"], "b.example.org", True),
        (["a.example.org"], "a.example.org.evil.example", False),
        (["10.0.0.7"], "10.0.0.7", True),
        (["10.0.0.7"], "10.0.0.8", False),
        (["::1"], "0:0:0:0:0:0:0:1", True),
        (["*.0.0.1"], "127.0.0.1", False),
        (["bookie.example.org"], "10.0.0.7", False),
    ],
)
def test_name_of_a_bookie_is_compared_with_all_of_its_alternative_names(
    root: Authority, names: list[str], host: str, is_right: bool
) -> None:
    server = showing(root.issue("bookie", names).pem())
    if is_right:
        shake_hands(server, trusting(root), host)
        return
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(server, trusting(root), host)
    shake_hands(server, trusting(root, verify_host_name=False), host)


def test_dot_at_the_end_of_an_absolute_name_is_not_compared_as_in_java(root: Authority) -> None:
    """`advertisedAddress` may be `bookie-0.bookies.svc.cluster.local.`; names in certificates have no such dot."""
    server = showing(root.issue("bookie", ["bookie-0.example.org"]).pem())
    shake_hands(server, trusting(root), "bookie-0.example.org.")
    for host in ("bookie-1.example.org.", "bookie-0.example.org..", "bookie-0.example.", "."):
        with pytest.raises((ssl.SSLCertVerificationError, ValueError)):
            shake_hands(server, trusting(root), host)


def test_socket_compares_an_absolute_name_in_the_same_way(root: Authority) -> None:
    """As a connection to ZooKeeper or to the HTTP of a bookie does."""
    server = showing(root.issue("bookie", ["bookie-0.example.org"]).pem())
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        served = threads.submit(server.wrap_socket, theirs, server_side=True)
        with trusting(root).wrap_socket(ours, server_hostname="bookie-0.example.org.") as asking:
            assert asking.getpeercert()["subjectAltName"] == (("DNS", "bookie-0.example.org"),)  # type: ignore[index]
        served.result().close()


@pytest.mark.parametrize(
    ("subject", "exception"),
    [
        ("/C=DE/ST=Bayern/L=Hof/O=Bü GmbH/OU=etl/CN=bücher", None),
        ("/DC=org/DC=example/UID=7/CN=日本", None),
        ("/SN=Smith/GN=Ann/serialNumber=5/title=t/emailAddress=a@b.example/CN= x ", None),
        ("/businessCategory=b/jurisdictionL=l/jurisdictionST=s/jurisdictionC=DE/CN=#1", None),
        ("/CN=a=b", r"CN=a\=b"),
        ("/O=x/CN=a+UID=b", "CN=a+UID=b,O=x"),
    ],
)
def test_principal_is_the_subject_as_the_command_in_the_documentation_prints_it(
    tmp_path: Path, subject: str, exception: str | None
) -> None:
    """docs/security.md, section "Authorization", also names the two exceptions."""
    key, chain = str(tmp_path / "x.key"), str(tmp_path / "x.pem")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made = ["openssl", "req", "-x509", *curve, "-days", "9", "-utf8", "-subj", subject, "-keyout", key, "-out", chain]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    shown = ["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253,-esc_msb,utf8", "-in", chain]
    printed = subprocess.run(shown, check=True, capture_output=True, timeout=60, text=True).stdout
    _, asking = shake_hands(showing((key, chain)), trusting(chain, verify_host_name=False))
    expected = exception or printed.removeprefix("subject=").removesuffix("\n")
    assert principal_of_certificate(asking.getpeercert()) == Principal(expected, "certificate")


def test_common_name_counts_only_without_alternative_names_as_in_java(root: Authority) -> None:
    with_others, alone = root.issue("localhost", ["elsewhere.example"]), root.issue("localhost", [])
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(showing(with_others.pem()), trusting(root))
    shake_hands(showing(alone.pem()), trusting(root))
    # An address is never a common name.
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(showing(replace(root.issue("127.0.0.1", []), name="address").pem()), trusting(root), "127.0.0.1")


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1", f"{'a' * 63}.{'b' * 63}.{'c' * 63}.example", "xn--a"])
def test_name_that_a_client_asks_for_changes_nothing(root: Authority, name: str) -> None:
    """A bookie has one certificate, whatever the client's SNI says."""
    leaf: Leaf = root.issue("bookie")
    _, asking = shake_hands(showing(leaf.pem()), trusting(root, verify_host_name=False), name)
    assert asking.getpeercert(binary_form=True) == leaf.certificate.public_bytes(Encoding.DER)


# ---- sessions ----


def mutual(root: Authority, bookie: Leaf, writer: Leaf, version: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a bookie that demands certificates, and of a client that has one."""
    key, chain = writer.pem()
    server = showing(bookie.pem(), client_authentication=True, trust_store=root.pem)
    shown = {"key_store": key, "certificate_path": chain, "client_authentication": True}
    return server, trusting(root, protocols=(version,), **shown)


def test_session_of_tls_1_3_is_not_resumed(root: Authority) -> None:
    server, client = mutual(root, root.issue("bookie"), root.issue("writer"), "TLSv1.3")
    _, first = shake_hands(server, client)
    _, second = shake_hands(server, client, session=first.session)
    assert not second.session_reused


def test_session_of_tls_1_2_ends_with_the_certificate_and_with_the_context(
    root: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed handshake checks no certificate, so a client could go on with one that has expired."""
    bookie, writer = root.issue("bookie"), root.issue("writer", days=1)
    server, client = mutual(root, bookie, writer, "TLSv1.2")
    _, first = shake_hands(server, client)
    served, second = shake_hands(server, client, session=first.session)
    assert second.session_reused
    assert served.getpeercert()["subject"] == ((("commonName", "writer"),),)
    assert not has_expired(served)
    monkeypatch.setattr(contexts, "wall_clock_ms", lambda: wall_clock_ms() + 2 * DAY_MS)
    assert has_expired(served)
    # The handshake itself has checked the certificate of a new session.
    assert not has_expired(shake_hands(server, client)[0])
    # Files that changed make a new context, which knows no session.
    renewed, _ = mutual(root, bookie, writer, "TLSv1.2")
    assert not shake_hands(renewed, client, session=first.session)[1].session_reused


def test_bookie_closes_a_resumed_session_whose_certificate_has_expired(
    tmp_path: Path, root: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, client = mutual(root, root.issue("unused"), root.issue("writer", days=1), "TLSv1.2")
    with serving(tmp_path, listener(root.issue("bookie"), root)) as bookie:
        session = None
        for is_served in (True, True, False):
            if not is_served:
                monkeypatch.setattr(contexts, "wall_clock_ms", lambda: wall_clock_ms() + 2 * DAY_MS)
            with Peer(bookie.port) as peer:
                peer.send(encode_start_tls(7))
                assert peer.frame() is not None
                inside = client.wrap_socket(peer.socket, server_hostname="localhost", session=session)
                assert inside.session_reused == (session is not None)
                peer.go_on_over(inside)
                if is_served:
                    assert peer.add(1, 0, [b"x"]) == [v2.Status.EOK]
                else:
                    assert is_closed(inside)
                session = session or inside.session
    assert "the peer's certificate has expired" in caplog.text


class Greeting(asyncio.Protocol):
    """Says that a connection is served."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"served")


def test_http_closes_a_resumed_session_whose_certificate_has_expired(
    root: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie, writer = root.issue("bookie"), root.issue("writer", days=1)
    key, chain = bookie.pem()
    options = TlsOptions(key_store=key, certificate_path=chain, trust_store=root.pem, client_authentication=True)
    gate = TlsGate(TlsContext(options, is_server=True), 600.0, 8)
    _, client = mutual(root, bookie, writer, "TLSv1.2")

    def answer(port: int, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        connected = socket.create_connection(("127.0.0.1", port), timeout=30)
        with client.wrap_socket(connected, server_hostname="localhost", session=session) as inside:
            assert inside.session_reused == (session is not None)
            with contextlib.suppress(ConnectionError):
                said, session = inside.recv(6), inside.session
                if said:
                    # A connection that ends in another way ends its session, too.
                    inside.unwrap().close()
                return said, session
        return b"", None

    async def run() -> list[bytes]:
        server = await asyncio.get_running_loop().create_server(lambda: gate.protocol(Greeting), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        found = [await asyncio.to_thread(answer, port, None)]
        assert found[0][1] is not None
        found.append(await asyncio.to_thread(answer, port, found[0][1]))
        monkeypatch.setattr(contexts, "wall_clock_ms", lambda: wall_clock_ms() + 2 * DAY_MS)
        found.append(await asyncio.to_thread(answer, port, found[0][1]))
        server.close()
        return [each for each, _ in found]

    assert asyncio.run(run()) == [b"served", b"served", b""]
