"""`bkspark cluster acl`: access control lists of a cluster's nodes in ZooKeeper.

`check` reports nodes that others may change. `close` restricts every node to this client's identity, as
`zkEnableSecurity=true` does for new nodes; `open` gives every node to everyone. Both can be interrupted and run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import Commands, add_cluster, client_zookeeper, cluster_uri
from bkspark.cli.changes import record
from bkspark.cli.output import print_json, progress
from bkspark.errors import MetadataAccessDenied, NoSuchNode

if TYPE_CHECKING:
    from bkspark.metadata.acl_migration import Walked
    from bkspark.metadata.acls import AclList
    from bkspark.metadata.uri import MetadataUri
    from bkspark.metadata.zookeeper import ZooKeeperTree

_PROGRESS_S = 2.0
_HELP = {
    "check": "print which nodes other clients may change; exit code 1 if there are any",
    "close": "close every node to all except this client's identity, as zkEnableSecurity=true does for new nodes",
    "open": "open every node to all clients again",
}


def add_parsers(parsers: Commands) -> None:
    """Add `acl` and its commands."""
    description = "show and change which clients may use the nodes of the cluster in ZooKeeper"
    group = parsers.add_parser("acl", help=description, description=f"{description[0].upper()}{description[1:]}.")
    commands = group.add_subparsers(metavar="COMMAND", required=True, dest="acl_command")
    for name, text in _HELP.items():
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add_cluster(parser)
        if name != "check":
            parser.add_argument(
                "--dry-run", action="store_true", help="print what would be changed, and change nothing"
            )
        parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 0 if every node is as wanted."""
    import asyncio

    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    from bkspark.metadata.uri import MetadataUri
    from bkspark.metadata.zookeeper import open_tree

    uri, options = MetadataUri.parse(cluster_uri(arguments)), client_zookeeper(arguments)
    tree = await open_tree(uri, options)
    try:
        if arguments.acl_command == "check":
            return await _check(arguments, tree, uri.root)
        return await _change(arguments, tree, uri, options.further_acls)
    finally:
        await tree.close()


async def _roots(tree: ZooKeeperTree, root: str) -> list[str]:
    """Return the roots of a cluster's nodes: its own, and that of logs. Raises NoSuchNode if there is no cluster."""
    from bkspark.log.formats import LOGS_ROOT
    from bkspark.metadata.tree import parent_of

    if not await _may_exist(tree, root):
        raise NoSuchNode(f"there is no cluster at {root}: correct the metadata URI")
    logs = parent_of(LOGS_ROOT)
    return [root, logs] if await _may_exist(tree, logs) else [root]


async def _may_exist(tree: ZooKeeperTree, path: str) -> bool:
    try:
        return await tree.exists(path) is not None
    except MetadataAccessDenied:
        return True


async def _check(arguments: argparse.Namespace, tree: ZooKeeperTree, root: str) -> int:
    from bkspark.metadata.acl_migration import walk
    from bkspark.metadata.acls import is_identity, strangers

    own = [each for each in await tree.identities() if is_identity(each[0])]

    def judge(acls: AclList) -> AclList | None:
        return strangers(acls, own) or None

    found = await walk(tree, await _roots(tree, root), judge, changes=False, progress=_reporter())
    facts = _facts(found) | {"identity": [f"{scheme}:{name}" for scheme, name in own], "open": found.wrong}
    if arguments.json:
        print_json(facts)
    else:
        who = " and ".join(facts["identity"]) or "a client without identity"
        _print_paths(found)
        print(f"{found.nodes} nodes; others than {who} may change {found.wrong}; {found.refused} cannot be looked at")
    return 0 if found.is_right else 1


async def _change(arguments: argparse.Namespace, tree: ZooKeeperTree, uri: MetadataUri, further: AclList) -> int:
    from bkspark.metadata.acl_migration import closed_to_others, exactly, migrate, walk
    from bkspark.metadata.acls import OPEN, shown
    from bkspark.metadata.change_records import ChangeRecords
    from bkspark.metadata.tree import parent_of

    is_closing = arguments.acl_command == "close"
    target = await closed_to_others(tree, further) if is_closing else OPEN
    roots = await _roots(tree, uri.root)
    if arguments.dry_run:
        found = await walk(tree, roots, exactly(target), changes=False, progress=_reporter())
        is_done = not found.refused
    else:
        found, last = await migrate(tree, roots, exactly(target), progress=_reporter())
        is_done = last.is_right
        if found.changed:
            records = ChangeRecords(tree, uri).root
            parent = parent_of(records)
            made = records if await _may_exist(tree, parent) else parent
            await record(tree, uri, f"give {found.changed} nodes of the cluster the access list {shown(target)}")
            # The nodes that the record made have the access list of this client's configuration.
            await migrate(tree, [made], exactly(target), progress=_reporter())
    facts = _facts(found) | {"target": [str(each) for each in target], "dry_run": arguments.dry_run, "done": is_done}
    if arguments.json:
        print_json(facts)
    else:
        _print_paths(found)
        verb = f"{found.wrong} would be changed" if arguments.dry_run else f"{found.changed} were changed"
        print(f"{found.nodes} nodes; {verb} to {shown(target)}; {found.refused} are refused")
    return 0 if is_done else 1


def _facts(found: Walked) -> dict[str, Any]:
    return {
        "nodes": found.nodes,
        "wrong": found.wrong,
        "changed": found.changed,
        "refused": found.refused,
        "examples": [{"path": path, "acl": [str(each) for each in acls]} for path, acls in found.examples],
        "refused_examples": found.refused_examples,
    }


def _print_paths(found: Walked) -> None:
    from bkspark.metadata.acls import shown

    for path, acls in found.examples:
        print(f"{path}: {shown(acls)}")
    if found.wrong > len(found.examples):
        print(f"... and {found.wrong - len(found.examples)} more")
    for path in found.refused_examples:
        print(f"{path}: this client may not look at it, or not change it")


def _reporter() -> Callable[[Walked], None]:
    """Return a callback that prints the progress of a walk at intervals."""
    due = time.monotonic() + _PROGRESS_S

    def report(walked: Walked) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _PROGRESS_S
            progress(f"{walked.nodes} nodes, {walked.changed} changed")

    return report
