"""Which LAC an entry may carry: as its writer sealed it, and as Apache's re-replication seals its copies."""

import numpy as np
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.entries import EntryBatch
from bkspark.errors import DigestMismatch
from bkspark.ids import ENTRY_ID_MAX, LAST_ENTRY_MAX
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.lac import ANY_COPY, LacBounds, may_add_each
from tests.wire.single_lacs import may_add

LEDGER = 5
NUMBERS = [-(2**63), -2, -1, 0, 1, 6, 7, 8, 2**62, LAST_ENTRY_MAX - 1, LAST_ENTRY_MAX, ENTRY_ID_MAX]
BOUNDS = [LacBounds(), LacBounds(7), LacBounds(7, 7), LacBounds(LAST_ENTRY_MAX, 6), ANY_COPY]


def sealed(digest, entry_id, lac):
    """Return one stored entry with any header; its digest is right."""
    batch = EntryBatch.of([b"hello"], LEDGER, entry_id)
    return bytearray(digest.seal(batch, lac, 100).buffer[4:])


def open_as_batch(digest, entry, entry_id):
    ends = np.array([len(entry)])
    return digest.open_entries(entry, np.zeros(1, np.int64), ends, LEDGER, np.array([entry_id])).bad


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("lac", [7, 8, 10**12, ENTRY_ID_MAX, -2, -(2**63)])
def test_lac_that_no_writer_can_have_known_is_damage(digest_type, lac):
    """LAC 2^63 - 1 in one entry closed the ledger at that id, or ended the recovery with an IndexError."""
    digest = EntryDigest(digest_type, b"pw")
    entry = sealed(digest, 7, lac)
    bad = open_as_batch(digest, entry, 7)
    assert bad is not None
    assert f"LAC {lac}" in bad[1]
    with pytest.raises(DigestMismatch, match=f"LAC {lac}"):
        digest.open_entry(entry, LEDGER, 7)
    with pytest.raises(DigestMismatch):
        digest.open_entry(entry, LEDGER, None)


@pytest.mark.parametrize("lac", [-1, 0, 6])
def test_lac_below_the_entry_is_right(lac):
    digest = EntryDigest(DigestType.CRC32C, b"pw")
    entry = sealed(digest, 7, lac)
    assert open_as_batch(digest, entry, 7) is None
    assert digest.open_entry(entry, LEDGER, 7).lac == lac


def test_id_that_nothing_can_follow_is_damage():
    digest = EntryDigest(DigestType.CRC32C, b"")
    assert open_as_batch(digest, sealed(digest, LAST_ENTRY_MAX, LAST_ENTRY_MAX - 1), LAST_ENTRY_MAX) is None
    assert open_as_batch(digest, sealed(digest, ENTRY_ID_MAX, ENTRY_ID_MAX - 1), ENTRY_ID_MAX) is not None


@pytest.mark.parametrize("bounds", BOUNDS)
def test_arrays_are_judged_as_single_entries_are(bounds):
    pairs = [(entry_id, lac) for entry_id in NUMBERS for lac in NUMBERS]
    ids, lacs = (np.array(column, np.int64) for column in zip(*pairs))
    assert bounds.admit_each(ids, lacs.astype(">i8")).tolist() == [bounds.admits(*pair) for pair in pairs]
    for is_recovery in (False, True):
        wanted = [may_add(*pair, is_recovery=is_recovery) for pair in pairs]
        assert may_add_each(ids, lacs, is_recovery).tolist() == wanted
        assert may_add_each(ids, lacs, np.full(len(ids), is_recovery)).tolist() == wanted


def test_bookie_takes_an_add_as_its_writer_seals_it_and_copies_with_the_recovery_flag():
    assert may_add(7, 6, is_recovery=False)
    assert not may_add(7, 7, is_recovery=False)
    assert may_add(7, 99, is_recovery=True)
    assert not may_add(7, ENTRY_ID_MAX, is_recovery=True)
    assert not may_add(7, -2, is_recovery=True)


def test_copies_of_a_closed_ledger_may_carry_its_last_entry():
    """Apache's re-replication seals entries again with its handle's LAC: refusing such a copy would lose it."""
    fragments = (Fragment(0, ("a", "b")), Fragment(4, ("a", "c")))
    opened = LedgerMetadata(2, 2, 1, fragments)
    closed = opened.closed(9, 100).lac_bounds
    assert all(closed.admits(entry_id, 9) for entry_id in range(10))
    assert not closed.admits(3, 10)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_only_complete_fragments_of_an_open_ledger_may_hold_copies(state):
    fragments = (Fragment(0, ("a", "b")), Fragment(4, ("a", "c")))
    bounds = LedgerMetadata(2, 2, 1, fragments, state=state).lac_bounds
    assert bounds.admits(3, 6)
    assert not bounds.admits(4, 6)
    assert bounds.learned(3, 6) == 3  # the first entry of the last fragment is 4: all before it is confirmed
    assert bounds.learned(6, 5) == 5


def test_metadata_of_a_new_ledger_admits_no_copy():
    assert LedgerMetadata(1, 1, 1, (Fragment(0, ("a",)),)).lac_bounds == LacBounds()


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("lac", [-2, -(2**63), ENTRY_ID_MAX])
def test_explicit_lac_that_no_ledger_can_have_is_refused(digest_type, lac):
    digest = EntryDigest(digest_type, b"pw")
    with pytest.raises(DigestMismatch):
        digest.open_lac(digest.seal_lac(LEDGER, lac), LEDGER)
    assert digest.open_lac(digest.seal_lac(LEDGER, LAST_ENTRY_MAX), LEDGER) == LAST_ENTRY_MAX
