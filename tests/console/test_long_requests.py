"""Requests that last, such as live tails: they end when their user may no longer read. Without processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from bkspark.security.access_file import AccessFile
from bkspark.security.principal import Principal
from bkspark_console.guard import Guard
from bkspark_console.sessions import Sessions
from tests.clock import Clock

AMY = Principal("amy", "token")
FIRST, NEXT = "the-first-token-of-amy", "the-next-token-of-amy"


class LongRequest:
    """A request of amy's to a guarded application, which says at the end whether she may still read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "access"
        self.write(f"token read amy {FIRST}")
        self._clock = Clock()
        self._users = AccessFile(str(self._path), "--token-file", self._clock)
        self._sessions = Sessions(self._clock, idle_s=100, time_s=1000)
        self._has_begun, self._may_end = asyncio.Event(), asyncio.Event()
        self.session = self._sessions.open(AMY, self._users.mark(AMY))

    def write(self, line: str) -> None:
        self._path.write_text(f"{line}\ntoken read bob the-only-token-of-bob\n")
        self._path.chmod(0o600)

    async def _page(self, request: web.Request) -> web.Response:
        self._has_begun.set()
        await self._may_end.wait()
        return web.Response(text=str(request["is_still_known"]()))

    async def answer(self, headers: dict[str, str], meanwhile: Callable[[LongRequest], None]) -> str:
        """Return what the request says; `meanwhile` happens while it lasts. "SESSION" in a header is a session's id."""
        app = web.Application()
        Guard(self._users, self._sessions, frozenset()).add_to(app)
        app.router.add_get("/tail", self._page)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            sent = {name: value.format(port=port, session=self.session) for name, value in headers.items()}
            async with aiohttp.ClientSession() as client:
                asked = asyncio.ensure_future(client.get(f"http://127.0.0.1:{port}/tail", headers=sent))
                begun = asyncio.ensure_future(self._has_begun.wait())
                await asyncio.wait([asked, begun], return_when=asyncio.FIRST_COMPLETED)
                assert begun.done()
                meanwhile(self)
                self._clock.now += 2
                self._may_end.set()
                async with await asked as found:
                    return await found.text()
        finally:
            await runner.cleanup()


BEARER = {"Authorization": f"Bearer {FIRST}"}
SIGNED_IN = {"Cookie": "bkspark-console-{port}={session}"}


def nothing(request: LongRequest) -> None:
    """Change nothing."""


def give_another_token(request: LongRequest) -> None:
    request.write(f"token read amy {NEXT}")


def take_the_role(request: LongRequest) -> None:
    request.write(f"token metrics amy {FIRST}")


def remove_the_line(request: LongRequest) -> None:
    request.write("# amy has left")


def sign_out(request: LongRequest) -> None:
    request._sessions.close(request.session)


@pytest.mark.parametrize("headers", [BEARER, SIGNED_IN], ids=["bearer", "signed in"])
@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [(nothing, "True"), (give_another_token, "False"), (take_the_role, "False"), (remove_the_line, "False")],
)
def test_a_long_request_ends_when_its_token_or_role_is_taken_away(
    tmp_path: Path, headers: dict[str, str], meanwhile: Callable[[LongRequest], None], expected: str
) -> None:
    """docs/console.md: live tails end with their session. One that a stolen token had begun went on after the token was
    replaced."""

    async def test() -> str:
        return await LongRequest(tmp_path).answer(headers, meanwhile)

    assert run(test) == expected


def test_a_long_request_ends_when_its_user_signs_out(tmp_path: Path) -> None:
    async def test() -> str:
        return await LongRequest(tmp_path).answer(SIGNED_IN, sign_out)

    assert run(test) == "False"


def run(test: Callable[[], Awaitable[str]]) -> str:
    async def timed() -> str:
        async with asyncio.timeout(30):
            return await test()

    return asyncio.run(timed())
