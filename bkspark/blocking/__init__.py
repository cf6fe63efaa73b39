"""The ledger client, blocking: the calls of `bkspark.client`, name for name.

    with Client("zk://127.0.0.1:2181/ledgers") as client:
        with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            writer.append_many([b"one", b"two"])
        for batch in client.open(writer.ledger_id).batches():
            ...
        with client.log("clicks").open_for_writing() as log:
            log.append_many([b"one", b"two"])
        for batch in client.log("clicks").read(start="earliest"):
            ...

One thread in each process runs the event loop of all its clients; calls may come from any other thread. A process made
by fork starts its own loop and cannot use what was made before the fork: calls raise RuntimeError, and the end of a
`with` block closes nothing. Make clients after forking.
"""

from __future__ import annotations

from bkspark.blocking.client import Client
from bkspark.blocking.ledgers import AdvancedLedgerWriter, LedgerReader, LedgerWriter, SnapshotReader
from bkspark.blocking.logs import ConsumerRegistration, Election, Log, LogWriter
from bkspark.blocking.loop import iterate, run
from bkspark.client import (
    EncryptionOptions,
    NetOptions,
    PlacementOptions,
    RelaxedDurability,
    WriterOptions,
    ZooKeeperOptions,
)

__all__ = [
    "AdvancedLedgerWriter",
    "Client",
    "ConsumerRegistration",
    "Election",
    "EncryptionOptions",
    "LedgerReader",
    "LedgerWriter",
    "Log",
    "LogWriter",
    "NetOptions",
    "PlacementOptions",
    "RelaxedDurability",
    "SnapshotReader",
    "WriterOptions",
    "ZooKeeperOptions",
    "iterate",
    "run",
]
