"""RepairRun: performs the effects of one RepairCore. It asks bookies, copies entries, writes metadata, and recovers."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import numpy as np

from bkspark.core.copies import stored_entries
from bkspark.core.effects import WriteMetadata
from bkspark.core.holes import holes
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, NoSuchLedger, SessionExpired, TooManyRequests
from bkspark.ledger.context import ClientContext
from bkspark.ledger.metadata_steps import write_metadata
from bkspark.ledger.recovery import recover
from bkspark.ledger.replica_copies import ReplicaReader
from bookie_service.replication.copying import CopyBudget, CopyFailed, FragmentCopier
from bookie_service.replication.repair import (
    HOLES_MAX,
    CopyEntries,
    Effect,
    Ended,
    InspectCopies,
    Outcome,
    RecoverLedger,
    RepairCore,
    entry_windows,
)


class RepairRun:
    """Performs the effects of one RepairCore."""

    def __init__(
        self,
        context: ClientContext,
        core: RepairCore,
        registered: frozenset[str],
        password: bytes,
        budget: CopyBudget,
    ) -> None:
        """`password`: of ledgers whose metadata keep none."""
        self._context = context
        self._core = core
        self._registered = registered
        """The bookies that were registered when the repair began; others count as lost."""
        self._fallback_password = password
        self._budget = budget
        self._copied_bytes = 0
        """How many bytes of finished fragments were copied. Only grows."""
        self._copier: FragmentCopier | None = None
        """Copies a fragment; None: nothing is copied now."""

    @property
    def copied_bytes(self) -> int:
        """How many bytes were copied until now."""
        return self._copied_bytes + (0 if self._copier is None else self._copier.copied_bytes)

    @property
    def _password(self) -> bytes:
        password = self._core.metadata.password
        return self._fallback_password if password is None else password

    async def until_ended(self, has_lock: Callable[[], bool]) -> Ended:
        """Repair the ledger; return how that ended. Before each effect, `has_lock()` says whether to go on."""
        core = self._core
        (effect,) = core.start()
        while not isinstance(effect, Ended):
            if not has_lock():
                error = SessionExpired(f"the lock of ledger {core.ledger_id} ended with its session")
                return Ended(Outcome.DEFERRED, error)
            (effect,) = await self.perform(effect)
        return effect

    async def perform(self, effect: InspectCopies | CopyEntries | RecoverLedger | WriteMetadata) -> list[Effect]:
        """Perform an effect; return what to do next: one effect at a time, because each waits for the one before."""
        match effect:
            case InspectCopies():
                return await self._inspect(effect)
            case CopyEntries():
                return await self._copy(effect)
            case RecoverLedger():
                return await self._recover()
            case WriteMetadata():
                return await self._write(effect)
            case _:
                assert_never(effect)

    async def _write(self, effect: WriteMetadata) -> list[Effect]:
        return await write_metadata(self._context.ledgers, self._core, self._core.ledger_id, effect)

    async def _inspect(self, effect: InspectCopies) -> list[Effect]:
        core = self._core
        held = ReplicaReader(self._context, core.ledger_id, core.metadata, self._password)
        fragment, slot, quorum = effect.fragment, effect.slot, core.metadata.write_quorum
        bookie = fragment.bookies[slot]
        missing = [np.empty(0, np.int64)]
        count = 0
        try:
            if effect.end_entry - fragment.first_entry > HOLES_MAX:
                # The ledger may be closed far above its entries: its ids are not counted by reads.
                listed = await held.listed(bookie)
                count = 0 if listed is None else holes(listed, fragment, effect.end_entry, slot, quorum)[0]
            for part, end_entry in entry_windows(fragment, effect.end_entry):
                if count > HOLES_MAX:
                    return core.on_most_missing(effect)
                missing.append(await held.missing(bookie, stored_entries(part, end_entry, slot, quorum)))
                count = sum(map(len, missing))
        except TooManyRequests as error:
            return core.on_busy(error)
        except BookKeeperError:
            # An unreachable bookie is replaced, because an extra copy does no harm.
            return core.on_inspected(effect, None)
        return core.on_most_missing(effect) if count > HOLES_MAX else core.on_inspected(effect, np.concatenate(missing))

    async def _copy(self, effect: CopyEntries) -> list[Effect]:
        core = self._core
        self._copier = copier = FragmentCopier(
            self._context, core.ledger_id, core.metadata, self._password, self._budget
        )
        lost = frozenset(effect.fragment.bookies) - self._registered
        try:
            await copier.copy(effect, lost)
        except CopyFailed as failure:
            self._context.watcher.on_failure(failure.target)
            return core.on_copy_failed(failure.target, failure.error)
        except BookKeeperError as error:
            return core.on_unreadable(error)
        finally:
            self._copied_bytes += copier.copied_bytes
            self._copier = None
        return core.on_copied()

    async def _recover(self) -> list[Effect]:
        core, context = self._core, self._context
        try:
            stored = await context.ledgers.read(core.ledger_id)
            if not stored.metadata.is_closed:
                await recover(context, core.ledger_id, stored, self._password, WriterOptions())
                stored = await context.ledgers.read(core.ledger_id)
        except NoSuchLedger:
            return core.on_gone()
        except BookKeeperError as error:
            return core.on_metadata_failed(error)
        return core.on_recovered(stored.metadata, stored.version)
