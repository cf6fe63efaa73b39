"""`bkspark bookie`: runs a bookie in the foreground, works on the files of a stopped one, or queries a running one.

The server is another package, which this one must not import: this process is replaced by it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bkspark.cli.arguments import Commands, add_environment, add_json, key_value, positive
from bkspark.cli.exec_process import exec_replacing_process
from bkspark.errors import ConfigurationError


def add_parser(commands: Commands) -> None:
    """Add `bkspark bookie`."""
    parser = commands.add_parser("bookie", help="run a bookie", description="Run a bookie until SIGINT or SIGTERM.")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a file with the syntax and keys of Apache's bk_server.conf"
    )
    add_environment(parser)
    parser.add_argument(
        "--set", type=key_value, action="append", default=[], metavar="KEY=VALUE", help="one key; overrides all others"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--check",
        action="store_true",
        help="check the files of a stopped bookie instead: cookies, marks, journals, entry logs, every index position",
    )
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
        help="convert the index of a stopped bookie to the kind that ledgerStorageClass names instead: files per "
        "ledger, or the store of DbLedgerStorage",
    )
    instead.add_argument(
        "--collect",
        action="store_true",
        help="have the bookie that runs on the configured ledger directories drop deleted ledgers and compact its "
        "entry logs now, and wait for it",
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=("state", "read-only", "writable", "suspend", "resume", "set", "reload", "limbo", "restart"),
        help="send this to the bookie that runs on the configured ledger directories instead",
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="arguments of the command, such as KEY=VALUE of set")
    parser.add_argument(
        "--instances",
        type=positive,
        metavar="N",
        help="run N bookies of this host under one supervisor; ports rise by one, directories get instance-I, and "
        "{instance} in a value becomes I",
    )
    parser.add_argument(
        "--instance", type=positive, metavar="I", help="only bookie I of --instances, or a command about it"
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="lowest level that is logged"
    )
    parser.add_argument("--log-format", choices=("text", "json"), help="format of log lines")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the bookie; never returns."""
    if arguments.config is not None and not arguments.config.is_file():
        raise ConfigurationError(f"--config {str(arguments.config)!r} is not a file; name a bk_server.conf")
    command = bookie_command(dict(arguments.set), json=arguments.json)
    if arguments.config is not None:
        command += ["--config", str(arguments.config)]
    command += [option for option in ("--environment", "--check", "--collect") if getattr(arguments, option[2:])]
    command += ["--convert-index"] if arguments.convert_index else []
    if arguments.rebuild_index is not None:
        command += ["--rebuild-index", *arguments.rebuild_index]
    for name in ("instances", "instance", "log_level", "log_format"):
        if getattr(arguments, name) is not None:
            command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    if arguments.command is not None:
        command += [arguments.command, *arguments.words]
    exec_replacing_process(command)


def bookie_command(settings: dict[str, str], *, json: bool, python_options: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs a bookie with these configuration keys.

    `python_options` come before the bookie's module, such as `-m cProfile -o FILE`.
    """
    command = [sys.executable, *python_options, "-m", "bookie_service"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return [*command, "--json"] if json else command
