"""Operations: drain, maintenance and restart of a bookie as steps, and the long work of all bookies.

Each step that changes something is a request to a bookie's `/api/v2`. A process is stopped and started on its own host:
the page says when that may be done, and notices when it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from bkspark.cli.bookie_answers import OPERATION, PREVIEW, known, rows
from bkspark.core.health import BookieFacts, Reason
from bkspark.ids import INT64_MAX
from bkspark.metadata.bookie_plans import PlansInForce
from bkspark.security.roles import Role
from bkspark_console.access import actions_of, check_role, needs, view_of, who_of
from bkspark_console.bookie_http import BookieHttpError
from bkspark_console.cluster_view import API, ClusterView
from bkspark_console.pages.bookies import posted
from bkspark_console.parameters import BadParameter, bookie_id, choice, whole_number, words
from bkspark_console.render import render, segment

OPERATIONS_SHOWN = 100
BOOKIES_SHOWN = 200
SECONDS_MAX = 10**9
RATE_MAX = 10**15


def add_to(app: web.Application) -> None:
    """Add the pages and their actions."""
    app.router.add_get("/operations", operations)
    app.router.add_get("/operations/{bookie}", steps)
    app.router.add_post("/operations/{bookie}/check", check)
    app.router.add_post("/operations/{bookie}/preview", preview)
    app.router.add_post("/operations/{bookie}/maintenance", maintenance)
    app.router.add_post("/operations/{bookie}/drain", drain)
    app.router.add_post("/operations/{bookie}/end", end)
    app.router.add_post("/operations/{bookie}/restart", restart)
    app.router.add_post("/operations/{bookie}/recover", recover)


async def operations(request: web.Request) -> web.Response:
    """Plans and long work of all bookies, and a bookie to choose."""
    view = view_of(request)
    facts, plans, work, http = await asyncio.gather(view.facts(), view.plans(), _work(view), view.all_http_facts())
    chosen = sorted(facts.bookies, key=lambda each: each.id)
    return render(
        request,
        "operations.html",
        title="Operations",
        bookies=chosen[:BOOKIES_SHOWN],
        more_bookies=max(0, len(chosen) - BOOKIES_SHOWN),
        planned={} if plans is None else {each.bookie: each for each in plans.plans},
        damaged=_damaged(plans),
        work=work[:OPERATIONS_SHOWN],
        http=http,
    )


async def _work(view: ClusterView) -> list[dict[str, Any]]:
    """Return the operations that bookies run or remember, the latest first."""

    async def of(bookie: str, origin: str) -> list[dict[str, Any]]:
        try:
            found = await view.http.get(origin, f"{API}/operations")
        except BookieHttpError:
            return []
        return [{**each, "at": bookie} for each in rows(found, "operations", OPERATION)]

    answers = await asyncio.gather(*(of(*each) for each in (await view.our_origins()).items()))
    found = [each for answer in answers for each in answer]
    return sorted(found, key=lambda each: (each["state"] not in ("running", "waiting"), -each["began_ms"]))


async def steps(request: web.Request) -> web.Response:
    """What can be done with one bookie, step by step."""
    return await _steps(request)


async def _steps(
    request: web.Request,
    against: list[Reason] | None = None,
    ledgers_at: int = 0,
    would_copy: dict[str, Any] | None = None,
) -> web.Response:
    view = view_of(request)
    facts = await _known(view, bookie_id(request.match_info["bookie"]))
    http, plans, work = await asyncio.gather(view.http_facts(facts.id), view.plans(), _work(view))
    plan = next((each for each in plans.plans if each.bookie == facts.id), None) if plans is not None else None
    return render(
        request,
        "steps.html",
        title=f"Operations on {facts.id}",
        facts=facts,
        http=http,
        state=dict(http.state),
        plan=plan,
        damaged=_damaged(plans).get(facts.id),
        copied=None if plan is None else _copied(plan.progress),
        has_plans=plans is not None,
        work=[each for each in work if each["subject"] == facts.id],
        against=against,
        ledgers_at=ledgers_at,
        would_copy=would_copy,
        ours=bool(await view.our_origins()),
    )


def _damaged(plans: PlansInForce | None) -> dict[str, str]:
    """Return why plans cannot be read, by bookie."""
    return {} if plans is None else {each.bookie: each.problem for each in plans.damaged}


def _copied(progress: Mapping[str, object]) -> float | None:
    """Return the share of a drain's bytes that is copied; None: unknown. Any process may have written the progress."""
    total, left = progress.get("bytes"), progress.get("bytes_left", 0)
    if type(total) is not int or type(left) is not int or not 0 <= left <= total <= INT64_MAX or not total:
        return None
    return 1 - left / total


async def _known(view: ClusterView, identity: str) -> BookieFacts:
    facts = next((each for each in (await view.facts()).bookies if each.id == identity), None)
    if facts is None:
        raise web.HTTPNotFound(text=f"there is no bookie {identity}")
    return facts


@needs(Role.READ)
async def check(request: web.Request) -> web.Response:
    """Say whether the bookie may be stopped. Reads the metadata of all ledgers."""
    facts = await _known(view_of(request), bookie_id(request.match_info["bookie"]))
    against, ledgers_at = await view_of(request).against_stopping(facts.id)
    return await _steps(request, against, ledgers_at)


@needs(Role.READ)
async def preview(request: web.Request) -> web.Response:
    """Say what a drain would copy. Reads the metadata of all ledgers."""
    view = view_of(request)
    facts = await _known(view, bookie_id(request.match_info["bookie"]))
    origins = await view.our_origins()
    if not origins:
        raise BookieHttpError("no bookie with /api/v2 answers")
    origin = next(iter(origins.values()))
    found = await view.http.get(origin, f"{API}/cluster/bookies/{segment(facts.id)}/drain")
    return await _steps(request, would_copy=known(found, PREVIEW))


# ---- actions ----


async def _ask(request: web.Request, change: str, method: str, path: str, body: dict[str, Any] | None) -> web.Response:
    """Let any bookie do it, because these requests concern the cluster."""
    identity = (await _known(view_of(request), bookie_id(request.match_info["bookie"]))).id
    change = f"{change} of bookie {identity}"
    at = f"/cluster/bookies/{segment(identity)}{path}"
    await actions_of(request).ask_any(who_of(request), change, method, at, body)
    raise web.HTTPSeeOther(f"/operations/{segment(identity)}?done")


@needs(Role.OPERATE)
async def maintenance(request: web.Request) -> web.Response:
    """Begin maintenance or quarantine."""
    form = await posted(request)
    kind = choice(form, "kind", ("maintenance", "quarantine"), "maintenance")
    minutes = whole_number(form, "minutes", 0, 0, SECONDS_MAX // 60)
    body: dict[str, Any] = {"kind": kind, "seconds": 60 * minutes, "reason": words(form, "reason")}
    return await _ask(request, kind, "PUT", "/plan", body)


@needs(Role.OPERATE)
async def drain(request: web.Request) -> web.Response:
    """Begin a drain, or continue it, with a rate if one is given."""
    form = await posted(request)
    rate = whole_number(form, "mib_per_s", 0, 0, RATE_MAX >> 20) << 20
    body: dict[str, Any] = {"bytes_per_s": rate, "reason": words(form, "reason")}
    return await _ask(request, "drain", "POST", "/drain", body)


@needs(Role.OPERATE)
async def end(request: web.Request) -> web.Response:
    """End the bookie's plan, which may be a drain."""
    return await _ask(request, "end the plan", "DELETE", "/plan", None)


@needs(Role.OPERATE)
async def restart(request: web.Request) -> web.Response:
    """Let the bookie stop in order and start again in place."""
    identity = (await _known(view_of(request), bookie_id(request.match_info["bookie"]))).id
    await actions_of(request).ask(who_of(request), identity, "restart", "POST", "/bookie/restart", None)
    raise web.HTTPSeeOther(f"/operations/{segment(identity)}?done")


@needs(Role.OPERATE)
async def recover(request: web.Request) -> web.Response:
    """Copy everything that a stopped bookie held to others, and forget the bookie if requested."""
    forgets = choice(await posted(request), "forget", ("yes", "no"), "no") == "yes"
    if forgets:
        check_role(request, Role.DESTROY)
    facts = await _known(view_of(request), bookie_id(request.match_info["bookie"]))
    if facts.state != "down":
        raise BadParameter(f"bookie {facts.id} is registered: stop it first, or drain it")
    return await _ask(request, "decommission" if forgets else "recovery", "POST", "/recover", {"forget": forgets})
