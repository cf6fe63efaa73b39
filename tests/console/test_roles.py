"""Which role a page of the console needs, where its handler names one and where it does not."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from bkspark.security.roles import Role
from bkspark_console.access import needs, role_for
from bkspark_console.guard import Handler


@pytest.mark.parametrize(("method", "role"), [("GET", Role.READ), ("POST", Role.DESTROY), ("DELETE", Role.DESTROY)])
def test_page_that_names_no_role_needs_the_highest_one_for_a_change(method: str, role: Role) -> None:
    """A handler whose role was forgotten must not be open to everyone who may look."""

    async def forgotten(request: web.Request) -> web.Response:
        return web.Response()

    @needs(Role.OPERATE)
    async def marked(request: web.Request) -> web.Response:
        return web.Response()

    async def needed(handler: Handler) -> Role:
        found: list[Role] = []

        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            found.append(role_for(request))
            return await handler(request)

        app = web.Application(middlewares=[note])
        app.router.add_route(method, "/page", handler)
        async with TestClient(TestServer(app)) as client:
            await client.request(method, "/page")
        (role,) = found
        return role

    assert asyncio.run(needed(forgotten)) == role
    assert asyncio.run(needed(marked)) == Role.OPERATE
