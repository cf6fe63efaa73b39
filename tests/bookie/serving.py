"""A bookie service in this process and a peer that speaks V2 to it over a socket."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from bookie_service.admin.stopped_bookie import StoppedBookie
from bookie_service.engine.authorization import Authorization
from bookie_service.service import SLOW_STOP_S, BookieService
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage import layout
from bookie_service.storage.io.files import LocalFiles
from tests.disks import ROOMY, ROOMY_DISKS

T = TypeVar("T")

KEY = master_key(b"")
DIGEST = EntryDigest(DigestType.CRC32C, b"")


def stopped_in(options: ServiceOptions) -> StoppedBookie:
    """Return the files of a stopped bookie as its options have them."""
    return StoppedBookie(
        LocalFiles(),
        [layout.current(each) for each in options.journal_directories],
        [layout.current(each) for each in options.ledger_directories],
        options.store.storage_class,
        options.store.key_values,
    )


def service_options(directory: Path, **changes: object) -> ServiceOptions:
    """Options of a bookie whose journal and ledgers lie below `directory`."""
    options = ServiceOptions([str(directory / "journal")], [str(directory / "ledgers")], disks=ROOMY_DISKS)
    options = replace(options, store=replace(options.store, disks=ROOMY))
    return replace(options, **changes)


async def no_suspects() -> list[int]:
    """Name no ledger as one that may have lost entries."""
    return []


class Serving:
    """A service on a thread of its own; `with` starts it and stops it cleanly, unless `abandon` was called."""

    slow_stop_s = SLOW_STOP_S

    def __init__(
        self,
        options: ServiceOptions,
        files: LocalFiles | None = None,
        suspects: Sequence[int] | Exception = (),
        authorization: Authorization | None = None,
    ) -> None:
        """`suspects`: ledgers that the metadata store would name, were there one, or how it fails."""
        self._options = options
        self._authorization = authorization
        self._suspected = suspects
        self._files = files or LocalFiles()
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.failure: BaseException | None = None
        self.full: BaseException | None = None
        """Why the service stopped itself in order: its disks are full."""

    async def _suspects(self) -> list[int]:
        if isinstance(self._suspected, Exception):
            raise self._suspected
        return list(self._suspected)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        try:
            self.service = service = BookieService(self._files, self._options, self._authorization)
            await service.start(self._suspects)
            service.listen(listener)
        except BaseException as error:
            listener.close()
            self._error = error
            self._started.set()
            return
        self._started.set()
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([stopping, service.failed, service.full], return_when=asyncio.FIRST_COMPLETED)
        if service.failed.done():
            self.failure = service.failed.result()
            service.abandon()
        elif self._is_abandoned:
            service.abandon()
            # A killed process changes no file any more: a flush that has begun must not run beside the next service.
            store = service.storage.store
            while store.is_flushing and not (service.failed.done() or service.full.done()):
                await asyncio.sleep(0.001)
        else:
            try:
                await service.stop(self.slow_stop_s)
            except OSError as error:
                self.failure = error
            if service.full.done():
                self.full = service.full.result()

    def __enter__(self) -> Serving:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def abandon(self) -> None:
        """End without flushing anything, as near to a crash as one process gets."""
        self._is_abandoned = True

    def wait_for_failure(self) -> BaseException:
        """Return what made the service end itself."""
        self._thread.join(120)
        assert self.failure is not None
        return self.failure

    def connect(self, address: str = "127.0.0.1") -> Peer:
        """Return a client that comes from an address of this machine."""
        return Peer(self.port, address)

    def call(self, function: Callable[[], T]) -> T:
        """Return what a function returns that is called on the service's event loop."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)


@dataclass(frozen=True)
class Reply:
    """One reply frame, taken apart."""

    opcode: int
    status: int
    ledger_id: int
    entry_id: int
    request_id: int
    body: bytes


class Peer:
    """A blocking V2 client over one socket."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120, source_address=(address, 0))
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def go_on_over(self, secured: socket.socket) -> None:
        """Use another socket from now on: TLS over the one before."""
        self._file.close()
        self.socket, self._file = secured, secured.makefile("rb")

    def send(self, data: bytes | memoryview) -> None:
        self.socket.sendall(data)

    def read_exactly(self, count: int) -> bytes:
        """Return the next bytes, fewer if the bookie closes the connection."""
        return self._file.read(count)

    def frame(self) -> bytes | None:
        """Return the body of the next frame, None when the bookie closed the connection."""
        try:
            head = self._file.read(4)
        except ConnectionResetError:
            return None
        return self._file.read(struct.unpack(">i", head)[0]) if len(head) == 4 else None

    def reply(self) -> Reply:
        body = self.frame()
        assert body is not None, "the bookie closed the connection"
        word, status, ledger_id, entry_id = struct.unpack_from(">iiqq", body)
        opcode = word >> 16 & 0xFF
        if opcode == v2.BATCH_READ:
            return Reply(opcode, status, ledger_id, entry_id, struct.unpack_from(">q", body, 24)[0], body[32:])
        return Reply(opcode, status, ledger_id, entry_id, -1, body[24:])

    def replies(self, count: int) -> list[Reply]:
        return [self.reply() for _ in range(count)]

    def add(
        self, ledger_id: int, first_entry: int, payloads: Sequence[bytes], flags: int = 0, key: bytes = KEY
    ) -> list[int]:
        """Add entries and return their statuses, in order."""
        self.send(adds(ledger_id, first_entry, payloads, flags, key))
        by_entry = {reply.entry_id: reply.status for reply in self.replies(len(payloads))}
        return [by_entry[first_entry + i] for i in range(len(payloads))]

    def read(self, ledger_id: int, entry_id: int, flags: int = 0, key: bytes = KEY) -> Reply:
        self.send(v2.encode_reads(ledger_id, np.array([entry_id]), flags, key if flags & v2.DO_FENCING else None))
        return self.reply()

    def batch_read(
        self, ledger_id: int, first_entry: int, entries_max: int = 0, bytes_max: int = 1 << 20, flags: int = 0
    ) -> Reply:
        key = KEY if flags & v2.DO_FENCING else None
        self.send(v2.encode_batch_read(ledger_id, first_entry, 99, entries_max, bytes_max, flags, key))
        return self.reply()


def adds(
    ledger_id: int,
    first_entry: int,
    payloads: Sequence[bytes],
    flags: int = 0,
    key: bytes = KEY,
    digest: EntryDigest = DIGEST,
) -> bytes:
    """Return ADD frames of consecutive entries; an entry's bytes depend on its ids and payload alone."""
    frames = []
    for entry_id, payload in enumerate(payloads, first_entry):
        batch = EntryBatch.of([payload], ledger_id, entry_id)
        frames.append(v2.encode_adds(batch, -1, 0, digest, key, flags).buffer)
    return b"".join(frames)


def stored(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """Return the entry that `adds` sends for a payload."""
    return adds(ledger_id, entry_id, [payload])[4 + v2.ADD_HEAD_BYTES :]


def split(items: bytes) -> list[bytes]:
    """Return the entries of a batch-read body."""
    entries = []
    while items:
        (length,) = struct.unpack_from(">i", items)
        entries.append(items[4 : 4 + length])
        items = items[4 + length :]
    return entries
