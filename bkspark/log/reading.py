"""The readable part of a log: where it ends now, which entries are between two positions, positions of times.

A reader moves from one ledger to the next only when the first is closed, because an open one can still grow. A log can
therefore be read up to its first open ledger, and in that up to the last confirmed entry. Nothing is fenced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass

from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError, ConfigurationError, DataLoss, NoSuchEntry, NoSuchLedger
from bkspark.ledger import Cluster, LedgerReader
from bkspark.ledger.patience import Patience
from bkspark.log.formats import ledger_identity
from bkspark.log.positions import EARLIEST, LATEST, LogBatch, OffsetSpec, Position, position_at
from bkspark.log.snapshot import LogSegment, LogSnapshot
from bkspark.log.times import Place
from bkspark.tasks import CALLS_AT_ONCE, chunks, each_of

OpenListed = Callable[[LogSegment], Awaitable[LedgerReader | None]]
"""Opens a ledger of a log. It may return None for a ledger that is gone: then that counts as closed and empty."""


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Entries [first_entry, end_entry) of one ledger of a log."""

    ordinal: int
    ledger_id: int
    first_entry: int
    end_entry: int


async def open_listed(cluster: Cluster, name: str, listed: LogSegment) -> LedgerReader:
    """Return a reader of a log's ledger. Raises DataLoss if the ledger is gone."""
    try:
        return await cluster.open(listed.ledger_id, having=ledger_identity(name))
    except NoSuchLedger as error:
        raise DataLoss(
            f"{gone(error, name)}: the log was truncated or overwritten meanwhile: read it again; or the ledger alone "
            "was deleted: read from a position after it, or truncate the log there",
            ledger_id=listed.ledger_id,
        ) from None


def gone(error: NoSuchLedger, log: str) -> str:
    """Return what happened to a log's ledger, for messages."""
    taken = ", and another ledger was created with its id" if error.is_replaced else ""
    return f"ledger {error.ledger_id} of log {log} does not exist any more{taken}"


def deleted_meanwhile(error: NoSuchLedger, log: str) -> NoSuchLedger:
    """Return the error for a ledger of unpublished rows that does not exist when it is closed."""
    named = NoSuchLedger(
        f"{gone(error, log)}: the log was deleted, or its attempt was given up by an abort, or by a vacuum that "
        "regarded it as dead; the rows in it are not published: read the log first; if its rows are not there, run the "
        "job again",
        ledger_id=error.ledger_id,
    )
    named.is_replaced = error.is_replaced
    return named


async def listed_batches(
    reader: LedgerReader, name: str, first_entry: int, end_entry: int, batch_bytes: int
) -> AsyncIterator[EntryBatch]:
    """Yield all entries [first_entry, end_entry) of a log's ledger, which were acknowledged, because they are listed.

    The ledger may be open, as shared ledgers are, so that bookies do not report these entries as confirmed yet.

    Raises:
        DataLoss: an entry is gone. ReadFailed: it could not be read now.
    """
    try:
        async for batch in reader.acknowledged_batches(first_entry, end_entry, batch_bytes=batch_bytes):
            yield batch
    except (NoSuchEntry, NoSuchLedger) as error:
        raise lost(reader, name, error) from None


async def followed_batches(
    reader: LedgerReader, name: str, first_entry: int, batch_bytes: int, patience: Patience
) -> AsyncIterator[EntryBatch]:
    """Yield entries of a log's ledger as they are confirmed, until it is closed. Raises as `listed_batches`."""
    try:
        async for batch in reader.follow_patiently(first_entry, batch_bytes, patience):
            yield batch
    except (NoSuchEntry, NoSuchLedger) as error:
        raise lost(reader, name, error) from None


def lost(reader: LedgerReader, name: str, error: BookKeeperError) -> DataLoss:
    """Return the error for listed entries that no bookie has."""
    return DataLoss(
        f"ledger {reader.ledger_id} of log {name} was deleted without the log, or entries of it are lost: {error}",
        ledger_id=reader.ledger_id,
        entry_id=error.entry_id,
    )


async def end_entry_of(open_ledger: OpenListed, listed: LogSegment) -> int:
    """Return the entry id after the last entry of a closed ledger."""
    if listed.last_entry is not None:
        return listed.last_entry + 1
    reader = await open_ledger(listed)
    return 0 if reader is None else reader.last_entry + 1


async def end_before(open_ledger: OpenListed, snapshot: LogSnapshot, ordinal: int) -> Position:
    """Return the position before ledger `ordinal`, in normal form. All ledgers before it are closed."""
    async for listed in snapshot.last_before(ordinal):
        end_entry = await end_entry_of(open_ledger, listed)
        if end_entry:
            return max(snapshot.start, Position(listed.ordinal, listed.ledger_id, end_entry))
    return snapshot.start


async def latest(open_ledger: OpenListed, snapshot: LogSnapshot) -> Position:
    """Return the position after the last entry that can be read now."""
    for ordinal in snapshot.open_ordinals:
        listed = await snapshot.ledger(ordinal)
        reader = await open_ledger(listed)
        if reader is not None and not reader.is_closed:
            before = await end_before(open_ledger, snapshot, ordinal)
            position = position_at(ordinal, listed.ledger_id, reader.last_entry + 1, before)
            return max(snapshot.start, position)
    return await end_before(open_ledger, snapshot, snapshot.end_ordinal)


async def before(open_ledger: OpenListed, snapshot: LogSnapshot, end: Position, count: int) -> Position:
    """Return the position `count` entries before `end`, in normal form; the log's start if there are fewer."""
    start = snapshot.start
    async for listed in snapshot.last_before(end.ordinal + 1):
        held = end.entry_id if listed.ordinal == end.ordinal else await end_entry_of(open_ledger, listed)
        available = max(0, held - max(listed.first_entry, start.entry_id if listed.ordinal == start.ordinal else 0))
        if available > count:
            return Position(listed.ordinal, listed.ledger_id, held - count)
        count -= available
    return start


async def since(open_ledger: OpenListed, snapshot: LogSnapshot, moment_ms: int) -> Position:
    """Return the position of the first entry that entered the log at a time or later; the log's end if all are earlier.

    For a part of the log without times, it is the beginning of the first ledger that was not closed before that time.

    Args:
        moment_ms: ms since the epoch.
    """
    first = snapshot.head.times.first
    if first is None:
        return await _by_ledgers(open_ledger, snapshot, moment_ms, snapshot.end_ordinal)
    if moment_ms <= first.ms:
        # Entries before the first mark have no time: they may have entered the log after `moment_ms`, too.
        end_ordinal = first.ordinal + bool(first.entry_id)
        return min(
            await _by_ledgers(open_ledger, snapshot, moment_ms, end_ordinal),
            await at_place(open_ledger, snapshot, first.place),
        )
    place = await snapshot.first_at(moment_ms)
    return await latest(open_ledger, snapshot) if place is None else await at_place(open_ledger, snapshot, place)


async def until(
    open_ledger: OpenListed, snapshot: LogSnapshot, moment_ms: int, readable: Position, now_ms: int
) -> Position:
    """Return the position up to which the log had been written at a time, at most `readable`.

    If the log has no times, it is `readable`: the caller leaves out ledgers that were created later.
    """
    first = snapshot.head.times.first
    if first is None or moment_ms > now_ms:
        return readable
    place = first.place if moment_ms <= first.ms else await snapshot.first_at(moment_ms)
    return readable if place is None else min(readable, await at_place(open_ledger, snapshot, place))


async def at_place(open_ledger: OpenListed, snapshot: LogSnapshot, place: Place) -> Position:
    """Return the position of an entry by (ordinal, entry), in normal form; the log's start if the entry is before that,
    the readable end if the entry is not confirmed yet."""
    ordinal, entry_id = place
    if ordinal >= snapshot.end_ordinal:
        return await latest(open_ledger, snapshot)
    if ordinal < snapshot.first_ordinal:
        return snapshot.start
    position = Position(ordinal, (await snapshot.ledger(ordinal)).ledger_id, entry_id)
    if position < snapshot.start:
        return snapshot.start
    position = await normal_form(open_ledger, snapshot, position)
    return min(position, await latest(open_ledger, snapshot)) if ordinal in snapshot.open_ordinals else position


async def _by_ledgers(open_ledger: OpenListed, snapshot: LogSnapshot, moment_ms: int, end_ordinal: int) -> Position:
    """Return the beginning of the first ledger before `end_ordinal` that was not closed before a time, by the metadata
    store's clock; if there is none, the end of these ledgers.

    A read from there on also yields earlier entries of that ledger. Ledgers that a job publishes together need not be
    in the order of their times, so all of them are checked in order.
    """
    found = snapshot.start
    async for run in snapshot.runs(snapshot.start.ordinal, end_ordinal):
        for some in chunks(run, CALLS_AT_ONCE):
            for listed, reader in zip(some, await each_of(open_ledger, some)):
                if reader is not None and not reader.times.is_closed_before(moment_ms):
                    return found
                if reader is not None and reader.last_entry >= 0:
                    end_entry = await end_entry_of(open_ledger, listed)
                    found = max(found, Position(listed.ordinal, listed.ledger_id, end_entry))
    return found


async def normal_form(
    open_ledger: OpenListed, snapshot: LogSnapshot, position: Position, closed: Collection[int] = ()
) -> Position:
    """Return a position in its normal form, unless the ledgers before it are still open.

    Args:
        closed: ordinals of ledgers that are closed, although the list may not say so yet.

    Raises:
        DataLoss, ConfigurationError: as `LogSnapshot.locate`.
    """
    await snapshot.locate(position)
    first_entry = 0
    if position.entry_id and snapshot.first_ordinal <= position.ordinal < snapshot.end_ordinal:
        first_entry = (await snapshot.ledger(position.ordinal)).first_entry
    still_open = set(snapshot.open_ordinals) - set(closed)
    if position.entry_id > first_entry or any(ordinal < position.ordinal for ordinal in still_open):
        return position
    return await end_before(open_ledger, snapshot, position.ordinal)


async def position_of(open_ledger: OpenListed, snapshot: LogSnapshot, place: OffsetSpec) -> Position:
    """Return the position that a place of `check_offset` means: `earliest`, `latest`, or a position.

    Raises:
        ConfigurationError: the place names another log's ledger.
        DataLoss: the entries after it are gone.
    """
    if place == EARLIEST:
        return snapshot.start
    if place == LATEST:
        return await latest(open_ledger, snapshot)
    assert isinstance(place, Position)
    await snapshot.locate(place)
    return place


async def ranges(
    cluster: Cluster, snapshot: LogSnapshot, start: Position, end: Position, *, is_latest: bool
) -> AsyncIterator[tuple[LedgerRange, LedgerReader]]:
    """Yield the entries from `start` up to `end` as one range for each ledger, with its reader; no range is empty.

    A shared ledger may be open, and its reader's last confirmed entry may be below the published end.

    Args:
        is_latest: `end` is what `latest` returned: it is confirmed, even if the bookies asked now report a lower LAC.

    Raises:
        DataLoss: the start or a ledger is gone.
        ConfigurationError: `end` is after the readable entries.
    """
    first_ordinal, first_entry = await snapshot.locate(start)
    async for run in snapshot.runs(first_ordinal, end.ordinal + 1):
        for listed in run:
            first = max(listed.first_entry, first_entry if listed.ordinal == first_ordinal else 0)
            reader = await open_listed(cluster, snapshot.name, listed)
            is_last = listed.ordinal == end.ordinal
            if is_last and is_latest:
                reader.learn_lac(end.entry_id - 1)
            last_entry = reader.last_entry if listed.last_entry is None else listed.last_entry
            stop = end.entry_id if is_last else last_entry + 1
            if stop > last_entry + 1 or not (is_last or reader.is_closed or listed.last_entry is not None):
                raise ConfigurationError(
                    f"log {snapshot.name} can be read up to entry {last_entry} of ledger {listed.ledger_id} "
                    f"now; {end} lies beyond that"
                )
            if first < stop:
                yield LedgerRange(listed.ordinal, listed.ledger_id, first, stop), reader


async def readable(
    cluster: Cluster, snapshot: LogSnapshot, position: Position, batch_bytes: int, patience: Patience
) -> AsyncIterator[LogBatch]:
    """Yield the entries after a position, ledger by ledger; an open ledger is followed until it is closed.

    Raises:
        DataLoss: entries after the position, or a listed ledger, are gone.
    """
    ordinal, entry_id = await snapshot.locate(position)
    async for run in snapshot.runs(ordinal):
        for listed in run:
            reader = await open_listed(cluster, snapshot.name, listed)
            first = max(listed.first_entry, entry_id if listed.ordinal == ordinal else 0)
            if listed.last_entry is None:
                batches = followed_batches(reader, snapshot.name, first, batch_bytes, patience)
            else:
                batches = listed_batches(reader, snapshot.name, first, listed.last_entry + 1, batch_bytes)
            async for batch in batches:
                yield LogBatch(batch, listed.ordinal)
