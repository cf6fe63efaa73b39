"""`bkspark cluster init`: make the metadata root of a new cluster, as Apache's `initnewcluster` does."""

from __future__ import annotations

import argparse
from typing import Any

from bkspark.cli.arguments import add_cluster, cluster_uri
from bkspark.cli.output import print_json, print_table


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add `bkspark cluster` and its commands."""
    group = commands.add_parser("cluster", help="make the metadata root of a new cluster")
    parsers = group.add_subparsers(metavar="COMMAND", required=True, dest="cluster_command")
    description = "Make the metadata root of a new cluster; one that exists already stays as it is."
    initializing = parsers.add_parser("init", help="make the metadata root of a new cluster", description=description)
    add_cluster(initializing)
    initializing.set_defaults(run=init)


def init(arguments: argparse.Namespace) -> int:
    """Make the root that --uri names and say what the cluster is called."""
    import asyncio

    uri = cluster_uri(arguments)
    created, instance_id = asyncio.run(initialize(uri))
    facts: dict[str, Any] = {"uri": uri, "created": created, "instance_id": instance_id}
    if arguments.json:
        print_json(facts)
    else:
        print_table(list(facts), [tuple(facts.values())])
    return 0


async def initialize(uri: str) -> tuple[bool, str | None]:
    """Make the cluster root at `uri` unless it is there; return (whether it was made, the cluster's instance id).

    Raises:
        ConfigurationError: the URI is wrong.
        MetadataError: ZooKeeper is away, or something else stands at the root.
    """
    from bkspark.metadata.bookies import BookieRegistry
    from bkspark.metadata.uri import MetadataUri
    from bkspark.metadata.zookeeper import open_tree

    parsed = MetadataUri.parse(uri)
    tree = await open_tree(parsed)
    try:
        registry = BookieRegistry(tree, parsed)
        return await registry.initialize_cluster(), await registry.instance_id()
    finally:
        await tree.close()
