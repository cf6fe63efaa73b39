"""Bookies that list the entries which they have."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tests.ledger.hostile import Asked, HostileBookie, lists


def listing(answer: Callable[[Asked], bytes | None], entry_ids: Collection[int] | None) -> HostileBookie:
    """Return a bookie that answers reads so, and lists these entries."""
    return HostileBookie(answer, lists(entry_ids))
