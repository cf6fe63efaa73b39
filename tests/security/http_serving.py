"""An HTTP API with an access file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

from bkspark.security.roles import Role
from bookie_service.admin.http.face import http_serving
from bookie_service.admin.http.messages import HttpRequest, HttpResponse, plain
from bookie_service.admin.http.routing import Routes
from bookie_service.metrics.families import Registry
from bookie_service.settings.http_options import HttpOptions

TOKENS = {role: f"token-of-the-role-{role}" for role in ("metrics", "read", "operate", "destroy")}
ACCESS = "".join(f"token {role} {role}er {token}\n" for role, token in TOKENS.items())


def access_file(directory: Path, text: str = ACCESS) -> str:
    path = directory / "access"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def add_paths(routes: Routes) -> None:
    async def shown(request: HttpRequest) -> HttpResponse:
        return plain(json.dumps([request.who, str(request.principal), str(request.role)]))

    routes.add("GET", "/open", shown, role=Role.NONE)
    routes.add("GET", "/read", shown)
    routes.add("PUT POST", "/operate", shown, role=Role.OPERATE)
    routes.add("DELETE", "/destroy", shown, role=Role.DESTROY)


@contextmanager
def served(options: HttpOptions, *names: str) -> Iterator[int]:
    """Serve on a thread of its own; give the port."""
    ports: list[int] = []
    is_ready, is_over = Event(), Event()

    async def serve() -> None:
        async def at_once() -> None:
            pass

        async with http_serving(replace(options, serves_api=True, port=0), Registry(), at_once, add_paths, names) as at:
            assert at.api is not None
            ports.append(at.api[1])
            is_ready.set()
            await asyncio.to_thread(is_over.wait)

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert is_ready.wait(30)
        yield ports[0]
    finally:
        is_over.set()
        thread.join()
