"""The bookie: rules, journal and store on one event loop. A response is sent only after what it confirms is durable.

Requests come as runs from one connection's receive buffer; replies leave as buffers. A run of adds takes three steps:

1. `rules` decide once for each ledger of the run, for all its adds together;
2. accepted adds are copied, as items, into the active half of the write cache, and that same memory is submitted to
   the journal: one record for the run, preceded by the key of a ledger that is new here;
3. the encoded replies wait until the journal thread reports that the record is durable.

A read that fences waits for the fence in the same way, whatever its answer (X2). If the write cache is full, a run adds
what fits; the connection stops reading, and resumes when a checkpoint has emptied a half.

Invariants: a reply is sent only from `on_durable`, or when it promises nothing new. All methods run on the event loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from hmac import compare_digest

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.single_add import SingleAdd
from bkspark.wire.status import EOK, Status
from bookie_service.engine import rules
from bookie_service.engine.add_batch import AddBatch, statuses_of_rows
from bookie_service.engine.authorization import Authorization, always_allowed
from bookie_service.engine.bookie_environment import BookieClient, BookieOptions, ReadThreads
from bookie_service.engine.deferrals import Deferrals
from bookie_service.engine.disk_watch import DiskWatch
from bookie_service.engine.entry_lists import EntryLists
from bookie_service.engine.forces import Forces, WaitingForce
from bookie_service.engine.ledger_records import fence_record, first_records, key_record, lac_record
from bookie_service.engine.long_polls import LongPolls
from bookie_service.engine.new_ledgers import BegunLedgers, NewLedgers
from bookie_service.engine.reads import ReadClient, Reading, Reads, View, failed
from bookie_service.engine.responses import Parts
from bookie_service.engine.turns import Turns
from bookie_service.engine.waiting_replies import BegunFence, JournalReplies, WaitingReply, clients_of
from bookie_service.formats.index import STORED_ENTRY_ID_MAX, UNKNOWN_KEY
from bookie_service.formats.journal import RecordKind
from bookie_service.metrics.requests import ALONE_MAX, RequestTimes
from bookie_service.storage.io.framed_entries import rows_by_ledger
from bookie_service.storage.journal.checkpoint import Checkpoint, CheckpointThread
from bookie_service.storage.journal.journal import Record
from bookie_service.storage.journal.journal_thread import JournalThread
from bookie_service.storage.ledgers.interface import Ledger, LedgerStorage
from bookie_service.storage.ledgers.write_cache import INDEX_BYTES_PER_ENTRY

logger = logging.getLogger(__name__)


class Bookie:
    """Serves requests from a `store`. Journals and checkpoints report to `on_durable` and `on_checkpoint_done`."""

    def __init__(
        self,
        store: LedgerStorage,
        journals: Sequence[JournalThread],
        checkpoints: CheckpointThread,
        disks: DiskWatch,
        threads: ReadThreads,
        options: BookieOptions,
        turns: Turns,
        times: RequestTimes | None = None,
        authorization: Authorization | None = None,
    ) -> None:
        """`authorization`: if given, the first key of a ledger must be the one in its metadata."""
        self._store = store
        self._authorization = authorization
        self.times = times or RequestTimes()
        """Records how long requests take."""
        self.added_bytes = 0
        """Bytes of entries that were accepted since the start."""
        self._turns = turns
        self._disks = disks
        self._journals = [JournalReplies(journal, self.times.add_journal()) for journal in journals]
        """The journals, with the replies that wait for each. Ledger n has journal n mod their number. Constant."""
        self._checkpoints = checkpoints
        self._options = options
        self._deferrals = Deferrals(len(journals))
        self._forces = Forces(self._deferrals, options.forces_max)
        self._adds_in_flight = 0
        """Adds that wait for their journal record. Raised when a record is submitted, lowered when replies are sent."""
        self._new_ledgers = NewLedgers(options.new_ledgers_per_s, options.new_ledgers_burst, turns.clock)
        self._begun = BegunLedgers(turns)
        self._unchecked_bytes = self._room_bytes = 0
        """Bytes added since the disks were checked, and how many may be added until then. Reset by `look_at_disks`."""
        # If one of these does not hold, a single add is handled as a run.
        self._takes_single_adds = len(journals) == 1 and options.journals_entries and not options.adds_in_flight_max
        self._last_adder: BookieClient | None = None
        """The client of the last add, if it came alone; None: unknown, or the adds came in runs."""
        self._single_adds = 0
        """How many consecutive adds came alone from `_last_adder`."""
        self._blocked: dict[BookieClient, None] = {}
        """Clients that wait for room, in order of their requests. Emptied by `_resume_blocked`."""
        self.view = view = View(store, disks.known_space, options.reads)
        """What readings see of this bookie. Constant."""
        self.reads = reads = Reads(view, threads.fetch, turns, self._resume_blocked, self.times, authorization)
        known = always_allowed if authorization is None else authorization.known_status_of
        self.long_polls = LongPolls(options.long_polls, options.long_poll_s_max, view.lac_at_hand, reads, turns, known)
        self.entry_lists = EntryLists(options.entry_lists, threads.run, authorization=authorization)
        if authorization is not None:
            authorization.on_change = self.long_polls.review

    # ---- adds ----

    def add(self, client: BookieClient, octets: np.ndarray, run: AddBatch) -> int:
        """Take adds of a receive buffer; return how many were taken, the first ones.

        Fewer than all: there is no room now. Call again; if 0 were taken, wait for `client.resume`. The frames of the
        taken are overwritten before their entries.
        """
        self._last_adder = None
        count = run.count_within(self._store.active.room, INDEX_BYTES_PER_ENTRY)
        if not count and self.checkpoint(advances_checkpoint=False):
            count = run.count_within(self._store.active.room, INDEX_BYTES_PER_ENTRY)
        if not count and self._disks.is_stuck:
            # No room comes until the operator frees disk space: waiting would look like a hang.
            self.times.note_refused_adds(len(run))
            client.send((run.encode_responses(Status.EREADONLY),))
            return len(run)
        if not count or 0 < self._options.adds_in_flight_max <= self._adds_in_flight:
            self._blocked[client] = None
            return 0
        if count < len(run):
            run = run.take(slice(0, count))
        if len(self._journals) == 1:
            self._add_to_journal(0, client, octets, run)
        else:
            journal_of = run.ledger_ids % len(self._journals)
            for index in np.unique(journal_of).tolist():
                self._add_to_journal(index, client, octets, run.take(np.flatnonzero(journal_of == index)))
        return count

    def takes_single(self, add: SingleAdd) -> bool:
        """Return whether an add that came alone can be taken: its ledger is known, it has room, and no rule bars it."""
        return self._ledger_of(add) is not None

    def add_single(self, client: BookieClient, octets: np.ndarray, add: SingleAdd, *, is_alone: bool = True) -> bool:
        """Take an add that came alone, or with few other requests, if `takes_single`.

        False: nothing was done, and the add must be submitted as a run.
        """
        ledger = self._ledger_of(add)
        if ledger is None:
            return False
        item = self._store.add_single(ledger, add.entry_id, octets, add.entry_at, add.size)
        if add.ledger_id in self.long_polls.by_ledger:
            self.long_polls.touch(add.ledger_id)
        records = [Record(RecordKind.ENTRIES, 1, (item,), len(item))]
        replies = (add.acknowledgement(add.ledger_id, add.entry_id),)
        if not is_alone:
            self._last_adder, self._single_adds = None, 0
        elif client is not self._last_adder:
            self._last_adder, self._single_adds = client, 0
        self._single_adds += is_alone
        # If one client adds alone, no other client would share the sync, so it is done at once. An exception is a
        # recovery by Apache's client: it reads the next entry while it adds this one, and the read would wait.
        is_serial = self._single_adds > self._options.serial_writer_after and not add.is_recovery
        times, journal = self.times, self._journals[0]
        # Requests of another client that go on after this add may have been received later.
        received_ns = times.received_ns
        if sequence := journal.thread.commit(records) if is_serial else 0:
            group = journal.thread.group_times.pop()
            self.on_durable(0, sequence)
            client.send(replies)
            if times.is_on:
                # The journal began to write it when it was given to it.
                journal.times.alone += (1, received_ns, group[1], *group[1:], times.clock_ns())
                if len(journal.times.alone) >= ALONE_MAX:
                    journal.times.fold()
        else:
            self._adds_in_flight += 1
            given_ns = times.clock_ns()
            sequence = journal.thread.submit(records, is_patient=add.is_recovery)
            journal.waiting.append(WaitingReply(sequence, client, replies, 1, None, received_ns, given_ns))
        self.added_bytes += add.size
        self._unchecked_bytes += len(item)
        if self._unchecked_bytes > self._room_bytes:
            self.look_at_disks()
        return True

    def _ledger_of(self, add: SingleAdd) -> Ledger | None:
        """Return the ledger of an add that is allowed and has room, else None; `rules.add_statuses` has the rules."""
        limbo = self._store.limbo
        if not self._takes_single_adds or self._disks.is_read_only:
            return None
        if self._store.active.room < LENGTH_BYTES + add.size + INDEX_BYTES_PER_ENTRY:
            return None
        if len(limbo.ledger_ids) and add.ledger_id in limbo:
            return None
        if self._store.index.is_divided and self._store.index.is_full(add.ledger_id):
            return None
        try:
            ledger = self._store.ledger(add.ledger_id)
        except (StorageDamaged, OSError):
            return None
        if ledger is None or add.master_key == UNKNOWN_KEY or not compare_digest(ledger.master_key, add.master_key):
            return None
        if ledger.fenced and not add.is_recovery:
            return None
        return ledger if NO_ENTRY <= add.lac < add.entry_id <= STORED_ENTRY_ID_MAX else None

    def _add_to_journal(self, index: int, client: BookieClient, octets: np.ndarray, run: AddBatch) -> None:
        """Check, cache and journal adds whose ledgers belong to one journal; answer once they are durable."""
        ledgers: dict[int, Ledger] = {}
        new_keys: list[tuple[int, bytes]] = []
        groups = rows_by_ledger(run.ledger_ids)
        judged = [self._judge(client, octets, each, run.take(rows), ledgers, new_keys) for each, rows in groups]
        statuses = statuses_of_rows(groups, judged, len(run))
        asked, taken = run, None
        if not isinstance(statuses, int):
            accepted = statuses == EOK
            self.times.note_refused_adds(len(accepted) - int(np.count_nonzero(accepted)))
            if not accepted.any():
                client.send((asked.encode_responses(statuses),))
                return
            run = run.take(np.flatnonzero(accepted))
            groups = rows_by_ledger(run.ledger_ids)
        if run.is_deferred:
            taken = self._deferrals.take([run.take(rows).newest(octets, ledger_id) for ledger_id, rows in groups])
        journal = self._journals[index]
        replies = (asked.encode_responses(statuses, None if taken is None else taken.last_synced(asked.ledger_ids)),)
        records = first_records(new_keys, ledgers) if new_keys else []
        body = self._insert(octets, run, groups, ledgers)
        if self._options.journals_entries and not run.bypasses_journal:
            records.append(Record(RecordKind.ENTRIES, len(run), (body,), len(body)))
            self._adds_in_flight += len(asked)
            is_deferred = taken is not None and not new_keys
            # As in `add_single`: the next read of a recovery must not wait for the sync.
            is_recovery = bool(run.flags.item(0) & RECOVERY_ADD)
            sequence = journal.thread.submit(records, deferred=is_deferred, is_patient=is_recovery)
            waiting = journal.deferred if is_deferred else journal.waiting
            received_ns, given_ns = self.times.received_ns, self.times.clock_ns()
            waiting.append(WaitingReply(sequence, client, replies, len(asked), None, received_ns, given_ns))
            if taken is not None:
                self._deferrals.journaled(index, sequence, taken)
        else:
            if records:
                journal.thread.submit(records)
            if taken is not None:
                self._deferrals.bypassed(taken)
            client.send(replies)
        self.added_bytes += len(body) - LENGTH_BYTES * len(run)
        self._unchecked_bytes += len(body)
        if self._unchecked_bytes > self._room_bytes:
            self.look_at_disks()

    def _insert(
        self,
        octets: np.ndarray,
        run: AddBatch,
        groups: Sequence[tuple[int, slice | np.ndarray]],
        ledgers: Mapping[int, Ledger],
    ) -> memoryview:
        """Copy accepted adds into the write cache, and return their bytes there, which are the journal record's."""
        half = self._store.active
        begin = half.used
        addresses = half.place(octets, run.make_items(octets), run.sizes)
        for ledger_id, rows in groups:
            self._store.insert(ledgers[ledger_id], run.entry_ids[rows], addresses[rows])
            self.long_polls.touch(ledger_id)
        return half.memory[begin : half.used].data

    def _judge(
        self,
        client: BookieClient,
        octets: np.ndarray,
        ledger_id: int,
        run: AddBatch,
        ledgers: dict[int, Ledger],
        new_keys: list[tuple[int, bytes]],
    ) -> int | np.ndarray:
        """Return the statuses of one ledger's adds, or one for all; fill `ledgers`, and `new_keys` if it is new."""
        try:
            ledger = self._store.ledger(ledger_id)
        except (StorageDamaged, OSError) as error:
            return failed(error)
        was_fenced = ledger is None and ledger_id in self._store.tombstones
        is_known = ledger is not None and ledger.master_key != UNKNOWN_KEY
        key = self._key_of(client, ledger_id, ledger) or run.first_key(octets)
        is_full = self._store.index.is_divided and self._store.index.is_full(ledger_id)
        statuses = rules.add_statuses(
            ledger_id,
            run.entry_ids,
            run.flags,
            run.keys_match(octets, key),
            run.lacs_are_right(octets),
            fenced=was_fenced or (ledger is not None and ledger.fenced),
            read_only=self._disks.is_read_only or is_full,
            takes_recovery_adds=self._disks.takes_recovery_adds and not is_full,
            in_limbo=ledger_id in self._store.limbo,
        )
        if not is_known and bool(np.any(statuses == EOK)):
            if ledger is None and not (self._store.takes_new_ledgers and self._new_ledgers.take(client)):
                return rules.refused_if_new(statuses)
            ledger = self._store.create_ledger(ledger_id, key)
            new_keys.append((ledger_id, key))
            if was_fenced:
                self._store.fence(ledger)
        if ledger is not None:
            ledgers[ledger_id] = ledger
        return statuses

    # ---- reads ----

    def resume_later(self, client: BookieClient) -> None:
        """Call `client.resume` when there is room again, because too many reads are in flight now."""
        self._blocked[client] = None

    def fence_and_read(self, client: BookieClient, ledger_id: int, master_key: bytes, reading: Reading) -> int | None:
        """Fence a ledger, and read and answer once the fence is durable. An unknown ledger is created.

        Returns:
            None; 0 if nothing was done because there is no room for an unknown ledger: wait for `client.resume`.
        """
        fence = self._fence(client, ledger_id, master_key)
        if fence is None:
            return 0
        if fence.status != Status.EOK:
            self.reads.refuse(reading, fence.status)
        else:
            self._read_after_fence(fence, reading)
        return None

    def _room_for_ledger(self, client: BookieClient, ledger_id: int) -> Status | None:
        """Return EOK if an unknown ledger may be created: it has a place then. None: the client waits to be resumed.

        A ledger without entries takes no room in the write cache: without this, there would be any number of them.
        """
        if self._store.index.is_full(ledger_id) or not self._store.takes_new_ledgers:
            return Status.ETOOMANYREQUESTS
        if self._store.active.room <= 0:
            self.checkpoint(advances_checkpoint=False)
        if self._store.active.room <= 0:
            # No room comes until the operator frees disk space: waiting would look like a hang.
            if self._disks.is_stuck:
                return Status.ETOOMANYREQUESTS
            self._blocked[client] = None
            return None
        if not self._begun.take(client):
            return None
        if not self._new_ledgers.take(client):
            self._begun.give(client)
            return Status.ETOOMANYREQUESTS
        return Status.EOK

    def _read_after_fence(self, fence: BegunFence, reading: Reading) -> None:
        journal = self._journals[fence.journal_index]
        if fence.sequence <= journal.durable:
            self.reads.enqueue(reading)
        else:
            received_ns, begun_by = self.times.received_ns, fence.begun_by
            reply = WaitingReply(fence.sequence, reading.client, (), 0, reading, received_ns, begun_by=begun_by)
            journal.waiting.append(reply)

    def _key_of(self, client: BookieClient, ledger_id: int, ledger: Ledger | None) -> bytes | None:
        """Return the master key that requests must carry; None: the first key that comes is accepted."""
        if ledger is not None and ledger.master_key != UNKNOWN_KEY:
            return ledger.master_key
        return None if self._authorization is None else self._authorization.expected_key(client.connection, ledger_id)

    def _with_key(self, ledger: Ledger | None, ledger_id: int, key: bytes) -> tuple[Ledger, list[Record]]:
        """Return a ledger, created with this key if its key is unknown, and the record of the new key."""
        if ledger is not None and ledger.master_key != UNKNOWN_KEY:
            return ledger, []
        return self._store.create_ledger(ledger_id, key), [key_record([(ledger_id, key)])]

    def _fence(self, client: BookieClient, ledger_id: int, key: bytes) -> BegunFence | None:
        """Fence a ledger, unless the fence is refused. Returns None if there is no room for an unknown ledger now."""
        try:
            ledger = self._store.ledger(ledger_id)
        except (StorageDamaged, OSError) as error:
            return BegunFence(failed(error))
        status: Status | None = rules.fence_status(ledger_id, self._key_of(client, ledger_id, ledger), key)
        if status == Status.EOK and ledger is None:
            status = self._room_for_ledger(client, ledger_id)
        if status != Status.EOK:
            return None if status is None else BegunFence(status)
        index, begun_by = ledger_id % len(self._journals), client if ledger is None else None
        ledger, records = self._with_key(ledger, ledger_id, key)
        if not ledger.fenced:
            self._store.fence(ledger)
            records.append(fence_record([ledger_id]))
        if records:
            ledger.fence_sequence = self._journals[index].thread.submit(records, is_patient=begun_by is not None)
            self.long_polls.touch(ledger_id, is_fenced=True)
        return BegunFence(Status.EOK, index, ledger.fence_sequence, begun_by)

    def owed(self) -> set[Hashable]:
        """Return the connections that are owed an answer. Costs as much as is unanswered: do not ask at each request.

        A connection whose requests wait for room has them still, and is not included.
        """
        clients = clients_of(self._journals).union(
            self.reads.clients(), self.long_polls.clients(), self.entry_lists.clients(), self._forces.clients()
        )
        return {client.connection for client in clients}

    def owes(self, client: BookieClient) -> bool:
        """Return whether a connection is owed an answer, as `owed` does."""
        return client.connection in self.owed()

    def forget(self, client: BookieClient) -> None:
        """Forget a client whose connection is closed."""
        if client is self._last_adder:
            self._last_adder = None
        self.long_polls.forget(client)

    # ---- explicit LACs ----

    def write_lac(
        self, client: BookieClient, ledger_id: int, master_key: bytes, packet: bytes, encode: Callable[[Status], Parts]
    ) -> int | None:
        """Keep an explicit LAC; send encode(status), EOK once it or a higher one is durable.

        Returns:
            None; 0 if nothing was done because there is no room for an unknown ledger: wait for `client.resume`.
        """
        try:
            ledger = self._store.ledger(ledger_id)
        except (StorageDamaged, OSError) as error:
            client.send(encode(failed(error)))
            return None
        status: Status | None = rules.explicit_lac_status(
            ledger_id,
            self._key_of(client, ledger_id, ledger),
            master_key,
            packet,
            read_only=self._disks.is_read_only,
            is_deleted=ledger is None and ledger_id in self._store.tombstones,
        )
        if status == Status.EOK and ledger is None:
            status = self._room_for_ledger(client, ledger_id)
        if status is None:
            return 0
        if status != Status.EOK:
            client.send(encode(status))
            return None
        journal, begun_by = self._journals[ledger_id % len(self._journals)], client if ledger is None else None
        ledger, records = self._with_key(ledger, ledger_id, master_key)
        if self._store.advance_lac(ledger, packet):
            records.append(lac_record(ledger_id, packet))
        if records:
            ledger.lac_sequence = journal.thread.submit(records, is_patient=begun_by is not None)
            self.long_polls.touch(ledger_id)
        if ledger.lac_sequence <= journal.durable:
            client.send(encode(status))
        else:
            journal.waiting.append(WaitingReply(ledger.lac_sequence, client, encode(status), begun_by=begun_by))
        return None

    # ---- durability ----

    def force(self, client: BookieClient, ledger_id: int, encode: Callable[[Status], Parts]) -> None:
        """Send encode(EOK) once earlier adds of a ledger, which may be unknown, are durable; EIO: they may be lost."""
        if not self._forces.must_wait(ledger_id):
            self._force_journal(client, ledger_id, encode)
        elif self._forces.is_full:
            client.send(encode(Status.ETOOMANYREQUESTS))
        else:
            self._forces.add(WaitingForce(client, ledger_id, encode))
            self._flush_forced()

    def _force_journal(self, client: BookieClient, ledger_id: int, encode: Callable[[Status], Parts]) -> None:
        if self._store.index.is_hidden(ledger_id):
            # Its adds may have been lost with the disk of its index.
            client.send(encode(Status.EIO))
            return
        journal = self._journals[ledger_id % len(self._journals)]
        journal.waiting.append(WaitingReply(journal.thread.force(), client, encode(Status.EOK)))

    def _flush_forced(self) -> None:
        """Begin a flush if forces wait for one and none runs; at the end of a flush this is called again."""
        if self._forces.need_flush:
            self.checkpoint()

    def on_durable(self, journal_index: int, sequence: int) -> None:
        """Send the replies that waited for records up to `sequence`, one buffer per connection."""
        # A commit by the event loop can be newer than the thread's report of its last group.
        journal = self._journals[journal_index]
        journal.durable = max(journal.durable, sequence)
        if self._deferrals.waiting[journal_index]:
            self._deferrals.on_durable(journal_index, sequence)
        reads = self._send_up_to(journal, sequence, journal.waiting, journal.deferred)
        if reads:
            turn = self._turns.begin(self)
            for read in reads:
                if turn.is_over:
                    self.reads.later(read)
                else:
                    self.reads.enqueue(read, turn)
                    turn.spend()
        if self._blocked:
            self._resume_blocked()

    def on_written(self, journal_index: int, sequence: int) -> None:
        """Answer deferred adds up to `sequence`: it suffices that they were written to the operating system."""
        journal = self._journals[journal_index]
        self._send_up_to(journal, sequence, journal.deferred)
        self._resume_blocked()

    def _send_up_to(self, journal: JournalReplies, sequence: int, *queues: deque[WaitingReply]) -> list[Reading]:
        """Send the replies that waited for records up to `sequence`; return the reads that waited for them."""
        replies: dict[ReadClient, list[bytes | memoryview]] = {}
        reads = []
        batches: list[int] = []
        for waiting in queues:
            while waiting and waiting[0].sequence <= sequence:
                reply = waiting.popleft()
                self._adds_in_flight -= reply.adds
                if reply.begun_by is not None:
                    self._begun.give(reply.begun_by)
                if reply.read is not None:
                    reply.read.received_ns = reply.received_ns
                    reads.append(reply.read)
                else:
                    replies.setdefault(reply.client, []).extend(reply.parts)
                    if reply.adds:
                        batches += (reply.adds, reply.received_ns, reply.given_ns)
        for client, parts in replies.items():
            client.send(parts)
        if batches and self.times.is_on:
            journal.times.note(journal.thread.group_times, sequence, batches, self.times.clock_ns())
        return reads

    def checkpoint(self, *, advances_checkpoint: bool = True) -> bool:
        """Begin a checkpoint; False when there is nothing to flush or another one runs.

        Without `advances_checkpoint` a flush only makes room: the index may stay in memory; the journal has the adds.
        """
        flush = None if self._store.is_clean else self._store.begin_flush(advances_checkpoint=advances_checkpoint)
        if flush is None:
            return False
        if flush.advances_checkpoint:
            self._deferrals.on_flush_begun()
            self._forces.on_flush_begun()
        self._checkpoints.submit(Checkpoint(flush, [journal.thread.take_mark() for journal in self._journals]))
        return True

    def on_checkpoint_done(self, checkpoint: Checkpoint) -> None:
        """Use the emptied half of the write cache again, and let waiting connections continue."""
        self._store.end_flush(checkpoint.flush)
        if checkpoint.flush.advances_checkpoint:
            self._deferrals.on_flush_done(self._store.index.is_hidden)
            for force in self._forces.on_flush_done():
                self._force_journal(force.client, force.ledger_id, force.encode)
        self._flush_forced()
        if self._disks.is_stuck:
            self._disks.is_stuck = False
            self.look_at_disks()
        self._resume_blocked()

    # ---- figures ----

    @property
    def adds_in_flight(self) -> int:
        """Adds that are not answered yet."""
        return self._adds_in_flight

    @property
    def blocked_clients(self) -> int:
        """Clients whose requests wait for room."""
        return len(self._blocked)

    # ---- disks ----

    def look_at_disks(self) -> None:
        """Check how full the disks are, and accept adds accordingly. Raises OSError if a disk cannot be checked."""
        self._disks.check_now(self._store.waiting_bytes)
        self._unchecked_bytes, self._room_bytes = 0, self._disks.verdict.room_bytes
        self._store.logs.note_full(self._disks.verdict.full)

    def on_checkpoint_stuck(self) -> None:
        """Note that a checkpoint found no space and will be retried: nothing is lost, but no new entry fits."""
        self._disks.is_stuck = True
        self.look_at_disks()
        self._resume_blocked()

    def _resume_blocked(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for client in blocked:
            client.resume()
