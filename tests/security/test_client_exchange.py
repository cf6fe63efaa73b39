"""The client's side of a login on a connection that the test plays, step by step: no socket, no time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bkspark.errors import AuthenticationFailed
from bkspark.net.authentication import Authentication
from bkspark.security.digest_md5 import DigestServer
from bkspark.security.sasl import SaslClient, SaslClientOptions
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.auth import ANSWER_BYTES_MAX
from bkspark.wire.framing import LENGTH_BYTES
from tests.security.sasl_serving import PASSWORD, USER, auth_v2, jaas_file, jaas_text


class Wire(asyncio.Transport):
    """A connection whose other end is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.sent += data

    def abort(self) -> None:
        self.is_aborted = True


class Login:
    """A login in V2 that has begun, and the bookie that it talks to."""

    def __init__(self, directory: Path) -> None:
        jaas = jaas_file(directory / "client.jaas", jaas_text())
        self.client = Authentication("b:1", "b", SaslClient(SaslClientOptions(jaas)), None)
        self.wire = Wire()
        self.client.connection_made(self.wire)
        self.done = asyncio.ensure_future(self.client.complete(_never))
        self._bookie = DigestServer({USER: PASSWORD}, "nonce", "decoy")

    async def answer(self) -> bytes:
        """Return the bookie's answer to the client's next message."""
        while not self.wire.sent:
            await asyncio.sleep(0)
        body = bytes(self.wire.sent[LENGTH_BYTES + v2.WORD_BYTES :])
        self.wire.sent.clear()
        payload = self._bookie.step(protocol.AuthMessage.FromString(body).payload)
        return auth_v2(payload)

    def receive(self, data: bytes) -> None:
        """Let the client receive bytes, as its event loop would."""
        while data:
            space = self.client.get_buffer(-1)
            size = min(len(space), len(data))
            space[:size] = data[:size]
            self.client.buffer_updated(size)
            data = data[size:]


def _never() -> NoReturn:
    raise AssertionError("no connection is made of this login")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(timed())


def test_connection_that_ends_with_the_last_answer_is_a_failed_login(tmp_path: Path) -> None:
    """It would be used although it is lost: its requests would wait for their time limits."""

    async def test() -> None:
        login = Login(tmp_path)
        login.receive(await login.answer())
        login.receive(await login.answer())
        login.client.connection_lost(None)
        with pytest.raises(AuthenticationFailed, match="it dropped the connection"):
            await login.done

    run(test)


def test_bookie_that_sends_without_end_before_the_login_is_complete_is_dropped(tmp_path: Path) -> None:
    """What it sends is kept until the client has time to look at it."""

    async def test() -> None:
        login = Login(tmp_path)
        login.receive(bytes(ANSWER_BYTES_MAX))
        assert not login.wire.is_aborted
        login.receive(bytes(2 * ANSWER_BYTES_MAX))
        assert login.wire.is_aborted
        with pytest.raises(AuthenticationFailed):
            await login.done

    run(test)
