"""The clients of a measurement, each in a process of its own: an honest one, floods, and a sink for the control.

Flood clients send bytes that were made before, as fast as they are taken, and throw replies away. So they cost little
more than the kernel's work, and the control does the same against a sink: what a flood costs the machine, and not the
bookie, is in both. That is also so for handshakes: a peer that finishes none needs no cryptography, and can send one
ClientHello on any number of connections.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from bkspark.wire import v2
from tests.bookie.serving import Peer, adds
from tests.floods.requests import HANDSHAKES, HELD, HELD_ENTRIES, REQUESTS, SIGNED_BYTES, SPARSE
from tests.security.sasl_serving import SaslPeer

_CONTEXT = multiprocessing.get_context("spawn")
MALFORMED = "malformed"
_CHUNK = 1 << 20
_HONEST_PAUSE_S = 0.001
_FIRST_HONEST_LEDGER = 1 << 30


@dataclass(frozen=True, slots=True)
class Flood:
    """What flood clients do.

    name: name of requests in `REQUESTS` or of a handshake in `HANDSHAKES`; MALFORMED: invalid frames; "": the
        connections send nothing.
    count: requests made before, and sent again and again. repeats: False: they are sent once.
    takes_replies: False: replies are left in the socket.
    demands_login: the bookie authenticates its clients, and the honest one has logged in.
    addresses: the number of addresses of this host that the connections come from.
    reconnects: False: connections that the bookie closes are not made again.
    idle_s: how long the bookie lets connections be silent; 0: as long as by default.
    """

    name: str
    connections: int = 1
    count: int = 20_000
    repeats: bool = True
    takes_replies: bool = True
    demands_login: bool = False
    addresses: int = 1
    reconnects: bool = True
    idle_s: float = 0.0


def bytes_of(what: Flood) -> bytes:
    """Return what each connection of a flood sends."""
    if what.name == MALFORMED:
        return b"\xff" * 64
    if what.name in HANDSHAKES:
        return HANDSHAKES[what.name]()
    return REQUESTS[what.name](what.count) if what.name else b""


class Child:
    """A process that tells when it is ready, does its work from `begin` to `end`, and returns something."""

    def __init__(self, work: Any, *arguments: Any) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=work, args=(theirs, *arguments), daemon=True)
        self._process.start()
        self.pid = self._process.pid or 0
        self.ready: Any = self._receive()

    def _receive(self) -> Any:
        assert self._pipe.poll(120), "a client does not answer"
        return self._pipe.recv()

    def begin(self) -> None:
        self._pipe.send("begin")

    def end(self) -> Any:
        self._pipe.send("end")
        return self._receive()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


@contextlib.contextmanager
def child(work: Any, *arguments: Any) -> Iterator[Child]:
    made = Child(work, *arguments)
    try:
        yield made
    finally:
        made.close()


def connect(port: int, *, logs_in: bool) -> Peer:
    """Return an honest client."""
    peer = Peer(port)
    if logs_in:
        SaslPeer(peer).authenticate()
    return peer


def honest(pipe: Connection, port: int, logs_in: bool) -> None:
    """Add and read one entry of 1 KiB at a time, from each `begin` to its `end`; return the seconds that each took.

    Each time on a new connection: a flood must not keep others from connecting.
    """
    pipe.send("ready")
    ledger_id = _FIRST_HONEST_LEDGER
    payload = b"h" * 1024
    with contextlib.suppress(EOFError):
        while True:
            pipe.recv()
            taken: dict[str, list[float]] = {"add": [], "read": []}
            ledger_id, entry_id = ledger_id + 1, 0
            with connect(port, logs_in=logs_in) as peer:
                while not pipe.poll():
                    frame = adds(ledger_id, entry_id, [payload])
                    taken["add"].append(_exchange(peer, frame))
                    taken["read"].append(_exchange(peer, v2.encode_reads(ledger_id, np.array([entry_id]))))
                    entry_id += 1
                    time.sleep(_HONEST_PAUSE_S)
            pipe.recv()
            pipe.send(taken)


def _exchange(peer: Peer, frame: bytes) -> float:
    began = time.perf_counter()
    peer.send(frame)
    reply = peer.reply()
    seconds = time.perf_counter() - began
    assert reply.status == 0, reply
    return seconds


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken of a flood: bytes, and how many of its connections got more than `SIGNED_BYTES`."""

    sent_bytes: int
    signed: int


def flood(pipe: Connection, port: int, what: Flood) -> None:
    """Flood a port from each `begin` to its `end`; return what was taken (`Taken`)."""
    data = memoryview(bytes_of(what))
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            pipe.recv()
            sources = Sources(port, what, data)
            while not pipe.poll():
                sources.step()
            pipe.recv()
            sources.close()
            pipe.send(Taken(sources.sent, sources.signed))


class Sources:
    """The connections of one flood client."""

    def __init__(self, port: int, what: Flood, data: memoryview) -> None:
        self.sent = 0
        self.signed = 0
        """Connections that were sent more than `SIGNED_BYTES`."""
        self._port = port
        self._what = what
        self._data = data
        self._made = 0
        self._at: dict[socket.socket, int] = {}
        """How much of the data each connection has sent."""
        self._unsigned: dict[socket.socket, int] = {}
        """How much each connection was sent, up to `SIGNED_BYTES`."""
        self._poll = select.poll()
        self._by_number: dict[int, socket.socket] = {}
        self._room = bytearray(_CHUNK)

    def step(self) -> None:
        """Connect where connections are missing, and send what is taken."""
        while (len(self._at) if self._what.reconnects else self._made) < self._what.connections:
            if not self._connect():
                break
            self._made += 1
        for number, events in self._poll.poll(20):
            source = self._by_number[number]
            try:
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._receive(source)
                if events & select.POLLOUT:
                    self._send(source)
            except BlockingIOError:
                pass
            except OSError:
                self._forget(source)

    def _connect(self) -> bool:
        source = socket.socket()
        try:
            if self._what.addresses > 1:
                source.bind((f"127.0.1.{1 + self._made % self._what.addresses}", 0))
            source.connect(("127.0.0.1", self._port))
        except OSError:
            source.close()
            return False
        source.setblocking(False)
        self._at[source] = self._unsigned[source] = 0
        self._by_number[source.fileno()] = source
        reads = select.POLLIN if self._what.takes_replies else 0
        self._poll.register(source, reads | (select.POLLOUT if self._data else 0))
        return True

    def _receive(self, source: socket.socket) -> None:
        size = source.recv_into(self._room)
        if not size:
            raise ConnectionResetError
        before = self._unsigned.get(source)
        if before is not None:
            self._unsigned[source] = before + size
            if before + size > SIGNED_BYTES:
                del self._unsigned[source]
                self.signed += 1

    def _send(self, source: socket.socket) -> None:
        at = self._at[source]
        if at == len(self._data):
            if not self._what.repeats:
                self._poll.modify(source, select.POLLIN if self._what.takes_replies else 0)
                return
            at = 0
        taken = source.send(self._data[at : at + _CHUNK])
        self._at[source] = at + taken
        self.sent += taken

    def _forget(self, source: socket.socket) -> None:
        self._poll.unregister(source)
        del self._by_number[source.fileno()]
        del self._at[source]
        self._unsigned.pop(source, None)
        source.close()

    def close(self) -> None:
        for source in list(self._at):
            self._forget(source)


def sink(pipe: Connection) -> None:
    """Accept any bytes on a port, until the pipe ends; the port is sent first."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    pipe.send(listening.getsockname()[1])
    listening.setblocking(False)
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    poll.register(pipe.fileno(), select.POLLIN)
    peers: dict[int, socket.socket] = {}
    room = bytearray(_CHUNK)
    while True:
        for number, _ in poll.poll():
            if number == pipe.fileno():
                return
            if number == listening.fileno():
                peer, _ = listening.accept()
                peer.setblocking(False)
                peers[peer.fileno()] = peer
                poll.register(peer, select.POLLIN)
                continue
            try:
                size = peers[number].recv_into(room)
                if not size:
                    raise ConnectionResetError
                peers[number].send(bytes(size // 2))
            except BlockingIOError:
                pass
            except OSError:
                poll.unregister(number)
                peers.pop(number).close()


def prepare(port: int, *, logs_in: bool) -> None:
    """Add what floods ask for."""
    with connect(port, logs_in=logs_in) as peer:
        assert not any(peer.add(HELD, 0, [b"held %d" % i for i in range(HELD_ENTRIES)]))
        assert not any(peer.add(SPARSE, 0, [b"first"]) + peer.add(SPARSE, (1 << 40) - 1, [b"last"]))
