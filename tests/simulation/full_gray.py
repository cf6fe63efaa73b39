"""Gray failures in the full tier: a bookie does not do its work for a while, its session lives on, no spare is there.

While it is gray the owner must go on with the Qa others, and not wait for it again and again. Afterwards the bookie
must take part again: an entry that is added then is on all Qw bookies.
"""

from __future__ import annotations

import asyncio

from bkspark.client import Client
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError
from bkspark.ledger.writer import LedgerWriter
from bkspark.net.pool import NetOptions
from tests.simulation.full_cluster import URI, DelayedTree, FullBookie
from tests.simulation.full_faults import links_of
from tests.simulation.full_links import TO_BOOKIE, TO_CLIENT
from tests.simulation.full_schedule import FullOutcome, FullSchedule

OPTIONS = WriterOptions(
    close_timeout_s=10.0,
    pending_entries_max=8,
    lag_entries_max=4,
    add_timeout_s=1.0,
    replacement_retry_s=0.2,
    slow_lag_s=1.0,
    hold_back_s_max=0.3,
    probe_pause_s_min=0.3,
    probe_pause_s_max=4.0,
    trial_s=0.3,
)
"""The window is full in an eighth of a second where a bookie does not answer."""
GRAY_KINDS = ("hang", "hung journal", "slow journal", "cut", "clogged", "forgetful")
SLOW_SYNCS_S = (0.5, 0.5, 1.0, 4.0)
"""What a slow journal takes to sync, on average. One that is a little slower only holds the owner back a little."""
QUIET_S = 0.3
"""Before a bookie turns gray."""
GRAY_S = 4.0
PAUSE_S = 0.04
"""Between two adds."""
HELD_BACK_S_MAX = 1.5
"""How long the owner may wait for a gray bookie: until it is left out, and when it comes back too early. An owner that
waits for it whenever it is registered exceeds this."""
BACK_S = 20.0
"""Within this time after it works again the bookie must take part."""


class GraySchedule(FullSchedule):
    """One seed."""

    QUORUMS = ((3, 3, 2), (3, 3, 2), (2, 2, 1), (3, 3, 1), (4, 3, 2))
    SPARES = (0,)
    gray_bookies = 1
    """How many bookies turn gray together."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.theme = "gray"
        self.cluster.network_s = self.random.choice((0.0005, 0.002))
        self.cluster.journal_s = self.random.choice((0.0005, 0.002))
        self.cluster.metadata_s = self.random.choice((0.0005, 0.005))
        self.kind = self.random.choice(GRAY_KINDS)
        self.held_back_s = 0.0
        """How long the owner waited while the bookie was gray."""
        self._whole_from: int | None = None

    def _client(self, tree: DelayedTree | None = None) -> Client:
        return Client(
            URI,
            tree=tree or self.cluster.session(),
            wire_protocol=self.protocol,
            net=NetOptions(connect_timeout_s=1.0, read_timeout_s=1.0),
            writer=OPTIONS,
        )

    def _press(self) -> None:
        """The owner's window is small in each of these schedules."""

    def _recoverers(self) -> int:
        return 0

    def _strikes(self) -> int:
        return 0

    async def _write(self, writer: LedgerWriter, span_s: float) -> None:
        names = list(writer.metadata.last_fragment.bookies)
        gray = [names.pop(names.index(self.random.choice(names))) for _ in range(self.gray_bookies)]
        try:
            await self._add_for(writer, QUIET_S)
            for name in gray:
                self._turn_gray(self.cluster.bookie(name))
            self.held_back_s = await self._add_for(writer, GRAY_S)
            if self.held_back_s > HELD_BACK_S_MAX:
                self.ledger.pending.append(f"the owner waited {self.held_back_s:.1f} s of {GRAY_S:.0f} ({self.kind})")
            for name in gray:
                self._work_again(self.cluster.bookie(name))
            await self._wait_until_whole(writer)
            self._learned_end("owner", await writer.close())
        except BookKeeperError as error:
            # Enough bookies worked all the time.
            self.ledger.pending.append(f"the owner ended: {error}")

    async def _add_for(self, writer: LedgerWriter, seconds: float) -> float:
        """Add entries for a time; return how long it took longer than it should."""
        ends, held_back_s = self.loop.time() + seconds, 0.0
        while self.loop.time() < ends:
            began = self.loop.time()
            await self._submit(writer, self.random.choice((1, 1, 2)))
            held_back_s += self.loop.time() - began
            await asyncio.sleep(PAUSE_S)
        return held_back_s

    async def _wait_until_whole(self, writer: LedgerWriter) -> None:
        """Add entries until all bookies take part, and one after that."""
        ends = self.loop.time() + BACK_S
        while not all(writer.core.slots.may_hold_back(slot) for slot in range(self.quorums[0])):
            if self.loop.time() > ends:
                self.ledger.pending.append(f"a bookie that works again was left out for {BACK_S:.0f} s ({self.kind})")
                return
            await self._add_for(writer, PAUSE_S)
        self._whole_from = len(self.ledger.invoked)
        await self._submit(writer, 1)

    def _turn_gray(self, bookie: FullBookie) -> None:
        self.history.count_fault(self.kind)
        self.ledger.disturbed.add(("", bookie.id))
        if self.kind == "hang":
            bookie.is_hung = True
        elif self.kind == "hung journal":
            bookie.is_journal_hung = True
        elif self.kind == "slow journal":
            bookie.slowness = self.random.choice(SLOW_SYNCS_S) / self.cluster.journal_s
        elif self.kind == "forgetful":
            bookie.forgets = 0.5
        else:
            ways = self.random.choice(((TO_BOOKIE,), (TO_CLIENT,), (TO_BOOKIE, TO_CLIENT)))
            for link in links_of(self.cluster, bookie, "owner"):
                for way in ways:
                    if self.kind == "cut":
                        link.is_cut[way] = True
                    else:
                        link.hold(way, GRAY_S)

    def _work_again(self, bookie: FullBookie) -> None:
        bookie.forgets = 0.0
        bookie.mend()

    def _note_how_prompt_all_must_be(self) -> None:
        """See what the last entry came to; nothing else is prompt here."""
        if self._whole_from is None:
            return
        for entry_id, copies in enumerate(self.ledger.audits[-1].copies[self._whole_from :], self._whole_from):
            if copies.missing:
                self.ledger.pending.append(f"entry {entry_id} is not on {copies.missing}, which took part again")


class TwoGraySchedule(GraySchedule):
    """One seed. Two bookies turn gray together, and Qa others are left."""

    QUORUMS = ((3, 3, 1), (4, 4, 2), (5, 5, 3))
    gray_bookies = 2


def run_gray(seed: int) -> FullOutcome:
    """Run the schedule of a seed."""
    return GraySchedule(seed).run()
