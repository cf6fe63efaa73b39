"""What a ledger's type means for its metadata, its adds and its syncs: docs/relaxed-durability.md."""

from __future__ import annotations

import pytest

from bkspark.core.metadata import LEDGER_TYPE_KEY, LedgerType
from bkspark.core.relaxed import RelaxedDurability
from bkspark.errors import ConfigurationError
from bkspark.ledger.ledger_types import add_flags, check_relaxed, durability_of, type_metadata

DURABLE, DEFERRED, BYPASSING = LedgerType.PD_JOURNAL, LedgerType.VD_JOURNAL, LedgerType.VD_BYPASS_JOURNAL
OFTEN = RelaxedDurability(force_interval_s=5.0, striped=True)


def test_type_is_stored_unless_it_is_the_durable_one() -> None:
    assert type_metadata(DURABLE, {"who": b"we"}) == {"who": b"we"}
    assert type_metadata(DEFERRED, {"who": b"we"}) == {"who": b"we", LEDGER_TYPE_KEY: b"VD_JOURNAL"}
    assert type_metadata(BYPASSING, {}) == {LEDGER_TYPE_KEY: b"VD_BYPASS_JOURNAL"}
    with pytest.raises(ConfigurationError, match="ledger_type"):
        type_metadata(DURABLE, {LEDGER_TYPE_KEY: b"VD_JOURNAL"})


def test_adds_say_what_may_be_left_out_before_they_are_answered() -> None:
    flags = [(each.is_deferred, each.bypasses_journal) for each in map(add_flags, (DURABLE, DEFERRED, BYPASSING))]
    assert flags == [(False, False), (True, False), (True, True)]


def test_only_a_ledger_with_a_journal_is_synced_at_intervals() -> None:
    """Without one, a sync is a flush of entry log and index: the caller asks for it."""
    assert durability_of(DURABLE, OFTEN) is None
    assert durability_of(DEFERRED, OFTEN) == OFTEN
    assert durability_of(BYPASSING, OFTEN) == RelaxedDurability(force_interval_s=0.0, striped=True)


def test_relaxed_ledger_is_striped_only_when_that_is_asked_for() -> None:
    check_relaxed(DURABLE, RelaxedDurability(), 4, 2)
    check_relaxed(DEFERRED, OFTEN, 4, 2)
    check_relaxed(DEFERRED, RelaxedDurability(), 3, 3)
    with pytest.raises(ConfigurationError, match="ensemble 4 is above write_quorum 3"):
        check_relaxed(DEFERRED, RelaxedDurability(), 4, 3)
    with pytest.raises(ConfigurationError, match="PD_JOURNAL has no relaxed durability"):
        check_relaxed(DURABLE, OFTEN, 3, 3)
