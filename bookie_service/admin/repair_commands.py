"""Repair from the command line: reads arguments and configuration, and runs one command to its end or until a signal.

Exit code 0; 1 if something failed, was interrupted or, in a check, is missing; 2 for wrong usage or configuration.
Progress goes to stderr; the last line there names the error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.ledger import Cluster
from bkspark.log_limit import FLUSH_S, LogLimiter
from bkspark.net.pool import NetOptions
from bkspark.security.roles import Role
from bookie_service.admin import drain_command, log_output
from bookie_service.admin.command_audit import commanded
from bookie_service.admin.command_output import print_progress, print_result
from bookie_service.admin.http.api_v1 import ConfigurationApi, add_without_bookie
from bookie_service.admin.http.api_v2 import ApiV2
from bookie_service.admin.http.cluster_v1 import ClusterApi
from bookie_service.admin.http.face import http_serving
from bookie_service.admin.http.routing import Routes, heartbeat
from bookie_service.admin.service_manager import ServiceManager
from bookie_service.admin.shutdown import SIGNALS, ShutdownSignals
from bookie_service.metrics.families import Registry
from bookie_service.operation.changes import Changes
from bookie_service.operation.live_keys import LiveKeys
from bookie_service.operation.long_operations import LongOperations
from bookie_service.operation.process_metrics import process_families
from bookie_service.replication.autorecovery import AutoRecovery, RepairedCluster
from bookie_service.replication.cluster_commands import ClusterCommands
from bookie_service.replication.drain import preview_of
from bookie_service.replication.operations import (
    NO_SKIPS,
    Skips,
    check_cluster,
    check_is_down,
    decommission,
    move_away,
    repair_ledger,
    this_process,
)
from bookie_service.replication.recovery_metrics import recovery_families
from bookie_service.service import Repeating
from bookie_service.settings.arguments import (
    ServerParser,
    add_configuration,
    describe,
    fail,
    run_reported,
    settings,
    whole_number,
)
from bookie_service.settings.configuration import Configuration, load

logger = logging.getLogger(__name__)

PROGRAM = "bkspark cluster"

_REPAIRING = "repairing"
NICENESS = 10
"""The niceness of a process that repairs, because bookies and clients on the same machine have priority."""


def main(argv: Sequence[str], signals: ShutdownSignals) -> int:
    """Run one command until it is done or `signals` stops it; return the exit code."""
    return run_reported(PROGRAM, lambda: _main(argv, signals))


def _main(argv: Sequence[str], signals: ShutdownSignals) -> int:
    limiter = log_output.log_to_stderr()
    try:
        arguments = argument_parser().parse_args(argv)
        log_output.use_given(dict(settings(arguments)))
        configuration = load(arguments.config, settings(arguments), log_output.use_given)
        log_output.use(configuration.log_level, configuration.log_format)
        command = _COMMANDS[arguments.command]
        try:
            return asyncio.run(_logged(limiter, lambda: command(arguments, configuration, signals)))
        finally:
            limiter.finish()
    except ConfigurationError as error:
        return log_output.report_end(PROGRAM, error, 2)
    except (BookKeeperError, OSError) as error:
        return log_output.report_end(PROGRAM, describe(error), 1)


async def _logged(limiter: LogLimiter, command: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Carry out a command; meanwhile repeated lines of the log are summed up."""
    Repeating(asyncio.get_running_loop(), FLUSH_S, limiter.flush)
    return await command()


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments of the commands that repair a bookie's files."""
    parser = ServerParser(prog=PROGRAM)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for name in _COMMANDS:
        command = commands.add_parser(name)
        if name in ("decommission", "recover"):
            command.add_argument("bookie", metavar="ID")
            command.add_argument(
                "--dry-run", action="store_true", help="print what would be copied, and change nothing"
            )
            command.add_argument("--skip-open", action="store_true", help="do not copy open ledgers")
            command.add_argument(
                "--skip-failing", action="store_true", help="give up ledgers whose repair fails repeatedly"
            )
        if name == "repair":
            command.add_argument("ledger", type=whole_number, metavar="LEDGER")
        if name == "drain":
            drain_command.add_arguments(command)
        add_configuration(command)
        command.add_argument("--json", action="store_true", help="print JSON for programs on stdout")
    return parser


async def _autorecovery(arguments: argparse.Namespace, configuration: Configuration, signals: ShutdownSignals) -> int:
    """Repair until a signal comes."""
    os.nice(NICENESS)
    _take_signals(signals)
    stopping, held, manager = asyncio.Event(), contextlib.AsyncExitStack(), ServiceManager()
    uri, who = str(configuration.metadata_uri), this_process()
    log_output.log_start("autorecovery", configuration, worker=who)
    recovery = AutoRecovery.of_cluster(uri, who, configuration.auto_recovery)
    commands = ClusterCommands(uri, who, configuration.auto_recovery)
    operations, registry = LongOperations(), Registry()
    defects: list[BaseException] = []

    def end_with(defect: BaseException) -> None:
        defects.append(defect)
        stopping.set()

    keys = LiveKeys(configuration, arguments.config, dict(settings(arguments)), Changes(end_with))
    keys.parts += [lambda new: log_output.set_level(new.log_level), lambda new: recovery.set_options(new.auto_recovery)]
    registry.add(functools.partial(recovery_families, recovery, ""))
    registry.add(process_families)

    def add_api(routes: Routes) -> None:
        routes.add("GET PUT POST DELETE", "/heartbeat", heartbeat, role=Role.NONE)
        ConfigurationApi(keys).add_to(routes)
        add_without_bookie(routes)
        ClusterApi(commands, operations).add_to(routes)
        ApiV2(commands, operations).add_to(routes)

    try:
        await recovery.start()
        ports = await held.enter_async_context(
            http_serving(configuration.http, registry, _at_once, add_api, (socket.gethostname(),))
        )
        signals.stop_by(stopping.set)
        at = "".join(f", {what} at {place}" for what, place in ports.shown().items())
        logger.info("autorecovery works%s", at, extra={"event": "serving", "attributes": ports.shown()})
        facts = {"id": this_process(), "pid": os.getpid(), **ports.facts()}
        print_result(
            facts, f"autorecovery of {configuration.metadata_uri} runs (pid {os.getpid()})", as_json=arguments.json
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, keys, manager)
        manager.ready(_REPAIRING)
        await stopping.wait()
        if defects:
            raise defects[0]
        why = "a signal requested it"
        manager.stopping(why)
        logger.info("autorecovery stops: %s", why, extra={"event": "stop", "attributes": {"reason": why}})
        began = time.monotonic()
    finally:
        await held.aclose()
        await operations.close()
        await commands.close()
        await recovery.stop()
    logger.info("autorecovery has stopped in order, after %.1f s", time.monotonic() - began)
    return 0


def _reload(keys: LiveKeys, manager: ServiceManager) -> None:
    """Read the configuration again: SIGHUP."""
    manager.reloading()
    keys.reload_by_signal()
    manager.ready(_REPAIRING)


async def _at_once() -> None:
    """Prepare a scrape: nothing needs to be prepared."""


async def _once(
    command: Callable[[RepairedCluster, argparse.Namespace, Configuration], Coroutine[Any, Any, int]],
    arguments: argparse.Namespace,
    configuration: Configuration,
    signals: ShutdownSignals,
) -> int:
    """Carry out an operator's command. A signal ends it in order, so locks are released at once."""
    _take_signals(signals)
    net = NetOptions(tls=configuration.auto_recovery.tls, sasl=configuration.auto_recovery.sasl)
    async with Cluster(str(configuration.metadata_uri), net=net, zookeeper=configuration.zookeeper) as cluster:
        doing = asyncio.ensure_future(command(await RepairedCluster.of(cluster), arguments, configuration))
        signals.stop_by(doing.cancel)
        await asyncio.wait([doing])
        return fail(PROGRAM, "interrupted", 1) if doing.cancelled() else doing.result()


def _take_signals(signals: ShutdownSignals) -> None:
    for number in SIGNALS:
        # The loop's own handler wakes the loop, whichever thread gets the signal.
        asyncio.get_running_loop().add_signal_handler(number, signals.request)


async def _check(cluster: RepairedCluster, arguments: argparse.Namespace, configuration: Configuration) -> int:
    result = await check_cluster(cluster, configuration.auto_recovery, print_progress)
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
    lost = f"{result.missing_entries} entries have no copy at all; {result.unreadable} ledgers cannot be checked"
    print_result(
        facts, f"{result.ledgers} ledgers, nothing is missing" if result.ok else missing + lost, as_json=arguments.json
    )
    return 0 if result.ok else 1


async def _decommission(cluster: RepairedCluster, arguments: argparse.Namespace, configuration: Configuration) -> int:
    await check_is_down(cluster, arguments.bookie)
    if arguments.dry_run:
        return await _preview(cluster, arguments)
    await commanded(cluster, f"decommission bookie {arguments.bookie}", bookie=arguments.bookie)
    moved = await decommission(
        cluster, arguments.bookie, configuration.auto_recovery, print_progress, _skips(arguments)
    )
    facts = {"bookie": arguments.bookie, "ledgers": moved, "decommissioned": True}
    print_result(
        facts, f"bookie {arguments.bookie} is decommissioned, {moved} ledgers were moved", as_json=arguments.json
    )
    return 0


async def _repair(cluster: RepairedCluster, arguments: argparse.Namespace, configuration: Configuration) -> int:
    await cluster.context.ledgers.read(arguments.ledger)  # a ledger that does not exist must not leave a record
    await commanded(cluster, f"repair ledger {arguments.ledger}", ledger_id=arguments.ledger)
    found = await repair_ledger(cluster, arguments.ledger, configuration.auto_recovery)
    facts = {"ledger": arguments.ledger, "missing_copies": found.copies, "bookies": list(found.bookies)}
    bookies = ", ".join(found.bookies)
    what = f"lacked {found.copies} copies at {bookies}, and is repaired" if found.copies else "lacks nothing"
    print_result(facts, f"ledger {arguments.ledger} {what}", as_json=arguments.json)
    return 0


async def _recover(cluster: RepairedCluster, arguments: argparse.Namespace, configuration: Configuration) -> int:
    await check_is_down(cluster, arguments.bookie)
    if arguments.dry_run:
        return await _preview(cluster, arguments)
    await commanded(cluster, f"recover bookie {arguments.bookie}", bookie=arguments.bookie)
    skips = _skips(arguments)
    moved = await move_away(cluster, arguments.bookie, configuration.auto_recovery, print_progress, skips)
    facts = {"bookie": arguments.bookie, "ledgers": moved}
    which = "no ledger" if skips == NO_SKIPS else "no ledger that was not skipped"
    print_result(facts, f"{which} needs bookie {arguments.bookie} any more, {moved} were moved", as_json=arguments.json)
    return 0


def _skips(arguments: argparse.Namespace) -> Skips:
    return Skips(open=arguments.skip_open, failing=arguments.skip_failing)


async def _preview(cluster: RepairedCluster, arguments: argparse.Namespace) -> int:
    """Print what would be copied from the other copies of a stopped bookie's ledgers; return the exit code."""
    preview = await preview_of(cluster, arguments.bookie)
    facts = {"bookie": arguments.bookie, **dataclasses.asdict(preview), "dry_run": True}
    print_result(facts, drain_command.shown(arguments.bookie, preview), as_json=arguments.json)
    return 0 if preview.is_possible else drain_command.IMPOSSIBLE


_Command = Callable[[argparse.Namespace, Configuration, ShutdownSignals], Coroutine[Any, Any, int]]
_COMMANDS: dict[str, _Command] = {
    "autorecovery": _autorecovery,
    "check": functools.partial(_once, _check),
    "decommission": functools.partial(_once, _decommission),
    "drain": functools.partial(_once, drain_command.drain),
    "recover": functools.partial(_once, _recover),
    "repair": functools.partial(_once, _repair),
}
