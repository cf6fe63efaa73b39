"""Ten minutes with a bookie at a tenth of the speed, E3/Qw3/Qa2, the client's default limits. In virtual time.

Adds keep 0.9 of the normal rate until the bookie's backlog reaches its bound; then it is left out, or
replaced where there is a spare. That reads avoid it is shown in `test_gray_bookies`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from bkspark.client import Client, LedgerWriter
from bkspark.core.writer_options import WriterOptions
from bkspark.net.pool import NetOptions
from tests.ledger.gray_bookies import GrayCluster, play_with_client, takes_part

pytestmark = pytest.mark.slow

TEN_MINUTES_S, WINDOW_S = 600.0, 10.0
BATCH, PAUSE_S = 16, 0.2
RATE_PER_S = BATCH / PAUSE_S
KEPT_RATE = 0.9


@dataclass
class Seen:
    """What ten minutes came to: entries acknowledged in each window, when the bookie was left out or replaced first,
    and the answers that it owed then and at most."""

    windows: list[int] = field(default_factory=lambda: [0] * round(TEN_MINUTES_S / WINDOW_S))
    left_out_s: float | None = None
    owed_then: int = 0
    owed_max: int = 0


async def ten_minutes(cluster: GrayCluster, writer: LedgerWriter) -> Seen:
    """Add entries at a rate, and watch the victim."""
    loop, seen = asyncio.get_running_loop(), Seen()
    began = loop.time()

    def acknowledged(_: asyncio.Future[int]) -> None:
        window = int((loop.time() - began) / WINDOW_S)
        if window < len(seen.windows):
            seen.windows[window] += BATCH

    while loop.time() - began < TEN_MINUTES_S:
        (await writer.submit([b"x" * 100] * BATCH)).add_done_callback(acknowledged)
        await asyncio.sleep(PAUSE_S)
        slots = writer.core.slots
        is_named = cluster.victim.id in slots.ensemble
        owed = slots.all[slots.ensemble.index(cluster.victim.id)].outstanding if is_named else 0
        seen.owed_max = max(seen.owed_max, owed)
        if seen.left_out_s is None and not (is_named and takes_part(writer, cluster)):
            seen.left_out_s, seen.owed_then = loop.time() - began, seen.owed_max
    return seen


async def with_victim(cluster: GrayCluster, client: Client) -> LedgerWriter:
    """Return the writer of a ledger on the victim and two others."""
    while True:
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        if cluster.victim.id in writer.core.slots.ensemble:
            return writer
        await writer.close()


@pytest.mark.long_except("a spare", reason="tests/ledger/test_gray_bookies.py has shorter runs without a spare")
@pytest.mark.parametrize("spares", [0, 1], ids=["no spare", "a spare"])
def test_ten_minutes_at_a_tenth_of_the_speed_cost_less_than_a_tenth_of_the_adds(spares: int) -> None:
    limits = WriterOptions()

    async def test(cluster: GrayCluster, client: Client) -> None:
        writer = await with_victim(cluster, client)
        await writer.append_many([b"x"] * 10)
        cluster.frame_s = 10 / RATE_PER_S
        seen = await ten_minutes(cluster, writer)
        assert min(seen.windows) >= KEPT_RATE * RATE_PER_S * WINDOW_S, seen
        # It is given its share of the entries until it owes answers for as many as a slow bookie may.
        assert seen.left_out_s is not None, seen
        assert limits.slow_lag_entries - BATCH <= seen.owed_then <= limits.lag_entries_max, seen
        assert seen.owed_max <= limits.lag_entries_max, seen
        assert (cluster.victim.id in writer.core.slots.ensemble) == (not spares)
        last_entry = writer.last_entry
        assert (await writer.close()).last_entry == last_entry
        cluster.heal()
        reader = await client.open(writer.ledger_id)
        assert sum([len(batch) async for batch in reader.batches()]) == last_entry + 1

    play_with_client(test, spares, writer=limits, net=NetOptions())
