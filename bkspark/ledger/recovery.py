"""Recovers one ledger: runs a RecoveryCore, which fences it, reads on from its LAC, rewrites the end and closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import assert_never

import numpy as np

from bkspark.core import effects
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.pipeline import WriterStart
from bkspark.core.reader import next_span
from bkspark.core.recovery import REST_NS_MAX, REST_NS_MIN, RecoveryCore
from bkspark.core.recovery_window import Response
from bkspark.core.writer import WriterCore
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, ClientClosed, TooManyRequests, UnauthorizedAccess
from bkspark.ledger.context import ClientContext
from bkspark.ledger.driver import Driver
from bkspark.ledger.metadata_steps import write_metadata
from bkspark.ledger.replica_reads import ReplicaReads, read_error, report_damage
from bkspark.ledger.writer import LedgerWriter
from bkspark.metadata.ledgers import Versioned
from bkspark.net.responses import BAD_DIGEST
from bkspark.tasks import forget_failure
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest, master_key
from bkspark.wire.flags import AddFlags

_NEGATIVE = (v2.Status.ENOENTRY, v2.Status.ENOLEDGER)


async def recover(
    context: ClientContext, ledger_id: int, stored: Versioned, password: bytes, options: WriterOptions
) -> LedgerMetadata:
    """Recover a ledger, and return its closed metadata; another client may have closed it meanwhile.

    Raises:
        LedgerRecoveryFailed: too few bookies answered; the ledger stays IN_RECOVERY and this can be repeated.
        UnauthorizedAccess: a bookie refuses to fence: the password is wrong, or it does not serve this client.
        BookKeeperError: an entry could not be rewritten, or the metadata store failed.
    """
    # A connection may be reused after an abandoned recovery, and late V2 answers to that one may be taken for answers
    # to this one. This is safe:
    # 1. Every read on such a connection fences (P01). "No such entry" therefore comes from a fenced bookie, which
    #    accepts no ordinary add any more, whichever recovery asked.
    # 2. An entry is checked by its digest.
    # 3. An add that succeeded stored the same payload: recoveries rewrite only entries that they have read.
    connection_index = context.pool.reserve_connection(ledger_id)
    run = RecoveryRun(context, ledger_id, stored, password, options, connection_index)
    try:
        return await run.result()
    finally:
        run.stop()
        context.pool.release(ledger_id, connection_index)


class RecoveryRun:
    """One recovery: its core, and the performing of the core's effects on connections and the metadata store."""

    def __init__(
        self,
        context: ClientContext,
        ledger_id: int,
        stored: Versioned,
        password: bytes,
        options: WriterOptions,
        connection_index: int,
    ) -> None:
        self._context = context
        """The parts that all users of the cluster share. Constant."""
        self._ledger_id = ledger_id
        """The id of the ledger to recover. Constant."""
        self._password = password
        """The ledger password. Constant."""
        self._options = options
        """Options of the core that rewrites entries. Constant."""
        self._connection_index = connection_index
        """The pool's connections that are reserved for this recovery. Constant."""
        self._master_key = master_key(password)
        """The key that fencing requests carry, derived from the password. Constant."""
        self._core = RecoveryCore(ledger_id, stored.metadata, stored.version)
        """Decides the end of the ledger; all its events come from here."""
        self._driver = Driver[effects.RecoveryEffect](self.perform, broke=self._end)
        """Does the work that the core's effects take."""
        self._writer: LedgerWriter | None = None
        """Rewrites entries. Made for the first entries found; None before, and after the recovery ends or restarts."""
        self._done: asyncio.Future[LedgerMetadata] = asyncio.get_running_loop().create_future()
        """The closed metadata, or the error that ended the recovery. Set once."""

    @property
    def _digest(self) -> EntryDigest:
        metadata = self._core.metadata
        return EntryDigest(metadata.digest, self._password, metadata.lac_bounds)

    def _replicas(self, connection_index: int) -> ReplicaReads:
        return ReplicaReads(self._context.pool, self._ledger_id, self._digest, connection_index=connection_index)

    async def result(self) -> LedgerMetadata:
        self.perform(self._core.start())
        return await self._done

    def stop(self) -> None:
        self._abandon_writer()
        self._driver.stop()

    def _abandon_writer(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def perform(self, todo: Sequence[effects.RecoveryEffect]) -> None:
        for effect in todo:
            match effect:
                case effects.Fence():
                    self._driver.spawn(self._fence(effect))
                case effects.RecoveryRead():
                    self._driver.spawn(self._read(effect))
                case effects.BackOff():
                    self._driver.spawn(self._back_off(effect))
                case effects.RewriteEntries():
                    self._driver.spawn(self._rewrite(effect))
                case effects.AbandonRewriting():
                    self._abandon_writer()
                case effects.ReadLength():
                    self._driver.spawn(self._read_length(effect.entry_id))
                case effects.WriteMetadata():
                    self._driver.spawn(write_metadata(self._context.ledgers, self._core, self._ledger_id, effect))
                case effects.Recovered():
                    if not self._done.done():
                        self._done.set_result(effect.metadata)
                case effects.Fail():
                    self._end(effect.error)
                case _:
                    assert_never(effect)

    def _end(self, error: BaseException) -> None:
        """End the recovery with an error; also with an unexpected one, so that the caller does not wait for ever."""
        if not self._done.done():
            self._done.set_exception(error)

    async def _fence(self, effect: effects.Fence) -> list[effects.RecoveryEffect]:
        try:
            channel = await self._context.pool.channel(effect.bookie, self._connection_index)
            answer = await channel.read_last_entry(self._ledger_id, self._digest, v2.DO_FENCING, self._master_key)
        except ClientClosed:
            raise
        except BookKeeperError as error:
            return self._core.on_fence_answer(effect.slot, Response.FAILED, error=error)
        if answer.entry is not None:
            entry = answer.entry
            return self._core.on_fence_answer(
                effect.slot, Response.FOUND, entry.lac, entry.length, last_entry=entry.entry_id
            )
        if answer.status in _NEGATIVE:
            return self._core.on_fence_answer(effect.slot, Response.NEGATIVE)
        if answer.status == v2.Status.ETOOMANYREQUESTS:
            return self._core.on_fence_answer(effect.slot, Response.REFUSED)
        refusal = self._error(answer.status, v2.LAST_ENTRY, effect.bookie)
        report_damage(refusal)
        return self._core.on_fence_answer(effect.slot, Response.FAILED, error=refusal)

    async def _read(self, effect: effects.RecoveryRead) -> list[effects.RecoveryEffect]:
        flags, ids = v2.DO_FENCING | v2.HIGH_PRIORITY, effect.entry_ids
        try:
            read = await self._replicas(self._connection_index).each(effect.bookie, ids, flags, self._master_key)
        except ClientClosed:
            raise
        except BookKeeperError as failure:
            nothing = np.full(len(ids), Response.FAILED, np.uint8)
            return self._core.on_read_answers(effect.slot, ids, nothing, error=failure)
        answers = _answers_of(read.statuses)
        error: BookKeeperError | None = None
        failed = np.flatnonzero(answers == Response.FAILED)
        if len(failed):
            # Report a refused password before any other error: it fails the recovery at once.
            refused = np.flatnonzero(read.statuses == v2.Status.EUA)
            at = int(refused[0] if len(refused) else failed[0])
            error = self._error(int(read.statuses[at]), int(ids[at]), effect.bookie)
            for damaged in np.flatnonzero(read.statuses == BAD_DIGEST).tolist():
                report_damage(self._error(BAD_DIGEST, int(ids[damaged]), effect.bookie))
        return self._core.on_read_answers(effect.slot, read.entry_ids, answers, read.payloads, read.lengths, error)

    async def _back_off(self, effect: effects.BackOff) -> list[effects.RecoveryEffect]:
        await asyncio.sleep(effect.delay_ns / 1e9)
        return self._core.on_backoff_over(effect.slot)

    def _error(self, status: int, entry_id: int, bookie: str) -> BookKeeperError:
        if status == v2.Status.EUA:
            return UnauthorizedAccess(
                f"bookie {bookie} refuses to fence ledger {self._ledger_id}: its password is another one, or the "
                "bookie serves only authenticated clients, or only TLS, or its authorizationRulesFile does not let "
                "this client fence",
                ledger_id=self._ledger_id,
                bookie=bookie,
            )
        return read_error(status, self._ledger_id, entry_id, bookie)

    async def _rewrite(self, effect: effects.RewriteEntries) -> list[effects.RecoveryEffect]:
        if self._writer is None:
            before = effect.payloads.first_entry - 1
            start = WriterStart(self._ledger_id, self._core.metadata, self._core.version, before, is_recovery=True)
            core = WriterCore(start, self._context.random, self._options)
            self._writer = LedgerWriter(
                self._context,
                core,
                self._password,
                # The default window: the caller's limits are for its own appends.
                WriterOptions(),
                connection_index=self._connection_index,
                flags=AddFlags(is_recovery=True, is_urgent=True),
                sealed_lac=effect.lac,
            )
        run = self._writer.run
        run.perform(run.core.on_silent(effect.silent, run.now_ns()))
        try:
            await (await self._writer.submit_batch(effect.payloads, effect.length_before))
        except BookKeeperError as error:
            return self._core.on_rewrite_failed(error)
        # A bookie that replaced a lost one may not be connected yet. If the ledger were closed now, that bookie's
        # copies would be missing until a repair.
        await run.fanout.drain_backlogs(self._core.metadata.last_fragment.bookies)
        self._core.on_ensemble_changed(self._writer.core.change.fragments)
        return self._core.on_rewritten()

    async def _read_length(self, entry_id: int) -> list[effects.RecoveryEffect]:
        span = next_span(self._core.metadata, entry_id, entry_id + 1, 1)
        length: int | None = None
        unheard: BookKeeperError | None = None
        # All are asked at once, so that silent bookies together cost one time-out.
        asked = [asyncio.ensure_future(self._length_at(bookie, entry_id)) for bookie in span.bookies]
        try:
            for answered in asyncio.as_completed(asked):
                try:
                    length = await answered
                except BookKeeperError as error:
                    unheard = error
                    continue
                if length is not None:
                    break
        finally:
            for task in asked:
                task.cancel()
                task.add_done_callback(forget_failure)
        return self._core.on_length(length, unheard)

    async def _length_at(self, bookie: str, entry_id: int) -> int | None:
        """As `ReplicaReads.length_at`; a bookie that refuses because of its load is asked again."""
        replicas, pause_ns = self._replicas(0), REST_NS_MIN
        while True:
            try:
                return await replicas.length_at(bookie, entry_id)
            except TooManyRequests:
                await asyncio.sleep(pause_ns / 1e9)
                pause_ns = min(2 * pause_ns, REST_NS_MAX)


def _answers_of(statuses: np.ndarray) -> np.ndarray:
    """Return the `Response` for each read status, uint8 of the same shape."""
    answers = np.full(len(statuses), Response.FAILED, np.uint8)
    answers[statuses == v2.EOK] = Response.FOUND
    answers[np.isin(statuses, _NEGATIVE)] = Response.NEGATIVE
    answers[statuses == v2.Status.ETOOMANYREQUESTS] = Response.REFUSED
    return answers
