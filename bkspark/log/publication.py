"""What one change publishes in a log, and checks of it: the ledgers and slices, and their publisher. PURE."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bkspark.errors import ConfigurationError
from bkspark.log.formats import Publisher, SegmentFacts, check_publisher
from bkspark.log.schemas import SchemaChange

AnyPublisher = Publisher | tuple[str, int] | tuple[str, int, str | None]
"""A publisher, or its members as a plain tuple."""


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """The outcome of a publication.

    `is_new` is False if the publisher had already published this version or a later one (`last_epoch`). Then nothing
    was changed; the given ledgers are still pending, unless they are the ones that were published before.
    """

    is_new: bool
    first_ordinal: int | None
    """The ordinal of the first published ledger; None: none was published now."""
    last_epoch: int | None


@dataclass(frozen=True, slots=True)
class Publication:
    """Closed ledgers, or slices of shared ones, that one change publishes in a log.

    publisher: makes a repetition recognisable; None: the change is made whenever it is asked for.
    schema: the schema of the rows, if the change stores one.
    shared: ids of ledgers that stay pending, because more of them will be published.
    """

    ledgers: Sequence[SegmentFacts]
    publisher: Publisher | None = None
    schema: SchemaChange | None = None
    shared: Collection[int] = ()

    @property
    def unshared(self) -> list[int]:
        """The ids of the ledgers of which no more will be published."""
        return sorted({facts.ledger_id for facts in self.ledgers} - set(self.shared))


def publisher_of(publisher: AnyPublisher) -> Publisher:
    """Return a publisher with names for its members.

    Raises:
        ConfigurationError: it is not (name, version) or (name, version, query id).
    """
    if not isinstance(publisher, tuple) or len(publisher) not in (2, 3):
        raise ConfigurationError(f"publisher must be a query id and an epoch, not {publisher!r:.80}")
    check_publisher(*publisher)
    return Publisher(*publisher)


def check_ledgers(ledgers: Sequence[SegmentFacts]) -> None:
    """Check the items to publish.

    Raises:
        ConfigurationError: an argument has a wrong type.
        ValueError: entries are published twice, or a ledger is not closed.
    """
    if not isinstance(ledgers, Sequence) or not all(isinstance(facts, SegmentFacts) for facts in ledgers):
        raise ConfigurationError(f"ledgers must be SegmentFacts, not {ledgers!r:.80}")
    for before, after in itertools.pairwise(sorted(ledgers, key=lambda facts: (facts.ledger_id, facts.first_entry))):
        if before.ledger_id == after.ledger_id and after.first_entry <= (before.last_entry or 0):
            raise ValueError(f"entries of ledger {after.ledger_id} are published twice")
    for facts in ledgers:
        if not facts.is_known_closed:
            raise ValueError(f"ledger {facts.ledger_id} is to be published before it is closed")
