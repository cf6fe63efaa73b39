"""Reads the files of garbage collection: the intent of a compaction, and the ledgers that were fenced and dropped."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bookie_service.admin.inspection.findings import Damage, Fact, Finding
from bookie_service.formats import compaction, tombstones
from bookie_service.storage.io.files import ReadOnlyFiles

NAMES = frozenset({compaction.FILE_NAME, tombstones.FILE_NAME})


def read_garbage_file(files: ReadOnlyFiles, path: str) -> Iterator[Finding]:
    """Yield the contents of a `compaction` or `fencedDeleted` file."""
    data = files.read_all(path)
    try:
        if os.path.basename(path) == compaction.FILE_NAME:
            yield _intent(path, data)
        else:
            yield from _tombstones(path, data)
    except ValueError as error:
        yield Damage(path, 0, len(data), str(error))


def _intent(path: str, data: bytes) -> Finding:
    intent = compaction.decode(data)
    if intent is None:
        reason = "the intent fails its checksum: the next start undoes the compaction, and no entry is lost"
        return Damage(path, 0, len(data), reason)
    return Fact("compaction", path, 0, len(data), True, {"new_log": intent.new_id, "old_log": intent.old_id})


def _tombstones(path: str, data: bytes) -> Iterator[Finding]:
    found = tombstones.decode(data)
    if found is None:
        reason = "the ledgers fail their checksum: late adds to ledgers that were fenced and deleted are not refused"
        yield Damage(path, 0, len(data), reason)
        return
    for row, (ledger_id, dropped_at_s) in enumerate(sorted(found.items())):
        values = {"ledger": ledger_id, "dropped_at_s": dropped_at_s}
        offset = len(data) - tombstones.tail_bytes(len(found)) + row * tombstones.ROW_BYTES
        yield Fact("fenced-deleted", path, offset, tombstones.ROW_BYTES, True, values)
