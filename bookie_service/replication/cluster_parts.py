"""The parts of a cluster that auditor, workers and operators' commands share."""

from __future__ import annotations

from dataclasses import dataclass

from bkspark.ledger.context import ClientContext
from bkspark.metadata.bookie_plans import BookiePlans
from bkspark.metadata.tree import Tree
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from bookie_service.replication.unexpected_errors import UnexpectedErrors


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """Connections and metadata of a cluster that is repaired.

    store: the list of under-replicated ledgers. unexpected: takes unexpected errors.
    """

    uri: MetadataUri
    context: ClientContext
    tree: Tree
    store: UnderreplicationStore
    unexpected: UnexpectedErrors

    def plans(self) -> BookiePlans:
        """Return what operators plan for bookies."""
        return BookiePlans(self.tree, self.uri)
