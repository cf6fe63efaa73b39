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
"""How long work waits for a metadata store that does not answer, or that answers while the work gets nothing done."""
RETRY_S = 1.0
"""The pause before a try."""
REGISTERED_S_MAX = 60.0
"""How long work waits after an outage until all bookies that were registered when it began are registered again."""

_T = TypeVar("_T")


async def through_outages(
    registry: BookieRegistry, work: Callable[[], Awaitable[_T]], done: Callable[[], int], say: Callable[[str], None]
) -> _T:
    """Do work that can be repeated, again after each outage of the metadata store; return its result.

    Args:
        done: returns how much the work has done. A failure is that of another outage only if this has grown: the time
            that a try takes shows nothing, because it may fail at the same place each time.
        say: gets a line when an outage begins, and one when the store answers for the first time after that.

    Raises:
        MetadataError: an outage is longer than OUTAGE_S_MAX; or the error is the store's answer, as other errors of
            `work`.
    """
    loop = asyncio.get_running_loop()
    registered: frozenset[str] | None = None
    began_s: float | None = None
    done_before, has_answered = 0, True
    while True:
        try:
            if registered is None:
                registered = await registry.registered_ids()
            if began_s is not None:
                await _until_registered(registry, registered)
            if not has_answered:
                has_answered = True
                say("is tried again: the metadata store answers")
            return await work()
        except MetadataError as error:
            if not error.is_outage:
                raise
            now_s = loop.time()
            if began_s is None or done() > done_before:
                began_s, done_before, has_answered = now_s, done(), False
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
