"""Audit: who changed what, according to the bookies' audit logs and the console itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from bkspark.cli.bookie_answers import RECORD, rows
from bkspark_console.access import actions_of, view_of
from bkspark_console.bookie_http import BookieHttpError
from bkspark_console.cluster_view import API, SILENT
from bkspark_console.parameters import bookie_id, whole_number, words
from bkspark_console.render import render

PAGE = 100
RECORDS_MAX, ALL_RECORDS_MAX = 1000, 20_000
"""How many changes of one bookie are read for a page, and how many of all bookies."""
COMMANDS_MAX = 200
"""How many changes of the metadata store's record are read for a page."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A change: when, at which bookie, by whom, what; and its outcome if the console requested it."""

    at_ms: int
    bookie: str
    who: str
    """The name of the operator, as the bookie's audit log has it."""
    change: str
    outcome: str = ""


def add_to(app: web.Application) -> None:
    """Add the page."""
    app.router.add_get("/audit", audit)


async def audit(request: web.Request) -> web.Response:
    """The last changes, the latest first."""
    view = view_of(request)
    only = bookie_id(request.query["bookie"].strip()) if request.query.get("bookie", "").strip() else ""
    wanted = words(request.query, "change")
    first = whole_number(request.query, "from", 0, 0, 1 << 31)
    # Changes that commands recorded in the metadata store. No bookie took part.
    recorded = view.changes(0 if only else COMMANDS_MAX)
    origins, http, stored = await asyncio.gather(view.our_origins(), view.all_http_facts(), recorded)

    limit = max(1, min(RECORDS_MAX, ALL_RECORDS_MAX // max(1, len(origins))))

    async def records(bookie: str, origin: str) -> list[AuditRow] | str:
        try:
            found = await view.http.get(origin, f"{API}/audit", {"limit": limit})
        except BookieHttpError as error:
            return f"bookie {bookie}: {error}"
        return [AuditRow(bookie=bookie, **each) for each in rows(found, "records", RECORD)]

    answers = await asyncio.gather(*(records(*each) for each in origins.items() if only in ("", each[0])))
    silent = [
        f"bookie {bookie}: {facts.problem}"
        for bookie, facts in http.items()
        if facts.kind == SILENT and only in ("", bookie)
    ]
    # Changes that bookies made are in their own lists. Here are those that they refused.
    refused = [
        AuditRow(each.at_ms, each.bookie, f"console:{each.who}", each.change, each.outcome)
        for each in actions_of(request).recent
        if each.outcome != "done" and only in ("", each.bookie)
    ]
    refused += [AuditRow(each.at_ms, "", each.who, each.change) for each in stored]
    found = [row for answer in answers if not isinstance(answer, str) for row in answer] + refused
    found = [row for row in found if wanted.lower() in f"{row.who} {row.change}".lower()]
    found.sort(key=lambda row: (-row.at_ms, row.bookie))
    return render(
        request,
        "audit.html",
        title="Audit",
        rows=found[first : first + PAGE],
        count=len(found),
        first=first,
        next_first=first + PAGE if first + PAGE < len(found) else None,
        problems=[*silent, *(answer for answer in answers if isinstance(answer, str))],
        asked=len(origins),
        bookie=only,
        wanted=wanted,
    )
