"""Requests and responses of the HTTP server, and errors that become responses with a status."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from bkspark.ids import LEDGER_ID_MAX
from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.security.roles import Role

PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"
JSON_ERRORS = "/api/v2"
_API = "/api/"
QUERY_PARAMETERS_MAX = 100
_ID_DIGITS_MAX = len(str(LEDGER_ID_MAX))


class HttpError(Exception):
    """Ends a request with a status and a line of text."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}
        """Further headers of the response."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, and what is known of its sender.

    who: the sender's name in the audit log. principal, role: the sender's identity and role. is_foreign: the request
        may come from a page of another site. content_type: of the body, without parameters, in lower case.
    """

    method: str
    """In capitals, as "GET"."""
    path: str
    query: Mapping[str, str]
    """The decoded parameters of the URL."""
    body: bytes = b""
    who: str = ""
    principal: Principal = ANONYMOUS
    role: Role = Role.NONE
    is_foreign: bool = False
    content_type: str = ""

    def need(self, role: Role) -> None:
        """Raise HttpError unless the sender has a role. A request that needs more than `Role.READ` is a change."""
        if self.role < role:
            if self.principal.kind == "anonymous":
                raise HttpError(
                    HTTPStatus.UNAUTHORIZED,
                    f"this needs the role {role}: send a token as Authorization: Bearer, or show a client certificate",
                    {"WWW-Authenticate": 'Bearer realm="bookkeeper"'},
                )
            raise HttpError(HTTPStatus.FORBIDDEN, f"this needs the role {role}; {self.principal} has {self.role}")
        if role > Role.READ and self.is_foreign:
            raise HttpError(
                HTTPStatus.FORBIDDEN, "this changes something, and the request may come from a browser's page"
            )

    def json(self) -> Any:
        """Return the body as JSON; None: it is empty. Raises ValueError."""
        try:
            return json.loads(self.body) if self.body.strip() else None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def members(self) -> Mapping[str, Any]:
        """Return the body, which was checked before, as a JSON object; an empty one if there is no body."""
        found = self.json()
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One response. `pieces` yields the rest of the body after `body`, a little at a time."""

    status: int = 200
    """The status of HTTP, as 404."""
    body: bytes = b""
    content_type: str = PLAIN
    """The type of the whole body."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers."""
    pieces: AsyncIterator[bytes] | None = None


def target_of(target: str) -> tuple[str, dict[str, str]]:
    """Return (path, query parameters) of a request target, in origin form or absolute form.

    Only a path of the API refuses a repeated parameter.

    Raises:
        ValueError: it is not such a target; the message says why.
    """
    try:
        # Without a scheme a path of two slashes would be read as a host.
        parts = urlsplit(f"http://host{target}" if target.startswith("/") else target)
    except ValueError:
        raise ValueError("the target cannot be understood") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("the target is neither a path nor a URL of HTTP")
    try:
        path = unquote(parts.path, errors="strict") or "/"
    except UnicodeDecodeError:
        raise ValueError("the path is not UTF-8") from None
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=QUERY_PARAMETERS_MAX)
    except ValueError:
        raise ValueError(f"it has more than {QUERY_PARAMETERS_MAX} parameters") from None
    query: dict[str, str] = {}
    for name, value in pairs:
        if name in query and path.startswith(_API):
            # A proxy may read the other value, and a request may delete a ledger.
            raise ValueError(f"the parameter {name[:40]!r} is given more than once")
        query.setdefault(name, value)
    return path, query


def ledger_id_of(text: str) -> int | None:
    """Return the ledger id that a text of digits alone is; None: it is not a ledger id."""
    if not (text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS_MAX):
        return None
    ledger_id = int(text)
    return ledger_id if ledger_id <= LEDGER_ID_MAX else None


def plain(text: str, status: int = 200) -> HttpResponse:
    """Return a response of plain text."""
    return HttpResponse(status, text.encode(errors="backslashreplace"))


def failed(path: str, error: HttpError) -> HttpResponse:
    """Return the response for an error: JSON at `JSON_ERRORS` and below, otherwise a line of text."""
    if path != JSON_ERRORS and not path.startswith(f"{JSON_ERRORS}/"):
        return HttpResponse(error.status, f"{error.text}\n".encode(errors="backslashreplace"), headers=error.headers)
    body = json.dumps({"error": {"status": int(error.status), "message": error.text}}).encode()
    return HttpResponse(error.status, body, JSON, error.headers)


Call = Callable[[HttpRequest], Awaitable[object]]
"""Carries out a request of `/api/v2`, and returns a value for JSON."""
