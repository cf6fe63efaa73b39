"""The client's side of TLS on a connection: a protocol to the socket's transport, and a transport to its user.

It replaces `asyncio`'s `start_tls`, which receives 256 KiB at a time. Here as many bytes are decrypted at once as a
connection in clear receives at once, because replies that arrive together are decoded together.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

RECORDS_MAX = 80
"""Records that are decrypted at once: small ones cost as much as large ones. 64 full ones fill _RECEIVE_BYTES."""
_RECEIVE_BYTES = 1024 * 1024


class ClientTls(asyncio.BufferedProtocol, asyncio.Transport):
    """TLS between a transport and a protocol. For one event loop."""

    def __init__(
        self, transport: asyncio.Transport, user: asyncio.BufferedProtocol, context: ssl.SSLContext, host: str
    ) -> None:
        """Begin the handshake. `host` is what the server's certificate must name, if the context checks that."""
        super().__init__()
        self._transport = transport
        self._user = user
        """The protocol that gets clear bytes. Replaced by `set_protocol`."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        """Ciphertext between the transport and `_tls`, in both directions."""
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        """What the transport receives ciphertext into."""
        self._error: Exception | None = None
        """Why TLS failed; None while it works. Set once."""
        self._is_secured = False
        """Whether the handshake is complete. Set once."""
        self.secured: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handshake is complete and the user's `connection_made` was called, or with what failed."""
        transport.set_protocol(self)
        self._shake_hands()

    # ---- handshake ----

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_pending()
            return
        except ssl.SSLError as error:
            # The server learns the reason from an alert.
            self._send_pending()
            self._fail(error)
            return
        self._send_pending()
        self._is_secured = True
        self._user.connection_made(self)
        if not self.secured.done():
            self.secured.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._error = error
        if not self.secured.done():
            self.secured.set_exception(error)
        self._transport.abort()

    # ---- called by the socket's transport ----

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is not None:
            return
        self._incoming.write(self._received[:nbytes])
        if not self._is_secured:
            self._shake_hands()
        if self._is_secured:
            self._decrypt()

    def _decrypt(self) -> None:
        """Pass received bytes to the user, decrypted: RECORDS_MAX records, and in later calls the others."""
        records = RECORDS_MAX
        while (self._incoming.pending or self._tls.pending()) and not self._transport.is_closing():
            if not records:
                self._transport.pause_reading()
                self.secured.get_loop().call_soon(self._go_on)
                return
            space: Any = self._user.get_buffer(-1)
            filled, size, has_more = 0, len(space), True
            try:
                while filled < size and records:
                    records -= 1
                    # With a buffer it returns the number of bytes.
                    got: Any = self._tls.read(size - filled, space[filled:])
                    if not got:
                        # The server has ended the TLS session.
                        has_more = False
                        self._transport.close()
                        break
                    filled += got
            except ssl.SSLWantReadError:
                has_more = False
            except ssl.SSLError as error:
                has_more = False
                self._fail(error)
            if self._outgoing.pending:
                # The answer to a key update, or an alert.
                self._send_pending()
            if filled:
                self._user.buffer_updated(filled)
            if not has_more:
                return

    def _go_on(self) -> None:
        # Reading goes on first: `_decrypt` may pause it again.
        self._transport.resume_reading()
        self._decrypt()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._user.pause_writing()

    def resume_writing(self) -> None:
        self._user.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.secured.done():
            self.secured.set_exception(exc or ConnectionError("it closed the connection"))
        if self._is_secured:
            self._user.connection_lost(self._error or exc)

    # ---- called by the user ----

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass what is received from now on to another protocol."""
        assert isinstance(protocol, asyncio.BufferedProtocol)
        self._user = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send. After an error nothing is sent; the user's `connection_lost` reports it."""
        if data and self._error is None:
            self._tls.write(data)
            self._send_pending()

    def _send_pending(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes of ciphertext wait for the socket."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket's transport knows, and `ssl_object`."""
        return self._tls if name == "ssl_object" else self._transport.get_extra_info(name, default)
