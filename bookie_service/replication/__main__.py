"""Repair from the command line; `bkspark cluster` becomes this program.

    python -m bookie_service.replication autorecovery|check|decommission ID|recover ID
        [--config FILE] [--set key=value]... [--json]

Exit code 0; 1 when something failed or, of a check, something is missing; 2 for wrong usage or configuration. Progress
goes to stderr, and what went wrong is the last line there.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from bkspark.client.client import Client
from bkspark.errors import BookKeeperError, ConfigurationError
from bookie_service.arguments import Parser, add_configuration, describe, fail
from bookie_service.configuration import Configuration, load
from bookie_service.replication.autorecovery import AutoRecovery, Cluster
from bookie_service.replication.operations import check_cluster, decommission, move_away, this_process

_PROGRAM = "bkspark cluster"


def main(argv: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("bkspark.kazoo").setLevel(logging.ERROR)
    try:
        arguments = _parser().parse_args(argv)
        configuration = load(arguments.config, arguments.set)
        return asyncio.run(_COMMANDS[arguments.command](arguments, configuration))
    except ConfigurationError as error:
        return fail(_PROGRAM, error, 2)
    except (BookKeeperError, OSError) as error:
        return fail(_PROGRAM, describe(error), 1)
    except KeyboardInterrupt:
        return fail(_PROGRAM, "interrupted", 1)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog=_PROGRAM)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for name in _COMMANDS:
        command = commands.add_parser(name)
        if name in ("decommission", "recover"):
            command.add_argument("bookie", metavar="ID")
        add_configuration(command)
        command.add_argument("--json", action="store_true", help="print JSON for programs on stdout")
    return parser


async def _autorecovery(arguments: argparse.Namespace, configuration: Configuration) -> int:
    """Repair until a signal comes."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    recovery = AutoRecovery.of_cluster(str(configuration.metadata_uri), this_process(), configuration.auto_recovery)
    asked = asyncio.ensure_future(stopping.wait())
    try:
        await recovery.start()
        facts = {"id": this_process(), "pid": os.getpid()}
        _tell(arguments, facts, f"autorecovery of {configuration.metadata_uri} runs (pid {os.getpid()})")
        await asyncio.wait([asked, recovery.failed], return_when=asyncio.FIRST_COMPLETED)
        if recovery.failed.done():
            raise recovery.failed.result()
    finally:
        asked.cancel()
        await recovery.stop()
    return 0


async def _check(arguments: argparse.Namespace, configuration: Configuration) -> int:
    async with _client(configuration) as client:
        result = await check_cluster(await Cluster.of(client), configuration.auto_recovery, _progress)
    facts = {
        "ledgers": result.ledgers,
        "underreplicated": result.underreplicated,
        "missing_entries": result.missing_entries,
        "missing_copies": result.missing_copies,
        "unreadable": result.unreadable,
        "lacking": [{"ledger": ledger_id, **dataclasses.asdict(lack)} for ledger_id, lack in result.lacking],
        "ok": result.ok,
    }
    missing = f"{result.underreplicated} of {result.ledgers} ledgers lack {result.missing_copies} copies; "
    lost = f"{result.missing_entries} entries have no copy at all; {result.unreadable} ledgers cannot be looked at"
    _tell(arguments, facts, f"{result.ledgers} ledgers, nothing is missing" if result.ok else missing + lost)
    return 0 if result.ok else 1


async def _decommission(arguments: argparse.Namespace, configuration: Configuration) -> int:
    async with _client(configuration) as client:
        cluster = await Cluster.of(client)
        moved = await decommission(cluster, arguments.bookie, configuration.auto_recovery, _progress)
    facts = {"bookie": arguments.bookie, "ledgers": moved, "decommissioned": True}
    _tell(arguments, facts, f"bookie {arguments.bookie} is decommissioned, {moved} ledgers were moved")
    return 0


async def _recover(arguments: argparse.Namespace, configuration: Configuration) -> int:
    async with _client(configuration) as client:
        cluster = await Cluster.of(client)
        moved = await move_away(cluster, arguments.bookie, configuration.auto_recovery, _progress)
    facts = {"bookie": arguments.bookie, "ledgers": moved}
    _tell(arguments, facts, f"no ledger needs bookie {arguments.bookie} any more, {moved} were moved")
    return 0


_COMMANDS = {"autorecovery": _autorecovery, "check": _check, "decommission": _decommission, "recover": _recover}


def _client(configuration: Configuration) -> Client:
    return Client(str(configuration.metadata_uri))


def _tell(arguments: argparse.Namespace, facts: dict[str, Any], sentence: str) -> None:
    print(json.dumps(facts) if arguments.json else sentence, flush=True)


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
