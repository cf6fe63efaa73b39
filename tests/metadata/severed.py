"""A network path to ZooKeeper that tests cut and restore."""

from __future__ import annotations

import asyncio


class SeverableLink:
    """A TCP relay on 127.0.0.1 to one server, on the running event loop; an async context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.port = 0
        self.connections = 0
        """How many connections were relayed. Only grows."""

    async def __aenter__(self) -> SeverableLink:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *reason: object) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()

    def cut(self) -> None:
        """Drop every connection, and every new one at once, until `restore`."""
        self._is_cut = True
        for writer in tuple(self._writers):
            writer.transport.abort()

    def restore(self) -> None:
        self._is_cut = False

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers.add(writer)
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        self._writers.add(server_writer)
        await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))
        self._writers -= {writer, server_writer}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while received := await reader.read(1 << 16):
            writer.write(received)
    except OSError:
        pass
    writer.close()
