"""Builds the parts of one bookie's process, and runs them. No other module wires them.

The parts are made in this order, and end in the opposite order: the metadata session, the locked directories, the
storage's service, the HTTP server. Then the journal is replayed, the bookie is registered, and it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# numpy imports it at the first use of `unique`, which takes 20 ms of the event loop: better before the bookie serves.
import numpy.ma  # noqa: F401

from bkspark.errors import ConfigurationError
from bkspark.log_limit import FLUSH_S, LogLimiter
from bkspark.metadata import registration as registration_data
from bkspark.metadata.bookie_plans import BookiePlans
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import read_manager
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Tree
from bkspark.metadata.zookeeper import open_tree
from bkspark.security.authorization import ADMIN
from bkspark.tasks import start_kept
from bkspark.version import VERSION
from bookie_service.admin import control, log_output, trace_output
from bookie_service.admin.http.api_v1 import BookieApi
from bookie_service.admin.http.authorization import HttpPermit
from bookie_service.admin.http.face import Ports, http_serving
from bookie_service.admin.http.routing import Permit, Routes
from bookie_service.admin.live_commands import LiveCommands
from bookie_service.admin.service_manager import ServiceManager
from bookie_service.admin.shutdown import SIGNALS, ShutdownSignals
from bookie_service.cluster.identity import Identity
from bookie_service.cluster.ledger_lookups import LedgerLookups
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.cluster.peers import ClusterPeers
from bookie_service.cluster.plan_follower import PlanFollower
from bookie_service.cluster.registration import Registration
from bookie_service.engine.authorization import Authorization
from bookie_service.metrics.families import Registry
from bookie_service.network import event_loop
from bookie_service.operation.authorization import RulesFollower, log_kept, log_refusal
from bookie_service.operation.bookie_metrics import BookieMetrics
from bookie_service.operation.bookie_operator import RESTARTED_FOR, BookieOperator, as_json
from bookie_service.operation.changes import Changes
from bookie_service.operation.live_keys import SIGHUP, LiveKeys
from bookie_service.operation.long_operations import LongOperations
from bookie_service.operation.stored_counts import StoredCounts
from bookie_service.service import BookieService, Repeating
from bookie_service.settings import address
from bookie_service.settings.address import BoundAddress
from bookie_service.settings.configuration import Configuration
from bookie_service.settings.file_limit import allowed_open_files
from bookie_service.settings.rules_file import RulesFile
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage import layout
from bookie_service.storage.io.allocation import keep_allocation_short
from bookie_service.storage.io.closed_directories import OpenDirectories
from bookie_service.storage.io.files import LocalFiles, is_disk_failure

logger = logging.getLogger("bookie_service")

_SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Start:
    """What the command line asks for.

    file, settings: where the configuration's keys came from, because they may be read again. as_json: whether to
        announce in JSON that the bookie serves.
    """

    configuration: Configuration
    file: Path | None
    settings: Mapping[str, str]
    as_json: bool
    signals: ShutdownSignals
    limiter: LogLimiter


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts that exist before the journal is replayed.

    authorization: None: no rules are configured. stopping: set when the bookie must end or restart.
    """

    start: Start
    bound: BoundAddress
    registry: BookieRegistry
    metadata_view: LedgerMetadataView
    files: LocalFiles
    authorization: Authorization | None
    service: BookieService
    operator: BookieOperator
    counts: StoredCounts
    manager: ServiceManager
    stopping: asyncio.Event

    @property
    def configuration(self) -> Configuration:
        return self.start.configuration


async def run(start: Start) -> str | None:
    """Serve until a signal comes, or raise the error that ends the bookie; return the word of a restart, None: end."""
    keep_allocation_short()
    loop = asyncio.get_running_loop()
    Repeating(loop, FLUSH_S, start.limiter.flush)
    for number in SIGNALS:
        # The loop's own handler wakes the loop, whichever thread gets the signal.
        loop.add_signal_handler(number, start.signals.request)
    bound = address.bind(start.configuration.address)
    try:
        async with contextlib.AsyncExitStack() as held:
            parts = await _parts(start, bound, held)
            ports = await _http(parts, held)
            await parts.metadata_view.open()
            await _replay(parts)
            start.signals.stop_by(partial(_end, parts))
            registration = _registration(parts, ports)
            _follow_peers(parts.service, parts.registry, held)
            try:
                await _serve(parts, ports, registration)
            except BaseException:
                parts.service.abandon()
                raise
            await _stop(parts, registration)
            return parts.operator.restart_word
    finally:
        bound.listener.close()


async def _parts(start: Start, bound: BoundAddress, held: contextlib.AsyncExitStack) -> _Parts:
    """Return the parts. `held` ends them."""
    configuration, bookie_id = start.configuration, bound.bookie_id
    tree = await held.enter_async_context(_metadata(configuration))
    registry = BookieRegistry(tree, configuration.metadata_uri)
    files = await held.enter_async_context(_identified(configuration, registry, bound))
    metadata_view = LedgerMetadataView(tree, configuration.metadata_uri, bookie_id)
    rules = None if configuration.rules_path is None else RulesFile(configuration.rules_path)
    authorization = None if rules is None else _authorization(rules, metadata_view, held)
    service = BookieService(files, _within_file_limit(configuration.service), authorization)
    changes = Changes(service.fail)
    if configuration.traces:
        held.callback(trace_output.start(bookie_id))
    keys = LiveKeys(configuration, start.file, start.settings, changes)
    keys.parts.append(partial(_apply, service))
    log_output.log_start(f"bookie {bound.bookie_id}", configuration, bookie=bound.bookie_id)
    operator = BookieOperator(bookie_id, service, keys, files, changes)
    if rules is not None and authorization is not None:
        operator.reload_rules = _follow_rules(RulesFollower(rules, authorization, changes), held)
    operator.restore_status()
    follower = PlanFollower(BookiePlans(tree, configuration.metadata_uri), bookie_id, operator.follow)
    await follower.start()
    held.push_async_callback(follower.stop)
    counts = StoredCounts(lambda: service.storage.store.index.counts())
    manager, stopping = ServiceManager(), asyncio.Event()
    return _Parts(
        start, bound, registry, metadata_view, files, authorization, service, operator, counts, manager, stopping
    )


async def _http(parts: _Parts, held: contextlib.AsyncExitStack) -> Ports:
    """Serve HTTP as configured."""
    add_api = await _api(parts.configuration, parts.operator, held)
    prepare = partial(_prepare_scrape, parts.operator, parts.counts)
    names = (parts.bound.host, socket.gethostname())
    permit = _permit(parts.authorization)
    return await held.enter_async_context(
        http_serving(parts.configuration.http, parts.service.registry, prepare, add_api, names, permit)
    )


async def _replay(parts: _Parts) -> None:
    """Open the storage, which replays the journal."""
    parts.manager.starting("replaying the journal")
    began = time.monotonic()
    await parts.service.start(parts.metadata_view.ledgers_on_bookie)
    replay_s = time.monotonic() - began
    _log_replay(parts.service, replay_s)
    BookieMetrics(parts.service, parts.counts, lambda: parts.operator.is_registered, replay_s)


def _end(parts: _Parts) -> None:
    """Handle a signal to end. A signal that comes while the bookie stops for a restart ends it for good."""
    parts.operator.restart_word = None
    parts.stopping.set()


def _registration(parts: _Parts, ports: Ports) -> Registration:
    """Return the registration, which follows the state of the bookie."""
    operator = parts.operator
    data = _address_data(parts.configuration, parts.bound, ports)
    registration = Registration(parts.registry, parts.bound.bookie_id, data, read_only=operator.is_registered_read_only)
    parts.service.on_mode_change = partial(_mode_changed, operator, registration)
    operator.on_restart = parts.stopping.set
    return registration


def _mode_changed(operator: BookieOperator, registration: Registration) -> None:
    registration.change(
        read_only=operator.is_registered_read_only,
        reason=operator.reason,
        index_problem="; ".join(operator.index_problems),
    )


async def _serve(parts: _Parts, ports: Ports, registration: Registration) -> None:
    """Serve while registered, until a signal or a command ends it; raise the first error of a part."""
    service, operator, configuration = parts.service, parts.operator, parts.configuration
    if not await _has_entered(parts, registration):
        return
    # Not before it is registered: clients that connect to its address must be able to find out whose it is.
    service.listen(parts.bound.listener)
    service.start_collecting(parts.metadata_view)
    service.start_local_reads(parts.bound.bookie_id)
    # The state may have changed before the registration existed.
    _mode_changed(operator, registration)
    directories = [each for each in configuration.service.ledger_directories if not parts.files.is_closed(each)]
    async with (
        control.serving(directories, LiveCommands(operator), _permits(parts.authorization)),
        _repairing(configuration, parts.bound.bookie_id, service.registry, operator.keys),
    ):
        with event_loop.TimedCollections():
            operator.serve(registration)
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, _reload, operator, parts.manager, set())
            loop.add_signal_handler(signal.SIGUSR1, _log_state, operator)
            event_loop.share_interpreter()
            await event_loop.forget_start()
            _announce(parts.bound, ports, parts.start.as_json)
            parts.manager.ready(_SERVING)
            await _first_of(parts.stopping, service.full, service.failed, registration.lost)


async def _has_entered(parts: _Parts, registration: Registration) -> bool:
    """Register; return False if the end was requested first. Raises as `Registration.enter`."""
    entering = asyncio.ensure_future(registration.enter())
    asked = asyncio.ensure_future(parts.stopping.wait())
    try:
        await asyncio.wait([entering, asked], return_when=asyncio.FIRST_COMPLETED)
        if entering.done():
            entering.result()
        return entering.done()
    finally:
        asked.cancel()
        entering.cancel()


async def _stop(parts: _Parts, registration: Registration) -> None:
    """Stop in order. Raises the error of the disks if the bookie stops because they are full."""
    service, operator, manager = parts.service, parts.operator, parts.manager
    operator.phase = "stopping"
    why = "its disks are full" if service.full.done() else "a signal requested it"
    if operator.restart_word is None:
        manager.stopping(why)
    else:
        why = "it restarts"
        # After STOPPING the service manager waits for the end of the process.
        manager.starting(why)
    logger.info("the bookie stops: %s", why, extra={"event": "stop", "attributes": {"reason": why}})
    began = time.monotonic()
    await registration.leave()
    await service.stop()
    logger.info("the bookie has stopped in order, after %.1f s", time.monotonic() - began)
    if service.full.done():
        raise service.full.result()


@contextlib.asynccontextmanager
async def _metadata(configuration: Configuration) -> AsyncIterator[Tree]:
    tree = await open_tree(configuration.metadata_uri, configuration.zookeeper)
    try:
        # Raises an error if there is no cluster at the root, before any directory is touched.
        await read_manager(tree, configuration.metadata_uri.root, configuration.metadata_uri.manager)
        yield tree
    finally:
        await tree.close()


@contextlib.asynccontextmanager
async def _identified(
    configuration: Configuration, registry: BookieRegistry, bound: BoundAddress
) -> AsyncIterator[LocalFiles]:
    group, ledger_directories = configuration.file_group, configuration.service.ledger_directories
    identity = Identity(LocalFiles(group), configuration.service.journal_directories, ledger_directories)
    try:
        await identity.establish(registry, bound.bookie_id)
        files = OpenDirectories(identity.unreadable, group, list(map(layout.current, ledger_directories)))
        _protect(files, configuration.service)
        yield files
    finally:
        identity.release()


def _protect(files: LocalFiles, options: ServiceOptions) -> None:
    """Restrict access to the directories, which an older release and Apache's bookies leave open to all users."""
    said = []
    for directory in dict.fromkeys(map(layout.current, [*options.journal_directories, *options.ledger_directories])):
        try:
            line = files.protect(directory)
        except OSError as error:
            if not is_disk_failure(error):
                raise
            line = f"access to directory {directory} cannot be restricted: {error.strerror}"
        if line is not None:
            said.append(line)
    if said:
        logger.warning("%s", "; ".join(said))


def _within_file_limit(options: ServiceOptions) -> ServiceOptions:
    """Return the options, with as many open files as the operating system allows in addition to all connections."""
    allowed = allowed_open_files(options.store.open_files_max, options.connections.all)
    return dataclasses.replace(options, store=dataclasses.replace(options.store, open_files_max=allowed))


def _authorization(
    source: RulesFile, metadata_view: LedgerMetadataView, held: contextlib.AsyncExitStack
) -> Authorization:
    """Return the authorization by the rules of a file. Raises ConfigurationError."""
    rules = source.read()
    lookups = LedgerLookups(metadata_view)
    held.callback(lookups.close)
    logger.info("authorization is on: %d rules of %s are in force", len(rules), source.path)
    return Authorization(rules, lookups.look_up, log_refusal)


def _follow_rules(follower: RulesFollower, held: contextlib.AsyncExitStack) -> Callable[[str], Awaitable[None]]:
    """Keep the rules file in force; return what reads it now."""
    follower.start()
    held.push_async_callback(follower.stop)
    return follower.reload


def _apply(service: BookieService, configuration: Configuration) -> None:
    """Let the parts use changed live keys."""
    service.set_collection(configuration.service.collection)
    log_output.set_level(configuration.log_level)


async def _api(
    configuration: Configuration, operator: BookieOperator, held: contextlib.AsyncExitStack
) -> Callable[[Routes], None]:
    """Return a function that adds the paths of the HTTP API."""
    if not configuration.http.serves_api:
        return lambda routes: None
    # Imported here, because most bookies need neither it nor the client that it loads.
    from bookie_service.admin.http.api_v2 import ApiV2
    from bookie_service.admin.http.cluster_v1 import ClusterApi
    from bookie_service.replication.cluster_commands import ClusterCommands

    uri = str(configuration.metadata_uri)
    cluster = ClusterCommands(uri, operator.bookie_id, configuration.auto_recovery)
    held.push_async_callback(cluster.close)
    operations = LongOperations()
    held.push_async_callback(operations.close)
    apis = (
        BookieApi(operator),
        ClusterApi(cluster, operations, operator),
        ApiV2(cluster, operations, operator),
    )

    def add(routes: Routes) -> None:
        for api in apis:
            api.add_to(routes)

    return add


async def _prepare_scrape(operator: BookieOperator, counts: StoredCounts) -> None:
    if operator.phase == "serving":
        await counts.refresh()


def _address_data(configuration: Configuration, bound: BoundAddress, ports: Ports) -> BookieAddress:
    """Return the properties of this bookie's registration."""
    restart = os.environ.get(RESTARTED_FOR, "")
    return BookieAddress(
        bound.host,
        bound.port,
        {registration_data.VERSION: VERSION} | ({registration_data.RESTARTED_FOR: restart} if restart else {}),
        ports.api,
        extensions=() if configuration.service.tls is None else ("tls",),
        http_tls=configuration.http.tls is not None,
    )


def _follow_peers(service: BookieService, registry: BookieRegistry, held: contextlib.AsyncExitStack) -> None:
    """Let the service know the addresses of the cluster's bookies, for which some connections are reserved."""
    peers = ClusterPeers(registry)
    peers.start()
    held.push_async_callback(peers.stop)
    service.cluster_addresses = lambda: peers.addresses


@contextlib.asynccontextmanager
async def _repairing(configuration: Configuration, who: str, registry: Registry, keys: LiveKeys) -> AsyncIterator[None]:
    """Run autorecovery inside the context, if it is configured. Its errors never end the bookie."""
    if not configuration.runs_auto_recovery:
        yield
        return
    # Imported here, because most bookies need neither it nor the client that it loads.
    from bookie_service.replication.autorecovery import AutoRecovery
    from bookie_service.replication.recovery_metrics import recovery_families

    recovery = AutoRecovery.of_cluster(str(configuration.metadata_uri), who, configuration.auto_recovery)
    keys.parts.append(lambda changed: recovery.set_options(changed.auto_recovery))
    # Dashboards know the names of autorecovery in its own process; in a bookie the names begin with `replication_`.
    for scope in ("", "replication_"):
        registry.add(partial(recovery_families, recovery, scope))
    try:
        await recovery.start()
        yield
    finally:
        await recovery.stop()


def _permits(authorization: Authorization | None) -> control.Permits:
    """Return a function that says who may use the control socket."""
    if authorization is None:
        return lambda principal, where: True
    return lambda principal, where: authorization.may(principal, where, ADMIN)


def _permit(authorization: Authorization | None) -> Permit | None:
    return None if authorization is None else HttpPermit(authorization)


def _log_state(operator: BookieOperator) -> None:
    """Log what `bkspark bookie state` prints, for SIGUSR1."""
    state = as_json(operator.state())
    logger.info("SIGUSR1: %s", json.dumps(state), extra={"event": "state", "attributes": state})


def _reload(operator: BookieOperator, manager: ServiceManager, tasks: set[asyncio.Task[None]]) -> None:
    """Read the configuration and the authorization rules again, for SIGHUP."""
    manager.reloading()
    operator.keys.reload_by_signal()
    start_kept(_reload_rules(operator, manager), tasks)


async def _reload_rules(operator: BookieOperator, manager: ServiceManager) -> None:
    try:
        await operator.reload_rules(SIGHUP)
    except ConfigurationError as error:
        log_kept(error)
    finally:
        manager.ready(_SERVING)


def _log_replay(service: BookieService, seconds: float) -> None:
    replayed = service.storage.replayed
    attributes = {"records": replayed, "seconds": seconds}
    logger.info(
        "storage is open after %.2f s, %d journal records were replayed",
        seconds,
        replayed,
        extra={"event": "replay", "attributes": attributes},
    )


def _announce(bound: BoundAddress, ports: Ports, as_json: bool) -> None:
    where = {"clients": f"{bound.host}:{bound.port}", **ports.shown()}
    at = ", ".join(f"{what} at {place}" for what, place in where.items())
    logger.info("bookie %s serves: %s", bound.bookie_id, at, extra={"event": "serving", "attributes": where})
    if as_json:
        print(json.dumps({"id": bound.bookie_id, "pid": os.getpid(), **ports.facts()}), flush=True)
    else:
        print(f"bookie {bound.bookie_id} serves at {bound.host}:{bound.port} (pid {os.getpid()})", flush=True)


async def _first_of(
    stopping: asyncio.Event, full: asyncio.Future[BaseException], *failures: asyncio.Future[BaseException]
) -> None:
    """Return when a stop is requested or the disks are full; raise the first error of any part."""
    asked = asyncio.ensure_future(stopping.wait())
    awaited: list[asyncio.Future[Any]] = [asked, full, *failures]
    try:
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    for failure in failures:
        if failure.done():
            raise failure.result()
