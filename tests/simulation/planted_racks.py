"""Defects of placement and repair that show in a large cluster; for `full_racks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bkspark.core import placement
from bkspark.core.placement import RACK_DEFAULT, Topology
from bookie_service.replication.copying import ByteRate, FragmentCopier
from bookie_service.replication.lost_bookies import AuditDecision, LostBookies
from tests.planting import Plant, around, changed, replaced


def hosts_ignored() -> Plant:
    return replaced(Topology, "host_of", lambda self, bookie: bookie)


def racks_ignored() -> Plant:
    return replaced(Topology, "rack_of", lambda self, bookie: RACK_DEFAULT)


def first_host_takes_all() -> Plant:
    """Among equally good places the first is taken, not any."""

    class First:
        def sample(self, population: Sequence[str], k: int) -> list[str]:
            return sorted(population)[:k]

    def make(old: Any) -> Any:
        return lambda *arguments: old(*arguments[:-1], First())

    return changed(placement, "best_places", make)


def rate_not_kept() -> Plant:
    async def wait(self: ByteRate, size: int) -> None:
        """Does not wait."""

    return replaced(ByteRate, "wait", wait)


def rate_paid_twice() -> Plant:
    async def wait(old: Any, self: ByteRate, size: int) -> None:
        await old(self, size)
        await old(self, size)

    return around(ByteRate, "wait", wait)


def copied_twice() -> Plant:
    async def copy(old: Any, self: FragmentCopier, *arguments: Any) -> None:
        await old(self, *arguments)
        await old(self, *arguments)

    return around(FragmentCopier, "copy", copy)


def one_bookie_of_a_host() -> Plant:
    """The auditor looks after the first of all bookies that are lost at once."""

    def look(old: Any, self: LostBookies, *arguments: Any) -> AuditDecision:
        found: AuditDecision = old(self, *arguments)
        return AuditDecision(frozenset(sorted(found.audit)[:1]), found.look_after_s)

    return around(LostBookies, "decide", look)
