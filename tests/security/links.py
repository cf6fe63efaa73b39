"""A client's end of a connection, frame by frame: to a simulated bookie or over a socket, in clear or inside TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Protocol

from bkspark.wire.framing import LENGTH_BYTES
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket

TURNS_MAX = 20_000
_RECEIVE_BYTES = 65536


class Link(Protocol):
    """Bytes to a bookie, and from it."""

    def send(self, data: bytes) -> None:
        """Send bytes. Does nothing if the bookie has closed the connection."""

    def receive(self) -> bytes:
        """Wait for bytes; b"": the bookie has closed the connection."""

    def close(self) -> None:
        """Leave."""


class SimulatedLink:
    """To a bookie in this process, whose turns pass while the client waits."""

    def __init__(self, served: ServedBookie, *, is_trusted: bool = False) -> None:
        """`is_trusted`: nothing is demanded of the client."""
        self._served = served
        self._socket: SimulatedSocket = served.connect(is_trusted=is_trusted)

    def send(self, data: bytes) -> None:
        self._socket.received += data

    def receive(self) -> bytes:
        self._served.turns_until(lambda: bool(self._socket.sent) or self._socket.is_closed, TURNS_MAX)
        found = bytes(self._socket.sent)
        self._socket.sent.clear()
        return found

    def close(self) -> None:
        self._served.connections.pop(self._socket).close()


class SocketLink:
    """To a bookie in another process."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def send(self, data: bytes) -> None:
        # If the connection is closed, `receive` tells.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def receive(self) -> bytes:
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self._socket.close()


class SecureLink:
    """TLS over another link, made without the product's code."""

    def __init__(self, link: Link, context: ssl.SSLContext, host: str) -> None:
        """Shake hands. Raises ssl.SSLError: one side refuses the other; ConnectionError: the bookie has left."""
        self._link = link
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._take()
            else:
                break
        self._flush()

    def _flush(self) -> None:
        self._link.send(self._outgoing.read())

    def _take(self) -> None:
        received = self._link.receive()
        if not received:
            raise ConnectionResetError("the bookie has closed the connection")
        self._incoming.write(received)

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def receive(self) -> bytes:
        while True:
            try:
                return self._tls.read(_RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                try:
                    self._take()
                except ConnectionResetError:
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    def close(self) -> None:
        self._link.close()


class FramedLink:
    """Frames over a link, which TLS may take the place of."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._received = b""

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Go on inside TLS. Raises as `SecureLink`."""
        assert not self._received, "bytes in clear after the answer to START_TLS"
        self._link = SecureLink(self._link, context, host)

    def send(self, data: bytes) -> None:
        self._link.send(data)

    def frame(self) -> bytes | None:
        """Return the body of the next frame; None: the bookie has closed the connection."""
        while not self._has_frame():
            more = self._link.receive()
            if not more:
                return None
            self._received += more
        end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "big")
        body, self._received = self._received[LENGTH_BYTES:end], self._received[end:]
        return body

    def _has_frame(self) -> bool:
        size = len(self._received) - LENGTH_BYTES
        return size >= 0 and size >= int.from_bytes(self._received[:LENGTH_BYTES], "big")

    def close(self) -> None:
        self._link.close()
