"""The load of a soak: ledgers of every kind, each followed while it is written, and a log that Spark copies.

    python -m tests.soak.load URI FOLDER [COPY...]

Runs until the file FOLDER/finish is there. Then it writes no more, waits until every COPY, a log, has all rows, reads
all ledgers that are left, and prints the result as the last of its lines. Each line is a JSON object: how much was done
so far, what went wrong (`violations`), and which errors clients met, of which there may be any number under faults.

An entry depends on its ledger and id alone, so nothing has to be remembered of what was written but how much.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bkspark.client import Client, LedgerWriter
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, NoSuchEntry
from bkspark.log.positions import EARLIEST, OffsetSpec, Position
from tests.crash.kills import payload
from tests.soak.rows import number_of, row

SOURCE = "soak-source"

RATE = 100.0
"""Entries a second of each writer."""
BATCH = 25
LEDGER_ENTRIES = 2_500
KEPT = 8
"""Ledgers of each kind that stay; when there are more, one of them is read once more and deleted."""
SYNC_BATCHES = 4
"""Batches between two syncs of a relaxed writer."""
ROLL_BYTES = 2 << 20
SOURCE_MARGIN = 10_000
"""Rows that the source keeps before the end of both copies: a killed driver reads its last ones again."""
TRUNCATE_S = 15.0
VACUUM_S = 60.0
VACUUM_AGE_S = 240.0
REPORT_S = 2.0
RETRY_S = 0.3
HEALED_S = 300.0
"""Within this time everything must be well after the faults."""


@dataclass(frozen=True)
class Kind:
    """A kind of ledger."""

    name: str
    ensemble: int
    write_quorum: int
    ledger_type: str = "PD_JOURNAL"

    @property
    def is_relaxed(self) -> bool:
        return self.ledger_type != "PD_JOURNAL"


KINDS = (
    Kind("durable", 3, 3),
    Kind("striped", 4, 2),
    Kind("relaxed", 3, 3, "VD_JOURNAL"),
    Kind("bypassing", 3, 3, "VD_BYPASS_JOURNAL"),
)


@dataclass
class Ledger:
    """A ledger that this load writes."""

    ledger_id: int
    kind: Kind
    promised: int = 0
    """Entries that must survive everything: acknowledged ones, of a relaxed ledger synced ones."""
    length: int | None = None
    """Entries once it is closed."""
    bookies: frozenset[str] | None = None
    """Those that it was closed with."""


DONE = ("entries acknowledged", "entries followed", "closed by the writer", "closed by recovery", "deleted")


@dataclass
class Report:
    """What was done so far."""

    acknowledged: int = 0
    followed: int = 0
    reread: int = 0
    kinds: dict[str, dict[str, int]] = field(
        default_factory=lambda: {kind.name: dict.fromkeys(DONE, 0) for kind in KINDS}
    )
    """For each kind of ledger, what `DONE` lists."""
    repaired: int = 0
    """Ledgers that had other bookies, when they were read again, than they were closed with."""
    rows: int = 0
    copied: dict[str, int] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    is_finished: bool = False


class Load:
    """All writers, followers and readers of a soak, on one client."""

    def __init__(self, client: Client, folder: Path, copies: Sequence[str]) -> None:
        self._client = client
        self._finish = folder / "finish"
        self._copies = copies
        self._random = random.Random()
        self._kept: dict[Kind, list[Ledger]] = {kind: [] for kind in KINDS}
        self.report = Report(copied=dict.fromkeys(copies, 0))
        self._places: list[tuple[int, Position]] = []
        """Positions of the source: (rows before it, position), ascending, back to where it may be truncated."""
        self._seen: Counter[str] = Counter()
        self._copied_to: dict[str, OffsetSpec] = dict.fromkeys(copies, EARLIEST)

    async def run(self) -> Report:
        """Load the cluster until it is time to finish; return what came of it."""
        for log in (SOURCE, *self._copies):
            await self._insist(f"create {log}", self._client.log(log).create, exist_ok=True)
        always = [self._spawn(work) for work in (self._tell(), self._truncate(), self._vacuum())]
        following = [self._spawn(self.verify_copy(sink)) for sink in self._copies]
        writing = [self._spawn(self._write_ledgers(kind)) for kind in KINDS] + [self._spawn(self._produce())]
        await self._ended(writing, "writers")
        await self._ended([self._spawn(self._until_copied())], "copies of the log")
        for task in (*following, *always):
            task.cancel()
        await self._ended([self._spawn(self._reread_all())], "a last look at all ledgers")
        self.report.is_finished = True
        self._print()
        return self.report

    @property
    def _is_finishing(self) -> bool:
        return self._finish.exists()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.guarded(work))

    async def guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """An unexpected exception is a finding, and ends only one part of the load."""
        try:
            await work
        except Exception as error:
            self._violated(f"{work.__name__} ended with {error!r}")

    async def _ended(self, tasks: list[asyncio.Task[None]], what: str) -> None:
        """Wait for the end of tasks: for long while the soak goes on, not for longer than HEALED_S after it."""
        waiting = set(tasks)
        while waiting and not self._is_finishing:
            _, waiting = await asyncio.wait(waiting, timeout=RETRY_S)
        if waiting:
            _, waiting = await asyncio.wait(waiting, timeout=HEALED_S)
        for task in waiting:
            task.cancel()
        if waiting:
            self._violated(f"{what}: not done {HEALED_S:g} s after the faults")

    # ---- what is said ----

    async def _tell(self) -> None:
        while True:
            self._print()
            await asyncio.sleep(REPORT_S)

    def _print(self) -> None:
        print(json.dumps(vars(self.report)), flush=True)

    def _violated(self, text: str) -> None:
        if len(self.report.violations) < 100:
            self.report.violations.append(f"{time.strftime('%T')} {text}")

    def _met(self, what: str, error: BookKeeperError) -> None:
        self.report.errors[f"{what}: {type(error).__name__}"] += 1

    async def _insist(self, what: str, call: Any, *arguments: Any, **named: Any) -> Any:
        """Call until it works."""
        while True:
            try:
                return await call(*arguments, **named)
            except BookKeeperError as error:
                self._met(what, error)
                await asyncio.sleep(RETRY_S)

    def _did(self, ledger: Ledger, what: str, count: int = 1) -> None:
        self.report.kinds[ledger.kind.name][what] += count

    # ---- ledgers ----

    async def _write_ledgers(self, kind: Kind) -> None:
        while not self._is_finishing:
            writer = await self._insist(
                f"create {kind.name}",
                self._client.create,
                ensemble=kind.ensemble,
                write_quorum=kind.write_quorum,
                ack_quorum=2,
                ledger_type=kind.ledger_type,
            )
            ledger = Ledger(writer.ledger_id, kind)
            follower = self._spawn(self._follow(ledger))
            await self._write(writer, ledger)
            is_open = not (await self._insist("look", self._client.metadata, ledger.ledger_id)).is_closed
            metadata: LedgerMetadata = await self._insist("recover", self._client.recover, ledger.ledger_id)
            if is_open:
                self._did(ledger, "closed by recovery")
            ledger.length = metadata.last_entry + 1
            ledger.bookies = _bookies(metadata)
            if ledger.length < ledger.promised:
                self._violated(f"{_named(ledger)} is closed with {ledger.length} of {ledger.promised} promised entries")
            await self._ended_after_close(follower, ledger)
            self._kept[kind].append(ledger)
            await self._trim(kind)

    async def _write(self, writer: LedgerWriter, ledger: Ledger) -> None:
        """Write until the ledger is long enough, or the writer fails; what it leaves is recovered."""
        try:
            for first in range(0, LEDGER_ENTRIES, BATCH):
                if self._is_finishing:
                    break
                batch = [payload(ledger.ledger_id, entry_id) for entry_id in range(first, first + BATCH)]
                acknowledged = await writer.append_many(batch) + 1
                self._did(ledger, "entries acknowledged", BATCH)
                self.report.acknowledged += BATCH
                if not ledger.kind.is_relaxed:
                    ledger.promised = acknowledged
                elif first // BATCH % SYNC_BATCHES == SYNC_BATCHES - 1:
                    ledger.promised = await writer.sync() + 1
                await asyncio.sleep(BATCH / RATE)
            # Every second one is left for recovery to close.
            if ledger.ledger_id % 2:
                ledger.promised = (await writer.close()).last_entry + 1
                self._did(ledger, "closed by the writer")
        except BookKeeperError as error:
            self._met(f"write {ledger.kind.name}", error)
        finally:
            writer.abandon()

    async def _follow(self, ledger: Ledger) -> None:
        """Follow a ledger from its first entry to its end; look at each entry."""
        position = 0
        while True:
            try:
                reader = await self._client.open(ledger.ledger_id)
                async for batch in reader.follow(position):
                    if batch.first_entry != position:
                        self._violated(f"{_named(ledger)}: entry {batch.first_entry} follows {position - 1}")
                    self._check(ledger, batch.first_entry, batch)
                    position = batch.end_entry
                    self._did(ledger, "entries followed", len(batch))
                    self.report.followed += len(batch)
                if position != reader.last_entry + 1:
                    self._violated(f"{_named(ledger)}: followed to {position}, it ends at {reader.last_entry}")
                return
            except NoSuchEntry as error:
                self._violated(f"{_named(ledger)}: a confirmed entry does not exist: {error}")
                return
            except BookKeeperError as error:
                self._met("follow", error)
            await asyncio.sleep(RETRY_S)

    async def _ended_after_close(self, follower: asyncio.Task[None], ledger: Ledger) -> None:
        _, waiting = await asyncio.wait([follower], timeout=HEALED_S)
        if waiting:
            follower.cancel()
            self._violated(f"{_named(ledger)}: its follower did not come to the end in {HEALED_S:g} s after its close")

    def _check(self, ledger: Ledger, first_entry: int, batch: Any) -> None:
        for entry_id, found in enumerate(batch, first_entry):
            if bytes(found) != payload(ledger.ledger_id, entry_id):
                self._violated(f"{_named(ledger)}: entry {entry_id} reads {bytes(found)[:20]!r}...")

    async def _trim(self, kind: Kind) -> None:
        """Keep this many ledgers, of any age: the rest of an entry log has to be compacted."""
        kept = self._kept[kind]
        while len(kept) > KEPT:
            ledger = kept.pop(self._random.randrange(len(kept)))
            await self.reread(ledger)
            await self._insist("delete", self._client.delete, ledger.ledger_id)
            self._did(ledger, "deleted")

    async def reread(self, ledger: Ledger) -> None:
        """Read a closed ledger from its first entry to its last."""
        assert ledger.length is not None
        position = 0
        while position < ledger.length:
            try:
                reader = await self._client.open(ledger.ledger_id)
                if ledger.bookies is not None and ledger.bookies != _bookies(reader.metadata):
                    self.report.repaired += 1
                    ledger.bookies = _bookies(reader.metadata)
                if reader.last_entry + 1 != ledger.length:
                    self._violated(f"{_named(ledger)} was closed with {ledger.length} entries: {reader.last_entry + 1}")
                    return
                async for batch in reader.batches(position):
                    self._check(ledger, batch.first_entry, batch)
                    position = batch.end_entry
                    self.report.reread += len(batch)
            except NoSuchEntry as error:
                self._violated(f"{_named(ledger)}: one of {ledger.length} entries is lost: {error}")
                return
            except BookKeeperError as error:
                self._met("read", error)
                await asyncio.sleep(RETRY_S)

    async def _reread_all(self) -> None:
        for kept in self._kept.values():
            for ledger in kept:
                await self.reread(ledger)

    # ---- the log that is copied ----

    async def _produce(self) -> None:
        """Append rows 0, 1, 2, ... to the source. After an error the log itself says which was the last."""
        log = self._client.log(SOURCE)
        while not self._is_finishing:
            writer = await self._insist("open the log", log.open_for_writing, roll_bytes=ROLL_BYTES)
            try:
                number = await self._insist("read the log", self._rows_in_source)
                while not self._is_finishing:
                    positions = await writer.append_many([row(n) for n in range(number, number + BATCH)])
                    number += BATCH
                    self.report.rows = number
                    self._places.append((number, positions.end))
                    await asyncio.sleep(BATCH / RATE)
                await writer.close()
            except BookKeeperError as error:
                self._met("append to the log", error)
            finally:
                writer.abandon()
        await self._insist("recover the log", log.recover)
        self.report.rows = await self._insist("read the log", self._rows_in_source)

    async def _rows_in_source(self) -> int:
        """Return how many rows the source has: its numbers continue after its last one."""
        count, start = self._places[-1] if self._places else (0, EARLIEST)
        async for batch in self._client.log(SOURCE).read(start):
            for found in batch:
                if number_of(found) != count:
                    self._violated(f"row {count} of the source is row {number_of(found)}")
                count += 1
        return count

    def seen_of(self, copy: str) -> int:
        """How many rows of a copy were looked at, whichever these were."""
        return self._seen[copy]

    async def verify_copy(self, sink: str) -> None:
        """Follow a copy: it has every row of the source once, in order."""
        log = self._client.log(sink)
        while True:
            try:
                async for batch in log.follow(self._copied_to[sink]):
                    for found in batch:
                        number, expected = number_of(found), self.report.copied[sink]
                        if number != expected:
                            self._violated(f"{sink}: row {number} follows row {expected - 1}")
                        self.report.copied[sink] = number + 1
                        self._seen[sink] += 1
                    self._copied_to[sink] = batch.end
            except BookKeeperError as error:
                self._met(f"follow {sink}", error)
            await asyncio.sleep(RETRY_S)

    async def _until_copied(self) -> None:
        while self._copied < self.report.rows:
            await asyncio.sleep(RETRY_S)

    @property
    def _copied(self) -> int:
        """How many rows every copy has."""
        return min(self.report.copied.values(), default=self.report.rows)

    async def _truncate(self) -> None:
        """Truncate the rows that are no longer needed."""
        while True:
            await asyncio.sleep(TRUNCATE_S)
            done = self._copied - SOURCE_MARGIN
            passed = [place for place in self._places if place[0] <= done]
            if passed:
                await self._truncated(SOURCE, passed[-1][1])
                self._places = self._places[len(passed) - 1 :]
            for sink, position in self._copied_to.items():
                if isinstance(position, Position):
                    await self._truncated(sink, position)

    async def _truncated(self, log: str, before: Position) -> None:
        try:
            await self._client.log(log).truncate(before)
        except BookKeeperError as error:
            self._met(f"truncate {log}", error)

    async def _vacuum(self) -> None:
        """Delete what killed drivers left."""
        while True:
            await asyncio.sleep(VACUUM_S)
            for log in (SOURCE, *self._copies):
                try:
                    await self._client.log(log).vacuum(older_than_s=VACUUM_AGE_S)
                except BookKeeperError as error:
                    self._met(f"vacuum {log}", error)


def _bookies(metadata: LedgerMetadata) -> frozenset[str]:
    """Return the bookies that metadata name."""
    return frozenset(bookie for fragment in metadata.fragments for bookie in fragment.bookies)


def _named(ledger: Ledger) -> str:
    return f"{ledger.kind.name} ledger {ledger.ledger_id}"


async def main(uri: str, folder: Path, copies: Sequence[str]) -> int:
    options = WriterOptions(explicit_lac_interval_s=0.5)
    async with Client(uri, writer=options) as client:
        with contextlib.suppress(asyncio.CancelledError):
            report = await Load(client, folder, copies).run()
            return 1 if report.violations else 0
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])))
