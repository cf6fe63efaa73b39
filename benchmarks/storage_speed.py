"""Speed of a bookie: adds, their latency, batch reads, reading while others write, compaction beside adds.

Every section is a generator that sets up its servers, yields the figures of one round after another, with the machine's
limits measured in the same round, and takes everything down.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from typing import Any

from benchmarks import bookie_load, limits
from benchmarks.figures import Figure, Sizes
from benchmarks.servers import MeasuredBookie, Servers
from bkspark.cli import load
from bkspark.client import Client
from bkspark.core.writer_options import WriterOptions

ENTRY_BYTES = 1024
WINDOW = 4000
PACED_ADDS_PER_S = 30_000
"""What is written, all ledgers together, while one is read."""

_MIB = 1 << 20
_COMPACTION_TIMEOUT_S = 120.0
_PATIENT = WriterOptions(add_timeout_s=60.0, close_timeout_s=60.0)
"""A disk that is busy for longer than a writer usually waits gives a low figure. It does not end the benchmark."""

FIGURES = (
    Figure("adds_per_s", "entries/s", at_least=180_000, unless="adds_share_of_disk"),
    Figure("adds_share_of_disk", "", at_least=0.6, unless="adds_per_s"),
    Figure("adds_group_kib", "KiB"),
    Figure("adds_disk_mib_per_s", "MiB/s"),
    Figure("adds_bookie_us", "us/entry", at_most=4),
    Figure("adds_bookie_cores", "cores"),
    Figure("adds_main_thread_share", "of a core"),
    Figure("adds_by_client_per_s", "entries/s", at_least=180_000),
    Figure("adds_by_client_client_us", "us/entry"),
    Figure("latency_p50_ms", "ms"),
    Figure("latency_p99_ms", "ms"),
    Figure("fdatasync_p50_ms", "ms"),
    Figure("fdatasync_p99_ms", "ms"),
    Figure("latency_p50_per_fdatasync", "", at_most=3),
    Figure("latency_p99_per_fdatasync", "", at_most=5),
    Figure("latency_by_client_p50_ms", "ms"),
    Figure("latency_by_client_p99_ms", "ms"),
    Figure("latency_three_bookies_p50_ms", "ms", at_most=0.8),
    Figure("latency_three_bookies_p99_ms", "ms"),
    Figure("fdatasync_three_writers_p50_ms", "ms"),
    Figure("batch_reads_per_s", "entries/s", at_least=1_000_000),
    Figure("batch_reads_bookie_s_per_gib", "s/GiB", at_most=0.5),
    Figure("batch_reads_share_of_loopback", ""),
    Figure("single_reads_per_s", "entries/s"),
    Figure("sorted_idle_reads_per_s", "entries/s"),
    Figure("sorted_share_while_written", "of idle", at_least=0.7),
    Figure("sorted_share_while_written_at_full_speed", "of idle"),
    Figure("interleaved_idle_reads_per_s", "entries/s"),
    Figure("interleaved_share_while_written", "of idle"),
    Figure("interleaved_share_while_written_at_full_speed", "of idle"),
    Figure("compaction_idle_adds_per_s", "entries/s"),
    Figure("compaction_cost", "of the adds", at_most=0.3),
    Figure("compaction_mib_per_s", "MiB/s"),
)


# ---- adds ----


def adds(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """Pipelined adds of 1 KiB to one bookie, from a raw peer and from our client."""
    with servers.bookie() as bookie, bookie_load.connect(bookie.port) as peer:
        bookie_load.add_all(peer, bookie_load.encode_blocks(1, sizes.entries // 4, ENTRY_BYTES), WINDOW)
        for number in range(sizes.rounds):
            yield _adds_round(bookie, peer, 2 + number, sizes) | _client_adds(servers, sizes)


def _adds_round(bookie: MeasuredBookie, peer: Any, ledger_id: int, sizes: Sizes) -> dict[str, float]:
    blocks = bookie_load.encode_blocks(ledger_id, sizes.entries, ENTRY_BYTES)
    count = len(blocks) * bookie_load.BLOCK_ENTRIES
    bytes_before, groups_before = bookie.journal_bytes_and_groups()
    processor_before, main_before = bookie.processor_s(), bookie.main_thread_s()
    seconds = bookie_load.add_all(peer, blocks, WINDOW)
    processor, main = bookie.processor_s() - processor_before, bookie.main_thread_s() - main_before
    bytes_after, groups_after = bookie.journal_bytes_and_groups()
    journaled = bytes_after - bytes_before
    group = journaled / max(1, groups_after - groups_before)
    # A multiple of the page: what a journal that is aligned could write.
    disk = limits.measure_disk(bookie.directory, max(4096, int(group) & -4096), 1, 0.5)["mib_per_s"]
    return {
        "adds_per_s": count / seconds,
        "adds_share_of_disk": journaled / seconds / _MIB / disk,
        "adds_group_kib": group / 1024,
        "adds_disk_mib_per_s": disk,
        "adds_bookie_us": 1e6 * processor / count,
        "adds_bookie_cores": processor / seconds,
        "adds_main_thread_share": main / seconds,
    }


def _client_adds(servers: Servers, sizes: Sizes) -> dict[str, float]:
    result = write_as_client(servers, 1, window=8192, entries=sizes.entries)
    return {
        "adds_by_client_per_s": result["entries_per_s"],
        "adds_by_client_client_us": 1e6 * result["client_cpu_s"] / result["entries"],
    }


def write_as_client(servers: Servers, bookies: int, *, window: int, entries: int) -> dict[str, Any]:
    """Return what our client measured, writing to all bookies, with all but one (of one: that one) to acknowledge."""
    wanted = load.WriteLoad(ENTRY_BYTES, bookies, bookies, max(1, bookies - 1), 1, window, None, entries)

    async def write() -> dict[str, Any]:
        async with Client(servers.uri, writer=_PATIENT) as client:
            ledger_ids, result = await load.write(client, wanted)
            await load.delete(client, ledger_ids)
            return result

    return asyncio.run(write())


# ---- latency ----


def latency(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """One add in flight, raw and by our client, each add of the raw peer followed by a bare write + fdatasync."""
    with servers.bookie() as bookie, bookie_load.connect(bookie.port) as peer:
        bookie_load.one_by_one(peer, 1, 0, sizes.latency_adds // 4, ENTRY_BYTES, lambda: None)
        for number in range(sizes.rounds):
            bare = limits.SyncedFile(bookie.directory / "limit", 4096)
            adds_s = bookie_load.one_by_one(peer, 2 + number, 0, sizes.latency_adds, ENTRY_BYTES, bare.write)
            bare.close()
            by_client = write_as_client(servers, 1, window=1, entries=sizes.latency_adds)["latency_ms"]
            p50, p99 = limits.percentile_ms(adds_s, 0.5), limits.percentile_ms(adds_s, 0.99)
            bare_p50, bare_p99 = (limits.percentile_ms(bare.latencies_s, share) for share in (0.5, 0.99))
            yield {
                "latency_p50_ms": p50,
                "latency_p99_ms": p99,
                "fdatasync_p50_ms": bare_p50,
                "fdatasync_p99_ms": bare_p99,
                "latency_p50_per_fdatasync": p50 / bare_p50,
                "latency_p99_per_fdatasync": p99 / bare_p99,
                "latency_by_client_p50_ms": by_client["p50"],
                "latency_by_client_p99_ms": by_client["p99"],
            }


def latency_three(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """One add in flight by our client, E3/Qw3/Qa2."""
    with servers.bookies(3):
        for _ in range(sizes.rounds):
            result = write_as_client(servers, 3, window=1, entries=sizes.latency_adds)["latency_ms"]
            yield {
                "latency_three_bookies_p50_ms": result["p50"],
                "latency_three_bookies_p99_ms": result["p99"],
                "fdatasync_three_writers_p50_ms": limits.measure_disk(servers.directory, 4096, 3, 0.5)["p50_ms"],
            }


# ---- reads ----


def batch_reads(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """A ledger that lies in the entry log, read from one bookie."""
    ledger_id = 1
    blocks = bookie_load.encode_blocks(ledger_id, sizes.entries, ENTRY_BYTES)
    count = len(blocks) * bookie_load.BLOCK_ENTRIES
    with servers.bookie() as bookie:
        with bookie_load.connect(bookie.port) as peer:
            bookie_load.add_all(peer, blocks, WINDOW)
        _flush(bookie)
        with bookie_load.connect(bookie.port) as peer:
            bookie_load.batch_read_all(peer, ledger_id, count, ENTRY_BYTES)
            for _ in range(sizes.rounds):
                before = bookie.processor_s()
                seconds = bookie_load.batch_read_all(peer, ledger_id, count, ENTRY_BYTES)
                processor = bookie.processor_s() - before
                loopback = limits.measure_loopback(_MIB, 0.3)
                yield {
                    "batch_reads_per_s": count / seconds,
                    "batch_reads_bookie_s_per_gib": processor / (count * ENTRY_BYTES / (1 << 30)),
                    "batch_reads_share_of_loopback": count * ENTRY_BYTES / _MIB / seconds / loopback,
                    "single_reads_per_s": count / bookie_load.read_all(peer, ledger_id, count, ENTRY_BYTES),
                }


def _flush(bookie: MeasuredBookie) -> None:
    """Start the bookie again, so that everything lies in entry logs and nothing in the write cache."""
    bookie.stop()
    bookie.start()


def sorted_while_written(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """Reading one ledger back while three others are written, entry logs sorted by ledger."""
    return _while_written(servers, sizes, "sorted", "SortedLedgerStorage")


def interleaved_while_written(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """Reading one ledger back while three others are written, entry logs in the order of arrival."""
    return _while_written(servers, sizes, "interleaved", "InterleavedLedgerStorage")


def _while_written(servers: Servers, sizes: Sizes, name: str, storage: str) -> Iterator[dict[str, float]]:
    ledger_ids = [1, 2, 3, 4]
    turns = max(1, sizes.entries // 2 // bookie_load.BLOCK_ENTRIES)
    count = turns * bookie_load.BLOCK_ENTRIES
    with servers.bookie(ledgerStorageClass=storage) as bookie:
        with bookie_load.connect(bookie.port) as peer:
            bookie_load.add_all(peer, bookie_load.blocks_in_turn(ledger_ids, ENTRY_BYTES, turns), WINDOW)
        _flush(bookie)
        for number in range(sizes.rounds):
            others = [100 + 3 * number + i for i in range(3)]
            idle = _read_for(bookie, count, sizes.seconds)
            rates = []
            for adds_per_s in (PACED_ADDS_PER_S, None):
                with _Writing(bookie.port, others, adds_per_s):
                    rates.append(_read_for(bookie, count, sizes.seconds))
            yield {
                f"{name}_idle_reads_per_s": idle,
                f"{name}_share_while_written": rates[0] / idle,
                f"{name}_share_while_written_at_full_speed": rates[1] / idle,
            }


def _read_for(bookie: MeasuredBookie, count: int, seconds: float) -> float:
    """Read ledger 1 again and again; return entries/s."""
    entries, elapsed = 0, 0.0
    with bookie_load.connect(bookie.port) as peer:
        while elapsed < seconds:
            elapsed += bookie_load.batch_read_all(peer, 1, count, ENTRY_BYTES)
            entries += count
    return entries / elapsed


class _Writing:
    """A process that adds to ledgers in turn for as long as the block lasts."""

    def __init__(self, port: int, ledger_ids: list[int], adds_per_s: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._began, self._stop = context.Event(), context.Event()
        self._process = context.Process(
            target=_write_until, args=(port, ledger_ids, adds_per_s, self._began, self._stop), daemon=True
        )

    def __enter__(self) -> None:
        self._process.start()
        if not self._began.wait(60):
            raise TimeoutError("the process that writes did not begin within 60 s")

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._process.join()
        if self._process.exitcode:
            raise ChildProcessError(f"the process that writes ended with exit code {self._process.exitcode}")


def _write_until(port: int, ledger_ids: list[int], adds_per_s: int | None, began: Event, stop: Event) -> None:
    with bookie_load.connect(port) as peer:
        adder = bookie_load.Adder(peer, WINDOW)
        started = time.perf_counter()
        for block in bookie_load.blocks_in_turn(ledger_ids, ENTRY_BYTES):
            adder.send(block, bookie_load.BLOCK_ENTRIES)
            began.set()
            if adds_per_s is not None:
                time.sleep(max(0.0, started + adder.sent / adds_per_s - time.perf_counter()))
            if stop.is_set():
                break
        adder.finish()


# ---- compaction ----


def compaction(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """Adds at full speed, alone and beside a compaction without rate limits, in which half of each log is dead."""
    settings = {"compactionRateByEntries": 0, "compactionRateByBytes": 0, "logSizeLimit": 64 * _MIB}
    for _ in range(sizes.rounds):
        with servers.bookie(**settings) as bookie:
            kept, foreground = asyncio.run(_created_ledgers(servers.uri, 2))
            # No such ledger exists in the metadata store: it is garbage.
            deleted = max(kept, foreground) + 1
            turns = sizes.compacted_mib * 1024 // (2 * bookie_load.BLOCK_ENTRIES)
            with bookie_load.connect(bookie.port) as peer:
                blocks = bookie_load.blocks_in_turn([kept, deleted], ENTRY_BYTES, turns)
                bookie_load.add_all(peer, blocks, WINDOW)
            _flush(bookie)
            yield _compaction_round(bookie, foreground, sizes)


async def _created_ledgers(uri: str, count: int) -> list[int]:
    async with Client(uri) as client:
        writers = [await client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(count)]
        return [writer.ledger_id for writer in writers]


def _compaction_round(bookie: MeasuredBookie, ledger_id: int, sizes: Sizes) -> dict[str, float]:
    old_logs = bookie.entry_logs()
    payloads = [bytes(ENTRY_BYTES)] * bookie_load.BLOCK_ENTRIES
    with bookie_load.connect(bookie.port) as peer:
        adder = bookie_load.Adder(peer, WINDOW)

        def add_while(going_on: Any) -> float:
            """Return the adds/s acknowledged until the condition is false."""
            began, before = time.perf_counter(), adder.acknowledged
            while going_on():
                adder.send(bookie_load.encode_block(ledger_id, adder.sent, payloads), bookie_load.BLOCK_ENTRIES)
            return (adder.acknowledged - before) / (time.perf_counter() - began)

        idle_until = time.perf_counter() + sizes.seconds
        # Other rates are divided by this one: on a busy disk the first answer may come after the time is over.
        idle = add_while(lambda: time.perf_counter() < idle_until or not adder.acknowledged)
        collected = bookie.collect_garbage()
        began = time.perf_counter()
        beside = add_while(lambda: not collected.done() and time.perf_counter() < began + _COMPACTION_TIMEOUT_S)
        elapsed = time.perf_counter() - began
        adder.finish()
    report = collected.result(timeout=0)
    if bookie.entry_logs() & old_logs:
        raise ValueError(f"a pass left entry logs that are half dead: {report}")
    return {
        "compaction_idle_adds_per_s": idle,
        "compaction_cost": 1 - beside / idle,
        "compaction_mib_per_s": sizes.compacted_mib / elapsed,
    }


SECTIONS = {
    "adds": adds,
    "latency": latency,
    "latency-three": latency_three,
    "batch-reads": batch_reads,
    "sorted-while-written": sorted_while_written,
    "interleaved-while-written": interleaved_while_written,
    "compaction": compaction,
}
