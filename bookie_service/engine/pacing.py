"""Limits the rate of background work, so that requests have priority. Pure."""

from __future__ import annotations


def pause_s(done: int, per_second: int, elapsed_s: float) -> float:
    """Return how long to wait after `done` units in `elapsed_s`, so that the rate holds; a rate of 0 means no limit."""
    return max(0.0, done / per_second - elapsed_s) if per_second > 0 else 0.0
