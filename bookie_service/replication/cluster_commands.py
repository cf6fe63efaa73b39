"""What operators can see of a cluster and do to it from any of its processes.

The HTTP API of bookies and of autorecovery uses these commands. They have a metadata session and connections to bookies
of their own; the first command that needs them opens them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from bkspark.core.last_confirmed import LastEntries
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.pipeline import WriterStart
from bkspark.core.writer import WriterCore
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, ConfigurationError, MetadataFormat
from bkspark.ids import parse_host_port
from bkspark.ledger import Cluster
from bkspark.ledger.context import ClientContext
from bkspark.ledger.encryption import EncryptionOptions
from bkspark.ledger.reader import LedgerReader, LedgerTimes, last_entries
from bkspark.ledger.writer import LedgerWriter
from bkspark.metadata.bookie_plans import BookiePlan, BookiePlans, PlansInForce
from bkspark.metadata.election import AuditorElection
from bkspark.metadata.ledgers import NO_LEDGER, Versioned
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.repair_reports import RepairReport, RepairReports
from bkspark.metadata.underreplication import Underreplicated, UnderreplicationStore
from bkspark.net.pool import NetOptions
from bkspark.wall_clock import wall_clock_ms
from bkspark.wire.digest import DigestType, EntryDigest
from bookie_service.replication import drain_plans
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.drain import Drain, DrainPreview, DrainProgress
from bookie_service.replication.drain_plans import BegunDrain
from bookie_service.replication.operations import check_is_down, decommission, move_away, no_such_bookie
from bookie_service.replication.options import AutoRecoveryOptions

SPACE_TIMEOUT_S = 10.0
BOOKIES_AT_ONCE = 64
LOOK_S_MAX = 5.0
"""How long a request may look for a ledger that names a bookie without a cookie."""
SANITY_ENTRIES = 10
READ_PIECE_BYTES = 1 << 16
"""About how many bytes `entries` yields at once. A bookie's event loop turns a piece into JSON in 3 ms."""


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A summary of a cluster, with Apache's names."""

    auditor_id: str
    """The elected auditor; "": there is none."""
    is_auto_recovery_enabled: bool
    """Whether no operator has turned repair off."""
    is_underreplicated: bool
    """Whether a ledger is on the list."""
    bookies: int
    """How many have a cookie; `writable`, `read_only`: how many are registered so."""
    writable: int
    read_only: int


class ClusterCommands:
    """The commands of one cluster. For one event loop, until `close`."""

    def __init__(self, uri: str, who: str, options: AutoRecoveryOptions, cluster: Cluster | None = None) -> None:
        """`who`: the name of this process in locks. `cluster`: the connections; None: the first command makes them."""
        self._uri = uri
        """The metadata URI of the cluster."""
        self._who = who
        self._options = options
        self._cluster = cluster
        """The connections; None before the first command if they were not given."""

    async def close(self) -> None:
        """Close all connections."""
        if self._cluster is not None:
            await self._cluster.close()

    async def _connected(self) -> Cluster:
        if self._cluster is None:
            net = NetOptions(tls=self._options.tls, sasl=self._options.sasl)
            self._cluster = Cluster(self._uri, net=net, zookeeper=self._options.zookeeper)
        return await self._cluster.connect()

    async def _context(self) -> ClientContext:
        return await (await self._connected()).context()

    async def _store(self) -> UnderreplicationStore:
        cluster = await self._connected()
        return UnderreplicationStore(await cluster.tree(), cluster.uri)

    async def _election(self) -> AuditorElection:
        cluster = await self._connected()
        return AuditorElection(await cluster.tree(), cluster.uri, self._who)

    # ---- bookies ----

    async def bookies(self, *, read_only: bool) -> list[str]:
        """Return the ids of the writable or of the read-only bookies, sorted. Raises MetadataError."""
        registry = (await self._context()).registry
        return sorted(await (registry.read_only() if read_only else registry.writable()))

    async def hosts(self, *, read_only: bool) -> dict[str, str]:
        """Return the host of each of these bookies, by id, as the bookie registered it. Raises MetadataError."""
        registry = (await self._context()).registry
        found = await (registry.read_only() if read_only else registry.writable())
        return {bookie: _host(bookie, address) for bookie, address in sorted(found.items())}

    async def states(self) -> dict[str, str]:
        """Return the state of every bookie, by id: available, readonly or down. Raises MetadataError."""
        return await (await self._context()).registry.states()

    async def spaces(self) -> dict[str, tuple[int, int] | None]:
        """Return (free, total) bytes of every registered bookie; None for a bookie that does not answer in time.

        Raises:
            MetadataError: the registered bookies are not known.
        """
        context = await self._context()
        states = await context.registry.states()
        limit = asyncio.Semaphore(BOOKIES_AT_ONCE)

        async def ask(bookie: str) -> tuple[int, int] | None:
            try:
                async with limit, asyncio.timeout(SPACE_TIMEOUT_S):
                    space = await (await context.pool.v3_channel(bookie)).disk_space()
            except (BookKeeperError, TimeoutError):
                return None
            return space.free_bytes or 0, space.total_bytes or 0

        registered = [bookie for bookie, state in states.items() if state != "down"]
        return dict(zip(registered, await asyncio.gather(*map(ask, registered))))

    async def info(self) -> ClusterInfo:
        """Return a summary of the cluster. Raises MetadataError."""
        registry, store = (await self._context()).registry, await self._store()
        return ClusterInfo(
            await (await self._election()).auditor() or "",
            await store.is_enabled(),
            not await store.is_empty(),
            len(await registry.known()),
            len(await registry.writable_ids()),
            len(await registry.read_only()),
        )

    # ---- ledgers ----

    async def ledger_ids(self, after: int = NO_LEDGER) -> AsyncIterator[list[int]]:
        """Yield the ids of all ledgers above `after`, ascending, at most 10,000 at a time. Raises MetadataError."""
        async for page in (await self._context()).ledgers.pages(after):
            yield page.tolist()

    async def metadata(self, ledger_id: int) -> Versioned:
        """Return a ledger's metadata, with the times of its node. Raises NoSuchLedger, MetadataError."""
        return await (await self._context()).ledgers.read(ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger. Raises NoSuchLedger, MetadataError."""
        await (await self._context()).ledgers.delete(ledger_id)

    async def entries(self, ledger_id: int, first: int, last: int) -> AsyncIterator[dict[int, bytes]]:
        """Yield confirmed entries by id from `first` to `last` (-1: the last one), a few at a time, without fencing.

        Raises:
            NoSuchLedger, ReadFailed, MetadataError: the ledger or an entry cannot be read.
        """
        context = await self._context()
        stored = await context.ledgers.read(ledger_id)
        metadata, found = stored.metadata, LastEntries()
        password = metadata.password or b""
        if not metadata.is_closed:
            digest = EntryDigest(metadata.digest, password, metadata.lac_bounds)
            found = await last_entries(context.pool, ledger_id, metadata, digest)
        # A bookie has no encryption keys, so entries of encrypted ledgers are shown as they are stored.
        times, encryption = LedgerTimes.of(stored), EncryptionOptions(shows_sealed=True)
        reader = LedgerReader(context, ledger_id, metadata, password, found, times, encryption)
        end = reader.last_entry if last < 0 else min(last, reader.last_entry)
        if first > end:
            return
        async for batch in reader.batches(first, end + 1, batch_bytes=READ_PIECE_BYTES):
            yield {batch.first_entry + row: batch[row] for row in range(len(batch))}

    async def check_writing(self, bookie: str, seconds_max: float) -> None:
        """Write a few entries to a ledger on one bookie alone, read them back, and delete the ledger.

        Raises:
            BookKeeperError, TimeoutError: the bookie does not serve correctly.
        """
        context = await self._context()
        digest = DigestType.CRC32C
        metadata = LedgerMetadata(1, 1, 1, (Fragment(0, (bookie,)),), digest=digest, ctime=wall_clock_ms())
        ledger_id, stored = await context.ledgers.create(metadata)
        try:
            options = WriterOptions()
            core = WriterCore(WriterStart(ledger_id, stored.metadata, stored.version), context.random, options)
            async with asyncio.timeout(seconds_max):
                async with LedgerWriter(context, core, b"", options) as writer:
                    await writer.append_many([b"sanity %d" % number for number in range(SANITY_ENTRIES)])
                found = sum([len(piece) async for piece in self.entries(ledger_id, 0, -1)])
            if found != SANITY_ENTRIES:
                raise BookKeeperError(f"{found} of {SANITY_ENTRIES} entries were read back")
        finally:
            await context.ledgers.delete(ledger_id)

    # ---- autorecovery ----

    async def is_auto_recovery_enabled(self) -> bool:
        """Return whether autorecovery may work. Raises MetadataError."""
        return await (await self._store()).is_enabled()

    async def set_auto_recovery_enabled(self, enabled: bool) -> None:
        """Turn autorecovery of the whole cluster on or off. Raises MetadataError."""
        store = await self._store()
        await store.prepare()
        await store.set_enabled(enabled)

    async def auditor(self) -> str | None:
        """Return the id of the auditor, or None. Raises MetadataError."""
        return await (await self._election()).auditor()

    async def recovery_delay_s(self) -> int | None:
        """Return the delay before the ledgers of a lost bookie are repaired; None: not set. Raises MetadataError."""
        delay = await (await self._store()).lost_bookie_recovery_delay()
        return None if delay is None else delay.seconds

    async def set_recovery_delay_s(self, seconds: int) -> None:
        """Set this delay, which also requests an audit. Raises MetadataError."""
        await (await self._store()).set_lost_bookie_recovery_delay_s(seconds)

    async def repair_reports(self) -> list[RepairReport]:
        """Return the reports of the processes that repair. Raises MetadataError."""
        return await (await self._repair_reports()).all()

    async def repair_bytes_per_s(self) -> int | None:
        """Return the rate that an operator set for each process; None: there is none. Raises MetadataError."""
        return await (await self._repair_reports()).bytes_per_s()

    async def set_repair_bytes_per_s(self, value: int | None) -> None:
        """Set this rate; None removes it. Raises MetadataError."""
        await (await self._repair_reports()).set_bytes_per_s(value)

    async def _repair_reports(self) -> RepairReports:
        cluster = await self._connected()
        return RepairReports(await cluster.tree(), cluster.uri)

    async def underreplicated(self, missing: str = "", without: str = "") -> list[Underreplicated]:
        """Return the ledgers that lack copies, ascending; a listing that cannot be read names no bookies.

        `missing`: only ledgers that lack copies at this bookie. `without`: only ledgers that lack none at this bookie.

        Raises:
            MetadataError: the store failed.
        """
        store = await self._store()
        found = [await _listing(store, ledger_id) async for ledger_id in store.ids()]
        chosen = [each for each in found if each is not None]
        chosen = [each for each in chosen if not missing or missing in each.missing]
        return sorted((each for each in chosen if not without or without not in each.missing), key=_by_id)

    # ---- plans for bookies ----

    async def _repaired(self) -> RepairedCluster:
        return await RepairedCluster.of(await self._connected())

    async def _plans(self) -> BookiePlans:
        cluster = await self._connected()
        return BookiePlans(await cluster.tree(), cluster.uri)

    async def plans(self) -> PlansInForce:
        """Return all plans for bookies that are in force or cannot be read. Raises MetadataError."""
        return await (await self._plans()).in_force(wall_clock_ms())

    async def set_plan(self, bookie: str, kind: str, who: str, reason: str, seconds: int) -> BookiePlan:
        """Begin maintenance or quarantine of a bookie; return the plan.

        Raises:
            NoSuchBookie: there is no such bookie.
            ConfigurationError: it has a plan of another kind.
            MetadataError: the store failed.
        """
        await self._check_known(bookie)
        stored, now_ms = await self._plans(), wall_clock_ms()
        plan = BookiePlan(bookie, kind, who, now_ms, now_ms + seconds * 1000 if seconds else 0, reason)
        there = await stored.set(plan, lambda there: there.kind == kind or there.is_over(now_ms))
        if there is not None:
            raise ConfigurationError(there.refusal)
        return plan

    async def end_plan(self, bookie: str) -> bool:
        """End the plan for a bookie; return whether there was one. Raises MetadataError."""
        return await (await self._plans()).end(bookie)

    async def end_own_plan(self, plan: BookiePlan) -> bool:
        """End a plan unless another operator has replaced it; return whether it was ended. Raises MetadataError."""
        return await (await self._plans()).end_own(plan)

    async def drain_preview(self, bookie: str) -> DrainPreview:
        """Return what a drain would copy. Raises NoSuchBookie, ConfigurationError, MetadataError."""
        await self._check_known(bookie)
        return await Drain(await self._repaired(), bookie, self._who, self._options, _ignore).preview()

    async def begin_drain(self, bookie: str, who: str, reason: str, bytes_per_s: int) -> BegunDrain:
        """Store the plan of a drain. Raises NoSuchBookie, and as `drain_plans.begin`."""
        await self._check_known(bookie)
        return await drain_plans.begin(await self._repaired(), bookie, who, reason, bytes_per_s)

    async def _check_known(self, bookie: str) -> None:
        states = await self.states()
        if bookie not in states:
            raise no_such_bookie(bookie, states)

    # ---- long work ----

    async def check_movable(self, bookie: str) -> None:
        """Check, within seconds, whether `move_away` can begin.

        A bookie without a cookie is accepted if not all ledgers could be looked at in that time: one may still name it.

        Raises:
            NoSuchBookie: there is no such bookie.
            ConfigurationError: it serves.
            MetadataError: the store failed.
        """
        cluster = await self._repaired()
        if bookie in await cluster.context.registry.registered_ids():
            raise ConfigurationError(f"bookie {bookie} is serving: stop it first")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S_MAX):
                await check_is_down(cluster, bookie)

    async def drain(self, bookie: str, progress: Callable[[str], None], *, closes_open: bool) -> int:
        """Carry out a drain that was begun; return how many ledgers were moved. Raises as `Drain.run`."""
        said = ""

        def report(now: DrainProgress) -> None:
            nonlocal said
            line = f"{now.ledgers - now.ledgers_left} of {now.ledgers} ledgers, {now.bytes_left} bytes left"
            if line != said:
                said = line
                progress(line)

        cluster = await self._repaired()
        moving = Drain(cluster, bookie, self._who, self._options, report, closes_open=closes_open, say=progress)
        return await moving.run()

    async def move_away(self, bookie: str, progress: Callable[[str], None], *, forgets: bool) -> int:
        """Copy everything that a stopped bookie held to other bookies; return how many ledgers it had.

        Args:
            forgets: also delete its cookie afterwards.

        Raises:
            BookKeeperError: as `operations.move_away`.
        """
        cluster = await self._repaired()
        move = decommission if forgets else move_away
        return await move(cluster, bookie, self._options, progress)


def _host(bookie: str, address: BookieAddress | None) -> str:
    """Return the host that a bookie registered, or that its id names."""
    if address is not None:
        return address.host
    try:
        return parse_host_port(bookie)[0]
    except ValueError:
        return bookie


def _ignore(progress: DrainProgress) -> None:
    """Ignore progress."""


async def _listing(store: UnderreplicationStore, ledger_id: int) -> Underreplicated | None:
    try:
        return await store.find(ledger_id)
    except MetadataFormat:
        return Underreplicated(ledger_id, (), 0, None)


def _by_id(ledger: Underreplicated) -> int:
    return ledger.ledger_id
