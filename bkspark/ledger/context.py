"""ClientContext: the parts of a cluster that its writers, readers and recoveries share."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bkspark.ledger.bookies import BookieWatcher
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.net.pool import BookiePool


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What writers, readers and recoveries of one cluster share. Made when the cluster connects, closed with it."""

    ledgers: LedgerStore
    registry: BookieRegistry
    pool: BookiePool
    watcher: BookieWatcher
    random: random.Random
