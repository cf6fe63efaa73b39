"""`/api/v1` of a bookie: paths, methods, parameters, bodies and odd texts of Apache's bookies, but without their leaks.

Passwords and secrets are not shown. A change needs the role for it. A method that a path does not have is answered 404
as by Apache's bookies, except for a few that answer 405.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from bkspark.errors import BookKeeperError, ConfigurationError, TooManyRequests
from bkspark.security.roles import Role
from bkspark.tasks import start_kept
from bookie_service.admin.http import jackson
from bookie_service.admin.http.messages import HttpError, HttpRequest, HttpResponse, plain
from bookie_service.admin.http.routing import Routes, heartbeat
from bookie_service.operation.bookie_operator import BookieOperator, NotServing, Refused
from bookie_service.operation.live_keys import LiveKeys

logger = logging.getLogger(__name__)

Call = Callable[[HttpRequest], Awaitable[HttpResponse]]
Members = Mapping[int, object] | Mapping[str, object]

BODY_BYTES_MAX = 1 << 20
"""A longer body is sent in pieces."""
PROBES = ("bookie/is_ready", "bookie/state")
"""Paths that need no token, like /heartbeat: probes of orchestrators have no token. The responses are a few flags."""
BOOKIE_PATHS = (
    "bookie/info",
    "bookie/state",
    "bookie/is_ready",
    "bookie/state/readonly",
    "bookie/last_log_mark",
    "bookie/list_disk_file",
    "bookie/expand_storage",
    "bookie/gc",
    "bookie/gc_details",
    "bookie/gc/suspend_compaction",
    "bookie/gc/resume_compaction",
    "bookie/entry_location_compact",
)
"""Paths about the bookie of the process."""
ABSENT = {
    "bookie/expand_storage": "directories cannot be added: the bookie's cookie names them; start another bookie",
    "bookie/entry_location_compact": "there is nothing to trigger: the index compacts itself",
}
"""Paths of Apache's bookies that do not exist here, and why."""


def shown(value: object, status: int = 200) -> HttpResponse:
    """Return a response of JSON as Apache's bookies print it, like theirs without a content type of its own."""
    return HttpResponse(status, jackson.dumps(value).encode())


async def shown_in_pieces(groups: AsyncIterator[Members]) -> HttpResponse:
    """Return `shown` of all groups of members together. A long response is sent while it is made."""
    pieces, body = jackson.stream(groups), b""
    async for piece in pieces:
        body += piece
        if len(body) > BODY_BYTES_MAX:
            return HttpResponse(body=body, pieces=pieces)
    return HttpResponse(body=body)


def body_of(request: HttpRequest, status: int = HTTPStatus.BAD_REQUEST) -> Mapping[str, Any]:
    """Return the JSON object in a request's body. Raises HttpError with `status` if there is no such object."""
    try:
        found = request.json()
    except ValueError as error:
        raise HttpError(status, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise HttpError(status, "No request body." if found is None else "the body must be a JSON object")
    return found


def flag(value: object) -> bool:
    """Return a flag of a body: true, or a text that means true."""
    return value is True or (isinstance(value, str) and value.lower() == "true")


class ConfigurationApi:
    """The path of a process's configuration."""

    def __init__(self, keys: LiveKeys) -> None:
        self._keys = keys

    def add_to(self, routes: Routes) -> None:
        """Add the path."""
        for method, call, role in (("GET", self.show, Role.READ), ("PUT", self.change, Role.OPERATE)):
            path = "/api/v1/config/server_config"
            routes.add(method, path, contained(call), wrong_method=HTTPStatus.NOT_FOUND, role=role)

    async def show(self, request: HttpRequest) -> HttpResponse:
        return shown(self._keys.shown())

    async def change(self, request: HttpRequest) -> HttpResponse:
        changes = body_of(request, HTTPStatus.NOT_FOUND)
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in changes.items()}
        self._keys.set(texts, request.who)
        return plain("Success set server config.")


class BookieApi:
    """The paths about one bookie."""

    def __init__(self, operator: BookieOperator) -> None:
        self._operator = operator
        self._passes: set[asyncio.Task[None]] = set()
        """Requested collections that are not done."""

    def add_to(self, routes: Routes) -> None:
        """Add all paths."""
        not_found, not_allowed = HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED
        routes.add("GET PUT POST DELETE", "/heartbeat", heartbeat, role=Role.NONE)
        ConfigurationApi(self._operator.keys).add_to(routes)
        for methods, path, call in (
            ("GET", "bookie/info", self.info),
            ("GET", "bookie/state", self.state),
            ("GET", "bookie/is_ready", self.is_ready),
            ("GET", "bookie/state/readonly", self.read_only),
            ("PUT", "bookie/state/readonly", self.set_read_only),
            ("GET", "bookie/last_log_mark", self.last_log_mark),
            ("GET", "bookie/list_disk_file", self.list_disk_file),
            ("GET", "bookie/gc_details", self.gc_details),
            ("GET", "bookie/gc/suspend_compaction", self.suspended),
            ("PUT", "bookie/gc/suspend_compaction", self.suspend),
            ("PUT", "bookie/gc/resume_compaction", self.resume),
        ):
            role = Role.NONE if path in PROBES else Role.READ if methods == "GET" else Role.OPERATE
            routes.add(methods, f"/api/v1/{path}", contained(call), wrong_method=not_found, role=role)
        for path, why in ABSENT.items():
            routes.add("GET PUT POST DELETE", f"/api/v1/{path}", _absent(why))
        gc = "/api/v1/bookie/gc"
        routes.add("GET", gc, contained(self.is_collecting), wrong_method=not_allowed)
        routes.add("PUT", gc, contained(self.collect), wrong_method=not_allowed, role=Role.OPERATE)

    # ---- state ----

    async def info(self, request: HttpRequest) -> HttpResponse:
        space = self._operator.space()
        return shown({"freeSpace": space.free_bytes, "totalSpace": space.total_bytes})

    async def state(self, request: HttpRequest) -> HttpResponse:
        state = self._operator.state()
        return shown(
            {
                "running": state.phase == "serving",
                "readOnly": state.read_only,
                "shuttingDown": state.phase == "stopping",
                "availableForHighPriorityWrites": state.takes_recovery_adds,
            }
        )

    async def is_ready(self, request: HttpRequest) -> HttpResponse:
        if self._operator.phase != "serving":
            return plain("Bookie is not fully started yet", HTTPStatus.SERVICE_UNAVAILABLE)
        return plain("OK")

    async def read_only(self, request: HttpRequest) -> HttpResponse:
        return shown({"readOnly": self._operator.is_read_only})

    async def set_read_only(self, request: HttpRequest) -> HttpResponse:
        wanted = body_of(request).get("readOnly")
        if not isinstance(wanted, bool) and wanted not in ("true", "false"):
            raise HttpError(HTTPStatus.BAD_REQUEST, 'the body must be {"readOnly": true} or {"readOnly": false}')
        return shown({"readOnly": await self._operator.set_read_only(flag(wanted), request.who)})

    async def last_log_mark(self, request: HttpRequest) -> HttpResponse:
        marks = await asyncio.to_thread(self._operator.last_marks)
        return shown(
            {f"LastLogMark: Journal Id - {number}({number:x}.txn)": f"Pos - {offset}" for _, number, offset in marks}
        )

    async def list_disk_file(self, request: HttpRequest) -> HttpResponse:
        wanted = request.query.get("file_type")
        kinds = ("journal", "entrylog", "index")
        found = {}
        for kind in (wanted,) if wanted in kinds else kinds:
            names = await asyncio.to_thread(self._operator.disk_files, kind)
            found[f"{kind} files"] = "".join(f"{name}\t" for name in names)
        return shown(found)

    # ---- garbage collection ----

    async def is_collecting(self, request: HttpRequest) -> HttpResponse:
        return shown({"is_in_force_gc": json.dumps(self._operator.collection().is_forced)})

    async def collect(self, request: HttpRequest) -> HttpResponse:
        status = self._operator.collection()
        wanted = body_of(request) if request.body.strip() else {}
        major = wanted.get("forceMajor", not status.is_major_suspended)
        minor = wanted.get("forceMinor", not status.is_minor_suspended)
        if not (isinstance(major, bool) and isinstance(minor, bool)):
            raise HttpError(HTTPStatus.BAD_REQUEST, "forceMajor and forceMinor must be true or false")
        start_kept(self._collect(request.who, major, minor), self._passes)
        return shown(f"Triggered GC on BookieServer: {self._operator.bookie_id}")

    async def _collect(self, who: str, major: bool, minor: bool) -> None:
        try:
            await self._operator.collect(who, major=major, minor=minor)
        except Exception as error:
            logger.warning("a requested garbage collection failed: %s", error)

    async def gc_details(self, request: HttpRequest) -> HttpResponse:
        status = self._operator.collection()
        return shown(
            [
                {
                    "forceCompacting": status.is_forced,
                    "majorCompacting": status.compacting == "major",
                    "minorCompacting": status.compacting == "minor",
                    "lastMajorCompactionTime": status.major_at_ms,
                    "lastMinorCompactionTime": status.minor_at_ms,
                    "lastEntryLocationCompactionTime": 0,
                    "majorCompactionCounter": status.major_count,
                    "minorCompactionCounter": status.minor_count,
                    "entryLocationCompactionCounter": 0,
                }
            ]
        )

    async def suspended(self, request: HttpRequest) -> HttpResponse:
        status = self._operator.collection()
        return shown(
            {
                "isMajorGcSuspended": json.dumps(status.is_major_suspended),
                "isMinorGcSuspended": json.dumps(status.is_minor_suspended),
            }
        )

    async def suspend(self, request: HttpRequest) -> HttpResponse:
        return self._set_suspended(request, "suspend")

    async def resume(self, request: HttpRequest) -> HttpResponse:
        return self._set_suspended(request, "resume")

    def _set_suspended(self, request: HttpRequest, verb: str) -> HttpResponse:
        wanted = body_of(request)
        names = [f"{verb}Major", f"{verb}Minor"]
        if not any(name in wanted for name in names):
            raise HttpError(HTTPStatus.BAD_REQUEST, f"No {verb} request: the body must have {' or '.join(names)}")
        if not all(isinstance(wanted.get(name, False), bool) for name in names):
            raise HttpError(HTTPStatus.BAD_REQUEST, f"{' and '.join(names)} must be true or false")
        major, minor = (bool(wanted.get(name)) for name in names)
        change = self._operator.suspend if verb == "suspend" else self._operator.resume
        change(request.who, minor=minor, major=major)
        at = f"GC on BookieServer: {self._operator.bookie_id}"
        # Apache's bookies begin with the comma, too, if the minor one is alone.
        both = f"{verb.capitalize()} major{at}" if major else "", f", {verb.capitalize()} minor{at}" if minor else ""
        return shown("".join(both))


def add_without_bookie(routes: Routes) -> None:
    """Answer the paths about one bookie in a process without a bookie: 404, with the reason."""
    for path in BOOKIE_PATHS:
        role = Role.NONE if path in PROBES else Role.READ
        routes.add("GET PUT POST DELETE", f"/api/v1/{path}", _absent("there is no bookie in this process"), role=role)


def _absent(why: str) -> Call:
    async def answer(request: HttpRequest) -> HttpResponse:
        raise HttpError(HTTPStatus.NOT_FOUND, why)

    return answer


def contained(call: Call) -> Call:
    """Answer refusals and errors of a call with the statuses that Apache's bookies have for them."""

    async def answer(request: HttpRequest) -> HttpResponse:
        try:
            return await call(request)
        except (NotServing, TooManyRequests) as error:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        except (Refused, ConfigurationError) as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from error
        except (BookKeeperError, OSError) as error:
            logger.warning("%s %s failed: %s", request.method, request.path, error, extra={"kind": request.path})
            raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal Server Error") from error

    return answer
