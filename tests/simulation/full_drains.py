"""Drains and rolling restarts on virtual time: the shipped drain, commands, followers of plans, auditors and workers.

What must hold in addition to A1 to A5 (`full_repairs`), looked at whenever a ledger's metadata change, and while a
bookie is stopped:

    W1  each entry of a whole ledger has Qw durable copies on bookies that its metadata name, at every moment
    W2  while a bookie is stopped for a restart, another bookie that serves has a copy of each of these entries: all of
        its copies except one are there. If two operators restart bookies, all except two are there, and always one
    W3  a rolling restart stops one bookie at a time, two of them at most two, and no copy is replaced because of it
    W4  a drain ends a bounded time after the faults; no ledger names the bookie then
    W5  no open ledger is fenced by a drain that was not asked to close them

Two bookies may be drained at once, a bookie may be lost for ever during its drain, and another bookie may be down when
a rolling restart begins, or two operators restart bookies at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from random import Random

from bkspark.cli import restart
from bkspark.core.copies import settled_fragments, stored_entries
from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookKeeperError, MetadataError, NoSuchLedger
from bkspark.metadata import encoding
from bkspark.metadata.bookie_plans import DRAIN, BookiePlan, BookiePlans
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.paths import parse_ledger_path
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import EntryDigest
from bookie_service.cluster.plan_follower import PlanFollower
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.drain import Drain, DrainCancelled
from bookie_service.replication.options import AutoRecoveryOptions, RepairOptions
from tests.crash.images import Loss
from tests.simulation.full_cluster import URI, FullBookie
from tests.simulation.full_repairs import RepairSchedule, has_entry, image_of

DRAINED_S = 300.0
"""Virtual seconds after the faults in which a drain must end."""
FOLLOWED_S = 5.0
"""Virtual seconds in which bookies follow their plans."""
_URI = MetadataUri.parse(URI)


class DrainSchedule(RepairSchedule):
    """One seed: ledgers in all states, then a drain under faults, or a rolling restart."""

    def __init__(self, seed: int, *, has_two_operators: bool = False) -> None:
        """`has_two_operators`: two operators restart bookies at the same time, whatever the seed draws."""
        super().__init__(seed)
        self.loses_two = False
        self.drains = Random(f"drain {seed}")
        self.is_restart = self.drains.random() < 0.35 or has_two_operators
        self.closes_open = not self.is_restart and self.drains.random() < 0.3
        # Its own source: what happens in addition changes nothing in the rest.
        self.more = Random(f"more of drain {seed}")
        is_one_away = self.is_restart and self.more.random() < 0.5
        self.is_one_away = is_one_away and not has_two_operators
        self.restarts_twice = has_two_operators
        addition = "" if self.is_restart else self.more.choice(("", "", "second drain", "loss"))
        self.drains_two = addition == "second drain"
        self.loses_drained = addition == "loss"
        # Ledgers whose entries all had Qw copies when it began: the entries of settled fragments.
        self._whole: dict[int, int] = {}
        self._stopped: set[str] = set()
        self._works: set[asyncio.Task[None]] = set()

    # ---- the schedule ----

    async def _happen(self, span_s: float) -> None:
        await self._until_whole()
        for bookie in self.cluster.bookies:
            bookie.settle()
        await self._note_whole()
        tree = self.store.session()
        plans = BookiePlans(tree, _URI)
        await _surely(plans.prepare)
        followers = [
            PlanFollower(plans, bookie.id, self._follower(bookie), lambda: int(self.loop.time() * 1000))
            for bookie in self.cluster.bookies
        ]
        for follower in followers:
            await follower.start()
        try:
            await (self._restart_all(span_s) if self.is_restart else self._drain_under_faults(plans, span_s))
        finally:
            for follower in followers:
                await follower.stop()
            await asyncio.gather(*self._works, return_exceptions=True)

    def _follower(self, bookie: FullBookie) -> Callable[[BookiePlan | None], None]:
        words: set[str] = set()

        def follow(plan: BookiePlan | None) -> None:
            read_only = plan is not None and plan.sets_read_only
            restarts = plan is not None and plan.restart not in ({""} | words)
            if plan is not None:
                words.add(plan.restart)
            work = asyncio.ensure_future(self._obey(bookie, read_only, plan.restart if plan and restarts else ""))
            self._works.add(work)
            work.add_done_callback(self._works.discard)

        return follow

    async def _obey(self, bookie: FullBookie, read_only: bool, restart_word: str) -> None:
        await bookie.change(read_only=read_only)
        if not restart_word:
            return
        self.history.count_fault("restart")
        if len(self._stopped) >= (2 if self.restarts_twice else 1):
            self._complain(f"W3: {bookie.id} restarts while {self._stopped} is stopped")
        self._stopped.add(bookie.id)
        bookie.settle()
        await bookie.crash(Loss.LOST)
        # At once, before autorecovery replaces anything, and at the end.
        await self._check_served()
        # Two that are restarted at the same time are stopped together for a while.
        await asyncio.sleep(20.0 if self.restarts_twice else self.drains.choice((0.1, 2.0, 20.0)))
        await self._check_served()
        bookie.restarted_for = restart_word
        await bookie.start()
        self._stopped.discard(bookie.id)

    async def _restart_all(self, span_s: float) -> None:
        """Restart all bookies by the command's own steps, while owners write."""
        arguments = argparse.Namespace(command=None, timeout=600.0, despite=["too_few_bookies"])
        bookies = list(self.cluster.bookies)
        if self.is_one_away:
            away, first = await self._neighbours()
            await self._leave_for_a_while(away)
            bookies.sort(key=lambda bookie: bookie is not first)
        client, swaps = self._client(), self.swaps
        writing = [asyncio.ensure_future(self._append(ledger, 10 * span_s)) for ledger in self.ledgers]

        async def restart_each(some: list[FullBookie]) -> None:
            for bookie in some:
                try:
                    await asyncio.wait_for(restart.restart_one(client, bookie.id, arguments, bookie.id), 600)
                except (BookKeeperError, TimeoutError) as error:
                    self._complain(f"W4: the restart of {bookie.id} failed: {error!r}")
                    break

        if self.restarts_twice:
            self.history.count_fault("two restarts")
            first, second = await self._neighbours()
            rest = [bookie for bookie in bookies if bookie not in (first, second)]
            await asyncio.gather(restart_each([first, *rest[::2]]), restart_each([second, *rest[1::2]]))
        else:
            await restart_each(bookies)
        await self._ended(writing, "owners")
        await client.close()
        if self.swaps != swaps and not self.is_one_away:
            self._complain(f"W3: {self.swaps - swaps} copies were replaced because of a restart")

    async def _neighbours(self) -> tuple[FullBookie, FullBookie]:
        """Return two bookies that have copies of the same entries, if there are entries."""
        ensembles = [
            fragment.bookies
            for _, metadata in await self._metadata()
            for fragment, end_entry in settled_fragments(metadata)
            if end_entry > fragment.first_entry
        ]
        names = self.more.choice(ensembles) if ensembles else [bookie.id for bookie in self.cluster.bookies]
        away, first = self.more.sample(list(names), 2)
        return self.cluster.bookie(away), self.cluster.bookie(first)

    async def _leave_for_a_while(self, bookie: FullBookie) -> None:
        """Stop a bookie, and start it again later: its copies may be replaced until then."""
        self.history.count_fault("one away")
        bookie.settle()
        await bookie.crash(Loss.LOST)

        async def come_back() -> None:
            await asyncio.sleep(self.more.choice((1.0, 5.0, 30.0)))
            await bookie.start()

        work = asyncio.ensure_future(come_back())
        self._works.add(work)
        work.add_done_callback(self._works.discard)

    async def _drain_under_faults(self, plans: BookiePlans, span_s: float) -> None:
        victim = self.drains.choice(self.cluster.bookies)
        plan = BookiePlan(victim.id, DRAIN, "a test", 1)
        await _surely(lambda: plans.set(plan))
        second = self._second_drain(plans, victim) if self.drains_two else None
        other = None if second is None else asyncio.ensure_future(second)
        if self.drains_two:
            await asyncio.sleep(FOLLOWED_S)
        draining = asyncio.ensure_future(self._draining(victim))
        strikes = 0 if self.loses_drained else self.drains.choice((0, 1, 2))
        work = [self._strike(4 * span_s) for _ in range(strikes)]
        work += [self._append(ledger, 4 * span_s) for ledger in self.ledgers if self.drains.random() < 0.5]
        if self.loses_drained:
            work.append(self._lose(victim, 4 * span_s))
        self._is_calm = False
        await self._ended([asyncio.ensure_future(each) for each in work], "faults")
        for _ in range(self.drains.choice((0, 1, 2))):
            await asyncio.sleep(self.drains.random() * span_s)
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            self.history.count_fault("drain killed")
            if self.drains.random() < 0.3:
                await _surely(lambda: plans.end(victim.id))
                self.history.count_fault("drain cancelled")
                await asyncio.sleep(self.drains.random() * span_s)
                await _surely(lambda: plans.set(plan))
            draining = asyncio.ensure_future(self._draining(victim))
        self.cluster.store.faults.clear()
        for bookie in self.cluster.bookies:
            bookie.is_damaging = False
            await bookie.start()
        for link in sorted(self.cluster.links, key=lambda it: it.number):
            link.abort()
        if not self.closes_open:
            # Their owners leave the bookie with the next entry, or close.
            for ledger in self.ledgers:
                await self._close(ledger)
                await self._recovered_by_a_client(ledger.ledger_id)
        if self.loses_drained:
            # A drain needs the bookie; autorecovery replaces what was lost with it.
            await self._until_whole()
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
        else:
            await self._ended_in_time(draining, victim)
            if other is not None:
                await self._ended_in_time(other, None)
        await self._check_unnamed(victim)
        await self._until_whole()

    async def _second_drain(self, plans: BookiePlans, first: FullBookie) -> None:
        """Drain another bookie at the same time."""
        self.history.count_fault("second drain")
        victim = self.more.choice([bookie for bookie in self.cluster.bookies if bookie is not first])
        await _surely(lambda: plans.set(BookiePlan(victim.id, DRAIN, "a test", 1)))
        await asyncio.sleep(FOLLOWED_S)
        await self._draining(victim)
        await self._check_unnamed(victim)

    async def _lose(self, victim: FullBookie, span_s: float) -> None:
        await asyncio.sleep(self.more.random() * span_s)
        self.history.count_fault("lost while drained")
        victim.is_lost = True
        await victim.crash(Loss.LOST)

    async def _ended_in_time(self, drain: asyncio.Future[None], victim: FullBookie | None) -> None:
        try:
            await asyncio.wait_for(drain, DRAINED_S)
        except TimeoutError:
            which = "the second bookie" if victim is None else victim.id
            self._complain(f"W4: the drain of {which} did not end")

    async def _draining(self, victim: FullBookie) -> None:
        """Drain a bookie: a process that is started again when it fails."""
        options = AutoRecoveryOptions(
            repair=RepairOptions(
                ledgers_at_once=self.drains.choice((1, 4)),
                bytes_per_s=self.drains.choice((-1, -1, 500)),
                grace_s=0.5,
            )
        )
        while True:
            client = self._client()
            try:
                cluster = await RepairedCluster.of(client)
                await Drain(cluster, victim.id, "drainer", options, lambda _: None, closes_open=self.closes_open).run()
                self.history.count_fault("drained")
                return
            except DrainCancelled:
                await asyncio.sleep(0.5)
            except BookKeeperError:
                await asyncio.sleep(0.5)
            finally:
                await client.close()

    async def _recovered_by_a_client(self, ledger_id: int) -> None:
        client = self._client()
        self._is_repairing = False
        with contextlib.suppress(BookKeeperError):
            await client.recover(ledger_id)
        self._is_repairing = True
        await client.close()

    # ---- what must hold ----

    async def _metadata(self) -> list[tuple[int, LedgerMetadata]]:
        ledgers = LedgerStore(self.store.session(), _URI)
        found = []
        for written in self.ledgers:
            with contextlib.suppress(NoSuchLedger):
                found.append((written.ledger_id, (await ledgers.read(written.ledger_id)).metadata))
        return found

    async def _note_whole(self) -> None:
        for ledger_id, metadata in await self._metadata():
            ends = [end_entry for _, end_entry in settled_fragments(metadata)]
            self._whole[ledger_id] = ends[-1] if ends else 0
        for ledger_id, metadata in await self._metadata():
            self._check_durable(ledger_id, metadata)

    def _entries(self, ledger_id: int, metadata: LedgerMetadata) -> Iterator[tuple[str, int]]:
        """Yield (bookie, entry) of each copy of the entries that were whole when it began."""
        for fragment, end_entry in settled_fragments(metadata):
            end_entry = min(end_entry, self._whole.get(ledger_id, 0))
            for slot, name in enumerate(fragment.bookies):
                for entry_id in stored_entries(fragment, end_entry, slot, metadata.write_quorum).tolist():
                    yield name, entry_id

    def _check_durable(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """W1: `stored_entries` names Qw bookies for each entry; each of them must have it on its disk."""
        images = {name: image_of(self.cluster.bookie(name)) for name in _named(metadata)}
        digest = EntryDigest(metadata.digest, b"")
        for name, entry_id in self._entries(ledger_id, metadata):
            if not has_entry(images[name], digest, ledger_id, entry_id):
                self._complain(f"W1: ledger {ledger_id} entry {entry_id}: {name} is named and has no durable copy")

    async def _check_served(self) -> None:
        """W2, while a bookie is stopped. A rolling restart takes one copy away, two of them more."""
        for ledger_id, metadata in await self._metadata():
            self._check_durable(ledger_id, metadata)
            entries: dict[int, int] = {}
            for name, entry_id in self._entries(ledger_id, metadata):
                entries[entry_id] = entries.get(entry_id, 0) + (self.cluster.bookie(name).twin is not None)
            for entry_id, count in entries.items():
                # What one takes away; of two, the second stops no bookie with the last copy.
                least = max(1, metadata.write_quorum - 2) if self.restarts_twice else metadata.write_quorum - 1
                if count < least:
                    self._complain(f"W2: ledger {ledger_id} entry {entry_id} has {count} copies that serve")

    async def _check_unnamed(self, victim: FullBookie) -> None:
        for ledger_id, metadata in await self._metadata():
            if victim.id in _named(metadata):
                self._complain(f"W4: ledger {ledger_id} names {victim.id} after its drain")

    def _changed(self, path: str, before: bytes, after: bytes, version: int) -> None:
        super()._changed(path, before, after, version)
        if not self._whole:
            return
        ledger_id = parse_ledger_path(path.removeprefix(f"{_URI.root}/"))
        if ledger_id is not None:
            self._check_durable(ledger_id, encoding.decode(after, ledger_id))

    def _check_fencing(self, ledger_id: int, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if not self.closes_open:
            super()._check_fencing(ledger_id, old, new)


async def _surely(change: Callable[[], Awaitable[object]]) -> None:
    """Change a plan as an operator does, who tries again when the metadata store lost an answer."""
    while True:
        try:
            await change()
            return
        except MetadataError:
            await asyncio.sleep(0.1)


def _named(metadata: LedgerMetadata) -> set[str]:
    return {name for fragment in metadata.fragments for name in fragment.bookies}
