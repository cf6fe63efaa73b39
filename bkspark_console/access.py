"""How handlers get the parts of the application, and which role a user needs for a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from bkspark.security.principal import Principal
from bkspark.security.roles import Role
from bkspark_console.actions import Actions
from bkspark_console.cluster_view import ClusterView

VIEW = web.AppKey("VIEW", ClusterView)
ACTIONS = web.AppKey("ACTIONS", Actions)

_Handler = TypeVar("_Handler", bound=Callable[[web.Request], Awaitable[web.StreamResponse]])
_ROLE = "bkspark_console_role"


class Forbidden(Exception):
    """The user does not have the role that a request needs."""


def needs(role: Role) -> Callable[[_Handler], _Handler]:
    """Let a handler serve users of a role. A handler of POST without it needs `Role.DESTROY`."""

    def mark(handler: _Handler) -> _Handler:
        setattr(handler, _ROLE, role)
        return handler

    return mark


def role_for(request: web.Request) -> Role:
    """Return the role that the handler of a request needs."""
    default = Role.READ if request.method in ("GET", "HEAD") else Role.DESTROY
    found: Role = getattr(request.match_info.handler, _ROLE, default)
    return found


def role_of(request: web.Request) -> Role:
    """Return the role of the user who sends a request."""
    found: Role = request.get("role", Role.NONE)
    return found


def check_role(request: web.Request, role: Role) -> None:
    """Raise Forbidden unless the user has a role."""
    if role_of(request) < role:
        raise Forbidden(f"this needs the role {role}; you have {role_of(request)}")


def who_of(request: web.Request) -> str:
    """Return the sender of a request for the audit log: the address, and the name of its token or certificate."""
    principal: Principal | None = request.get("principal")
    address = request.remote or ""
    return address if principal is None or principal.kind == "local" else f"{principal}@{address}"


def view_of(request: web.Request) -> ClusterView:
    """Return the cluster of the console."""
    return request.app[VIEW]


def actions_of(request: web.Request) -> Actions:
    """Return what sends changes to bookies."""
    return request.app[ACTIONS]
