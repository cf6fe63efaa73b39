"""The full tier over V3: readers that follow a ledger while it is written, explicit LACs, relaxed durability.

In addition to what `full_schedule` looks at: a reader that follows gets every entry once and in order, to the end, and
no LAC that was reported to it is after that. In a ledger with relaxed durability only confirmed entries count as
acknowledged; crashes lose what was not synced.
"""

from __future__ import annotations

import asyncio

from bkspark.client import Client
from bkspark.core.metadata import LedgerMetadata, LedgerType
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError
from bkspark.ledger.writer import LedgerWriter
from bkspark.net.pool import NetOptions
from tests.crash.images import Loss
from tests.simulation.full_cluster import URI, DelayedTree
from tests.simulation.full_schedule import PATIENCE_S, FullOutcome, FullSchedule

TYPES = (LedgerType.PD_JOURNAL, LedgerType.PD_JOURNAL, LedgerType.VD_JOURNAL, LedgerType.VD_BYPASS_JOURNAL)
FOLLOWERS = (1, 1, 2)
AGAIN_S = 0.05
"""Pause before a reader that got an error follows again."""


class TailSchedule(FullSchedule):
    """One seed."""

    PROTOCOLS = ("v2", "v3")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ledger_type = self.random.choice(TYPES)
        self.protocol = self.random.choice(self.PROTOCOLS)
        self._explicit_lac_s = self.random.choice((0.0, 0.005, 0.05))
        self._followers: list[asyncio.Task[None]] = []
        self._positions: dict[str, int] = {}
        self.reported_early = 0
        """How many entries readers that follow were given before the ledger was closed."""

    def _client(self, tree: DelayedTree | None = None) -> Client:
        return Client(
            URI,
            tree=tree or self.cluster.session(),
            wire_protocol=self.protocol,
            net=NetOptions(connect_timeout_s=1.0, read_timeout_s=1.0),
            writer=WriterOptions(
                close_timeout_s=10.0,
                force_timeout_s=5.0,
                explicit_lac_interval_s=self._explicit_lac_s,
                add_timeout_s=1.0,
                replacement_retry_s=0.5,
            ),
        )

    async def _create(self, owner: Client) -> LedgerWriter:
        size, write_quorum, ack_quorum = self.quorums
        relaxed = RelaxedDurability()
        if self.ledger_type.is_relaxed:
            changes = self.random.random() < 0.5
            interval_s = self.random.choice((0.0, 0.02))
            relaxed = RelaxedDurability(striped=True, changes_ensemble=changes, force_interval_s=interval_s)
        return await owner.create(
            ensemble=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            ledger_type=self.ledger_type.value,
            relaxed=relaxed,
        )

    async def _write(self, writer: LedgerWriter, span_s: float) -> None:
        if not self.ledger_type.is_relaxed:
            await super()._write(writer, span_s)
            return
        added = 0
        try:
            for _ in range(self.random.choice((3, 5, 8))):
                payloads = [b"entry %d" % (added + i) for i in range(self.random.choice((1, 1, 3, 20)))]
                for payload in payloads:
                    self.ledger.invoked[added] = (payload, self._now())
                    added += 1
                await writer.submit(payloads)
                await asyncio.sleep(self.random.expovariate(1.0) * span_s / 4)
                if self.random.random() < 0.4:
                    await self._sync(writer)
            await self._sync(writer)
            if self.random.random() < 0.5:
                self._learned_end("owner", await writer.close())
        except BookKeeperError:
            self.history.count_fault("owner ended early")
        finally:
            writer.abandon()

    async def _sync(self, writer: LedgerWriter) -> None:
        synced = await writer.sync()
        self.ledger.acknowledged.append((synced, self._now()))
        self.ledger.lacs.append(("owner", synced, self._now()))
        if self.random.random() < 0.15:
            await self._crash_all()

    async def _crash_all(self) -> None:
        """The power goes: what no bookie has synced is gone everywhere."""
        self.history.count_fault("power")
        for bookie in self.cluster.bookies:
            self.ledger.disturbed.add(("", bookie.id))
            await bookie.crash(self.random.choice(list(Loss)))
        for bookie in self.cluster.bookies:
            await bookie.start()

    def _recoverers(self) -> int:
        return self.random.choice((0, 0, 0, 1))

    def _note_how_prompt_all_must_be(self) -> None:
        # `sync` reports acknowledged entries, when it is called.
        if not self.ledger_type.is_relaxed:
            super()._note_how_prompt_all_must_be()

    # ---- readers that follow ----

    def _begin_others(self) -> None:
        for number in range(self.random.choice(FOLLOWERS)):
            self._followers.append(asyncio.ensure_future(self._follow(f"follower {number}")))

    async def _follow(self, who: str) -> None:
        """Follow the ledger to its end; after an error go on where it came."""
        self._positions[who] = 0
        while True:
            client = self._client()
            try:
                reader = await client.open(self._ledger_id)
                async for batch in reader.follow(self._positions[who]):
                    self.ledger.lacs.append((who, reader.last_entry, self._now()))
                    if batch.first_entry != self._positions[who]:
                        expected = self._positions[who]
                        self.ledger.pending.append(f"{who} got entry {batch.first_entry}, entry {expected} came next")
                    for i, payload in enumerate(batch):
                        self.ledger.reads.append((who, batch.first_entry + i, bytes(payload)))
                    self._positions[who] = batch.end_entry
                    self.reported_early += 0 if reader.is_closed else len(batch)
                return
            except BookKeeperError:
                self.history.count_fault("error was reported to a follower")
                await asyncio.sleep(AGAIN_S)
            finally:
                await client.close()

    async def _after_closing(self, metadata: LedgerMetadata) -> None:
        _, pending = await asyncio.wait(self._followers, timeout=PATIENCE_S)
        if pending:
            self.ledger.pending.append(f"{len(pending)} followers did not end")
        for who, position in self._positions.items():
            if position != metadata.last_entry + 1:
                self.ledger.pending.append(f"{who} ended before entry {position}, the ledger at {metadata.last_entry}")
        for task in self._followers:
            if task.done():
                task.result()


def run_tail(seed: int) -> FullOutcome:
    """Run the schedule of a seed."""
    return TailSchedule(seed).run()
