"""Logs whose segments are in pages."""

from __future__ import annotations

from collections.abc import Sequence

from bkspark.log.formats import LOGS_ROOT, PAGES, LogHead, PageRef, SegmentFacts, encode_page
from bkspark.log.heads import HeadStore, StoredHead
from bkspark.log.positions import Position
from bkspark.log.retention import Retention
from bkspark.log.snapshot import LogSnapshot
from bkspark.metadata.memory import MemoryStore


class Paged:
    """A log of `end` ledgers, ledger n at ordinal n, some in pages of ten and the rest in the head."""

    def __init__(self, first: int, paged: int, end: int) -> None:
        self.tree = MemoryStore().session()
        self.heads = HeadStore(self.tree, "/ledgers")
        self.head = LogHead(
            log_id="00000000000000aa",
            root="/ledgers",
            changes=("00000000000000aa",),
            first_ordinal=first,
            start=Position.beginning(first),
            pages=tuple(PageRef(f"{at}-00000000000000aa") for at in range(0, paged, 10)),
            tail_ordinal=paged,
            tail=tuple(SegmentFacts(number) for number in range(paged, end)),
        )

    async def write_pages(self) -> None:
        for ref in self.head.pages:
            ledgers = [SegmentFacts(number) for number in range(ref.first_ordinal, ref.first_ordinal + 10)]
            path = f"{LOGS_ROOT}/x/{PAGES}/{ref.name}"
            await self.tree.create(path, encode_page(ref.first_ordinal, ledgers), make_parents=True)

    @property
    def snapshot(self) -> LogSnapshot:
        return LogSnapshot(self.heads, "x", StoredHead(self.head, 3))


def snapshot_of(sizes: Sequence[int], bytes_max: int | None) -> LogSnapshot:
    """Return a log of ledgers with these bytes, all in its head, and a limit of bytes."""
    head = LogHead(
        log_id="00000000000000aa",
        root="/ledgers",
        changes=("00000000000000aa",),
        tail=tuple(SegmentFacts(number, 0, size) for number, size in enumerate(sizes)),
        retention=Retention(bytes=bytes_max),
    )
    return LogSnapshot(HeadStore(MemoryStore().session(), "/ledgers"), "x", StoredHead(head, 3))
