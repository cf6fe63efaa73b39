"""The facts of a log as a JSON object, for `Log.show`, which specifies them."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from bkspark.errors import NoSuchLedger
from bkspark.ledger import Cluster
from bkspark.log.formats import SchemaRef, ledger_identity
from bkspark.log.snapshot import LogSegment, LogSnapshot
from bkspark.log.store import LogStore
from bkspark.tasks import each_of


async def of_log(cluster: Cluster, store: LogStore, snapshot: LogSnapshot) -> dict[str, Any]:
    """Return the facts of a log.

    Raises:
        MetadataError: the metadata store failed.
    """
    pending = await store.attempts.pending_ids(snapshot.name) if snapshot.head.has_slices else set()
    segments: list[dict[str, Any]] = []
    async for run in snapshot.runs():
        segments += await each_of(lambda listed: _of_segment(cluster, snapshot, listed, pending), run)
    return {
        "log": snapshot.name,
        "ledgers": segments,
        "published": [publisher._asdict() for publisher in snapshot.publishers],
        "retention": snapshot.head.retention.to_json(),
        "schemas": [await _of_schema(snapshot, ref) for ref in snapshot.schemas],
        "version": snapshot.version,
    }


async def _of_segment(
    cluster: Cluster, snapshot: LogSnapshot, listed: LogSegment, pending: Collection[int]
) -> dict[str, Any]:
    state = "OPEN" if listed.ledger_id in pending else "CLOSED"
    last_entry, length = listed.last_entry, listed.length
    if last_entry is None:
        try:
            metadata = await cluster.metadata(listed.ledger_id, having=ledger_identity(snapshot.name))
            state, last_entry, length = metadata.state.name, metadata.last_entry, metadata.length
        except NoSuchLedger:
            state, last_entry, length = "MISSING", -1, 0
    is_cut = snapshot.start.ordinal == listed.ordinal and snapshot.start.ledger_id == listed.ledger_id
    return {
        "ledger": listed.ledger_id,
        "first_entry": max(listed.first_entry, snapshot.start.entry_id if is_cut else 0),
        "last_entry": last_entry,
        "state": state,
        "length": length,
    }


async def _of_schema(snapshot: LogSnapshot, ref: SchemaRef) -> dict[str, Any]:
    stored = await snapshot.schema(ref)
    return {
        "number": ref.number,
        "first_ordinal": ref.first_ordinal,
        "format": stored.payload_format,
        "schema": json.loads(stored.schema),
    }
