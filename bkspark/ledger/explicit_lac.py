"""Sends the explicit LAC of an idle writer to bookies: runs an ExplicitLac core on sockets and a timer."""

from __future__ import annotations

import asyncio

from bkspark.core import effects
from bkspark.core.explicit_lac import ExplicitLac
from bkspark.core.writer import WriterCore
from bkspark.errors import BookKeeperError
from bkspark.net.pool import BookiePool
from bkspark.wire import v2
from bkspark.wire.adds import AddSealer
from bkspark.wire.digest import EntryDigest


async def send_explicit_lac(
    pool: BookiePool, writer: WriterCore, sealer: AddSealer, digest: EntryDigest, master_key: bytes, interval_s: float
) -> None:
    """Send the writer's LAC to bookies every `interval_s` if no add has carried it, until cancelled.

    If a bookie does not accept it, the ledger is unaffected, and the next interval tries again.
    """
    metadata = writer.metadata
    core = ExplicitLac(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)

    async def send(effect: effects.WriteLac) -> None:
        try:
            channel = await pool.v3_channel(effect.bookie)
            status = await channel.write_lac(writer.ledger_id, effect.lac, digest, master_key)
        except BookKeeperError:
            core.on_failed()
            return
        if status == v2.EOK:
            core.on_written(effect.slot)
        else:
            core.on_failed()

    while True:
        await asyncio.sleep(interval_s)
        core.on_sealed(sealer.lac)
        todo = core.on_interval(writer.lac, writer.slots.ensemble)
        await asyncio.gather(*(send(effect) for effect in todo))
