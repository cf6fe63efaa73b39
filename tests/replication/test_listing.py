"""What a scan of all ledgers yields, and what it does when one of them cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import BookKeeperError, MetadataError, MetadataFormat, NoSuchLedger
from bkspark.metadata.ledgers import Versioned
from bookie_service.replication.listing import Listed, read_all
from bookie_service.replication.unexpected_errors import UnexpectedErrors

METADATA = LedgerMetadata(1, 1, 1, (Fragment(0, ("a:1",)),))


class Ledgers:
    """A store with the ledgers 0 to `count` - 1, some of which cannot be read."""

    def __init__(self, count: int, **failures: Exception) -> None:
        """`failures`: what a read of the ledger `_<id>` raises."""
        self._count = count
        self._failures = {int(name[1:]): error for name, error in failures.items()}

    async def ids(self) -> AsyncIterator[int]:
        for ledger_id in range(self._count):
            yield ledger_id

    async def read(self, ledger_id: int) -> Versioned:
        if ledger_id in self._failures:
            raise self._failures[ledger_id]
        return Versioned(METADATA, 0, 0, 0)


def scan(ledgers: Ledgers, at_once: int, unexpected: UnexpectedErrors | None = None) -> list[list[Listed]]:
    async def run() -> list[list[Listed]]:
        return [group async for group in read_all(ledgers, at_once, unexpected or UnexpectedErrors())]  # type: ignore[arg-type]

    return asyncio.run(run())


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_every_ledger_is_yielded_once_in_groups_of_the_given_size(count: int) -> None:
    groups = scan(Ledgers(count), at_once=2)
    assert [ledger_id for group in groups for ledger_id, _ in group] == list(range(count))
    assert max(map(len, groups)) <= 2


def test_ledger_that_was_deleted_meanwhile_is_left_out() -> None:
    assert scan(Ledgers(3, _1=NoSuchLedger("it is deleted")), at_once=9) == [[(0, METADATA), (2, METADATA)]]


def test_metadata_that_cannot_be_decoded_take_nothing_from_the_others() -> None:
    error = MetadataFormat("not a format of ours")
    assert scan(Ledgers(2, _0=error), at_once=9) == [[(0, error), (1, METADATA)]]


def test_failure_of_the_store_ends_the_scan() -> None:
    """Otherwise a ledger that may lack copies would pass for one that was looked at."""
    with pytest.raises(MetadataError, match="no session"):
        scan(Ledgers(3, _1=MetadataError("no session")), at_once=1)


def test_unexpected_error_of_one_ledger_is_counted_and_the_others_are_read() -> None:
    errors: list[Exception] = []
    defect = ZeroDivisionError("a defect")
    ((failed, other),) = scan(Ledgers(2, _0=defect), at_once=9, unexpected=UnexpectedErrors(errors.append))
    assert failed[0] == 0
    assert isinstance(failed[1], BookKeeperError)
    assert other == (1, METADATA)
    assert errors == [defect]
