"""`bkspark cluster`: initialise a cluster, list its bookies and under-replicated ledgers, repair it.

The server's package (`bookie_service.replication`) reads and moves entries. This package must not import it: the
process is replaced by it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bkspark.cli.arguments import Commands, add_cluster, cluster_uri, key_value
from bkspark.cli.exec_process import exec_replacing_process
from bkspark.cli.output import print_facts, print_json, print_table
from bkspark.errors import ConfigurationError

if TYPE_CHECKING:
    from bkspark.metadata.tree import Tree
    from bkspark.metadata.uri import MetadataUri

_Result = TypeVar("_Result")
Run = Callable[[argparse.Namespace], int]


def add_parser(commands: Commands) -> None:
    """Add `bkspark cluster` and its commands."""
    group = commands.add_parser("cluster", help="make a cluster, look at its bookies, check and repair it")
    parsers = group.add_subparsers(metavar="COMMAND", required=True, dest="cluster_command")
    _add(parsers, "init", init, "make the metadata root of a new cluster; one that exists already stays as it is")
    _add(parsers, "bookies", bookies, "list the bookies and how they are")
    _add(parsers, "underreplicated", underreplicated, "list the ledgers that are known to lack copies")
    _add_repair(parsers, "check", "read every copy of every entry and say what is missing")
    recovering = _add_repair(parsers, "recover", "copy all that a stopped bookie held to other bookies")
    retiring = _add_repair(parsers, "decommission", "recover a stopped bookie's data, then forget the bookie")
    for parser in (recovering, retiring):
        parser.add_argument("bookie", metavar="ID", help="the bookie, as `bkspark cluster bookies` lists it")
    running = _add_repair(parsers, "autorecovery", "find lost bookies and restore what they held, until Ctrl-C")
    switch = running.add_mutually_exclusive_group()
    switch.add_argument("--enable", action="store_true", help="let the cluster's autorecovery work again, and end")
    switch.add_argument("--disable", action="store_true", help="stop all audits and repairs of the cluster, and end")
    switch.add_argument("--status", action="store_true", help="say whether it may work and who audits, and end")
    running.set_defaults(run=autorecovery)


def _add(parsers: Commands, name: str, run: Run, description: str) -> argparse.ArgumentParser:
    parser = parsers.add_parser(name, help=description, description=f"{description[0].upper()}{description[1:]}.")
    add_cluster(parser)
    parser.set_defaults(run=run)
    return parser


def _add_repair(parsers: Commands, name: str, description: str) -> argparse.ArgumentParser:
    parser = _add(parsers, name, repair, description)
    parser.add_argument("--config", type=Path, metavar="FILE", help="a file of Apache's bk_server.conf syntax and keys")
    parser.add_argument(
        "--set",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one configuration key, such as replicationRateByBytes=10000000; wins over the file",
    )
    return parser


# ---- what the server's package does ----


def repair(arguments: argparse.Namespace) -> int:
    """Replace this process by the program that reads and moves entries; returns never."""
    if arguments.config is not None and not arguments.config.is_file():
        raise ConfigurationError(f"--config {str(arguments.config)!r} is not a file; name a bk_server.conf")
    settings = dict(arguments.set)
    if arguments.uri or (arguments.config is None and "metadataServiceUri" not in settings):
        settings["metadataServiceUri"] = cluster_uri(arguments)
    bookie = [arguments.bookie] if "bookie" in arguments else []
    command = repair_command(arguments.cluster_command, *bookie, settings=settings, json=arguments.json)
    if arguments.config is not None:
        command[4:4] = ["--config", str(arguments.config)]
    exec_replacing_process(command)


def repair_command(name: str, *bookie: str, settings: dict[str, str], json: bool) -> list[str]:
    """Return the command line of autorecovery, a check, or the recovery or decommissioning of a bookie."""
    command = [sys.executable, "-m", "bookie_service.replication", name]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    command += ["--json"] if json else []
    return [*command, "--", *bookie] if bookie else command


# ---- what metadata tell ----


def autorecovery(arguments: argparse.Namespace) -> int:
    """Run autorecovery, or set or read the switch of all autorecovery processes of a cluster."""
    import asyncio

    if not (arguments.enable or arguments.disable or arguments.status):
        return repair(arguments)
    wanted = None if arguments.status else bool(arguments.enable)
    is_enabled, auditor = asyncio.run(_with_metadata(cluster_uri(arguments), _switch, wanted))
    facts = {"enabled": is_enabled, "auditor": auditor}
    if arguments.json:
        print_json(facts)
    else:
        print_facts(facts)
    return 0


async def _switch(metadata: _Metadata, enabled: bool | None) -> tuple[bool, str | None]:
    from bkspark.metadata.election import AuditorElection
    from bkspark.metadata.underreplication import UnderreplicationStore

    store = UnderreplicationStore(metadata.tree, metadata.uri)
    if enabled is not None:
        await store.prepare()
        await store.set_enabled(enabled)
    return await store.is_enabled(), await AuditorElection(metadata.tree, metadata.uri, "").auditor()


def bookies(arguments: argparse.Namespace) -> int:
    """List every bookie that serves, and those that have a cookie and do not."""
    import asyncio

    found = asyncio.run(_bookies(cluster_uri(arguments)))
    if arguments.json:
        print_json({"bookies": found})
    else:
        print_table(["bookie", "state", "free", "total"], [tuple(bookie.values()) for bookie in found])
    return 0


async def _bookies(uri: str) -> list[dict[str, Any]]:
    """Return every bookie; the serving ones are asked for their disk space concurrently."""
    import asyncio

    from bkspark.client import Client
    from bkspark.errors import BookKeeperError

    async with Client(uri) as client:
        context = await client.context()

        async def facts(bookie: str, state: str) -> dict[str, Any]:
            free = total = None
            if state != "down":
                # A bookie that does not answer is listed nevertheless: the list contains what is registered.
                with contextlib.suppress(BookKeeperError):
                    space = await (await context.pool.v3_channel(bookie)).disk_space()
                    free, total = space.free_bytes, space.total_bytes
            return {"id": bookie, "state": state, "free_bytes": free, "total_bytes": total}

        states = await context.registry.states()
        return await asyncio.gather(*(facts(bookie, state) for bookie, state in states.items()))


def underreplicated(arguments: argparse.Namespace) -> int:
    """List the under-replicated ledgers that auditors found."""
    import asyncio

    found = asyncio.run(_with_metadata(cluster_uri(arguments), _underreplicated))
    if arguments.json:
        print_json({"ledgers": found})
    else:
        print_table(["ledger", "missing", "since ms", "locked"], [tuple(ledger.values()) for ledger in found])
    return 0


async def _underreplicated(metadata: _Metadata) -> list[dict[str, Any]]:
    from bkspark.errors import MetadataFormat
    from bkspark.metadata.ledgers import read_manager
    from bkspark.metadata.underreplication import Underreplicated, UnderreplicationStore

    await read_manager(metadata.tree, metadata.uri.root, metadata.uri.manager)
    store = UnderreplicationStore(metadata.tree, metadata.uri)
    locked = await store.locked()
    listed: list[Underreplicated | None] = []
    async for ledger_id in store.ids():
        try:
            listed.append(await store.find(ledger_id))
        except MetadataFormat as error:
            print(error, file=sys.stderr, flush=True)
            listed.append(Underreplicated(ledger_id, (), 0, None))
    return [
        {
            "ledger": each.ledger_id,
            "missing": list(each.missing),
            "since_ms": each.ctime_ms,
            "locked": each.ledger_id in locked,
        }
        for each in listed
        if each is not None
    ]


def init(arguments: argparse.Namespace) -> int:
    """Make the root that --uri names and print the cluster's instance id."""
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
        MetadataError: ZooKeeper is unreachable, or the root holds something else.
    """
    return await _with_metadata(uri, _initialize)


async def _initialize(metadata: _Metadata) -> tuple[bool, str | None]:
    from bkspark.metadata.bookies import BookieRegistry

    registry = BookieRegistry(metadata.tree, metadata.uri)
    return await registry.initialize_cluster(), await registry.instance_id()


@dataclass(frozen=True)
class _Metadata:
    """A cluster's metadata store, connected."""

    tree: Tree
    uri: MetadataUri


async def _with_metadata(uri: str, act: Callable[..., Awaitable[_Result]], *arguments: object) -> _Result:
    """Return the result of `act` on the cluster's metadata store, which is connected meanwhile."""
    from bkspark.metadata.uri import MetadataUri
    from bkspark.metadata.zookeeper import open_tree

    parsed = MetadataUri.parse(uri)
    tree = await open_tree(parsed)
    try:
        return await act(_Metadata(tree, parsed), *arguments)
    finally:
        await tree.close()
