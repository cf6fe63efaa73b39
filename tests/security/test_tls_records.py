"""Records of TLS that a peer makes small: one call of a connection takes few of them, so others wait for little.

A record of one byte costs the bookie as much as one of a KiB. 43,000 of them fit into one receive, and to decrypt them
took 100 ms of the event loop, also from a peer that had not logged in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bkspark.net.client_tls import RECORDS_MAX as CLIENT_RECORDS_MAX
from bkspark.net.client_tls import ClientTls
from bkspark.wire.start_tls import encode_start_tls
from bookie_service.network.connection import WINDOW_BYTES
from bookie_service.network.tls_records import HEADER_BYTES
from bookie_service.network.tls_socket import HANDSHAKE_BYTES_MAX, RECORDS_MAX, TlsFailure, TlsSocket
from tests.security.certificates import Authority
from tests.security.key_updates import SUITE, KeyUpdates
from tests.security.tls_serving import is_closed, listener, serving, trusting

LARGE_RECORDS = 6
"""Records of 16 KiB: a send buffer of Linux, which is 212,992 bytes at most by default, takes them together."""
SPACE = memoryview(bytearray(WINDOW_BYTES))


class Ends:
    """A connected pair of sockets: the bookie's end inside TLS, and a client that makes each record as it wants."""

    def __init__(self, folder: Path, key_log: Path | None = None) -> None:
        """`key_log`: where the client's secrets are written; None: nowhere."""
        authority = Authority(folder)
        key, chain = authority.issue("bookie").pem()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        context.load_cert_chain(chain, key)
        self.client, self._accepted = socket.socketpair()
        for end in (self.client, self._accepted):
            end.setblocking(False)
        self._to_client, self._to_bookie = ssl.MemoryBIO(), ssl.MemoryBIO()
        trusted = trusting(authority)
        if key_log is not None:
            trusted.keylog_filename = str(key_log)
        self._tls = trusted.wrap_bio(self._to_client, self._to_bookie, server_hostname="localhost")
        loop = asyncio.get_running_loop()
        self.bookie = TlsSocket(self._accepted, lambda: context, b"", loop, lambda: None)
        while not self.bookie.is_secured:
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
            self.client.send(self._to_bookie.read())
            if self.bookie.begin_step():
                self.bookie.end_step(self.bookie.compute_step())
            with contextlib.suppress(BlockingIOError):
                self._to_client.write(self.client.recv(65536))

    @property
    def suite(self) -> str:
        """The cipher suite of the connection."""
        chosen = self._tls.cipher()
        assert chosen is not None
        return chosen[0]

    def take_answers(self) -> None:
        """Read what the bookie sent, and throw it away."""
        with contextlib.suppress(BlockingIOError):
            while self.client.recv(65536):
                pass

    def records(self, *payloads: bytes) -> bytes:
        """Return a record for each payload."""
        for payload in payloads:
            self._tls.write(payload)
        return self._to_bookie.read()

    def send(self, octets: bytes) -> None:
        """Send all of it at once. Linux takes at least 200 KB, whatever a program asks for."""
        assert self.client.send(octets) == len(octets)

    def received(self) -> list[bytes]:
        """Return what each call of the bookie's connection returns until nothing is left."""
        found = []
        while True:
            try:
                size = self.bookie.recv_into(SPACE)
            except BlockingIOError:
                if not self.bookie.holds_received:
                    return found
                continue
            found.append(bytes(SPACE[:size]))

    def close(self) -> None:
        self.bookie.close()
        self.client.close()


def with_ends(folder: Path, check: Callable[[Ends], Awaitable[None]], key_log: Path | None = None) -> None:
    async def run() -> None:
        ends = Ends(folder, key_log)
        with contextlib.closing(ends):
            await check(ends)

    asyncio.run(run())


def test_one_call_decrypts_few_records_however_small_they_are(tmp_path: Path) -> None:
    async def check(ends: Ends) -> None:
        payloads = [bytes([number % 256]) for number in range(20 * RECORDS_MAX)]
        ends.send(ends.records(*payloads))
        found = ends.received()
        assert b"".join(found) == b"".join(payloads)
        assert max(map(len, found)) <= RECORDS_MAX

    with_ends(tmp_path, check)


def test_what_a_call_leaves_stays_in_the_kernel_where_it_costs_the_bookie_no_memory(tmp_path: Path) -> None:
    async def check(ends: Ends) -> None:
        small, large = [b"x"] * 3 * RECORDS_MAX, [bytes(16 * 1024)] * LARGE_RECORDS
        ends.send(ends.records(*small, *large))
        total = sum(map(len, (*small, *large)))
        while total:
            with contextlib.suppress(BlockingIOError):
                total -= ends.bookie.recv_into(SPACE)
            assert ends.bookie._incoming.pending <= 2 * (16 * 1024 + 512)

    with_ends(tmp_path, check)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6, 7, 21, 22, 23, 100, 1000])
def test_records_are_taken_wherever_the_network_cuts_them(tmp_path: Path, step: int) -> None:
    async def check(ends: Ends) -> None:
        payloads = [bytes([number]) * size for number, size in enumerate((1, 5, 300, 3, 1, 1))]
        octets, found = ends.records(*payloads), b""
        for at in range(0, len(octets), step):
            ends.send(octets[at : at + step])
            found += b"".join(ends.received())
        assert found == b"".join(payloads)

    with_ends(tmp_path, check)


def test_windows_of_large_records_are_taken_whole(tmp_path: Path) -> None:
    """A limit of small records does not make the receives of honest clients small."""

    async def check(ends: Ends) -> None:
        ends.send(ends.records(*[bytes(16 * 1024)] * LARGE_RECORDS))
        assert len(ends.received()) == 1

    with_ends(tmp_path, check)


def test_client_may_begin_its_handshake_with_records_of_one_byte_up_to_the_limit(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    to_client, to_bookie = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting(authority).wrap_bio(to_client, to_bookie, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = to_bookie.read()[HEADER_BYTES:]
    with serving(tmp_path, listener(authority.issue("bookie"))) as bookie:
        with bookie.connect() as peer:
            peer.send(encode_start_tls(1))
            assert peer.frame() is not None
            peer.send(in_small_records(hello))
            to_client.write(peer.socket.recv(65536))
            tls.do_handshake()
        with bookie.connect() as peer:
            peer.send(encode_start_tls(1))
            assert peer.frame() is not None
            with contextlib.suppress(ConnectionError):
                peer.send(in_small_records(bytes((1, 1, 0, 0)) + bytes(HANDSHAKE_BYTES_MAX)))
            assert is_closed(peer.socket)


@pytest.mark.parametrize("reads_answers", [True, False])
def test_key_updates_end_a_connection_whose_peer_does_not_read_their_answers(
    tmp_path: Path, reads_answers: bool
) -> None:
    """Each may demand an answer of the bookie (RFC 8446, 4.6.3), which would hold them all for such a peer."""
    key_log = tmp_path / "secrets"
    many = 12_000
    """Their answers, of 27 bytes each, are more than what the socket and the bookie hold."""

    async def check(ends: Ends) -> None:
        assert ends.suite == SUITE
        updates = KeyUpdates(key_log)
        for _ in range(many // RECORDS_MAX):
            ends.send(b"".join(updates.next() for _ in range(RECORDS_MAX)))
            assert ends.received() == []
            if reads_answers:
                ends.take_answers()

    if reads_answers:
        with_ends(tmp_path, check, key_log)
    else:
        with pytest.raises(TlsFailure, match="it demands key updates, and reads nothing"):
            with_ends(tmp_path, check, key_log)


class Collector(asyncio.BufferedProtocol):
    """The user of a client's connection."""

    def __init__(self) -> None:
        self._space = memoryview(bytearray(WINDOW_BYTES))
        self.found: list[bytes] = []
        self.is_over = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self.found.append(bytes(self._space[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over.set_result(exc)


def test_client_decrypts_few_records_at_once_and_all_before_the_end_of_the_connection(tmp_path: Path) -> None:
    """A bookie that makes its records small stops the loop of the client's other connections for little time, too."""
    authority = Authority(tmp_path)
    key, chain = authority.issue("bookie").pem()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    sent = bytes(range(256)) * 8

    def serve(accepted: socket.socket) -> None:
        with context.wrap_socket(accepted, server_side=True) as inside:
            for octet in sent:
                inside.send(bytes((octet,)))
            with contextlib.suppress(ssl.SSLError):
                # The client answers by closing the connection.
                inside.unwrap()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        serving_end = loop.run_in_executor(None, serve, theirs)
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        user = Collector()
        tls = ClientTls(transport, user, trusting(authority), "localhost")
        await tls.secured
        await user.is_over
        await serving_end
        assert b"".join(user.found) == sent
        assert max(map(len, user.found)) <= CLIENT_RECORDS_MAX

    asyncio.run(run())


def in_small_records(handshake: bytes) -> bytes:
    return b"".join(b"\x16\x03\x01\0\x01" + handshake[at : at + 1] for at in range(len(handshake)))


def test_bytes_of_a_handshake_that_come_with_start_tls_have_a_limit() -> None:
    async def check() -> None:
        loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
        with ours, theirs:
            for early, limit in (
                (b"\x16" + bytes(HANDSHAKE_BYTES_MAX), f"more than {HANDSHAKE_BYTES_MAX} bytes"),
                (in_small_records(bytes(RECORDS_MAX + 1)), f"more than {RECORDS_MAX} records"),
            ):
                with pytest.raises(TlsFailure, match=limit):
                    TlsSocket(ours, ssl.create_default_context, early, loop, lambda: None)
            TlsSocket(ours, ssl.create_default_context, in_small_records(bytes(RECORDS_MAX)), loop, lambda: None)

    asyncio.run(check())
