"""Logs: their ledgers, writer, schema and retention, the queries that publish in them, and current attempts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from bkspark.cli.log_retention import shown as retention_shown
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError, NoSuchLedger
from bkspark.log import LogSegment, LogSnapshot
from bkspark_console.access import view_of
from bkspark_console.cluster_view import ClusterView
from bkspark_console.live_tail import stream
from bkspark_console.parameters import choice, log_name, whole_number, words
from bkspark_console.payloads import FORMATS
from bkspark_console.render import render

PAGE = 50
PENDING_SHOWN = 100
CONSUMERS_SHOWN = 100
PUBLISHERS_SHOWN = 100
ORDINAL_MAX = (1 << 63) - 1
COLUMNS_SHOWN = 300
TYPE_CHARACTERS_MAX = 300


def add_to(app: web.Application) -> None:
    """Add the pages."""
    app.router.add_get("/logs", logs)
    app.router.add_get("/logs/{log}", log)
    app.router.add_get("/logs/{log}/tail", tail, allow_head=False)


@dataclass(frozen=True, slots=True)
class LogRow:
    """A log of the list. snapshot None: it cannot be read, and `problem` says why."""

    name: str
    snapshot: LogSnapshot | None
    problem: str = ""


async def logs(request: web.Request) -> web.Response:
    """A page of logs, by name."""
    view = view_of(request)
    wanted, after = words(request.query, "name"), words(request.query, "after")
    names = await view.client.logs()
    chosen = [name for name in names if wanted.lower() in name.lower() and name > after]
    rows = await asyncio.gather(*(_row(view, name) for name in chosen[:PAGE]))
    return render(
        request,
        "logs.html",
        title="Logs",
        rows=rows,
        count=len(names),
        wanted=wanted,
        after=after,
        next_after=chosen[PAGE - 1] if len(chosen) > PAGE else None,
    )


async def _row(view: ClusterView, name: str) -> LogRow:
    try:
        return LogRow(name, await view.client.log(name).snapshot())
    except BookKeeperError as error:
        return LogRow(name, None, str(error))


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A ledger of a log, or a slice of one. -1 and None: the list does not say it, or the ledger still grows."""

    ordinal: int
    ledger_id: int
    first_entry: int
    last_entry: int
    length: int | None
    """Payload bytes."""
    state: str
    """As shown."""


async def log(request: web.Request) -> web.Response:
    """One log, with its last ledgers first."""
    view, name = view_of(request), log_name(request.match_info["log"])
    before = whole_number(request.query, "before", ORDINAL_MAX, 0, ORDINAL_MAX)
    opened = view.client.log(name)
    snapshot = await opened.snapshot()
    end = max(snapshot.first_ordinal, min(snapshot.end_ordinal, before))
    first = max(snapshot.first_ordinal, end - PAGE)
    segments = await snapshot.ledgers(first, end)
    pending = await (await opened.store()).attempts.pending(name)
    rows = await asyncio.gather(*(_segment(view, snapshot, each) for each in reversed(segments)))
    publishers = list(reversed(snapshot.publishers))
    consumers = await opened.consumers()
    return render(
        request,
        "log.html",
        title=f"Log {name}",
        name=name,
        snapshot=snapshot,
        schema=await _schema(snapshot),
        rows=rows,
        next_before=first if first > snapshot.first_ordinal else None,
        is_first=before >= snapshot.end_ordinal,
        known_bytes=sum(row.length or 0 for row in rows),
        publishers=publishers[:PUBLISHERS_SHOWN],
        more_publishers=max(0, len(publishers) - PUBLISHERS_SHOWN),
        retention=retention_shown(snapshot.head.retention),
        first_ms=None if snapshot.head.times.first is None else snapshot.head.times.first.ms,
        last_ms=None if snapshot.head.times.last is None else snapshot.head.times.last.ms,
        consumers=consumers[:CONSUMERS_SHOWN],
        more_consumers=max(0, len(consumers) - CONSUMERS_SHOWN),
        pending=pending[:PENDING_SHOWN],
        more_pending=max(0, len(pending) - PENDING_SHOWN),
        formats=FORMATS,
    )


@dataclass(frozen=True, slots=True)
class ShownSchema:
    """The schema that applies at the end of a log. columns: (name, type, may be null). problem: why none is shown."""

    payload_format: str
    """The format of the entries."""
    number: int
    """Its number in the log, and (`first_ordinal`) the first segment that it applies to."""
    first_ordinal: int
    columns: list[tuple[str, str, bool]]
    more: int = 0
    """How many further columns are not shown."""
    problem: str = ""


async def _schema(snapshot: LogSnapshot) -> ShownSchema | None:
    """Return the schema that the log remembers; None: there is none."""
    if not snapshot.schemas:
        return None
    ref = snapshot.schemas[-1]
    try:
        stored = await snapshot.schema(ref)
        fields = json.loads(stored.schema)["fields"]
        columns = [(str(each["name"]), _type(each["type"]), bool(each["nullable"])) for each in fields[:COLUMNS_SHOWN]]
    except BookKeeperError as error:
        return ShownSchema("", ref.number, ref.first_ordinal, [], 0, str(error))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ShownSchema("", ref.number, ref.first_ordinal, [], 0, "its node holds no schema of Spark's")
    more = max(0, len(fields) - COLUMNS_SHOWN)
    return ShownSchema(stored.payload_format, ref.number, ref.first_ordinal, columns, more)


def _type(kind: object) -> str:
    """Return the type of a column: Spark's name, or its JSON if it is nested."""
    text = kind if isinstance(kind, str) else json.dumps(kind)
    return text if len(text) <= TYPE_CHARACTERS_MAX else f"{text[:TYPE_CHARACTERS_MAX]}…"


async def _segment(view: ClusterView, snapshot: LogSnapshot, each: LogSegment) -> SegmentRow:
    is_cut = snapshot.start.ordinal == each.ordinal and snapshot.start.ledger_id == each.ledger_id
    first = max(each.first_entry, snapshot.start.entry_id if is_cut else 0)
    if each.last_entry is not None:
        return SegmentRow(each.ordinal, each.ledger_id, first, each.last_entry, each.length, "CLOSED")
    try:
        metadata = await view.client.metadata(each.ledger_id)
    except NoSuchLedger:
        return SegmentRow(each.ordinal, each.ledger_id, first, -1, None, "MISSING")
    length = metadata.length if metadata.is_closed else None
    return SegmentRow(each.ordinal, each.ledger_id, first, metadata.last_entry, length, metadata.state.name)


async def tail(request: web.Request) -> web.StreamResponse:
    """Entries of a log as they come, from its end on. Nothing is fenced."""
    view, name = view_of(request), log_name(request.match_info["log"])
    wanted = choice(request.query, "format", FORMATS, "auto")
    opened = view.client.log(name)
    start = await opened.latest()

    async def batches() -> AsyncIterator[EntryBatch]:
        async for batch in opened.follow(start, batch_bytes=1 << 18):
            yield batch

    return await stream(request, batches(), wanted)
