"""One bookie in the foreground: arguments -> options -> wiring -> run. The only place that wires.

Exit code 0 after SIGTERM or SIGINT; 1 when the bookie cannot start or had to end; 2 for wrong usage or configuration.
With --instances several bookies run, each in a process of its own: see `instances`.
With --check and --rebuild-index no bookie runs: see `check` and `rebuild`. --collect and COMMAND send a request to the
running bookie: see `live_commands`. The last line on stderr names the error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, NoReturn

# numpy imports it at the first use of `unique`, for 20 ms of the event loop: before the bookie serves is better.
import numpy.ma  # noqa: F401

from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.metadata import registration as registration_data
from bkspark.metadata.bookie_plans import BookiePlans
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import read_manager
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Tree
from bkspark.metadata.zookeeper import open_tree
from bkspark.security.authorization import ADMIN
from bkspark.security.sasl import SaslClient
from bkspark.tasks import start_kept
from bkspark.tls.contexts import TlsContext
from bkspark.version import VERSION
from bookie_service.admin import check, control, instances, live_commands, log_output, rebuild, trace_output
from bookie_service.admin.http.api_v1 import BookieApi
from bookie_service.admin.http.authorization import HttpPermit
from bookie_service.admin.http.face import Ports, check_credentials, http_serving
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
from bookie_service.network.authentication import ListenerAuthentication
from bookie_service.network.event_loop import TurnRecorder
from bookie_service.network.log_limit import LogLimiter
from bookie_service.operation.authorization import RulesFollower, log_kept, log_refusal
from bookie_service.operation.bookie_metrics import BookieMetrics
from bookie_service.operation.bookie_operator import RESTARTED_FOR, BookieOperator
from bookie_service.operation.live_keys import LiveKeys
from bookie_service.operation.long_operations import LongOperations
from bookie_service.operation.stored_counts import StoredCounts
from bookie_service.service import BookieService, Repeating
from bookie_service.settings import address
from bookie_service.settings.address import BoundAddress
from bookie_service.settings.arguments import (
    ServerParser,
    add_configuration,
    describe,
    fail,
    run_with_extras,
    settings,
)
from bookie_service.settings.configuration import LOG_FORMATS, LOG_LEVELS, Configuration, is_secret, load
from bookie_service.settings.file import read
from bookie_service.settings.file_limit import allowed_open_files
from bookie_service.settings.instances import instance_settings
from bookie_service.settings.rules_file import RulesFile
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.settings.users import current_user
from bookie_service.storage import layout
from bookie_service.storage.io.files import LocalFiles, make_private

logger = logging.getLogger("bookie_service")

_PROGRAM = "bookie"
_LOG_FLUSH_S = 1.0
_SERVING = "serving"
_SIGHUP = "signal:SIGHUP"


def main(argv: Sequence[str], signals: ShutdownSignals) -> int:
    """Run a bookie until `signals` stops it; return the exit code."""
    return run_with_extras(_PROGRAM, lambda: _main(argv, signals))


def _main(argv: Sequence[str], signals: ShutdownSignals) -> int:
    limiter = log_output.log_to_stderr()
    try:
        arguments = _parser().parse_args(argv)
        if sys.flags.optimize:
            raise ConfigurationError("a bookie does not run under python -O: its assertions guard the data")
        if arguments.instances is not None:
            if arguments.instance is None:
                return _supervise(arguments, argv, signals)
            arguments.set += _of_instance(arguments, arguments.instance).items()
        elif arguments.instance is not None:
            raise ConfigurationError(f"--instance {arguments.instance} needs --instances, the number of all")
        configuration = load(arguments.config, _settings(arguments))
        log_output.use(configuration.log_level, configuration.log_format)
        recorder = _recorder()
        _check_user(configuration.permitted_users)
        _check_credentials(configuration)
    except ConfigurationError as error:
        return fail(_PROGRAM, error, 2)
    if arguments.check:
        return check.run(configuration, arguments.json)
    make_private(group=configuration.file_group is not None)
    if arguments.rebuild_index is not None:
        return rebuild.run(configuration, arguments.rebuild_index, arguments.json)
    directories = configuration.service.ledger_directories
    if arguments.collect:
        return live_commands.run(directories, live_commands.COLLECT, [], arguments.json)
    if arguments.command is not None:
        return live_commands.run(directories, arguments.command, arguments.words, arguments.json)
    if configuration.rules_path is not None:
        try:
            RulesFile(configuration.rules_path).read()
        except ConfigurationError as error:
            return fail(_PROGRAM, error, 2)
    if configuration.unused_keys:
        logger.warning("configuration keys without effect in this bookie: %s", ", ".join(configuration.unused_keys))
    for note in configuration.notes:
        logger.warning("%s", note)
    for danger in configuration.dangers:
        logger.warning("%s", danger)
    try:
        try:
            restart_word = event_loop.run(_run(configuration, arguments, signals, limiter), recorder)
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
    if restart_word is not None:
        _restart(restart_word)
    return 0


def _supervise(arguments: argparse.Namespace, argv: Sequence[str], signals: ShutdownSignals) -> int:
    """Run all instances; return the exit code. Raises ConfigurationError."""
    if arguments.check or arguments.collect or arguments.rebuild_index is not None or arguments.command is not None:
        raise ConfigurationError("this acts on one bookie: add --instance I to --instances")
    first = load(arguments.config, [*_settings(arguments), *_of_instance(arguments, 1).items()])
    log_output.use(first.log_level, first.log_format)
    command = [sys.executable, "-m", "bookie_service", *argv]
    command += [] if arguments.json else ["--json"]
    return instances.run(command, arguments.instances, signals, as_json=arguments.json)


def _of_instance(arguments: argparse.Namespace, number: int) -> dict[str, str]:
    """Return the keys of an instance that differ from the configuration of all. Raises ConfigurationError."""
    values = {} if arguments.config is None else read(arguments.config)[0]
    return instance_settings(values | dict(_settings(arguments)), number, arguments.instances)


def _restart(word: str) -> NoReturn:
    """Replace this process by the same command, which may be a newer version by now. Raises OSError."""
    if word:
        os.environ[RESTARTED_FOR] = word
    # Python is not ready for a signal until the first lines of the command run; they let these through again.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _recorder() -> TurnRecorder | None:
    text = os.environ.get(event_loop.SLOW_TURN_VARIABLE)
    try:
        return event_loop.recorder_of(text)
    except ValueError:
        raise ConfigurationError(f"{event_loop.SLOW_TURN_VARIABLE}={text}: it must be a number of ms above 0") from None


def _settings(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return all keys beside the file; later ones win."""
    log = (("logLevel", arguments.log_level), ("logFormat", arguments.log_format))
    return [*settings(arguments), *((key, value) for key, value in log if value is not None)]


def _check_user(permitted: Sequence[str]) -> None:
    """Raise ConfigurationError unless the user of this process may run the bookie."""
    user = current_user()
    if permitted and user not in permitted:
        raise ConfigurationError(f"permittedStartupUsers does not name the user {user!r}: start the bookie as another")


def _check_credentials(configuration: Configuration) -> None:
    """Raise ConfigurationError unless the credentials of TLS and SASL can be used: no bookie starts without."""
    if configuration.service.tls is not None:
        TlsContext(configuration.service.tls.tls, is_server=True)
    if configuration.runs_auto_recovery and configuration.auto_recovery.tls is not None:
        TlsContext(configuration.auto_recovery.tls, is_server=False)
    if configuration.service.authentication is not None:
        ListenerAuthentication(configuration.service.authentication)
    if configuration.runs_auto_recovery and configuration.auto_recovery.sasl is not None:
        SaslClient(configuration.auto_recovery.sasl)
    check_credentials(configuration.http)
    if configuration.traces:
        trace_output.check()


def _parser() -> argparse.ArgumentParser:
    parser = ServerParser(prog="bookie_service", description="Run one bookie until SIGINT or SIGTERM.")
    add_configuration(parser)
    parser.add_argument("--json", action="store_true", help='print {"id", "pid"} once registered and serving')
    parser.add_argument("--instances", type=int, metavar="N", help="run N bookies of this host, each as a process")
    parser.add_argument("--instance", type=int, metavar="I", help="only bookie I of --instances, or a command about it")
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="log from this level on (logLevel)")
    parser.add_argument("--log-format", choices=LOG_FORMATS, help="how log lines look (logFormat)")
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
    parser.add_argument(
        "command",
        nargs="?",
        choices=live_commands.COMMANDS,
        help="send this to the bookie that runs on the configured directories instead",
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="more of the command, such as KEY=VALUE of set")
    return parser


async def _run(
    configuration: Configuration, arguments: argparse.Namespace, signals: ShutdownSignals, limiter: LogLimiter
) -> str | None:
    """Serve until a signal comes, or raise the error that ends the bookie; return the word of a restart, None: end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    manager = ServiceManager()
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
            metadata_view = LedgerMetadataView(tree, configuration.metadata_uri, bound.bookie_id)
            rules = await _authorization(configuration, metadata_view, held)
            authorization = None if rules is None else rules.authorization
            service = BookieService(files, _within_file_limit(configuration.service), authorization)
            if configuration.traces:
                held.callback(trace_output.start(bound.bookie_id))
            keys = LiveKeys(configuration, arguments.config, dict(_settings(arguments)))
            keys.parts.append(partial(_apply, service))
            _log_start(bound, configuration)
            operator = BookieOperator(bound.bookie_id, service, keys, files)
            if rules is not None:
                operator.reload_rules = rules.reload
            operator.restore_status()
            follower = PlanFollower(BookiePlans(tree, configuration.metadata_uri), bound.bookie_id, operator.follow)
            await follower.start()
            held.push_async_callback(follower.stop)
            counts = StoredCounts(lambda: service.storage.store.index.counts())
            add_api = await _api(configuration, operator, held)
            ports = await held.enter_async_context(
                http_serving(
                    configuration.http,
                    service.registry,
                    lambda: _prepare_scrape(operator, counts),
                    add_api,
                    (bound.host, socket.gethostname()),
                    _permit(authorization),
                )
            )
            await metadata_view.open()
            manager.starting("replaying the journal")
            replay_s = await _start(service, bound, metadata_view)
            BookieMetrics(service, counts, lambda: operator.is_registered, replay_s)

            def stop() -> None:
                # A signal that comes while the bookie stops for a restart ends it for good.
                operator.restart_word = None
                stopping.set()

            signals.stop_by(stop)
            address_data = _address_data(configuration, bound, ports)
            is_read_only = operator.is_registered_read_only
            registration = Registration(registry, bound.bookie_id, address_data, read_only=is_read_only)

            def mode_changed() -> None:
                registration.change(read_only=operator.is_registered_read_only, reason=operator.reason)

            _follow_peers(service, registry, held)
            service.on_mode_change = mode_changed
            operator.on_restart = stopping.set
            try:
                await registration.enter()
                service.start_collecting(metadata_view)
                service.start_local_reads(bound.bookie_id)
                # The state may have changed before the registration existed.
                mode_changed()
                async with (
                    control.serving(
                        configuration.service.ledger_directories, LiveCommands(operator), _permits(authorization)
                    ),
                    _repairing(configuration, bound.bookie_id, service.registry, keys),
                ):
                    event_loop.spare_collections()
                    operator.serve(registration)
                    loop.add_signal_handler(signal.SIGHUP, _reload, operator, manager, set())
                    event_loop.share_interpreter()
                    _announce(bound, ports, arguments.json)
                    manager.ready(_SERVING)
                    await _first_of(stopping, service.full, service.failed, registration.lost)
            except BaseException:
                service.abandon()
                raise
            await _stop(service, operator, manager, registration)
            return operator.restart_word
    finally:
        bound.listener.close()


async def _start(service: BookieService, bound: BoundAddress, metadata_view: LedgerMetadataView) -> float:
    """Open the storage, which replays the journal, and listen; return how long that took, in seconds."""
    began = time.monotonic()
    await service.start(bound.listener, metadata_view.ledgers_on_bookie)
    replay_s = time.monotonic() - began
    _log_replay(service, replay_s)
    return replay_s


def _address_data(configuration: Configuration, bound: BoundAddress, ports: Ports) -> BookieAddress:
    """Return what the registration says of this bookie."""
    return BookieAddress(
        bound.host,
        bound.port,
        {registration_data.VERSION: VERSION},
        ports.api,
        extensions=() if configuration.service.tls is None else ("tls",),
        http_tls=configuration.http.tls is not None,
    )


def _follow_peers(service: BookieService, registry: BookieRegistry, held: contextlib.AsyncExitStack) -> None:
    """Let the service know the addresses of the cluster's bookies, which have places among its connections."""
    peers = ClusterPeers(registry)
    peers.start()
    held.push_async_callback(peers.stop)
    service.cluster_addresses = lambda: peers.addresses


async def _stop(
    service: BookieService, operator: BookieOperator, manager: ServiceManager, registration: Registration
) -> None:
    """Stop in order. Raises the error of the disks if they are full, which is why the bookie stops."""
    operator.phase = "stopping"
    why = "its disks are full" if service.full.done() else "a signal asked for it"
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


def _within_file_limit(options: ServiceOptions) -> ServiceOptions:
    """Return the options with as many open files as the operating system allows beside all connections."""
    allowed = allowed_open_files(options.store.open_files_max, options.connections.all)
    return dataclasses.replace(options, store=dataclasses.replace(options.store, open_files_max=allowed))


@contextlib.asynccontextmanager
async def _metadata(configuration: Configuration) -> AsyncIterator[Tree]:
    timeout_s = configuration.session_timeout_s
    tree = await open_tree(
        configuration.metadata_uri, configuration.zookeeper, session_timeout_s=timeout_s, call_timeout_s=timeout_s
    )
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
async def _repairing(configuration: Configuration, who: str, registry: Registry, keys: LiveKeys) -> AsyncIterator[None]:
    """Run autorecovery meanwhile, if configured. Its errors never end the bookie."""
    if not configuration.runs_auto_recovery:
        yield
        return
    # Imported here: most bookies need neither it nor the client that it loads.
    from bookie_service.replication.autorecovery import AutoRecovery
    from bookie_service.replication.recovery_metrics import recovery_families

    recovery = AutoRecovery.of_cluster(str(configuration.metadata_uri), who, configuration.auto_recovery)
    keys.parts.append(lambda changed: recovery.set_options(changed.auto_recovery))
    # Dashboards know the names of autorecovery in a process of its own; those of a bookie's begin with `replication_`.
    for scope in ("", "replication_"):
        registry.add(partial(recovery_families, recovery, scope))
    try:
        await recovery.start()
        yield
    finally:
        await recovery.stop()


def _apply(service: BookieService, configuration: Configuration) -> None:
    """Let the parts use live keys that changed."""
    service.set_collection(configuration.service.collection)
    log_output.set_level(configuration.log_level)


async def _authorization(
    configuration: Configuration, metadata_view: LedgerMetadataView, held: contextlib.AsyncExitStack
) -> RulesFollower | None:
    """Return what keeps the rules file in force, None without one. Raises ConfigurationError."""
    if configuration.rules_path is None:
        return None
    source = RulesFile(configuration.rules_path)
    rules = source.read()
    lookups = LedgerLookups(metadata_view)
    held.callback(lookups.close)
    follower = RulesFollower(source, Authorization(rules, lookups.look_up, log_refusal))
    follower.start()
    held.push_async_callback(follower.stop)
    logger.info("authorization is on: %d rules of %s are in force", len(rules), source.path)
    return follower


def _permits(authorization: Authorization | None) -> control.Permits:
    """Return who may use the control socket."""
    if authorization is None:
        return lambda principal, where: True
    return lambda principal, where: authorization.may(principal, where, ADMIN)


def _permit(authorization: Authorization | None) -> Permit | None:
    return None if authorization is None else HttpPermit(authorization)


def _reload(operator: BookieOperator, manager: ServiceManager, tasks: set[asyncio.Task[None]]) -> None:
    """Read the configuration and the authorization rules again: SIGHUP."""
    manager.reloading()
    try:
        found = operator.keys.reload(_SIGHUP)
        logger.info("SIGHUP: the configuration was read again, %d keys changed", len(found.changed))
    except ConfigurationError as error:
        logger.error("SIGHUP: the configuration is not read again, and nothing changes: %s", error)
    start_kept(_reload_rules(operator, manager), tasks)


async def _reload_rules(operator: BookieOperator, manager: ServiceManager) -> None:
    try:
        await operator.reload_rules(_SIGHUP)
    except ConfigurationError as error:
        log_kept(error)
    finally:
        manager.ready(_SERVING)


def _log_start(bound: BoundAddress, configuration: Configuration) -> None:
    values = {key: "***" if is_secret(key) else value for key, value in sorted(configuration.values.items())}
    attributes = {"version": VERSION, "bookie": bound.bookie_id, "pid": os.getpid(), "keys": values}
    logger.info(
        "bookie %s starts: bkspark %s, pid %d; keys that are set: %s",
        bound.bookie_id,
        VERSION,
        os.getpid(),
        ", ".join(f"{key}={value}" for key, value in values.items()) or "none",
        extra={"event": "start", "attributes": attributes},
    )


def _log_replay(service: BookieService, seconds: float) -> None:
    replayed = service.storage.replayed
    attributes = {"records": replayed, "seconds": seconds}
    logger.info(
        "storage is open after %.2f s, %d journal records were replayed",
        seconds,
        replayed,
        extra={"event": "replay", "attributes": attributes},
    )


async def _api(
    configuration: Configuration, operator: BookieOperator, held: contextlib.AsyncExitStack
) -> Callable[[Routes], None]:
    """Return what adds the paths of the HTTP API."""
    if not configuration.http.serves_api:
        return lambda routes: None
    # Imported here: most bookies need neither it nor the client that it loads.
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


def _announce(bound: BoundAddress, ports: Ports, as_json: bool) -> None:
    places = {"clients": (bound.host, bound.port), "http": ports.api, "metrics": ports.metrics}
    where = {what: f"{place[0]}:{place[1]}" for what, place in places.items() if place is not None}
    at = ", ".join(f"{what} at {place}" for what, place in where.items())
    logger.info("bookie %s serves: %s", bound.bookie_id, at, extra={"event": "serving", "attributes": where})
    if as_json:
        facts: dict[str, object] = {"id": bound.bookie_id, "pid": os.getpid()}
        facts |= {} if ports.api is None else {"http_port": ports.api[1]}
        facts |= {} if ports.metrics is None else {"metrics_port": ports.metrics[1]}
        print(json.dumps(facts), flush=True)
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
