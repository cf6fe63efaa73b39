"""LastConfirmed: what bookies say of the LAC of an open ledger, and what of it is believed."""

import pytest

from bkspark.core.last_confirmed import LastConfirmed
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import DigestMismatch, ReadFailed

BOOKIES = ("b1", "b2", "b3")
ONE_FRAGMENT = (Fragment(0, BOOKIES),)


def asked(fragments=ONE_FRAGMENT):
    return LastConfirmed(5, LedgerMetadata(3, 3, 2, fragments))


@pytest.mark.parametrize("lac", [4, 1000, 2**63 - 1, -2])
def test_lac_that_is_not_below_its_own_entry_is_not_an_answer(lac):
    core = asked()
    core.on_entry(0, 4, lac, 10)
    core.on_entry(1, 4, 3, 10)
    assert not core.is_covered
    with pytest.raises(ReadFailed, match=f"carries LAC {lac}"):
        core.result()
    core.on_entry(2, 4, 2, 10)
    assert (core.result().lac, core.result().lap) == (3, 4)


def test_copy_of_an_earlier_entry_says_no_more_than_the_metadata():
    core = asked((Fragment(0, BOOKIES), Fragment(10, ("b4", "b5", "b6"))))
    core.on_entry(0, 4, 12, 10)
    core.on_nothing(1)
    assert (core.result().lac, core.result().lap) == (9, 9)


def test_highest_lac_counts_whatever_came_last():
    core = asked()
    core.on_entry(0, 8, 7, 90)
    core.on_entry(1, 5, 3, 60)
    assert (core.result().lac, core.result().lap, core.result().length) == (7, 8, 90)


def test_explicit_lac_counts_and_covers_nothing_by_itself():
    core = asked()
    core.on_explicit_lac(6)
    core.on_failure(DigestMismatch("its last entry is damaged"))
    core.on_entry(1, 7, 2, 80)
    assert not core.is_covered
    core.on_nothing(2)
    assert core.result().lac == 6


def test_first_failure_is_what_the_error_names():
    core = asked()
    core.on_failure(DigestMismatch("the first", bookie="b2"))
    core.on_failure(DigestMismatch("the second", bookie="b3"))
    with pytest.raises(ReadFailed, match="the first") as caught:
        core.result()
    assert caught.value.bookie == "b2"


def test_explicit_lac_proves_that_its_entry_is_there():
    core = asked()
    core.on_explicit_lac(9)
    core.on_nothing(0)
    core.on_nothing(1)
    assert (core.result().lac, core.result().lap) == (9, 9)


@pytest.mark.parametrize("answers", [0, 1])
def test_refusals_are_final_only_if_no_bookie_served_the_client(answers):
    core = asked()
    for slot in range(answers):
        core.on_nothing(slot)
    for bookie in BOOKIES[answers:]:
        refusal = ReadFailed("it may not read", bookie=bookie)
        refusal.is_refusal = True
        core.on_failure(refusal)
    with pytest.raises(ReadFailed) as caught:
        core.result()
    assert caught.value.is_refusal == (not answers)


def test_failure_that_may_pass_makes_refusals_beside_it_not_final():
    core = asked()
    core.on_failure(DigestMismatch("its last entry is damaged", bookie="b1"))
    for bookie in BOOKIES[1:]:
        refusal = ReadFailed("it may not read", bookie=bookie)
        refusal.is_refusal = True
        core.on_failure(refusal)
    with pytest.raises(ReadFailed) as caught:
        core.result()
    assert not caught.value.is_refusal
