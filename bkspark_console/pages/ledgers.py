"""Ledgers found by id, owner, state, bookie or age; and one ledger: fragments, copies, entries and live tail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from bkspark.core.metadata import LedgerMetadata
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError
from bkspark.ids import ENTRY_ID_MAX, LEDGER_ID_MAX, NO_ENTRY
from bkspark.ledger import LedgerReader
from bkspark.security.roles import Role
from bkspark_console.access import needs, view_of
from bkspark_console.cluster_view import ClusterView, unless_damaged
from bkspark_console.copies import CheckedCopies, check_copies, fragment_ends
from bkspark_console.ledger_index import LedgerFilter, custom_of, find, owner_of
from bkspark_console.live_tail import stream
from bkspark_console.pages.bookies import posted
from bkspark_console.parameters import BadParameter, bookie_id, choice, ledger_id, whole_number, words
from bkspark_console.payloads import FORMATS, shown_in
from bkspark_console.plots import FragmentCell, FragmentRow, fragments_drawing
from bkspark_console.render import render

STATES = ("any", "OPEN", "IN_RECOVERY", "CLOSED")
OLDER_S_MAX = 10**9
ENTRIES_PAGE = 50
ENTRIES_MAX = 500
PAGE_BYTES_MAX = 8 << 20
"""How many payload bytes are read for one page of entries."""
FRAGMENTS_SHOWN = 60
"""How many fragments are drawn, the last ones."""
PASSWORD = web.AppKey("PASSWORD", bytes)


def add_to(app: web.Application) -> None:
    """Add the pages."""
    app.router.add_get("/ledgers", ledgers)
    app.router.add_get("/ledgers/{ledger}", ledger)
    app.router.add_post("/ledgers/{ledger}/copies", copies)
    app.router.add_get("/ledgers/{ledger}/entries", entries)
    app.router.add_get("/ledgers/{ledger}/tail", tail, allow_head=False)


async def ledgers(request: web.Request) -> web.Response:
    """A page of the ledgers that match. An id leads to its ledger."""
    query = request.query
    if query.get("id", "").strip():
        raise web.HTTPSeeOther(f"/ledgers/{ledger_id(query['id'].strip())}")
    wanted = LedgerFilter(
        choice(query, "state", STATES, "any"),
        bookie_id(query["bookie"].strip()) if query.get("bookie", "").strip() else "",
        words(query, "owner"),
        whole_number(query, "older", 0, 0, OLDER_S_MAX),
    )
    after = whole_number(query, "after", NO_ENTRY, NO_ENTRY, LEDGER_ID_MAX)
    page = await find(view_of(request), wanted, after)
    return render(
        request,
        "ledgers.html",
        title="Ledgers",
        page=page,
        wanted=wanted,
        after=after,
        states=STATES,
        values={name: query.get(name, "") for name in ("state", "bookie", "owner", "older")},
    )


async def ledger(request: web.Request) -> web.Response:
    """One ledger."""
    return await _shown(request, None)


@needs(Role.READ)
async def copies(request: web.Request) -> web.Response:
    """One ledger, with its copies checked now."""
    identity = ledger_id(request.match_info["ledger"])
    reads = choice(await posted(request), "depth", ("lists", "read"), "lists") == "read"
    checked = await check_copies(view_of(request), identity, reads=reads, password=request.app[PASSWORD])
    return await _shown(request, checked)


async def _shown(request: web.Request, checked: CheckedCopies | None) -> web.Response:
    view, identity = view_of(request), ledger_id(request.match_info["ledger"])
    context = await view.client.context()
    stored, facts = await asyncio.gather(context.ledgers.read(identity), view.facts())
    metadata = stored.metadata
    last_entry, length, problem = await _end(view, identity, metadata)
    states = {each.id: "unreachable" if each.problem else each.state for each in facts.bookies}
    rows = _rows(metadata, last_entry, states)
    bookies = sorted({cell.bookie for row in rows[-FRAGMENTS_SHOWN:] for cell in row.cells})
    listing_problems: list[str] = []
    listed = await unless_damaged((await view.underreplication()).find(identity), listing_problems)
    return render(
        request,
        "ledger.html",
        title=f"Ledger {identity}",
        ledger=identity,
        stored=stored,
        metadata=metadata,
        owner=owner_of(metadata),
        custom=custom_of(metadata),
        last_entry=last_entry,
        length=length,
        problem=problem,
        listing_problems=listing_problems,
        rows=rows[-FRAGMENTS_SHOWN:],
        hidden=max(0, len(rows) - FRAGMENTS_SHOWN),
        bookies=bookies,
        states=states,
        drawing=fragments_drawing(rows[-FRAGMENTS_SHOWN:], bookies),
        listed=listed,
        checked=checked,
        formats=FORMATS,
    )


async def _end(view: ClusterView, identity: int, metadata: LedgerMetadata) -> tuple[int, int, str]:
    """Return (last confirmed entry, bytes, why they are unknown)."""
    if metadata.is_closed:
        return metadata.last_entry, metadata.length, ""
    try:
        reader = await view.client.open(identity)
    except BookKeeperError as error:
        return NO_ENTRY, 0, str(error)
    return reader.last_entry, reader.length, ""


def _rows(metadata: LedgerMetadata, last_entry: int, states: dict[str, str]) -> list[FragmentRow]:
    return [
        FragmentRow(
            fragment.first_entry,
            end - 1 if end > fragment.first_entry else -1,
            [FragmentCell(bookie, states.get(bookie, "unknown")) for bookie in fragment.bookies],
        )
        for fragment, end in fragment_ends(metadata, last_entry + 1)
    ]


# ---- entries ----


async def entries(request: web.Request) -> web.Response:
    """A page of confirmed entries. The ledger is opened without recovery, so nothing is fenced."""
    view, identity = view_of(request), ledger_id(request.match_info["ledger"])
    count = whole_number(request.query, "count", ENTRIES_PAGE, 1, ENTRIES_MAX)
    wanted = choice(request.query, "format", FORMATS, "auto")
    reader = await view.client.open(identity)
    first = whole_number(request.query, "from", max(0, reader.last_entry - count + 1), 0, ENTRY_ID_MAX)
    rows = await read_rows(reader, first, count, wanted) if first <= reader.last_entry else []
    following = rows[-1]["entry"] + 1 if rows else first
    return render(
        request,
        "entries.html",
        title=f"Entries of ledger {identity}",
        ledger=identity,
        rows=rows,
        first=first,
        count=count,
        last_entry=reader.last_entry,
        is_open=not reader.is_closed,
        following=following if following <= reader.last_entry else None,
        wanted=wanted,
        formats=FORMATS,
    )


async def read_rows(reader: LedgerReader, first: int, count: int, payload_format: str) -> list[dict[str, Any]]:
    """Return entries as text: at least one, and up to PAGE_BYTES_MAX of payload. `first` must be confirmed."""
    rows: list[dict[str, Any]] = []
    size = 0
    end = min(first + count, reader.last_entry + 1)
    async for batch in reader.batches(first, end, batch_bytes=1 << 20):
        for row in range(len(batch)):
            payload_bytes = int(batch.offsets[row + 1] - batch.offsets[row])
            size += payload_bytes
            if rows and size > PAGE_BYTES_MAX:
                return rows
            found = await asyncio.to_thread(shown_in, batch, row, payload_format)
            rows.append({"entry": batch.first_entry + row, "bytes": payload_bytes, "payload": found})
    return rows


async def tail(request: web.Request) -> web.StreamResponse:
    """Confirmed entries as they come, from the next one or from `from` on. Nothing is fenced."""
    view, identity = view_of(request), ledger_id(request.match_info["ledger"])
    wanted = choice(request.query, "format", FORMATS, "auto")
    reader = await view.client.open(identity)
    first = whole_number(request.query, "from", reader.last_entry + 1, 0, ENTRY_ID_MAX)
    end = reader.last_unconfirmed + 1
    if first > end:
        raise BadParameter(f"from is {first}, after the end of the ledger; its next entry is {end}")

    async def batches() -> AsyncIterator[EntryBatch]:
        async for batch in reader.follow(first, batch_bytes=1 << 18):
            yield batch

    return await stream(request, batches(), wanted)
