"""The full tier: one ledger written, recovered and read by the shipped client on real bookie storage, under faults."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import secrets
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

from bkspark.client import Client
from bkspark.core.metadata import LedgerMetadata, LedgerState
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookieUnavailable, BookKeeperError, MetadataError, NoSuchEntry, ReadFailed
from bkspark.ledger.reader import LedgerReader
from bkspark.ledger.writer import LedgerWriter
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.uri import MetadataUri
from bkspark.net.pool import NetOptions
from bookie_service.engine.reads import ReadOptions
from tests.planting import changed
from tests.simulation.checkers import violations
from tests.simulation.full_audits import LedgerAudits
from tests.simulation.full_cluster import URI, Cluster, DelayedTree, FullBookie, ObservedStore
from tests.simulation.full_faults import (
    ANSWERS,
    GRAY,
    KINDS,
    MESSAGES,
    READ_ERRORS,
    REPORTED_AT_ONCE,
    Faults,
    links_of,
)
from tests.simulation.full_links import TO_BOOKIE, WHO, Adds, Observer
from tests.simulation.history import Close, History, LedgerHistory, Look, Wait
from tests.simulation.virtual_loop import Stuck, VirtualLoop

_T = TypeVar("_T")
EVENTS = frozenset({"owner ended early", "recovery failed"})
"""What is counted beside the faults."""
QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (4, 3, 2), (3, 3, 3), (3, 2, 1))
PATIENCE_S = 60.0
"""Virtual seconds after the faults in which everything must end."""
THEMES = (*["uniform"] * 3, *["hole"] * 4, *["aimed"] * 3, *["race"] * 2, "reported", *["control"] * 2)
"""What a schedule is about: faults at any time; entries that one bookie lacks, and a recovery that meets a fault;
faults upon requests of recoveries; a recovery that begins while the owner changes its ensemble; faults that clients
learn of at once; no fault."""
MOMENTS = (("fence", 4), ("recovery read", 5), ("recovery add", 4))
"""Requests of recoveries at which a fault may be aimed: the first to the n-th of a kind."""
AIMED_KINDS = (*ANSWERS, *ANSWERS, *GRAY, *MESSAGES, "crash", "metadata", *["kill recovery"] * 3, "kill owner")
ADDS_MAX = 12
"""A race begins with one of the first adds that reach a bookie, up to this number."""
RACE_KINDS = ("crash", "reset", "EIO adds", "failing journal")
PROMPT_S = 0.9
"""What an add may take where no fault is silent: less than any time-out."""
PROMPT_METADATA_S = 0.005
"""With a slower metadata store an ensemble change may take longer than that."""
QUIET_DELAYS = 25
QUIET_S = 0.3
"""Without faults an add, a recovery or a close takes at most this many mean delays of the network, of a journal and of
the metadata store, plus this time."""
LINGERS_S = (0.0, 0.3, 3.0)
"""How long the session of a crashed bookie lives on."""
READS = (ReadOptions(), ReadOptions(batch_bytes_max=150, replies_bytes_max=150))
"""How much a bookie answers at once."""
BATCH_BYTES = (1 << 20, 10)
"""How much readers are given at once."""
ON_ITS_WAY_S = 1.0
"""What was sent before arrives meanwhile."""


@dataclass(slots=True)
class FullOutcome:
    """What came of a schedule of the full tier."""

    violations: list[str]
    history: History
    acknowledged: int
    events: int = 0

    @property
    def faults(self) -> int:
        return self.history.faults.total()


class FullSchedule(Observer):
    """One seed: a cluster, an owner, recoverers, readers, faults, then healing and the audit."""

    QUORUMS: Sequence[tuple[int, int, int]] = QUORUMS
    SPARES: Sequence[int] = (0, 1, 2)
    """How many bookies there may be above E."""
    KINDS: Sequence[str] = KINDS
    """What may strike."""
    PROTOCOLS: Sequence[str] = ("v2", "v2", "v3")

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.history = History()
        self.ledger = LedgerHistory()
        self.quorums = self.random.choice(self.QUORUMS)
        self.cluster = Cluster(self.random, self.quorums[0] + self.random.choice(self.SPARES))
        self.faults = Faults(self.cluster, self.history, self.ledger)
        self.loop = VirtualLoop(self.cluster.connect)
        # Its own source: what a schedule is about changes nothing in when it happens.
        self.aside = Random(f"aside {seed}")
        self.theme = self.aside.choice(THEMES)
        self.protocol = self.aside.choice(self.PROTOCOLS)
        self._options = WriterOptions(close_timeout_s=10.0, add_timeout_s=1.0, replacement_retry_s=0.5)
        self._ledger_id = -1
        self._audits = LedgerAudits(self.cluster, self.ledger, self._now)
        self._aims: dict[tuple[str, int], str] = {}
        self._passed: Counter[str] = Counter()
        self._recoveries: dict[str, asyncio.Future[None]] = {}
        self._attempts: Counter[str] = Counter()
        self._writer: LedgerWriter | None = None
        # (client, bookie) between which adds have come through.
        self._reached: set[tuple[str, str]] = set()

    def run(self) -> FullOutcome:
        """Play the schedule; an error that is not a BookKeeperError counts as a violation."""
        found: list[str] = []
        self.loop.set_exception_handler(lambda loop, context: found.append(f"exception: {_described(context)}"))
        try:
            with (
                changed(secrets, "randbits", lambda old: self.random.getrandbits),
                changed(secrets, "token_hex", lambda old: lambda count: self.random.randbytes(count).hex()),
            ):
                self.loop.run_until_complete(self._main())
                self.loop.run_until_complete(asyncio.sleep(0))
        except Stuck as stuck:
            found.append(f"C12: {stuck}")
        except Exception as error:
            found.append(f"exception: {type(error).__name__}: {error}")
        finally:
            self._end()
        acknowledged = self.ledger.last_acknowledged + 1
        return FullOutcome(found + violations(self.ledger), self.history, acknowledged, self.loop.turns)

    def _end(self) -> None:
        # What is still under way is dropped silently.
        self.loop.set_exception_handler(lambda loop, context: None)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def _client(self, tree: DelayedTree | None = None) -> Client:
        return Client(
            URI,
            tree=tree or self.cluster.session(),
            wire_protocol=self.protocol,
            net=NetOptions(connect_timeout_s=1.0, read_timeout_s=1.0),
            writer=self._options,
        )

    async def _main(self) -> None:
        self.cluster.store = ObservedStore(self._on_metadata)
        await BookieRegistry(self.cluster.store.session(), MetadataUri.parse(URI)).initialize_cluster()
        reads = self.aside.choice(READS)
        for bookie in self.cluster.bookies:
            bookie.setup = replace(bookie.setup, reads=reads)
            await bookie.start()
        if self.random.random() < 0.15:
            self._press()
        owner = self._client()
        self._writer = writer = await as_client("owner", self._create(owner))
        self._ledger_id = writer.ledger_id
        self._audits.begin(writer.ledger_id, writer.metadata)
        self.cluster.observer, self.cluster.observes = self, True
        self.faults.damage_on_disk = self._audits.damage_an_entry
        self.faults.lingers_s = lambda: 0.0 if self.theme == "reported" else self.aside.choice(LINGERS_S)
        span_s = self.random.choice((0.02, 0.2, 1.5))
        tasks = [as_client("owner", self._write(writer, span_s))]
        tasks += [self._recovering(f"recoverer {i}", span_s) for i in range(self._recoverers())]
        tasks += [as_client(f"reader {i}", self._look_often(f"reader {i}", span_s)) for i in range(self._readers())]
        tasks += [asyncio.ensure_future(self._strike(span_s)) for _ in range(self._strikes())]
        if self.theme == "aimed":
            self._aim(self.random.choice((1, 2)))
        elif self.theme == "race":
            self._aims["add", self.random.randint(1, ADDS_MAX)] = "race"
        self._begin_others()
        await self._ended(tasks, "clients")
        await self._ended(list(self._recoveries.values()), "recoveries")
        await self._heal()
        metadata = await self._recover_finally()
        if metadata is not None:
            await self._after_closing(metadata)
            await as_client("last reader", self._read_all(metadata))
            self._note_how_prompt_all_must_be()
        await owner.close()

    def _on_metadata(self, path: str, before: bytes, after: bytes, version: int) -> None:
        known = len(self.ledger.changes)
        self._audits.on_metadata(path, before, after, version)
        for (_, old, _), (_, new, who) in pairwise(self.ledger.changes[known - 1 :] if known else ()):
            self.history.changes_of_ensemble += old.metadata.fragments != new.metadata.fragments
            is_claimed = new.metadata.state is LedgerState.IN_RECOVERY and who != "owner"
            if is_claimed and self._writer is not None and self._writer.core.error is None:
                self.history.is_raced = self.history.is_raced or self._writer.core.pending.next_entry > 0

    def _press(self) -> None:
        """Let the owner's window be small, and the sockets' buffers, so that it waits for room again and again."""
        self.history.pressed = True
        self.cluster.socket_bytes = 100
        self._options = replace(
            self._options, pending_entries_max=4, pending_bytes_max=200, lag_entries_max=8, lag_bytes_max=400
        )

    async def _heal(self) -> None:
        self._aims.clear()
        self.faults.end_all()
        for bookie in self.cluster.bookies:
            await bookie.start()
        for link in sorted(self.cluster.links, key=lambda it: it.number):
            link.abort()
        self.cluster.store.faults.clear()

    async def _create(self, owner: Client) -> LedgerWriter:
        size, write_quorum, ack_quorum = self.quorums
        return await owner.create(ensemble=size, write_quorum=write_quorum, ack_quorum=ack_quorum)

    def _begin_others(self) -> None:
        """Let others than the owner, recoverers and faults begin."""

    async def _after_closing(self, metadata: LedgerMetadata) -> None:
        """Wait for those others, now that the ledger is closed."""

    def _recoverers(self) -> int:
        return 0 if self.theme in ("hole", "race", "reported") else self.random.choice((0, 1, 1, 1, 2))

    def _readers(self) -> int:
        return self.random.choice((0, 0, 1, 2))

    def _strikes(self) -> int:
        return self.random.choice((1, 2, 3)) if self.theme in ("uniform", "reported") else 0

    async def _ended(self, tasks: Sequence[asyncio.Future[None]], what: str) -> None:
        if not tasks:
            return
        _, pending = await asyncio.wait(tasks, timeout=PATIENCE_S)
        if pending:
            self.ledger.pending.append(f"{len(pending)} {what} did not end")
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    # ---- the owner ----

    async def _write(self, writer: LedgerWriter, span_s: float) -> None:
        if self.theme == "hole":
            await self._leave_a_hole(writer)
            return
        for _ in range(self.random.choice((3, 5, 8))):
            if await self._submit(writer, self.random.choice((1, 1, 3, 20))) is None:
                break
            await asyncio.sleep(self.random.expovariate(1.0) * span_s / 4)
        try:
            if self.theme == "control":
                await self._look_at_the_open_ledger(writer)
            if self.random.random() < 0.5:
                began = self._now()
                metadata = await writer.close()
                self._learned_end("owner", metadata)
                self.ledger.waits.append(Wait("the owner's close", began, self._now()))
            else:
                await writer.sync()
                # Else a bookie to which its connection is not made yet would lack what the others have.
                await asyncio.sleep(ON_ITS_WAY_S)
                writer.abandon()
        except BookKeeperError:
            self.history.count_fault("owner ended early")

    async def _submit(self, writer: LedgerWriter, count: int) -> asyncio.Future[int] | None:
        """Add entries; None where the writer has ended."""
        added = len(self.ledger.invoked)
        payloads = [b"entry %d" % (added + i) for i in range(count)]
        try:
            future = await writer.submit(payloads)
        except BookKeeperError:
            return None
        # The writer has reported, or is about to report, the entries that were acknowledged when it sealed them.
        lac = self.ledger.last_acknowledged
        for i, payload in enumerate(payloads):
            self.ledger.invoked[added + i] = (payload, self._now())
            self.ledger.acknowledged_before[added + i] = lac
        future.add_done_callback(self._on_acknowledged)
        return future

    async def _leave_a_hole(self, writer: LedgerWriter) -> None:
        """Have the last entries acknowledged without one bookie, and recover while another meets a fault."""
        future = await self._submit(writer, self.random.choice((1, 3)))
        if future is not None:
            await asyncio.wait([future])
        lacking = self.random.choice(writer.metadata.last_fragment.bookies)
        for link in links_of(self.cluster, self.cluster.bookie(lacking), "owner"):
            self.ledger.disturbed.add(("owner", lacking))
            self.history.count_fault("hole")
            if self.random.random() < 0.5:
                link.is_cut[TO_BOOKIE] = True
            else:
                link.hold(TO_BOOKIE, self.random.choice((0.02, 0.2, 0.6)))
        futures = [await self._submit(writer, self.random.choice((1, 1, 3))) for _ in range(self.random.choice((1, 2)))]
        waiting = [future for future in futures if future is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=self.random.choice((0.05, 0.6)))
        if self.random.random() < 0.4:
            # The others must report the LAC: the one that lacks entries would report a lower one.
            others = [name for name in writer.metadata.last_fragment.bookies if name != lacking]
            self.faults.strike_now(self.random.choice(READ_ERRORS), self.cluster.bookie(self.random.choice(others)))
            await as_client("reader of the hole", self._look_often("reader of the hole", 0.0))
        if self.random.random() < 0.7:
            self._kill_owner()
        self._aim(self.random.choice((1, 1, 2)))
        await self._recovering("recoverer", 0.0)
        self._kill_owner()

    def _kill_owner(self) -> None:
        """End the owner at once: what waits for a connection is never sent."""
        assert self._writer is not None
        self.ledger.disturbed.add(("owner", ""))
        self._writer.abandon()

    def _on_acknowledged(self, future: asyncio.Future[int]) -> None:
        if not future.cancelled() and future.exception() is None:
            before = self.ledger.last_acknowledged
            self.ledger.acknowledged.append((future.result(), self._now()))
            self._audits.acknowledged({before + 1, future.result()})

    def _now(self) -> int:
        return int(self.loop.time() * 1e9)

    def _learned_end(self, who: str, metadata: LedgerMetadata) -> None:
        self.ledger.closes.append(Close(who, metadata.last_entry, metadata.length, self._now()))

    # ---- recoveries ----

    def _recovering(self, who: str, span_s: float) -> asyncio.Future[None]:
        self._recoveries[who] = task = as_client(who, self._recover(who, span_s))
        return task

    async def _recover(self, who: str, span_s: float) -> None:
        await asyncio.sleep(self.random.random() * span_s)
        client = self._client()
        began = self._now()
        try:
            self._learned_end(who, await client.recover(self._ledger_id))
            self.ledger.waits.append(Wait(f"the recovery by {who}", began, self._now()))
        except BookKeeperError:
            self.history.count_fault("recovery failed")
        finally:
            await client.close()

    async def _recover_finally(self) -> LedgerMetadata | None:
        error: BookKeeperError | None = None
        for _ in range(3):
            try:
                return await as_client("last recoverer", self._recovered())
            except BookKeeperError as failed:
                error = failed
        self.ledger.pending.append(f"the ledger cannot be recovered: {error}")
        return None

    async def _recovered(self) -> LedgerMetadata:
        client = self._client()
        try:
            metadata = await client.recover(self._ledger_id)
            self._learned_end("last recoverer", metadata)
            return metadata
        finally:
            await client.close()

    # ---- readers of the open ledger ----

    async def _look_often(self, who: str, span_s: float) -> None:
        """Ask for the LAC again and again, and read what is confirmed."""
        client = self._client()
        reader: LedgerReader | None = None
        try:
            for _ in range(self.random.choice((2, 3, 5))):
                await asyncio.sleep(self.random.random() * span_s)
                with contextlib.suppress(MetadataError, ReadFailed, BookieUnavailable):
                    # Kept when the reading fails: what one reader knows of the end is not lost, another may know less.
                    reader = await self._look(who, client, reader)
                    await self._read_confirmed(who, reader)
        finally:
            await client.close()

    async def _look(self, who: str, client: Client, reader: LedgerReader | None) -> LedgerReader:
        owed = self.ledger.lac_owed
        if reader is None:
            reader = await client.open(self._ledger_id)
        else:
            await reader.refresh()
        if reader.is_closed:
            self._learned_end(who, reader.metadata)
        elif self._audits.metadata.state is LedgerState.OPEN:
            # What a recovery writes back carries its own LAC, which may be a lower one.
            self.ledger.looks.append(Look(who, reader.last_entry, owed, self._now()))
        self.ledger.lacs.append((who, reader.last_entry, self._now()))
        return reader

    async def _read_confirmed(self, who: str, reader: LedgerReader) -> None:
        # A reading ends where the reader's end was when it began; it may learn of a later one meanwhile.
        began, position, end = self._now(), 0, reader.last_entry + 1
        try:
            async for batch in reader.batches(batch_bytes=self.aside.choice(BATCH_BYTES)):
                if batch.first_entry != position:
                    self.ledger.pending.append(f"{who} got entry {batch.first_entry}, entry {position} came next")
                for i, payload in enumerate(batch):
                    self.ledger.reads.append((who, batch.first_entry + i, bytes(payload)))
                position = batch.first_entry + len(batch)
            if position != end:
                self.ledger.pending.append(f"{who} was given no entry {position} of {end}")
        except NoSuchEntry as error:
            if self.ledger.changes[-1][0] < began:
                self.ledger.denied.append((who, error.entry_id or 0, reader.last_entry))

    async def _look_at_the_open_ledger(self, writer: LedgerWriter) -> None:
        """Add one entry more, while nothing else happens: readers must see all entries but that one confirmed."""
        await writer.sync()
        future = await self._submit(writer, 1)
        if future is not None:
            await asyncio.wait([future])
            await as_client("reader of the open ledger", self._look_often("reader of the open ledger", 0.0))

    # ---- faults ----

    async def _strike(self, span_s: float) -> None:
        """Let one fault happen, and end."""
        await asyncio.sleep(self.random.random() * span_s)
        kind = self.random.choice(sorted(REPORTED_AT_ONCE) if self.theme == "reported" else self.KINDS)
        bookie = self.random.choice(self.cluster.bookies)
        await self.faults.strike(kind, bookie, self.aside.choice(("", "", "owner")))

    def _aim(self, count: int) -> None:
        """Let faults strike upon requests of recoveries, at the bookies that these reach."""
        kinds = [self.random.choice(AIMED_KINDS) for _ in range(count)]
        if self.random.random() < 0.5:
            kinds = kinds[:1] * count
        for kind in kinds:
            what, most = self.random.choice(MOMENTS)
            self._aims[what, self.random.randint(1, most)] = kind

    def on_request(self, kind: str, bookie: FullBookie, who: str) -> None:
        if kind == "fence":
            # The first request of an attempt: its LAC may be another one.
            self._attempts[who] += 1
        self._passed[kind] += 1
        fault = self._aims.pop((kind, self._passed[kind]), None)
        if fault == "kill recovery" and who in self._recoveries:
            self.history.count_fault(fault)
            self.loop.call_soon(self._recoveries[who].cancel)
        elif fault == "kill owner":
            self.history.count_fault(fault)
            self.loop.call_soon(self._kill_owner)
        elif fault == "race":
            self._race(bookie)
        elif fault is not None and not fault.startswith("kill"):
            self.faults.strike_now(fault, bookie, who)

    def _race(self, bookie: FullBookie) -> None:
        """Let a bookie fail while it owes the owner answers, and a recovery begin at about the same time."""
        self.faults.strike_now(self.random.choice(RACE_KINDS), bookie, "owner")
        self.cluster.metadata_s = self.random.choice((self.cluster.metadata_s, 0.05))
        self._recovering("recoverer", self.random.choice((0.0, 0.01, 0.1)))

    def on_adds(self, bookie: FullBookie, who: str, adds: Adds) -> None:
        if adds.ledger_id != self._ledger_id:
            return
        self._reached.add((who, bookie.id))
        if adds.is_recovery:
            attempt = f"{who}, fence {self._attempts[who]}"
            self.ledger.recovery_lacs.setdefault(attempt, set()).update(adds.lacs)
            self.ledger.rewritten.setdefault(who, set()).update(adds.entry_ids)
            self.on_request("recovery add", bookie, who)
            return
        self.on_request("add", bookie, who)
        if adds.is_fenced:
            self.ledger.fenced_out.update((bookie.id, entry_id) for entry_id in adds.entry_ids)

    def on_negative(self, bookie: FullBookie, who: str, ledger_id: int, entry_id: int) -> None:
        if ledger_id == self._ledger_id and entry_id >= 0 and not bookie.is_fenced_durably(ledger_id):
            self.ledger.unfenced_negatives.append((who, bookie.id, entry_id))

    # ---- the end ----

    async def _read_all(self, metadata: LedgerMetadata) -> None:
        client = self._client()
        try:
            reader = await client.open(self._ledger_id)
            self.ledger.lacs.append(("last reader", reader.last_entry, self._now()))
            async for batch in reader.batches(batch_bytes=self.aside.choice(BATCH_BYTES)):
                for i, payload in enumerate(batch):
                    self.ledger.reads.append(("last reader", batch.first_entry + i, bytes(payload)))
        except BookKeeperError as error:
            self.ledger.pending.append(f"the ledger cannot be read: {error}")
        finally:
            await client.close()
        read = {entry_id for who, entry_id, _ in self.ledger.reads if who == "last reader"}
        missing = sorted(set(range(metadata.last_entry + 1)) - read)
        if missing:
            self.ledger.pending.append(f"entries {missing} were not read in the end")
        # What the owner sent before it closed the ledger may still be on its way to a bookie that Qa did not need.
        await asyncio.sleep(ON_ITS_WAY_S)
        for bookie in self.cluster.bookies:
            bookie.settle()
        self._excuse_unreached_bookies()
        self._audits.in_the_end(metadata)

    def _excuse_unreached_bookies(self) -> None:
        """What is to be sent to a bookie waits for the connection, and is never sent where its client ends before.

        Only an owner that closes its ledger waits for connections, and a recovery for those to bookies that it took in.
        """
        (_, before, _), (_, _, closer) = self.ledger.changes[-2:]
        for bookie in self.cluster.bookies:
            if ("owner", bookie.id) not in self._reached and closer != "owner":
                self.ledger.disturbed.add(("owner", bookie.id))
            if (closer, bookie.id) not in self._reached and bookie.id in before.metadata.last_fragment.bookies:
                self.ledger.disturbed.add((closer, bookie.id))

    def _note_how_prompt_all_must_be(self) -> None:
        cluster, struck = self.cluster, self.history.faults.keys() - EVENTS
        if self.history.pressed:
            return
        if not struck:
            delays_s = cluster.network_s + cluster.journal_s + cluster.metadata_s
            self.ledger.prompt_ns = int(1e9 * (QUIET_DELAYS * delays_s + QUIET_S))
        elif self.theme == "reported" and self.history.faults["crash"] <= 1 and cluster.metadata_s <= PROMPT_METADATA_S:
            self.ledger.prompt_ns = int(1e9 * PROMPT_S)
            self.ledger.prompt_adds_only = True


def _described(context: dict[str, Any]) -> str:
    return repr(context["exception"]) if "exception" in context else str(context.get("message"))


def as_client(who: str, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Run something in the name of a client: its connections and metadata writes are known by that."""
    context = contextvars.copy_context()
    context.run(WHO.set, who)
    return asyncio.get_running_loop().create_task(work, context=context)


def run_full(seed: int) -> FullOutcome:
    """Run the schedule of a seed."""
    return FullSchedule(seed).run()
