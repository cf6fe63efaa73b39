"""Lists ledgers, and reads the metadata of many, for the driver. Neither keeps a list of all ledgers."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from bkspark.client import Client
from bkspark.errors import BookKeeperError, MetadataAccessDenied, MetadataFormat, NoSuchLedger
from bkspark.metadata.ledgers import Versioned
from bkspark.spark.ledger_offsets import LedgerIds
from bkspark.spark.option_values import EVERY_LEDGER, IdRange
from bkspark.tasks import CALLS_AT_ONCE, chunks, each_of

T = TypeVar("T")

Pick = tuple[int, IdRange]
"""A ledger, and the part of a selection that names it."""


async def selected_ledgers(
    client: Client, selection: Sequence[IdRange], finished: LedgerIds, *, must_exist: bool
) -> AsyncGenerator[list[Pick]]:
    """Yield the ledgers of a selection in its order, some at a time.

    A ledger that is named individually may not exist. Ranges are listed page by page, up to their last id.

    Args:
        finished: ids that are left out.
        must_exist: each range except `*` must have a ledger.

    Raises:
        NoSuchLedger: a range has no ledger.
    """
    for is_one, parts in itertools.groupby(selection, lambda each: each.is_one):
        if is_one:
            yield [(each.first, each) for each in parts if each.first not in finished]
            continue
        for each in parts:
            is_empty = True
            async with aclosing((await client.context()).ledgers.pages(each.first - 1)) as pages:
                async for page in pages:
                    inside = page[page < each.end]
                    is_empty = is_empty and not len(inside)
                    yield [(ledger_id, each) for ledger_id in finished.without(inside).tolist()]
                    if page[-1] >= each.end - 1:
                        break
            if is_empty and must_exist and each != EVERY_LEDGER:
                raise NoSuchLedger(f"option 'ledgers' names {each.first}-{each.end - 1}, but no ledger has such an id")


async def every_ledger(client: Client) -> AsyncIterator[tuple[int, Versioned | BookKeeperError]]:
    """Yield every ledger by ascending id, with its metadata, or with the error if they cannot be read."""
    ledgers = (await client.context()).ledgers

    async def read(ledger_id: int) -> Versioned | BookKeeperError:
        try:
            return await ledgers.read(ledger_id)
        except (NoSuchLedger, MetadataFormat, MetadataAccessDenied) as error:
            return error

    async for page in ledgers.pages():
        async for ledger_id, found in _each(page.tolist(), read):
            if not isinstance(found, NoSuchLedger):
                yield ledger_id, found


async def stored_ledgers(client: Client, ledger_ids: Sequence[int]) -> AsyncIterator[tuple[int, Versioned]]:
    """Yield each ledger and its metadata, in the order given; those that do not exist are left out."""
    ledgers = (await client.context()).ledgers

    async def read(ledger_id: int) -> Versioned | None:
        try:
            return await ledgers.read(ledger_id)
        except NoSuchLedger:
            return None

    async for ledger_id, stored in _each(ledger_ids, read):
        if stored is not None:
            yield ledger_id, stored


async def _each(ledger_ids: Sequence[int], read: Callable[[int], Awaitable[T]]) -> AsyncIterator[tuple[int, T]]:
    for some in chunks(ledger_ids, CALLS_AT_ONCE):
        for ledger_id, found in zip(some, await each_of(read, some)):
            yield ledger_id, found
