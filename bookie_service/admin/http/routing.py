"""Routes of the HTTP server: a path has a handler for each method. Parts of a path in braces are parameters."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus

from bkspark.security.roles import Role
from bookie_service.admin.http.messages import HttpError, HttpRequest, HttpResponse, plain
from bookie_service.metrics.exposition import CONTENT_TYPE, Exposition
from bookie_service.metrics.families import Registry

Call = Callable[[HttpRequest], Awaitable[HttpResponse]]
Permit = Callable[[str, HttpRequest], Awaitable[None]]
STEP_S = 0.0003
"""How long a scrape is rendered before the event loop serves requests again. Smaller steps cost more than they spare: a
pause takes about 0.1 ms of processor time."""
PAUSE_S = 0.001
"""How long it pauses then. Without a pause, the threads of the journals get the interpreter only when a millisecond is
over (`share_interpreter`), several times for each add."""


class Routes:
    """Finds the handler of a request by path and method."""

    def __init__(self, permit: Permit | None = None) -> None:
        """`permit(route, request)` raises HttpError if a request is not allowed; None: all are allowed."""
        self._permit = permit
        self._calls: dict[str, dict[str, Call]] = {}
        """Handlers by path and method."""
        self._roles: dict[str, dict[str, Role]] = {}
        """The role that each handler needs, by path and method."""
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        """Paths with parameters: their patterns, and the paths."""
        self._errors: dict[str, int] = {}
        """The status of the response to a wrong method, by path."""

    def add(
        self,
        methods: str,
        path: str,
        call: Call,
        *,
        wrong_method: int = HTTPStatus.METHOD_NOT_ALLOWED,
        role: Role = Role.READ,
    ) -> None:
        """Let `call` answer these methods, separated by spaces, at a path, for callers with a role.

        Other methods are answered with the status `wrong_method`.
        """
        calls, roles = self._calls.setdefault(path, {}), self._roles.setdefault(path, {})
        for method in methods.split():
            calls[method], roles[method] = call, role
        self._errors[path] = wrong_method
        if "{" in path:
            parts = (
                f"(?P<{part[1:-1]}>[^/]+)" if part.startswith("{") else re.escape(part) for part in path.split("/")
            )
            self._patterns.append((re.compile("/".join(parts)), path))

    @property
    def paths(self) -> Mapping[str, Mapping[str, Call]]:
        """The handlers by path and method."""
        return self._calls

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request. Raises HttpError."""
        path, parameters = request.path.rstrip("/") or "/", {}
        if path not in self._calls or "{" in path:
            # A caller without a role must not learn which paths exist.
            request.need(Role.METRICS)
            found = ((pattern.fullmatch(path), route) for pattern, route in self._patterns)
            match, path = next(((match, route) for match, route in found if match is not None), (None, ""))
            if match is None:
                raise HttpError(HTTPStatus.NOT_FOUND, "there is nothing at this path")
            parameters = match.groupdict()
        calls = self._calls[path]
        method = "GET" if request.method == "HEAD" and "HEAD" not in calls else request.method
        call = calls.get(method)
        request.need(self._roles[path].get(method, min(self._roles[path].values())))
        if call is None:
            allowed = ", ".join(sorted(calls))
            raise HttpError(
                self._errors[path], f"this path answers {allowed}, not {request.method}", {"Allow": allowed}
            )
        if parameters:
            request = replace(request, query={**request.query, **parameters})
        if self._permit is not None:
            await self._permit(path, request)
        return await call(request)


def add_metrics(routes: Routes, registry: Registry, prepare: Callable[[], Awaitable[None]]) -> None:
    """Serve the metrics at /metrics. `prepare()` is awaited before."""

    exposition = Exposition()

    async def metrics(request: HttpRequest) -> HttpResponse:
        await prepare()
        return HttpResponse(body=await _in_turns(exposition.texts(registry.families())), content_type=CONTENT_TYPE)

    routes.add("GET", "/metrics", metrics, wrong_method=HTTPStatus.FORBIDDEN, role=Role.METRICS)


async def _in_turns(texts: Iterator[str]) -> bytes:
    """Return the texts, which are made a few at a time. Requests of clients are served in between."""
    made: list[str] = []
    began = time.monotonic()
    for text in texts:
        made.append(text)
        if time.monotonic() - began > STEP_S:
            await asyncio.sleep(PAUSE_S)
            began = time.monotonic()
    # One label that is not UTF-8 must not end every scrape.
    return "".join(made).encode(errors="backslashreplace")


async def heartbeat(request: HttpRequest) -> HttpResponse:
    """Answer that the process runs."""
    return plain("OK\n")
