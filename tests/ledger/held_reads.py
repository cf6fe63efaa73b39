"""Reads that a test answers when it wants to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from bkspark.ledger.reader import LedgerReader
from bkspark.net.pool import NetOptions
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from tests.ledger.hostile import DIGEST, PAYLOAD, Asked, HostileBookie, World, items, play, reply, sealed

PATIENT = NetOptions(read_timeout_s=3600.0, speculative_read_s=3600.0)
"""No test waits that long for a bookie."""
V3Answer = Callable[[protocol.Request], Iterable[protocol.Response]]


def explicit(lac: int | None, last_entry: int | None, status: int = protocol.EOK) -> V3Answer:
    """Answer the read of a LAC with an explicit LAC, and the last entry."""

    def answer(request: protocol.Request) -> Iterable[protocol.Response]:
        ledger_id = request.readLacRequest.ledgerId
        inner = protocol.ReadLacResponse(status=status, ledgerId=ledger_id)
        if lac is not None:
            inner.lacBody = DIGEST.seal_lac(ledger_id, lac)
        if last_entry is not None:
            inner.lastEntryBody = sealed(ledger_id, last_entry, length=10 * (last_entry + 1))
        head = v3.header(request.header.operation, request.header.txnId)
        return [protocol.Response(header=head, status=status, readLacResponse=inner)]

    return answer


class Held:
    """A bookie's answers to V2 requests: it holds entries 0 to `last`, which carries `lac`. A test may change both."""

    def __init__(self, last: int, otherwise: int = Status.ENOENTRY, *, lac: int | None = None) -> None:
        self.last = last
        self.otherwise = otherwise
        self.lac = lac

    def __call__(self, asked: Asked) -> bytes:
        is_last = asked.opcode == v2.READ and asked.entry_id == v2.LAST_ENTRY
        entry_id = self.last if is_last else asked.entry_id
        if not 0 <= entry_id <= self.last:
            return reply(asked, status=self.otherwise)
        if asked.opcode == v2.BATCH_READ:
            count = min(asked.entries_max, self.last + 1 - entry_id)
            return reply(asked, body=items(asked.ledger_id, entry_id, count))
        lac = self.lac if is_last else None
        return reply(asked, body=sealed(asked.ledger_id, entry_id, lac=lac, length=10 * (entry_id + 1)))


async def close(world: World, reader: LedgerReader, last_entry: int) -> None:
    stored = await world.ledgers.read(reader.ledger_id)
    await world.ledgers.write(reader.ledger_id, stored.metadata.closed(last_entry, 1000), stored.version)


async def entries(batches: object) -> list[int]:
    """Return the ids of the entries that are yielded; each has the payload that bookies here hold."""
    found: list[int] = []
    async for batch in batches:  # type: ignore[attr-defined]
        assert list(batch) == [PAYLOAD] * len(batch)
        found += range(batch.first_entry, batch.end_entry)
    return found


Reading = Callable[..., Awaitable[None]]


def opened(*bookies: tuple[Callable[[Asked], bytes], V3Answer], quorums: tuple[int, int, int] | None = None):
    """Return what runs a test with an open reader of a ledger of these bookies, the world and the bookies."""

    def run(test: Reading) -> None:
        async def call(world: World) -> None:
            serving = [HostileBookie(answer, answer_v3) for answer, answer_v3 in bookies]
            for bookie in serving:
                await bookie.__aenter__()
            try:
                size = len(serving)
                ledger_id = await world.ledger(*serving, quorums=quorums or (size, size, 1))
                await test(await world.client(net=PATIENT).open(ledger_id), world, *serving)
            finally:
                for bookie in serving:
                    await bookie.__aexit__()

        play(call, 20)

    return run
