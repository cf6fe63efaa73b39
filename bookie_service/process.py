"""One bookie in the foreground: arguments -> options -> wiring -> run. The only place that wires.

Exit code 0 after SIGTERM or SIGINT; 1 when the bookie cannot start or had to end; 2 for wrong usage or configuration.
With --check and --rebuild-index no bookie runs: see `check` and `rebuild`. --collect sends a request to the running
bookie: see `control`. The last line on stderr names the error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

# numpy imports it at the first use of `unique`, for 20 ms of the event loop: before the bookie serves is better.
import numpy.ma  # noqa: F401

from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import read_manager
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Tree
from bkspark.metadata.zookeeper import open_tree
from bookie_service.admin import check, control, rebuild
from bookie_service.admin.shutdown import SIGNALS, ShutdownSignals
from bookie_service.cluster.identity import Identity
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.cluster.peers import ClusterPeers
from bookie_service.cluster.registration import Registration
from bookie_service.network import event_loop
from bookie_service.network.event_loop import TurnRecorder
from bookie_service.network.log_limit import LogLimiter
from bookie_service.service import BookieService, Repeating
from bookie_service.settings import address
from bookie_service.settings.address import BoundAddress
from bookie_service.settings.arguments import ServerParser, add_configuration, describe, fail
from bookie_service.settings.configuration import Configuration, load
from bookie_service.settings.file_limit import allowed_open_files
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.settings.users import current_user
from bookie_service.storage import layout
from bookie_service.storage.io.files import LocalFiles, make_private

logger = logging.getLogger("bookie_service")

_PROGRAM = "bookie"
_LOG_FLUSH_S = 1.0


def main(argv: Sequence[str], signals: ShutdownSignals) -> int:
    """Run a bookie until `signals` stops it; return the exit code."""
    limiter = _log_to_stderr()
    # kazoo logs every attempt to connect; our errors report the outcome.
    logging.getLogger("bkspark.kazoo").setLevel(logging.ERROR)
    try:
        arguments = _parser().parse_args(argv)
        if sys.flags.optimize:
            raise ConfigurationError("a bookie does not run under python -O: its assertions guard the data")
        configuration = load(arguments.config, arguments.set)
        recorder = _recorder()
        _check_user(configuration.permitted_users)
    except ConfigurationError as error:
        return fail(_PROGRAM, error, 2)
    if arguments.check:
        return check.run(configuration, arguments.json)
    make_private(group=configuration.file_group is not None)
    if arguments.rebuild_index is not None:
        return rebuild.run(configuration, arguments.rebuild_index, arguments.json)
    if arguments.collect:
        return control.run_collect(configuration.service.ledger_directories, arguments.json)
    if configuration.unused_keys:
        logger.warning("configuration keys without effect in this bookie: %s", ", ".join(configuration.unused_keys))
    for note in configuration.notes:
        logger.warning("%s", note)
    for danger in configuration.dangers:
        logger.warning("%s", danger)
    try:
        try:
            event_loop.run(_run(configuration, signals, arguments.json, limiter), recorder)
        finally:
            limiter.finish()
    except (BookKeeperError, OSError) as error:
        return fail(_PROGRAM, describe(error), 1)
    except MemoryError as error:
        return fail(_PROGRAM, f"out of memory ({error}): give the bookie more, or lower skipListSizeLimit", 1)
    if recorder is not None:
        logger.info(
            "the longest turn of the event loop took %.1f ms, and %.1f ms of processor time",
            recorder.longest_s * 1000,
            recorder.longest_processor_s * 1000,
        )
    return 0


def _recorder() -> TurnRecorder | None:
    text = os.environ.get(event_loop.SLOW_TURN_VARIABLE)
    try:
        return event_loop.recorder_of(text)
    except ValueError:
        raise ConfigurationError(f"{event_loop.SLOW_TURN_VARIABLE}={text}: it must be a number of ms above 0") from None


def _log_to_stderr() -> LogLimiter:
    """Log to stderr, and return the limit that keeps peers from filling the log."""
    handler = logging.StreamHandler(sys.stderr)
    limiter = LogLimiter(time.monotonic, handler.emit)
    handler.addFilter(limiter)
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    return limiter


def _check_user(permitted: Sequence[str]) -> None:
    """Raise ConfigurationError unless the user of this process may run the bookie."""
    user = current_user()
    if permitted and user not in permitted:
        raise ConfigurationError(f"permittedStartupUsers does not name the user {user!r}: start the bookie as another")


def _parser() -> argparse.ArgumentParser:
    parser = ServerParser(prog="bookie_service", description="Run one bookie until SIGINT or SIGTERM.")
    add_configuration(parser)
    parser.add_argument("--json", action="store_true", help='print {"id", "pid"} once registered and serving')
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--check", action="store_true", help="check the files of a stopped bookie instead, and end")
    instead.add_argument(
        "--rebuild-index",
        nargs="*",
        metavar="LEDGER",
        help="rebuild the index of a stopped bookie from its entry logs instead: of these ledgers, of `all`, or, "
        "without any, of those whose index is lost or damaged",
    )
    instead.add_argument("--collect", action="store_true", help="have the bookie that runs collect garbage instead")
    return parser


async def _run(configuration: Configuration, signals: ShutdownSignals, as_json: bool, limiter: LogLimiter) -> None:
    """Serve until a signal comes, or raise the error that ends the bookie."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    Repeating(loop, _LOG_FLUSH_S, limiter.flush)
    for number in SIGNALS:
        # The loop's own way wakes it, whichever thread takes the signal.
        loop.add_signal_handler(number, signals.request)
    bound = address.bind(configuration.address)
    try:
        async with contextlib.AsyncExitStack() as held:
            tree = await held.enter_async_context(_metadata(configuration))
            registry = BookieRegistry(tree, configuration.metadata_uri)
            files = await held.enter_async_context(_identified(configuration, registry, bound))
            service = BookieService(files, _within_file_limit(configuration.service))
            metadata_view = LedgerMetadataView(tree, configuration.metadata_uri, bound.bookie_id)
            await metadata_view.open()
            await service.start(bound.listener, metadata_view.ledgers_on_bookie)
            signals.stop_by(stopping.set)
            registration = Registration(
                registry,
                bound.bookie_id,
                BookieAddress(bound.host, bound.port),
                read_only=service.is_read_only,
            )
            peers = ClusterPeers(registry)
            peers.start()
            held.push_async_callback(peers.stop)
            service.cluster_addresses = lambda: peers.addresses
            service.on_mode_change = lambda: registration.change(read_only=service.is_read_only)
            try:
                await registration.enter()
                service.start_collecting(metadata_view)
                service.start_local_reads(bound.bookie_id)
                # The state may have changed before the registration existed.
                registration.change(read_only=service.is_read_only)
                async with (
                    control.serving(configuration.service.ledger_directories, service.collect_garbage),
                    _repairing(configuration, bound.bookie_id),
                ):
                    event_loop.spare_collections()
                    _announce(bound, as_json)
                    await _first_of(stopping, service.full, service.failed, registration.lost)
            except BaseException:
                service.abandon()
                raise
            await registration.leave()
            await service.stop()
            if service.full.done():
                raise service.full.result()
    finally:
        bound.listener.close()


def _within_file_limit(options: ServiceOptions) -> ServiceOptions:
    """Return the options with as many open files as the operating system allows beside all connections."""
    allowed = allowed_open_files(options.store.open_files_max, options.connections.all)
    return dataclasses.replace(options, store=dataclasses.replace(options.store, open_files_max=allowed))


@contextlib.asynccontextmanager
async def _metadata(configuration: Configuration) -> AsyncIterator[Tree]:
    timeout_s = configuration.session_timeout_s
    tree = await open_tree(configuration.metadata_uri, session_timeout_s=timeout_s, call_timeout_s=timeout_s)
    try:
        # Raises an error when there is no cluster at the root, before any directory is touched.
        await read_manager(tree, configuration.metadata_uri.root, configuration.metadata_uri.manager)
        yield tree
    finally:
        await tree.close()


@contextlib.asynccontextmanager
async def _identified(
    configuration: Configuration, registry: BookieRegistry, bound: BoundAddress
) -> AsyncIterator[LocalFiles]:
    files = LocalFiles(configuration.file_group)
    identity = Identity(files, configuration.service.journal_directories, configuration.service.ledger_directories)
    try:
        await identity.establish(registry, bound.bookie_id)
        _protect(files, configuration.service)
        yield files
    finally:
        identity.release()


def _protect(files: LocalFiles, options: ServiceOptions) -> None:
    """Restrict access to the directories; an older release, and Apache's bookies, leave them open to all users."""
    directories = dict.fromkeys(map(layout.current, [*options.journal_directories, *options.ledger_directories]))
    if said := [line for line in map(files.protect, directories) if line is not None]:
        logger.warning("%s", "; ".join(said))


@contextlib.asynccontextmanager
async def _repairing(configuration: Configuration, who: str) -> AsyncIterator[None]:
    """Run autorecovery meanwhile, if configured. Its errors never end the bookie."""
    if not configuration.runs_auto_recovery:
        yield
        return
    # Imported here: most bookies need neither it nor the client that it loads.
    from bookie_service.replication.autorecovery import AutoRecovery

    recovery = AutoRecovery.of_cluster(str(configuration.metadata_uri), who, configuration.auto_recovery)
    try:
        await recovery.start()
        yield
    finally:
        await recovery.stop()


def _announce(bound: BoundAddress, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"id": bound.bookie_id, "pid": os.getpid()}), flush=True)
    else:
        print(f"bookie {bound.bookie_id} serves at {bound.host}:{bound.port} (pid {os.getpid()})", flush=True)


async def _first_of(
    stopping: asyncio.Event, full: asyncio.Future[BaseException], *failures: asyncio.Future[BaseException]
) -> None:
    """Return on a request to stop, or when the disks are full; raise the first error of any part."""
    asked = asyncio.ensure_future(stopping.wait())
    awaited: list[asyncio.Future[Any]] = [asked, full, *failures]
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    for failure in failures:
        if failure.done():
            raise failure.result()
