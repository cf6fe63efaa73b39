"""docs/errors.md is what the code makes; errors carry what was known where they were raised."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from bkspark.errors import BookKeeperError
from tests.error_docs import APACHE_NAMES, error_types, facts_given, page
from tests.sources import GROUP

CHECKED_IN = Path(__file__).parent.parent.parent / "docs" / "errors.md"


@pytest.mark.xdist_group(GROUP)
def test_the_page_is_what_the_code_makes() -> None:
    assert CHECKED_IN.read_text() == page(), "run python -m tests.error_docs > docs/errors.md"


@pytest.mark.parametrize("kind", error_types())
def test_error_says_what_it_means_and_what_to_do_and_keeps_its_facts(kind: type[BookKeeperError]) -> None:
    assert kind.__doc__
    assert kind is BookKeeperError or "remedy" in vars(kind)
    assert kind.code in APACHE_NAMES
    error = pickle.loads(pickle.dumps(kind("what happened", ledger_id=5, entry_id=7, bookie="b:1")))
    assert (type(error), str(error)) == (kind, "what happened")
    assert (error.ledger_id, error.entry_id, error.bookie, error.code) == (5, 7, "b:1", kind.code)


@pytest.mark.xdist_group(GROUP)
@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("NoSuchEntry", {"ledger_id", "entry_id"}),
        ("DigestMismatch", {"ledger_id"}),
        ("DuplicateEntryId", {"ledger_id", "entry_id"}),
        ("LedgerRecoveryFailed", {"ledger_id", "entry_id", "bookie"}),
        ("LedgerExists", {"ledger_id"}),
        ("UnauthorizedAccess", {"ledger_id"}),
        ("BookieUnavailable", {"bookie"}),
    ],
)
def test_every_place_that_raises_it_gives_these_facts(name: str, facts: set[str]) -> None:
    """Errors carry ledger, entry, bookie and Apache's code."""
    assert facts_given()[name]
    assert all(facts <= given for given in facts_given()[name])
