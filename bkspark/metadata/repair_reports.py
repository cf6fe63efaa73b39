"""RepairReports: what the processes that repair are doing, and the rate that an operator set for all of them.

    underreplication/workers/<name>@<session, hex>      ephemeral; JSON object, UTF-8: the fields of `RepairReport`
    underreplication/replicationRateByBytes             decimal text: bytes a second for each process, -1: no limit

Both nodes are extensions of ours; Apache's peers ignore them. A report has at most REPORTED_MAX ledgers of each kind.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bkspark.errors import MetadataFormat, NodeExists, NoSuchNode
from bkspark.metadata import paths
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri

REPORTED_MAX = 200
ERROR_CHARACTERS_MAX = 300
NO_LIMIT = -1
_RATE = re.compile(rb"-1|\d{1,15}")


@dataclass(frozen=True, slots=True)
class Repairing:
    """A ledger that is being repaired: estimated bytes to copy, and bytes copied so far."""

    ledger: int
    bytes: int
    copied_bytes: int
    """Bytes that this repair has copied so far."""
    since_ms: int
    """When the repair began, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class Postponed:
    """A ledger that could not be repaired, or waits for its writer (failures 0): why, and when it is tried again."""

    ledger: int
    error: str
    """Why, in one line."""
    failures: int
    next_try_ms: int
    """Not before this, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What one process that repairs is doing.

    bytes_per_s: its limit, -1: none. listed: ledgers on the list when it looked last. postponed: how many it postponed;
    `postponements` has some of them. causes: the error of one ledger of each kind, with how many there are.
    """

    worker: str
    """The bookie or process that reports."""
    at_ms: int
    """When it reported, in ms since 1970."""
    bytes_per_s: int = NO_LIMIT
    listed: int = 0
    repaired: int = 0
    """Ledgers since it began, as `copied_bytes` and `failures`."""
    copied_bytes: int = 0
    failures: int = 0
    postponed: int = 0
    repairs: tuple[Repairing, ...] = ()
    postponements: tuple[Postponed, ...] = ()
    causes: Mapping[str, int] = field(default_factory=dict)


def encode(report: RepairReport) -> bytes:
    """Return a node's bytes."""
    return json.dumps(dataclasses.asdict(report)).encode()


def decode(data: bytes, name: str) -> RepairReport:
    """Return the report in a node. Raises MetadataFormat."""
    try:
        facts = json.loads(data)
        known = {each.name for each in dataclasses.fields(RepairReport)}
        values: dict[str, Any] = {key: value for key, value in facts.items() if key in known}
        values["repairs"] = tuple(Repairing(**each) for each in values.get("repairs", ()))
        values["postponements"] = tuple(Postponed(**each) for each in values.get("postponements", ()))
        report = RepairReport(**values)
        parts: list[RepairReport | Repairing | Postponed] = [report, *report.repairs, *report.postponements]
        for each in parts:
            _check_types(each)
        return report
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MetadataFormat(f"the report of {name} on its repairs cannot be read: {error}") from None


def _check_types(part: RepairReport | Repairing | Postponed) -> None:
    """Raise ValueError unless the texts and numbers of a decoded part are texts and whole numbers."""
    for name in (each.name for each in dataclasses.fields(part)):
        value = getattr(part, name)
        if name == "causes":
            is_right = isinstance(value, dict) and all(type(count) is int for count in value.values())
        elif name in ("repairs", "postponements"):
            continue
        else:
            is_right = type(value) is (str if name in ("worker", "error") else int)
        if not is_right:
            raise ValueError(f"{name} is {value!r:.40}")


class RepairReports:
    """Reports and the rate, below the URI's root. Any failure of the store raises MetadataError."""

    def __init__(self, tree: Tree, uri: MetadataUri) -> None:
        self._tree = tree
        self._root = f"{uri.root}/{paths.UNDERREPLICATION}"

    async def put(self, report: RepairReport) -> None:
        """Store this session's report."""
        path = f"{self._root}/workers/{report.worker}@{self._tree.session_id & (1 << 64) - 1:x}"
        data = encode(report)
        try:
            await self._tree.set(path, data, -1)
        except NoSuchNode:
            try:
                await self._tree.create(path, data, ephemeral=True, make_parents=True)
            except NodeExists:
                return  # the answer of an earlier call was lost; the next report follows soon

    async def all(self) -> list[RepairReport]:
        """Return all reports that can be read."""
        try:
            names = await self._tree.children(f"{self._root}/workers")
        except NoSuchNode:
            return []
        found = []
        for name in names:
            try:
                data, _ = await self._tree.get(f"{self._root}/workers/{name}")
                found.append(decode(data, name))
            except (NoSuchNode, MetadataFormat):
                continue
        return found

    async def bytes_per_s(self) -> int | None:
        """Return the rate that an operator set for each process, -1: no limit; None: it is not set.

        Raises:
            MetadataFormat: it cannot be read.
        """
        path = f"{self._root}/replicationRateByBytes"
        try:
            data, _ = await self._tree.get(path)
        except NoSuchNode:
            return None
        if _RATE.fullmatch(data) is None:
            raise MetadataFormat(f"{path} holds {data[:40]!r}, not a number of bytes a second or -1")
        return int(data)

    async def set_bytes_per_s(self, value: int | None) -> None:
        """Set that rate; None: each process uses its own configuration again."""
        path = f"{self._root}/replicationRateByBytes"
        if value is None:
            try:
                await self._tree.delete(path)
            except NoSuchNode:
                return
            return
        data = str(value).encode()
        try:
            await self._tree.create(path, data, make_parents=True)
        except NodeExists:
            await self._tree.set(path, data, -1)
