"""Requests that are offered to a twin once, and how many of them it takes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from bkspark.wire import v2
from bkspark.wire.framing import scan_frames
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.metrics.requests import RequestTimes
from bookie_service.network.add_decoders import v2_add_batch
from tests.bookie.changing import KEY, Client, entry
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.twins import AtHand, AtOnce, BookieTwin, Setup, add_frame


def new_twin(options: BookieOptions | None = None, times: RequestTimes | None = None, **setup: Any) -> BookieTwin:
    """Return a bookie without threads; `options`, if given, are those of the part that takes requests."""
    made = Setup(**setup)
    twin = BookieTwin(made.new_disk(), made, History())
    if options is not None:
        threads = [journal.thread for journal in twin.journals]
        twin.bookie = Bookie(
            twin.store,
            threads,
            twin.checkpoints,  # type: ignore[arg-type]
            twin.disks,
            AtHand(),
            options,
            AtOnce(),
            times,
        )
        for part in (*twin.journals, twin.checkpoints):
            part.bookie = twin.bookie
        twin.bookie.look_at_disks()
    return twin


def after_crash(twin: BookieTwin) -> BookieTwin:
    """Return the bookie that starts after the machine lost everything that was not synced."""
    return BookieTwin(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash())


def run_of(ledger_id: int, entry_ids: range | list[int], flags: int = 0) -> bytes:
    return b"".join(add_frame(KEY, entry(ledger_id, entry_id), flags) for entry_id in entry_ids)


def offer(twin: BookieTwin, client: Client, frames: bytes) -> bool:
    """Offer requests once; return whether all were taken."""
    octets, runs = twin.received(client, frames)
    return runs.serve(octets)


def batch_of(octets: np.ndarray) -> Any:
    """Return the adds of a receive buffer as a run."""
    table = scan_frames(octets.data, len(octets))
    return v2_add_batch(v2.decode_requests(octets.data, table), 0, len(table.starts))


def settle_journals(twin: BookieTwin) -> None:
    """Make everything durable that was taken, without a flush."""
    for journal in twin.journals:
        while not journal.is_idle:
            journal.step()
