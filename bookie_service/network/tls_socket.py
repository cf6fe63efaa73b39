"""The TLS side of a connection, with the methods of a socket that a connection uses: decrypted bytes in and out.

START_TLS puts a `TlsSocket` in place of the connection's socket. Until the handshake is complete there is nothing to
receive or send, and the connection takes it step by step: `begin_step` receives, `compute_step` may run on another
thread (`tls_handshakes`), `end_step` sends. `recv_into` decrypts into the receive buffer. What does not fit stays here,
at most two records; `holds_received` reports it, because a selector cannot. One call decrypts at most RECORDS_MAX
records: small records cost as much as large ones, and a peer may send very many. The others stay in the kernel. `send`
and `sendmsg` encrypt pieces of `PIECE_BYTES`. A piece counts as sent when the socket has taken all of its ciphertext.
Until then the next call must begin with the same bytes, as those of `SendBuffer` do.

Before the handshake a client may send AUTH messages in clear: Apache's clients with SASL send the first one together
with START_TLS. Such messages are received as if they had come inside TLS. Any other bytes in clear are an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from bkspark.errors import ProtocolError
from bkspark.tls.contexts import has_expired
from bkspark.tls.failures import why_failed
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.start_tls import is_auth_request
from bookie_service.engine.responses import Parts
from bookie_service.network.tls_records import RecordEnds

PIECE_BYTES = 64 * 1024
"""This many bytes are encrypted at once: four records."""
RECORDS_MAX = 80
"""Records that are decrypted at once. A window of `memory_budget` has 64 full ones."""
HANDSHAKE_BYTES_MAX = 64 * 1024
"""Ciphertext that a peer may send until the handshake is complete. Certificate chains have a few KiB."""
CLEAR_BYTES_MAX = 64 * 1024
"""Bytes of AUTH messages in clear that a peer may send after START_TLS."""
CLEAR_MESSAGES_MAX = 4
"""How many such messages a peer may send. Apache's clients send one. All are decoded again at each receive."""
_RECORD_BYTES = 16 * 1024 + 512
"""No record with its header is larger."""
_UNSENT_BYTES_MAX = 2 * PIECE_BYTES
"""More ciphertext than this waits only if a peer requests key updates and reads nothing."""
_HANDSHAKE_RECORD = 0x16
_FRAME = 0x00
"""The first byte of a frame shorter than 16 MiB; that of a ClientHello is different."""

_scratch = bytearray(1024 * 1024)
"""All TLS sockets receive ciphertext here. Its bytes are valid until the next call, on one event loop."""


class TlsFailure(ProtocolError):
    """The TLS of a connection failed: its handshake or a record."""


class TlsSocket:
    """The server's side of TLS over a connected, non-blocking socket. For one event loop."""

    def __init__(
        self,
        connected: socket.socket,
        context: Callable[[], ssl.SSLContext],
        received: bytes,
        loop: asyncio.AbstractEventLoop,
        on_secured: Callable[[], None],
    ) -> None:
        """Begin to wait for a handshake.

        `context()` returns the context of a handshake that begins. It is called late, because it costs more than
        waiting. `received`: bytes that came in clear after START_TLS. `on_secured` is called when the handshake is
        complete.

        Raises:
            TlsFailure: `received` is neither the beginning of AUTH messages nor of a handshake.
        """
        self._socket = connected
        self._loop = loop
        self._on_secured = on_secured
        """Called once the handshake is complete. `close` replaces it."""
        self._incoming = ssl.MemoryBIO()
        """Ciphertext from the socket that is not decrypted yet."""
        self._ends = RecordEnds()
        """Where the records that were received for decryption end."""
        self._has_whole_records = False
        """Whether the last call left whole records in `_incoming`."""
        self._outgoing = ssl.MemoryBIO()
        """What OpenSSL has encrypted; `_unsent` takes it at once."""
        self._context = context
        self._tls: Any = None
        """An `ssl.SSLObject`; None: the first step of the handshake has not been taken."""
        self._is_computing = False
        """Whether another thread may use `_tls`, `_incoming` and `_outgoing`: a step of the handshake is begun."""
        self.is_secured = False
        """Whether the handshake is complete. Set once."""
        self._clear = bytearray()
        """AUTH messages in clear, not received yet. Until the handshake begins, the last one may be incomplete."""
        self._has_begun = False
        """Whether the handshake has begun, after which nothing may come in clear. Set once."""
        self._handshake_bytes = 0
        """Bytes of the handshake that have come; at most HANDSHAKE_BYTES_MAX."""
        self._has_ended = False
        """Whether the peer has closed its side. Set once."""
        self._unsent = b""
        """Ciphertext that the socket has not taken."""
        self._piece_bytes = 0
        """How many bytes of the caller the last piece of `_unsent` encrypts; 0: no piece is unfinished."""
        self._is_watched = False
        """Whether `SendBuffer` will call again when the socket takes more. Otherwise this class watches the socket."""
        self._take_before_handshake(received)

    @property
    def holds_received(self) -> bool:
        """Whether `recv_into` can return more, or report the end, without more bytes from the peer."""
        if not self.is_secured:
            return bool(self._incoming.pending)
        return bool(self._clear or self._has_ended or self._incoming.pending or self._tls.pending())

    @property
    def has_computed(self) -> bool:
        """Whether a step of the handshake was computed, which costs a signature."""
        return self._tls is not None

    def certificate(self) -> dict[str, Any] | None:
        """Return what `getpeercert` reports about the peer's certificate; None: the peer was not asked for one.

        Raises:
            TlsFailure: the certificate has expired since the session began that is resumed, or its names are not text.
                (An authority signs everything that it is given.)
        """
        try:
            if has_expired(self._tls):
                raise TlsFailure("the TLS handshake failed: the peer's certificate has expired")
            return self._tls.getpeercert() or None
        except (ValueError, ssl.SSLError):
            raise TlsFailure("the TLS handshake failed: the peer's certificate cannot be read") from None

    # ---- receiving ----

    def recv_into(self, space: memoryview) -> int:
        """Receive and decrypt; return how many bytes are in `space`.

        0: the peer has closed its side.

        Raises:
            BlockingIOError: there are no bytes for the connection now, or the handshake is not complete.
            TlsFailure: the peer violated TLS.
            OSError: the connection is broken.
        """
        if not self.is_secured:
            raise BlockingIOError
        if self._clear:
            return self._take_clear(space)
        held = self._incoming.pending
        if not self._has_whole_records and not self._has_ended and held < _RECORD_BYTES:
            # Rarely more than fits, so received bytes are nearly always decrypted at once.
            self._receive(max(len(space) - held, _RECORD_BYTES))
        return self._decrypt(space)

    def _receive(self, most: int) -> None:
        """Receive ciphertext, if there is any."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self._has_ended = not self._receive_records(most)

    def _receive_records(self, most: int) -> int:
        """Receive at most `most` bytes and RECORDS_MAX records; return how many bytes. 0: the peer has closed its side.

        Raises:
            BlockingIOError: there are no bytes.
            OSError: the connection is broken.
        """
        view = memoryview(_scratch)[:most]
        size = self._socket.recv_into(view, 0, socket.MSG_PEEK)
        if size:
            size = self._socket.recv_into(view[: self._ends.take(view[:size], RECORDS_MAX)])
            self._incoming.write(view[:size])
        return size

    def _decrypt(self, space: memoryview) -> int:
        """Decrypt received records one by one, as far as there is space, at most RECORDS_MAX."""
        filled, size, records = 0, len(space), 0
        self._has_whole_records = False
        try:
            while filled < size:
                if records == RECORDS_MAX:
                    self._has_whole_records = True
                    break
                records += 1
                got: int = self._tls.read(size - filled, space[filled:])
                if not got:
                    self._has_ended = True
                    break
                filled += got
                if not self._incoming.pending and not self._tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._has_ended = True
        except ssl.SSLError as error:
            self._send_unsent()
            raise TlsFailure(f"TLS failed: {_why(error)}") from None
        if self._outgoing.pending:
            # It answers a key update.
            self._send_unsent()
            if len(self._unsent) > _UNSENT_BYTES_MAX:
                raise TlsFailure("TLS failed: it demands key updates, and reads nothing")
        if filled:
            return filled
        if self._has_ended:
            return 0
        raise BlockingIOError

    def _take_clear(self, space: memoryview) -> int:
        size = min(len(space), len(self._clear))
        space[:size] = self._clear[:size]
        del self._clear[:size]
        return size

    # ---- handshake ----

    def begin_step(self) -> bool:
        """Receive bytes of the handshake; return whether they need a `compute_step`, and then `end_step`.

        Raises:
            TlsFailure: the peer violated TLS.
            OSError: the connection is broken.
        """
        # A thread reads what this would write.
        assert not self._is_computing
        if self._incoming.pending:
            # The client did not wait for the answer to START_TLS.
            self._handshake_bytes = self._incoming.pending
        else:
            try:
                if not self._receive_handshake():
                    return False
            except (BlockingIOError, InterruptedError):
                return False
        if self._tls is None:
            self._tls = self._context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_computing = True
        return True

    def compute_step(self) -> ssl.SSLError | None:
        """Continue with the handshake; return None if it is complete, or the reason why not. On any thread."""
        try:
            self._tls.do_handshake()
        except ssl.SSLError as error:
            return error
        return None

    def end_step(self, error: ssl.SSLError | None) -> None:
        """Send what `compute_step`, which returned `error`, has for the peer.

        The handshake is complete (`is_secured`), or it needs more bytes from the peer.

        Raises:
            TlsFailure: the handshake failed.
            OSError: the connection is broken.
        """
        self._is_computing = False
        # An alert reports the reason of a failure to the peer.
        self._send_unsent()
        if error is None:
            self.is_secured = True
            self._on_secured()
        elif not isinstance(error, ssl.SSLWantReadError):
            raise TlsFailure(f"the TLS handshake failed: {_why(error)}")
        elif self._handshake_bytes >= HANDSHAKE_BYTES_MAX:
            raise TlsFailure(f"the TLS handshake failed: it has more than {HANDSHAKE_BYTES_MAX} bytes")

    def _receive_handshake(self) -> bool:
        """Receive bytes; return whether some of them belong to the handshake."""
        room = min(HANDSHAKE_BYTES_MAX - self._handshake_bytes, _RECORD_BYTES)
        if not self._has_begun and not self._clear:
            first = self._socket.recv(1, socket.MSG_PEEK)
            self._has_begun = first == bytes((_HANDSHAKE_RECORD,))
        is_clear = not self._has_begun
        if is_clear:
            received = self._socket.recv_into(memoryview(_scratch)[:room])
        else:
            received = self._receive_records(room)
        if not received:
            raise TlsFailure("the TLS handshake failed: the peer left before it was complete")
        if is_clear:
            self._take_before_handshake(bytes(_scratch[:received]))
        self._handshake_bytes += received
        return self._has_begun

    def _take_before_handshake(self, received: bytes) -> None:
        """Divide bytes after START_TLS into AUTH messages in clear and the beginning of the handshake."""
        self._clear += received
        at = messages = 0
        while at < len(self._clear):
            first = self._clear[at]
            if first == _HANDSHAKE_RECORD:
                self._begin_handshake(bytes(self._clear[at:]))
                del self._clear[at:]
                return
            if first != _FRAME:
                raise TlsFailure("the TLS handshake failed: what follows START_TLS is not a handshake")
            body_at = at + LENGTH_BYTES
            end = body_at + int.from_bytes(self._clear[at:body_at], "big")
            if len(self._clear) < body_at or len(self._clear) < end:
                break
            if not is_auth_request(bytes(self._clear[body_at:end])):
                raise TlsFailure("a request other than AUTH came in clear after START_TLS")
            at = end
            messages += 1
            if messages > CLEAR_MESSAGES_MAX:
                raise TlsFailure(f"more than {CLEAR_MESSAGES_MAX} AUTH messages came in clear after START_TLS")
        if len(self._clear) > CLEAR_BYTES_MAX:
            raise TlsFailure(f"more than {CLEAR_BYTES_MAX} bytes came in clear after START_TLS")

    def _begin_handshake(self, received: bytes) -> None:
        if len(received) > HANDSHAKE_BYTES_MAX:
            raise TlsFailure(f"the TLS handshake failed: it has more than {HANDSHAKE_BYTES_MAX} bytes")
        if self._ends.take(memoryview(received), RECORDS_MAX) < len(received):
            raise TlsFailure(f"the TLS handshake failed: it begins with more than {RECORDS_MAX} records")
        self._incoming.write(received)
        self._has_begun = True

    # ---- sending ----

    def send(self, data: bytes | memoryview) -> int:
        """Encrypt and send; return how many bytes the socket has taken.

        Raises:
            OSError: the connection is broken.
        """
        return self.sendmsg((data,))

    def sendmsg(self, parts: Parts) -> int:
        """Encrypt and send parts back to back; see `send`."""
        if not self.is_secured:
            # The peer asked for TLS before it had the responses to earlier requests.
            raise ConnectionError("an answer is due before the TLS handshake is complete")
        self._is_watched = True
        done = 0
        if self._unsent or self._outgoing.pending:
            if not self._send_unsent():
                return 0
            done, self._piece_bytes = self._piece_bytes, 0
        left = done
        piece: list[bytes | memoryview] = []
        piece_bytes = 0
        for part in parts:
            if left >= len(part):
                left -= len(part)
                continue
            at, left = left, 0
            while at < len(part):
                some = memoryview(part)[at : at + PIECE_BYTES - piece_bytes]
                at += len(some)
                piece.append(some)
                piece_bytes += len(some)
                if piece_bytes == PIECE_BYTES:
                    if not self._send_piece(piece, piece_bytes):
                        return done
                    done += piece_bytes
                    piece, piece_bytes = [], 0
        if piece:
            if not self._send_piece(piece, piece_bytes):
                return done
            done += piece_bytes
        self._is_watched = False
        return done

    def _send_piece(self, piece: list[bytes | memoryview], piece_bytes: int) -> bool:
        """Encrypt a piece and send it; return whether the socket has taken all of it."""
        self._tls.write(piece[0] if len(piece) == 1 else b"".join(piece))
        self._piece_bytes = piece_bytes
        if not self._send_unsent():
            return False
        self._piece_bytes = 0
        return True

    def _send_unsent(self) -> bool:
        """Send ciphertext; return whether no ciphertext is left."""
        if not self._is_computing and self._outgoing.pending:
            more = self._outgoing.read()
            self._unsent = self._unsent + more if self._unsent else more
        sent = 0
        if self._unsent:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                sent = self._socket.send(self._unsent)
            self._unsent = self._unsent[sent:]
        if not self._unsent:
            return True
        if not self._is_watched:
            self._loop.add_writer(self._socket, self._send_later)
        return False

    def _send_later(self) -> None:
        try:
            is_done = self._send_unsent()
        except OSError:
            # Receiving meets the error, too, and closes the connection.
            is_done = True
        if is_done:
            self._loop.remove_writer(self._socket)

    # ---- the rest of a socket ----

    def close(self) -> None:
        """End TLS with an alert, if the socket takes it, and close the socket."""
        if self.is_secured and not self._unsent:
            with contextlib.suppress(OSError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self._socket.send(self._outgoing.read())
        self._socket.close()
        # The connection's method: with it, the two form a cycle that only garbage collection frees.
        self._on_secured = _do_nothing


def _do_nothing() -> None:
    """In place of `on_secured` once the socket is closed."""


def _why(error: ssl.SSLError) -> str:
    return why_failed(error, "the peer", "this bookie")
