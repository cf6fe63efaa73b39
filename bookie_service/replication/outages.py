"""Long work of an operator goes on after an outage of the metadata store, such as a restart or an expired session.

What such work has done is in the metadata of the ledgers, so it begins again where it was. The outage may also end the
registrations of bookies: work that began again at once would find that they do not run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bkspark.errors import MetadataError
from bkspark.metadata.bookies import BookieRegistry

OUTAGE_S_MAX = 600.0
"""How long work waits for a metadata store that does not answer, or that answers for less than CALM_S at a time."""
CALM_S = 60.0
"""After work went on for this long, a failure is that of another outage."""
RETRY_S = 1.0
"""The pause before a try."""
REGISTERED_S_MAX = 60.0
"""How long work waits after an outage until the bookies are registered that were so at its beginning."""

_T = TypeVar("_T")


async def through_outages(
    registry: BookieRegistry, work: Callable[[], Awaitable[_T]], say: Callable[[str], None]
) -> _T:
    """Do work that can be repeated, again after each outage of the metadata store; return its result.

    Args:
        say: gets a line when an outage begins, and when the work goes on.

    Raises:
        MetadataError: an outage is longer than OUTAGE_S_MAX; or the error is the store's answer, as other errors of
            `work`.
    """
    loop = asyncio.get_running_loop()
    registered: frozenset[str] = frozenset()
    began_s: float | None = None
    while True:
        since_s: float | None = None
        try:
            if began_s is None:
                registered = await registry.registered_ids()
            else:
                await _until_registered(registry, registered)
                say("goes on: the metadata store answers again")
            since_s = loop.time()
            return await work()
        except MetadataError as error:
            if not error.is_outage:
                raise
            now_s = loop.time()
            if began_s is None or (since_s is not None and now_s - since_s >= CALM_S):
                began_s = now_s
                say(f"waits for the metadata store, up to {OUTAGE_S_MAX:g} s: {error}")
            if now_s - began_s >= OUTAGE_S_MAX:
                raise
        await asyncio.sleep(RETRY_S)


async def _until_registered(registry: BookieRegistry, bookies: frozenset[str]) -> None:
    """Wait until bookies are registered, at most REGISTERED_S_MAX: some may have stopped. Raises MetadataError."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REGISTERED_S_MAX):
            while not bookies <= await registry.registered_ids():
                await asyncio.sleep(RETRY_S)
