"""Authentication of a new connection to a bookie: AUTH messages are exchanged before anything else is sent."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from bkspark.errors import AuthenticationFailed, ProtocolError, TlsFailed
from bkspark.net.connection import BookieConnection
from bkspark.security.mechanism import PLUGIN_NAME, SaslFailure
from bkspark.security.sasl import SaslClient
from bkspark.tls.failures import why_bookie_refuses
from bkspark.wire.auth import ANSWER_BYTES_MAX, DISABLED_PLUGIN, AuthAnswer, encode_auth, take_auth_answer

_Connection = TypeVar("_Connection", bound=BookieConnection)
_RECEIVE_BYTES = 16 * 1024
_MESSAGES_MAX = 10
"""Most messages that the client sends in an exchange; no mechanism needs more."""
_KEPT_BYTES_MAX = 2 * ANSWER_BYTES_MAX


class Authentication(asyncio.BufferedProtocol):
    """The protocol of a transport until the exchange on it is complete. For one event loop."""

    def __init__(self, bookie: str, host: str, client: SaslClient, next_txn_id: Callable[[], int] | None) -> None:
        """`host`: the bookie's, as it is registered: its Kerberos principal has this name, as with Apache's clients.

        `next_txn_id` returns ids of V3 requests; None: the connection speaks V2.
        """
        self._bookie = bookie
        self._host = host
        self._client = client
        self._next_txn_id = next_txn_id
        self._transport: asyncio.Transport | None = None
        """None before the connection is made."""
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        """What the transport receives into."""
        self._received = bytearray()
        """Received bytes that are not decoded yet; at most _KEPT_BYTES_MAX."""
        self._lost: str | None = None
        """Why the connection ended; None while it is open. Set once."""
        self._alert: ssl.SSLError | None = None
        """Why TLS ended the connection, or None."""
        self._has_news = asyncio.Event()
        """Set when bytes have come or the connection has ended; `_answer` waits for it and clears it."""

    async def complete(self, make: Callable[[], _Connection]) -> _Connection:
        """Authenticate, then return a connection on the same transport, made by `make`.

        Raises:
            AuthenticationFailed: one side refuses the other, or no answer comes in time.
            TlsFailed: TLS ended the connection, because the bookie refuses the client's certificate, for example.
        """
        timeout_s = self._client.options.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._exchange()
        except BaseException as error:
            assert self._transport is not None
            self._transport.abort()
            if self._alert is not None and isinstance(error, Exception):
                # In TLS 1.3 a bookie refuses the client's certificate after the client's part of the handshake.
                why = why_bookie_refuses(self._alert)
                raise TlsFailed(f"TLS with bookie {self._bookie} failed: {why}", bookie=self._bookie) from None
            if isinstance(error, TimeoutError):
                why = f"it did not answer in {timeout_s:g} s; Apache's bookies do not answer a client that they refuse"
                raise self._failed(why) from None
            if isinstance(error, (SaslFailure, ProtocolError, OSError)):
                raise self._failed(str(error)) from None
            raise
        connection, transport = make(), self._transport
        assert transport is not None
        connection.has_authenticated = True
        transport.set_protocol(connection)
        connection.connection_made(transport)
        return connection

    async def _exchange(self) -> None:
        exchange = self._client.begin(self._host)
        message: bytes | None = await self._on_thread(exchange.first)
        for _ in range(_MESSAGES_MAX):
            if message is None:
                break
            txn_id = None if self._next_txn_id is None else self._next_txn_id()
            self._send(encode_auth(PLUGIN_NAME, message, txn_id))
            if exchange.is_complete:
                # The last message of GSSAPI has no answer.
                break
            answer = await self._answer(txn_id)
            if self._is_disabled(answer):
                break
            message = await self._on_thread(partial(exchange.step, answer.payload))
        else:
            raise SaslFailure("it does not end")
        if self._lost is not None:
            raise SaslFailure(self._lost)

    def _is_disabled(self, answer: AuthAnswer) -> bool:
        """Return whether the bookie does not authenticate clients, and this client accepts that."""
        if answer.is_refusal:
            raise SaslFailure("it refuses this user, or the password")
        if answer.plugin_name == DISABLED_PLUGIN:
            if self._client.options.allow_auth_disabled:
                return True
            raise SaslFailure(
                "it has no authentication, or another host answers in its name; allowAuthDisabled=true uses it "
                "nevertheless"
            )
        if answer.plugin_name != PLUGIN_NAME:
            raise SaslFailure("it has another authentication plugin than SASL")
        return False

    async def _on_thread(self, step: Callable[[], bytes | None]) -> bytes | None:
        """Take a step of the exchange; Kerberos may ask its servers over the network."""
        return await asyncio.to_thread(step) if self._client.may_block else step()

    def _send(self, frame: bytes) -> None:
        if self._lost is not None:
            raise SaslFailure(self._lost)
        assert self._transport is not None
        self._transport.write(frame)

    async def _answer(self, txn_id: int | None) -> AuthAnswer:
        while (answer := take_auth_answer(self._received, txn_id)) is None:
            if self._lost is not None:
                raise SaslFailure(self._lost)
            self._has_news.clear()
            await self._has_news.wait()
        return answer

    def _failed(self, why: str) -> AuthenticationFailed:
        return AuthenticationFailed(f"authentication with bookie {self._bookie} failed: {why}", bookie=self._bookie)

    # ---- asyncio's side ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._alert = exc if isinstance(exc, ssl.SSLError) else None
        cause = f" ({exc})" if exc else ""
        self._lost = f"it dropped the connection{cause}: it refuses this user or its password, or has other settings"
        self._has_news.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        # `take_auth_answer` refuses bytes that do not belong here; until then at most one answer is kept in memory.
        self._received += self._buffer[:nbytes]
        if len(self._received) > _KEPT_BYTES_MAX:
            self._lost = "it sends more than an answer"
            assert self._transport is not None
            self._transport.abort()
        self._has_news.set()

    def eof_received(self) -> bool:
        return False
