"""Sessions at a real ZooKeeper with SASL (DIGEST-MD5) and TLS: who gets in, as whom, and what errors say."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from bkspark.errors import BookKeeperError, ConfigurationError, MetadataAccessDenied, MetadataError
from bkspark.metadata.acls import ALL, OPEN, Acl
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import ZooKeeperTree, open_tree
from bkspark.metadata.zookeeper_connection import ZooKeeperSockets
from bkspark.metadata.zookeeper_options import options_of
from bkspark.tls.contexts import TlsContext
from bkspark.tls.options import TlsOptions
from tests.metadata.severed import SeverableLink
from tests.security.certificates import Authority
from tests.security.closed_zookeeper import USERS, ClosedZooKeeper, one_pem

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("closed zookeeper")]

SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedZooKeeper]:
    with ClosedZooKeeper(tmp_path_factory.mktemp("closed")) as server:
        yield server


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(SECONDS):
            await test

    asyncio.run(limited())


def error_of(server: ClosedZooKeeper, keys: dict[str, str], **more: Any) -> str:
    """Return the one-line error of a session that cannot be opened; it shows no password."""

    async def opening() -> None:
        tree = await server.session(keys, **more)
        await tree.close()

    with pytest.raises(BookKeeperError) as caught:
        asyncio.run(opening())
    text = str(caught.value)
    assert "\n" not in text
    assert not any(password in text for password in USERS.values())
    return text


IDENTITIES = {
    "no proof": set(),
    "SASL": {("sasl", "bookkeeper")},
    "TLS": set(),
    "TLS with a certificate": {("x509", "CN=bookie")},
    "TLS and SASL": {("sasl", "bookkeeper")},
}


def keys_of(server: ClosedZooKeeper, name: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    if "TLS" in name:
        keys |= server.tls(server.authority.issue("bookie") if "certificate" in name else None)
    if "SASL" in name:
        keys |= server.login(closes=False)
    return keys


@pytest.mark.parametrize("name", IDENTITIES)
def test_session_has_the_identity_that_its_keys_prove(server: ClosedZooKeeper, name: str) -> None:
    """The server's own answer to whoAmI; and nodes are closed for exactly this identity (CREATOR_ALL)."""

    async def test() -> None:
        keys = keys_of(server, name)
        own = IDENTITIES[name]
        tree = await server.session(keys | ({"zkEnableSecurity": "true"} if own else {}))
        try:
            assert set(await tree.identities()) - {("ip", "127.0.0.1")} == own
            path, _ = await tree.create("/identity-", sequential=True)
            closed = tuple(Acl(scheme, user, ALL) for scheme, user in own)
            assert (await tree.acl(path))[0] == (closed or OPEN)
        finally:
            await tree.close()

    run(test())


def test_answers_that_are_held_decrypted_count_as_ready_to_read(tmp_path: Path) -> None:
    """OpenSSL decrypts a whole record; the socket is silent about the answers that come with the first one.

    kazoo asks the socket alone. It would go on only with the next ping, seconds later.
    """
    authority = Authority(tmp_path)
    key, chain = authority.issue("server").pem()
    server = TlsContext(TlsOptions(key_store=key, certificate_path=chain), is_server=True).current()
    sockets = ZooKeeperSockets(TlsContext(TlsOptions(trust_store=authority.pem), is_server=False))

    def answer(listener: socket.socket) -> None:
        with server.wrap_socket(listener.accept()[0], server_side=True) as accepted:
            accepted.sendall(b"oneatwo.")
            accepted.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with sockets.create_connection(listener.getsockname(), "127.0.0.1", SECONDS) as connected:
            assert connected.recv(4) == b"onea"
            assert super(ZooKeeperSockets, sockets).select([connected], [], [], 0.0)[0] == []
            assert sockets.select([connected], [], [], 0.0)[0] == [connected]
            assert connected.recv(4) == b"two."
            assert sockets.select([connected], [], [], 0.0)[0] == []
            connected.send(b".")
        thread.join()


def test_login_needs_no_library_for_sasl(server: ClosedZooKeeper) -> None:
    """kazoo's own SASL imports pure-sasl, which is not maintained."""

    async def test() -> None:
        tree = await server.session(server.login())
        await tree.close()

    run(test())
    assert "puresasl" not in sys.modules


def test_session_logs_in_again_after_a_lost_connection(server: ClosedZooKeeper) -> None:
    """Identities belong to a connection: a request of the session must never run without them."""

    async def test() -> None:
        async with SeverableLink("127.0.0.1", server.port) as link:
            uri = MetadataUri.parse(f"zk://127.0.0.1:{link.port}/ledgers")
            tree = await open_tree(uri, options_of(server.login()), session_timeout_s=20.0)
            try:
                session = tree.session_id
                path, _ = await tree.create("/again-", b"1", ephemeral=True, sequential=True)
                for version in range(3):
                    link.cut()
                    link.restore()
                    while True:
                        try:
                            stat = await tree.set(path, b"2", version)
                            break
                        except MetadataAccessDenied:
                            raise
                        except MetadataError:
                            await asyncio.sleep(0.05)
                            stat = await tree.exists(path)
                            if stat is not None and stat.version > version:
                                break
                    assert stat.version == version + 1
                assert tree.session_id == session
            finally:
                await tree.close()

    run(test())


def test_password_may_change_while_a_session_lasts(server: ClosedZooKeeper, tmp_path: Path) -> None:
    """A login that fails ends an attempt, and not the session; each attempt reads the JAAS file."""

    async def test() -> None:
        async with SeverableLink("127.0.0.1", server.port) as link:
            uri = MetadataUri.parse(f"zk://127.0.0.1:{link.port}/ledgers")
            jaas = tmp_path / "client.jaas"
            right = Path(server.jaas("bookkeeper")).read_text()
            jaas.write_text(right)
            keys = {"saslJaasConfig": str(jaas)}
            tree = await open_tree(uri, options_of(keys), session_timeout_s=20.0, call_timeout_s=2.0)
            try:
                session = tree.session_id
                jaas.write_text(right.replace("s3cret", "another"))
                link.cut()
                link.restore()
                while "refuses the SASL login" not in await failure_of(tree):
                    pass
                jaas.write_text(right)
                while await failure_of(tree):
                    pass
                assert tree.session_id == session
            finally:
                await tree.close()

    run(test())


async def failure_of(tree: ZooKeeperTree) -> str:
    """Return the error of a look-up, "" if it succeeds."""
    try:
        await tree.exists("/")
    except MetadataError as error:
        return str(error)
    return ""


# ---- what errors say ----


def test_wrong_password_is_named_at_once(server: ClosedZooKeeper) -> None:
    keys = {"saslJaasConfig": server.jaas("bookkeeper", "s3cret that is wrong")}
    text = error_of(server, keys)
    assert "it refuses the SASL login: the user name or the password is wrong" in text
    assert "wrong;" not in text
    assert "that is wrong" not in text


def test_untrusted_certificate_is_named_at_once(server: ClosedZooKeeper, tmp_path: Path) -> None:
    keys = server.tls() | {"zookeeper.ssl.trustStore.location": Authority(tmp_path, "other").pem}
    text = error_of(server, keys)
    assert "its certificate is refused" in text
    assert "zookeeper.ssl.trustStore.location" in text


def test_certificate_for_another_host_is_refused(tmp_path: Path) -> None:
    server = ClosedZooKeeper(tmp_path / "elsewhere")
    settings = {"ssl.keyStore.location": one_pem(server.authority.issue("elsewhere", ["zookeeper.example.com"]))}
    with ClosedZooKeeper(tmp_path / "named", settings) as named:
        keys = named.tls() | {"zookeeper.ssl.trustStore.location": server.authority.pem}
        assert "its certificate is refused: IP address mismatch" in error_of(named, keys)
        keys["zookeeper.ssl.hostnameVerification"] = "false"

        async def unchecked() -> None:
            await (await named.session(keys)).close()

        run(unchecked())


def test_client_certificate_that_the_server_does_not_trust_is_named(server: ClosedZooKeeper, tmp_path: Path) -> None:
    text = error_of(server, server.tls(Authority(tmp_path, "other").issue("client")))
    assert "it refuses the TLS connection" in text
    assert "zookeeper.ssl.keyStore.location" in text


def test_clear_session_at_a_port_with_tls_says_so(server: ClosedZooKeeper) -> None:
    async def test() -> None:
        with pytest.raises(MetadataError, match=r"set zookeeper\.client\.secure=true"):
            await open_tree(server.uri(secure=True), call_timeout_s=2.0)

    run(test())


def test_tls_at_a_clear_port_says_so(server: ClosedZooKeeper) -> None:
    async def test() -> None:
        with pytest.raises(MetadataError, match="is this its port with TLS"):
            await open_tree(server.uri(), options_of(server.tls()), call_timeout_s=2.0)

    run(test())


def test_server_that_demands_a_login_says_so(tmp_path: Path) -> None:
    """kazoo does not know this answer of the server's, and ends its thread on it."""
    with ClosedZooKeeper(tmp_path / "demanding", {"sessionRequireClientSASLAuth": "true"}) as server:

        async def test() -> None:
            tree = await server.session()
            try:
                with pytest.raises(MetadataAccessDenied, match=r"only after a SASL login.*saslJaasConfig"):
                    await tree.exists("/")
            finally:
                await tree.close()
            tree = await server.session(server.login())
            assert await tree.exists("/") is not None
            await tree.close()

        run(test())


def test_server_without_sasl_is_not_taken_for_one_that_proved_itself(zookeeper, server: ClosedZooKeeper) -> None:
    """It answers the login with nothing. Requests would be those of a client without identity."""

    async def test() -> None:
        host, port = zookeeper.connect_string.split(":")
        with pytest.raises(MetadataAccessDenied, match="its challenge has"):
            await open_tree(MetadataUri.parse(f"zk://{host}:{port}/ledgers"), options_of(server.login()))

    run(test())


def test_refused_request_names_the_node_and_the_client(server: ClosedZooKeeper) -> None:
    async def test() -> None:
        owner = await server.session(server.login())
        stranger = await server.session(server.login("stranger"))
        anonymous = await server.session()
        try:
            path, _ = await owner.create("/owned-", sequential=True)
            with pytest.raises(MetadataAccessDenied, match=rf"the read of {path}.*section Client of .*stranger.jaas"):
                await stranger.get(path)
            with pytest.raises(MetadataAccessDenied, match=rf"the write of {path}.*names no JAAS file"):
                await anonymous.set(path, b"", -1)
        finally:
            for tree in (owner, stranger, anonymous):
                await tree.close()

    run(test())


def test_closing_nodes_without_an_identity_is_refused(server: ClosedZooKeeper) -> None:
    """The server knows no certificate here: its clear port asks for none, and TLS shows none."""

    async def test() -> None:
        tree = await server.session({"saslJaasConfig": server.jaas("bookkeeper", section="Bookie")})
        try:
            assert ("sasl", "bookkeeper") not in await tree.identities()
        finally:
            await tree.close()

    run(test())
    keys = {"saslJaasConfig": server.jaas("bookkeeper", section="Bookie"), "zkEnableSecurity": "true"}
    assert "has no section 'Client'" in error_of(server, keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no section 'Client'"),
        ("Client {", "the text ends where"),
        ("Client { com.example.Login required; };", "must have one login module, DigestLoginModule or Krb5LoginModule"),
        (
            f"Client {{ {'org.apache.zookeeper.server.auth.DigestLoginModule'} required; }};",
            "needs username and password",
        ),
        ("Client { };", "must have one login module"),
    ],
)
def test_jaas_file_that_cannot_be_used_is_named(
    server: ClosedZooKeeper, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "client.jaas"
    path.write_text(text)
    said = error_of(server, {"saslJaasConfig": str(path), "zkEnableSecurity": "true"})
    assert message in said
    assert said.startswith(f"saslJaasConfig={path}: ")


def test_file_of_tls_that_is_missing_is_named_by_zookeepers_key(server: ClosedZooKeeper) -> None:
    keys = server.tls() | {"zookeeper.ssl.trustStore.location": "/none.pem"}
    with pytest.raises(ConfigurationError, match=r"^zookeeper\.ssl\.trustStore\.location=/none\.pem: "):
        run_session(server, keys)


def run_session(server: ClosedZooKeeper, keys: dict[str, str]) -> None:
    async def opening() -> None:
        await (await server.session(keys)).close()

    asyncio.run(opening())
