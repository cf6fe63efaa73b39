"""Adds, fences and explicit LACs that change a twin at once, and clients that keep the answers."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from bkspark.wire import v2
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.twins import BookieTwin, TakingClient, add_frame, lac_packet, sealed

KEY, OTHER_KEY = b"k" * 20, b"o" * 20


class Client(TakingClient):
    """A connection that keeps the statuses that it was sent, and counts how often it was resumed."""

    def __init__(self) -> None:
        self.sent = b""
        self.resumed = 0

    def send(self, parts: Any) -> None:
        self.sent += b"".join(parts)

    def resume(self) -> None:
        self.resumed += 1

    @property
    def statuses(self) -> list[int]:
        """Statuses of V2 replies without a body; of entries only the first counts."""
        found, at = [], 0
        while at < len(self.sent):
            found.append(struct.unpack_from(">i", self.sent, at + 8)[0])
            at += 4 + int.from_bytes(self.sent[at : at + 4], "big")
        return found


def entry(ledger_id: int, entry_id: int) -> bytes:
    return sealed(struct.pack(">qqq", ledger_id, entry_id, -1) + b"payload")


def add(twin: BookieTwin, *ids: tuple[int, int], flags: int = 0, key: bytes = KEY) -> list[int]:
    """Send adds at once; return the statuses of the answers, once all is durable."""
    client = Client()
    twin.serve(client, b"".join(add_frame(key, entry(*each), flags) for each in ids))
    twin.settle()
    return client.statuses


def fence(twin: BookieTwin, ledger_id: int, key: bytes = KEY) -> list[int]:
    client = Client()
    twin.serve(client, v2.encode_reads(ledger_id, np.array([v2.LAST_ENTRY]), v2.DO_FENCING, key))
    twin.settle()
    return client.statuses


class Statuses:
    """A connection for explicit LACs and forces, which are answered with one byte."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self.got: list[int] = []
        self.resumed = 0

    def send(self, parts: Any) -> None:
        self.got += list(b"".join(parts))

    def resume(self) -> None:
        self.resumed += 1


def write_lac(twin: BookieTwin, ledger_id: int, lac: int, key: bytes = KEY) -> list[int]:
    client = Statuses()
    twin.bookie.write_lac(client, ledger_id, key, lac_packet(ledger_id, lac), lambda status: (bytes([status]),))
    twin.settle()
    return client.got


def mark(twin: BookieTwin) -> bytes:
    """Return the last log mark as it is on the disk."""
    return SimulatedFiles(twin.disk).read_all("/ledgers0/current/lastMark")
