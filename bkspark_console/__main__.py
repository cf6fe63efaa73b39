"""Runs the console until a signal ends it: `bkspark console` is this program."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from aiohttp import web

from bkspark.cli import console
from bkspark.cli.arguments import USAGE, Parser, client_net, client_zookeeper, cluster_uri, ledger_password
from bkspark.cli.bookie_http import BookieHttpAccess, http_access
from bkspark.cli.console_limits import ConsoleLimits, limits_of
from bkspark.cli.output import print_json
from bkspark.client import Client, EncryptionOptions
from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.ids import parse_host_port
from bkspark.log_limit import FLUSH_S, LogLimiter, limited
from bkspark.log_lines import TEXT, TextFormatter
from bkspark.security.access_file import AccessFile
from bkspark.security.web import is_loopback
from bkspark.tls.contexts import TlsContext
from bkspark.tls.gate import TlsGate
from bkspark.tls.options import TlsOptions
from bkspark_console.connections import OpenConnections
from bkspark_console.guard import PeersErrors
from bkspark_console.server import ConsoleOptions, application

_TLS_OPTIONS = (
    ("tlsKeyStorePasswordPath", "--tls-password-file"),
    ("tlsKeyStore", "--tls-key"),
    ("tlsCertificatePath", "--tls-certificate"),
    ("tlsTrustStore", "--tls-trust"),
)
"""Keys in errors about TLS files, and the options that name these files here."""
_FAILED = 1


def main() -> int:
    """Run the console; return the exit code."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    parser = Parser(prog="bkspark console")
    console.add_arguments(parser)
    arguments = parser.parse_args()
    limiter = log_to_stderr()
    try:
        users = None if arguments.token_file is None else AccessFile(arguments.token_file, "--token-file")
        check_host(arguments.host, users)
        context = tls_context(arguments)
        options = ConsoleOptions(
            cluster_uri(arguments),
            users,
            frozenset(name.lower() for name in (*arguments.allow_host, arguments.host)),
            arguments.session_idle,
            arguments.session_time,
            limits=limits_of(arguments),
        )
        http = http_access(arguments)
        password = ledger_password(arguments)
        asyncio.run(_logged(limiter, _serve(arguments, options, password, http, context)))
    except ConfigurationError as error:
        return _fail(error, USAGE)
    except (BookKeeperError, OSError) as error:
        return _fail(error, _FAILED)
    except KeyboardInterrupt:
        return 0
    finally:
        limiter.finish()
    return 0


def log_to_stderr() -> LogLimiter:
    """Log to stderr as text; return the limit that keeps peers from filling the log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter(TEXT))
    limiter = limited(handler)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # kazoo logs each attempt to connect, and aiohttp each request.
    logging.getLogger("bkspark.kazoo").setLevel(logging.ERROR)
    logging.getLogger("aiohttp.server").addFilter(PeersErrors())
    return limiter


async def _logged(limiter: LogLimiter, serving: Coroutine[Any, Any, None]) -> None:
    """Serve; meanwhile repeated lines of the log are summed up."""

    async def flush() -> NoReturn:
        while True:
            await asyncio.sleep(FLUSH_S)
            limiter.flush()

    flushing = asyncio.create_task(flush())
    try:
        await serving
    finally:
        flushing.cancel()


def check_host(host: str, users: AccessFile | None) -> None:
    """Raise ConfigurationError if no host can have this name, or the console would be open to others without tokens."""
    try:
        parse_host_port(f"{host}:1")
    except ValueError:
        raise ConfigurationError(f"--host {host!r} must be this host's name or address, without a port") from None
    if users is None and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} lets other hosts read ledgers and change bookies: give --token-file, or stay at 127.0.0.1"
        )


def tls_context(arguments: argparse.Namespace) -> TlsContext | None:
    """Return the TLS of the pages; None: plain HTTP. Raises ConfigurationError."""
    if arguments.tls_key is None:
        for option in ("tls_certificate", "tls_password_file", "tls_trust"):
            if getattr(arguments, option) is not None:
                name = f"--{option.replace('_', '-')}"
                raise ConfigurationError(f"{name} has no effect without --tls-key, which turns HTTPS on")
        return None
    if arguments.tls_trust is not None and arguments.token_file is None:
        raise ConfigurationError("--tls-trust needs --token-file, which has the roles of users' certificates")
    options = TlsOptions(
        key_store=arguments.tls_key,
        certificate_path=arguments.tls_certificate,
        key_store_password_path=arguments.tls_password_file,
        trust_store=arguments.tls_trust,
        client_authentication=arguments.tls_trust is not None,
        optional_certificate=True,
    )
    try:
        return TlsContext(options, is_server=True)
    except ConfigurationError as error:
        text = str(error)
        for key, option in _TLS_OPTIONS:
            text = text.replace(key, option)
        raise ConfigurationError(text) from None


async def _serve(
    arguments: argparse.Namespace,
    options: ConsoleOptions,
    password: bytes,
    http: BookieHttpAccess,
    context: TlsContext | None,
) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    # The console has no encryption keys, so entries of encrypted ledgers are shown as encrypted.
    encryption = EncryptionOptions(shows_sealed=True)
    net, zookeeper = client_net(arguments), client_zookeeper(arguments)
    async with Client(options.uri, password=password, net=net, zookeeper=zookeeper, encryption=encryption) as client:
        await (await client.context()).ledgers.manager()
        connections = OpenConnections(options.limits)
        app = application(client, options, password, http, connections)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            gate = _gate(context, options.limits)
            async with _listening(runner, connections, arguments.host, arguments.port, gate) as bound:
                host, scheme = arguments.host, "http" if context is None else "https"
                url = f"{scheme}://[{host}]:{bound}/" if ":" in host else f"{scheme}://{host}:{bound}/"
                if arguments.json:
                    print_json({"url": url, "pid": os.getpid()})
                else:
                    print(f"the console of {options.uri} is at {url}; Ctrl-C ends it", flush=True)
                await ended.wait()
        finally:
            await runner.cleanup()


def _gate(context: TlsContext | None, limits: ConsoleLimits) -> TlsGate | None:
    return None if context is None else TlsGate(context, limits.handshake_s, limits.handshakes)


@asynccontextmanager
async def _listening(
    runner: web.AppRunner, connections: OpenConnections, host: str, port: int, gate: TlsGate | None
) -> AsyncIterator[int]:
    """Accept connections inside the context, which yields the port. Raises ConfigurationError."""
    server = runner.server
    assert server is not None, "the runner is set up"

    def connection() -> asyncio.Protocol:
        return connections.guarded(server())

    def accepted() -> asyncio.Protocol:
        return connection() if gate is None else gate.protocol(connection)

    try:
        listener = await asyncio.get_running_loop().create_server(accepted, host, port, backlog=128)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigurationError(
            f"--host {host} --port {port} cannot be used ({why}): free it or choose another"
        ) from None
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        if gate is not None:
            gate.close()


def _fail(reason: object, code: int) -> int:
    print(f"bkspark console: {' '.join(str(reason).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
