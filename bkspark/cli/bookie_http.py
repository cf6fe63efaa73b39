"""Requests to the HTTP servers of bookies, ours or Apache's, whose addresses the registrations have."""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import client_net
from bkspark.security.web import is_loopback

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import ThreadPoolExecutor
    from urllib.request import BaseHandler

    from bkspark.changed_files import ChangedFiles
    from bkspark.metadata.registration import BookieAddress
    from bkspark.tls.contexts import TlsContext
    from bkspark.tls.options import TlsOptions

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0
AT_ONCE = 64
"""How many servers are asked at a time: one that does not answer takes a place for TIMEOUT_S."""
BYTES_MAX = 16 * 1024 * 1024
ANY_HOSTS = ("", "0.0.0.0", "::")
"""Addresses that a server registers if it listens at all addresses: requests go to the bookie's own address."""
TOKEN_OPTION = "--http-token-file"
TOKEN_VARIABLE = "BKSPARK_HTTP_TOKEN_FILE"


def add_http_token(parser: argparse.ArgumentParser) -> None:
    """Add --http-token-file."""
    parser.add_argument(
        TOKEN_OPTION,
        default=os.environ.get(TOKEN_VARIABLE),
        metavar="FILE",
        help=f"a file with the token for the bookies' HTTP servers (default: ${TOKEN_VARIABLE}, else no token)",
    )


def http_access(arguments: argparse.Namespace) -> BookieHttpAccess:
    """Return the token and TLS for a command's requests to the HTTP servers of bookies.

    Raises:
        ConfigurationError: the file of the token or of the client's TLS cannot be used.
    """
    return BookieHttpAccess(arguments.http_token_file, client_net(arguments).tls)


class BookieHttpAccess:
    """The token and the TLS of a client of bookies' HTTP servers.

    A client with TLS sends its token only inside TLS: a forged registration must not make it disclose the token. A
    changed file of the token or of TLS is used for the requests that follow. `tls_context` and `headers` read files:
    they are for one thread, and `identity` calls them in one beside the event loop. The other methods are for one loop.
    """

    def __init__(
        self, token_file: str | None, tls: TlsOptions | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises ConfigurationError: the file of the token cannot be used."""
        self._clock = clock
        self._token: ChangedFiles[str] | None = None
        """The token in its file; None: requests have no token."""
        self._tls = tls
        self._own_context: TlsContext | None = None
        """The contexts of the client's TLS; None before the first call with them. Set once."""
        self._context: ssl.SSLContext | None = None
        """The context with the system's authorities; None before the first call with it. Set once."""
        self._threads: ThreadPoolExecutor | None = None
        """The threads of `fetch`; None before the first request. Set once."""
        self._reading_thread: ThreadPoolExecutor | None = None
        """The thread that reads files; None before the first request. Set once."""
        if token_file:
            from bkspark.changed_files import ChangedFiles, Says
            from bkspark.security.access_file import REFRESH_S, read_token

            says = Says("requests have the token as it was", "requests have the changed token")
            read = functools.partial(read_token, token_file, TOKEN_OPTION)
            self._token = ChangedFiles([token_file], read, REFRESH_S, says, logger, clock)

    def __repr__(self) -> str:
        return "BookieHttpAccess()"

    @property
    def tls_context(self) -> ssl.SSLContext:
        """The context for servers with TLS; without a client's TLS, one with the system's authorities.

        Raises:
            ConfigurationError: a file of the client's TLS cannot be used.
        """
        if self._tls is not None:
            if self._own_context is None:
                from bkspark.tls.contexts import TlsContext

                self._own_context = TlsContext(self._tls, is_server=False, clock=self._clock)
            return self._own_context.current()
        if self._context is None:
            import ssl

            self._context = ssl.create_default_context()
        return self._context

    def headers(self, url: str) -> dict[str, str]:
        """Return the headers of a request that identify this client."""
        may_send = url.startswith("https:") or self._tls is None
        return {"Authorization": f"Bearer {self._token.current()}"} if self._token is not None and may_send else {}

    async def identity(self, url: str) -> tuple[dict[str, str], ssl.SSLContext | None]:
        """Return the headers of a request that identify this client, and the context; None: the URL is without TLS.

        Raises:
            ConfigurationError: as `tls_context`.
        """
        import asyncio

        if self._reading_thread is None:
            from concurrent.futures import ThreadPoolExecutor

            self._reading_thread = ThreadPoolExecutor(1, "http files")
        return await asyncio.get_running_loop().run_in_executor(self._reading_thread, self._identity, url)

    def _identity(self, url: str) -> tuple[dict[str, str], ssl.SSLContext | None]:
        return self.headers(url), self.tls_context if url.startswith("https:") else None

    async def fetch(self, url: str) -> bytes | None:
        """Return what a GET of a URL returns, None if it fails."""
        import asyncio

        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(AT_ONCE, "http")
        headers, context = await self.identity(url)
        return await asyncio.get_running_loop().run_in_executor(self._threads, _fetched, url, headers, context)

    async def fetch_object(self, url: str) -> dict[str, Any] | None:
        """Return the JSON object that a GET of a URL returns, None if it fails."""
        body = await self.fetch(url)
        try:
            found = json.loads(body) if body is not None else None
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def _fetched(url: str, headers: dict[str, str], context: ssl.SSLContext | None) -> bytes | None:
    """Return what a GET of a URL returns, None if it fails. `context`: that of an `https:` URL."""
    # Imported here: it takes 30 ms, and every command imports this module.
    from http.client import HTTPException
    from urllib.error import URLError
    from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

    # No proxies and no redirects: no other server may see the token.
    handlers: list[Any] = [ProxyHandler({}), _no_redirects()]
    if context is not None:
        handlers.append(HTTPSHandler(context=context))
    try:
        with build_opener(*handlers).open(Request(url, headers=headers), timeout=TIMEOUT_S) as reply:
            body: bytes = reply.read(BYTES_MAX + 1)
    except (URLError, HTTPException, OSError, ValueError):
        return None
    return body if len(body) <= BYTES_MAX else None


def _no_redirects() -> BaseHandler:
    from urllib.request import HTTPRedirectHandler

    class Stay(HTTPRedirectHandler):
        def redirect_request(self, *arguments: object) -> None:
            """Follow none."""

    return Stay()


def http_problem(address: BookieAddress | None, http: tuple[str, int] | None = None) -> str:
    """Return why the HTTP server of a registered bookie cannot be asked from this host, "" if it can.

    A bookie without access control registers a loopback address. On another host, that address is that of another
    server, which may be another bookie.

    Args:
        http: host and port of the server, if none is registered.
    """
    where = None if address is None else address.http or http
    if address is None or where is None:
        return "no HTTP server is registered"
    if is_loopback(where[0]) and not is_loopback(address.host) and not is_this_host(address.host):
        return "its HTTP server serves its own host alone"
    return ""


def http_origin(address: BookieAddress, http: tuple[str, int] | None = None) -> str:
    """Return the origin of a bookie's HTTP server, about which `http_problem` says nothing."""
    where = address.http or http
    assert where is not None, "the caller knows where the server is"
    http_host, port = where
    name = address.host if http_host in ANY_HOSTS else http_host
    scheme = "https" if address.http_tls else "http"
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


def is_this_host(host: str) -> bool:
    """Return whether an address or a name is one of this host's. Other names are not looked up."""
    import ipaddress
    import socket

    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower().rstrip(".") in _own_names()
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


@functools.cache
def _own_names() -> frozenset[str]:
    import socket

    name, full = socket.gethostname().lower(), socket.getfqdn().lower()
    return frozenset({name, name.partition(".")[0], full.rstrip(".")})
