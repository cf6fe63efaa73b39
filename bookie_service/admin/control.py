"""The control socket of a running bookie: an operator requests an action and receives its result.

It is `control` in the `current` directory of the first ledger directory, open to the bookie's own user alone. A
connection carries one request, a JSON object on one line, and one answer likewise. There is one request,
{"do": "collect"}: the bookie collects garbage, and the answer has the fields of `PassReport` and `seconds`. An answer
with `error` says why the request failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from bkspark.errors import BookKeeperError
from bkspark.tasks import start_kept
from bookie_service.gc.garbage_collector import PassReport
from bookie_service.settings.arguments import describe, fail
from bookie_service.storage import layout

NAME = "control"
COLLECT = "collect"
_LINE_BYTES_MAX = 4096
_REQUEST_S_MAX = 10.0
CONNECTIONS_MAX = 16
_PROGRAM = "bookie"

Collect = Callable[[], Awaitable[PassReport]]


@contextlib.asynccontextmanager
async def serving(ledger_directories: Sequence[str], collect: Collect) -> AsyncIterator[None]:
    """Answer requests while inside. The directories must be locked: a socket that exists already belongs to a dead
    process.

    Raises:
        OSError: the socket could not be made.
    """
    directory = layout.current(ledger_directories[0])
    listener = _listen(directory)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        start_kept(_answer(reader, writer, collect), tasks)

    server = await asyncio.start_unix_server(accept, sock=listener, limit=_LINE_BYTES_MAX)
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, NAME))
        for task in tasks:
            task.cancel()


def _listen(directory: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, NAME))
        with _short_path(directory) as path:
            listener.bind(path)
            # Before it listens, so that no other user can ever connect.
            os.chmod(path, 0o600)
        listener.setblocking(False)
        return listener
    except BaseException:
        listener.close()
        raise


@contextlib.contextmanager
def _short_path(directory: str) -> Iterator[str]:
    """Give a path to the socket that is short enough for an address, however long the directory's is."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, collect: Collect) -> None:
    try:
        request = await asyncio.wait_for(reader.readline(), _REQUEST_S_MAX)
        answer = await _done(request, collect)
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
    except (OSError, TimeoutError, ValueError):
        pass  # the client is gone, sends nothing, or never ends its line
    finally:
        writer.close()


async def _done(line: bytes, collect: Collect) -> dict[str, Any]:
    """Carry out a request and return the answer."""
    try:
        request = json.loads(line)
    except ValueError:
        request = None
    if request != {"do": COLLECT}:
        return {"error": f"not a request: {line[:100]!r}"}
    began = time.monotonic()
    try:
        report = await collect()
    except BookKeeperError as error:
        return {"error": str(error)}
    return {**dataclasses.asdict(report), "seconds": round(time.monotonic() - began, 3)}


def ask(ledger_directories: Sequence[str], request: str) -> dict[str, Any]:
    """Ask the bookie that runs on these directories, and wait for its answer.

    Raises:
        BookKeeperError: no bookie runs there, or the request failed; the message says why in one line.
        OSError: its socket may not be opened.
    """
    directory = layout.current(ledger_directories[0])
    no_bookie = f"no bookie runs on {ledger_directories[0]}: no process answers at {os.path.join(directory, NAME)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        try:
            with _short_path(directory) as path:
                peer.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise BookKeeperError(no_bookie) from None
        peer.sendall(json.dumps({"do": request}).encode() + b"\n")
        with peer.makefile("rb") as answers:
            line = answers.readline()
    if not line:
        raise BookKeeperError("the bookie ended before it answered")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise BookKeeperError(answer["error"])
    return answer


def run_collect(ledger_directories: Sequence[str], as_json: bool) -> int:
    """Have the bookie that runs on these directories collect garbage, and print the result; return the exit code."""
    try:
        answer = ask(ledger_directories, COLLECT)
    except (BookKeeperError, OSError) as error:
        return fail(_PROGRAM, describe(error), 1)
    if as_json:
        print(json.dumps(answer))
    else:
        report = PassReport(**{field.name: answer[field.name] for field in dataclasses.fields(PassReport)})
        print(f"{report} ({answer['seconds']:.1f} s)")
    return 0
