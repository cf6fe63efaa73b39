"""`/api/v2`: what operators plan for bookies: maintenance, quarantine, drains."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from bkspark.errors import TooManyRequests
from bkspark.metadata.bookie_plans import MAINTENANCE, QUARANTINE
from bkspark.security.roles import Role
from bookie_service.admin.http.messages import Call, HttpError, HttpRequest
from bookie_service.admin.http.openapi import FLAG, REASON, TEXT, WHOLE, Endpoint, Schema, array, members
from bookie_service.operation.audit import audit
from bookie_service.operation.long_operations import LongOperation, LongOperations

if TYPE_CHECKING:
    from bookie_service.replication.cluster_commands import ClusterCommands

_SECONDS: Schema = {**WHOLE, "minimum": 0, "maximum": 10**9}
_PLAN: Schema = members(
    {
        "bookie": TEXT,
        "kind": TEXT,
        "who": TEXT,
        "since_ms": WHOLE,
        "until_ms": WHOLE,
        "reason": TEXT,
        "restart": TEXT,
        "bytes_per_s": WHOLE,
        "progress": {"type": "object"},
    }
)
_PLANS = members({"plans": array(_PLAN)}, {"damaged": array(members({"bookie": TEXT, "problem": TEXT}))})
_PREVIEW: Schema = members(
    {
        "ledgers": WHOLE,
        "fragments": WHOLE,
        "bytes": WHOLE,
        "growing": WHOLE,
        "without_spare": WHOLE,
        "targets": array(TEXT),
        "unreadable": WHOLE,
    }
)
_WANTED: Schema = members(
    {"kind": {**TEXT, "enum": [MAINTENANCE, QUARANTINE]}}, {"seconds": _SECONDS, "reason": REASON}
)
_DRAIN: Schema = members({}, {"bytes_per_s": {**WHOLE, "minimum": 0}, "close_open": FLAG, "reason": REASON})
_ENDED: Schema = members({"bookie": TEXT, "ended": FLAG})


class PlanPaths:
    """The paths, for `ApiV2`."""

    def __init__(self, cluster: ClusterCommands, operations: LongOperations) -> None:
        self._cluster = cluster
        self._operations = operations

    def paths(self, prefix: str, operation: Schema) -> Sequence[tuple[Endpoint, Call]]:
        """Return the endpoints. `operation`: the schema of long work."""
        plan = f"{prefix}/cluster/bookies/{{bookie_id}}/plan"
        drain = f"{prefix}/cluster/bookies/{{bookie_id}}/drain"
        summary = "Begin maintenance or quarantine of a bookie; seconds 0: until it is ended"
        return (
            (Endpoint("GET", f"{prefix}/plans", "All plans, and those that cannot be read", _PLANS), self._all),
            (Endpoint("PUT", plan, summary, _PLAN, {}, _WANTED, Role.OPERATE), self._set),
            (
                Endpoint("DELETE", plan, "End the plan for a bookie, also a drain", _ENDED, {}, None, Role.OPERATE),
                self._end,
            ),
            (Endpoint("GET", drain, "What a drain would copy", _PREVIEW), self._preview),
            (
                Endpoint(
                    "POST",
                    drain,
                    "Copy all that a running bookie holds to others, or continue to",
                    operation,
                    {},
                    _DRAIN,
                    Role.OPERATE,
                    HTTPStatus.ACCEPTED,
                ),
                self._drain,
            ),
        )

    async def _all(self, request: HttpRequest) -> object:
        return (await self._cluster.plans()).as_json()

    async def _set(self, request: HttpRequest) -> object:
        bookie, body = request.query["bookie_id"], request.members()
        kind, reason, seconds = body["kind"], body.get("reason", ""), body.get("seconds", 0)
        plan = await self._cluster.set_plan(bookie, kind, request.who, reason, seconds)
        audit(request.who, f"{kind} of bookie {bookie}", bookie=bookie, kind=kind, reason=reason, seconds=seconds)
        return dataclasses.asdict(plan)

    async def _end(self, request: HttpRequest) -> object:
        bookie = request.query["bookie_id"]
        if not await self._cluster.end_plan(bookie):
            raise HttpError(HTTPStatus.NOT_FOUND, f"there is no plan for bookie {bookie}")
        audit(request.who, f"end the plan for bookie {bookie}", bookie=bookie)
        return {"bookie": bookie, "ended": True}

    async def _preview(self, request: HttpRequest) -> object:
        return dataclasses.asdict(await self._cluster.drain_preview(request.query["bookie_id"]))

    async def _drain(self, request: HttpRequest) -> object:
        bookie, body = request.query["bookie_id"], request.members()
        rate = body.get("bytes_per_s", 0)
        if self._draining(bookie) is None:
            # Without an operation, the plan would make the bookie read-only, and nothing would be copied.
            self._operations.check_room()
        begun = await self._cluster.begin_drain(bookie, request.who, body.get("reason", ""), rate)
        if begun.is_new:
            audit(request.who, f"drain bookie {bookie}", bookie=bookie)
        elif rate:
            audit(request.who, f"set the rate of the drain of bookie {bookie} to {rate}", bookie=bookie, rate=rate)
        if (running := self._draining(bookie)) is not None:
            return running.as_json()  # this process drains it already, with the new rate if one is given

        async def run(operation: LongOperation) -> dict[str, object]:
            moved = await self._cluster.drain(
                bookie, operation.progress.append, closes_open=bool(body.get("close_open", False))
            )
            return {"ledgers": moved}

        # A drain may wait for a writer for hours: it must not delay those of other bookies, nor repairs.
        try:
            operation = self._operations.begin("drain", bookie, request.who, f"drain {bookie}", run)
        except TooManyRequests:
            # Others took the room while the plan was stored. A drain that began earlier may run in another process.
            if begun.is_new and await self._cluster.end_own_plan(begun.plan):
                audit(request.who, f"end the plan for bookie {bookie}: the drain cannot begin", bookie=bookie)
            raise
        if not begun.is_new:
            audit(request.who, f"continue to drain bookie {bookie}", bookie=bookie)
        return operation.as_json()

    def _draining(self, bookie: str) -> LongOperation | None:
        """Return the operation of this process that drains a bookie, or will; None: there is none."""
        return self._operations.unfinished_of("drain", bookie)
