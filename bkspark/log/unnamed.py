"""Nodes below a log that its head does not name: an interrupted change wrote them, or what they described is gone."""

from __future__ import annotations

from bkspark.errors import NoSuchNode
from bkspark.log.formats import CONDEMNED, PAGES, LogHead, deletion_node, log_path
from bkspark.log.heads import Change, HeadStore
from bkspark.log.schemas import SCHEMAS
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.times import TIMES
from bkspark.metadata.tree import Delete, Tree

REMOVED_AT_ONCE = 500
"""Nodes that one transaction removes: it must stay far below ZooKeeper's 1 MiB."""


async def remove_unnamed(heads: HeadStore, name: str) -> None:
    """Remove the pages, lists of condemned ledgers, schemas and writers' times of a log that its head does not name.

    The removal also raises the head's version, so a change that is about to name one of them is decided again and
    writes it again. Raises NoSuchLog.
    """
    path = log_path(name)

    async def decide(head: LogHead) -> Change[int]:
        named = {f"{PAGES}/{page}" for page in head.page_names} | {f"{CONDEMNED}/{item}" for item in head.condemned}
        named |= {f"{SCHEMAS}/{ref.name}" for ref in head.schemas}
        named |= {deletion_node(head.log_id)} if head.is_deleted else set()
        named |= {f"{TIMES}/{ledger_id}" for ledger_id in await _open_ids(heads, name, head)}
        present = [
            f"{folder}/{child}"
            for folder in (PAGES, CONDEMNED, SCHEMAS, TIMES)
            for child in await _children(heads.tree, f"{path}/{folder}")
        ]
        unnamed = [node for node in present if node not in named][:REMOVED_AT_ONCE]
        also = [Delete(f"{path}/{node}") for node in unnamed]
        return Change(head if unnamed else None, len(unnamed), also=also)

    while await heads.change(name, decide, even_if_deleted=True):
        pass


async def _children(tree: Tree, path: str) -> list[str]:
    try:
        return await tree.children(path)
    except NoSuchNode:
        if path.endswith((SCHEMAS, TIMES)):
            return []  # made with the log's first schema, and its first time
        raise


async def _open_ids(heads: HeadStore, name: str, head: LogHead) -> set[int]:
    """Return the ids of the ledgers that were not known to be closed when the head was written."""
    snapshot = LogSnapshot.of_head(heads, name, head)
    return {(await snapshot.ledger(ordinal)).ledger_id for ordinal in head.open_ordinals}
