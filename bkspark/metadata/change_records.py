"""ChangeRecords: the audit log of commands that change the metadata store themselves, without a server that logs it.

    underreplication/changes/change-<number>      JSON object, UTF-8: the fields of `ChangeRecord`

The nodes are an extension of ours. Apache's peers ignore them: they read only the nodes of `underreplication` that they
know. The last `RECORDS_MAX` records are kept, and a few more until the next command removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from dataclasses import dataclass

from bkspark.errors import NoSuchNode
from bkspark.metadata import paths
from bkspark.metadata.bookie_plans import TIME_MS_MAX
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri

RECORDS_MAX = 1000
_REMOVED_MAX = 50
"""Records that one command removes; there may be more after commands that ran at the same time."""
_NAME = "change-"
CHANGE_CHARACTERS_MAX = 2000


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A change. at_ms: when it was made, since 1970; who: `command:USER@HOST`; change: what it was."""

    at_ms: int
    who: str
    change: str


class ChangeRecords:
    """The change records of one cluster, in its metadata store."""

    def __init__(self, tree: Tree, uri: MetadataUri) -> None:
        self._tree = tree
        self.root = f"{uri.root}/{paths.UNDERREPLICATION}/changes"
        """The node below which the records are. Constant."""

    async def add(self, record: ChangeRecord) -> None:
        """Store a record, and remove the oldest beyond `RECORDS_MAX`. Raises MetadataError."""
        short = dataclasses.replace(record, change=record.change[:CHANGE_CHARACTERS_MAX])
        data = json.dumps(dataclasses.asdict(short)).encode()
        await self._tree.create(f"{self.root}/{_NAME}", data, sequential=True, make_parents=True)
        names = sorted(await self._tree.children(self.root))
        for name in names[: max(0, min(_REMOVED_MAX, len(names) - RECORDS_MAX))]:
            with contextlib.suppress(NoSuchNode):
                await self._tree.delete(f"{self.root}/{name}")

    async def latest(self, count_max: int) -> list[ChangeRecord]:
        """Return the last records, the latest first; the text of an unreadable one says so. Raises MetadataError."""
        try:
            names = sorted(await self._tree.children(self.root), reverse=True)
        except NoSuchNode:
            return []
        found = await asyncio.gather(*(self._read(name) for name in names[:count_max]))
        return [record for record in found if record is not None]

    async def _read(self, name: str) -> ChangeRecord | None:
        """Return a record, None if it was removed meanwhile."""
        try:
            data, _ = await self._tree.get(f"{self.root}/{name}")
        except NoSuchNode:
            return None
        return _decode(data, name)


def _decode(data: bytes, name: str) -> ChangeRecord:
    """Return the record in a node. Fields of later versions are left out."""
    try:
        facts = json.loads(data)
        at_ms, who, change = facts["at_ms"], facts["who"], facts["change"]
        if isinstance(at_ms, bool) or not (isinstance(at_ms, int) and isinstance(who, str) and isinstance(change, str)):
            raise ValueError("a field has another type")
        if not 0 <= at_ms <= TIME_MS_MAX:
            raise ValueError("its time cannot be shown")
    except (ValueError, KeyError, TypeError, RecursionError):
        return ChangeRecord(0, "unknown", f"the record {name} cannot be read")
    return ChangeRecord(at_ms, who, change)
