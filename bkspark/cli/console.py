"""`bkspark console`: the web console of a cluster. It is a separate package, by which this process is replaced."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from bkspark.cli.arguments import (
    Commands,
    add_cluster,
    add_password,
    cluster_uri,
    not_negative,
    password_variables,
    seconds,
)
from bkspark.cli.bookie_http import add_http_token
from bkspark.cli.console_limits import add_limits, words_of
from bkspark.cli.exec_process import exec_replacing_process
from bkspark.errors import ConfigurationError

PORT = 8089
SESSION_IDLE_S, SESSION_S = 1800.0, 43_200.0
"""How long a session lasts without a request by its user, and at most."""
_NEEDED = ("aiohttp", "jinja2")


def add_parser(commands: Commands) -> None:
    """Add `bkspark console`."""
    parser = commands.add_parser(
        "console",
        help="serve web pages that show a cluster and control its bookies",
        description="Serve web pages that show a cluster and control its bookies, until Ctrl-C (docs/console.md).",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_cluster(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=_port, default=PORT, metavar="P", help=f"port, 0 for a free one (default: {PORT})"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="users and their roles, as a bookie's httpServerAccessFile, or one token alone; needed unless --host is "
        "this host's own",
    )
    add_http_token(parser)
    parser.add_argument("--tls-key", metavar="FILE", help="serve HTTPS: a PKCS12 store, or a private key in PEM")
    parser.add_argument("--tls-certificate", metavar="FILE", help="the certificate chain in PEM")
    parser.add_argument("--tls-password-file", metavar="FILE", help="a file with the password of --tls-key")
    parser.add_argument(
        "--tls-trust", metavar="FILE", help="authorities of users' certificates, whose roles are in --token-file"
    )
    parser.add_argument(
        "--session-idle",
        type=seconds,
        default=SESSION_IDLE_S,
        metavar="SECONDS",
        help="end a session after this time without a request of its user (default: %(default)g)",
    )
    parser.add_argument(
        "--session-time",
        type=seconds,
        default=SESSION_S,
        metavar="SECONDS",
        help="end a session after this time in any case (default: %(default)g)",
    )
    add_limits(parser)
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name that browsers may use for the console; addresses and localhost are always allowed",
    )
    add_password(parser, "password of the ledgers whose entries are shown")


def _port(text: str) -> int:
    value = not_negative(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port of 0 to 65535")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the console; never returns."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{' and '.join(missing)} must be installed: pip install 'bkspark[console]'")
    command = [sys.executable, "-m", "bkspark_console", "--uri", cluster_uri(arguments)]
    command += ["--host", arguments.host, "--port", str(arguments.port)]
    command += ["--json"] if arguments.json else []
    for option in ("token-file", "http-token-file", "tls-key", "tls-certificate", "tls-password-file", "tls-trust"):
        value = getattr(arguments, option.replace("-", "_"))
        command += [] if value is None else [f"--{option}", value]
    command += ["--session-idle", str(arguments.session_idle), "--session-time", str(arguments.session_time)]
    command += words_of(arguments)
    command += [] if arguments.client_config is None else ["--client-config", arguments.client_config]
    for name in arguments.allow_host:
        command += ["--allow-host", name]
    # In the environment: every user of the host can list arguments.
    os.environ.update(password_variables(arguments))
    exec_replacing_process(command)
