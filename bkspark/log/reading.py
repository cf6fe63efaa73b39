"""What of a log can be read: where it ends now, and which entries lie between two positions.

A reader goes from one ledger to the next only when the first is closed: an open one can still grow. So a log can be
read up to the first ledger that is open, and there up to its last confirmed entry; nothing is fenced for that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from bkspark.client import Client, LedgerReader
from bkspark.errors import ConfigurationError, DataLoss, NoSuchLedger
from bkspark.log.positions import EARLIEST, LATEST, Place, Position, parse_place, position_at
from bkspark.log.snapshot import ListedLedger, LogSnapshot


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Entries [first_entry, end_entry) of one ledger of a log."""

    ordinal: int
    ledger_id: int
    first_entry: int
    end_entry: int


async def open_listed(client: Client, name: str, listed: ListedLedger) -> LedgerReader:
    """Return a reader of a log's ledger. Raises DataLoss where the ledger is gone."""
    try:
        return await client.open(listed.ledger_id)
    except NoSuchLedger:
        raise DataLoss(
            f"ledger {listed.ledger_id} of log {name} does not exist any more: the log was truncated or overwritten "
            f"meanwhile, or the ledger was deleted by itself",
            ledger_id=listed.ledger_id,
        ) from None


async def end_entry_of(client: Client, name: str, listed: ListedLedger) -> int:
    """Return the entry id behind the last one of a closed ledger."""
    if listed.last_entry is not None:
        return listed.last_entry + 1
    return (await open_listed(client, name, listed)).last_entry + 1


async def end_before(client: Client, snapshot: LogSnapshot, ordinal: int) -> Position:
    """Return the position in front of ledger `ordinal`, in normal form. All ledgers before it are closed."""
    async for listed in snapshot.last_before(ordinal):
        end_entry = await end_entry_of(client, snapshot.name, listed)
        if end_entry:
            return max(snapshot.start, Position(listed.ordinal, listed.ledger_id, end_entry))
    return snapshot.start


async def latest(client: Client, snapshot: LogSnapshot) -> Position:
    """Return the position behind the last entry that can be read now."""
    for ordinal in snapshot.open_ordinals:
        listed = await snapshot.ledger(ordinal)
        reader = await open_listed(client, snapshot.name, listed)
        if not reader.is_closed:
            before = await end_before(client, snapshot, ordinal)
            position = position_at(ordinal, listed.ledger_id, reader.last_entry + 1, before)
            return max(snapshot.start, position)
    return await end_before(client, snapshot, snapshot.end_ordinal)


async def normal_form(client: Client, snapshot: LogSnapshot, position: Position) -> Position:
    """Return a position in its normal form, unless the ledgers in front of it are still open.

    Raises:
        DataLoss, ConfigurationError: as `LogSnapshot.locate`.
    """
    await snapshot.locate(position)
    if position.entry_id or any(ordinal < position.ordinal for ordinal in snapshot.open_ordinals):
        return position
    return await end_before(client, snapshot, position.ordinal)


async def position_of(client: Client, snapshot: LogSnapshot, place: Place) -> Position:
    """Return the position of a place: `earliest`, `latest`, or a position as it is (its text too).

    Raises:
        ConfigurationError: the place is none of these, or names another log's ledger.
        DataLoss: what follows it is gone.
    """
    if isinstance(place, str):
        place = parse_place(place)
    if place == EARLIEST:
        return snapshot.start
    if place == LATEST:
        return await latest(client, snapshot)
    assert isinstance(place, Position)
    await snapshot.locate(place)
    return place


async def ranges(
    client: Client, snapshot: LogSnapshot, start: Position, end: Position
) -> AsyncIterator[tuple[LedgerRange, LedgerReader]]:
    """Yield the entries from `start` up to `end`, a range a ledger, with a reader of each; empty ranges are left out.

    Raises:
        DataLoss: the start or a ledger is gone.
        ConfigurationError: `end` lies behind what can be read.
    """
    first_ordinal, first_entry = await snapshot.locate(start)
    async for run in snapshot.runs(first_ordinal, end.ordinal + 1):
        for listed in run:
            first = first_entry if listed.ordinal == first_ordinal else 0
            reader = await open_listed(client, snapshot.name, listed)
            is_last = listed.ordinal == end.ordinal
            stop = end.entry_id if is_last else reader.last_entry + 1
            if stop > reader.last_entry + 1 or not (is_last or reader.is_closed):
                raise ConfigurationError(
                    f"log {snapshot.name} can be read up to entry {reader.last_entry} of ledger {listed.ledger_id} "
                    f"now; {end} lies behind that"
                )
            if first < stop:
                yield LedgerRange(listed.ordinal, listed.ledger_id, first, stop), reader
