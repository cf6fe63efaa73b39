"""Bookies that hold entries and answer truthfully, but for what a test has them refuse; and what they were asked."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Collection

from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark.net.pool import NetOptions
from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.ledger.hostile import URI, Asked, HostileBookie, World, play, reply, sealed

FOR_EVER_S = 3600.0
"""A time-out that no test waits for: a test that waits for a silent bookie does not end."""
PATIENT = NetOptions(read_timeout_s=FOR_EVER_S, speculative_read_s=FOR_EVER_S)
_HEADER = struct.Struct(">qqqq")


def flags_of(asked: Asked) -> int:
    return int.from_bytes(asked.body[2:4], "big")


def adds_of(bookie: HostileBookie) -> list[Asked]:
    """Return the adds that a bookie got."""
    return [asked for asked in bookie.asked if asked.opcode == v2.ADD]


def header_of(add: Asked) -> tuple[int, int, int, int]:
    """Return (ledger, entry, LAC, length) of the entry in an add."""
    return _HEADER.unpack_from(add.body, v2.ADD_HEAD_BYTES)


class Holder:
    """How a bookie answers that holds some entries, and keeps those it gets.

    `fence`: a status for the fence instead of the last entry. `refuse`: returns a status for a request, or None.
    `hears`: whether a request is answered at all.
    """

    def __init__(
        self,
        held: Collection[int] = (),
        *,
        fence: int | None = None,
        refuse: Callable[[Asked], int | None] = lambda asked: None,
        hears: Callable[[Asked], bool] = lambda asked: True,
    ) -> None:
        self.held = set(held)
        self._fence = fence
        self._refuse = refuse
        self._hears = hears

    def __call__(self, asked: Asked) -> bytes | None:
        if not self._hears(asked):
            return None
        status = self._refuse(asked)
        if status is not None:
            return reply(asked, status=status)
        if asked.opcode == v2.ADD:
            self.held.add(asked.entry_id)
            return reply(asked)
        is_fence = asked.entry_id == v2.LAST_ENTRY
        if is_fence and self._fence is not None:
            return reply(asked, status=self._fence)
        entry_id = max(self.held, default=-1) if is_fence else asked.entry_id
        if entry_id not in self.held:
            return reply(asked, status=Status.ENOENTRY)
        return reply(asked, body=sealed(asked.ledger_id, entry_id, length=10 * (entry_id + 1)))


async def register(world: World, bookie: HostileBookie) -> None:
    """Let a bookie be a spare one."""
    registry = BookieRegistry(world.store.session(), MetadataUri.parse(URI))
    host, port = bookie.id.split(":")
    await registry.register(bookie.id, BookieAddress(host, int(port)))


def with_bookies(*answers: Callable[[Asked], bytes | None] | HostileBookie) -> Callable[..., None]:
    """Return what runs a test with a world and these bookies, or with bookies that answer so."""

    def run(test: Callable[..., Awaitable[None]]) -> None:
        async def call(world: World) -> None:
            bookies = [each if isinstance(each, HostileBookie) else HostileBookie(each) for each in answers]
            for bookie in bookies:
                await bookie.__aenter__()
            try:
                await test(world, *bookies)
            finally:
                for bookie in bookies:
                    await bookie.__aexit__()

        play(call, 20)

    return run
