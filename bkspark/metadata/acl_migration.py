"""Checks, closes and opens the access control lists of all nodes of a cluster.

`zkEnableSecurity` applies only to new nodes; existing ones keep their list. `migrate` sets the list of every node that
has another one. It may run while the cluster serves. It may be interrupted at any time and run again: it skips nodes
that have the list already, and keeps no other state.

A node is changed before its children are read, so strangers cannot create nodes in a finished part. Peers that are not
configured for closed nodes yet still can. `migrate` therefore repeats its walk until a walk has changed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bkspark.errors import MetadataAccessDenied, MetadataVersion, NoSuchNode
from bkspark.metadata.acls import AclList, closed_list, is_same
from bkspark.metadata.zookeeper import ZooKeeperTree
from bkspark.tasks import end_all

AT_ONCE = 64
"""Nodes that are visited concurrently: each takes two or three round trips to ZooKeeper."""
WALKS_MAX = 10
PATHS_KEPT = 20
"""Paths of each kind that a result names."""

Judge = Callable[[AclList], AclList | None]
"""Returns the list that a node should have instead of its own; None if its own is right."""


@dataclass(slots=True)
class Walked:
    """What one walk found.

    nodes: those that were looked at. wrong: those whose list was not right. changed: those of them that have the right
    one now. refused: nodes that this client may not look at, or change. examples: the first wrong paths, with the list
    that they had; `refused_examples`: the first refused ones.
    """

    nodes: int = 0
    wrong: int = 0
    changed: int = 0
    refused: int = 0
    examples: list[tuple[str, AclList]] = field(default_factory=list)
    refused_examples: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether every node had the right list, and could be looked at."""
        return not self.wrong and not self.refused


def exactly(target: AclList) -> Judge:
    """Return a Judge that requires this list on every node."""
    return lambda found: None if is_same(found, target) else target


async def walk(
    tree: ZooKeeperTree,
    roots: Sequence[str],
    judge: Judge,
    *,
    changes: bool,
    progress: Callable[[Walked], None] = lambda _: None,
) -> Walked:
    """Look at every node at and below the roots, parents first; with `changes`, set the lists that are not right.

    Args:
        progress: called after each node.

    Raises:
        MetadataError: the store failed. Changes made until then stay.
    """
    walked = Walked()
    waiting = list(reversed(roots))
    working: set[asyncio.Task[list[str]]] = set()
    try:
        while waiting or working:
            while waiting and len(working) < AT_ONCE:
                working.add(asyncio.ensure_future(_visit(tree, waiting.pop(), judge, changes, walked)))
            done, working = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                waiting += task.result()
                progress(walked)
    finally:
        await end_all(working)
    return walked


async def migrate(
    tree: ZooKeeperTree, roots: Sequence[str], judge: Judge, progress: Callable[[Walked], None] = lambda _: None
) -> tuple[Walked, Walked]:
    """Set the lists until a walk finds nothing to change; return the sum of all walks, and what the last one found.

    Raises:
        MetadataError: the store failed.
    """
    total = Walked()
    for _ in range(WALKS_MAX):
        last = await walk(tree, roots, judge, changes=True, progress=progress)
        total.nodes = last.nodes
        total.wrong += last.wrong
        total.changed += last.changed
        total.examples = (total.examples + last.examples)[:PATHS_KEPT]
        total.refused, total.refused_examples = last.refused, last.refused_examples
        if not last.changed:
            break
    return total, last


async def _visit(tree: ZooKeeperTree, path: str, judge: Judge, changes: bool, walked: Walked) -> list[str]:
    """Look at one node and change its list; return its children, the last one first."""
    try:
        while True:
            found, version = await tree.acl(path)
            wanted = judge(found)
            if wanted is None or not changes:
                break
            try:
                await tree.set_acl(path, wanted, version)
            except MetadataVersion:
                continue  # another client changed it at this moment
            walked.changed += 1
            break
        walked.nodes += 1
        if wanted is not None:
            walked.wrong += 1
            if len(walked.examples) < PATHS_KEPT:
                walked.examples.append((path, found))
        names = await tree.children(path)
    except NoSuchNode:
        return []
    except MetadataAccessDenied:
        walked.refused += 1
        if len(walked.refused_examples) < PATHS_KEPT:
            walked.refused_examples.append(path)
        return []
    return [f"{path.rstrip('/')}/{name}" for name in reversed(names)]


async def closed_to_others(tree: ZooKeeperTree, further: AclList) -> AclList:
    """Return the list that closes a node to all except the identities of this session and `further`.

    Raises:
        MetadataAccessDenied: this session has no identity.
        MetadataError: the store failed, or is older than ZooKeeper 3.7.
    """
    target = closed_list(await tree.identities(), ())
    if not target:
        raise MetadataAccessDenied(
            "nodes cannot be closed: to ZooKeeper this session has no identity, which they would be closed for. Name "
            "a JAAS file by saslJaasConfig, or a certificate by zookeeper.ssl.keyStore.location"
        )
    return tuple(sorted({*target, *further}))
