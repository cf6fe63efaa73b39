"""A bookie with TLS in this process, and clients of it: ours, and sockets that break the rules."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from bkspark.net.pool import BookiePool, NetOptions, resolver
from bkspark.tls.options import TlsOptions
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.adds import WireProtocol
from bkspark.wire.start_tls import encode_start_tls
from bookie_service.network.tls_handshakes import ListenerTlsOptions
from tests.bookie.serving import DIGEST, Peer, Serving, service_options
from tests.security.certificates import Authority, Leaf

T = TypeVar("T")
ID = "127.0.0.1:3181"


def listener(leaf: Leaf, authority: Authority | None = None, **changes: object) -> ListenerTlsOptions:
    """Return the options of a port with a leaf's certificate; with an authority, clients must show one of its own."""
    key, chain = leaf.pem()
    options = TlsOptions(
        key_store=key,
        certificate_path=chain,
        trust_store=None if authority is None else authority.pem,
        client_authentication=authority is not None,
    )
    return ListenerTlsOptions(options, **changes)  # type: ignore[arg-type]


def client_options(authority: Authority, leaf: Leaf | None = None, **changes: object) -> TlsOptions:
    """Return the options of a client that trusts an authority, and shows a leaf's certificate if there is one."""
    key, chain = leaf.pem() if leaf is not None else (None, None)
    return TlsOptions(
        trust_store=authority.pem,
        key_store=key,
        certificate_path=chain,
        client_authentication=leaf is not None,
        **changes,  # type: ignore[arg-type]
    )


def serving(directory: Path, tls: ListenerTlsOptions | None, **changes: object) -> Serving:
    return Serving(service_options(directory, tls=tls, **changes))


def with_pool(
    port: int,
    tls: TlsOptions | None,
    use: Callable[[BookiePool], Awaitable[T]],
    wire_protocol: WireProtocol = WireProtocol.V2,
    host: str = "127.0.0.1",
) -> T:
    """Return what `use` returns for the pool of a client that knows one bookie, ID."""
    return with_net(port, NetOptions(tls=tls), use, wire_protocol, host)


def with_net(
    port: int,
    net: NetOptions,
    use: Callable[[BookiePool], Awaitable[T]],
    wire_protocol: WireProtocol = WireProtocol.V2,
    host: str = "127.0.0.1",
) -> T:
    """Return what `use` returns for the pool of a client that knows one bookie, ID."""

    async def run() -> T:
        pool = BookiePool(resolver({ID: (host, port)}), net, wire_protocol)
        try:
            return await use(pool)
        finally:
            await pool.close()

    return asyncio.run(run())


async def read_all(pool: BookiePool, ledger_id: int = 1, count: int = 3) -> list[bytes]:
    """Return the payloads of the first entries of a ledger."""
    channel = await pool.channel(ID)
    answers = await channel.read_entries(ledger_id, np.arange(count), DIGEST)
    assert (answers.statuses == v2.Status.EOK).all()
    return [bytes(payload or b"") for payload in answers.payloads]


class TlsPeer(Peer):
    """A blocking peer that asks for TLS, and goes on inside it."""

    def __init__(self, port: int, context: ssl.SSLContext, first: bytes = b"", server_name: str = "localhost") -> None:
        """`first`: what is sent in clear together with START_TLS."""
        super().__init__(port)
        self.send(encode_start_tls(7) + first)
        body = self.frame()
        assert body is not None
        self.answer = v3.decode_response(body)
        assert self.answer.status == v3.StatusCode.EOK
        assert self.answer.HasField("startTLSResponse")
        self.go_on_over(context.wrap_socket(self.socket, server_hostname=server_name))


def trusting(authority: Authority, leaf: Leaf | None = None) -> ssl.SSLContext:
    """Return a client's context, made without the product's code."""
    context = ssl.create_default_context(cafile=authority.pem)
    if leaf is not None:
        key, chain = leaf.pem()
        context.load_cert_chain(chain, key)
    return context


def is_closed(connected: socket.socket) -> bool:
    """Wait for more bytes; return whether the peer closed the connection instead."""
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


def v3_request(operation: int, **message: object) -> bytes:
    """Return the frame of a request with transaction id 9."""
    return v3.encode_message(protocol.Request(header=v3.header(operation, 9), **message))
