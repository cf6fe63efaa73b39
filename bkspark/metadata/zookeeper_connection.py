"""kazoo's connection to ZooKeeper, with this project's TLS and login.

kazoo's own SASL needs pure-sasl, which is not maintained, and reports a session before it is logged in, so that
requests would be sent as an unknown client. Its TLS supports only PEM files, and waits for the socket while OpenSSL
holds answers that it has decrypted. This module replaces two methods of kazoo's connection, which are not part of its
public interface; setup.cfg pins kazoo for that reason.

A failed login, or a server that cannot be trusted, ends one attempt. Further attempts follow. They read the JAAS file
and the certificates again, so passwords may be changed at servers and clients one after the other.
"""

from __future__ import annotations

import logging
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped, ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL, int_struct, read_string
from kazoo.retry import KazooRetry

from bkspark.errors import ConfigurationError
from bkspark.security.mechanism import ClientExchange, SaslFailure
from bkspark.tls.contexts import TlsContext

SASL_ROUNDS_MAX = 16
"""GSSAPI, the longest mechanism, takes four or five."""


NewLogin = Callable[[str], ClientExchange]
"""Returns the login of one connection to a host. Raises ConfigurationError: a file cannot be used."""


@dataclass(frozen=True, slots=True)
class ConnectFailure:
    """Why one attempt to connect failed. `is_refusal`: no attempt succeeds until one side is configured otherwise."""

    address: str
    """The server, as host:port."""
    reason: str
    """One line for people."""
    is_refusal: bool = False


class ZooKeeperSockets(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads and sockets; with a TLS context, sockets use TLS."""

    def __init__(self, context: TlsContext | None) -> None:
        super().__init__()
        self._context = context

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> socket.socket:
        connected = socket.create_connection(address, timeout)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            return connected
        try:
            # The socket's time limit also limits the handshake.
            return self._context.current().wrap_socket(connected, server_hostname=hostname or address[0])
        except BaseException:
            connected.close()
            raise

    def select(self, readers: Any, writers: Any, errors: Any, timeout: float | None = None) -> Any:
        # Answers that came in one record are decrypted together: the socket may stay silent after the first is read.
        held = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        if not held:
            return super().select(readers, writers, errors, timeout)
        others = [each for each in readers if each not in held]
        ready = super().select(others, writers, errors, 0.0)
        return [*held, *ready[0]], ready[1], ready[2]


@dataclass(frozen=True, slots=True)
class ConnectionSetup:
    """How connections are secured and logged in, and what is called from kazoo's thread.

    tls: None: connections are clear. new_login: returns the login at a host; None: there is no login.
    on_ready: the connection may be used. on_failure: an attempt to connect failed.
    """

    tls: TlsContext | None
    new_login: NewLogin | None
    on_ready: Callable[[], None]
    on_failure: Callable[[ConnectFailure], None]


class ZooKeeperConnection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, with a login: it reports when it is ready, which is after the login, and its failures."""

    def __init__(
        self,
        client: KazooClient,
        retry: KazooRetry,
        logger: logging.Logger,
        setup: ConnectionSetup,
    ) -> None:
        super().__init__(client, retry, logger=logger)
        self._new_login = setup.new_login
        """This and the callbacks below are those of `ConnectionSetup`."""
        self._on_ready = setup.on_ready
        """Called from kazoo's thread, after the login."""
        self._on_failure = setup.on_failure
        """Called when an attempt to connect has failed."""

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        """Connect, log in and return kazoo's time limits, in ms. Called by kazoo for each attempt."""
        address = f"{host}:{port}"
        try:
            timeouts: tuple[float, float] = super()._connect(host, hostip, port)
        except (ConnectionDropped, KazooTimeoutError) as error:
            self._on_failure(self._failure(address, error))
            raise
        except ConfigurationError as error:
            # A certificate may be being replaced at this moment.
            self._on_failure(ConnectFailure(address, str(error), is_refusal=True))
            raise ConnectionDropped(str(error)) from None
        if self._new_login is not None:
            try:
                self._log_in(self._new_login(host), timeouts[1] / 1000)
            except (SaslFailure, ConfigurationError) as error:
                self._on_failure(ConnectFailure(address, str(error), is_refusal=True))
                raise ConnectionDropped(str(error)) from None
            except (ConnectionDropped, KazooTimeoutError):
                self._on_failure(
                    ConnectFailure(address, "it dropped the connection, or was silent, during the SASL login")
                )
                raise
        self._on_ready()
        return timeouts

    def _read_socket(self, read_timeout: float) -> object:
        """Take an answer or an event. Called by kazoo, whose thread would end for ever with any other exception.

        These mean that the bytes are not ZooKeeper's: cut off, or an answer to another request. Another connection is
        made then.
        """
        pending = self.client._pending
        first = pending[0] if pending else None
        try:
            result: object = super()._read_socket(read_timeout)
        except (struct.error, ValueError, LookupError, RuntimeError) as error:
            if first is not None and first[1] is not None and first not in pending and not first[1].ready():
                # kazoo has taken it out, and does not complete it.
                first[1].set_exception(ConnectionLoss())
            raise ConnectionDropped(f"it does not answer as ZooKeeper does: {error!r}") from error
        return result

    def _log_in(self, login: ClientExchange, timeout_s: float) -> None:
        token: bytes | None = login.first()
        for xid in range(1, SASL_ROUNDS_MAX + 1):
            self._submit(SASL(token or b""), timeout_s, xid)
            header, body, offset = self._read_header(timeout_s)
            if header.xid != xid:
                raise SaslFailure(f"it answered message {header.xid} of the SASL login in place of {xid}")
            if header.zxid > 0:
                self.client.last_zxid = header.zxid
            if header.err == AuthFailedError.code:
                raise SaslFailure("it refuses the SASL login: the user name or the password is wrong")
            if header.err:
                raise SaslFailure(f"it answers the SASL login with error {header.err}")
            if login.is_complete:
                return  # the last message of GSSAPI, which has no answer to look at
            # A server without SASL answers with nothing at all.
            try:
                answer, _ = SASL.deserialize(body, offset)
            except struct.error:
                raise SaslFailure(
                    "it does not answer as ZooKeeper does: its answer to the SASL login is cut off"
                ) from None
            token = login.step(answer or b"")
            if login.is_complete and not token:
                return
        raise SaslFailure(f"the SASL login is not complete after {SASL_ROUNDS_MAX} messages")

    def _failure(self, address: str, error: Exception) -> ConnectFailure:
        cause = error.__context__
        secure = isinstance(self._socket, ssl.SSLSocket) or isinstance(cause, ssl.SSLError)
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = f"its certificate is refused: {cause.verify_message} (zookeeper.ssl.trustStore.location)"
            return ConnectFailure(address, reason, is_refusal=True)
        if isinstance(cause, ssl.SSLError) and cause.reason and "ALERT" in cause.reason:
            alert = cause.reason.lower().replace("_", " ")
            reason = f"it refuses the TLS connection ({alert}): does it demand a certificate that it trusts "
            return ConnectFailure(address, f"{reason}(zookeeper.ssl.keyStore.location)?", is_refusal=True)
        if secure or (self._socket is None and isinstance(cause, ssl.SSLError)):
            return ConnectFailure(address, "the TLS handshake failed: is this its port with TLS (secureClientPort)?")
        if self._socket is not None:
            reason = "it accepts the connection and does not answer as ZooKeeper does"
            if self.client.last_zxid:
                # ZooKeeper ends such connections without an answer.
                reason = "it ends the connection. If its data are of a backup, older than what this process has seen"
                return ConnectFailure(address, f"{reason}, restart this process")
            return ConnectFailure(address, f"{reason}: if its port is one with TLS, set zookeeper.client.secure=true")
        return ConnectFailure(address, str(cause or error))


class ZooKeeperClient(KazooClient):  # type: ignore[misc]
    """A KazooClient that uses a ZooKeeperConnection."""

    def __init__(
        self,
        *,
        hosts: str,
        timeout_s: float,
        logger: logging.Logger,
        connection_retry: dict[str, Any],
        acl: list[Any],
        setup: ConnectionSetup,
    ) -> None:
        super().__init__(
            hosts=hosts,
            timeout=timeout_s,
            logger=logger,
            connection_retry=connection_retry,
            handler=ZooKeeperSockets(setup.tls),
            default_acl=acl,
        )
        self._connection = ZooKeeperConnection(self, self._conn_retry.copy(), logger, setup)

    def who_am_i_async(self) -> Any:
        """Ask the server for the identities of this session; kazoo has no call for it."""
        answer = self.handler.async_result()
        self._call(WhoAmI(), answer)
        return answer


class WhoAmI:
    """ZooKeeper's request whoAmI (3.7 and later): the schemes and names that a session has proved."""

    type = 107

    def serialize(self) -> bytearray:
        return bytearray()

    @classmethod
    def deserialize(cls, body: bytes, offset: int) -> list[tuple[str, str]]:
        (count,) = int_struct.unpack_from(body, offset)
        offset += int_struct.size
        found = []
        for _ in range(max(0, count)):
            scheme, offset = read_string(body, offset)
            name, offset = read_string(body, offset)
            found.append((scheme or "", name or ""))
        return found
