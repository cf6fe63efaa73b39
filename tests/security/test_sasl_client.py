"""Our client authenticates to bookies: ours in this process, and peers that break the rules."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking.scans import Scans
from bkspark.entries import EntryBatch
from bkspark.errors import AuthenticationFailed, BookieUnavailable, ConfigurationError, TlsFailed
from bkspark.net.pool import BookiePool, NetOptions, resolver
from bkspark.security.digest_md5 import challenge
from bkspark.security.sasl import (
    FILE_VARIABLE,
    SaslClient,
    SaslClientOptions,
    SaslServer,
    SaslServerOptions,
    sections_of,
)
from bkspark.tls.options import TlsOptions
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.adds import WireProtocol
from bkspark.wire.digest import DigestType, EntryDigest
from tests.bookie.serving import Serving, service_options
from tests.missing_packages import run_without
from tests.security.certificates import Authority
from tests.security.peers import Middle
from tests.security.principals import principals
from tests.security.sasl_serving import (
    DIGEST_MODULE,
    KERBEROS_MODULE,
    PASSWORD,
    USER,
    SaslPeer,
    auth_v2,
    by_digest,
    jaas_file,
    jaas_text,
)
from tests.security.tls_serving import ID, TlsPeer, client_options, listener, read_all, trusting, with_net

PAYLOADS = [b"one", b"two", b"three"]
PROTOCOLS = pytest.mark.parametrize("wire_protocol", list(WireProtocol))
DISABLED = "AuthDisabledPlugin"


@pytest.fixture
def jaas(tmp_path: Path) -> str:
    return jaas_file(tmp_path / "client.jaas", jaas_text())


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Serving]:
    with Serving(service_options(tmp_path, authentication=by_digest(tmp_path, required=True))) as served:
        with served.connect() as peer:
            SaslPeer(peer).authenticate()
            peer.add(1, 0, PAYLOADS)
        yield served


async def connect(pool: BookiePool) -> None:
    await pool.channel(ID)


def test_jaas_file_may_name_the_home_of_the_user_as_in_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/writer")
    path = jaas_file(tmp_path / "client.jaas", f'A {{ {KERBEROS_MODULE} required keyTab="${{user.home}}${{/}}k"; }};')
    (module,) = sections_of(path)["A"]
    assert module.options == {"keyTab": "/home/writer/k"}


# ---- both sides ours ----


@PROTOCOLS
def test_client_is_served_after_it_has_authenticated(bookie: Serving, jaas: str, wire_protocol: WireProtocol) -> None:
    async def read(pool: BookiePool) -> list[bytes]:
        found = await read_all(pool)
        seen.extend(principal.name for principal in principals(bookie))
        return found

    seen: list[str] = []
    net = NetOptions(sasl=SaslClientOptions(jaas))
    assert with_net(bookie.port, net, read, wire_protocol) == PAYLOADS
    assert seen == [USER]


@PROTOCOLS
def test_client_authenticates_inside_tls(tmp_path: Path, jaas: str, wire_protocol: WireProtocol) -> None:
    authority = Authority(tmp_path)
    tls = listener(authority.issue("bookie"), required=True)
    options = service_options(tmp_path, tls=tls, authentication=by_digest(tmp_path, required=True))
    with Serving(options) as bookie:
        with TlsPeer(bookie.port, trusting(authority)) as peer:
            SaslPeer(peer).authenticate()
            peer.add(1, 0, PAYLOADS)
        net = NetOptions(sasl=SaslClientOptions(jaas), tls=client_options(authority))
        assert with_net(bookie.port, net, read_all, wire_protocol) == PAYLOADS


@PROTOCOLS
def test_refused_certificate_is_not_taken_for_a_wrong_password(
    tmp_path: Path, jaas: str, wire_protocol: WireProtocol
) -> None:
    """In TLS 1.3 the bookie refuses it after the client has begun its login. The error spoke of user and password."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "other").issue("stranger")
    options = service_options(
        tmp_path, tls=listener(authority.issue("bookie"), authority), authentication=by_digest(tmp_path)
    )
    with Serving(options) as bookie:
        net = NetOptions(sasl=SaslClientOptions(jaas), tls=client_options(authority, stranger))
        refused = rf"^TLS with bookie {ID} failed: the bookie refuses the certificate of this client \(unknown ca\)"
        with pytest.raises(TlsFailed, match=refused) as caught:
            with_net(bookie.port, net, connect, wire_protocol)
    assert "_ssl.c" not in str(caught.value)


@PROTOCOLS
@pytest.mark.parametrize("change", [{"password": "wrong"}, {"user": "stranger"}, {"user": "reader", "password": "x"}])
def test_client_that_is_refused_gets_a_clear_error_without_its_password(
    bookie: Serving, tmp_path: Path, wire_protocol: WireProtocol, change: dict[str, str]
) -> None:
    jaas = jaas_file(tmp_path / "client.jaas", jaas_text(**change))
    net = NetOptions(sasl=SaslClientOptions(jaas))
    with pytest.raises(AuthenticationFailed, match=f"authentication with bookie {ID} failed: it .*refuses") as caught:
        with_net(bookie.port, net, connect, wire_protocol)
    assert PASSWORD not in str(caught.value)
    assert caught.value.code == -102


def test_scans_and_local_reads_do_not_bypass_authentication(tmp_path: Path, jaas: str) -> None:
    scans = Scans({}, NetOptions(sasl=SaslClientOptions(jaas)))
    assert not scans._is_clear

    async def read_local(net: NetOptions) -> EntryBatch | None:
        pool = BookiePool(resolver({}), net)
        try:
            return await pool.read_local("a bookie", 1, 0, 3, 1 << 20, EntryDigest(DigestType.CRC32C, b""))
        finally:
            await pool.close()

    for net in (NetOptions(sasl=SaslClientOptions(jaas)), NetOptions(tls=client_options(Authority(tmp_path)))):
        assert asyncio.run(read_local(net)) is None, "no connection is asked for"
    with pytest.raises(BookieUnavailable, match="had no address"):
        asyncio.run(read_local(NetOptions()))


# ---- bookies that break the rules ----


def v3_answer(plugin: str = "sasl", payload: bytes = b"", status: int = 0, txn_id: int = 0) -> bytes:
    message = protocol.AuthMessage(authPluginName=plugin, payload=payload)
    header = v3.header(protocol.AUTH, txn_id)
    return v3.encode_message(protocol.Response(header=header, status=status, authResponse=message))


@PROTOCOLS
def test_man_in_the_middle_that_says_authentication_is_disabled_gets_no_request(
    jaas: str, wire_protocol: WireProtocol
) -> None:
    """Apache's client counts itself authenticated then, and sends its requests."""
    answer = v3_answer(DISABLED) if wire_protocol is WireProtocol.V3 else auth_v2(b"", DISABLED)
    net = NetOptions(sasl=SaslClientOptions(jaas))
    with Middle(answer) as middle:
        with pytest.raises(AuthenticationFailed, match="has no authentication"):
            with_net(middle.port, net, read_all, wire_protocol)
        assert len(middle.received()) < 40


def test_client_uses_a_bookie_without_authentication_where_it_may(tmp_path: Path, jaas: str) -> None:
    with Serving(service_options(tmp_path)) as bookie:
        with bookie.connect() as peer:
            peer.add(1, 0, PAYLOADS)
        with pytest.raises(AuthenticationFailed, match="allowAuthDisabled=true"):
            with_net(bookie.port, NetOptions(sasl=SaslClientOptions(jaas)), read_all)
        net = NetOptions(sasl=SaslClientOptions(jaas, allow_auth_disabled=True))
        assert with_net(bookie.port, net, read_all) == PAYLOADS


@PROTOCOLS
def test_bookie_that_leaves_at_the_first_request_after_a_login_refuses_this_user(
    jaas: str, wire_protocol: WireProtocol
) -> None:
    """It may still refuse the user then: the last message of GSSAPI has no answer."""

    async def ask(pool: BookiePool) -> None:
        await (await pool.channel(ID)).read_last_entry(1, EntryDigest(DigestType.CRC32C, b""))

    answer = v3_answer(DISABLED) if wire_protocol is WireProtocol.V3 else auth_v2(b"", DISABLED)
    net = NetOptions(sasl=SaslClientOptions(jaas, allow_auth_disabled=True))
    refuses = "before it answered anything; it refuses this user"
    with Middle(answer, leaves=True) as middle, pytest.raises(AuthenticationFailed, match=refuses):
        with_net(middle.port, net, ask, wire_protocol)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "did not answer"),
        (auth_v2(b"rspauth=0"), "its challenge has another algorithm"),
        (auth_v2(b"\xff"), "not a list of directives"),
        (auth_v2(challenge("n"), "other"), "another authentication plugin"),
        (auth_v2(challenge("n")) + b"x", "more than one answer"),
        ((1 << 30).to_bytes(4, "big"), "a frame of 1073741824 bytes"),
        ((0).to_bytes(4, "big"), "a frame of 0 bytes"),
        ((5).to_bytes(4, "big") + b"\x02\x03\x00\x00\xff", "cannot be decoded"),
        (v2.encode_add_reply(1, 0), "with another one"),
        (v3_answer(), "the response to another request"),
    ],
)
def test_answer_that_breaks_the_rules_is_one_clear_error(jaas: str, answer: bytes, message: str) -> None:
    net = NetOptions(sasl=SaslClientOptions(jaas, timeout_s=0.3 if not answer else 10))
    with Middle(answer) as middle:
        with pytest.raises(AuthenticationFailed, match=message):
            with_net(middle.port, net, read_all)
        assert len(middle.received()) < 40


def test_server_that_does_not_know_the_password_gets_no_request(jaas: str) -> None:
    net = NetOptions(sasl=SaslClientOptions(jaas))
    with Middle(auth_v2(challenge("nonce")), auth_v2(b"rspauth=" + b"0" * 32)) as middle:
        with pytest.raises(AuthenticationFailed, match="has not proved"):
            with_net(middle.port, net, read_all)
        received = middle.received()
    assert PASSWORD.encode() not in received
    assert received.count(b"\x02\x03\x00\x00") == 2, "two AUTH messages, and nothing else"


# ---- the JAAS file ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no section 'BookKeeper'; its sections: none"),
        ("Bookie { };", "has no section 'BookKeeper'; its sections: Bookie"),
        ("BookKeeper { };", "must have one login module"),
        ("BookKeeper { x.Other required; };", "must have one login module"),
        (f"BookKeeper {{ {DIGEST_MODULE} required; }};", "needs username and password"),
        (f'BookKeeper {{ {DIGEST_MODULE} required username="u"; }};', "needs username and password"),
        ("BookKeeper {", "is not understood: line 1"),
    ],
)
def test_jaas_file_of_a_client_that_cannot_be_used_is_a_clear_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SaslClient(SaslClientOptions(jaas_file(tmp_path / "f", text)))


@pytest.mark.parametrize(
    ("text", "allowed", "message"),
    [
        (f'Bookie {{ {DIGEST_MODULE} required x="y"; }};', ".*", "has no users"),
        (f'Bookie {{ {DIGEST_MODULE} required user_a="b" user_c=""; }};', ".*", "user 'c' .* has an empty password"),
        ("BookKeeper { };", ".*", "has no section 'Bookie'"),
        (jaas_text(), "(", "it is not a regular expression"),
    ],
)
def test_jaas_file_of_a_bookie_that_cannot_be_used_is_a_clear_error(
    tmp_path: Path, text: str, allowed: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SaslServer(SaslServerOptions(jaas_file(tmp_path / "f", text), allowed_ids=allowed))


def test_jaas_file_that_is_missing_or_not_named_is_a_clear_error(
    tmp_path: Path, jaas: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match="name it by saslJaasConfig, or by BKSPARK_JAAS"):
        SaslClient(SaslClientOptions())
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        SaslClient(SaslClientOptions(str(tmp_path / "none")))
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        SaslClient(SaslClientOptions(str(tmp_path / "latin")))
    monkeypatch.setenv(FILE_VARIABLE, jaas)
    assert not SaslClient(SaslClientOptions()).may_block


def test_kerberos_without_its_package_is_a_clear_error(tmp_path: Path) -> None:
    text = f"BookKeeper {{ {KERBEROS_MODULE} required useTicketCache=true; }};"
    path = jaas_file(tmp_path / "f", text)
    program = (
        "from bkspark.security.sasl import SaslClient, SaslClientOptions\n"
        f"try:\n    SaslClient(SaslClientOptions({path!r}))\nexcept Exception as error:\n    print(error)"
    )
    done = run_without(["gssapi"], program)
    assert done.stdout == "Kerberos needs a package: gssapi is not installed: pip install 'bkspark[kerberos]'\n"


def test_options_hold_no_secret_and_travel_to_tasks(jaas: str) -> None:
    options = SaslClientOptions(jaas)
    assert pickle.loads(pickle.dumps(options)) == options
    assert PASSWORD not in repr(options)
    assert PASSWORD not in repr(vars(SaslClient(options)).keys())
    assert PASSWORD not in repr(SaslClient(options))
    assert PASSWORD not in repr(NetOptions(sasl=options, tls=TlsOptions()))
