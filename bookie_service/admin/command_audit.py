"""The audit log of commands that this package carries out: a line on stderr, and a record in the metadata store."""

from __future__ import annotations

import time

from bkspark.metadata.change_records import ChangeRecord, ChangeRecords
from bookie_service.operation.audit import audit
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.operations import this_process
from bookie_service.settings.users import current_user


def operator() -> str:
    """Return who runs this command: the user and its process."""
    return f"{current_user()}@{this_process()}"


async def commanded(cluster: RepairedCluster, change: str, **attributes: object) -> None:
    """Log and record what an operator has this command do. Raises MetadataError."""
    audit(operator(), change, **attributes)
    record = ChangeRecord(time.time_ns() // 1_000_000, f"command:{operator()}", change)
    await ChangeRecords(cluster.tree, cluster.uri).add(record)
