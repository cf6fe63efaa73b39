"""Ways of one client to the cluster that a test cuts: a gate for each bookie and for ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from bkspark.metadata import encoding, paths, registration
from bkspark.metadata.ledgers import Versioned
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import ANY_VERSION, Callback, Operation, Stat, Tree

PIECE_BYTES = 1 << 16
Seen = Callable[[int, Versioned], None]


class Gate:
    """A TCP relay on 127.0.0.1 to one server. A direction that is shut forwards nothing and closes nothing, as a
    partition does; `reset` drops every connection. `delay_s` is how long it holds each piece back."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = {"up": asyncio.Event(), "down": asyncio.Event()}
        self.port = 0
        self.delay_s = 0.0
        self.heal()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.heal()
        self.reset()
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def shut(self, *directions: str) -> None:
        """Forward nothing any more in these directions ("up": to the server) until `heal`."""
        for direction in directions:
            self._open[direction].clear()

    def heal(self) -> None:
        self.delay_s = 0.0
        for opened in self._open.values():
            opened.set()

    def reset(self) -> None:
        """Drop every connection, in the middle of whatever it carries."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        ends = [writer]
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
            ends.append(server_writer)
            self._writers.add(server_writer)
            up = self._copy(reader, server_writer, "up")
            await asyncio.gather(up, self._copy(server_reader, writer, "down"))
        except (OSError, asyncio.CancelledError):
            pass  # the other end sees an unreachable server; asyncio would log that `stop` cancels this
        finally:
            for end in ends:
                self._writers.discard(end)
                end.transport.abort()
            self._tasks.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        with contextlib.suppress(OSError):
            while received := await reader.read(PIECE_BYTES):
                await self._open[direction].wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if writer.transport.is_closing():
                    break
                writer.write(received)
                await writer.drain()
        writer.transport.abort()


class RoutedTree(Tree):
    """A session through which a client finds its gates instead of the bookies, and that tells what ledger metadata it
    sees: `seen(ledger id, metadata)` for each read, and each write that was answered."""

    def __init__(self, inner: Tree, root: str, gates: dict[str, Gate], seen: Seen) -> None:
        self._inner = inner
        self._root = root
        self._gates = gates
        self._seen = seen

    def _note(self, path: str, data: bytes, version: int) -> None:
        if not path.startswith(f"{self._root}/"):
            return
        ledger_id = paths.parse_ledger_path(path[len(self._root) + 1 :])
        if ledger_id is not None:
            self._seen(ledger_id, Versioned(encoding.decode(data, ledger_id), version, 0, 0))

    @property
    def session_id(self) -> int:
        return self._inner.session_id

    @property
    def session_timeout_s(self) -> float:
        return self._inner.session_timeout_s

    async def get(self, path: str) -> tuple[bytes, Stat]:
        data, stat = await self._inner.get(path)
        bookie = path.removeprefix(f"{self._root}/{paths.AVAILABLE}/")
        if bookie in self._gates:
            return registration.encode(BookieAddress("127.0.0.1", self._gates[bookie].port)), stat
        self._note(path, data, stat.version)
        return data, stat

    async def exists(self, path: str) -> Stat | None:
        return await self._inner.exists(path)

    async def children(self, path: str) -> list[str]:
        return await self._inner.children(path)

    async def listing(self, path: str) -> tuple[list[str], Stat]:
        return await self._inner.listing(path)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        created, stat = await self._inner.create(
            path, data, ephemeral=ephemeral, sequential=sequential, make_parents=make_parents
        )
        self._note(created, data, 0)
        return created, stat

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        stat = await self._inner.set(path, data, version)
        self._note(path, data, stat.version)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._inner.delete(path, version)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await self._inner.transaction(operations)

    async def watch(self, path: str, callback: Callback) -> Callback:
        return await self._inner.watch(path, callback)

    async def watch_children(self, path: str, callback: Callback) -> Callback:
        return await self._inner.watch_children(path, callback)

    def on_session_expired(self, callback: Callback) -> Callback:
        return self._inner.on_session_expired(callback)

    async def close(self) -> None:
        await self._inner.close()
