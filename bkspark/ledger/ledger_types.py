"""Ledger types: their names, how the type is stored in the metadata, and what it means for adds and durability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bkspark.core.metadata import LEDGER_TYPE_KEY, LedgerType
from bkspark.core.relaxed import RelaxedDurability
from bkspark.errors import ConfigurationError
from bkspark.ids import LEDGER_TYPES
from bkspark.options import instance
from bkspark.wire.flags import AddFlags

_DEFAULTS = RelaxedDurability()


def parse_ledger_type(name: str) -> LedgerType:
    """Return the type of that name, in any case.

    Raises:
        ConfigurationError: there is no such type.
    """
    try:
        return LedgerType(name.upper())
    except (ValueError, AttributeError):
        raise ConfigurationError(f"ledger_type {name!r} is not one of {', '.join(LEDGER_TYPES)}") from None


def check_relaxed(ledger_type: LedgerType, relaxed: RelaxedDurability, ensemble: int, write_quorum: int) -> None:
    """Raise ConfigurationError if the options do not fit the type, or the quorums do not fit the options."""
    instance("relaxed", relaxed, RelaxedDurability)
    if not ledger_type.is_relaxed:
        if relaxed != _DEFAULTS:
            raise ConfigurationError(f"relaxed: a ledger of type {ledger_type.value} has no relaxed durability")
        return
    if ensemble > write_quorum and not relaxed.striped:
        raise ConfigurationError(
            f"ensemble {ensemble} is above write_quorum {write_quorum}: a {ledger_type.value} ledger is striped only "
            "on request: RelaxedDurability(striped=True), --striped"
        )


def type_metadata(ledger_type: LedgerType, given: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a new ledger's custom metadata: the given ones, and the type unless it is PD_JOURNAL.

    Raises:
        ConfigurationError: the given metadata contain a type.
    """
    if LEDGER_TYPE_KEY in given:
        raise ConfigurationError(f"metadata: {LEDGER_TYPE_KEY!r} is set by ledger_type")
    custom = dict(given)
    if ledger_type is not LedgerType.PD_JOURNAL:
        custom[LEDGER_TYPE_KEY] = ledger_type.value.encode()
    return custom


def add_flags(ledger_type: LedgerType) -> AddFlags:
    """Return the flags of adds to a ledger of that type."""
    return AddFlags(is_deferred=ledger_type.is_relaxed, bypasses_journal=ledger_type is LedgerType.VD_BYPASS_JOURNAL)


def durability_of(ledger_type: LedgerType, relaxed: RelaxedDurability) -> RelaxedDurability | None:
    """Return how acknowledged entries of a ledger of that type become durable; None: they are durable already."""
    if not ledger_type.is_relaxed:
        return None
    # Without a journal, a sync flushes the bookie's entry log and index: too much to do at intervals.
    return replace(relaxed, force_interval_s=0.0) if ledger_type is LedgerType.VD_BYPASS_JOURNAL else relaxed
