"""The metrics of autorecovery, with Apache's names: what audits listed, and what the replication worker copied."""

from __future__ import annotations

from collections.abc import Iterator

from bookie_service.metrics.families import PLAIN, Family, Operation, counter, gauge
from bookie_service.replication.autorecovery import AutoRecovery


def recovery_families(recovery: AutoRecovery, scope: str) -> Iterator[Family]:
    """Yield the families. `scope`: "" in a process of its own, "replication_" in a bookie."""
    auditor, worker = recovery.auditor, recovery.worker
    if auditor is None or worker is None:
        return
    audits = Operation((auditor.found, 0), None, {}, PLAIN)
    yield Family(f"{scope}auditor_NUM_UNDER_REPLICATED_LEDGERS", "summary", (audits,))
    for what in ("READ", "WRITTEN"):
        # Bytes that are written were read before, so entries and bytes are counted once.
        yield counter(f"{scope}replication_worker_NUM_ENTRIES_{what}", worker.copied_sizes.count(0))
        copied = Operation((worker.copied_sizes, 0), None, {}, PLAIN)
        yield Family(f"{scope}replication_worker_NUM_BYTES_{what}", "summary", (copied,))
    yield counter(f"{scope}replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", worker.repaired)
    if scope:
        return
    yield gauge("bkspark_underreplicated_ledgers", worker.listed, text="Ledgers that lack copies, as last read.")
    yield counter("bkspark_repair_failures_total", worker.failures, text="Repairs that failed, and are tried again.")
