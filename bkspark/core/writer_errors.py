"""The errors that end a writer. Each says what is known about adds that were not acknowledged."""

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
    """Return the error for an add to a closed writer."""
    return LedgerClosed(f"ledger {ledger_id} is closed", ledger_id=ledger_id)


def decisive(status: int, ledger_id: int, lac: int, bookie: str) -> BookKeeperError | None:
    """Return the error if a bookie's answer to an add ends the writer, None if only the bookie failed."""
    if status == Status.EFENCED:
        return fenced(ledger_id, lac, bookie)
    if status == Status.EUA:
        return UnauthorizedAccess(
            f"bookie {bookie} refuses adds to ledger {ledger_id}: its password is another one, or the bookie serves "
            "only authenticated clients, or only TLS, or its authorizationRulesFile does not let this client write",
            ledger_id=ledger_id,
            entry_id=lac + 1,
            bookie=bookie,
        )
    return None


def fenced(ledger_id: int, lac: int, bookie: str | None = None) -> LedgerFenced:
    """Return the error if another client recovers the ledger. `bookie`: which one says so; None: the metadata do."""
    return LedgerFenced(
        f"ledger {ledger_id} is being recovered by another client, or has been: the outcome of adds above "
        f"entry {lac} is unknown",
        ledger_id=ledger_id,
        entry_id=lac + 1,
        bookie=bookie,
    )


def lost_to(current: LedgerMetadata, ledger_id: int, lac: int) -> BookKeeperError:
    """Return the error if another client changed the metadata to `current` and so took the ledger from this writer."""
    if current.state is LedgerState.CLOSED:
        return LedgerClosed(
            f"ledger {ledger_id} was closed at entry {current.last_entry} by another client: adds above entry {lac} "
            "are stored only up to that entry",
            ledger_id=ledger_id,
            entry_id=lac + 1,
        )
    return fenced(ledger_id, lac)


def not_enough(ledger_id: int, lac: int, missing: Collection[str]) -> NotEnoughBookies:
    """Return the error if a write set has less than Qa bookies without the missing ones."""
    return NotEnoughBookies(
        f"ledger {ledger_id} lost bookies {', '.join(sorted(missing))} and no other bookie can "
        f"take their place; the outcome of adds above entry {lac} is unknown",
        ledger_id=ledger_id,
        entry_id=lac + 1,
        bookie=min(missing),
    )


def cannot_be_synced(ledger_id: int, lac: int, ensemble: Collection[str]) -> NotEnoughBookies:
    """Return the error if acknowledged entries of relaxed durability cannot be synced any more and may be lost."""
    return NotEnoughBookies(
        f"entries of ledger {ledger_id} above {lac} were acknowledged and cannot be synced: too many "
        f"of the bookies {', '.join(ensemble)} went away since and may have lost them; open the ledger "
        "with recovery to see what is left",
        ledger_id=ledger_id,
    )


def client_closed(ledger_id: int, lac: int, why: str) -> ClientClosed:
    """Return the error if the writer's owner abandons it or closes the client. `why` begins the message."""
    message = f"{why}; the outcome of pending adds is unknown"
    return ClientClosed(message, ledger_id=ledger_id, entry_id=lac + 1)
