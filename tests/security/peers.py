"""Stand-ins for a bookie: one that answers START_TLS as a test says, and one with any certificate."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Self

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from tests.security.certificates import Leaf

START_TLS_BYTES = 15


class Middle:
    """Accepts one connection, answers its first bytes, and records all that comes."""

    def __init__(self, answer: bytes, follows: bytes = b"", *, leaves: bool = False) -> None:
        """`follows` is sent once the peer has sent more after the answer; or it `leaves` then."""
        self._answer, self._follows, self._leaves = answer, follows, leaves
        self._received = bytearray()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except OSError:
            return
        with accepted:
            self._received += accepted.recv(65536)
            if self._answer:
                accepted.sendall(self._answer)
            try:
                while more := accepted.recv(65536):
                    self._received += more
                    if self._leaves:
                        return
                    if self._follows:
                        accepted.sendall(self._follows)
            except OSError:
                pass

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self._thread.join()

    def received(self) -> bytes:
        """Return all that the client sent; it must have closed the connection."""
        self._thread.join()
        return bytes(self._received)


class StandIn:
    """Answers START_TLS with EOK and shakes hands with any certificate, also one that no bookie starts with."""

    def __init__(self, leaf: Leaf, *, refuses: bool = False) -> None:
        """`refuses`: it says inside TLS that START_TLS failed, as Apache's bookies to a client they do not know."""
        self._refuses = refuses
        key, chain = leaf.pem()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(chain, key)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except OSError:
            return
        with accepted:
            request = v3.decode_request(accepted.recv(START_TLS_BYTES)[4:])
            answer = protocol.Response(
                header=request.header, status=v3.StatusCode.EOK, startTLSResponse=protocol.StartTLSResponse()
            )
            accepted.sendall(v3.encode_message(answer))
            try:
                with self._context.wrap_socket(accepted, server_side=True) as secured:
                    if self._refuses:
                        secured.sendall(
                            v3.encode_message(protocol.Response(header=request.header, status=v3.StatusCode.EIO))
                        )
                    while secured.recv(1 << 16):
                        pass
            except OSError:
                pass

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._listening.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self._thread.join()
