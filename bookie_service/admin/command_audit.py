"""The audit log of commands that run here: a line on stderr, and a record in the metadata store."""

from __future__ import annotations

from bkspark.metadata.change_records import ChangeRecord, ChangeRecords
from bkspark.wall_clock import wall_clock_ms
from bookie_service.operation.audit import audit
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.operations import this_process
from bookie_service.settings.users import current_user


def operator() -> str:
    """Return the operator of this command: the user and the process."""
    return f"{current_user()}@{this_process()}"


async def commanded(cluster: RepairedCluster, change: str, **attributes: object) -> None:
    """Log and record a change that an operator makes by this command. Raises MetadataError."""
    audit(operator(), change, **attributes)
    record = ChangeRecord(wall_clock_ms(), f"command:{operator()}", change)
    await ChangeRecords(cluster.tree, cluster.uri).add(record)
