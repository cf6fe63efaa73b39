"""The metrics of a running bookie, with Apache's names, made from the counters and queues of its parts at each scrape.

Names, kinds and labels are those that the dashboards of BookKeeper and Pulsar read. Families that begin with `bkspark_`
are our own. What Apache's bookies count for each worker thread is one series here, because one event loop serves all
requests: the label `thread` is "0", and `threadPool` names Apache's pool.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from bookie_service.gc.collection_status import CollectionStatus
from bookie_service.metrics.families import (
    NO_LABELS,
    PLAIN,
    Family,
    Labels,
    Operation,
    Stage,
    Value,
    counter,
    gauge,
    name_of,
)
from bookie_service.metrics.requests import ADD_STAGES, OPERATIONS, READ_ENTRY, READ_STAGES, JournalTimes
from bookie_service.operation.process_metrics import process_families
from bookie_service.operation.stored_counts import StoredCounts
from bookie_service.service import BookieService
from bookie_service.storage.ledgers.db import DbLedgerStorage

_SERVER = "bookkeeper_server"
_WRITE_POOL: Labels = {"thread": "0", "threadPool": "BookieWriteThreadPool"}
_WRITE_THREAD = "BookieWriteThreadPool-OrderedExecutor-0-0"
_READ_THREAD = "BookieReadThreadPool-OrderedExecutor-0-0"
_HIGH_PRIORITY_THREAD = "BookieHighPriorityThread-OrderedExecutor-0-0"
_READ_POOL: Labels = {"thread": "0", "threadPool": "BookieReadThreadPool"}


class BookieMetrics:
    """All families of one bookie. For the event loop."""

    def __init__(
        self, service: BookieService, counts: StoredCounts, is_registered: Callable[[], bool], replay_s: float
    ) -> None:
        """`is_registered()`: whether the cluster knows the bookie. `replay_s`: how long the start's replay took."""
        self._service = service
        self._counts = counts
        self._is_registered = is_registered
        self._replay_s = replay_s
        directories = [os.path.dirname(path) for path in service.disks.ledger_directories]
        self._labels: Labels = {"ledgerDir": ",".join(directories), "indexDir": directories[0]}
        store = service.storage.store
        if isinstance(store, DbLedgerStorage):
            service.registry.adopt(store.read_ahead.sizes)
        for source in (
            self.requests,
            self.journals,
            self.entries,
            self.directories,
            self.garbage,
            self.start,
            process_families,
        ):
            service.registry.add(source)

    # ---- requests ----

    def requests(self) -> Iterator[Family]:
        """Yield what clients requested, and how long it took."""
        service = self._service
        bookie, times = service.bookie, service.times
        times.fold()
        status = -1 if not self._is_registered() else 0 if service.is_read_only else 1
        yield gauge("bookie_SERVER_STATUS", status)
        yield from self._operations()
        yield gauge(f"{_SERVER}_BookieReadThreadPool_threads", service.fetch_threads)
        yield gauge(f"{_SERVER}_BookieWriteThreadPool_threads", 1)
        is_read_full = bookie.reads.is_full
        blocked = bookie.blocked_clients
        yield gauge(f"{_SERVER}_ADD_ENTRY_IN_PROGRESS", bookie.adds_in_flight)
        yield gauge(f"{_SERVER}_READ_ENTRY_IN_PROGRESS", bookie.reads.waiting)
        yield gauge(f"{_SERVER}_ADD_ENTRY_BLOCKED", 0 if is_read_full else blocked)
        yield gauge(f"{_SERVER}_READ_ENTRY_BLOCKED", blocked if is_read_full else 0)
        yield Family(f"{_SERVER}_thread_executor_queue", "gauge", tuple(self._queues()))
        yield from self._tasks()
        yield counter("bookie_WRITE_BYTES", bookie.added_bytes)
        yield counter("bookie_READ_BYTES", bookie.view.bytes_read - 4 * bookie.view.entries_read)
        yield from self._stages()
        yield gauge("bkspark_bookie_connections", service.connection_count, text="Connections of clients.")

    def _operations(self) -> Iterator[Family]:
        """Yield how long each operation took, under Apache's names."""
        times = self._service.times
        adds = Operation(times.whole_add, (times.failed_adds, 0), _WRITE_POOL)
        yield Family(f"{_SERVER}_ADD_ENTRY", "summary", (adds,))
        yield Family(f"{_SERVER}_ADD_ENTRY_REQUEST", "summary", (Operation(adds.succeeded, adds.failed),))
        queued = Operation((times.adds, 0), None, _WRITE_POOL)
        yield Family(f"{_SERVER}_WRITE_THREAD_QUEUED_LATENCY", "summary", (queued,))
        for number, name in enumerate(OPERATIONS):
            succeeded, failed = (times.succeeded, number), (times.failed, number)
            if number == READ_ENTRY:
                yield Family(f"{_SERVER}_{name}", "summary", (Operation(succeeded, failed, _READ_POOL),))
                yield Family(f"{_SERVER}_{name}_REQUEST", "summary", (Operation(succeeded, failed),))
            else:
                yield Family(f"{_SERVER}_{name}", "summary", (Operation(succeeded, failed),))
                if not name.endswith("_REQUEST"):
                    yield Family(f"{_SERVER}_{name}_REQUEST", "summary", (Operation(succeeded, failed),))
        yield Family("bookie_BOOKIE_ADD_ENTRY", "summary", (Operation(adds.succeeded, adds.failed),))
        read = (times.succeeded, READ_ENTRY), (times.failed, READ_ENTRY)
        yield Family("bookie_BOOKIE_READ_ENTRY", "summary", (Operation(*read),))

    def _stages(self) -> Iterator[Family]:
        """Yield how long adds and reads took, as histograms, and their stages."""
        times = self._service.times
        yield Family(
            "bkspark_bookie_add_seconds",
            "histogram",
            (Stage(times.whole_add),),
            "Time of an add from its receipt to its answer.",
        )
        yield Family(
            "bkspark_bookie_add_stage_seconds",
            "histogram",
            tuple(Stage((times.adds, row), {"stage": stage}) for row, stage in enumerate(ADD_STAGES)),
            "Time of each stage of an add; a stage ends where the next begins.",
        )
        yield Family(
            "bkspark_bookie_read_seconds",
            "histogram",
            (Stage((times.succeeded, READ_ENTRY)),),
            "Time of a read that found entries, from its receipt to its answer.",
        )
        yield Family(
            "bkspark_bookie_read_stage_seconds",
            "histogram",
            tuple(Stage((times.read_stages, row), {"stage": stage}) for row, stage in enumerate(READ_STAGES)),
            "Time of each stage of a read; fetched: only reads that waited for the disk, within answered.",
        )

    def _tasks(self) -> Iterator[Family]:
        """Yield what Apache's threads count of their tasks. A task is a request here; one that fails is answered."""
        service, times = self._service, self._service.times
        added = times.adds.count(len(ADD_STAGES)) + times.failed_adds.count(0)
        read = times.succeeded.count(READ_ENTRY) + times.failed.count(READ_ENTRY)
        for name, adds, reads in (
            ("completed", added, read),
            ("tasks_completed", added, read),
            ("tasks_rejected", 0, service.bookie.reads.refused),
            ("tasks_failed", 0, 0),
        ):
            values = (Value(adds, {"thread": _WRITE_THREAD}), Value(reads, {"thread": _READ_THREAD}))
            yield Family(f"{_SERVER}_thread_executor_{name}", "gauge", values)

    def _queues(self) -> Iterator[Value]:
        """Yield how much work waits for each thread."""
        service = self._service
        yield Value(service.bookie.adds_in_flight, {"thread": _WRITE_THREAD})
        yield Value(service.waiting_fetches, {"thread": _READ_THREAD})
        # Requests of high priority are served with all others. Dashboards have a panel for the threads that Apache has.
        yield Value(0, {"thread": _HIGH_PRIORITY_THREAD})
        for index, journal in enumerate(service.journals):
            yield Value(journal.waiting, {"thread": f"journal-{index}"})

    # ---- journals ----

    def journals(self) -> Iterator[Family]:
        """Yield what the journals did. A label names the journal, as with Apache's bookies."""
        service, times = self._service, self._service.times
        labels: list[Labels] = [{"journalIndex": str(index)} for index in range(len(service.journals))]
        histograms = times.journal_histograms

        def summary(name: str, row: int, unit: float | None = None) -> Family:
            def operation(index: int, labels: Labels) -> Operation:
                recorded = (histograms[index], row)
                return Operation(recorded, None, labels) if unit is None else Operation(recorded, None, labels, unit)

            each = tuple(operation(index, of) for index, of in enumerate(labels))
            return Family(f"bookie_journal_{name}", "summary", each)

        adds = tuple(Operation((times.journal_adds[index], 0), None, of) for index, of in enumerate(labels))
        yield Family("bookie_journal_JOURNAL_ADD_ENTRY", "summary", adds)
        yield summary("JOURNAL_SYNC", JournalTimes.SYNC)
        yield summary("JOURNAL_FLUSH_LATENCY", JournalTimes.WRITE)
        yield summary("JOURNAL_PROCESS_TIME_LATENCY", JournalTimes.WRITE)
        yield summary("JOURNAL_QUEUE_LATENCY", JournalTimes.QUEUE)
        yield summary("JOURNAL_FORCE_WRITE_BATCH_ENTRIES", JournalTimes.BATCH_ENTRIES, PLAIN)
        yield summary("JOURNAL_FORCE_WRITE_BATCH_BYTES", JournalTimes.BATCH_BYTES, PLAIN)

        def values(name: str, kind: str, value: Callable[[int], float]) -> Family:
            each = tuple(Value(value(index), of) for index, of in enumerate(labels))
            return Family(f"bookie_journal_{name}", kind, each)

        yield values("JOURNAL_QUEUE_SIZE", "counter", lambda index: service.journals[index].waiting)
        yield values(
            "JOURNAL_FORCE_WRITE_QUEUE_SIZE", "counter", lambda index: int(not service.journals[index].is_idle)
        )
        yield values("JOURNAL_WRITE_BYTES", "counter", lambda index: times.journals[index].written_bytes)
        yield gauge("bookie_JOURNAL_DIRS", len(service.journals))

    # ---- what is stored ----

    def entries(self) -> Iterator[Family]:
        """Yield what is stored and cached. Apache's bookies count this only with DbLedgerStorage."""
        store, view, labels = self._service.storage.store, self._service.bookie.view, self._labels
        half = store.active
        yield gauge("bookie_ledgers_count", self._counts.ledgers, labels)
        yield gauge("bookie_entries_count", self._counts.entries, labels)
        yield gauge("bookie_write_cache_size", store.waiting_bytes, labels)
        yield gauge("bookie_write_cache_max_size", 2 * len(half.memory))
        ahead = store.read_ahead if isinstance(store, DbLedgerStorage) else None
        yield gauge("bookie_read_cache_size", 0 if ahead is None else ahead.used, labels)
        yield counter("bookie_read_cache_hits", view.hits if ahead is None else ahead.hits, labels)
        misses = view.misses if ahead is None else ahead.lookups - ahead.hits
        yield counter("bookie_read_cache_misses", misses, labels)
        times = self._service.times
        yield Family(
            "bookie_read_entry", "summary", (Operation((times.read_stages, 2), None, {**labels, **_READ_POOL}),)
        )
        yield Family("bookie_add_entry", "summary", (Operation((times.adds, 0), None, {**labels, **_WRITE_POOL}),))
        if ahead is not None:
            yield counter("bookie_write_cache_hits", view.hits, labels)
            yield counter("bookie_write_cache_misses", view.misses, labels)
            for row, name in enumerate(("count", "size")):
                operation = Operation((ahead.sizes, row), None, labels, PLAIN)
                yield Family(f"bookie_readahead_batch_{name}", "summary", (operation,))
        limbo = len(store.limbo)
        yield gauge("bkspark_bookie_limbo_ledgers", limbo, text="Ledgers that may have lost entries here.")
        failed, full = int(store.index.has_hidden), int(store.index.has_full)
        yield gauge(
            "bkspark_bookie_index_failed", failed, text="1: the disk of an index fails; its ledgers get errors."
        )
        yield gauge("bkspark_bookie_index_full", full, text="1: an index has no space, or is late.")

    def directories(self) -> Iterator[Family]:
        """Yield how full the directories are."""
        disks = self._service.disks
        ledgers = list(disks.ledger_directories)
        writable = len(set(ledgers) - disks.verdict.full)
        yield gauge("bookie_ledger_writable_dirs", writable)
        yield gauge("bookie_ledger_num_dirs", len(ledgers))
        usages: dict[str, float] = {}
        for path in ledgers:
            # Two directories may have one name here, such as /a-b and /a_b. Then the fuller one counts.
            name = f"bookie_ledger_dir_{name_of(os.path.dirname(path))}_usage"
            usages[name] = max(usages.get(name, 0.0), disks.usage.get(path, 100.0))
        for name, percent in usages.items():
            yield gauge(name, percent)
        used = tuple(
            Value(
                percent / 100, {"directory": os.path.dirname(path), "kind": "ledger" if path in ledgers else "journal"}
            )
            for path, percent in disks.usage.items()
        )
        yield Family("bkspark_bookie_directory_used_ratio", "gauge", used, "How full the disk of a directory is.")
        try:
            space = disks.known_space()
        except OSError:
            return
        yield gauge("bkspark_bookie_free_bytes", space.free_bytes, text="Free space of all ledger directories.")
        yield gauge("bkspark_bookie_total_bytes", space.total_bytes, text="Size of all ledger directories.")

    def garbage(self) -> Iterator[Family]:
        """Yield what garbage collection did.

        Apache's names begin with `bookie_gc_` unless the storage is `DbLedgerStorage`, whose names the dashboards read.
        """
        collector = self._service.collector
        if collector is None:
            return
        yield from self._garbage("bookie_", collector.status, self._labels)
        if not isinstance(self._service.storage.store, DbLedgerStorage):
            yield from self._garbage("bookie_gc_", collector.status, NO_LABELS)

    def _garbage(self, scope: str, status: CollectionStatus, labels: Labels) -> Iterator[Family]:
        for name, value in (
            ("DELETED_LEDGER_TOTAL", status.deleted_ledgers),
            ("MAJOR_COMPACTION_TOTAL", status.major_count),
            ("MINOR_COMPACTION_TOTAL", status.minor_count),
            ("RECLAIMED_DELETION_SPACE_BYTES", status.deleted_bytes),
            ("RECLAIMED_COMPACTION_SPACE_BYTES", status.compacted_bytes),
        ):
            yield counter(f"{scope}{name}", value, labels)
        yield gauge(f"{scope}ACTIVE_ENTRY_LOG_TOTAL", status.logs, labels)
        yield gauge(f"{scope}ACTIVE_LEDGER_TOTAL", status.ledgers or self._counts.ledgers, labels)
        yield gauge(f"{scope}ACTIVE_ENTRY_LOG_SPACE_BYTES", status.live_bytes, labels)
        yield gauge(f"{scope}ENTRY_LOG_SPACE_BYTES", status.log_bytes, labels)
        live = status.live_bytes / status.log_bytes if status.log_bytes else 0.0
        yield gauge(f"{scope}ENTRY_LOG_COMPACT_RATIO", 1 - live if status.log_bytes else 0.0, labels)
        for tenth, logs in enumerate(status.usage_counts, start=1):
            yield gauge(f"{scope}entry_log_usage_buckets_le_{tenth * 10}", logs, labels)

    def start(self) -> Iterator[Family]:
        """Yield what the start took."""
        yield gauge("bkspark_bookie_replay_seconds", self._replay_s, text="Time of the start's replay.")
