"""The ids of all ledgers, read leaf by leaf: memory does not grow with the number of ledgers.

A leaf of either hierarchical layout has the ids of one span of 10,000, so that leaves of both layouts merge by span. In
a flat cluster all names are children of the root: the store itself sends them in one answer.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

import numpy as np

from bkspark.errors import NoSuchNode
from bkspark.ids import LEDGER_ID_MAX
from bkspark.metadata import paths
from bkspark.metadata.tree import Tree

SPAN_IDS = 10_000
"""Ids of one leaf."""
_LEAF_NAME = re.compile(r"L([0-9]{4})")
_LEAF_NAME_BYTES = 5
_FOLDER = re.compile(r"[0-9]{4}")
_SHORT_DEPTH, _LONG_DEPTH = 2, 4
"""Levels of folders of the two hierarchical layouts."""

Leaf = tuple[int, np.ndarray]
"""The number of a span of ids, and the ids in it, ascending."""


async def id_pages(tree: Tree, root: str, after: int) -> AsyncIterator[np.ndarray]:
    """Yield the ids of all ledgers above `after`, ascending: int64 arrays, one for each span that has any.

    Raises:
        MetadataError: the listing could not be finished; the yielded ids are incomplete.
    """
    names = await tree.children(root)
    sources = [
        _leaves(tree, root, [name for name in names if re.fullmatch(first, name)], depth, after)
        for first, depth in (("[0-9]{2}", _SHORT_DEPTH), ("[0-9]{3}", _LONG_DEPTH))
    ]
    sources.append(_flat_leaves(_flat_ids(names, after)))
    heads = [await anext(source, None) for source in sources]
    while any(head is not None for head in heads):
        span = min(head[0] for head in heads if head is not None)
        found = []
        for number, head in enumerate(heads):
            if head is not None and head[0] == span:
                found.append(head[1])
                heads[number] = await anext(sources[number], None)
        yield found[0] if len(found) == 1 else np.unique(np.concatenate(found))


async def _leaves(tree: Tree, root: str, firsts: Sequence[str], depth: int, after: int) -> AsyncIterator[Leaf]:
    """Yield the leaves below some folders of the root, ascending; folders without an id above `after` are not read."""
    # Depth first with a stack: children may vanish meanwhile, which only means fewer ledgers.
    stack = list(reversed(firsts))
    while stack:
        path = stack.pop()
        below = depth - path.count("/")
        number = int(path.replace("/", ""))
        if (number + 1) * SPAN_IDS**below - 1 <= after:
            continue
        try:
            names = await tree.children(f"{root}/{path}")
        except NoSuchNode:
            continue
        if below > 1:
            stack += [f"{path}/{name}" for name in reversed(names) if _FOLDER.fullmatch(name)]
            continue
        ids = leaf_ids(number * SPAN_IDS, names)
        ids = ids[ids > after]
        if len(ids):
            yield number, ids


def leaf_ids(base: int, names: Sequence[str]) -> np.ndarray:
    """Return the ids of a leaf's names, which are ascending; other names are left out."""
    if base + SPAN_IDS - 1 <= LEDGER_ID_MAX and set(map(len, names)) == {_LEAF_NAME_BYTES}:
        octets = np.frombuffer("".join(names).encode("ascii", "replace"), np.uint8).reshape(-1, _LEAF_NAME_BYTES)
        digits = octets[:, 1:].astype(np.int64) - ord("0")
        if (octets[:, 0] == ord("L")).all() and ((digits >= 0) & (digits <= 9)).all():
            return np.asarray(base + digits @ np.array([1000, 100, 10, 1]))
    found = [base + int(match[1]) for match in map(_LEAF_NAME.fullmatch, names) if match is not None]
    return np.array([ledger_id for ledger_id in found if ledger_id <= LEDGER_ID_MAX], np.int64)


def _flat_ids(names: Sequence[str], after: int) -> np.ndarray:
    found = (paths.parse_flat_name(name) for name in names)
    return np.sort(
        np.fromiter((ledger_id for ledger_id in found if ledger_id is not None and ledger_id > after), np.int64)
    )


async def _flat_leaves(ids: np.ndarray) -> AsyncIterator[Leaf]:
    """Yield ascending ids span by span."""
    spans = ids // SPAN_IDS
    begins = np.flatnonzero(np.append(True, spans[1:] != spans[:-1])) if len(ids) else spans
    for begin, end in zip(begins, [*begins[1:], len(ids)]):
        yield int(spans[begin]), ids[begin:end]
