"""One bookie in the foreground: reads arguments and configuration, then runs `wiring` or a command.

Exit code 0 after SIGTERM or SIGINT; 1 if the bookie cannot start or had to end; 2 for wrong usage or configuration.
With --instances several bookies run, each in its own process: see `instances`. With --check, --rebuild-index and
--convert-index no bookie runs: see `check`, `rebuild` and `conversion`. --collect and COMMAND send a request to the
running bookie: see `live_commands`.
The last line on stderr names the error.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from bkspark.configuration_files import read
from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.log_limit import LogLimiter
from bkspark.security.sasl import SaslClient
from bkspark.tls.contexts import TlsContext
from bookie_service.admin import live_commands, log_output, trace_output
from bookie_service.admin.http.face import check_credentials
from bookie_service.admin.shutdown import SIGNALS, ShutdownSignals, ignore_harmless
from bookie_service.network import event_loop
from bookie_service.network.authentication import ListenerAuthentication
from bookie_service.network.event_loop import TurnRecorder
from bookie_service.operation.bookie_operator import RESTARTED_FOR
from bookie_service.settings import address
from bookie_service.settings.arguments import (
    ServerParser,
    add_configuration,
    describe,
    run_reported,
    settings,
    whole_number,
)
from bookie_service.settings.configuration import LOG_FORMATS, LOG_LEVELS, Configuration, load
from bookie_service.settings.rules_file import RulesFile
from bookie_service.settings.users import current_user
from bookie_service.settings.values import with_references
from bookie_service.storage.io.files import make_private
from bookie_service.wiring import Start, run

logger = logging.getLogger("bookie_service")

_PROGRAM = "bookie"


def main(argv: Sequence[str], signals: ShutdownSignals) -> int:
    """Run a bookie until `signals` stops it; return the exit code."""
    return run_reported(_PROGRAM, lambda: _main(argv, signals))


def _main(argv: Sequence[str], signals: ShutdownSignals) -> int:
    limiter = log_output.log_to_stderr()
    found: Mapping[str, str] = {}
    try:
        arguments = argument_parser().parse_args(argv)
        log_output.use_given(dict(_settings(arguments)))
        if sys.flags.optimize:
            raise ConfigurationError("a bookie does not run under python -O: its assertions guard the data")
        if arguments.instances is not None:
            if arguments.instance is None:
                return _supervise(arguments, argv, signals, limiter)
            arguments.set += _of_instance(arguments, arguments.instance).items()
        elif arguments.instance is not None:
            raise ConfigurationError(f"--instance {arguments.instance} needs --instances, the number of all")
        configuration = load(arguments.config, _settings(arguments), log_output.use_given)
        found = configuration.from_environment
        log_output.use(configuration.log_level, configuration.log_format)
        recorder = _recorder()
        _check_user(configuration.permitted_users)
        _check_credentials(configuration)
        if _is_command(arguments):
            return _command(configuration, arguments)
        address.check(configuration.address)
        make_private(group=configuration.file_group is not None)
        if configuration.rules_path is not None:
            RulesFile(configuration.rules_path).read()
    except ConfigurationError as error:
        return log_output.report_end(_PROGRAM, with_references(str(error), found), 2)
    _warn(configuration)
    keys = dict(_settings(arguments))
    return _serve(Start(configuration, arguments.config, keys, arguments.json, signals, limiter), recorder)


def _is_command(arguments: argparse.Namespace) -> bool:
    """Return whether a command runs instead of a bookie."""
    rebuilds = arguments.rebuild_index is not None
    return bool(arguments.check or arguments.collect or rebuilds or arguments.convert_index or arguments.command)


def _command(configuration: Configuration, arguments: argparse.Namespace) -> int:
    """Run the command that the arguments name; return the exit code."""
    # Imported here, because a bookie does not need the readers of damaged files.
    from bookie_service.admin import check, conversion, rebuild

    if arguments.check:
        return check.run(configuration, arguments.json)
    make_private(group=configuration.file_group is not None)
    if arguments.rebuild_index is not None:
        return rebuild.run(configuration, arguments.rebuild_index, arguments.json)
    if arguments.convert_index:
        return conversion.run(configuration, arguments.json)
    directories = configuration.service.ledger_directories
    command = live_commands.COLLECT if arguments.collect else arguments.command
    return live_commands.run(directories, command, arguments.words, arguments.json)


def _warn(configuration: Configuration) -> None:
    if configuration.unused_keys:
        logger.warning("configuration keys without effect in this bookie: %s", ", ".join(configuration.unused_keys))
    for warning in (*configuration.notes, *configuration.dangers):
        logger.warning("%s", warning)


def _serve(start: Start, recorder: TurnRecorder | None) -> int:
    """Run the bookie to its end; return the exit code. For a restart, replace this process."""
    try:
        try:
            restart_word = event_loop.run(run(start), recorder)
        finally:
            start.limiter.finish()
    except (BookKeeperError, OSError) as error:
        return log_output.report_end(_PROGRAM, describe(error), 1)
    except MemoryError as error:
        return log_output.report_end(
            _PROGRAM, f"out of memory ({error}): give the bookie more, or lower skipListSizeLimit", 1
        )
    if recorder is not None:
        logger.info(
            "the longest turn of the event loop took %.1f ms, and %.1f ms of processor time",
            recorder.longest_s * 1000,
            recorder.longest_processor_s * 1000,
        )
    if restart_word is not None:
        _restart(restart_word)
    return 0


def _supervise(
    arguments: argparse.Namespace, argv: Sequence[str], signals: ShutdownSignals, limiter: LogLimiter
) -> int:
    """Run all instances, or print their states; return the exit code. Raises ConfigurationError."""
    from bookie_service.admin import instance_states, instances

    if arguments.command == "state" and not arguments.words:
        numbers = range(1, max(1, arguments.instances) + 1)
        directories = {each: _load_instance(arguments, each).service.ledger_directories for each in numbers}
        return instance_states.run(directories, arguments.json)
    if _is_command(arguments):
        raise ConfigurationError("this acts on one bookie: add --instance I to --instances")
    first = _load_instance(arguments, 1)
    log_output.use(first.log_level, first.log_format)
    command = [sys.executable, "-m", "bookie_service", *argv]
    command += [] if arguments.json else ["--json"]
    return instances.run(command, arguments.instances, signals, limiter, as_json=arguments.json)


def _load_instance(arguments: argparse.Namespace, number: int) -> Configuration:
    """Return the configuration of an instance. Raises ConfigurationError."""
    return load(arguments.config, [*_settings(arguments), *_of_instance(arguments, number).items()])


def _of_instance(arguments: argparse.Namespace, number: int) -> dict[str, str]:
    """Return the keys in which an instance differs from the configuration of all. Raises ConfigurationError."""
    from bookie_service.settings.instances import instance_settings

    values = {} if arguments.config is None else read(arguments.config)[0]
    values |= dict(_settings(arguments))
    log_output.use_given(values)
    return instance_settings(values, number, arguments.instances)


def _restart(word: str) -> NoReturn:
    """Replace this process by the same command, which may be a newer version. Raises OSError."""
    if word:
        os.environ[RESTARTED_FOR] = word
    # Python is not ready for a signal before the first lines of the command run, and they let signals through again.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    ignore_harmless()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _recorder() -> TurnRecorder | None:
    text = os.environ.get(event_loop.SLOW_TURN_VARIABLE)
    try:
        return event_loop.recorder_of(text)
    except ValueError:
        raise ConfigurationError(f"{event_loop.SLOW_TURN_VARIABLE}={text}: it must be a number of ms above 0") from None


def _settings(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return all keys that are not in the file. Later ones win."""
    log = (("logLevel", arguments.log_level), ("logFormat", arguments.log_format))
    return [*settings(arguments), *((key, value) for key, value in log if value is not None)]


def _check_user(permitted: Sequence[str]) -> None:
    """Raise ConfigurationError unless the user of this process may run the bookie."""
    user = current_user()
    if permitted and user not in permitted:
        raise ConfigurationError(f"permittedStartupUsers does not name the user {user!r}: start the bookie as another")


def _check_credentials(configuration: Configuration) -> None:
    """Raise ConfigurationError unless the credentials of TLS and SASL can be used: a bookie must not start without."""
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


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments of one bookie."""
    parser = ServerParser(prog="bookie_service", description="Run one bookie until SIGINT or SIGTERM.")
    add_configuration(parser)
    parser.add_argument("--json", action="store_true", help='print {"id", "pid"} once registered and serving')
    parser.add_argument(
        "--instances", type=whole_number, metavar="N", help="run N bookies of this host, each as a process"
    )
    parser.add_argument(
        "--instance", type=whole_number, metavar="I", help="only bookie I of --instances, or a command about it"
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="lowest level that is logged (logLevel)")
    parser.add_argument("--log-format", choices=LOG_FORMATS, help="format of log lines (logFormat)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--check", action="store_true", help="check the files of a stopped bookie instead, and end")
    instead.add_argument(
        "--rebuild-index",
        nargs="*",
        metavar="LEDGER",
        help="rebuild the index of a stopped bookie from its entry logs instead: of these ledgers, of `all`, or, "
        "without any, of those whose index is lost or damaged",
    )
    instead.add_argument(
        "--convert-index",
        action="store_true",
        help="convert the index of a stopped bookie to the kind that ledgerStorageClass names instead",
    )
    instead.add_argument("--collect", action="store_true", help="have the bookie that runs collect garbage instead")
    parser.add_argument(
        "command",
        nargs="?",
        choices=live_commands.COMMANDS,
        help="send this to the bookie that runs on the configured directories instead",
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="arguments of the command, such as KEY=VALUE of set")
    return parser
