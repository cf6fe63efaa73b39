"""The HTTP of bookies, as the console uses it: metrics, `/api/v1` and `/api/v2`.

Responses are limited in size and time. Redirects and proxies are not followed. Apache's bookies have no `/api/v2`, so
the console only reads from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import aiohttp

from bkspark.cli.bookie_http import BookieHttpAccess, http_origin, http_problem
from bkspark.errors import BookKeeperError
from bkspark.metadata.registration import BookieAddress

ANSWER_S_MAX = 5.0
CHANGE_S_MAX = 30.0
"""A change may take this long, because it waits until the cluster knows it."""
ANSWER_BYTES_MAX = 8 << 20
CONNECTIONS_MAX = 64


class BookieHttpError(BookKeeperError):
    """A bookie did not answer by HTTP, or refused. `status`: that of its response; 0: there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def origin_of(address: BookieAddress) -> str | None:
    """Return the origin of a bookie's HTTP server; None: this host can reach no server of it."""
    return None if http_problem(address) else http_origin(address)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to a bookie. operator: the user who changes something; empty: nothing is changed."""

    method: str
    """In capitals, as "GET"."""
    origin: str
    """The address of the bookie's HTTP server: scheme, host and port."""
    path: str
    query: Mapping[str, str | int] = field(default_factory=dict)
    """The parameters of the URL."""
    body: object = None
    """Sent as JSON; None: no body is sent."""
    operator: str = ""
    seconds_max: float = ANSWER_S_MAX
    """How long the answer may take."""


class BookieHttp:
    """A client of bookies' HTTP servers. For one event loop, until `close`."""

    def __init__(self, access: BookieHttpAccess) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        """The session; None before the first request, and after `close`."""

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, limit_per_host=4)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._session

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def text(self, origin: str, path: str) -> str:
        """Return the body of a GET. Raises BookieHttpError."""
        return (await self._send(_Request("GET", origin, path))).decode("utf-8", "replace")

    async def get(self, origin: str, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        """Return the JSON of a GET. Raises BookieHttpError."""
        return await self._json(_Request("GET", origin, path, query or {}))

    async def change(self, method: str, origin: str, path: str, body: object, operator: str) -> Any:
        """Return the JSON of a request that changes something. `operator`: the user, for the bookie's audit log.

        Raises:
            BookieHttpError: the bookie refused, with its reason, or did not answer.
        """
        return await self._json(_Request(method, origin, path, body=body, operator=operator, seconds_max=CHANGE_S_MAX))

    async def _json(self, request: _Request) -> Any:
        body = await self._send(request)
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise BookieHttpError(f"{request.origin}{request.path} does not answer with JSON") from None

    async def _send(self, request: _Request) -> bytes:
        """Return the body of the response. Raises BookieHttpError."""
        origin = request.origin
        sent = None if request.body is None else json.dumps(request.body).encode()
        # Set without a body, too: otherwise the library would name another type, which a bookie refuses.
        headers = {} if request.method == "GET" else {"Content-Type": "application/json"}
        headers |= {"X-Operator": request.operator} if request.operator else {}
        own, context = await self._access.identity(origin)
        headers |= own
        try:
            async with self._opened().request(
                request.method,
                origin + request.path,
                params=request.query,
                data=sent,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=request.seconds_max),
                allow_redirects=False,
                ssl=True if context is None else context,
            ) as response:
                found = await _limited(response, origin)
                status = response.status
        except TimeoutError:
            raise BookieHttpError(f"{origin} did not answer within {request.seconds_max:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise BookieHttpError(f"{origin} does not answer: {error}") from None
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise BookieHttpError(_reason(found) or f"{origin}{request.path} answers {status}", status)
        return found


async def _limited(response: aiohttp.ClientResponse, origin: str) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_chunked(1 << 16):
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise BookieHttpError(f"{origin} answers with more than {ANSWER_BYTES_MAX} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _reason(body: bytes) -> str:
    """Return the message of an error of `/api/v2`, or the line of text of another one."""
    try:
        found = json.loads(body)
        return str(found["error"]["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        lines = body.decode("utf-8", "replace").strip().splitlines()
        return lines[0][:200] if lines else ""
