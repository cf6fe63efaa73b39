"""Operators' plans for bookies: maintenance, drain, quarantine. Bookies and auditors follow them.

    underreplication/plans/<bookie id>      JSON object, UTF-8: the fields of `BookiePlan` without `bookie`

The node is an extension of ours. Apache's peers ignore it: they read only the nodes of `underreplication` that they
know. A bookie has at most one plan. It survives restarts of all processes, until it is deleted, or until `until_ms`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bkspark.errors import MetadataError, MetadataFormat, MetadataVersion, NodeExists, NoSuchNode
from bkspark.metadata import paths
from bkspark.metadata.tree import Callback, Tree
from bkspark.metadata.uri import MetadataUri

_logger = logging.getLogger(__name__)

MAINTENANCE, DRAIN, QUARANTINE = KINDS = ("maintenance", "drain", "quarantine")
PLAN_BYTES_MAX = 64 * 1024
TIME_MS_MAX = 253_402_300_799_999
"""The last moment of the year 9999: a later one cannot be shown as a date."""
FOLLOWED_S_MAX = 20.0
"""How long a bookie may take to follow a plan, such as to become read-only."""
_INT64 = range(-(1 << 63), 1 << 63)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BookiePlan:
    """A plan for one bookie.

    kind:
        maintenance   it takes no new entries, and its copies are not replaced when it is stopped
        drain         it takes no new entries, and what it holds is copied to other bookies
        quarantine    no new ledgers choose it; writers that use it already may continue
    since_ms, until_ms: ms since 1970; until_ms 0: until an operator ends it.
    restart: "" or a token: the bookie restarts once for each new token.
    bytes_per_s: of a drain; 0: as the process that drains is configured, below 0: no limit.
    progress: of a drain: what the process that drains reported last.
    """

    bookie: str
    kind: str
    who: str
    """The operator, as `command:USER@HOST`."""
    since_ms: int
    until_ms: int = 0
    reason: str = ""
    """The operator's text, or ""."""
    restart: str = ""
    bytes_per_s: int = 0
    progress: Mapping[str, object] = field(default_factory=dict)

    def is_over(self, now_ms: int) -> bool:
        """Return whether the plan's time is over."""
        return 0 < self.until_ms <= now_ms

    def is_same(self, other: BookiePlan) -> bool:
        """Return whether both were stored by one command. Its progress and its restart may have changed since."""
        return (self.kind, self.who, self.since_ms) == (other.kind, other.who, other.since_ms)

    @property
    def refusal(self) -> str:
        """The error for a command that needs this plan to end first."""
        ends = f"drain {self.bookie} --cancel" if self.kind == DRAIN else f"{self.kind} {self.bookie} --end"
        return f"bookie {self.bookie} has a plan, {self.kind} by {self.who}: end it first (`bkspark cluster {ends}`)"

    @property
    def sets_read_only(self) -> bool:
        return self.kind in (MAINTENANCE, DRAIN)


def encode(plan: BookiePlan) -> bytes:
    """Return a node's bytes."""
    facts = dataclasses.asdict(plan)
    del facts["bookie"]
    return json.dumps(facts).encode()


def _bounded(plan: BookiePlan) -> bytes:
    """Return the plan's node. Raises MetadataError: it is larger than PLAN_BYTES_MAX."""
    data = encode(plan)
    if len(data) > PLAN_BYTES_MAX:
        raise MetadataError.answer(f"the plan for bookie {plan.bookie} has {len(data)} bytes, {PLAN_BYTES_MAX} at most")
    return data


def decode(data: bytes, bookie: str) -> BookiePlan:
    """Return the plan in a node. Fields of later versions are left out. Raises MetadataFormat."""
    try:
        facts = json.loads(data)
        if not isinstance(facts, dict):
            raise ValueError("it is not a JSON object")
        known = {each.name: each for each in dataclasses.fields(BookiePlan)}
        values = {name: value for name, value in facts.items() if name in known and name != "bookie"}
        for name, value in values.items():
            wanted = (dict,) if name == "progress" else (int,) if name.endswith(("_ms", "_per_s")) else (str,)
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r:.40}")
            if isinstance(value, int) and value not in (range(TIME_MS_MAX + 1) if name.endswith("_ms") else _INT64):
                raise ValueError(f"{name} is out of range")
        plan = BookiePlan(bookie, **values)
        if plan.kind not in KINDS:
            raise ValueError(f"it has the unknown kind {plan.kind!r:.40}")
    except (ValueError, TypeError, RecursionError) as error:
        raise MetadataFormat(
            f"the plan for bookie {bookie} cannot be read: {error}; `bkspark cluster plans --end {bookie}` removes it"
        ) from None
    return plan


@dataclass(frozen=True, slots=True)
class DamagedPlan:
    """A plan that cannot be read. problem: why, with the remedy."""

    bookie: str
    """The bookie that it is for."""
    problem: str


@dataclass(frozen=True, slots=True)
class PlansInForce:
    """The plans of a cluster whose time is not over, and those that cannot be read."""

    plans: list[BookiePlan] = field(default_factory=list)
    """Those in force, in no order."""
    damaged: list[DamagedPlan] = field(default_factory=list)
    """A bookie with such a plan follows the last one that it read."""

    def as_json(self) -> dict[str, list[dict[str, object]]]:
        """Return the plans, and `damaged` if there are any, as values for JSON."""
        found = {"plans": [dataclasses.asdict(plan) for plan in self.plans]}
        return {**found, "damaged": [dataclasses.asdict(each) for each in self.damaged]} if self.damaged else found


class BookiePlans:
    """The plans of a cluster, below the URI's root. Any failure of the store raises MetadataError."""

    def __init__(self, tree: Tree, uri: MetadataUri) -> None:
        self._tree = tree
        self._root = f"{uri.root}/{paths.UNDERREPLICATION}/plans"

    def _path(self, bookie: str) -> str:
        return f"{self._root}/{bookie}"

    async def prepare(self) -> None:
        """Create the parent node of all plans, so that it can be watched."""
        try:
            await self._tree.create(self._root, make_parents=True)
        except NodeExists:
            return

    async def find(self, bookie: str) -> BookiePlan | None:
        """Return the plan for a bookie, or None. Raises MetadataFormat: it cannot be read."""
        try:
            data, _ = await self._tree.get(self._path(bookie))
        except NoSuchNode:
            return None
        return decode(data, bookie)

    async def all(self) -> AsyncIterator[BookiePlan]:
        """Yield all plans that can be read; log the others."""
        async for each in self._found():
            if isinstance(each, DamagedPlan):
                _logger.warning("a plan is left out: %s", each.problem)
            else:
                yield each

    async def in_force(self, now_ms: int) -> PlansInForce:
        """Return the plans that are not over, and those that cannot be read."""
        found = PlansInForce()
        async for each in self._found():
            if isinstance(each, DamagedPlan):
                found.damaged.append(each)
            elif not each.is_over(now_ms):
                found.plans.append(each)
        return found

    async def _found(self) -> AsyncIterator[BookiePlan | DamagedPlan]:
        try:
            names = await self._tree.children(self._root)
        except NoSuchNode:
            return
        for bookie in names:
            try:
                plan = await self.find(bookie)
            except MetadataFormat as error:
                yield DamagedPlan(bookie, str(error))
                continue
            if plan is not None:
                yield plan

    async def set(
        self, plan: BookiePlan, may_replace: Callable[[BookiePlan], bool] = lambda there: True
    ) -> BookiePlan | None:
        """Store a plan in place of any other for that bookie that `may_replace(other)` allows.

        Returns:
            The plan that stays, because it must not be replaced; None: the new one is stored.

        Raises:
            MetadataFormat: the other plan cannot be read.
        """
        data, path = _bounded(plan), self._path(plan.bookie)
        while True:
            try:
                await self._tree.create(path, data, make_parents=True)
                return None
            except NodeExists:
                pass
            # Other operators may store, change or end a plan at the same time.
            with contextlib.suppress(NoSuchNode, MetadataVersion):
                stored, stat = await self._tree.get(path)
                there = decode(stored, plan.bookie)
                if not may_replace(there):
                    return there
                await self._tree.set(path, data, stat.version)
                return None

    async def update(self, bookie: str, kind: str, changed: Callable[[BookiePlan], BookiePlan]) -> BookiePlan | None:
        """Replace the plan of a bookie by `changed(plan)`; return what is stored now, None if there is no such plan.

        What others change at the same time is kept: `changed` is then called again, with the plan as it is.

        Raises:
            MetadataFormat: the plan cannot be read.
        """

        async def change(stored: BookiePlan, version: int) -> BookiePlan | None:
            if stored.kind != kind:
                return None
            plan = changed(stored)
            await self._tree.set(self._path(bookie), encode(plan), version)
            return plan

        return await self._changed(bookie, change)

    async def _changed(self, bookie: str, change: Callable[[BookiePlan, int], Awaitable[_T]]) -> _T | None:
        """Return what `change(plan, version)` returns, None if there is no plan. It is called again if others change
        the plan before it does."""
        while True:
            try:
                data, stat = await self._tree.get(self._path(bookie))
                return await change(decode(data, bookie), stat.version)
            except NoSuchNode:
                return None
            except MetadataVersion:
                continue

    async def end(self, bookie: str) -> bool:
        """Delete the plan for a bookie; return whether there was one."""
        try:
            await self._tree.delete(self._path(bookie))
        except NoSuchNode:
            return False
        return True

    async def end_own(self, plan: BookiePlan) -> bool:
        """Delete a plan, as far as it is still the one that was stored; return whether it was.

        Its progress and its restart may have changed. A plan that another operator has stored in its place stays.
        """

        async def delete(stored: BookiePlan, version: int) -> bool:
            if stored.is_same(plan):
                await self._tree.delete(self._path(plan.bookie), version)
                return True
            return False

        return await self._changed(plan.bookie, delete) or False

    async def replace(self, there: BookiePlan, plan: BookiePlan, now_ms: int) -> bool:
        """Store a plan in place of `there`, as far as that is still the one in force; return whether it was."""
        data = _bounded(plan)

        async def replace(stored: BookiePlan, version: int) -> bool:
            if stored.is_same(there) and not stored.is_over(now_ms):
                await self._tree.set(self._path(plan.bookie), data, version)
                return True
            return False

        return await self._changed(plan.bookie, replace) or False

    async def watch(self, bookie: str, callback: Callback) -> Callback:
        """Call `callback()` when the plan for a bookie may have changed; return what ends that."""
        return await self._tree.watch(self._path(bookie), callback)

    async def watch_all(self, callback: Callback) -> Callback:
        """Call `callback()` when plans are created or deleted. Call `prepare` first."""
        return await self._tree.watch_children(self._root, callback)
