"""Memory and times of a bookie: 100,000 ledgers under a rotating load, 10,000 connections, starts, restarts, replay.

Sections as in `storage_speed`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator

from benchmarks import bookie_load, limits
from benchmarks.figures import Figure, Sizes
from benchmarks.servers import Servers

_MIB = 1 << 20
_SHORTEST_S = 0.01
"""A difference of times is at least what a clock tick of processor time can tell."""
_WINDOW = 4000
_ADDS_BESIDE = 200
"""One by one, beside idle connections."""

ROTATING_ENTRY_BYTES = 4096
ROTATING_RUN = 8
"""Entries that a ledger gets when it is its turn."""

CACHES = {"skipListSizeLimit": 64 * _MIB, "pageLimit": 8192, "pageSize": 8192}
"""What the bookie with many ledgers is given: two halves of a write cache, and pages."""
CACHES_MIB = (2 * CACHES["skipListSizeLimit"] + CACHES["pageLimit"] * CACHES["pageSize"]) / _MIB

FIGURES = (
    Figure("start_s", "s", at_most=1),
    Figure("start_processor_s", "s"),
    Figure("rotation_ledgers", "ledgers"),
    Figure("rotation_gib", "GiB"),
    Figure("rotation_mib_per_s", "MiB/s"),
    Figure("rotation_resident_mib", "MiB"),
    Figure("rotation_caches_mib", "MiB"),
    Figure("rotation_resident_above_caches_mib", "MiB", at_most=150),
    Figure("restart_many_ledgers_s", "s", at_most=2),
    Figure("restart_many_ledgers_processor_s", "s"),
    Figure("stop_many_ledgers_s", "s"),
    Figure("connections", "connections"),
    Figure("connection_idle_kib", "KiB"),
    Figure("connections_add_p50_ms", "ms"),
    Figure("replay_mib_per_s", "MiB/s", at_least=200),
    Figure("replay_mib_per_processor_s", "MiB/s"),
)


def start(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """From the start of a new bookie's process until it is registered and serves."""
    for _ in range(sizes.rounds):
        bookie = servers.new_bookie()
        try:
            yield {"start_s": bookie.start(), "start_processor_s": bookie.processor_s()}
        finally:
            bookie.remove()


def many_ledgers(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """A bookie whose ledgers are all written in turn; then clean stops and starts."""
    rotating_mib = min(sizes.rotating_mib, shutil.disk_usage(servers.directory).free // 2 // _MIB)
    with servers.bookie(**CACHES) as bookie:
        resident_mib, written_mib, seconds = _rotate(bookie.port, bookie.resident_mib, sizes.ledgers, rotating_mib)
        yield {
            "rotation_ledgers": sizes.ledgers,
            "rotation_gib": written_mib / 1024,
            "rotation_mib_per_s": written_mib / seconds,
            "rotation_resident_mib": resident_mib,
            "rotation_caches_mib": CACHES_MIB,
            "rotation_resident_above_caches_mib": resident_mib - CACHES_MIB,
        }
        for _ in range(sizes.rounds):
            yield {
                "stop_many_ledgers_s": bookie.stop(),
                "restart_many_ledgers_s": bookie.start(),
                "restart_many_ledgers_processor_s": bookie.processor_s(),
            }


def _rotate(port: int, resident_mib: Callable[[], float], ledgers: int, mib: int) -> tuple[float, float, float]:
    """Give each ledger its run in turn until so much is written, and once at least.

    Returns:
        The highest resident set seen in MiB, the MiB written, the seconds.
    """
    run_mib = ROTATING_RUN * ROTATING_ENTRY_BYTES / _MIB
    payloads = [os.urandom(ROTATING_ENTRY_BYTES)] * ROTATING_RUN
    turns = max(1, round(mib / (run_mib * ledgers)))
    highest = 0.0
    began = time.perf_counter()
    with bookie_load.connect(port) as peer:
        adder = bookie_load.Adder(peer, _WINDOW)
        for turn in range(turns):
            for ledger_id in range(ledgers):
                adder.send(bookie_load.encode_block(ledger_id, turn * ROTATING_RUN, payloads), ROTATING_RUN)
                if ledger_id % 256 == 0:
                    highest = max(highest, resident_mib())
        adder.finish()
    return max(highest, resident_mib()), turns * ledgers * run_mib, time.perf_counter() - began


def connections(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """As many idle connections as the limit allows; what they cost, what comes above, and adds of one more beside them.

    The operating system's limit of open files is this process's, too: half of it where that is less.
    """
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    count = min(sizes.connections, files_max // 2)
    for _ in range(sizes.rounds):
        with servers.bookie(maxConnections=count) as bookie, contextlib.ExitStack() as opened:
            peer = opened.enter_context(bookie_load.connect(bookie.port))
            bookie_load.one_by_one(peer, 1, 0, _ADDS_BESIDE, 1024, lambda: None)
            before = bookie.resident_mib()
            for _ in range(count - 1):
                opened.enter_context(bookie_load.connect(bookie.port))
            # Connections are accepted in order: once the last one is refused, those before it are served.
            refused = sum(_is_closed(opened.enter_context(bookie_load.connect(bookie.port))) for _ in range(3))
            idle_kib = 1024 * (bookie.resident_mib() - before) / count
            adds_s = bookie_load.one_by_one(peer, 1, _ADDS_BESIDE, _ADDS_BESIDE, 1024, lambda: None)
        if refused < 3:
            raise ValueError(f"{3 - refused} of 3 connections above the limit of {count} were not refused")
        yield {
            "connections": count,
            "connection_idle_kib": idle_kib,
            "connections_add_p50_ms": limits.percentile_ms(adds_s, 0.5),
        }


def _is_closed(peer: socket.socket) -> bool:
    """Wait until the bookie says something; return whether it closed the connection. It does at once, or never."""
    peer.settimeout(10)
    try:
        return not peer.recv(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def replay(servers: Servers, sizes: Sizes) -> Iterator[dict[str, float]]:
    """A start after a kill, everything in the journal only; less the same bookie's start with nothing to replay."""
    # A half of the write cache takes all, so that no checkpoint comes before the kill.
    settings = {"skipListSizeLimit": 4 * sizes.replayed_mib * _MIB, "flushInterval": 86_400_000}
    turns = max(1, sizes.replayed_mib // 4 * 1024 // bookie_load.BLOCK_ENTRIES)
    for _ in range(sizes.rounds):
        with servers.bookie(**settings) as bookie:
            with bookie_load.connect(bookie.port) as peer:
                bookie_load.add_all(peer, bookie_load.blocks_in_turn([1, 2, 3, 4], 1024, turns), _WINDOW)
            journal_mib = bookie.journal_bytes_and_groups()[0] / _MIB
            bookie.kill()
            bookie.forget_settings(*settings)
            seconds, processor_s = bookie.start(), bookie.processor_s()
            bookie.stop()
            seconds -= bookie.start()
            processor_s -= bookie.processor_s()
            yield {
                "replay_mib_per_s": journal_mib / max(seconds, _SHORTEST_S),
                "replay_mib_per_processor_s": journal_mib / max(processor_s, _SHORTEST_S),
            }


SECTIONS = {"start": start, "many-ledgers": many_ledgers, "connections": connections, "replay": replay}
