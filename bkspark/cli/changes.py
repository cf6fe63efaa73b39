"""The audit log of commands: their changes in the metadata store, and `bkspark cluster changes`, which lists them.

Changes that a bookie makes for a command are in that bookie's log instead.
"""

from __future__ import annotations

import argparse
import getpass
import socket
import time
from typing import TYPE_CHECKING

from bkspark.cli.arguments import Commands, add_cluster, client_net, client_zookeeper, cluster_uri, positive
from bkspark.cli.output import print_json, print_table
from bkspark.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from bkspark import blocking
    from bkspark.client import Client
    from bkspark.metadata.tree import Tree
    from bkspark.metadata.uri import MetadataUri

SHOWN = 100


def add_parser(parsers: Commands) -> None:
    """Add `bkspark cluster changes`."""
    description = "list the last changes that commands made in the metadata store: who, when and what"
    parser = parsers.add_parser("changes", help=description, description=f"{description[0].upper()}{description[1:]}.")
    parser.add_argument(
        "--limit", type=positive, default=SHOWN, metavar="N", help=f"number of changes to show (default: {SHOWN})"
    )
    add_cluster(parser)
    parser.set_defaults(run=changes)


def this_operator() -> str:
    """Return who runs this command, for audit logs: user@host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


async def record(tree: Tree, uri: MetadataUri, change: str, *, is_made: bool = True) -> None:
    """Record a change that this command has made, or (`is_made` False) is about to make.

    Raises:
        MetadataError: there is no record. The message says whether the change is made.
    """
    from bkspark.errors import MetadataError
    from bkspark.metadata.change_records import ChangeRecord, ChangeRecords

    made = ChangeRecord(wall_clock_ms(), f"command:{this_operator()}", change)
    try:
        await ChangeRecords(tree, uri).add(made)
    except MetadataError as error:
        done = "done" if is_made else "not done"
        failed = MetadataError if error.is_outage else MetadataError.answer
        raise failed(f"{done}: {change}; the audit log of commands has no record of it: {error}") from error


async def record_by(client: Client, change: str, *, is_made: bool = True) -> None:
    """Do as `record` by the connection of a client. Raises MetadataError."""
    await record(await client.tree(), client.uri, change, is_made=is_made)


def record_blocking(client: blocking.Client, change: str) -> None:
    """Record a change by the connection of a blocking client. Raises MetadataError."""
    from bkspark.blocking import run

    async def write() -> None:
        await record_by(client.asynchronous, change)

    run(write)


def changes(arguments: argparse.Namespace) -> int:
    """List the last changes, the latest first."""
    import asyncio

    found = asyncio.run(_latest(arguments))
    if arguments.json:
        print_json({"changes": found})
    else:
        print_table(["when", "by", "change"], [(_when(each["at_ms"]), each["who"], each["change"]) for each in found])
    return 0


async def _latest(arguments: argparse.Namespace) -> list[dict[str, object]]:
    import dataclasses

    from bkspark.client import Client
    from bkspark.metadata.change_records import ChangeRecords

    net, zookeeper = client_net(arguments), client_zookeeper(arguments)
    async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
        found = await ChangeRecords(await client.tree(), client.uri).latest(arguments.limit)
    return [dataclasses.asdict(each) for each in found]


def _when(at_ms: object) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(int(str(at_ms)) / 1000))
