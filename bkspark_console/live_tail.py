"""Entries of a ledger or of a log as they come, as server-sent events.

Each event is JSON with the entry as text of limited length. A browser that does not read in time delays only its own
stream. The number of streams that run at a time is limited (`ConsoleLimits.tails`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

from aiohttp import web

from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError
from bkspark_console.connections import LIMITS
from bkspark_console.payloads import shown_in

BEAT_S = 15.0
"""If no entry comes for this long, a comment is sent, because proxies and browsers close silent streams."""
BATCH_SHOWN_MAX = 200
"""How many entries of one batch are sent. For the others only their number is sent."""

TAILS = web.AppKey("TAILS", asyncio.Semaphore)


async def stream(request: web.Request, batches: AsyncIterator[EntryBatch], payload_format: str) -> web.StreamResponse:
    """Send entries until the browser leaves, or until the ledger is closed and all entries were sent.

    Raises:
        HTTPServiceUnavailable: too many streams run already.
    """
    tails = request.app[TAILS]
    if tails.locked():
        raise web.HTTPServiceUnavailable(text=f"{request.app[LIMITS].tails} live tails run already; close one")
    async with tails:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.headers["X-Accel-Buffering"] = "no"
        await response.prepare(request)
        with suppress(ConnectionError):
            await _send(request, response, batches, payload_format)
        return response


async def _send(
    request: web.Request, response: web.StreamResponse, batches: AsyncIterator[EntryBatch], payload_format: str
) -> None:
    await response.write(b"retry: 5000\n\n")
    waiting: asyncio.Future[EntryBatch | None] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(_next(batches))
            done, _ = await asyncio.wait([waiting], timeout=BEAT_S)
            if not request["is_still_known"]():
                await _event(response, "end", {"reason": "your session has ended"})
                return
            if not done:
                await response.write(b": waiting\n\n")
                continue
            try:
                batch = waiting.result()
            except BookKeeperError as error:
                await _event(response, "end", {"reason": " ".join(str(error).split())})
                return
            if batch is None:
                await _event(response, "end", {"reason": "the ledger is closed"})
                return
            waiting = None
            await _batch(response, batch, payload_format)
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.wait([waiting])
        close = getattr(batches, "aclose", None)
        if close is not None:
            await close()


async def _next(batches: AsyncIterator[EntryBatch]) -> EntryBatch | None:
    return await anext(batches, None)


async def _batch(response: web.StreamResponse, batch: EntryBatch, payload_format: str) -> None:
    left_out = max(0, len(batch) - BATCH_SHOWN_MAX)
    if left_out:
        await _event(response, "skipped", {"entries": left_out})
    for row in range(left_out, len(batch)):
        found = await asyncio.to_thread(shown_in, batch, row, payload_format)
        entry = {
            "ledger": batch.ledger_id,
            "entry": batch.first_entry + row,
            "bytes": int(batch.offsets[row + 1] - batch.offsets[row]),
            "format": found.format,
            "text": found.text,
            "cut": found.is_cut,
        }
        await _event(response, "entry", entry)


async def _event(response: web.StreamResponse, name: str, data: dict[str, object]) -> None:
    # JSON has no line ends of its own, so an entry cannot begin another event.
    await response.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
