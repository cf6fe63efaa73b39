"""Bookies: all of them, and one of them with its directories, latency by stage, keys and actions."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from aiohttp import web

from bkspark.cli.bookie_answers import ids, texts
from bkspark.core.health import BookieFacts
from bkspark.security.roles import Role
from bkspark_console.access import actions_of, needs, view_of, who_of
from bkspark_console.bookie_http import BookieHttpError
from bkspark_console.cluster_view import API, OURS, BookieHttpFacts, ClusterView, unless_damaged
from bkspark_console.history import ADD_P99, ADDS, QUEUE, READ_BYTES, READ_P99, READS, SYNC_P99, WRITTEN, History
from bkspark_console.parameters import BadParameter, bookie_id, choice, whole_number, words
from bkspark_console.plots import Plot, plot
from bkspark_console.render import render, segment

PAGE = 50
LIMBO_MAX = 100
_MIB = 1 / (1 << 20)


def add_to(app: web.Application) -> None:
    """Add the pages and their actions."""
    app.router.add_get("/bookies", bookies)
    app.router.add_get("/bookies/{bookie}", bookie)
    app.router.add_post("/bookies/{bookie}/stop-check", stop_check)
    app.router.add_post("/bookies/{bookie}/read-only", set_read_only)
    app.router.add_post("/bookies/{bookie}/collect", collect)
    app.router.add_post("/bookies/{bookie}/suspend", suspend)
    app.router.add_post("/bookies/{bookie}/keys", set_key)


async def bookies(request: web.Request) -> web.Response:
    """A page of bookies, ordered by id."""
    view = view_of(request)
    wanted = choice(request.query, "state", ("all", "available", "readonly", "down", "unreachable"), "all")
    first = whole_number(request.query, "from", 0, 0, 1 << 31)
    facts = await view.facts()
    chosen = [each for each in facts.bookies if wanted in ("all", "unreachable" if each.problem else each.state)]
    some = chosen[first : first + PAGE]
    http, racks = await asyncio.gather(
        asyncio.gather(*(view.http_facts(each.id) for each in some if each.state != "down")), view.racks()
    )
    by_id = dict(zip((each.id for each in some if each.state != "down"), http))
    rows = [_row(view, each, by_id.get(each.id), racks.get(each.id, "")) for each in some]
    return render(
        request,
        "bookies.html",
        title="Bookies",
        rows=rows,
        count=len(chosen),
        first=first,
        next_first=first + PAGE if first + PAGE < len(chosen) else None,
        wanted=wanted,
    )


def _row(view: ClusterView, facts: BookieFacts, http: BookieHttpFacts | None, rack: str) -> dict[str, Any]:
    history = view.history
    state = dict(http.state) if http is not None else {}
    return {
        "facts": facts,
        "state": "unreachable" if facts.problem else facts.state,
        "rack": rack,
        "version": state.get("version") or (http.kind if http is not None and not http.problem else ""),
        "reason": state.get("reason", "") or facts.problem,
        "used": 1 - facts.free_bytes / facts.total_bytes
        if facts.total_bytes and facts.free_bytes is not None
        else None,
        "adds": history.now(facts.id, ADDS),
        "add_p99": history.now(facts.id, ADD_P99),
        "sync_p99": history.now(facts.id, SYNC_P99),
    }


async def bookie(request: web.Request) -> web.Response:
    """One bookie."""
    return await _shown(request)


async def _shown(request: web.Request, **more: Any) -> web.Response:
    view = view_of(request)
    identity = bookie_id(request.match_info["bookie"])
    facts = next((each for each in (await view.facts()).bookies if each.id == identity), None)
    if facts is None:
        raise web.HTTPNotFound(text=f"there is no bookie {identity}")
    problems: list[str] = []
    cookie = unless_damaged(view.cookie(identity), problems)
    http, stored, racks = await asyncio.gather(view.http_facts(identity), cookie, view.racks())
    http, live = await _live(view, http)
    return render(
        request,
        "bookie.html",
        **{
            "title": f"Bookie {identity}",
            "facts": facts,
            "http": http,
            "state": dict(http.state),
            "ours": http.kind == OURS,
            "cookie": stored,
            "problems": problems,
            "rack": racks.get(identity, ""),
            "directories": view.history.directories(identity),
            "stages": view.history.stages(identity),
            "against": None,
            "plots": _plots(view.history, identity),
            **live,
            **more,
        },
    )


async def _live(view: ClusterView, http: BookieHttpFacts) -> tuple[BookieHttpFacts, dict[str, Any]]:
    """Return what the bookie's own HTTP says now, or why it does not answer."""
    keys = limbo = collection = None
    unread = _not_serving(http)
    if http.kind == OURS and http.origin is not None and http.state.get("phase") == "serving":
        try:
            keys, limbo, collection = await asyncio.gather(
                view.http.get(http.origin, f"{API}/bookie/keys"),
                view.http.get(http.origin, f"{API}/bookie/limbo", {"limit": LIMBO_MAX}),
                view.http.get(http.origin, f"{API}/bookie/collection"),
            )
        except BookieHttpError as error:
            http = BookieHttpFacts(http.kind, http.origin, str(error), http.state)
            unread = str(error)
    in_limbo = ids(limbo, "ledgers")
    return http, {
        "keys": dict(sorted(texts(keys).items())),
        "limbo": in_limbo,
        "limbo_problem": "" if in_limbo is not None else unread or "its answer has another form",
        "has_more_limbo": isinstance(limbo, dict) and limbo.get("next") is not None,
        "collection": texts(collection),
    }


def _not_serving(http: BookieHttpFacts) -> str:
    """Return why a bookie's HTTP cannot tell what its storage knows; "": it serves."""
    phase = http.state.get("phase")
    if phase == "serving":
        return ""
    return f"the bookie is {phase}" if phase else "the bookie does not say its phase"


def _plots(history: History, identity: str) -> list[Plot]:
    def values(**series: int) -> dict[str, np.ndarray]:
        return {label.replace("_", " "): history.values(identity, number) for label, number in series.items()}

    times = history.times
    latencies = values(add=ADD_P99, read=READ_P99, journal_sync=SYNC_P99)
    return [
        plot("Entries", "per second", times, values(added=ADDS, read=READS)),
        plot("Bytes", "MiB per second", times, values(written=WRITTEN, read=READ_BYTES), scale=_MIB),
        plot("Latency, p99", "ms", times, latencies),
        plot("Waiting for the journal", "adds", times, values(queue=QUEUE)),
    ]


# ---- actions ----


@needs(Role.READ)
async def stop_check(request: web.Request) -> web.Response:
    """Say whether the bookie may be stopped now. Reads the metadata of all ledgers."""
    identity = bookie_id(request.match_info["bookie"])
    against, ledgers = await view_of(request).against_stopping(identity)
    return await _shown(request, against=against, ledgers_at=ledgers)


async def _do(request: web.Request, change: str, method: str, path: str, body: dict[str, Any]) -> web.Response:
    identity = bookie_id(request.match_info["bookie"])
    await actions_of(request).ask(who_of(request), identity, change, method, path, body)
    raise web.HTTPSeeOther(f"/bookies/{segment(identity)}?done")


@needs(Role.OPERATE)
async def set_read_only(request: web.Request) -> web.Response:
    """Make the bookie read-only, or writable."""
    form = await posted(request)
    is_read_only = choice(form, "read_only", ("yes", "no"), "yes") == "yes"
    body: dict[str, Any] = {"read_only": is_read_only}
    if is_read_only and (reason := words(form, "reason")):
        body["reason"] = reason
    return await _do(request, "set read-only" if is_read_only else "set writable", "PUT", "/bookie/read-only", body)


@needs(Role.OPERATE)
async def collect(request: web.Request) -> web.Response:
    """Begin a garbage collection."""
    is_major = choice(await posted(request), "level", ("major", "minor"), "major") == "major"
    change = f"collect garbage, with a {'major' if is_major else 'minor'} compaction"
    return await _do(request, change, "POST", "/bookie/collection", {"major": is_major})


@needs(Role.OPERATE)
async def suspend(request: web.Request) -> web.Response:
    """Suspend or resume compaction or garbage collection."""
    form = await posted(request)
    what = choice(form, "what", ("minor", "major", "collection"), "collection")
    is_suspended = choice(form, "suspended", ("yes", "no"), "yes") == "yes"
    facts = await view_of(request).http_facts(bookie_id(request.match_info["bookie"]))
    suspended = facts.state.get("compaction_suspended", ())
    body = {
        "minor": "minor" in suspended,
        "major": "major" in suspended,
        "collection": bool(facts.state.get("collection_suspended")),
        what: is_suspended,
    }
    change = f"{'suspend' if is_suspended else 'resume'} {what if what == 'collection' else f'{what} compaction'}"
    return await _do(request, change, "PUT", "/bookie/collection/suspended", body)


@needs(Role.OPERATE)
async def set_key(request: web.Request) -> web.Response:
    """Change one live key until the next start."""
    form = await posted(request)
    key, value = words(form, "key"), words(form, "value")
    if not key:
        raise BadParameter("key is empty; name a live key, such as compactionRateByBytes")
    return await _do(request, f"set {key}={value}", "PATCH", "/bookie/keys", {key: value})


async def posted(request: web.Request) -> dict[str, str]:
    """Return the text fields of a form."""
    return {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
