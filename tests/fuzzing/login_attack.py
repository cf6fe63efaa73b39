"""Attacks a bookie that demands authentication: mutated AUTH and START_TLS frames, in each state of a connection.

A mutated frame counts as processed when the bookie answered it or a frame after it, or closed the connection at it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from bkspark.security.digest_md5 import DigestClient
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.auth import encode_auth, take_auth_answer
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.start_tls import encode_start_tls
from tests.fuzzing.attack import Count, Hang
from tests.fuzzing.mutated_bytes import mutated
from tests.security.sasl_serving import PASSWORD, USER

ANSWER_S = 30.0
BURST_FRAMES_MAX = 14
"""Fewer than a connection may send before it is authenticated."""
LONG_BURST_FRAMES = 64


@dataclass(frozen=True)
class Target:
    """A bookie's port; ca: the file of the authority of its certificate, None: it has no TLS."""

    port: int
    ca: str | None


class LoginFrames:
    """Frames of AUTH and START_TLS, some of them mutated."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)

    def one(self, kept_share: float) -> tuple[bytes, bool]:
        """Return a frame, and whether it is mutated."""
        frame = self._start_tls() if self.luck.random() < 0.25 else self._auth()
        if self.luck.random() < kept_share:
            return frame, False
        mutated = self._mutated(frame)
        return mutated, mutated != frame

    def burst(self, most: int) -> list[tuple[bytes, bool]]:
        """Return frames; sometimes few of them are mutated: most of those close the connection."""
        kept_share = self.luck.choice((0.0, 0.3, 0.8))
        return [self.one(kept_share) for _ in range(self.luck.randint(1, most))]

    def _start_tls(self) -> bytes:
        if self.luck.random() < 0.5:
            return encode_start_tls(self.luck.choice((0, 7, 1 << 62)))
        # The message is missing, or another one is there.
        request = protocol.Request(header=v3.header(protocol.START_TLS, 7))
        if self.luck.random() < 0.5:
            request.authRequest.authPluginName, request.authRequest.payload = "sasl", b""
        return v3.encode_message(request)

    def _auth(self) -> bytes:
        plugin = self.luck.choice(("sasl", "sasl", "sasl", "", "BookieAuthZFactory", "x" * 300, "s\u00e4sl"))
        txn_id = None if self.luck.random() < 0.5 else self.luck.randrange(1 << 40)
        return encode_auth(plugin, self._payload(), txn_id)

    def _payload(self) -> bytes:
        match self.luck.randrange(5):
            case 0 | 1:
                return b""
            case 2:
                return self.luck.randbytes(self.luck.choice((1, 16, 300, 5000)))
            case 3:
                return b"\x60\x82\x01\x00" + self.luck.randbytes(200)
        nonce, response = f"{self.luck.getrandbits(128):032x}", f"{self.luck.getrandbits(128):032x}"
        text = (
            f'charset=utf-8,username="{USER}",realm="bookkeeper",nonce="{nonce}",nc=00000001,cnonce="c",'
            f'digest-uri="bookkeeper/bookkeeper",maxbuf=65536,response={response},qop=auth,authzid="{USER}"'
        )
        return self._changed(text.encode())

    def _mutated(self, frame: bytes) -> bytes:
        body = self._changed(frame[LENGTH_BYTES:])
        size = len(body) if self.luck.random() < 0.9 else self.luck.choice((0, 1, len(body) + 3, 1 << 16, 1 << 31))
        return (size & 0xFFFFFFFF).to_bytes(LENGTH_BYTES, "big") + body

    def _changed(self, data: bytes) -> bytes:
        return mutated(data, self.luck, changes_max=3, gap_max=8)


class LoginLink:
    """One connection, blocking, that counts the frames it gets."""

    def __init__(self, port: int) -> None:
        self._socket: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_v3 = False

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        # A connection that the bookie has closed is noticed by reading.
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def secure(self, ca: str) -> None:
        """Begin TLS."""
        self.send(encode_start_tls(7))
        assert self.frame() is not None, "START_TLS is not answered"
        context = ssl.create_default_context(cafile=ca)
        self._socket = context.wrap_socket(self._socket, server_hostname="localhost")

    def frame(self) -> bytes | None:
        """Return the next frame; None: the bookie closed the connection."""
        head = self._read(LENGTH_BYTES)
        if len(head) < LENGTH_BYTES:
            return None
        return head + self._read(int.from_bytes(head, "big"))

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                more = self._socket.recv(size - len(found))
            except TimeoutError:
                raise Hang(f"nothing came in {ANSWER_S:.0f} s") from None
            except OSError:
                more = b""
            if not more:
                break
            found += more
        return found

    def ask(self, payload: bytes) -> bytes:
        """Return the payload of the answer to an AUTH message."""
        txn_id = 9 if self.is_v3 else None
        self.send(encode_auth("sasl", payload, txn_id))
        frame = self.frame()
        assert frame is not None, "an honest message is not answered"
        answer = take_auth_answer(bytearray(frame), txn_id)
        assert answer is not None
        return answer.payload

    def log_in(self) -> None:
        """Authenticate."""
        client = DigestClient(USER, PASSWORD, "cnonce")
        client.step(self.ask(client.step(self.ask(b"")) or b""))
        assert client.is_complete

    def finish(self) -> int:
        """Send no more, and return how many frames come until the bookie closes."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
        count = 0
        while self.frame() is not None:
            count += 1
        return count


def _new(link: LoginLink, target: Target, frames: LoginFrames) -> None:
    """Nothing was sent yet."""


def _challenged(link: LoginLink, target: Target, frames: LoginFrames) -> None:
    link.ask(b"")


def _authenticated(link: LoginLink, target: Target, frames: LoginFrames) -> None:
    link.log_in()


def _waiting(link: LoginLink, target: Target, frames: LoginFrames) -> None:
    """An AUTH message waits for START_TLS."""
    link.send(encode_auth("sasl", b"", 9 if link.is_v3 else None))


def _promised(link: LoginLink, target: Target, frames: LoginFrames) -> None:
    """START_TLS is answered, and no handshake has begun."""
    link.send(encode_start_tls(7))
    assert link.frame() is not None


def _secured(link: LoginLink, target: Target, frames: LoginFrames) -> None:
    assert target.ca is not None
    link.secure(target.ca)


def _secured_and_challenged(link: LoginLink, target: Target, frames: LoginFrames) -> None:
    _secured(link, target, frames)
    link.ask(b"")


def _secured_and_authenticated(link: LoginLink, target: Target, frames: LoginFrames) -> None:
    _secured(link, target, frames)
    link.log_in()


STATES: dict[str, tuple[bool, Callable[[LoginLink, Target, LoginFrames], None], int]] = {
    "new": (False, _new, BURST_FRAMES_MAX),
    "challenged": (False, _challenged, BURST_FRAMES_MAX),
    "authenticated": (False, _authenticated, LONG_BURST_FRAMES),
    "new, TLS required": (True, _new, BURST_FRAMES_MAX),
    "AUTH waits for START_TLS": (True, _waiting, BURST_FRAMES_MAX),
    "START_TLS answered": (True, _promised, BURST_FRAMES_MAX),
    "inside TLS": (True, _secured, BURST_FRAMES_MAX),
    "challenged inside TLS": (True, _secured_and_challenged, BURST_FRAMES_MAX),
    "authenticated inside TLS": (True, _secured_and_authenticated, LONG_BURST_FRAMES),
}
"""Whether the bookie demands TLS; what brings a connection into the state; frames of a burst at most."""


def attack(target: Target, state: str, frames_wanted: int, seed: int, until: float) -> Count:
    """Send mutated frames on connections in one state, until this many were processed, or until then.

    Raises:
        Hang: the bookie neither answered nor closed.
    """
    frames, count = LoginFrames(seed), Count()
    _, prepare, most = STATES[state]
    while count.looked_at < frames_wanted and time.monotonic() < until:
        link = LoginLink(target.port)
        link.is_v3 = frames.luck.random() < 0.5
        count.connections += 1
        try:
            prepare(link, target, frames)
            burst = frames.burst(most)
            count.sent += len(burst)
            link.send(b"".join(frame for frame, _ in burst))
            answered = link.finish()
            # The one after the last that was answered closed the connection.
            count.looked_at += sum(is_mutated for _, is_mutated in burst[: answered + 1])
            count.closed_by_bookie += answered < len(burst)
        finally:
            link.close()
    return count


def probe(target: Target) -> bool:
    """Return whether an honest client is served."""
    link = LoginLink(target.port)
    try:
        if target.ca is not None:
            link.secure(target.ca)
        link.log_in()
        link.send(v2.encode_batch_read(1, 0, 1, 0, 1 << 20))
        return link.frame() is not None
    finally:
        link.close()
