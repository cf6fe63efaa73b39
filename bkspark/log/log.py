"""Log: a named, ordered list of ledgers that is appended to, read and followed as one sequence of entries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    DataLoss,
    LedgerFenced,
    NoSuchLedger,
    NoSuchLog,
)
from bkspark.ledger import Cluster, LedgerReader, LedgerWriter, arguments
from bkspark.ledger.patience import PATIENCE_S, Patience
from bkspark.ledger.range_reader import BATCH_BYTES
from bkspark.log import facts, reading
from bkspark.log.changes import is_repeated
from bkspark.log.consumers import ConsumerRegistration, ConsumerState, behind, state_of, state_of_unreadable
from bkspark.log.election import ELECTIONS_ROOT, Election
from bkspark.log.expiry import Expiry, ExpiryTimer, closed_ordinals
from bkspark.log.formats import (
    LogHead,
    PendingLedger,
    SegmentFacts,
    SegmentOwner,
    check_log_name,
    ledger_identity,
)
from bkspark.log.positions import EARLIEST, LATEST, LogBatch, OffsetSpec, Position, check_offset
from bkspark.log.publication import AnyPublisher, AppendOutcome, check_ledgers, publisher_of
from bkspark.log.retention import Retention
from bkspark.log.schemas import SchemaChange
from bkspark.log.snapshot import LogSegment, LogSnapshot
from bkspark.log.store import LogStore
from bkspark.log.unregistered import delete_unregistered
from bkspark.log.writer import (
    DEFAULTS,
    OPEN_TRIES_MAX,
    ROLL_BYTES,
    LedgerOptions,
    LogWriter,
    RollLimits,
    create_pending,
    delete_ledger,
    fence,
)
from bkspark.metadata.tree import milliseconds_of
from bkspark.options import DAY_S
from bkspark.wall_clock import wall_clock_ms

VACUUM_AGE_S = 24 * 3600.0
CONSUMER_EXPIRY_S = 7 * DAY_S
"""Default time after which the registration of a reader that does not move expires."""
AGE_S_MAX = 1e10
"""Three hundred years: more than any real age."""
FOLLOW_POLL_S = 1.0
"""`follow` gets changes from a watch; it also checks at this interval, because a watch may be lost."""


class Log:
    """One log of a cluster, whether or not it exists yet. Get one by `Client.log(name)`.

    Raises:
        ConfigurationError: the name is unusable.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = check_log_name(name)
        self._opened: LogStore | None = None
        """The cluster's log store; None before the first call. Set once."""
        self._expiry_timer = ExpiryTimer(self._expiry)

    @property
    def name(self) -> str:
        return self._name

    async def store(self) -> LogStore:
        """Return the cluster's log store."""
        if self._opened is None:
            self._opened = await store_of(self._cluster)
        return self._opened

    # ---- the log as a whole ----

    async def create(self, *, exist_ok: bool = False) -> None:
        """Create an empty log. Raises LogExists if there is one of this name, unless `exist_ok`."""
        exist_ok = arguments.flag("exist_ok", exist_ok)
        await (await self.store()).create(self._name, exist_ok=exist_ok)

    async def snapshot(self) -> LogSnapshot:
        """Return the current list of ledgers. Raises NoSuchLog."""
        return await (await self.store()).snapshot(self._name)

    async def show(self) -> dict[str, Any]:
        """Return the facts of the log: `{"log", "ledgers": [{"ledger", "first_entry", "last_entry", "state",
        "length"}], "published": [{"name", "version", "query"}], "retention": {"age_ms", "bytes"}, "schemas":
        [{"number", "first_ordinal", "format", "schema"}], "version"}`.

        `published` has the last version of each remembered name that published in the log, the latest last; for a
        streaming query without a name, it has the query's id and last epoch. `query` is the query that published under
        the name; None if there was no query, or if it is unknown. An open ledger has last entry -1 and length 0, as in
        its metadata; the state of a ledger that is gone is MISSING. A slice of a shared ledger has its own first and
        last entry, and is OPEN while more of the ledger may be published. `schemas` has the payload formats and schemas
        (Spark's JSON) that Spark wrote, each with the first ordinal to which it applies, the present one last.
        """
        return await facts.of_log(self._cluster, await self.store(), await self.snapshot())

    async def delete(self) -> None:
        """Delete the log and all its ledgers, pending ones too; its writer is fenced first. Raises NoSuchLog."""
        store = await self.store()
        for _ in range(OPEN_TRIES_MAX):
            try:
                closed = await fence(self._cluster, await self.snapshot())
            except NoSuchLog:
                closed = []  # it does not exist, or its deletion was interrupted; the store decides
            if await store.delete(self._name, self._delete_ledger, closed=[ordinal for ordinal, _ in closed]):
                return
        raise self._contended()

    async def recover(self) -> list[int]:
        """Fence and close every ledger that a writer left open, also of a live writer; return their ids."""
        store, snapshot = await self.store(), await self.snapshot()
        closed = await fence(self._cluster, snapshot)
        if snapshot.head.writer is not None:
            await store.record_closed(self._name, snapshot.head.writer, closed, is_end=True)
        return [end.ledger_id for _, end in closed]

    async def truncate(self, before: OffsetSpec | datetime) -> int:
        """Move the log's start to a position, or to the first entry of a time (`at_time`); delete the ledgers before
        it, and return their number.

        Raises:
            ConfigurationError: a ledger before the position is being written, or the position is not one of this log.
            DataLoss: the position is before the log's start, or after its end.
        """
        if isinstance(before, datetime):
            # Rounded down: an entry of this millisecond may be later.
            before = await self._since_ms(milliseconds_of(before))
        else:
            before = check_offset("before", before)
        store, snapshot = await self.store(), await self.snapshot()
        position = await reading.position_of(self._open_listed, snapshot, before)
        closed = await closed_ordinals(self._cluster, snapshot)
        position = await reading.normal_form(self._open_listed, snapshot, position, closed)
        at_end = await self._is_ledger_end(snapshot, position)
        count = await store.truncate(self._name, position, at_ledger_end=at_end, closed=closed)
        if count is None:
            raise ConfigurationError(
                f"log {self._name} cannot be truncated at {position}: a ledger before that is being written. "
                f"Close its writer, recover the log, or truncate less"
            )
        await self._sweep_after(store)
        return count

    async def _is_ledger_end(self, snapshot: LogSnapshot, position: Position) -> bool:
        """Return whether a position is the end of a closed ledger, or of a slice, of the list."""
        if not snapshot.first_ordinal <= position.ordinal < snapshot.end_ordinal or not position.entry_id:
            return False
        listed = await snapshot.ledger(position.ordinal)
        last_entry, is_closed = listed.last_entry, True
        if last_entry is None:
            reader = await reading.open_listed(self._cluster, self._name, listed)
            last_entry, is_closed = reader.last_entry, reader.is_closed
        if position.entry_id > last_entry + 1:
            raise ConfigurationError(
                f"ledger {listed.ledger_id} of log {self._name} ends at entry {last_entry}; {position} lies beyond that"
            )
        return is_closed and position.entry_id == last_entry + 1

    async def retention(self) -> Retention:
        """Return how long the log keeps its ledgers. Raises NoSuchLog."""
        return (await self.snapshot()).head.retention

    async def set_retention(self, *, age_s: float | None = None, bytes: int | None = None) -> None:
        """Set how long the log keeps its ledgers; None sets no limit. Writers and `expire` remove the others.

        Args:
            age_s: a ledger is removed when all its entries entered the log at least this long ago.
            bytes: a ledger is removed when the ledgers after it have at least this many payload bytes.

        Raises:
            ConfigurationError: a limit is out of bounds.
            NoSuchLog: there is no such log.
        """
        age_ms = None if age_s is None else int(arguments.seconds("age_s", age_s, 0.001, AGE_S_MAX) * 1000)
        bytes_max = None if bytes is None else arguments.whole_number("bytes", bytes, 1)
        await (await self.store()).set_retention(self._name, Retention(age_ms, bytes_max))

    async def expire(self) -> int:
        """Remove the ledgers that the log's retention does not keep and no registered reader needs; return their
        number. Raises NoSuchLog.
        """
        return await (await self._expiry()).now()

    async def _expiry(self) -> Expiry:
        return Expiry(self._cluster, await self.store(), self._name, self._delete_ledger)

    # ---- registered readers ----

    async def register_consumer(
        self, consumer: str, start: OffsetSpec = EARLIEST, *, expiry_s: float = CONSUMER_EXPIRY_S
    ) -> ConsumerRegistration:
        """Register a reader under a name: retention keeps what it has not read, from `start` on, until the registration
        expires. A reader that was registered under the name loses its registration.

        Args:
            expiry_s: the registration ends this long after it was made or last moved.

        Raises:
            ConfigurationError: the name or the place is unusable.
            DataLoss: the entries after the place are gone.
            NoSuchLog: there is no such log.
        """
        start = check_offset("start", start)
        expiry_s = arguments.seconds("expiry_s", expiry_s, 0.001, AGE_S_MAX)
        position = await reading.position_of(self._open_listed, await self.snapshot(), start)
        store = await self.store()
        made = await store.consumers.register(self._name, consumer, position, max(1, int(expiry_s * 1000)))
        return ConsumerRegistration(store.consumers, self._name, made)

    async def consumers(self) -> list[ConsumerState]:
        """Return the registered readers of the log with their lag, by name. One whose registration cannot be read has
        an `error`. Raises NoSuchLog."""
        store, snapshot = await self.store(), await self.snapshot()
        found = await store.consumers.listed(self._name)
        end = await reading.latest(self._open_listed, snapshot) if found else snapshot.start
        now_ms, states = store.clock_ms(), []
        for name, each in found:
            if isinstance(each, BookKeeperError):
                states.append(state_of_unreadable(name, each))
            else:
                lag = await behind(self._open_listed, snapshot, each.position, end)
                states.append(state_of(each, lag, now_ms))
        return states

    async def remove_consumer(self, consumer: str) -> bool:
        """End a reader's registration; return whether there was one."""
        return await (await self.store()).consumers.remove(self._name, consumer)

    async def vacuum(self, *, older_than_s: float = VACUUM_AGE_S) -> int:
        """Delete the ledgers of dead attempts, and what interrupted changes left; return the number of ledgers.

        This reads the metadata of every ledger of the cluster that is not in this log's list, to find those that were
        created for the log and never registered.

        Args:
            older_than_s: attempts that began longer ago than this are regarded as dead. If such an attempt is in fact
                alive, its publication fails, and the job must be run again. Published ledgers are never deleted.
        """
        older_than_s = arguments.seconds("older_than_s", older_than_s, 0.0, AGE_S_MAX)
        return await self._vacuum(max(0, wall_clock_ms() - round(older_than_s * 1000)))

    async def _vacuum(self, begun_before_ms: int) -> int:
        """Delete the ledgers of attempts that began before a time (ms since 1970); return their number."""
        store = await self.store()
        retired = await self.retire_shared(created_before_ms=begun_before_ms)
        dead = await store.attempts.vacuum(self._name, self._delete_ledger, created_before_ms=begun_before_ms)
        unregistered = await delete_unregistered(
            self._cluster, store, self._name, self._delete_ledger, created_before_ms=begun_before_ms
        )
        return retired + dead + unregistered

    async def retire_shared(self, *, created_before_ms: int) -> int:
        """Close shared ledgers that were registered before a time (ms since 1970); delete those without published
        entries, and return the number of deleted ones. A process that still writes to one continues in another. Raises
        NoSuchLog.
        """
        created_before_ms = arguments.whole_number("created_before_ms", created_before_ms)
        pending = await (await self.store()).attempts.pending(self._name)
        return await self.retire(_shared_before(pending, created_before_ms))

    async def retire_older(self, ledger_id: int, age_s: float) -> int:
        """As `retire_shared`, for those registered at least `age_s` before a pending ledger, by the metadata store's
        clock."""
        ledger_id = arguments.whole_number("ledger_id", ledger_id)
        age_s = arguments.seconds("age_s", age_s, 0.0, AGE_S_MAX)
        pending = await (await self.store()).attempts.pending(self._name)
        registered_ms = max((each.ctime_ms for each in pending if each.ledger_id == ledger_id), default=0)
        return await self.retire(_shared_before(pending, registered_ms - int(age_s * 1000)))

    async def retire(self, ledger_ids: Sequence[int]) -> int:
        """Close pending ledgers, end their registrations, and delete those that are not in the list; return the number
        of deleted ones. A ledger whose bookies are unreachable stays registered.
        """
        arguments.instance("ledger_ids", ledger_ids, Sequence)
        ledger_ids = [arguments.whole_number("ledger_ids", ledger_id) for ledger_id in ledger_ids]
        retired = []
        for ledger_id in ledger_ids:
            try:
                await self._cluster.recover(ledger_id, having=ledger_identity(self._name))
            except NoSuchLedger:
                pass
            except BookKeeperError:
                continue
            retired.append(ledger_id)
        return await self._discard(lambda pending, _: pending.ledger_id in retired) if retired else 0

    async def _discard(self, select: Callable[[PendingLedger, LogHead], bool]) -> int:
        """Condemn and delete the pending ledgers that `select` chooses; return their number."""
        return await (await self.store()).attempts.discard(self._name, select, self._delete_ledger)

    async def _delete_ledger(self, ledger_id: int) -> None:
        await delete_ledger(self._cluster, self._name, ledger_id)

    def _contended(self) -> LedgerFenced:
        return LedgerFenced(f"other processes open log {self._name} for writing repeatedly: stop its writers first")

    # ---- writing ----

    async def open_for_writing(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        ledger_type: str = "PD_JOURNAL",
        metadata: Mapping[str, bytes | str] | None = None,
        roll_bytes: int = ROLL_BYTES,
        roll_seconds: float | None = None,
    ) -> LogWriter:
        """Open the log for writing; create it if it does not exist. The previous writer gets LedgerFenced.

        Args:
            ensemble, write_quorum, ack_quorum, ledger_type, metadata: options of new ledgers, as in `Client.create`.
            roll_bytes: payload bytes of a ledger after which the writer continues in a new one.
            roll_seconds: age of a ledger after which the next append goes to a new one; None: no limit.

        Raises:
            ConfigurationError: an argument is wrong.
            NotEnoughBookies: fewer writable bookies than `ensemble`; nothing was created, and no writer was fenced.
            LedgerRecoveryFailed, ReadFailed: an open ledger could not be closed, because too few bookies answered.
        """
        options = LedgerOptions(ensemble, write_quorum, ack_quorum, ledger_type, metadata)
        limits = RollLimits(roll_bytes, roll_seconds)
        return await LogWriter(self._cluster, await self.store(), self._name, options, limits).open()

    async def election(self, identity: str) -> Election:
        """Return a contender for the log's leadership; `async with` waits until it leads. An election is optional:
        opening for writing fences the previous writer. `identity` is what other contenders see, such as "host:pid".
        """
        if not isinstance(identity, str) or not identity:
            raise ConfigurationError(f"identity must be text that shows others who this is, not {identity!r}")
        return Election(await self._cluster.tree(), f"{ELECTIONS_ROOT}/{self._name}", identity)

    async def create_attempt(self, owner: SegmentOwner, options: LedgerOptions = DEFAULTS) -> LedgerWriter:
        """Create a ledger for `publish`, registered as pending. Close it before it is published. Raises NoSuchLog."""
        arguments.instance("owner", owner, SegmentOwner)
        arguments.instance("options", options, LedgerOptions)
        return await create_pending(self._cluster, await self.store(), self._name, owner, options)

    async def publish(
        self,
        ledgers: Sequence[SegmentFacts],
        *,
        publisher: AnyPublisher | None = None,
        only_if_empty: bool = False,
        shared: Collection[int] = (),
        schema: SchemaChange | None = None,
    ) -> AppendOutcome:
        """Append closed, pending ledgers or slices to the log's list, all or none; see `LogStore.append_ledgers`."""
        publisher = None if publisher is None else publisher_of(publisher)
        check_ledgers(ledgers)
        only_if_empty = arguments.flag("only_if_empty", only_if_empty)
        shared = [arguments.whole_number("shared", ledger_id) for ledger_id in shared]
        store = await self.store()
        outcome = await store.append_ledgers(
            self._name, ledgers, publisher=publisher, only_if_empty=only_if_empty, shared=shared, schema=schema
        )
        await self.keep_retention()
        return outcome

    async def keep_retention(self) -> None:
        """Remove expired ledgers, unless this object has tried that recently; failures are ignored."""
        await self._expiry_timer.tick()

    async def has_published(self, publisher: AnyPublisher) -> bool:
        """Return whether a publisher has published this version, or a later one: publishing it again changes nothing.

        Raises:
            NoSuchLog: there is no such log.
            VersionPublished: another query or job published the version, or a later one, under the name.
        """
        by = publisher_of(publisher)
        return is_repeated((await self.snapshot()).head, self._name, by)

    async def forget_published(self, ledger_id: int) -> None:
        """End the registration of a listed ledger: no more of its entries will be published."""
        ledger_id = arguments.whole_number("ledger_id", ledger_id)
        await (await self.store()).attempts.forget_published(self._name, [ledger_id])

    async def overwrite(
        self,
        ledgers: Sequence[SegmentFacts],
        *,
        publisher: AnyPublisher | None = None,
        schema: SchemaChange | None = None,
    ) -> AppendOutcome:
        """Replace the list by closed, pending ledgers in one change; the writer is fenced, the old ledgers are
        deleted."""
        publisher = None if publisher is None else publisher_of(publisher)
        check_ledgers(ledgers)
        store = await self.store()
        for _ in range(OPEN_TRIES_MAX):
            closed = [ordinal for ordinal, _ in await fence(self._cluster, await self.snapshot())]
            outcome = await store.replace_ledgers(
                self._name, ledgers, closed=closed, publisher=publisher, schema=schema
            )
            if outcome is not None:
                await self._sweep_after(store)
                return outcome
        raise self._contended()

    async def sweep(self) -> None:
        """Delete condemned ledgers of the log; those that cannot be deleted now are left to the next sweep."""
        await self._sweep_after(await self.store())

    async def _sweep_after(self, store: LogStore) -> None:
        """As `sweep`. The change that condemned the ledgers is done, so a failure must not reach its caller: the
        ledgers stay condemned until the next sweep.
        """
        try:
            await store.attempts.sweep(self._name, self._delete_ledger)
        except BookKeeperError:
            return

    async def discard(self, owner_id: str, *, up_to_epoch: int | None = None) -> int:
        """Delete the unpublished ledgers of a job's or query's attempts; return their number.

        Args:
            up_to_epoch: delete only those of the query's epochs up to this one.
        """
        arguments.instance("owner_id", owner_id, str)
        if up_to_epoch is not None:
            up_to_epoch = arguments.whole_number("up_to_epoch", up_to_epoch)

        def is_theirs(pending: PendingLedger, _: LogHead) -> bool:
            owner = pending.owner
            is_wanted = up_to_epoch is None or (owner.epoch is not None and owner.epoch <= up_to_epoch)
            return owner.owner_id == owner_id and is_wanted

        return await self._discard(is_theirs)

    # ---- reading ----

    async def earliest(self) -> Position:
        """Return the position of the first entry still in the log, in normal form."""
        return (await self.snapshot()).start

    async def latest(self) -> Position:
        """Return the position after the last entry that can be read now, in normal form. Nothing is fenced."""
        return await reading.latest(self._open_listed, await self.snapshot())

    async def at_time(self, moment: datetime) -> Position:
        """Return the position of the first entry that entered the log at `moment` or later (UTC if it has no zone).

        For a part of the log without times, which an older bkspark wrote, this is the beginning of the first ledger
        that was not closed before `moment`.
        """
        if not isinstance(moment, datetime):
            raise ConfigurationError(f"moment must be a datetime, not {moment!r}")
        return await self._since_ms(milliseconds_of(moment, rounds_up=True))

    async def _since_ms(self, moment_ms: int) -> Position:
        return await reading.since(self._open_listed, await self.snapshot(), moment_ms)

    async def _open_listed(self, listed: LogSegment) -> LedgerReader:
        return await reading.open_listed(self._cluster, self._name, listed)

    async def read(
        self, start: OffsetSpec = EARLIEST, end: OffsetSpec = LATEST, *, batch_bytes: int = BATCH_BYTES
    ) -> AsyncIterator[LogBatch]:
        """Yield the entries from `start` up to `end` in batches of roughly `batch_bytes`, each of one ledger.

        Args:
            start, end: `earliest`, `latest`, a position or its text. `latest` is the log's end when reading begins.

        Raises:
            ConfigurationError: a place is not one of this log, or `end` is after the readable entries.
            DataLoss: the entries after `start`, or a ledger in between, are gone.
        """
        start, end = check_offset("start", start), check_offset("end", end)
        batch_bytes = arguments.whole_number("batch_bytes", batch_bytes, 1)
        snapshot = await self.snapshot()
        first = await reading.position_of(self._open_listed, snapshot, start)
        stop = await reading.position_of(self._open_listed, snapshot, end)
        async for entries, reader in reading.ranges(self._cluster, snapshot, first, stop, is_latest=end == LATEST):
            first_entry, end_entry = entries.first_entry, entries.end_entry
            async for batch in reading.listed_batches(reader, self._name, first_entry, end_entry, batch_bytes):
                yield LogBatch(batch, entries.ordinal)

    async def follow(
        self, start: OffsetSpec = EARLIEST, *, batch_bytes: int = BATCH_BYTES, patience_s: float = PATIENCE_S
    ) -> AsyncIterator[LogBatch]:
        """Yield the entries from `start` on, and continue for ever, as more are confirmed.

        After the first read of the log, it continues while the metadata store or bookies are unreachable, for up to
        `patience_s`.

        Args:
            patience_s: how long failures may last before one is raised.

        Raises:
            ConfigurationError, DataLoss, NoSuchLog: as `read`.
            ReadFailed, MetadataError: bookies, or the metadata store, were unreachable for longer than `patience_s`; or
                the bookies do not let this client read, which is raised at once.
        """
        start = check_offset("start", start)
        batch_bytes = arguments.whole_number("batch_bytes", batch_bytes, 1)
        patience_s = arguments.seconds("patience_s", patience_s, 0.0, DAY_S)
        patience = Patience(patience_s, asyncio.get_running_loop().time)
        store = await self.store()
        changed = asyncio.Event()
        snapshot = await self.snapshot()
        log_id, position = snapshot.head.log_id, await reading.position_of(self._open_listed, snapshot, start)
        unwatch = await store.watch(self._name, changed.set, is_routed=snapshot.head.is_routed)
        try:
            while True:
                changed.clear()
                try:
                    snapshot = await self.snapshot()
                    if snapshot.head.log_id != log_id:
                        raise DataLoss(f"log {self._name} was deleted and created again while it was followed")
                    async for batch in reading.readable(self._cluster, snapshot, position, batch_bytes, patience):
                        position = Position(batch.ordinal, batch.ledger_id, batch.end_entry)
                        patience.succeeded()
                        yield batch
                except BookKeeperError as error:
                    # A ledger that was removed from the list may have been read to its end: the new list says so.
                    if not (isinstance(error, DataLoss) and await snapshot.may_have_new_start()):
                        await patience.bear(error)
                    continue
                patience.succeeded()
                await _wait(changed, FOLLOW_POLL_S)
        finally:
            unwatch()


def _shared_before(pending: Sequence[PendingLedger], created_before_ms: int) -> list[int]:
    return [each.ledger_id for each in pending if each.owner.shares and each.ctime_ms < created_before_ms]


async def store_of(cluster: Cluster) -> LogStore:
    """Return the log store of a cluster.

    Raises:
        MetadataError: there is no cluster at the URI's root.
    """
    await (await cluster.context()).ledgers.manager()
    return LogStore(await cluster.tree(), cluster.uri.root)


async def log_names(cluster: Cluster) -> list[str]:
    """Return the names of all logs at the metadata store of a cluster, sorted."""
    return await (await store_of(cluster)).names()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
