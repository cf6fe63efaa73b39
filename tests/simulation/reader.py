"""A reader: runs the cores of LAC reads and range reads on the simulated network."""

from __future__ import annotations

import functools
from collections.abc import Callable

from bkspark.core.last_confirmed import LastConfirmed
from bkspark.core.metadata import LedgerMetadata, LedgerState
from bkspark.core.reader import GroupRead, groups, next_span
from bkspark.errors import BookKeeperError, MetadataError, NoSuchEntry, ReadFailed
from bkspark.wire.status import Status
from tests.simulation.bookies import Stored
from tests.simulation.clients import NEGATIVE, READ_TIMEOUT_NS, Client, Site, plain_reads, read_of_last_entry
from tests.simulation.history import Look
from tests.simulation.world import start_task

SPECULATIVE_NS = READ_TIMEOUT_NS // 4


class Reader(Client):
    """A client that opens the ledger without recovery and reads what is confirmed, again and again."""

    def __init__(self, site: Site, name: str) -> None:
        super().__init__(site, name)
        self.is_done = False
        self._lac = -1
        self._round = 0
        self._ledger = site.history.ledger(site.ledger_id)

    def start(self) -> None:
        """Look once: metadata, LAC, then the entries up to it."""
        self._round += 1
        self.is_done = False
        self.later(4 * READ_TIMEOUT_NS, self._give_up, self._round)
        start_task(self._read_metadata(), self._look)

    async def _read_metadata(self) -> LedgerMetadata | None:
        try:
            return (await self.ledgers.read(self.site.ledger_id)).metadata
        except MetadataError:
            return None

    def _give_up(self, number: int) -> None:
        if self._round == number:
            self.drop_requests()
            self.is_done = True

    def _look(self, metadata: LedgerMetadata | None) -> None:
        if metadata is None:
            self.is_done = True
            return
        if metadata.is_closed:
            self.learned_end(metadata)
            self._adopt_lac(metadata.last_entry, metadata)
            return
        core = LastConfirmed(self.site.ledger_id, metadata)
        reported = False
        # A reader with older metadata may ask bookies that no longer take part.
        is_current = self.site.metadata.current(self.site.ledger_id).metadata.fragments == metadata.fragments
        owed = self._ledger.lac_owed if is_current else -1

        def on_answer(slot: int, answer: tuple[Status, int, Stored | None]) -> None:
            nonlocal reported
            status, entry_id, stored = answer
            if stored is not None:
                core.on_entry(slot, entry_id, stored.lac, stored.length)
            elif status in NEGATIVE:
                core.on_nothing(slot)
            if core.is_covered and not reported:
                reported = True
                lac = core.result().lac
                self._note_look(lac, owed)
                self._adopt_lac(lac, metadata)

        for slot, bookie in enumerate(metadata.last_fragment.bookies):
            self.ask(bookie, read_of_last_entry, (), functools.partial(on_answer, slot), core.on_failure)

    def _note_look(self, lac: int, owed: int) -> None:
        # What a recovery writes back carries its own LAC, which may be a lower one.
        if self.site.metadata.current(self.site.ledger_id).metadata.state is LedgerState.OPEN:
            self._ledger.looks.append(Look(self.name, lac, owed, self.site.world.now))

    def _adopt_lac(self, lac: int, metadata: LedgerMetadata) -> None:
        # A reader's LAC never falls: it keeps the highest one that it heard, as `LedgerReader.refresh` does.
        self._lac = max(self._lac, lac)
        self._ledger.lacs.append((self.name, self._lac, self.site.world.now))
        self._read_from(0, metadata)

    def _read_from(self, first_entry: int, metadata: LedgerMetadata) -> None:
        """Read to the LAC, span by span."""
        if first_entry > self._lac:
            self.is_done = True
            return
        span = next_span(metadata, first_entry, self._lac + 1, 16)
        todo = groups(span, self.site.ledger_id, metadata.write_quorum, None)
        left = len(todo)

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._read_from(span.end_entry, metadata)

        for group in todo:
            self._read_group(group, metadata, ended)

    def _read_group(self, group: GroupRead, metadata: LedgerMetadata, ended: Callable[[], None]) -> None:
        if not len(group.missing):
            ended()
            return
        ids = group.missing.tolist()
        asking = 0
        is_over = False

        def ask_next() -> None:
            """Ask one replica more; when all have failed, the read has."""
            nonlocal asking, is_over
            if is_over:
                return
            bookie = group.next_replica()
            if bookie is not None:
                asking += 1
                here = functools.partial(on_answers, bookie)
                self.ask(bookie, plain_reads, (ids,), here, on_failure)
                self.later(SPECULATIVE_NS, ask_next)
            elif not asking:
                is_over = True
                self._denied(group, metadata)
                ended()

        def on_answers(bookie: str, answers: list[tuple[Status, Stored | None]]) -> None:
            nonlocal is_over
            if is_over:
                return
            refusal, count = None, 0
            for entry_id, (status, stored) in zip(ids, answers):
                if stored is None:
                    kind = NoSuchEntry if status in NEGATIVE else ReadFailed
                    refusal = kind("not here", entry_id=entry_id)
                    break
                self._ledger.reads.append((self.name, entry_id, stored.payload))
                count += 1
            if not count:
                assert refusal is not None
                on_failure(refusal)
                return
            is_over = True
            group.on_entries(bookie, count, refusal)
            self._read_group(group, metadata, ended)

        def on_failure(error: BookKeeperError) -> None:
            nonlocal asking
            if not is_over:
                asking -= 1
                group.on_failure(error)
                ask_next()

        ask_next()

    def _denied(self, group: GroupRead, metadata: LedgerMetadata) -> None:
        """Every bookie failed; that the entry is nowhere is a violation if the metadata was up to date."""
        stored = self.site.metadata.current(self.site.ledger_id).metadata
        if isinstance(group.error(), NoSuchEntry) and stored.fragments == metadata.fragments:
            self._ledger.denied.append((self.name, int(group.missing[0]), self._lac))
