"""Which role a page of the console needs, where its handler names one and where it does not."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

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
        app = web.Application()
        app.router.add_route(method, "/page", handler)
        request = make_mocked_request(method, "/page")
        request._match_info = await app.router.resolve(request)
        return role_for(request)

    assert asyncio.run(needed(forgotten)) == role
    assert asyncio.run(needed(marked)) == Role.OPERATE
