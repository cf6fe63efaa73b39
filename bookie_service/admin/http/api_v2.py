"""`/api/v2`: JSON throughout, lists in pages, ids for long work, and an OpenAPI document at `/api/v2/openapi.json`.

Every response is JSON; an error is `{"error": {"status", "message"}}`. Lists of ledgers and entries come in pages:
`after` is the last id of the previous page; `next` is the id to pass as `after` for the next page, or null. Ledger ids
are 64-bit numbers. Long work is answered 202 with an operation, whose state is at `/api/v2/operations/{operation_id}`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    MetadataError,
    MetadataFormat,
    NoSuchBookie,
    NoSuchLedger,
    TooManyRequests,
)
from bkspark.ids import LEDGER_ID_MAX, NO_ENTRY
from bkspark.metadata.repair_reports import NO_LIMIT
from bkspark.metadata.underreplication import DELAY_S_MAX
from bkspark.security.roles import Role
from bkspark.version import VERSION
from bookie_service.admin.http.cluster_v1 import begin_moving, metadata_bean, usable_bookie
from bookie_service.admin.http.messages import JSON, Call, HttpError, HttpRequest, HttpResponse, ledger_id_of
from bookie_service.admin.http.openapi import (
    FLAG,
    NUMBER,
    REASON,
    TEXT,
    TEXTS,
    WHOLE,
    Endpoint,
    Schema,
    array,
    document,
    members,
    or_null,
    problem,
)
from bookie_service.admin.http.plans_v2 import PlanPaths
from bookie_service.admin.http.routing import Routes
from bookie_service.operation.audit import audit, remembered
from bookie_service.operation.bookie_operator import BookieOperator, NotServing, Refused, as_json
from bookie_service.operation.long_operations import LongOperation, LongOperations

if TYPE_CHECKING:
    from bookie_service.replication.cluster_commands import ClusterCommands

PREFIX = "/api/v2"
PAGE_MAX = 1000
PAGE_BYTES_MAX = 16 * 1024 * 1024
"""At most this many bytes of entries are in one page, without its last entry. A page that is cut has a next one."""
_RATE_MAX = 10**15 - 1

_PAGE: Mapping[str, Schema] = {
    "after": {**WHOLE, "minimum": NO_ENTRY, "default": NO_ENTRY},
    "limit": {**WHOLE, "minimum": 1, "maximum": PAGE_MAX, "default": 100},
}
_BACKWARDS: Mapping[str, Schema] = {"before": {**WHOLE, "default": LEDGER_ID_MAX}, "limit": _PAGE["limit"]}
_NEXT = or_null(WHOLE)
_OBJECT: Schema = {"type": "object"}
_STATE: Schema = members(
    {
        "id": TEXT,
        "version": TEXT,
        "pid": WHOLE,
        "started_ms": WHOLE,
        "phase": {**TEXT, "enum": ["starting", "serving", "stopping"]},
        "registered": FLAG,
        "read_only": FLAG,
        "reason": TEXT,
        "set_by_operator": FLAG,
        "plan": TEXT,
        "takes_recovery_adds": FLAG,
        "connections": WHOLE,
        "limbo_ledgers": WHOLE,
        "index_problems": array(TEXT),
        "free_bytes": WHOLE,
        "total_bytes": WHOLE,
        "directories": array(members({"directory": TEXT, "kind": TEXT, "used_percent": NUMBER})),
        "compaction_suspended": array(TEXT),
        "collection_suspended": FLAG,
        "log_level": TEXT,
    }
)
_OPERATION: Schema = members(
    {
        "id": TEXT,
        "kind": TEXT,
        "subject": TEXT,
        "who": TEXT,
        "forgets": FLAG,
        "state": {**TEXT, "enum": ["waiting", "running", "done", "failed"]},
        "error": TEXT,
        "began_ms": WHOLE,
        "ended_ms": WHOLE,
        "result": _OBJECT,
        "progress": array(TEXT),
    }
)
_RECORD: Schema = members({"number": WHOLE, "at_ms": WHOLE, "who": TEXT, "change": TEXT})
_SUSPENDED: Schema = members({"minor": FLAG, "major": FLAG, "collection": FLAG})
_CHANGED: Schema = members(
    {
        "changed": {"type": "object", "additionalProperties": members({"old": TEXT, "new": TEXT})},
        "notes": array(TEXT),
    }
)


class ApiV2:
    """All paths of `/api/v2`, in a process with a bookie or without one."""

    def __init__(
        self, cluster: ClusterCommands, operations: LongOperations, operator: BookieOperator | None = None
    ) -> None:
        """`operator`: that of the bookie in this process; None: there is no bookie."""
        self._cluster = cluster
        self._operations = operations
        self._operator = operator
        self.endpoints: list[Endpoint] = []
        """The endpoints that `add_to` has added."""

    def add_to(self, routes: Routes) -> None:
        """Add all paths."""
        for endpoint, call in self._bookie_paths() if self._operator is not None else ():
            self._add(routes, endpoint, call)
        plans = PlanPaths(self._cluster, self._operations)
        paths = (*self._bookies_paths(), *self._ledger_paths(), *self._repair_paths(), *self._operation_paths())
        for endpoint, call in (*paths, *plans.paths(PREFIX, _OPERATION)):
            self._add(routes, endpoint, call)
        description = document(self.endpoints, VERSION)

        async def describe(request: HttpRequest) -> HttpResponse:
            return HttpResponse(body=json.dumps(description).encode(), content_type=JSON)

        routes.add("GET", f"{PREFIX}/openapi.json", describe)

    def _add(self, routes: Routes, endpoint: Endpoint, call: Call) -> None:
        self.endpoints.append(endpoint)

        async def answer(request: HttpRequest) -> HttpResponse:
            _check(endpoint, request)
            try:
                found = await call(request)
            except (NotServing, TooManyRequests) as error:
                raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
            except (NoSuchLedger, NoSuchBookie) as error:
                raise HttpError(HTTPStatus.NOT_FOUND, str(error)) from error
            except (Refused, ConfigurationError) as error:
                raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from error
            except (BookKeeperError, OSError) as error:
                # The metadata store may answer the same request later.
                is_away = isinstance(error, MetadataError) and error.is_outage
                status = HTTPStatus.SERVICE_UNAVAILABLE if is_away else HTTPStatus.INTERNAL_SERVER_ERROR
                raise HttpError(status, str(error)) from error
            return HttpResponse(endpoint.status, json.dumps(found).encode(), JSON)

        routes.add(endpoint.method, endpoint.path, answer, role=endpoint.role)

    # ---- the bookie of this process ----

    def _bookie_paths(self) -> Sequence[tuple[Endpoint, Call]]:
        at = f"{PREFIX}/bookie"
        read_only = members({"read_only": FLAG}, {"reason": REASON})
        return (
            (Endpoint("GET", at, "The state of the bookie", _STATE), self._state),
            (
                Endpoint(
                    "PUT", f"{at}/read-only", "Make it read-only, or writable", _STATE, {}, read_only, Role.OPERATE
                ),
                self._set_read_only,
            ),
            *self._collection_paths(f"{at}/collection"),
            (Endpoint("GET", f"{at}/keys", "The configuration, without secrets", TEXTS), self._keys),
            (
                Endpoint("PATCH", f"{at}/keys", "Change live keys, all or none", _CHANGED, {}, TEXTS, Role.OPERATE),
                self._set_keys,
            ),
            (Endpoint("POST", f"{at}/restart", "Restart it in place", _OBJECT, {}, None, Role.OPERATE), self._restart),
            (
                Endpoint(
                    "GET",
                    f"{at}/limbo",
                    "Ledgers that may have lost entries here",
                    members({"ledgers": array(WHOLE), "next": _NEXT}),
                    _PAGE,
                ),
                self._limbo,
            ),
        )

    def _collection_paths(self, at: str) -> Sequence[tuple[Endpoint, Call]]:
        major = members({}, {"major": FLAG})
        suspend = "Suspend or resume compaction and collection"
        return (
            (Endpoint("GET", at, "What garbage collection does and did", _OBJECT), self._collection),
            (
                Endpoint("POST", at, "Collect garbage now", _OPERATION, {}, major, Role.OPERATE, HTTPStatus.ACCEPTED),
                self._collect,
            ),
            (Endpoint("PUT", f"{at}/suspended", suspend, _OBJECT, {}, _SUSPENDED, Role.OPERATE), self._suspend),
        )

    @property
    def _bookie(self) -> BookieOperator:
        assert self._operator is not None, "these paths exist where there is a bookie"
        return self._operator

    async def _state(self, request: HttpRequest) -> object:
        return as_json(self._bookie.state())

    async def _set_read_only(self, request: HttpRequest) -> object:
        body = request.members()
        await self._bookie.set_read_only(body["read_only"], request.who, body.get("reason", ""))
        return as_json(self._bookie.state())

    async def _collection(self, request: HttpRequest) -> object:
        return as_json(self._bookie.collection())

    async def _collect(self, request: HttpRequest) -> object:
        bookie, is_major = self._bookie, bool(request.members().get("major", True))
        if bookie.collection().is_suspended:
            raise Refused("garbage collection is suspended; resume it first")

        async def collect(operation: LongOperation) -> dict[str, object]:
            return as_json(await bookie.collect(request.who, major=is_major))

        operation = self._operations.begin("collect", bookie.bookie_id, request.who, "collection", collect)
        return operation.as_json()

    async def _suspend(self, request: HttpRequest) -> object:
        wanted: Mapping[str, bool] = request.members()
        for change, value in ((self._bookie.suspend, True), (self._bookie.resume, False)):
            change(request.who, **{name: is_set is value for name, is_set in wanted.items()})
        return as_json(self._bookie.collection())

    async def _keys(self, request: HttpRequest) -> object:
        return self._bookie.keys.shown()

    async def _set_keys(self, request: HttpRequest) -> object:
        changed = self._bookie.keys.set(request.members(), request.who)
        return {
            "changed": {key: {"old": old, "new": new} for key, (old, new) in changed.items()},
            "notes": self._bookie.keys.notes(changed),
        }

    async def _restart(self, request: HttpRequest) -> object:
        self._bookie.restart(request.who)
        return {}

    async def _limbo(self, request: HttpRequest) -> object:
        after, limit = _page(request)
        return _paged("ledgers", self._bookie.limbo(after, limit + 1), limit)

    # ---- the cluster ----

    def _bookies_paths(self) -> Sequence[tuple[Endpoint, Call]]:
        bookies = members(
            {
                "bookies": array(
                    members({"id": TEXT, "state": TEXT, "free_bytes": or_null(WHOLE), "total_bytes": or_null(WHOLE)})
                )
            }
        )
        accepted = HTTPStatus.ACCEPTED
        move, forgets = f"{PREFIX}/cluster/bookies/{{bookie_id}}/recover", members({}, {"forget": FLAG})
        return (
            (Endpoint("GET", f"{PREFIX}/cluster/bookies", "All bookies, with their space", bookies), self._bookies),
            (
                Endpoint(
                    "POST",
                    move,
                    "Copy all that a stopped bookie held to others; to forget it needs the role destroy",
                    _OPERATION,
                    {},
                    forgets,
                    Role.OPERATE,
                    accepted,
                ),
                self._recover,
            ),
        )

    def _ledger_paths(self) -> Sequence[tuple[Endpoint, Call]]:
        ledger = f"{PREFIX}/ledgers/{{ledger_id}}"
        entries = members({"entries": array(members({"entry": WHOLE, "value": TEXT})), "next": _NEXT})
        return (
            (
                Endpoint(
                    "GET",
                    f"{PREFIX}/ledgers",
                    "Ids of ledgers",
                    members({"ledgers": array(WHOLE), "next": _NEXT}),
                    _PAGE,
                ),
                self._ledgers,
            ),
            (Endpoint("GET", ledger, "A ledger's metadata, without its password", _OBJECT), self._ledger),
            (
                Endpoint("DELETE", ledger, "Delete a ledger", members({"ledger": WHOLE}), {}, None, Role.DESTROY),
                self._delete,
            ),
            (
                Endpoint("GET", f"{ledger}/entries", "Confirmed entries, as base64", entries, _PAGE),
                self._entries,
            ),
        )

    def _repair_paths(self) -> Sequence[tuple[Endpoint, Call]]:
        listed = members({"ledger": WHOLE, "missing": array(TEXT), "since_ms": or_null(WHOLE)})
        rate: Schema = or_null({**WHOLE, "minimum": NO_LIMIT, "maximum": _RATE_MAX})
        repairs = members(
            {"enabled": FLAG, "auditor": or_null(TEXT), "lost_bookie_delay_s": or_null(WHOLE), "bytes_per_s": rate},
            {"damaged": array(TEXT)},
        )
        delay: Schema = {**WHOLE, "minimum": 0, "maximum": DELAY_S_MAX}
        change = members({}, {"enabled": FLAG, "lost_bookie_delay_s": delay, "bytes_per_s": rate})
        working = members({"workers": array(_OBJECT)})
        return (
            (
                Endpoint(
                    "GET",
                    f"{PREFIX}/underreplicated",
                    "Ledgers that are known to lack copies",
                    members({"ledgers": array(listed), "next": _NEXT}),
                    {**_PAGE, "missing": TEXT},
                ),
                self._underreplicated,
            ),
            (Endpoint("GET", f"{PREFIX}/autorecovery", "Autorecovery of the cluster", repairs), self._repairs),
            (
                Endpoint(
                    "PATCH", f"{PREFIX}/autorecovery", "Change it, for all processes", repairs, {}, change, Role.OPERATE
                ),
                self._set_repairs,
            ),
            (
                Endpoint("GET", f"{PREFIX}/repairs", "What the processes that repair do", working),
                self._repair_reports,
            ),
        )

    def _operation_paths(self) -> Sequence[tuple[Endpoint, Call]]:
        return (
            (
                Endpoint("GET", f"{PREFIX}/operations", "Long work", members({"operations": array(_OPERATION)})),
                self._all_operations,
            ),
            (
                Endpoint("GET", f"{PREFIX}/operations/{{operation_id}}", "The state of long work", _OPERATION),
                self._one_operation,
            ),
            (
                Endpoint(
                    "GET",
                    f"{PREFIX}/audit",
                    "The last changes that operators made by this process, the latest first",
                    members({"records": array(_RECORD), "next": _NEXT}),
                    _BACKWARDS,
                ),
                self._audit,
            ),
        )

    async def _bookies(self, request: HttpRequest) -> object:
        states, spaces = await self._cluster.states(), await self._cluster.spaces()
        found = []
        for bookie, state in states.items():
            free, total = spaces.get(bookie) or (None, None)
            found.append({"id": bookie, "state": state, "free_bytes": free, "total_bytes": total})
        return {"bookies": found}

    async def _recover(self, request: HttpRequest) -> object:
        forgets = bool(request.members().get("forget", False))
        if forgets:
            request.need(Role.DESTROY)
        kind = "decommission" if forgets else "recover"
        bookie = request.query["bookie_id"]
        await self._cluster.check_movable(bookie)
        return begin_moving(self._operations, self._cluster, kind, bookie, request.who, forgets=forgets).as_json()

    async def _ledgers(self, request: HttpRequest) -> object:
        after, limit = _page(request)
        found: list[int] = []
        async for ids in self._cluster.ledger_ids(after):
            found += ids[: limit + 1 - len(found)]
            if len(found) > limit:
                break
        return _paged("ledgers", found, limit)

    async def _ledger(self, request: HttpRequest) -> object:
        ledger_id = _ledger_id(request)
        bean = metadata_bean(ledger_id, await self._cluster.metadata(ledger_id))
        del bean["password"]
        return bean

    async def _delete(self, request: HttpRequest) -> object:
        ledger_id = _ledger_id(request)
        await self._cluster.delete_ledger(ledger_id)
        audit(request.who, f"delete ledger {ledger_id}", ledger_id=ledger_id)
        return {"ledger": ledger_id}

    async def _entries(self, request: HttpRequest) -> object:
        ledger_id = _ledger_id(request)
        after, limit = _page(request)
        page: list[dict[str, object]] = []
        size = 0
        async for piece in self._cluster.entries(ledger_id, after + 1, after + 1 + limit):
            for entry_id, entry in piece.items():
                if len(page) == limit or size >= PAGE_BYTES_MAX:
                    return {"entries": page, "next": page[-1]["entry"]}
                page.append({"entry": entry_id, "value": base64.b64encode(entry).decode()})
                size += len(entry)
        return {"entries": page, "next": None}

    async def _underreplicated(self, request: HttpRequest) -> object:
        after, limit = _page(request)
        listed = [
            {"ledger": each.ledger_id, "missing": list(each.missing), "since_ms": each.ctime_ms}
            for each in await self._cluster.underreplicated(request.query.get("missing", ""))
            if each.ledger_id > after
        ]
        page = listed[:limit]
        return {"ledgers": page, "next": page[-1]["ledger"] if len(listed) > limit else None}

    async def _repairs(self, request: HttpRequest) -> object:
        found: dict[str, object] = {
            "enabled": await self._cluster.is_auto_recovery_enabled(),
            "auditor": await self._cluster.auditor(),
        }
        damaged = []
        for name, read in (
            ("bytes_per_s", self._cluster.repair_bytes_per_s),
            ("lost_bookie_delay_s", self._cluster.recovery_delay_s),
        ):
            try:
                found[name] = await read()
            except MetadataFormat as error:
                # It counts as not set until it is set again.
                found[name] = None
                damaged.append(str(error))
        return {**found, "damaged": damaged} if damaged else found

    async def _set_repairs(self, request: HttpRequest) -> object:
        wanted = request.members()
        if "enabled" in wanted:
            await self._cluster.set_auto_recovery_enabled(wanted["enabled"])
            audit(
                request.who, f"{'enable' if wanted['enabled'] else 'disable'} autorecovery", enabled=wanted["enabled"]
            )
        if "lost_bookie_delay_s" in wanted:
            seconds = wanted["lost_bookie_delay_s"]
            await self._cluster.set_recovery_delay_s(seconds)
            audit(request.who, f"set lostBookieRecoveryDelay={seconds}", seconds=seconds)
        if "bytes_per_s" in wanted:
            rate = wanted["bytes_per_s"]
            await self._cluster.set_repair_bytes_per_s(rate)
            shown = "what is configured" if rate is None else f"{rate} bytes/s" if rate > 0 else "no limit"
            audit(request.who, f"set the rate of all repairs to {shown}", bytes_per_s=rate)
        return await self._repairs(request)

    async def _repair_reports(self, request: HttpRequest) -> object:
        return {"workers": [dataclasses.asdict(each) for each in await self._cluster.repair_reports()]}

    async def _all_operations(self, request: HttpRequest) -> object:
        return {"operations": [each.as_json() for each in self._operations.all()]}

    async def _audit(self, request: HttpRequest) -> object:
        before = int(request.query.get("before", LEDGER_ID_MAX))
        limit = int(request.query.get("limit", _PAGE["limit"]["default"]))
        found = remembered(before, limit + 1)
        page = found[:limit]
        following = page[-1].number if len(found) > limit else None
        return {"records": [dataclasses.asdict(record) for record in page], "next": following}

    async def _one_operation(self, request: HttpRequest) -> object:
        operation = self._operations.find(request.query["operation_id"])
        if operation is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "there is no such operation of this process, or it ended long ago")
        return operation.as_json()


def _paged(name: str, ids: Sequence[int], limit: int) -> dict[str, object]:
    """Return a page of ids. If there are more, one id more than the page has must be given."""
    page = list(ids[:limit])
    return {name: page, "next": page[-1] if len(ids) > limit else None}


def _page(request: HttpRequest) -> tuple[int, int]:
    """Return (the id before the page, the size of the page). `_check` has checked them."""
    defaults = {name: schema["default"] for name, schema in _PAGE.items()}
    after, limit = (int(request.query.get(name, defaults[name])) for name in ("after", "limit"))
    return after, limit


def _ledger_id(request: HttpRequest) -> int:
    text = request.query["ledger_id"]
    ledger_id = ledger_id_of(text)
    if ledger_id is None:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{text[:40]!r} is not the id of a ledger")
    return ledger_id


def _check(endpoint: Endpoint, request: HttpRequest) -> None:
    """Raise HttpError if a parameter or the body is not as the endpoint describes it."""
    if request.method == "POST" and (request.content_type or request.body) and request.content_type != JSON:
        # A form of another site can send only POST of the methods here, and not with this type.
        raise HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be sent as Content-Type: {JSON}")
    if "{bookie_id}" in endpoint.path:
        usable_bookie(request.query["bookie_id"])
    for name in request.query:
        # A misspelt `limit` or `missing` must not return something else.
        if name not in endpoint.query and f"{{{name}}}" not in endpoint.path:
            known = f"it takes {', '.join(endpoint.query)}" if endpoint.query else "it takes none"
            raise HttpError(HTTPStatus.BAD_REQUEST, f"this path has no parameter {name[:40]!r}; {known}")
    for name, schema in endpoint.query.items():
        text = request.query.get(name)
        if text is None:
            continue
        value: Any = text
        if schema["type"] == "integer":
            digits = text.removeprefix("-")
            value = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else None
        if wrong := problem(schema, value, name):
            raise HttpError(HTTPStatus.BAD_REQUEST, wrong)
    if endpoint.body is None:
        return
    try:
        body = request.json()
    except ValueError as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
    if wrong := problem(endpoint.body, {} if body is None else body):
        raise HttpError(HTTPStatus.BAD_REQUEST, wrong)
