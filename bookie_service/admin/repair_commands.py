"""Repair from the command line: arguments -> configuration -> one command, which runs to its end or until a signal.

Exit code 0; 1 when something failed, was interrupted or, in a check, is missing; 2 for wrong usage or configuration.
Progress goes to stderr; the last line there names the error.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.ledger import Cluster
from bookie_service.admin.shutdown import SIGNALS, ShutdownSignals
from bookie_service.replication.autorecovery import AutoRecovery, RepairedCluster
from bookie_service.replication.operations import check_cluster, decommission, move_away, this_process
from bookie_service.settings.arguments import ServerParser, add_configuration, describe, fail
from bookie_service.settings.configuration import Configuration, load

PROGRAM = "bkspark cluster"

NICENESS = 10
"""Niceness of the process that repairs: bookies and clients on the same machine have priority."""


def main(argv: Sequence[str], signals: ShutdownSignals) -> int:
    """Run one command until it is done or `signals` stops it; return the exit code."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("bkspark.kazoo").setLevel(logging.ERROR)
    try:
        arguments = _parser().parse_args(argv)
        configuration = load(arguments.config, arguments.set)
        return asyncio.run(_COMMANDS[arguments.command](arguments, configuration, signals))
    except ConfigurationError as error:
        return fail(PROGRAM, error, 2)
    except (BookKeeperError, OSError) as error:
        return fail(PROGRAM, describe(error), 1)


def _parser() -> argparse.ArgumentParser:
    parser = ServerParser(prog=PROGRAM)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for name in _COMMANDS:
        command = commands.add_parser(name)
        if name in ("decommission", "recover"):
            command.add_argument("bookie", metavar="ID")
        add_configuration(command)
        command.add_argument("--json", action="store_true", help="print JSON for programs on stdout")
    return parser


async def _autorecovery(arguments: argparse.Namespace, configuration: Configuration, signals: ShutdownSignals) -> int:
    """Repair until a signal comes."""
    os.nice(NICENESS)
    _take_signals(signals)
    stopping = asyncio.Event()
    recovery = AutoRecovery.of_cluster(str(configuration.metadata_uri), this_process(), configuration.auto_recovery)
    try:
        await recovery.start()
        signals.stop_by(stopping.set)
        facts = {"id": this_process(), "pid": os.getpid()}
        _tell(arguments, facts, f"autorecovery of {configuration.metadata_uri} runs (pid {os.getpid()})")
        await stopping.wait()
    finally:
        await recovery.stop()
    return 0


async def _once(
    command: Callable[[RepairedCluster, argparse.Namespace, Configuration], Coroutine[Any, Any, int]],
    arguments: argparse.Namespace,
    configuration: Configuration,
    signals: ShutdownSignals,
) -> int:
    """Carry out an operator's command; a signal ends it in order, so that locks are released at once."""
    _take_signals(signals)
    async with Cluster(str(configuration.metadata_uri)) as cluster:
        doing = asyncio.ensure_future(command(await RepairedCluster.of(cluster), arguments, configuration))
        signals.stop_by(doing.cancel)
        await asyncio.wait([doing])
        return fail(PROGRAM, "interrupted", 1) if doing.cancelled() else doing.result()


def _take_signals(signals: ShutdownSignals) -> None:
    for number in SIGNALS:
        # The loop's own way wakes it, whichever thread takes the signal.
        asyncio.get_running_loop().add_signal_handler(number, signals.request)


async def _check(cluster: RepairedCluster, arguments: argparse.Namespace, configuration: Configuration) -> int:
    result = await check_cluster(cluster, configuration.auto_recovery, _progress)
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


async def _decommission(cluster: RepairedCluster, arguments: argparse.Namespace, configuration: Configuration) -> int:
    moved = await decommission(cluster, arguments.bookie, configuration.auto_recovery, _progress)
    facts = {"bookie": arguments.bookie, "ledgers": moved, "decommissioned": True}
    _tell(arguments, facts, f"bookie {arguments.bookie} is decommissioned, {moved} ledgers were moved")
    return 0


async def _recover(cluster: RepairedCluster, arguments: argparse.Namespace, configuration: Configuration) -> int:
    moved = await move_away(cluster, arguments.bookie, configuration.auto_recovery, _progress)
    facts = {"bookie": arguments.bookie, "ledgers": moved}
    _tell(arguments, facts, f"no ledger needs bookie {arguments.bookie} any more, {moved} were moved")
    return 0


_Command = Callable[[argparse.Namespace, Configuration, ShutdownSignals], Coroutine[Any, Any, int]]
_COMMANDS: dict[str, _Command] = {
    "autorecovery": _autorecovery,
    "check": functools.partial(_once, _check),
    "decommission": functools.partial(_once, _decommission),
    "recover": functools.partial(_once, _recover),
}


def _tell(arguments: argparse.Namespace, facts: dict[str, Any], sentence: str) -> None:
    print(json.dumps(facts) if arguments.json else sentence, flush=True)


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
