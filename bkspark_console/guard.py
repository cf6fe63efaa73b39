"""What each request must pass before a page: checks of host name, sign-in, role and origin; errors and headers.

* **Host.** A request's Host must be an address, `localhost`, or a name that the operator allowed, and so must the host
  in its target if that is a URL. So a page of another site whose name suddenly resolves to this host gets nothing.
* **Sign-in.** With an access file, every page except the sign-in needs a session, a token as `Authorization: Bearer`,
  or a certificate that the file names. Addresses with too many wrong tokens are refused for a while.
* **Role.** Each handler names the role that it needs (`access.needs`). The user's role is looked up for each request.
* **Changes.** Only POST changes something, and only with the form's own token, from a page of this console. A form of
  another site has no such token, and the browser does not send this console's cookie or Origin with it.
* **Errors.** Each error is a page with a status and a reason. An unexpected error is logged, and never shown.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    MetadataError,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchLog,
    UnauthorizedAccess,
)
from bkspark.log_limit import AUDIT
from bkspark.security.access_file import AccessFile
from bkspark.security.attempts import FailedAttempts
from bkspark.security.principal import Principal, principal_of_certificate
from bkspark.security.roles import Role
from bkspark.security.web import authority_of, is_foreign, is_foreign_part, is_known_host
from bkspark_console.access import Forbidden, check_role, role_for
from bkspark_console.bookie_http import BookieHttpError
from bkspark_console.connections import LIMITS
from bkspark_console.parameters import BadParameter
from bkspark_console.render import render
from bkspark_console.sessions import Sessions, is_identity

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CSRF_FIELD = "csrf"
FORM = "application/x-www-form-urlencoded"
_OPEN_PATHS = ("/sign-in", "/sign-out", "/static/", "/healthz")
"""Paths that are served without signing in."""
LIVE_UPDATE = "X-Live-Update"
"""The header of requests that a page sends by itself. They do not keep a session alive."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (BadParameter, HTTPStatus.BAD_REQUEST),
    (NoSuchLedger, HTTPStatus.NOT_FOUND),
    (NoSuchLog, HTTPStatus.NOT_FOUND),
    (NoSuchEntry, HTTPStatus.NOT_FOUND),
    (UnauthorizedAccess, HTTPStatus.FORBIDDEN),
    (ConfigurationError, HTTPStatus.BAD_REQUEST),
    (BookieHttpError, HTTPStatus.BAD_GATEWAY),
    (MetadataError, HTTPStatus.SERVICE_UNAVAILABLE),
    (BookKeeperError, HTTPStatus.BAD_GATEWAY),
)


class Guard:
    """The middleware of the console. `users` None: there is no sign-in, and everyone on this host may do everything."""

    def __init__(self, users: AccessFile | None, sessions: Sessions, allowed_hosts: frozenset[str]) -> None:
        self._users = users
        self._sessions = sessions
        self._allowed_hosts = allowed_hosts
        """Names by which requests may address the console, apart from its addresses."""
        self._secret = secrets.token_bytes(32)
        """The key of what the console gives browsers to send back. Each process has another one."""
        self._attempts = FailedAttempts(time.monotonic)

    def add_to(self, app: web.Application) -> None:
        """Guard every request of an application."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answer(request, handler)

        async def prepare(request: web.Request, response: web.StreamResponse) -> None:
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
            response.headers.popall("Server", None)

        app.middlewares.append(middleware)
        app.on_response_prepare.append(prepare)
        app.router.add_get("/sign-in", self._sign_in_page)
        app.router.add_post("/sign-in", self._sign_in)
        app.router.add_post("/sign-out", self._sign_out)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            hosts = (request.headers.get("Host", ""), authority_of(request.raw_path))
            if not all(is_known_host(host, self._allowed_hosts) for host in hosts if host is not None):
                return _problem(request, HTTPStatus.MISDIRECTED_REQUEST, "this host name is not one of the console's")
            session = request.cookies.get(self._cookie(request), "")
            is_new = not is_identity(session)
            if is_new:
                session = secrets.token_urlsafe(24)
            request["session"] = session
            request["csrf"] = self._mac("csrf", session)
            principal, role = self._identify(request)
            request["principal"], request["role"] = principal, role
            request["is_still_known"] = partial(self._is_still_known, request)
            is_known = request["is_known"] = principal is not None
            request["may_sign_out"] = "is_signed_in" in request
            is_open = request.path.startswith(_OPEN_PATHS)
            if not is_known and not is_open:
                if request.method in ("GET", "HEAD") and "text/html" in request.headers.get("Accept", ""):
                    raise web.HTTPSeeOther("/sign-in")
                return _problem(request, HTTPStatus.UNAUTHORIZED, "sign in first, or send the token as Bearer")
            if is_foreign_part(request.headers.get("Sec-Fetch-Site"), request.headers.get("Sec-Fetch-Mode")):
                return _problem(request, HTTPStatus.FORBIDDEN, "this request comes from a page of another site")
            if request.method not in ("GET", "HEAD"):
                refused = await self._refusal(request)
                if refused:
                    return _problem(request, HTTPStatus.FORBIDDEN, refused)
            if not is_open:
                check_role(request, role_for(request))
            response = await self._handled(request, handler)
            if is_new and not response.prepared and not request.path.startswith(("/static/", "/healthz")):
                self._set_cookie(request, response, self._cookie(request), session)
            return response
        except web.HTTPRedirection:
            raise
        except web.HTTPException as error:
            return _problem(request, error.status, _reason(error))
        except Forbidden as error:
            return _problem(request, HTTPStatus.FORBIDDEN, str(error))

    async def _handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPException, Forbidden, asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            status = next((code for kind, code in _STATUSES if isinstance(error, kind)), None)
            if status is None:
                logger.exception("%s %s failed: this is a defect", request.method, request.path)
                return _problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, "an unexpected error; the log has it")
            return _problem(request, status, " ".join(str(error).split()))

    # ---- cross-site requests ----

    async def _refusal(self, request: web.Request) -> str:
        """Return why a request may not change anything; "": it may."""
        headers = request.headers
        if is_foreign(headers.get("Sec-Fetch-Site"), headers.get("Origin"), headers.get("Host")):
            return "this request comes from a page of another site"
        given = (await _form(request)).get(CSRF_FIELD, "")
        sent = given.encode("utf-8", "surrogatepass") if isinstance(given, str) else b""
        if not hmac.compare_digest(sent, request["csrf"].encode()):
            return "this form is not one of this console's pages, or is too old: open the page again"
        return ""

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose} {text}".encode(), hashlib.sha256).hexdigest()

    # ---- sign-in ----

    def _cookie(self, request: web.Request) -> str:
        # All ports of a host share cookies; the port in the name keeps two consoles apart.
        address = request.transport.get_extra_info("sockname") if request.transport else None
        return f"bkspark-console-{address[1] if address else 0}"

    def _identify(self, request: web.Request) -> tuple[Principal | None, Role]:
        """Return the user of a request and its role; (None, NONE): the user has not signed in."""
        if self._users is None:
            return Principal("loopback", "local"), Role.DESTROY
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            known = self._try(request, token.strip()) or (None, Role.NONE)
            request["mark"] = "" if known[0] is None else self._users.mark(known[0])
            return known
        session = self._sessions.find(request["session"], by_user=LIVE_UPDATE not in request.headers)
        if session is not None:
            if session.mark != self._users.mark(session.principal):
                self._sessions.close(request["session"])
            else:
                request["is_signed_in"] = True
                request["mark"] = session.mark
                return session.principal, self._users.role_of(session.principal)
        request["mark"] = ""
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        principal = principal_of_certificate(certificate)
        role = self._users.role_of(principal)
        return (principal, role) if role else (None, Role.NONE)

    def _is_still_known(self, request: web.Request) -> bool:
        """Return whether the user of a long request may still read: the session may have ended, or the token may have
        been replaced."""
        if self._users is None:
            return True
        if "is_signed_in" in request and self._sessions.find(request["session"], by_user=False) is None:
            return False
        principal: Principal = request["principal"]
        return self._users.mark(principal) == request["mark"] and self._users.role_of(principal) >= Role.READ

    def _try(self, request: web.Request, token: str) -> tuple[Principal, Role] | None:
        """Return the user with a token; None: the token is wrong. Raises HTTPTooManyRequests."""
        assert self._users is not None
        address = request.remote or ""
        if wait_s := self._attempts.wait_s(address):
            raise web.HTTPTooManyRequests(text=f"too many wrong tokens came from {address}; wait {wait_s:.0f} s")
        found = self._users.of_token(token)
        if found is None:
            self._attempts.failed(address)
            logger.warning("a wrong token from %s", address)
        return found

    def _set_cookie(self, request: web.Request, response: web.StreamResponse, name: str, value: str) -> None:
        secure = request.headers.get("X-Forwarded-Proto", request.scheme) == "https"
        response.set_cookie(name, value, httponly=True, samesite="Strict", path="/", secure=secure)

    async def _sign_in_page(self, request: web.Request) -> web.Response:
        if request["is_known"]:
            raise web.HTTPSeeOther("/")
        return render(request, "sign_in.html", title="Sign in", problem="")

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        if self._users is None:
            raise web.HTTPSeeOther("/")
        found = self._try(request, str((await _form(request)).get("token", "")).strip())
        if found is None:
            problem = "This is not a token of this console."
            return render(request, "sign_in.html", HTTPStatus.FORBIDDEN, title="Sign in", problem=problem)
        principal, role = found
        if role < Role.READ:
            raise Forbidden(f"the role {role} of this token opens no page")
        logger.info("audit: %s signed in from %s", principal, request.remote, extra={"event": AUDIT})
        # A new session, because another person may have planted the old one.
        self._sessions.close(request["session"])
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/"})
        session = self._sessions.open(principal, self._users.mark(principal))
        self._set_cookie(request, response, self._cookie(request), session)
        return response

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        self._sessions.close(request["session"])
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/sign-in"})
        response.del_cookie(self._cookie(request), path="/")
        return response


async def _form(request: web.Request) -> Mapping[str, object]:
    """Return the fields of a form. Raises HTTPException if it cannot be read as a form."""
    if request.content_type != FORM:
        raise web.HTTPUnsupportedMediaType(text=f"a form must have the content type {FORM}")
    form_s = request.app[LIMITS].form_s
    try:
        async with asyncio.timeout(form_s):
            if request.transport is None:
                # aiohttp would raise a RuntimeError.
                raise ConnectionResetError
            return await request.post()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"this form did not come within {form_s:g} s") from None
    except ConnectionError:
        raise web.HTTPBadRequest(text="the connection ended before this form had come") from None
    except (ValueError, LookupError, web.RequestPayloadError):
        raise web.HTTPBadRequest(text="this form cannot be read") from None


class PeersErrors(logging.Filter):
    """A filter for the logger of aiohttp's server. It leaves out errors about requests that are not HTTP.

    Such requests are answered 400. The error quotes what the peer sent, which may be a token; and a peer can send many.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written: not if it is about such a request."""
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (HttpProcessingError, web.RequestPayloadError))


def _reason(error: web.HTTPException) -> str:
    """Return why a request is refused: aiohttp's own texts only repeat the status."""
    text = error.text or ""
    if text != f"{error.status}: {error.reason}":
        return text or error.reason
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"this page answers {', '.join(sorted(error.allowed_methods))}, not {error.method}"
    return "there is no such page" if error.status == HTTPStatus.NOT_FOUND else error.reason


def _problem(request: web.Request, status: int, reason: str) -> web.Response:
    title = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Error"
    return render(request, "error.html", status, title=title, reason=reason, code=int(status))
