"""`python -m tests.simulation.commits`: random schedules of a streaming query's commits, checked by what readers see.

    --seed N --budget SECONDS --json   schedules from seed N on, for this long; one JSON object on stdout
    --replay N                         one schedule again

A schedule is one query over a few epochs, its tasks, the worker processes that commit, a reader, a vacuum and perhaps a
truncation, all at once. Tasks fail, are repeated and have speculative twins; processes are killed at any call; answers
are lost; Spark repeats an epoch with new messages, and aborts after a commit that raised. Some queries publish under a
name, and a rival with another checkpoint may do so too, at the same time or later. See docs/simulation.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError, DataLoss, LedgerFenced, MetadataError, VersionPublished
from bkspark.log import SegmentFacts, SegmentOwner
from bkspark.log.epochs import EpochCommitter, Output
from bkspark.log.formats import Publisher
from bkspark.log.positions import Position
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.writer import LedgerOptions, RollLimits
from tests.simulation.commit_world import NAME, Killed, Process, World
from tests.simulation.turn_loop import TurnLoop

QUERY = "q"
RIVAL = "rival"
OPTIONS = LedgerOptions(1, 1, 1)
TO_COME_MS = 10**14
"""A time, ms since 1970, before which everything began."""
TRIES_MAX = 40
"""Times that a query repeats an epoch; faults are fewer, so more mean that it never gets through."""

RIVAL_TRIES = 3 * TRIES_MAX
"""Number of a rival's first try, above those of any other query."""

Tag = tuple[int, int]
"""(version, try) of which a row is."""


@dataclass(slots=True)
class Query:
    """A streaming query: its id, the name that it publishes under, the version of its epoch 0."""

    query_id: str
    name: str | None = None
    first_version: int = 0
    has_stopped: bool = False

    @property
    def owner_id(self) -> str:
        return self.name or self.query_id

    @property
    def first_try(self) -> int:
        return RIVAL_TRIES if self.query_id == RIVAL else 0

    def has_try(self, number: int) -> bool:
        return (number >= RIVAL_TRIES) == (self.query_id == RIVAL)

    def publisher(self, epoch: int) -> Publisher:
        version = self.first_version + epoch
        return Publisher(self.owner_id, version, None if self.name is None else self.query_id)


@dataclass(slots=True)
class Outcome:
    """What became of a schedule."""

    seed: int
    violations: list[str] = field(default_factory=list)
    struck: dict[str, int] = field(default_factory=dict)
    epochs: int = 0
    ledgers_made: int = 0


class Schedule:
    """One random schedule; everything random comes from the world's chance."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.outcome = Outcome(seed)
        self._loop = TurnLoop()
        chance = self.world.chance
        self._epochs = chance.choice((1, 1, 1, 2, 2, 3))
        self._is_complete = chance.random() < 0.15
        self._kills = chance.choice((0, 1, 1, 2))
        self._losses = chance.choice((0, 0, 1, 2))
        self._has_truncation = not self._is_complete and chance.random() < 0.2
        self._queries = [Query(QUERY)]
        if chance.random() < 0.25:
            self._queries = [Query(each, "app") for each in (QUERY, RIVAL)[: chance.choice((1, 2, 2))]]
        self._quiet = Process(self.world)
        self._workers: list[tuple[Process, EpochCommitter]] = []
        self._busy: list[Process] = []
        self._numbers = itertools.count()
        # Rows in order that each try of an epoch would publish, and the try that a query believes published.
        self._tries: dict[Tag, list[bytes]] = {}
        self._plans: dict[tuple[str, int], list[str]] = {}
        # By version that was acknowledged: the query, and the epoch that it is to that.
        self._done: dict[int, tuple[Query, int]] = {}
        self._is_over = False

    def run(self) -> Outcome:
        """Run the schedule to its end, on a loop of its own."""
        return self._loop.run(self._run())

    async def _run(self) -> Outcome:
        chance = self.world.chance
        await self._quiet.log.create()
        actors = [self._all_queries(), self._vacuum()]
        if chance.random() < 0.5:
            actors.append(self._reader())
        if self._has_truncation:
            actors.append(self._truncation())
        results = await asyncio.gather(*actors, return_exceptions=True)
        for result in results:
            if isinstance(result, BookKeeperError):
                self._complain(f"{type(result).__name__}: {result}")
            elif isinstance(result, BaseException):
                raise result  # a fault of the simulator, or of the product beyond what it may raise
        if not self.outcome.violations:
            await self._check_end()
        self.outcome.struck = self.world.struck
        self.outcome.ledgers_made = self.world.next_ledger
        return self.outcome

    def _complain(self, text: str) -> None:
        self.outcome.violations.append(text)

    # ---- Spark ----

    async def _all_queries(self) -> None:
        try:
            if self.world.chance.random() < 0.5:
                await asyncio.gather(*map(self._query, self._queries))
            else:
                for query in self._queries:
                    await self._query(query)
        finally:
            self._is_over = True

    async def _query(self, query: Query) -> None:
        for epoch in range(self._epochs):
            for number in range(TRIES_MAX):
                tries = [self._micro_batch(query, epoch, number)]
                if self.world.chance.random() < 0.1:
                    # A driver that was regarded as dead commits the same epoch at the same time.
                    self.world.count("two drivers")
                    tries.append(self._micro_batch(query, epoch, TRIES_MAX + number))
                if any(await asyncio.gather(*tries)) or query.has_stopped:
                    break
            else:
                return self._complain(f"epoch {epoch} of {query.query_id} never got through")
            if query.has_stopped:
                return None
            self._note_done(query, epoch)
            # After a death between our commit and Spark's note of it.
            if self.world.chance.random() < 0.2:
                self.world.count("repeated epoch")
                await self._micro_batch(query, epoch, 2 * TRIES_MAX)
        return None

    def _note_done(self, query: Query, epoch: int) -> None:
        self.outcome.epochs += 1
        # An epoch without rows publishes nothing, except in complete mode.
        if self._is_complete or set(self._plan(query, epoch)) != {"empty"}:
            version = query.publisher(epoch).version
            other = self._done.setdefault(version, (query, epoch))
            if other != (query, epoch):
                self._complain(f"version {version} was acknowledged to two queries")

    async def _micro_batch(self, query: Query, epoch: int, number: int) -> bool:
        """Run the tasks of an epoch and commit it; return whether the commit came back well."""
        publisher = query.publisher(epoch)
        tag = (publisher.version, query.first_try + number)
        # Spark plans an epoch again as it was; what its tasks report is new.
        kinds = self._plan(query, epoch)
        if set(kinds) != {"empty"}:
            self._tries[tag] = []
        outputs = [await self._task(query, tag, partition, kind) for partition, kind in enumerate(kinds)]
        if any(output is None for output in outputs):
            await self._abort(publisher)
            return False
        reported = [output for output in outputs if output is not None]
        process, committer = self._worker(query)
        self._busy.append(process)
        try:
            return await self._commit(query, publisher, process, committer, reported)
        except VersionPublished as error:
            await self._check_refusal(query, publisher)
            await self._abort(publisher)
            await self._give_way(query, publisher, error)
            return False
        finally:
            self._busy.remove(process)

    async def _check_refusal(self, query: Query, publisher: Publisher) -> None:
        """A version is refused to a query only where another one published it; never what it published itself."""
        if len(self._queries) == 1:
            self._complain(f"version {publisher.version} was refused, and there is no other query")
        mine = [tag for tag in self._tries if tag[0] == publisher.version and query.has_try(tag[1])]
        rows = await self._rows(await self._quiet.log.snapshot())
        if any(row in (rows or ()) for tag in mine for row in self._tries[tag]):
            self._complain(f"version {publisher.version} was refused to {query.query_id}, which published it")

    async def _give_way(self, query: Query, publisher: Publisher, error: VersionPublished) -> None:
        """Do what the message says: stop, or continue after the last version."""
        self.world.count("refused version")
        assert error.last_version is not None
        is_overtaken = query.first_version + error.last_version + 1 - publisher.version
        if self.world.chance.random() < 0.5 or is_overtaken > TRIES_MAX:
            query.has_stopped = True
        else:
            query.first_version = max(query.first_version, is_overtaken)

    async def _commit(
        self, query: Query, publisher: Publisher, process: Process, committer: EpochCommitter, reported: list[Output]
    ) -> bool:
        strikes = self._strikes()
        try:
            await (committer.overwrite if self._is_complete else committer.append)(reported, publisher)
        except Killed:
            self._bury(process, committer)
        except VersionPublished:
            raise
        except BookKeeperError as error:
            # A vacuum that regards the living as dead costs them a try, and so does the abort of a second driver, or
            # that another query has just published the version.
            struck = self.world.struck
            is_taken = "vacuum" in struck or {"two drivers", "abort"} <= struck.keys() or len(self._queries) > 1
            is_given_up = isinstance(error, (DataLoss, LedgerFenced)) and is_taken
            if strikes == self._strikes() and not is_given_up:
                self._complain(f"{publisher} failed without a fault: {error}")
        except (ValueError, AssertionError) as error:
            self._complain(f"{publisher} found itself in a wrong state: {error}")
        else:
            return await self._tidy(process, committer, publisher.version)
        await self._abort(publisher)
        return False

    def _strikes(self) -> int:
        return sum(self.world.struck.values())

    async def _tidy(self, process: Process, committer: EpochCommitter, version: int) -> bool:
        try:
            await committer.discard(version)
        except Killed:
            self._bury(process, committer)
            return False
        except BookKeeperError:
            pass
        return True

    async def _abort(self, publisher: Publisher) -> None:
        # Not after a driver's death; and never certain that the commit did not take effect.
        if self.world.chance.random() < 0.5:
            self.world.count("abort")
            try:
                await self._quiet.log.discard(publisher.name, up_to_epoch=publisher.version)
            except MetadataError as error:
                self._complain(f"abort: {error}")

    def _worker(self, query: Query) -> tuple[Process, EpochCommitter]:
        """Return one of the processes that Spark keeps for commits, a new one if there is none or two are busy."""
        chance = self.world.chance
        idle = [worker for worker in self._workers if worker[0] not in self._busy]
        if not idle or (len(self._workers) < 2 and chance.random() < 0.3):
            process = self._process()
            octets = chance.choice((10, 1 << 20))
            committer = EpochCommitter(process.log, query.owner_id, OPTIONS, RollLimits(octets))
            self._workers.append((process, committer))
            return process, committer
        return chance.choice(idle)

    def _bury(self, process: Process, committer: EpochCommitter) -> None:
        if (process, committer) in self._workers:
            self._workers.remove((process, committer))

    def _process(self) -> Process:
        chance = self.world.chance
        calls_left, losses = None, 0
        if self._kills and chance.random() < 0.6:
            self._kills -= 1
            calls_left = chance.randrange(30)
        elif self._losses:
            losses, self._losses = self._losses, 0
        return Process(self.world, calls_left, losses)

    # ---- tasks ----

    def _plan(self, query: Query, epoch: int) -> list[str]:
        """Return what each partition of an epoch has."""
        key = (query.query_id, epoch)
        if key not in self._plans:
            kinds = ("rows", "rows", "rows", "ledger", "empty")
            self._plans[key] = self.world.chance.choices(kinds, k=self.world.chance.choice((1, 1, 2, 3)))
        return self._plans[key]

    async def _task(self, query: Query, tag: Tag, partition: int, kind: str) -> Output | None:
        """Return what the attempt has that Spark chose; None where all attempts failed."""
        if kind == "empty":
            return Output()
        rows = [b"%d.%d.%d.%d" % (*tag, partition, next(self._numbers)) for _ in range(self.world.chance.randint(1, 2))]
        self._tries[tag] += rows
        if kind == "rows":
            return Output(entries=(EntryBatch.of(rows),))
        twin = self._attempt(query, tag, partition, rows) if self.world.chance.random() < 0.15 else None
        if twin is not None:
            self.world.count("speculative attempt")
            await twin
        first = await self._attempt(query, tag, partition, rows)
        return first if first is not None else await self._attempt(query, tag, partition, rows)

    async def _attempt(self, query: Query, tag: Tag, partition: int, rows: list[bytes]) -> Output | None:
        process = self._process()
        try:
            writer = await process.log.create_attempt(
                SegmentOwner("query", query.owner_id, tag[0], partition, 0), OPTIONS
            )
            await writer.append_many(rows)
            closed = await writer.close()
        except (Killed, BookKeeperError):
            return None
        return Output(ledgers=(SegmentFacts(writer.ledger_id, closed.last_entry, closed.length),))

    # ---- others ----

    async def _vacuum(self) -> None:
        chance = self.world.chance
        for _ in range(chance.choice((0, 0, 1))):
            await self._loop.pause(chance.randrange(60))
            self.world.count("vacuum")
            # With a time to come every attempt counts as dead, the living ones too.
            await self._quiet.log._vacuum(chance.choice((TO_COME_MS, 1)))

    async def _truncation(self) -> None:
        await self._loop.pause(self.world.chance.randrange(100))
        snapshot = await self._quiet.log.snapshot()
        items = await snapshot.ledgers()
        if items:
            item = self.world.chance.choice(items)
            assert item.last_entry is not None
            entry = self.world.chance.randint(item.first_entry, item.last_entry + 1)
            self.world.count("truncation")
            await self._quiet.log.truncate(Position(item.ordinal, item.ledger_id, entry))

    async def _reader(self) -> None:
        while not self._is_over:
            snapshot = await self._quiet.log.snapshot()
            rows = await self._rows(snapshot)
            if rows is not None:
                self._check_rows(rows, "a reader")
            await self._loop.pause(self.world.chance.randrange(10, 60))

    async def _rows(self, snapshot: LogSnapshot) -> list[bytes] | None:
        """Return the rows of a snapshot; None if the log lost a part of it meanwhile.

        The newest snapshot must then lack that part.
        """
        rows: list[bytes] = []
        for item in await snapshot.ledgers():
            assert item.last_entry is not None
            ledger = self.world.ledgers.get(item.ledger_id)
            if ledger is None:
                newer = await self._quiet.log.snapshot()
                if item.ordinal in range(newer.first_ordinal, newer.end_ordinal):
                    self._complain(f"ledger {item.ledger_id} is listed at {item.ordinal} and does not exist")
                return None
            first = max(item.first_entry, snapshot.start.entry_id if item.ordinal == snapshot.start.ordinal else 0)
            if item.last_entry >= len(ledger.entries):
                self._complain(f"ledger {item.ledger_id} is listed to {item.last_entry} of {len(ledger.entries)}")
            rows += ledger.entries[first : item.last_entry + 1]
        return rows

    def _check_rows(self, rows: list[bytes], who: str) -> None:
        """Whole epochs in order, of each one try, its partitions in order; a truncation may have cut the front."""
        wanted: list[bytes] = []
        tags: list[Tag] = []
        for row in rows:
            tag = (int(row.split(b".")[0]), int(row.split(b".")[1]))
            if not tags or tags[-1] != tag:
                tags.append(tag)
        for tag in tags:
            wanted += self._tries[tag]
        epochs = [epoch for epoch, _ in tags]
        if epochs != sorted(set(epochs)):
            return self._complain(f"{who} sees epochs {tags}")
        is_cut = self._has_truncation and wanted[len(wanted) - len(rows) :] == rows
        if rows != wanted and not is_cut:
            self._complain(f"{who} sees {rows}, whole epochs would be {wanted}")
        if self._is_complete and len(tags) > 1:
            self._complain(f"{who} sees {tags} in complete mode")
        return None

    # ---- the end ----

    async def _check_end(self) -> None:
        log = self._quiet.log
        snapshot = await log.snapshot()
        rows = await self._rows(snapshot)
        if rows is None:
            return self._complain("the log lost a ledger")
        self._check_rows(rows, "the end")
        self._check_epochs(rows)
        # All processes are dead now, and a day has passed.
        attempts = (await log.store()).attempts
        await log._vacuum(TO_COME_MS)
        if await attempts.pending_ids(NAME):
            self._complain("attempts are still registered after a vacuum")
        after = await self._rows(await log.snapshot())
        if after != rows:
            self._complain(f"a vacuum changed {rows} into {after}")
        listed = {item.ledger_id for item in await snapshot.ledgers()}
        left = set(self.world.ledgers) - listed
        if left:
            self._complain(f"ledgers {sorted(left)} are orphans")
        return None

    def _check_epochs(self, rows: list[bytes]) -> None:
        """What was acknowledged to a query is there, and it is that query's rows."""
        found = {(int(row.split(b".")[0]), int(row.split(b".")[1])) for row in rows}
        wanted = sorted(self._done)[-1:] if self._is_complete else sorted(self._done)
        if self._has_truncation:
            return
        for version in wanted:
            query, epoch = self._done[version]
            if set(self._plan(query, epoch)) == {"empty"}:
                continue
            if not any(number == version and query.has_try(attempt) for number, attempt in found):
                self._complain(f"epoch {epoch} of {query.query_id}, version {version}, was committed and is not there")


def run_seeds(first: int, count: int, deadline_s: float | None = None) -> tuple[Counter[str], list[Outcome]]:
    """Run schedules `first` to `first + count - 1`; return how often what happened, and those that failed."""
    tally: Counter[str] = Counter()
    failed = []
    for seed in range(first, first + count):
        if deadline_s is not None and time.monotonic() >= deadline_s:
            break
        outcome = Schedule(seed).run()
        tally["schedules"] += 1
        tally["epochs"] += outcome.epochs
        tally.update(outcome.struck)
        if outcome.violations:
            failed.append(outcome)
    return tally, failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.commits", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds to run for (default 60)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one schedule and show what was wrong")
    options = parser.parse_args(arguments)
    if options.budget <= 0:
        parser.error("--budget must be above 0")
    first, count = (options.seed, 1 << 40) if options.replay is None else (options.replay, 1)
    tally, failed = run_seeds(first, count, time.monotonic() + options.budget)
    report = {"seed": first, "violations": len(failed), **dict(sorted(tally.items()))}
    print(json.dumps(report) if options.json else "\n".join(f"{name:20} {value}" for name, value in report.items()))
    for outcome in failed[:20]:
        print(f"--replay {outcome.seed}: {'; '.join(outcome.violations)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
