"""`bkspark cluster`: initialise a cluster, list its bookies and under-replicated ledgers, repair it.

Commands that read or copy entries belong to the server's package (`bookie_service.replication`), which this one must
not import: this process is replaced by it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkspark.cli import acl, bookies, changes, cluster_metadata, health, plans, repairs, restart
from bkspark.cli.arguments import (
    Commands,
    add_command,
    add_environment,
    bookie_id,
    client_zookeeper,
    cluster_uri,
    excluded,
    key_value,
)
from bkspark.cli.bookie_http import add_http_token
from bkspark.cli.changes import record
from bkspark.cli.exec_process import exec_replacing_process
from bkspark.cli.output import print_json, print_table
from bkspark.errors import ConfigurationError

if TYPE_CHECKING:
    from bkspark.metadata.zookeeper_options import ZooKeeperOptions


def add_parser(commands: Commands) -> None:
    """Add `bkspark cluster` and its commands."""
    group = commands.add_parser("cluster", help="create a cluster, show its bookies, check and repair it")
    parsers = group.add_subparsers(metavar="COMMAND", required=True, dest="cluster_command")
    add_command(parsers, "init", init, "create the metadata root of a new cluster; an existing root is not changed")
    description = "list the bookies: whether they answer, or why not, with their disks, racks and versions"
    add_http_token(add_command(parsers, "bookies", bookies.bookies, description))
    asking = add_command(
        parsers, "health", health.health, "print whether the cluster is healthy, or why not; exit code 0 or 10"
    )
    health.add_arguments(asking)
    plans.add_parsers(parsers)
    changes.add_parser(parsers)
    cluster_metadata.add_parsers(parsers)
    acl.add_parsers(parsers)
    description = "restart bookies one after the other, each only when the cluster is healthy"
    restart.add_arguments(add_command(parsers, "restart", restart.restart, description))
    description = "list the ledgers that lack copies: why, which process repairs them, what is left to copy"
    repairs.add_listing_arguments(add_command(parsers, "underreplicated", repairs.underreplicated, description))
    _add_repair(parsers, "check", "read every copy of every entry, and print which are missing")
    _add_recovery(parsers)
    _add_drain(parsers)
    _add_autorecovery(parsers)


def _add_recovery(parsers: Commands) -> None:
    recovering = _add_repair(parsers, "recover", "replace the copies of a stopped bookie by copies on other bookies")
    retiring = _add_repair(parsers, "decommission", "do the same as recover, then remove the bookie from the cluster")
    for parser in (recovering, retiring):
        parser.add_argument("bookie", type=bookie_id, metavar="ID", help="id, as `bkspark cluster bookies` prints it")
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="print what would be copied, and change nothing; exit code 10: ledgers have no spare bookie",
        )
        parser.add_argument("--skip-open", action="store_true", help="do not copy open ledgers")
        parser.add_argument("--skip-failing", action="store_true", help="give up ledgers whose repair fails repeatedly")


def _add_drain(parsers: Commands) -> None:
    draining = _add_repair(parsers, "drain", "copy all that a running bookie holds to others, before it is stopped")
    draining.add_argument("bookie", type=bookie_id, metavar="ID", help="id, as `bkspark cluster bookies` prints it")
    draining.add_argument("--rate", metavar="BYTES", help="copy at most this many bytes per second")
    draining.add_argument(
        "--close-open", action="store_true", help="close open ledgers whose writer does not replace the bookie"
    )
    draining.add_argument("--reason", help="why, for other operators and the audit log")
    doing = draining.add_mutually_exclusive_group()
    doing.add_argument(
        "--resume", action="store_true", help="continue a drain that was started before; do not start a new one"
    )
    doing.add_argument(
        "--plan",
        "--dry-run",
        action="store_true",
        help="print what would be copied, and change nothing; exit code 10: ledgers have no spare bookie",
    )
    doing.add_argument(
        "--status", action="store_true", help="print the progress; with --rate, change the rate of a running drain"
    )
    doing.add_argument("--cancel", action="store_true", help="end the drain: the bookie accepts entries again")


def _add_autorecovery(parsers: Commands) -> None:
    running = _add_repair(parsers, "autorecovery", "find lost bookies and replace their copies, until Ctrl-C")
    repairs.add_switches(running)
    running.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="lowest level that is logged"
    )
    running.add_argument("--log-format", choices=("text", "json"), help="format of log lines")
    running.set_defaults(run=autorecovery)


def _add_repair(parsers: Commands, name: str, description: str) -> argparse.ArgumentParser:
    parser = add_command(parsers, name, repair, description)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a file with the syntax and keys of Apache's bk_server.conf"
    )
    add_environment(parser)
    parser.add_argument(
        "--set",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one configuration key, such as replicationRateByBytes=10000000; overrides the file",
    )
    return parser


# ---- commands of the server's package ----


def repair(arguments: argparse.Namespace) -> int:
    """Replace this process by the program that reads or copies entries; never returns."""
    if arguments.config is not None and not arguments.config.is_file():
        raise ConfigurationError(f"--config {str(arguments.config)!r} is not a file; name a bk_server.conf")
    settings = dict(arguments.set)
    elsewhere = arguments.config is not None or arguments.environment
    if arguments.uri or not (elsewhere or "metadataServiceUri" in settings):
        settings["metadataServiceUri"] = cluster_uri(arguments)
    bookie = [arguments.bookie] if "bookie" in arguments else []
    command = repair_command(arguments.cluster_command, *bookie, settings=settings, json=arguments.json)
    config = arguments.config or arguments.client_config
    options = ["--config", str(config)] if config else []
    options += ["--environment"] if arguments.environment else []
    command[4:4] = [*options, *_own_options(arguments)]
    exec_replacing_process(command)


def _own_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options that only one of the commands has."""
    match arguments.cluster_command:
        case "drain":
            return _drain_options(arguments)
        case "recover" | "decommission":
            switches = ("dry-run", "skip-open", "skip-failing")
            return [f"--{name}" for name in switches if getattr(arguments, name.replace("-", "_"))]
        case "autorecovery":
            logs = (("logLevel", arguments.log_level), ("logFormat", arguments.log_format))
            return [word for key, value in logs if value is not None for word in ("--set", f"{key}={value}")]
    return []


def _drain_options(arguments: argparse.Namespace) -> list[str]:
    """Raises ConfigurationError for options that exclude each other."""
    for given, ignored in (("status", ("close_open", "reason")), ("cancel", ("rate", "close_open", "reason"))):
        if getattr(arguments, given):
            excluded(arguments, given, *ignored)
    options = [f"--{name}" for name in ("resume", "plan", "status", "cancel") if getattr(arguments, name)]
    options += ["--close-open"] if arguments.close_open else []
    return options + [f"--{name}={value}" for name in ("rate", "reason") if (value := getattr(arguments, name))]


def repair_command(name: str, *bookie: str, settings: dict[str, str], json: bool) -> list[str]:
    """Return the command line of autorecovery, a check, or the recovery or decommissioning of a bookie."""
    command = [sys.executable, "-m", "bookie_service.replication", name]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    command += ["--json"] if json else []
    return [*command, "--", *bookie] if bookie else command


# ---- commands on metadata ----


def autorecovery(arguments: argparse.Namespace) -> int:
    """Run autorecovery, or set or read the switches of all autorecovery processes of a cluster."""
    is_question = arguments.enable or arguments.disable or arguments.status or arguments.rate is not None
    return repairs.switch(arguments) if is_question else repair(arguments)


def init(arguments: argparse.Namespace) -> int:
    """Create the cluster root that --uri names, and print the cluster's instance id."""
    import asyncio

    uri = cluster_uri(arguments)
    created, instance_id = asyncio.run(initialize(uri, client_zookeeper(arguments), is_recorded=True))
    facts: dict[str, Any] = {"uri": uri, "created": created, "instance_id": instance_id}
    if arguments.json:
        print_json(facts)
    else:
        print_table(list(facts), [tuple(facts.values())])
    return 0


async def initialize(
    uri: str, zookeeper: ZooKeeperOptions | None = None, *, is_recorded: bool = False
) -> tuple[bool, str | None]:
    """Create the cluster root at `uri` unless it exists; return (whether it was created, the cluster's instance id).

    `is_recorded`: in the audit log of commands.

    Raises:
        ConfigurationError: the URI is wrong, or a file that the options name.
        MetadataError: ZooKeeper is unreachable, or the root holds something else.
    """
    from bkspark.metadata.bookies import BookieRegistry
    from bkspark.metadata.uri import MetadataUri
    from bkspark.metadata.zookeeper import open_tree

    parsed = MetadataUri.parse(uri)
    tree = await open_tree(parsed) if zookeeper is None else await open_tree(parsed, zookeeper)
    try:
        registry = BookieRegistry(tree, parsed)
        created, instance_id = await registry.initialize_cluster(), await registry.instance_id()
        if created and is_recorded:
            await record(tree, parsed, f"make the metadata root of cluster {instance_id}")
        return created, instance_id
    finally:
        await tree.close()
