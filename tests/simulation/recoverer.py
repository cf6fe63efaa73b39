"""A recoverer: runs a RecoveryCore on the simulated network, as `bkspark.ledger.recovery` does on sockets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

import numpy as np

from bkspark.core import effects
from bkspark.core.pipeline import WriterStart
from bkspark.core.reader import next_span
from bkspark.core.recovery import RecoveryCore, RecoveryState
from bkspark.core.recovery_window import Response
from bkspark.core.writer import WriterCore
from bkspark.errors import BookKeeperError, ReadFailed, UnauthorizedAccess
from bkspark.ledger.metadata_steps import write_metadata
from bkspark.metadata.ledgers import Versioned
from bkspark.wire.status import Status
from tests.simulation import clients
from tests.simulation.bookies import Stored
from tests.simulation.clients import NEGATIVE, Client, Site
from tests.simulation.history import Wait
from tests.simulation.owner import OPTIONS, Pipeline, SimulatedEntries
from tests.simulation.world import MILLISECOND, start_task


class Recoverer(Client):
    """A client that opens the ledger with recovery, and tries again after failures."""

    def __init__(self, site: Site, name: str, attempts: int) -> None:
        super().__init__(site, name)
        self.is_done = False
        self.error: BookKeeperError | None = None
        self._attempts_left = attempts
        self._core: RecoveryCore
        self._pipeline: Pipeline | None = None
        self._rewriting_to = -1
        self._began = 0
        self._ledger = site.history.ledger(site.ledger_id)

    def start(self) -> None:
        """Begin an attempt."""
        self._attempts_left -= 1
        self._began = self.site.world.now
        self._pipeline = None
        self.site.history.recoveries_begun += 1
        self.site.probe("recovery begins", self.name, "")
        start_task(self._read_metadata(), lambda stored: self._begin(stored))

    async def _read_metadata(self) -> Versioned | BookKeeperError:
        try:
            return await self.ledgers.read(self.site.ledger_id)
        except BookKeeperError as error:
            return error

    def _begin(self, stored: Versioned | BookKeeperError) -> None:
        if isinstance(stored, BookKeeperError):
            self._failed(stored)
            return
        self._core = RecoveryCore(self.site.ledger_id, stored.metadata, stored.version)
        self._ledger.rewritten[self.name] = set()
        self._perform(self._core.start())

    def _perform(self, todo: list[effects.RecoveryEffect]) -> None:
        for effect in todo:
            if type(effect) is effects.Fence:
                self._fence(effect)
            elif type(effect) is effects.RecoveryRead:
                self._read(effect)
            elif type(effect) is effects.BackOff:
                self._rest(effect)
            elif type(effect) is effects.RewriteEntries:
                self._rewrite(effect)
            elif type(effect) is effects.AbandonRewriting:
                self._ledger.rewritten[self.name] = set()
                self._drop_pipeline()
            elif type(effect) is effects.ReadLength:
                self._read_length(effect)
            elif type(effect) is effects.WriteMetadata:
                self.site.probe("recovery writes metadata", self.name, "")
                work = write_metadata(self.ledgers, self._core, self.site.ledger_id, effect)
                start_task(work, self._metadata_written)
            elif type(effect) is effects.Recovered:
                self._end()
                self.is_done = True
                self.error = None
                self.learned_end(effect.metadata)
                self._ledger.waits.append(Wait(f"the recovery by {self.name}", self._began, self.site.world.now))
                self.site.probe("recovered", self.name, "")
            elif type(effect) is effects.Fail:
                self._failed(effect.error)
            else:
                assert_never(effect)

    def _metadata_written(self, todo: list[effects.RecoveryEffect]) -> None:
        if self._core.state is RecoveryState.FENCING:
            self.site.probe("claimed", self.name, "")
        self._perform(todo)

    def _failed(self, error: BookKeeperError) -> None:
        self._end()
        if self._attempts_left > 0:
            self.later(40 * MILLISECOND, self.start)
        else:
            self.is_done = True
            self.error = error

    def _end(self) -> None:
        self._drop_pipeline()
        self.drop_requests()

    def _drop_pipeline(self) -> None:
        if self._pipeline is not None:
            pipeline, self._pipeline = self._pipeline, None
            pipeline.stop()

    def _fence(self, effect: effects.Fence) -> None:
        core, slot = self._core, effect.slot

        def answered(answer: tuple[Status, int, Stored | None]) -> list[effects.RecoveryEffect]:
            status, last_entry, stored = answer
            self.site.probe("fence answered", self.name, effect.bookie)
            if stored is not None:
                return core.on_fence_answer(slot, Response.FOUND, stored.lac, stored.length, last_entry=last_entry)
            if status in NEGATIVE:
                return core.on_fence_answer(slot, Response.NEGATIVE)
            if status is Status.ETOOMANYREQUESTS:
                return core.on_fence_answer(slot, Response.REFUSED)
            return core.on_fence_answer(slot, Response.FAILED, error=_refused(status, effect.bookie))

        self._ask(
            effect.bookie,
            clients.fencing_read_of_last_entry,
            (),
            answered,
            lambda error: core.on_fence_answer(slot, Response.FAILED, error=error),
        )

    def _rest(self, effect: effects.BackOff) -> None:
        core = self._core

        def rested() -> None:
            if self._core is core:
                self._perform(core.on_backoff_over(effect.slot))

        self.later(effect.delay_ns, rested)

    def _ask(
        self,
        bookie: str,
        request: Callable[..., tuple[Any, int]],
        arguments: tuple[Any, ...],
        answered: Callable[[Any], list[effects.RecoveryEffect]],
        failed: Callable[[BookKeeperError], list[effects.RecoveryEffect]],
    ) -> None:
        self.ask(
            bookie,
            request,
            arguments,
            lambda answer: self._perform(answered(answer)),
            lambda error: self._perform(failed(error)),
        )

    def _read(self, effect: effects.RecoveryRead) -> None:
        core, slot, entry_ids = self._core, effect.slot, effect.entry_ids
        ids = entry_ids.tolist()

        def answered(read: list[tuple[Status, Stored | None]]) -> list[effects.RecoveryEffect]:
            answers = np.array([_answer_of(status, stored) for status, stored in read], np.uint8)
            payloads = [None if stored is None else stored.payload for _, stored in read]
            lengths = np.array([0 if stored is None else stored.length for _, stored in read])
            error = None
            for entry_id, answer, (status, stored) in zip(ids, answers, read):
                if stored is not None:
                    self._note_read(entry_id, stored)
                elif answer == Response.FAILED and error is None:
                    error = _refused(status, effect.bookie)
            todo = core.on_read_answers(slot, entry_ids, answers, payloads, lengths, error)
            self.site.probe("recovery read", self.name, effect.bookie)
            return todo

        def failed(error: BookKeeperError) -> list[effects.RecoveryEffect]:
            return core.on_read_answers(slot, entry_ids, np.full(len(ids), Response.FAILED, np.uint8), error=error)

        self._ask(effect.bookie, clients.fencing_reads, (ids,), answered, failed)

    def _note_read(self, entry_id: int, stored: Stored) -> None:
        self._ledger.reads.append((self.name, entry_id, stored.payload))

    def _rewrite(self, effect: effects.RewriteEntries) -> None:
        core, recovery = self._core, self._core
        if self._pipeline is None:
            before = effect.payloads.first_entry - 1
            start = WriterStart(self.site.ledger_id, core.metadata, core.version, before, is_recovery=True)
            writer = WriterCore(start, self.site.random, OPTIONS)

            def acknowledged(last_entry: int) -> None:
                if last_entry == self._rewriting_to:
                    recovery.on_ensemble_changed(writer.change.fragments)
                    self._perform(recovery.on_rewritten())

            self._pipeline = Pipeline(self, writer, acknowledged, self._rewrite_failed, recovery=True)
        pipeline = self._pipeline
        batch = effect.payloads
        entries = SimulatedEntries.of(batch.first_entry, batch, effect.length_before, effect.lac)
        self._rewriting_to = batch.last_entry
        self._ledger.rewritten[self.name].update(range(batch.first_entry, batch.end_entry))
        pipeline.perform(pipeline.core.on_silent(effect.silent, self.now_ns))
        try:
            todo = pipeline.core.add(entries, batch.payload_bytes, self.now_ns)
        except BookKeeperError as error:
            # The writer failed after its last entry was acknowledged, when the recovery did not wait for it.
            self._rewrite_failed(error)
        else:
            pipeline.perform(todo)

    def _rewrite_failed(self, error: BookKeeperError) -> None:
        if self._pipeline is not None:
            self._perform(self._core.on_rewrite_failed(error))

    def _read_length(self, effect: effects.ReadLength) -> None:
        core = self._core
        span = next_span(core.metadata, effect.entry_id, effect.entry_id + 1, 1)
        bookies = list(span.bookies)
        unheard: list[BookKeeperError] = []

        def ask() -> list[effects.RecoveryEffect]:
            if not bookies:
                return core.on_length(None, unheard[0] if unheard else None)
            bookie = bookies.pop(0)
            self._ask(bookie, clients.plain_reads, ([effect.entry_id],), partial(answered, bookie), go_on)
            return []

        def go_on(error: BookKeeperError) -> list[effects.RecoveryEffect]:
            unheard.append(error)
            return ask()

        def answered(bookie: str, answers: list[tuple[Status, Stored | None]]) -> list[effects.RecoveryEffect]:
            status, stored = answers[0]
            if stored is not None:
                return core.on_length(stored.length)
            return ask() if status in NEGATIVE else go_on(_refused(status, bookie))

        self._perform(ask())


def _answer_of(status: Status, stored: Stored | None) -> Response:
    if stored is not None:
        return Response.FOUND
    if status in NEGATIVE:
        return Response.NEGATIVE
    return Response.REFUSED if status is Status.ETOOMANYREQUESTS else Response.FAILED


def _refused(status: Status, bookie: str) -> BookKeeperError:
    kind = UnauthorizedAccess if status is Status.EUA else ReadFailed
    return kind(f"bookie {bookie} answered {status.name}", bookie=bookie)
