"""Bounds of a client's options; checked when it is made, so that a wrong option raises before anything depends on
it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bkspark.core.limits import WriterLimits
from bkspark.ledger.arguments import flag, instance, seconds, whole_number
from bkspark.ledger.bookies import PlacementOptions
from bkspark.ledger.writer_options import WriterOptions
from bkspark.net.pool import NetOptions
from bkspark.wire.framing import FRAME_BYTES_MAX

COUNT_MAX = (1 << 31) - 1
BYTES_MAX = 1 << 40
SECONDS_MAX = 86_400.0
"""A day: a longer time is assumed to be a mistake in the unit."""
NANOSECONDS_MAX = int(SECONDS_MAX * 1e9)
FRAME_BYTES_LEAST = 1024

_Bounds = tuple[float, float] | None
"""Least and greatest value; whole numbers if both are. None: true or false."""

BOUNDS: Mapping[type, Mapping[str, _Bounds]] = {
    NetOptions: {
        "connect_timeout_s": (0.001, SECONDS_MAX),
        "read_timeout_s": (0.001, SECONDS_MAX),
        "speculative_read_s": (0.0, SECONDS_MAX),
        "frame_bytes_max": (FRAME_BYTES_LEAST, FRAME_BYTES_MAX),
        "local_reads": None,
    },
    WriterOptions: {
        "pending_entries_max": (1, COUNT_MAX),
        "pending_bytes_max": (1, BYTES_MAX),
        "lag_entries_max": (1, COUNT_MAX),
        "lag_bytes_max": (1, BYTES_MAX),
        "close_timeout_s": (0.001, SECONDS_MAX),
        "force_timeout_s": (0.001, SECONDS_MAX),
        "explicit_lac_interval_s": (0.0, SECONDS_MAX),
    },
    WriterLimits: {
        "add_timeout_ns": (1, NANOSECONDS_MAX),
        "replacement_retry_ns": (1, NANOSECONDS_MAX),
        "refusal_pause_ns_min": (1, NANOSECONDS_MAX),
        "refusal_pause_ns_max": (1, NANOSECONDS_MAX),
        "slow_lag_entries": (1, COUNT_MAX),
        "slow_lag_bytes": (1, BYTES_MAX),
        "slow_lag_ns": (1, NANOSECONDS_MAX),
        "hold_back_ns_max": (1, NANOSECONDS_MAX),
        "probe_pause_ns_min": (1, NANOSECONDS_MAX),
        "probe_pause_ns_max": (1, NANOSECONDS_MAX),
        "trial_ns": (1, NANOSECONDS_MAX),
        "delay_ensemble_change": None,
        "ensemble_change_delay_ns_max": (0, NANOSECONDS_MAX),
    },
}


def check_options(net: Any, writer: Any, limits: Any, placement: Any) -> None:
    """Raise ConfigurationError if one of a client's options has another type, or a number is out of bounds."""
    given = {"net": (net, NetOptions), "writer": (writer, WriterOptions), "limits": (limits, WriterLimits)}
    for name, (options, kind) in given.items():
        instance(name, options, kind)
        for field in dataclasses.fields(options):
            _check(f"{name}.{field.name}", getattr(options, field.name), BOUNDS[kind][field.name])
    # Its values were checked when it was made.
    instance("placement", placement, PlacementOptions)


def _check(name: str, value: object, bounds: _Bounds) -> None:
    if bounds is None:
        flag(name, value)
        return
    least, most = bounds
    if isinstance(least, int) and isinstance(most, int):
        whole_number(name, value, least, most)
    else:
        seconds(name, value, least, most)
