"""A bookie service in a process of its own, without a metadata store, to be measured from outside."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import socket
from multiprocessing.connection import Connection
from pathlib import Path

from bookie_service.service import BookieService
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.io.files import LocalFiles
from tests.bookie.serving import Peer, no_suspects


class ServedProcess:
    """`with` starts the process and ends it."""

    def __init__(self, options: ServiceOptions) -> None:
        self._pipe, child_pipe = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(options, child_pipe), daemon=True)

    def __enter__(self) -> ServedProcess:
        self._process.start()
        assert self._pipe.poll(60), "the bookie did not start"
        self.port = self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join(120)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    def kill(self) -> None:
        """End it at once, as SIGKILL does."""
        self._process.kill()
        self._process.join()

    def connect(self) -> Peer:
        return Peer(self.port)

    def resident_bytes(self) -> int:
        """Return the memory that the process has in use."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the bookie has ended")


def _serve(options: ServiceOptions, pipe: Connection) -> None:
    asyncio.run(_run(options, pipe))


async def _run(options: ServiceOptions, pipe: Connection) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    service = BookieService(LocalFiles(), options)
    listener = socket.create_server(("127.0.0.1", 0))
    await service.start(no_suspects)
    service.listen(listener)
    pipe.send(listener.getsockname()[1])
    await stopping.wait()
    await service.stop()
