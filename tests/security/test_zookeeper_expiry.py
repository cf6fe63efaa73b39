"""A ZooKeeper session that ends while its client logs in again, at a server that the test plays."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from bkspark.errors import MetadataError
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.metadata.zookeeper_login import DIGEST_URI
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.security.digest_md5 import challenge, directives, response_of, session_secret

USER, PASSWORD, REALM, NONCE = "bookkeeper", "s3cret", "zk-sasl-md5", "nonce"
NO_NODE, SESSION_EXPIRED = -101, -112
SASL = 102


class Server:
    """Serves one connection after another. The first one is dropped at the first request; what the next one gets in
    place of an answer to its login is `interruption`. After it the session has expired."""

    def __init__(self, interruption: str) -> None:
        self._interruption = interruption
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.log: list[str] = []
        """What happened, in order."""
        self._session = 7
        self._thread = ThreadPoolExecutor(1)
        self._serving = self._thread.submit(self._serve)

    def stop(self) -> None:
        """End the server. Raises what ended it before, such as an AssertionError for a wrong login."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.shutdown()
        self._serving.result()

    def _serve(self) -> None:
        number = 0
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            number += 1
            with peer, peer.makefile("rb") as file:
                self._serve_one(peer, file, number)

    def _serve_one(self, peer: socket.socket, file: BinaryIO, number: int) -> None:
        asked = struct.unpack_from(">q", _frame(file) or bytes(99), 16)[0]
        if asked and asked != self._session:
            self.log.append("expired")
            _send(peer, struct.pack(">iiqi16s?", 0, 0, 0, 16, bytes(16), False))
            return
        self.log.append(f"session {self._session}")
        _send(peer, struct.pack(">iiqi16s?", 0, 10_000, self._session, 16, bytes(16), False))
        has_proved = False
        while (body := _frame(file)) is not None:
            xid, kind = struct.unpack_from(">ii", body)
            if kind == SASL and number == 2:
                self._session = 8
                self.log.append(self._interruption)
                if self._interruption == "error":
                    _send(peer, struct.pack(">iqi", xid, 1, SESSION_EXPIRED))
                return
            if kind == SASL:
                token = body[12:]
                answer = _answer(token)
                has_proved = bool(token)
                _send(peer, struct.pack(">iqii", xid, 1, 0, len(answer)) + answer)
                continue
            if kind == -11:
                return
            self.log.append("request" if has_proved else "request before the login")
            if number == 1:
                return
            _send(peer, struct.pack(">iqi", xid, 2, NO_NODE))


def _answer(token: bytes) -> bytes:
    if not token:
        return challenge(NONCE, REALM)
    given = directives(token)
    secret = session_secret(USER, PASSWORD, NONCE, given["cnonce"], None, REALM)
    assert given["response"] == response_of(secret, NONCE, given["cnonce"], "AUTHENTICATE", DIGEST_URI)
    return f"rspauth={response_of(secret, NONCE, given['cnonce'], '', DIGEST_URI)}".encode()


def _frame(file: BinaryIO) -> bytes | None:
    head = file.read(4)
    if len(head) < 4:
        return None
    return file.read(int.from_bytes(head, "big"))


def _send(peer: socket.socket, body: bytes) -> None:
    peer.sendall(len(body).to_bytes(4, "big") + body)


@pytest.mark.parametrize("interruption", ["error", "drop"])
def test_session_that_expires_during_a_login_is_followed_by_one_that_logs_in(tmp_path: Path, interruption: str) -> None:
    jaas = tmp_path / "client.jaas"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f'Client {{ {module} required username="{USER}" password="{PASSWORD}"; }};\n')
    server = Server(interruption)
    expired: list[int] = []

    async def run() -> object:
        uri = MetadataUri.parse(f"zk://127.0.0.1:{server.port}/ledgers")
        tree = await open_tree(uri, ZooKeeperOptions(str(jaas)), session_timeout_s=10, call_timeout_s=30)
        tree.on_session_expired(lambda: expired.append(1))
        try:
            with pytest.raises(MetadataError):
                await tree.create("/ledgers/x", b"")
            return await tree.exists("/ledgers/x")
        finally:
            await tree.close()

    try:
        assert asyncio.run(run()) is None
    finally:
        server.stop()
    expected = f"session 7,request,session 7,{interruption},(expired,)+session 8(,request)+"
    assert re.fullmatch(expected, ",".join(server.log)), server.log
    assert expired == [1]
