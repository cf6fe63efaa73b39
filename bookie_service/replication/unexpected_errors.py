"""Unexpected errors of repair: each is attributed to its ledger, and ends neither worker nor auditor.

A repair changes metadata only by compare-and-set, and bookies only by adds of existing entries. So a repair that stops
at any point leaves nothing half changed. Its ledger counts as failed, and is tried again later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from bkspark.errors import BookKeeperError, MetadataError, MetadataFormat
from bkspark.log_limit import place_of

logger = logging.getLogger(__name__)


class UnexpectedErrors:
    """Logs the traceback of an unexpected error once for each place in the code, however many ledgers cause it."""

    def __init__(self, on_error: Callable[[Exception], None] = lambda error: None) -> None:
        """`on_error(error)` is called with each unexpected error."""
        self._on_error = on_error
        self._logged: set[Hashable] = set()
        """Places in the code whose traceback was logged. It only grows: there are few places."""

    def of_ledger(self, error: Exception, what: str, ledger_id: int) -> BookKeeperError:
        """Return why work on one ledger failed, as one of our errors. `what`: what failed because of it.

        Raises:
            MetadataError: the error itself, if the metadata store failed: it concerns all ledgers.
        """
        if isinstance(error, MetadataError) and not isinstance(error, MetadataFormat):
            raise error
        return error if isinstance(error, BookKeeperError) else self.failure(error, what, ledger_id)

    def failure(self, error: Exception, what: str, ledger_id: int | None = None) -> BookKeeperError:
        """Return the error as one of ours. `what`: what failed because of it."""
        self._on_error(error)
        place = place_of(error)
        if place not in self._logged:
            self._logged.add(place)
            logger.error("%s failed because of an unexpected error, a defect of bkspark", what, exc_info=error)
        return BookKeeperError(f"unexpected {type(error).__name__}: {error}", ledger_id=ledger_id)
