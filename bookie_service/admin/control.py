"""The control socket of a running bookie: an operator requests an action and receives its result.

It is `control` in the `current` directory of a ledger directory, the first one whose disk takes it, and only the
bookie's own user can open it. A connection carries one request, a JSON object on one line, and one response in the same
form. `live_commands` has the requests: `do` names the command. A response has `seconds`; `error` in it says why the
request failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.log_limit import place_of
from bkspark.security.principal import Principal
from bkspark.tasks import start_kept
from bookie_service.settings.arguments import describe
from bookie_service.settings.users import user_name
from bookie_service.storage import layout
from bookie_service.storage.io.files import is_disk_failure, refuses_writes

logger = logging.getLogger(__name__)

NAME = "control"
_LINE_BYTES_MAX = 64 * 1024
REQUEST_S_MAX = 10.0
CONNECTIONS_MAX = 16
_CREDENTIALS = struct.Struct("3i")

Permits = Callable[[Principal, str], bool]
Do = Callable[[Mapping[str, Any], str], Awaitable[dict[str, Any]]]
"""Carries out a request of a peer, and returns the response."""


class NotRunning(BookKeeperError):
    """No bookie serves on the directories."""


@contextlib.asynccontextmanager
async def serving(
    ledger_directories: Sequence[str], do: Do, permits: Permits = lambda principal, where: True
) -> AsyncIterator[None]:
    """Let `do(request, who)` answer those requests that `permits(principal, where)` allows, inside the context.

    The directories must be locked: a socket that exists already belongs to a dead process.

    Raises:
        OSError: the socket could not be created.
    """
    directory, listener = _listen_somewhere(list(map(layout.current, ledger_directories)))
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        start_kept(_answer(reader, writer, do, permits), tasks)

    server = await asyncio.start_unix_server(accept, sock=listener, limit=_LINE_BYTES_MAX)
    try:
        yield
    finally:
        server.close()
        # If the disk does not remove the socket, the next start and clients find that no process answers there.
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, NAME))
        for task in tasks:
            task.cancel()


def _listen_somewhere(directories: Sequence[str]) -> tuple[str, socket.socket]:
    """Return the first directory that takes the socket, and the socket.

    Raises:
        OSError: no directory takes it, or the reason has nothing to do with a disk.
    """
    errors: list[OSError] = []
    for directory in directories:
        try:
            return directory, _listen(directory)
        except OSError as error:
            if not refuses_writes(error):
                raise
            errors.append(error)
    raise errors[0]


def _listen(directory: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, NAME))
        with _short_path(directory) as path:
            listener.bind(path)
            # Before the socket listens, so that no other user can ever connect.
            os.chmod(path, 0o600)
        listener.setblocking(False)
        return listener
    except BaseException:
        listener.close()
        raise


@contextlib.contextmanager
def _short_path(directory: str) -> Iterator[str]:
    """Yield a path to the socket that is short enough for an address, even if that of the directory is long."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, do: Do, permits: Permits) -> None:
    try:
        line = await asyncio.wait_for(reader.readline(), REQUEST_S_MAX)
        user, pid = _peer(writer)
        if permits(Principal(user, "local"), f"control (pid {pid})"):
            answer = await _done(line, f"control:{user} (pid {pid})", do)
        else:
            answer = {"error": f"no rule of authorizationRulesFile gives local:{user} the right admin"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
    except (OSError, TimeoutError, ValueError):
        pass  # the client has left, sends nothing, or never ends its line
    finally:
        writer.close()


def _peer(writer: asyncio.StreamWriter) -> tuple[str, int]:
    """Return the user and the process at the other end, as the kernel reports them."""
    peer: socket.socket = writer.get_extra_info("socket")
    pid, user_id, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user_name(user_id), pid


async def _done(line: bytes, who: str, do: Do) -> dict[str, Any]:
    """Carry out a request; return the response."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict) or not isinstance(request.get("do"), str):
        return {"error": f"not a request: {line[:100]!r}"}
    began = time.monotonic()
    try:
        answer = await do(request, who)
    except (BookKeeperError, ConfigurationError) as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": describe(error)}
    except Exception as error:
        logger.exception(
            "the request %r failed: this is a defect", request["do"][:100], extra={"kind": place_of(error)}
        )
        return {"error": "an unexpected error; the bookie's log has it"}
    return {**answer, "seconds": round(time.monotonic() - began, 3)}


def ask(
    ledger_directories: Sequence[str], request: Mapping[str, Any], timeout_s: float | None = None
) -> dict[str, Any]:
    """Send a request to the bookie that runs on these directories; return its response. Without a time-out, wait for
    ever.

    Raises:
        NotRunning: no bookie runs there.
        BookKeeperError: the request failed. The message says why in one line.
        OSError: its socket may not be opened.
    """
    with _connected(list(map(layout.current, ledger_directories))) as peer:
        peer.settimeout(timeout_s)
        try:
            peer.sendall(json.dumps(request).encode() + b"\n")
            with peer.makefile("rb") as answers:
                line = answers.readline()
        except TimeoutError:
            raise BookKeeperError(
                f"the bookie has not answered for {timeout_s:g} s: it is busy or blocked; its log may say why"
            ) from None
    if not line:
        raise BookKeeperError("the bookie ended before it answered")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise BookKeeperError(answer["error"])
    return answer


def _connected(directories: Sequence[str]) -> socket.socket:
    """Return a connection to the bookie that runs on these directories. Raises NotRunning, OSError as `ask`."""
    for directory in directories:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short_path(directory) as path:
                peer.connect(path)
            return peer
        except OSError as error:
            peer.close()
            is_absent = isinstance(error, (FileNotFoundError, ConnectionRefusedError, NotADirectoryError))
            if not is_absent and not is_disk_failure(error):
                raise
    where = os.path.join(directories[0], NAME)
    raise NotRunning(f"no bookie runs on {os.path.dirname(directories[0])}: no process answers at {where}")
