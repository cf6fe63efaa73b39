"""GSSAPI with a real key distribution center: our client at our bookie. Apache's peers: tests/interop/test_sasl.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.errors import AuthenticationFailed, BookKeeperError, ConfigurationError
from bkspark.net.pool import BookiePool, NetOptions
from bkspark.security.mechanism import SaslFailure
from bkspark.security.principal import Principal
from bkspark.security.sasl import SaslClient, SaslClientOptions, SaslServer, SaslServerOptions
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.adds import WireProtocol
from bookie_service.network.authentication import ListenerAuthenticationOptions
from tests.bookie.serving import Serving, service_options
from tests.polling import wait_until
from tests.security import kdc
from tests.security.certificates import Authority
from tests.security.kdc import CLOCK_SKEW_S, REALM, SERVICE, STRANGER, WRITER, KeyDistributionCenter, section
from tests.security.matrix import Login, kerberos_cases
from tests.security.matrix_bookies import Certificates, MatrixClient, PolicyBookie, check
from tests.security.principals import principals
from tests.security.sasl_serving import KERBEROS_MODULE, SaslPeer, jaas_file
from tests.security.tls_serving import ID, listener, with_net
from tests.security.tls_serving import client_options as tls_client_options

pytestmark = [
    pytest.mark.skipif(bool(kdc.missing()), reason=kdc.missing() or "all is there"),
    pytest.mark.xdist_group("kerberos"),
]

PROTOCOLS = pytest.mark.parametrize("wire_protocol", list(WireProtocol))


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyDistributionCenter]:
    with KeyDistributionCenter(tmp_path_factory.mktemp("kdc")) as center:
        yield center


@pytest.fixture(scope="module")
def keytabs(realm: KeyDistributionCenter) -> dict[str, str]:
    return {name: realm.keytab(name) for name in (SERVICE, WRITER, STRANGER, "bookkeeper/elsewhere")}


@pytest.fixture(autouse=True)
def in_realm(realm: KeyDistributionCenter, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in realm.environment.items():
        monkeypatch.setenv(name, value)


def server_options(directory: Path, keytab: str, principal: str | None = SERVICE) -> SaslServerOptions:
    return SaslServerOptions(jaas_file(directory / "bookie.jaas", section("Bookie", keytab, principal)))


def client_options(directory: Path, keytab: str, principal: str = WRITER) -> SaslClientOptions:
    return SaslClientOptions(jaas_file(directory / f"{principal}.jaas", section("BookKeeper", keytab, principal)))


@pytest.fixture
def bookie(tmp_path: Path, keytabs: dict[str, str]) -> Iterator[Serving]:
    options = ListenerAuthenticationOptions(server_options(tmp_path, keytabs[SERVICE]), required=True)
    with Serving(service_options(tmp_path, authentication=options)) as served:
        yield served


@PROTOCOLS
def test_client_with_a_ticket_is_served_and_has_its_kerberos_principal(
    bookie: Serving, tmp_path: Path, keytabs: dict[str, str], wire_protocol: WireProtocol
) -> None:
    """The service has the host's name in the bookie's registration, here an address, as with Apache's clients."""

    async def connect(pool: BookiePool) -> list[Principal]:
        await (await pool.v3_channel(ID)).disk_space()
        return principals(bookie)

    net = NetOptions(sasl=client_options(tmp_path, keytabs[WRITER]))
    assert with_net(bookie.port, net, connect, wire_protocol) == [Principal(f"{WRITER}@{REALM}", "kerberos")]


@PROTOCOLS
@pytest.mark.parametrize("tls_required", [False, True], ids=["TLS optional", "TLS required"])
def test_exchange_inside_tls_proves_the_kerberos_principal(
    tmp_path: Path, keytabs: dict[str, str], wire_protocol: WireProtocol, tls_required: bool
) -> None:
    """The certificate that the client shows, too, does not replace its ticket."""
    authority = Authority(tmp_path)
    tls = listener(authority.issue("bookie"), authority, required=tls_required)
    options = ListenerAuthenticationOptions(server_options(tmp_path, keytabs[SERVICE]), required=True)

    async def connect(pool: BookiePool) -> list[Principal]:
        await (await pool.v3_channel(ID)).disk_space()
        return principals(bookie)

    in_tls = tls_client_options(authority, authority.issue("client"))
    with Serving(service_options(tmp_path, authentication=options, tls=tls)) as bookie:
        net = NetOptions(tls=in_tls, sasl=client_options(tmp_path, keytabs[WRITER]))
        assert with_net(bookie.port, net, connect, wire_protocol) == [Principal(f"{WRITER}@{REALM}", "kerberos")]
        for refused in (
            NetOptions(tls=in_tls),
            NetOptions(tls=in_tls, sasl=client_options(tmp_path, keytabs[STRANGER], STRANGER)),
        ):
            with pytest.raises(BookKeeperError):
                with_net(bookie.port, refused, connect, wire_protocol)
        if tls_required:
            clear = NetOptions(sasl=client_options(tmp_path, keytabs[WRITER]))
            with pytest.raises(AuthenticationFailed):
                with_net(bookie.port, clear, connect, wire_protocol)


@PROTOCOLS
def test_principal_that_is_not_allowed_is_refused(
    bookie: Serving, tmp_path: Path, keytabs: dict[str, str], wire_protocol: WireProtocol
) -> None:
    async def connect(pool: BookiePool) -> None:
        await (await pool.v3_channel(ID)).disk_space()

    net = NetOptions(sasl=client_options(tmp_path, keytabs[STRANGER], STRANGER))
    with pytest.raises(AuthenticationFailed, match="refuses this user"):
        with_net(bookie.port, net, connect, wire_protocol)


def test_bookie_with_the_key_of_another_service_is_refused(tmp_path: Path, keytabs: dict[str, str]) -> None:
    """The client's ticket is for the service of the host that it connects to: another one cannot read it."""

    async def connect(pool: BookiePool) -> None:
        await pool.channel(ID)

    other = server_options(tmp_path, keytabs["bookkeeper/elsewhere"], "bookkeeper/elsewhere")
    options = ListenerAuthenticationOptions(other)
    net = NetOptions(sasl=client_options(tmp_path, keytabs[WRITER]))
    with (
        Serving(service_options(tmp_path, authentication=options)) as bookie,
        pytest.raises(AuthenticationFailed, match="refuses this user"),
    ):
        with_net(bookie.port, net, connect)


def test_bookie_whose_section_names_no_principal_takes_tickets_for_each_key_of_its_keytab(
    tmp_path: Path, keytabs: dict[str, str], realm: KeyDistributionCenter
) -> None:
    hosts = ("one.example", "two.example")
    both = [realm.keytab(f"bookkeeper/{host}", "both") for host in hosts][-1]
    client = SaslClient(client_options(tmp_path, keytabs[WRITER]))
    of_all, of_one = (SaslServer(server_options(tmp_path, both, name)) for name in (None, f"bookkeeper/{hosts[0]}"))
    for host in hosts:
        assert of_all.begin().step(client.begin(host).first())
    assert of_one.begin().step(client.begin(hosts[0]).first())
    with pytest.raises(SaslFailure):
        of_one.begin().step(client.begin(hosts[1]).first())


def test_messages_of_another_exchange_prove_nothing(bookie: Serving, tmp_path: Path, keytabs: dict[str, str]) -> None:
    """A listener in the middle records an exchange, and sends all of it again."""
    client = SaslClient(client_options(tmp_path, keytabs[WRITER])).begin("127.0.0.1")
    sent = [client.first()]
    with bookie.connect() as peer:
        sasl = SaslPeer(peer)
        while not client.is_complete:
            sent.append(client.step(sasl.payload(sent[-1])) or b"")
        peer.send(sasl.frame(sent[-1]))
        assert peer.read(1, 0).status == v2.Status.ENOLEDGER
    with bookie.connect() as peer:
        peer.send(b"".join(SaslPeer(peer).frame(message) for message in sent))
        while peer.frame() is not None:
            pass
    assert principals(bookie) == []


@pytest.mark.parametrize("message", [b"", b"\0", b"x" * 1000, b"\x60\x82\xff\xff" + bytes(40)])
def test_damaged_message_ends_the_exchange(tmp_path: Path, keytabs: dict[str, str], message: bytes) -> None:
    server = SaslServer(server_options(tmp_path, keytabs[SERVICE]))
    with pytest.raises(SaslFailure):
        server.begin().step(message)
    client = SaslClient(client_options(tmp_path, keytabs[WRITER])).begin("127.0.0.1")
    exchange = server.begin()
    answer = exchange.step(client.first())
    assert answer is not None
    offer = exchange.step(client.step(answer) or b"")
    choice = client.step(offer or b"")
    assert choice is not None
    damaged = bytearray(choice)
    damaged[-1] ^= 1
    with pytest.raises(SaslFailure):
        exchange.step(bytes(damaged))
    assert exchange.principal is None


def test_client_without_a_ticket_gets_a_clear_error(tmp_path: Path) -> None:
    text = f"BookKeeper {{ {KERBEROS_MODULE} required useTicketCache=true; }};"
    client = SaslClient(SaslClientOptions(jaas_file(tmp_path / "f", text)))
    with pytest.raises(SaslFailure, match=r"(?i)no credentials|no kerberos credentials"):
        client.begin("127.0.0.1").first()


def test_expired_ticket_is_refused(tmp_path: Path, keytabs: dict[str, str], realm: KeyDistributionCenter) -> None:
    """A client with a ticket in a cache is served; once the ticket is over, it has nothing to show, and says so."""

    def of_cache(life_s: int) -> SaslClient:
        cache = realm.tickets(WRITER, keytabs[WRITER], life_s)
        text = f'BookKeeper {{ {KERBEROS_MODULE} required useTicketCache=true ticketCache="{cache}"; }};'
        return SaslClient(SaslClientOptions(jaas_file(tmp_path / "f", text)))

    assert of_cache(600).begin("127.0.0.1").first()
    short = of_cache(1)

    def why() -> str:
        try:
            short.begin("127.0.0.1").first()
        except SaslFailure as failure:
            return str(failure)
        return ""

    assert "expired" in wait_until(why, "the ticket to expire").lower()


def test_bookie_without_its_keytab_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the keys of bookkeeper/127\.0\.0\.1@TEST cannot be used"):
        SaslServer(server_options(tmp_path, str(tmp_path / "none")))


# ---- the matrix ----


class Tickets:
    """Logins by ticket, as cases of the matrix do them; one ticket is over."""

    def __init__(self, directory: Path, keytabs: dict[str, str], realm: KeyDistributionCenter) -> None:
        self._client = SaslClient(client_options(directory, keytabs[WRITER]))
        cache = realm.tickets(WRITER, keytabs[WRITER], 1)
        text = f'BookKeeper {{ {KERBEROS_MODULE} required useTicketCache=true ticketCache="{cache}"; }};'
        short = SaslClient(SaslClientOptions(jaas_file(directory / "short.jaas", text)))
        self._expired = short.begin("127.0.0.1").first()
        over = time.time() + 1 + 2 * CLOCK_SKEW_S
        wait_until(lambda: time.time() > over, "the ticket to be over")

    def check_expired(self, server: SaslServer) -> None:
        with pytest.raises(SaslFailure, match=r"(?i)expired"):
            server.begin().step(self._expired)

    def log_in(self, sasl: SaslPeer, login: Login) -> bool:
        """Return whether the bookie goes on with the exchange."""
        if login is Login.EXPIRED_TICKET:
            return isinstance(sasl.ask(self._expired), protocol.AuthMessage)
        client = self._client.begin("127.0.0.1")
        message = client.first()
        while not client.is_complete:
            answer = sasl.ask(message)
            if not isinstance(answer, protocol.AuthMessage):
                return False
            if login is Login.HALF:
                return True
            message = client.step(answer.payload) or b""
        sasl.peer.send(sasl.frame(message))
        return True


def test_every_request_after_every_login_by_ticket(
    tmp_path: Path, keytabs: dict[str, str], realm: KeyDistributionCenter
) -> None:
    certificates = Certificates(tmp_path)
    (tmp_path / "gssapi.jaas").write_text(section("Bookie", keytabs[SERVICE], SERVICE))
    tickets = Tickets(tmp_path, keytabs, realm)
    tickets.check_expired(SaslServer(SaslServerOptions(str(tmp_path / "gssapi.jaas"))))
    client = MatrixClient(certificates, tickets.log_in)
    cases = kerberos_cases()
    for policy in {case.policy for case in cases}:
        check([case for case in cases if case.policy == policy], client, PolicyBookie(certificates, policy))
