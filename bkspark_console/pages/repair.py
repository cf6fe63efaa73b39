"""Repair: ledgers that lack copies and why, what the cluster's autorecovery does, and its switches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from bkspark.core.copies import holders
from bkspark.core.health import BookieFacts
from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookKeeperError, MetadataFormat, NoSuchLedger
from bkspark.ids import LEDGER_ID_MAX, NO_ENTRY
from bkspark.metadata.underreplication import DELAY_S_MAX, UnderreplicationStore
from bkspark.security.roles import Role
from bkspark.wall_clock import wall_clock_ms
from bkspark_console.access import actions_of, needs, view_of, who_of
from bkspark_console.bookie_http import BookieHttpError
from bkspark_console.cluster_view import API, ClusterView, unless_damaged
from bkspark_console.pages.bookies import posted
from bkspark_console.parameters import BadParameter, choice, whole_number
from bkspark_console.render import render

PAGE = 50
RATE_MIB_MAX = 10**8
WORKERS_MAX = 200


@dataclass(frozen=True, slots=True)
class LackingLedger:
    """A listed ledger. least_copies: copies, at bookies that answer, of its entry with the fewest; None: unknown.

    is_locked: a process repairs it now, or waits before it tries again.
    """

    ledger_id: int
    missing: tuple[str, ...]
    """The bookies whose copies are missing."""
    since_ms: int | None
    """When it was listed, in ms since 1970; None: unknown."""
    is_locked: bool
    why: str
    """Why it is not repaired yet, as far as workers report it."""
    least_copies: int | None
    write_quorum: int | None


def add_to(app: web.Application) -> None:
    """Add the page and its actions."""
    app.router.add_get("/repair", repair)
    app.router.add_post("/repair/switch", switch)
    app.router.add_post("/repair/delay", delay)
    app.router.add_post("/repair/rate", rate)


async def repair(request: web.Request) -> web.Response:
    """A page of the ledgers that lack copies, by id."""
    view = view_of(request)
    after = whole_number(request.query, "after", NO_ENTRY, NO_ENTRY, LEDGER_ID_MAX)
    store = await view.underreplication()
    problems: list[str] = []
    facts, locked, listed, delay_s, checked_ms = await asyncio.gather(
        view.facts(),
        store.locked(),
        view.lacking(),
        unless_damaged(store.lost_bookie_recovery_delay(), problems),
        unless_damaged(store.all_checked_ms(), problems),
    )
    chosen = [ledger_id for ledger_id in listed if ledger_id > after]
    by_id = {each.id: each for each in facts.bookies}
    rows = await asyncio.gather(*(_row(view, store, each, by_id, locked) for each in chosen[:PAGE]))
    return render(
        request,
        "repair.html",
        title="Repair",
        rows=[row for row in rows if row is not None],
        count=len(listed),
        after=after,
        next_after=chosen[PAGE - 1] if len(chosen) > PAGE else None,
        facts=facts,
        delay_s=None if delay_s is None else delay_s.seconds,
        reports=await _reports(view),
        checked_ms=checked_ms,
        problems=problems,
    )


async def _row(
    view: ClusterView,
    store: UnderreplicationStore,
    ledger_id: int,
    bookies: dict[str, BookieFacts],
    locked: set[int],
) -> LackingLedger | None:
    try:
        listed = await store.find(ledger_id)
    except MetadataFormat as error:
        return LackingLedger(ledger_id, (), None, ledger_id in locked, str(error), None, None)
    if listed is None:
        return None
    reasons = [f"{bookie} {_state(bookies.get(bookie))}" for bookie in listed.missing]
    try:
        metadata = await view.client.metadata(ledger_id)
    except NoSuchLedger:
        return LackingLedger(
            ledger_id, listed.missing, listed.ctime_ms, ledger_id in locked, "the ledger is deleted", None, None
        )
    except BookKeeperError as error:
        return LackingLedger(ledger_id, listed.missing, listed.ctime_ms, ledger_id in locked, str(error), None, None)
    serving = frozenset(each.id for each in bookies.values() if each.serves) - frozenset(listed.missing)
    writable = sum(each.serves and each.state == "available" for each in bookies.values())
    if writable < metadata.ensemble_size:
        reasons.append(f"{writable} writable bookies, its ensemble needs {metadata.ensemble_size}: start more")
    return LackingLedger(
        ledger_id,
        listed.missing,
        listed.ctime_ms,
        ledger_id in locked,
        "; ".join(reasons),
        least_copies(metadata, serving),
        metadata.write_quorum,
    )


def _state(facts: BookieFacts | None) -> str:
    if facts is None:
        return "is unknown: it has no cookie"
    if facts.problem:
        return "does not answer"
    return {"down": "does not run", "readonly": "is read-only"}.get(facts.state, "serves without its copies")


def least_copies(metadata: LedgerMetadata, serving: frozenset[str]) -> int:
    """Return how many copies at these bookies the entry with the fewest copies has; Qw if there is no entry."""
    counts = (sum(bookie in serving for bookie in bookies) for _, bookies in holders(metadata))
    return min(counts, default=metadata.write_quorum)


# ---- reports of the processes that repair ----


@dataclass(frozen=True, slots=True)
class RepairProgress:
    """A ledger that a process repairs now. The bytes are an estimate."""

    worker: str
    copied_bytes: int
    """Bytes that were copied, of about `bytes`."""
    bytes: int
    seconds_left: float | None
    """At the worker's present rate; None: unknown."""

    @property
    def share(self) -> float:
        return min(1.0, self.copied_bytes / self.bytes) if self.bytes > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RepairPause:
    """A ledger that a process could not repair, or that waits for its writer."""

    worker: str
    error: str
    """Why, in one line; `failures`: how often it has failed."""
    failures: int
    next_try_ms: int
    """Not before this, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class RepairWorker:
    """The report of a process that repairs. bytes_per_s: its limit; below 0: there is no limit."""

    name: str
    at_ms: int
    """When it reported, in ms since 1970."""
    bytes_per_s: int
    repaired: int
    """Ledgers since it began, as `copied_bytes` and `failures`; `postponed`: ledgers now."""
    copied_bytes: int
    failures: int
    postponed: int


class ReportedRepairs:
    """All reports: `workers`, and by ledger current and postponed repairs. known: some bookie has reports."""

    def __init__(self, reports: Sequence[object] | None, now_ms: int) -> None:
        self.known = reports is not None
        self.workers: list[RepairWorker] = []
        """The report of each worker."""
        self.progress: dict[int, RepairProgress] = {}
        """Current repairs, by ledger."""
        self.pauses: dict[int, RepairPause] = {}
        """Postponed repairs, by ledger."""
        for report in (reports or ())[:WORKERS_MAX]:
            # A report of another version that has another form is left out.
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                self._add(report, now_ms)

    def _add(self, report: Any, now_ms: int) -> None:
        name = str(report["worker"])
        numbers = ("at_ms", "bytes_per_s", "repaired", "copied_bytes", "failures", "postponed")
        self.workers.append(RepairWorker(name, *(int(report[number]) for number in numbers)))
        for each in report["repairs"]:
            copied, total, since_ms = int(each["copied_bytes"]), int(each["bytes"]), int(each["since_ms"])
            left = (total - copied) * (now_ms - since_ms) / 1000 / copied if 0 < copied <= total else None
            self.progress[int(each["ledger"])] = RepairProgress(name, copied, total, left)
        for each in report["postponements"]:
            facts = RepairPause(name, str(each["error"]), int(each["failures"]), int(each["next_try_ms"]))
            self.pauses[int(each["ledger"])] = facts


async def _reports(view: ClusterView) -> ReportedRepairs:
    """Return the reports, from the first bookie that has them."""
    now_ms = wall_clock_ms()
    for origin in (await view.our_origins()).values():
        try:
            found = await view.http.get(origin, f"{API}/repairs")
        except BookieHttpError:
            continue
        if isinstance(found, dict) and isinstance(found.get("workers"), list):
            return ReportedRepairs(found["workers"], now_ms)
    return ReportedRepairs(None, now_ms)


# ---- actions ----


@needs(Role.OPERATE)
async def switch(request: web.Request) -> web.Response:
    """Enable or disable autorecovery of the whole cluster."""
    is_enabled = choice(await posted(request), "enabled", ("yes", "no"), "yes") == "yes"
    change = f"{'enable' if is_enabled else 'disable'} autorecovery"
    return await _change(request, change, {"enabled": is_enabled})


@needs(Role.OPERATE)
async def delay(request: web.Request) -> web.Response:
    """Set how long autorecovery waits for a lost bookie."""
    form = await posted(request)
    if not form.get("seconds", "").strip():
        raise BadParameter(f"seconds is empty; give a whole number of 0 to {DELAY_S_MAX}")
    seconds = whole_number(form, "seconds", 0, 0, DELAY_S_MAX)
    return await _change(request, f"set lostBookieRecoveryDelay={seconds}", {"lost_bookie_delay_s": seconds})


@needs(Role.OPERATE)
async def rate(request: web.Request) -> web.Response:
    """Set how many bytes a second each process that repairs may copy; empty: as each process is configured."""
    form = await posted(request)
    is_given = bool(form.get("mib_per_s", "").strip())
    mib = whole_number(form, "mib_per_s", 0, 1, RATE_MIB_MAX) if is_given else 0
    change = f"set the rate of all repairs to {mib} MiB/s" if is_given else "let repairs run as configured"
    return await _change(request, change, {"bytes_per_s": mib << 20 if is_given else None})


async def _change(request: web.Request, change: str, body: dict[str, Any]) -> web.Response:
    await actions_of(request).ask_any(who_of(request), change, "PATCH", "/autorecovery", body)
    raise web.HTTPSeeOther("/repair?done")
