"""Defects planted in the client during real runs: the judge must see each from the history, and nothing without it.

Each scenario brings three real bookies into the situation in which the defect shows. It runs twice, on the product as
it is and with the defect. Three sites: an owner, a recoverer and a reader, each with its own gates.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bkspark.client import Client, LedgerWriter
from bkspark.core.last_confirmed import LastConfirmed, LastEntries
from bkspark.errors import BookKeeperError
from bkspark.log import writer as log_writer
from bkspark.log.formats import SegmentFacts
from bkspark.log.snapshot import LogSnapshot
from bkspark.metadata.ledgers import LedgerStore
from bkspark.wire.digest import EntryDigest
from tests.chaos.world import Metadata, Site
from tests.cluster import Cluster
from tests.histories import recorded
from tests.histories.recorded import RecordedLog, RecordedReader, RecordedWriter
from tests.histories.recording import Recorder
from tests.planting import Plant, around, both, replaced
from tests.simulation.planted import acknowledged_by_one_less, one_negative_ends, recovery_overwrites_the_end

BOOKIES = 3


class Stage:
    """A cluster with its three sites, and the recorder of one run."""

    def __init__(self, cluster: Cluster, recorder: Recorder) -> None:
        self.cluster = cluster
        self.recorder = recorder
        seen = Metadata().note
        self.sites = [Site(name, cluster, seen) for name in ("owner", "recoverer", "reader")]
        self.owner, self.recoverer, self.reader = self.sites
        self.bookies = [bookie.id for bookie in cluster.bookies]

    async def __aenter__(self) -> Stage:
        for site in self.sites:
            await site.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for site in self.sites:
            await site.stop()

    async def writer(self) -> tuple[LedgerWriter, RecordedWriter]:
        """Return the writer of a new ledger on all bookies, two of which acknowledge."""
        writer = await self.owner.client.create(ensemble=BOOKIES, write_quorum=BOOKIES, ack_quorum=2)
        return writer, RecordedWriter(self.recorder, writer)

    async def until_held(self, writer: LedgerWriter, bookie: str, entry_id: int) -> None:
        """Wait until a bookie holds an entry."""
        channel = await (await self.reader.client.context()).pool.channel(bookie)
        digest, ids = EntryDigest(writer.metadata.digest, b""), np.array([entry_id])
        while (await channel.read_entries(writer.ledger_id, ids, digest)).payloads[0] is None:
            await asyncio.sleep(0.01)

    async def end(self, ledger_id: int, client: Client) -> None:
        """Close a ledger and look at it once more."""
        await recorded.recover(self.recorder, client, ledger_id, "last recoverer")
        await recorded.last_look(self.recorder, client, ledger_id)


def _entries(first: int, count: int) -> list[bytes]:
    return [b"entry %d" % entry_id for entry_id in range(first, first + count)]


async def _leave(site: Site, writer: LedgerWriter) -> None:
    """The owner goes, and with it all that is on its way."""
    writer.abandon()
    for gate in site.gates.values():
        gate.reset()
    site.heal()


# ---- the scenarios ----


async def a_bookie_is_lost(stage: Stage, planted: bool) -> None:
    """Entries reach one bookie of three, which is killed, its disk lost; the others decide. Without the defect the disk
    is kept for the next run, as nothing looks at it."""
    first, *others = stage.bookies
    writer, recording = await stage.writer()
    await (await recording.submit(_entries(0, 10)))
    for bookie in others:
        stage.owner.gates[bookie].shut("up", "down")
    pending = await recording.submit(_entries(10, 10))
    await stage.until_held(writer, first, 19)
    if planted:
        await pending
    await _leave(stage.owner, writer)
    await asyncio.wait([pending])
    lost = stage.cluster.bookies[0]
    await asyncio.to_thread(lost.kill)
    if planted:
        shutil.rmtree(lost.dir)
    await stage.end(writer.ledger_id, stage.recoverer.client)
    if not planted:
        lost.restart()  # by this thread: the bookie ends with the one that starts it


async def one_bookie_lacks_the_end(stage: Stage, planted: bool) -> None:
    """Two bookies of three hold the entries; a recoverer asks all three, each for some of them first."""
    stage.owner.gates[stage.bookies[-1]].shut("up", "down")
    writer, recording = await stage.writer()
    await (await recording.submit(_entries(0, 10)))
    await _leave(stage.owner, writer)
    await stage.end(writer.ledger_id, stage.recoverer.client)


async def one_bookie_lags(stage: Stage, planted: bool) -> None:
    """Two bookies of three hold all entries, the third none; a reader reaches first these two, then the third alone."""
    *holding, lagging = stage.bookies
    stage.owner.gates[lagging].shut("up", "down")
    writer, recording = await stage.writer()
    for entry_id in range(10):
        await (await recording.submit(_entries(entry_id, 1)))
    reader = RecordedReader(stage.recorder, "reader")
    for unreachable in ([lagging], holding):
        stage.reader.heal()
        for bookie in unreachable:
            stage.reader.gates[bookie].shut("up", "down")
        with contextlib.suppress(BookKeeperError):  # one bookie is too few to tell
            await reader.look(stage.reader.client, writer.ledger_id)
    await _leave(stage.owner, writer)
    await stage.end(writer.ledger_id, stage.recoverer.client)


async def two_recoveries_find_different_ends(stage: Stage, planted: bool) -> None:
    """Entries that were not acknowledged lie on one bookie. One recovery does not hear of them, and is held up before
    it closes the ledger; another one finds them, and closes it meanwhile."""
    first, *others = stage.bookies
    writer, recording = await stage.writer()
    await (await recording.submit(_entries(0, 5)))
    for bookie in others:
        stage.owner.gates[bookie].shut("up", "down")
    pending = await recording.submit(_entries(5, 5))
    await stage.until_held(writer, first, 9)
    await _leave(stage.owner, writer)
    await asyncio.wait([pending])

    # One hears both bookies that lack the entries; the other one hears only one of these, which does not decide.
    stage.recoverer.gates[first].shut("up", "down")
    stage.reader.gates[others[0]].shut("up", "down")
    held, go_on = asyncio.Event(), asyncio.Event()
    store = (await stage.recoverer.client.context()).ledgers

    async def hold_up(old: Any, self: LedgerStore, ledger_id: int, metadata: Any, version: int) -> Any:
        if self is store and metadata.is_closed:
            held.set()
            await go_on.wait()
        return await old(self, ledger_id, metadata, version)

    with around(LedgerStore, "write", hold_up):
        recovering = recorded.recover(stage.recorder, stage.recoverer.client, writer.ledger_id, "recoverer 1")
        task = asyncio.ensure_future(recovering)
        await held.wait()
        await recorded.recover(stage.recorder, stage.reader.client, writer.ledger_id, "recoverer 2")
        go_on.set()
        await task
    stage.recoverer.heal()
    await recorded.last_look(stage.recorder, stage.recoverer.client, writer.ledger_id)


async def a_leader_is_overtaken(stage: Stage, planted: bool) -> None:
    """A log's leader does not hear from the metadata store that another one has taken the log, and goes on."""
    name = "taken-planted" if planted else "taken"
    old_log, new_log = (
        RecordedLog(stage.recorder, site.client.log(name), site.name) for site in (stage.owner, stage.recoverer)
    )
    old = await old_log.open_for_writing("old")
    await (await old.submit(_entries(0, 5)))
    stage.owner.zookeeper.shut("up", "down")
    new = await new_log.open_for_writing("new")
    await (await new.submit(_entries(5, 5)))
    with contextlib.suppress(BookKeeperError):
        await (await old.submit(_entries(10, 5)))
    old.abandon()
    stage.owner.heal()
    await new.close()
    await new_log.recover()
    await new_log.read()


# ---- the defects ----


async def _look_without_fencing(client: Client, snapshot: LogSnapshot) -> list[tuple[int, SegmentFacts]]:
    readers = [
        (ordinal, await client.open((await snapshot.ledger(ordinal)).ledger_id)) for ordinal in snapshot.open_ordinals
    ]
    return [(ordinal, SegmentFacts(seen.ledger_id, seen.last_entry, seen.length)) for ordinal, seen in readers]


def opened_without_fencing() -> Plant:
    return replaced(log_writer, "fence", _look_without_fencing)


def lac_of_the_first_answer() -> Plant:
    """A reader takes the LAC of the first bookie that answers, and forgets the one that it knew."""
    return both(
        replaced(LastEntries, "joined", lambda self, other: other),
        replaced(LastConfirmed, "is_covered", property(lambda self: bool(self._known))),
    )


@dataclass(frozen=True)
class Scenario:
    """A situation, the defect that shows in it, and what the judge says then."""

    name: str
    act: Callable[[Stage, bool], Awaitable[None]]
    plant: Callable[[], Plant]
    complaint: str


SCENARIOS = (
    Scenario("one negative ends a recovery", one_bookie_lacks_the_end, one_negative_ends, "are lost: the end is"),
    Scenario("the LAC falls", one_bookie_lags, lac_of_the_first_answer, "the LAC of this reader fell"),
    Scenario(
        "a late recovery overwrites the end",
        two_recoveries_find_different_ends,
        recovery_overwrites_the_end,
        "two ends",
    ),
    Scenario("a log is opened without fencing", a_leader_is_overtaken, opened_without_fencing, "cannot open the log"),
    # The last one: it loses a bookie.
    Scenario("acknowledged by one bookie less", a_bookie_is_lost, acknowledged_by_one_less, "are lost: the end is"),
)


def run(folder: Path, scenario: Scenario, cluster: Cluster, is_planted: bool) -> Path:
    """Run a scenario on a cluster of three bookies; return the file of its history."""
    history = folder / f"{scenario.name.replace(' ', '-')}{'-planted' * is_planted}.jsonl"
    plant = scenario.plant() if is_planted else contextlib.nullcontext()

    async def act(recorder: Recorder) -> None:
        async with Stage(cluster, recorder) as stage:
            await scenario.act(stage, is_planted)

    with Recorder(history, {"scenario": scenario.name, "planted": is_planted}) as recorder, plant:
        asyncio.run(act(recorder))
    return history
