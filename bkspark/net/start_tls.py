"""Begins TLS on a new connection: START_TLS in clear, its answer, the handshake. Nothing else is sent in clear."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeVar

from bkspark.errors import ProtocolError, TlsFailed
from bkspark.net.client_tls import ClientTls
from bkspark.tls.contexts import TlsContext
from bkspark.tls.failures import why_bookie_refuses
from bkspark.wire.start_tls import encode_start_tls, take_answer
from bkspark.wire.v3 import StatusCode

_User = TypeVar("_User", bound=asyncio.BufferedProtocol)


class _StartTls(asyncio.Protocol):
    """Sends START_TLS and waits for the answer; the transport is paused when it has come."""

    def __init__(self, txn_id: int) -> None:
        self._txn_id = txn_id
        self._received = bytearray()
        """Bytes of the answer."""
        self._transport: asyncio.Transport | None = None
        """None before the connection is made."""
        self.answered: asyncio.Future[StatusCode] = asyncio.get_running_loop().create_future()
        """Done with the bookie's status, or with why the connection ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(encode_start_tls(self._txn_id))

    def data_received(self, data: bytes) -> None:
        if self.answered.done():
            return
        self._received += data
        try:
            status = take_answer(self._received, self._txn_id)
        except ProtocolError as error:
            self.answered.set_exception(error)
            return
        if status is not None:
            assert self._transport is not None
            self._transport.pause_reading()
            self.answered.set_result(status)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            cause = f": {exc}" if exc else ""
            self.answered.set_exception(ConnectionError(f"it dropped the connection{cause}"))


async def connect_with_tls(
    make: Callable[[], _User],
    bookie: str,
    address: tuple[str, int],
    context: TlsContext,
    txn_id: int,
    connect_timeout_s: float,
) -> _User:
    """Return what `make` returns, connected; whatever it sends is sent inside TLS.

    The certificate must name the host of `address`, unless the options say otherwise.

    Raises:
        TlsFailed: the bookie has no TLS, the handshake failed, or it was not complete in time.
        TimeoutError, OSError, ValueError: as `create_connection`.
    """
    loop = asyncio.get_running_loop()
    host, port = address
    user = make()
    async with asyncio.timeout(connect_timeout_s):
        transport, asking = await loop.create_connection(lambda: _StartTls(txn_id), host, port)
    timeout_s = context.options.start_tls_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            status = await asking.answered
            if status is not StatusCode.EOK:
                raise _failed(bookie, _refusal(status))
            tls = ClientTls(transport, user, context.current(), host)
            transport.resume_reading()
            await tls.secured
    except BaseException as error:
        transport.abort()
        if isinstance(error, TimeoutError):
            # The time that is over has cancelled what was waited for.
            what = "answer START_TLS" if asking.answered.cancelled() else "complete the handshake"
            raise _failed(bookie, f"it did not {what} in {timeout_s:g} s (startTLSTimeoutSecs)") from None
        if isinstance(error, (ProtocolError, OSError)):
            raise _failed(bookie, describe(error)) from None
        raise
    return user


def describe(error: Exception) -> str:
    """Return what went wrong in a handshake, for a message."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"the handshake failed: {why_bookie_refuses(error)}"
    if isinstance(error, ConnectionError):
        return f"it dropped the connection during the handshake ({error})"
    return str(error)


def _refusal(status: StatusCode) -> str:
    if status is StatusCode.EBADREQ:
        return "it has no TLS, and this client is configured to use nothing else"
    return f"it answers START_TLS with {status.name}"


def _failed(bookie: str, why: str) -> TlsFailed:
    return TlsFailed(f"TLS with bookie {bookie} failed: {why}", bookie=bookie)
