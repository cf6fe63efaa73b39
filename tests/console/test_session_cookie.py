"""The cookie of a session: what a browser may do with it. Without processes."""

from __future__ import annotations

import asyncio
from http.cookies import Morsel

import aiohttp
import pytest
from aiohttp import web

from bkspark_console.guard import Guard
from bkspark_console.sessions import Sessions


async def _page(request: web.Request) -> web.Response:
    return web.Response(text="page")


async def _cookie(headers: dict[str, str]) -> Morsel[str]:
    """Return the cookie that a page of a console without sign-in sets."""
    app = web.Application()
    Guard(None, Sessions(lambda: 0.0, idle_s=100, time_s=1000), frozenset()).add_to(app)
    app.router.add_get("/page", _page)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/page"
        async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as found:
            (cookie,) = found.cookies.values()
            return cookie
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("headers", "is_secure"),
    [({}, False), ({"X-Forwarded-Proto": "http"}, False), ({"X-Forwarded-Proto": "https"}, True)],
)
def test_the_cookie_stays_inside_tls_also_where_a_proxy_ends_it(headers: dict[str, str], is_secure: bool) -> None:
    """docs/console.md: the cookie is HttpOnly, SameSite=Strict, and Secure inside TLS."""
    cookie = asyncio.run(_cookie(headers))
    assert bool(cookie["secure"]) is is_secure
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
