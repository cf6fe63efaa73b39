"""The errors that end a writer; each says what is known about unacknowledged adds."""

from __future__ import annotations

from collections.abc import Collection

from bkspark.core.metadata import LedgerMetadata, LedgerState
from bkspark.errors import (
    BookKeeperError,
    ClientClosed,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    UnauthorizedAccess,
)
from bkspark.wire.status import Status


def closed(ledger_id: int) -> LedgerClosed:
    """The writer takes no more entries: it was closed."""
    return LedgerClosed(f"ledger {ledger_id} is closed", ledger_id=ledger_id)


def decisive(status: int, ledger_id: int, lac: int, bookie: str) -> BookKeeperError | None:
    """Return the error if a bookie's answer to an add ends the writer, None if only the bookie failed."""
    if status == Status.EFENCED:
        return fenced(ledger_id, lac, bookie)
    if status == Status.EUA:
        return UnauthorizedAccess(
            f"bookie {bookie} refuses adds to ledger {ledger_id}: its password is another one, "
            "or the bookie serves only authenticated clients",
            ledger_id=ledger_id,
            entry_id=lac + 1,
            bookie=bookie,
        )
    return None


def fenced(ledger_id: int, lac: int, bookie: str | None = None) -> LedgerFenced:
    """Another client recovers the ledger, according to `bookie`, or for None to the metadata."""
    return LedgerFenced(
        f"ledger {ledger_id} is being recovered by another client, or has been: the outcome of adds above "
        f"entry {lac} is unknown",
        ledger_id=ledger_id,
        entry_id=lac + 1,
        bookie=bookie,
    )


def lost_to(current: LedgerMetadata, ledger_id: int, lac: int) -> BookKeeperError:
    """Another client changed the metadata to `current`, so that the ledger is not this writer's any more."""
    if current.state is LedgerState.CLOSED:
        return LedgerClosed(
            f"ledger {ledger_id} was closed at entry {current.last_entry} by another client: the outcome of "
            f"adds above entry {lac} is whether they lie below that",
            ledger_id=ledger_id,
            entry_id=lac + 1,
        )
    return fenced(ledger_id, lac)


def not_enough(ledger_id: int, lac: int, missing: Collection[str]) -> NotEnoughBookies:
    """Missing bookies leave a write set with less than Qa."""
    return NotEnoughBookies(
        f"ledger {ledger_id} lost bookies {', '.join(sorted(missing))} and no other bookie can "
        f"take their place; the outcome of adds above entry {lac} is unknown",
        ledger_id=ledger_id,
        entry_id=lac + 1,
        bookie=min(missing),
    )


def cannot_be_synced(ledger_id: int, lac: int, ensemble: Collection[str]) -> NotEnoughBookies:
    """Relaxed durability: acknowledged entries may be lost."""
    return NotEnoughBookies(
        f"entries of ledger {ledger_id} above {lac} were acknowledged and cannot be synced: too many "
        f"of the bookies {', '.join(ensemble)} went away since and may have lost them; open the ledger "
        "with recovery to see what is left",
        ledger_id=ledger_id,
    )


def client_closed(ledger_id: int, lac: int, why: str) -> ClientClosed:
    """The writer's owner ends."""
    message = f"{why}; the outcome of pending adds is unknown"
    return ClientClosed(message, ledger_id=ledger_id, entry_id=lac + 1)
