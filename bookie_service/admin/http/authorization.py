"""Authorization of HTTP requests: reading one ledger needs the right read on it; everything else needs admin.

Probes (`/heartbeat`, readiness and state) and `/metrics` need no right. The roles of `httpServerAccessFile` are checked
before this, for every request.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from bkspark.security.authorization import ADMIN, READ, LedgerFacts
from bookie_service.admin.http.messages import HttpError, HttpRequest, ledger_id_of
from bookie_service.engine.authorization import NO_RULE, Authorization, Found, RefusedRequests, Unfound

_OPEN = frozenset({"/heartbeat", "/metrics", "/api/v1/bookie/is_ready", "/api/v1/bookie/state"})
_LEDGER_READS = frozenset(
    {
        "/api/v1/ledger/read",
        "/api/v1/ledger/metadata",
        "/api/v2/ledgers/{ledger_id}",
        "/api/v2/ledgers/{ledger_id}/entries",
    }
)
"""Routes that show one ledger, whose id is the parameter `ledger_id`.

A text that is not an id needs read on all ledgers: a handler that accepts it as an id would bypass the rules.
"""
_READING = frozenset({"GET", "HEAD"})


class HttpPermit:
    """Decides which HTTP requests are served. For the event loop."""

    def __init__(self, authorization: Authorization) -> None:
        self._authorization = authorization

    async def __call__(self, route: str, request: HttpRequest) -> None:
        """Raise HttpError unless the principal of a request may make it. `route`: its path, with names in braces."""
        if route in _OPEN:
            return
        if route not in _LEDGER_READS or request.method not in _READING:
            if not self._authorization.may(request.principal, request.who, ADMIN):
                raise _forbidden(request, "admin")
            return
        ledger_id = ledger_id_of(request.query.get("ledger_id", ""))
        if ledger_id is not None:
            await self._check_read(request, ledger_id)
        elif not self._authorization.rules.of(request.principal).everywhere & READ:
            self._refuse(request, READ, None, NO_RULE)

    async def _check_read(self, request: HttpRequest, ledger_id: int) -> None:
        rules = self._authorization.rules.of(request.principal)
        if rules.everywhere & READ:
            return
        found = await self._found(ledger_id, str(request.principal)) if rules.ever & READ else None
        if found is Unfound.UNKNOWN:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, Unfound.UNKNOWN.value)
        # Checked again, because the rules may have changed meanwhile.
        rules = self._authorization.rules.of(request.principal)
        if not isinstance(found, LedgerFacts) or not rules.rights(found) & READ:
            self._refuse(request, READ, ledger_id, found.value if isinstance(found, Unfound) else NO_RULE)

    async def _found(self, ledger_id: int, principal: str) -> Found:
        known = self._authorization.facts(ledger_id)
        if known is not None:
            return known
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()

        def on_found(found: Found) -> None:
            if not answer.done():
                answer.set_result(found)

        self._authorization.look_up(ledger_id, on_found, principal)
        return await answer

    def _refuse(self, request: HttpRequest, needed: int, ledger_id: int | None, why: str) -> None:
        self._authorization.on_refused(RefusedRequests(request.principal, request.who, needed, ledger_id, 1, why))
        raise _forbidden(request, "read")


def _forbidden(request: HttpRequest, right: str) -> HttpError:
    return HttpError(
        HTTPStatus.FORBIDDEN, f"no rule of authorizationRulesFile gives {request.principal} the right {right} for this"
    )
