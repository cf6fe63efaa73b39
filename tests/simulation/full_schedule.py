"""The full tier: one ledger written, recovered and read by the shipped client on real bookie storage, under faults."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from bkspark.client import Client
from bkspark.client.writer import LedgerWriter
from bkspark.client.writer_options import WriterOptions
from bkspark.core.add_pipeline import WriterLimits
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.striping import write_set
from bkspark.errors import BookKeeperError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.uri import MetadataUri
from bkspark.net.pool import NetOptions
from bkspark.wire.digest import EntryDigest
from bkspark.wire.v2 import Status
from tests.crash.images import Loss
from tests.planting import changed
from tests.simulation.checkers import violations
from tests.simulation.full_cluster import URI, Cluster, DelayedTree, FullBookie
from tests.simulation.history import Audit, Close, Copies, History, LedgerHistory
from tests.simulation.virtual_loop import Stuck, VirtualLoop

QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (4, 3, 2), (3, 3, 3), (3, 2, 1))
PATIENCE_S = 60.0
"""Virtual seconds after the faults in which everything must end."""


@dataclass(slots=True)
class FullOutcome:
    """What came of a schedule of the full tier."""

    violations: list[str]
    history: History
    acknowledged: int


class FullSchedule:
    """One seed: a cluster, an owner, recoverers, faults, then healing and the audit."""

    QUORUMS: Sequence[tuple[int, int, int]] = QUORUMS
    SPARES: Sequence[int] = (0, 1, 2)
    """How many bookies there may be above E."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.history = History()
        self.ledger = LedgerHistory()
        self.quorums = self.random.choice(self.QUORUMS)
        self.cluster = Cluster(self.random, self.quorums[0] + self.random.choice(self.SPARES))
        self.loop = VirtualLoop(self.cluster.connect)
        self._ledger_id = -1

    def run(self) -> FullOutcome:
        """Play the schedule; an error that is no BookKeeperError counts as a violation."""
        found: list[str] = []
        self.loop.set_exception_handler(lambda loop, context: found.append(f"exception: {context.get('exception')!r}"))
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
        return FullOutcome(found + violations(self.ledger), self.history, self.ledger.last_acknowledged + 1)

    def _end(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def _client(self, tree: DelayedTree | None = None) -> Client:
        return Client(
            URI,
            tree=tree or self.cluster.session(),
            net=NetOptions(connect_timeout_s=1.0, read_timeout_s=1.0),
            writer=WriterOptions(close_timeout_s=10.0),
            limits=WriterLimits(add_timeout_ns=1_000_000_000, replacement_retry_ns=500_000_000),
        )

    async def _main(self) -> None:
        await BookieRegistry(self.cluster.store.session(), MetadataUri.parse(URI)).initialize_cluster()
        for bookie in self.cluster.bookies:
            await bookie.start()
        owner = self._client()
        writer = await self._create(owner)
        self._ledger_id = writer.ledger_id
        span_s = self.random.choice((0.02, 0.2, 1.5))
        writing = asyncio.ensure_future(self._write(writer, span_s))
        others = [asyncio.ensure_future(self._recover(f"recoverer {i}", span_s)) for i in range(self._recoverers())]
        others += [asyncio.ensure_future(self._strike(span_s)) for _ in range(self.random.choice((0, 1, 2, 3)))]
        self._begin_others()
        await self._ended([writing, *others], "clients")
        for bookie in self.cluster.bookies:
            await bookie.start()
        for link in sorted(self.cluster.links, key=lambda it: it.number):
            link.abort()
        metadata = await self._recover_finally()
        if metadata is not None:
            await self._after_closing(metadata)
            await self._read_all(metadata)
        await owner.close()

    async def _create(self, owner: Client) -> LedgerWriter:
        size, write_quorum, ack_quorum = self.quorums
        return await owner.create(ensemble=size, write_quorum=write_quorum, ack_quorum=ack_quorum)

    def _begin_others(self) -> None:
        """Let others than the owner, recoverers and faults begin."""

    async def _after_closing(self, metadata: LedgerMetadata) -> None:
        """Wait for those others, now that the ledger is closed."""

    def _recoverers(self) -> int:
        return self.random.choice((0, 1, 1, 1, 2))

    async def _ended(self, tasks: list[asyncio.Future[None]], what: str) -> None:
        if not tasks:
            return
        _, pending = await asyncio.wait(tasks, timeout=PATIENCE_S)
        if pending:
            self.ledger.pending.append(f"{len(pending)} {what} did not end")
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _write(self, writer: LedgerWriter, span_s: float) -> None:
        added = 0
        for _ in range(self.random.choice((3, 5, 8))):
            payloads = [b"entry %d" % (added + i) for i in range(self.random.choice((1, 1, 3, 20)))]
            try:
                future = await writer.submit(payloads)
            except BookKeeperError:
                break
            for payload in payloads:
                self.ledger.invoked[added] = (payload, self._now())
                added += 1
            future.add_done_callback(self._on_acknowledged)
            await asyncio.sleep(self.random.expovariate(1.0) * span_s / 4)
        try:
            if self.random.random() < 0.5:
                metadata = await writer.close()
                self._learned_end("owner", metadata)
            else:
                await writer.sync()
                writer.abandon()
        except BookKeeperError:
            self.history.count_fault("owner ended early")

    def _on_acknowledged(self, future: asyncio.Future[int]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.ledger.acknowledged.append((future.result(), self._now()))

    def _now(self) -> int:
        return int(self.loop.time() * 1e9)

    def _learned_end(self, who: str, metadata: LedgerMetadata) -> None:
        self.ledger.closes.append(Close(who, metadata.last_entry, metadata.length, self._now()))

    async def _recover(self, who: str, span_s: float) -> None:
        await asyncio.sleep(self.random.random() * span_s)
        client = self._client()
        try:
            self._learned_end(who, await client.recover(self._ledger_id))
        except BookKeeperError:
            self.history.count_fault("recovery failed")
        finally:
            await client.close()

    async def _strike(self, span_s: float) -> None:
        """Let one fault happen, and end."""
        await asyncio.sleep(self.random.random() * span_s)
        kind = self.random.choice(("crash", "crash", "reset", "cut", "metadata", "refuse"))
        self.history.count_fault(kind)
        bookie = self.random.choice(self.cluster.bookies)
        if kind == "crash":
            await bookie.crash(self.random.choice(list(Loss)))
            await asyncio.sleep(self.random.choice((0.01, 0.3, 2.0)))
            await bookie.start()
        elif kind == "refuse":
            bookie.is_refusing = True
            await asyncio.sleep(self.random.choice((0.02, 0.3)))
            bookie.is_refusing = False
        elif kind == "metadata":
            self.cluster.lose_a_metadata_answer()
        else:
            links = sorted((link for link in self.cluster.links if link.bookie is bookie), key=lambda it: it.number)
            for link in links:
                if kind == "reset":
                    link.abort()
                else:
                    link.is_cut[self.random.randrange(2)] = True

    async def _recover_finally(self) -> LedgerMetadata | None:
        self.cluster.store.faults.clear()
        error: BookKeeperError | None = None
        for _ in range(3):
            client = self._client()
            try:
                metadata = await client.recover(self._ledger_id)
                self._learned_end("last recoverer", metadata)
                return metadata
            except BookKeeperError as failed:
                error = failed
            finally:
                await client.close()
        self.ledger.pending.append(f"the ledger cannot be recovered: {error}")
        return None

    async def _read_all(self, metadata: LedgerMetadata) -> None:
        client = self._client()
        try:
            reader = await client.open(self._ledger_id)
            self.ledger.lacs.append(("last reader", reader.last_entry, self._now()))
            async for batch in reader.batches():
                for i, payload in enumerate(batch):
                    self.ledger.reads.append(("last reader", batch.first_entry + i, bytes(payload)))
        except BookKeeperError as error:
            self.ledger.pending.append(f"the ledger cannot be read: {error}")
        finally:
            await client.close()
        for bookie in self.cluster.bookies:
            bookie.settle()
        digest = EntryDigest(metadata.digest, b"")
        copies = [self._copies(metadata, digest, entry_id) for entry_id in range(metadata.last_entry + 1)]
        self.ledger.audits.append(Audit(self._now(), "in the end", metadata.last_entry, metadata.ack_quorum, copies))

    def _copies(self, metadata: LedgerMetadata, digest: EntryDigest, entry_id: int) -> Copies:
        bookies = {bookie.id: bookie for bookie in self.cluster.bookies}
        ensemble = metadata.fragment_of(entry_id).bookies
        slots = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        held = [self._held(bookies[ensemble[slot]], digest, entry_id) for slot in slots]
        payloads = [payload for payload in held if payload is not None]
        return Copies(len(payloads), 0, frozenset(payloads))

    def _held(self, bookie: FullBookie, digest: EntryDigest, entry_id: int) -> bytes | None:
        assert bookie.twin is not None
        status, _, content = bookie.twin.read(self._ledger_id, entry_id)
        if status != Status.EOK:
            return None
        return bytes(digest.open_entry(content, self._ledger_id, entry_id).payload)


def run_full(seed: int) -> FullOutcome:
    """Run the schedule of a seed."""
    return FullSchedule(seed).run()
