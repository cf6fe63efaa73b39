"""Which errors of the metadata store a client waits out."""

from __future__ import annotations

import pytest

from bkspark import errors
from bkspark.errors import BookKeeperError, MetadataError
from bkspark.ledger.metadata_steps import is_away, may_pass

OUTAGES = {"MetadataError", "SessionExpired"}
PASSING = OUTAGES | {"ReadFailed", "BookieUnavailable", "RequestTimeout", "TooManyRequests"}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BookKeeperError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_client_waits_for_a_store_that_is_away_and_takes_its_answers_as_they_are(kind: type[BookKeeperError]) -> None:
    assert is_away(kind("it failed")) is (kind.__name__ in OUTAGES)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_follower_bears_what_may_be_over_later(kind: type[BookKeeperError]) -> None:
    is_special = any(issubclass(kind, getattr(errors, name)) for name in PASSING - OUTAGES)
    assert may_pass(kind("it failed")) is (kind.__name__ in OUTAGES or is_special)


def test_a_new_kind_of_outage_is_waited_out_too() -> None:
    class StoreIsBusy(MetadataError):
        pass

    assert is_away(StoreIsBusy("try again"))
