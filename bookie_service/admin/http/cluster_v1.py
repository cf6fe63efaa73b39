"""The paths of `/api/v1` about the cluster: bookies, ledgers, autorecovery. Forms and odd texts are Apache's."""

from __future__ import annotations

import base64
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from bkspark.errors import BookKeeperError, MetadataFormat, NoSuchLedger
from bkspark.ids import LEDGER_ID_MAX, check_bookie_id
from bkspark.metadata.encoding import encode
from bkspark.metadata.ledgers import Versioned
from bkspark.metadata.underreplication import DELAY_S_MAX
from bkspark.security.roles import Role
from bookie_service.admin.http.api_v1 import Members, body_of, contained, flag, shown, shown_in_pieces
from bookie_service.admin.http.messages import HttpError, HttpRequest, HttpResponse, ledger_id_of, plain
from bookie_service.admin.http.routing import Routes
from bookie_service.operation.audit import audit
from bookie_service.operation.bookie_operator import BookieOperator
from bookie_service.operation.long_operations import LongOperation, LongOperations

if TYPE_CHECKING:
    from bookie_service.replication.cluster_commands import ClusterCommands

logger = logging.getLogger(__name__)

SANITY_S_MAX = 10.0
PAGE_LEDGERS = 100
PAGE_ENTRIES = 1000
PAGES_MAX = (1 << 31) - 1
_ROLES = {"bookie/sanity": Role.OPERATE, "ledger/delete": Role.DESTROY}
"""Roles of paths that change something. The sanity check writes a ledger, although it is a GET."""


class ClusterApi:
    """The paths about a cluster."""

    def __init__(
        self, cluster: ClusterCommands, operations: LongOperations, operator: BookieOperator | None = None
    ) -> None:
        """`operator`: that of the bookie in this process; None: there is no bookie."""
        self._cluster = cluster
        self._operations = operations
        self._operator = operator

    def add_to(self, routes: Routes) -> None:
        """Add all paths."""
        for methods, path, call in (
            ("GET", "bookie/list_bookies", self.list_bookies),
            ("GET", "bookie/list_bookie_info", self.list_bookie_info),
            ("GET", "bookie/cluster_info", self.cluster_info),
            ("GET", "bookie/sanity", self.sanity),
            ("DELETE", "ledger/delete", self.delete_ledger),
            ("GET", "ledger/list", self.list_ledgers),
            ("GET", "ledger/metadata", self.metadata),
            ("GET", "ledger/read", self.read),
            ("GET", "autorecovery/status", self.status),
            ("PUT", "autorecovery/status", self.set_status),
            ("PUT", "autorecovery/bookie", self.recover),
            ("PUT", "autorecovery/decommission", self.decommission),
            ("GET", "autorecovery/list_under_replicated_ledger", self.underreplicated),
            ("GET", "autorecovery/who_is_auditor", self.auditor),
            ("PUT", "autorecovery/trigger_audit", self.trigger_audit),
            ("GET", "autorecovery/lost_bookie_recovery_delay", self.delay),
            ("PUT", "autorecovery/lost_bookie_recovery_delay", self.set_delay),
        ):
            role = _ROLES.get(path, Role.READ if methods == "GET" else Role.OPERATE)
            routes.add(methods, f"/api/v1/{path}", contained(call), wrong_method=HTTPStatus.NOT_FOUND, role=role)

    # ---- bookies ----

    async def list_bookies(self, request: HttpRequest) -> HttpResponse:
        is_read_only = request.query.get("type") == "ro"
        if request.query.get("print_hostnames") == "true":
            return shown(await self._cluster.hosts(read_only=is_read_only))
        return shown(dict.fromkeys(await self._cluster.bookies(read_only=is_read_only)))

    async def list_bookie_info(self, request: HttpRequest) -> HttpResponse:
        spaces = {bookie: space for bookie, space in (await self._cluster.spaces()).items() if space is not None}
        if not spaces:
            raise HttpError(HTTPStatus.NOT_FOUND, "Failed to retrieve bookie information.")
        found = {bookie: f": {_space(*space)}," for bookie, space in spaces.items()}
        free, total = (sum(column) for column in zip(*spaces.values()))
        return shown({**found, "ClusterInfo: ": _space(free, total)})

    async def cluster_info(self, request: HttpRequest) -> HttpResponse:
        info = await self._cluster.info()
        return shown(
            {
                "auditorElected": bool(info.auditor_id),
                "auditorId": info.auditor_id,
                "clusterUnderReplicated": info.is_underreplicated,
                "ledgerReplicationEnabled": info.is_auto_recovery_enabled,
                "totalBookiesCount": info.bookies,
                "writableBookiesCount": info.writable,
                "readonlyBookiesCount": info.read_only,
                "unavailableBookiesCount": info.bookies - info.writable - info.read_only,
            }
        )

    async def sanity(self, request: HttpRequest) -> HttpResponse:
        if self._operator is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "there is no bookie in this process")
        if self._operator.is_read_only:
            return shown({"passed": False, "readOnly": True})
        try:
            await self._cluster.check_writing(self._operator.bookie_id, SANITY_S_MAX)
        except BookKeeperError as error:
            logger.warning("the bookie's sanity check failed: %s", error)
            return shown({"passed": False, "readOnly": False})
        except TimeoutError as error:
            logger.warning("the bookie's sanity check took more than %g s", SANITY_S_MAX)
            raise HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "the sanity check timed out") from error
        return shown({"passed": True, "readOnly": False})

    # ---- ledgers ----

    async def delete_ledger(self, request: HttpRequest) -> HttpResponse:
        ledger_id = _ledger_id(request)
        with contextlib.suppress(NoSuchLedger):
            await self._cluster.delete_ledger(ledger_id)
            audit(request.who, f"delete ledger {ledger_id}", ledger_id=ledger_id)
        return shown(f"Deleted ledger: {ledger_id}")

    async def list_ledgers(self, request: HttpRequest) -> HttpResponse:
        if request.query.get("print_metadata") != "true":
            return await shown_in_pieces(dict.fromkeys(ids) async for ids in self._cluster.ledger_ids())
        page = _page(request)
        # Apache's first page has one ledger less than the others.
        first, end = (max(0, (page - 1) * PAGE_LEDGERS - 1), page * PAGE_LEDGERS - 1) if page else (0, sys.maxsize)
        decodes = request.query.get("decode_meta") == "true"
        return await shown_in_pieces(self._described(first, end, metadata_bean if decodes else _metadata_text))

    async def _described(
        self, first: int, end: int, describe: Callable[[int, Versioned], object]
    ) -> AsyncIterator[Mapping[int, object]]:
        """Yield descriptions of the ledgers between two places in the list of all ledgers, a page at a time."""
        seen = 0
        async for ids in self._cluster.ledger_ids():
            for begin in range(max(0, first - seen), min(len(ids), end - seen), PAGE_LEDGERS):
                found: dict[int, object] = {}
                for ledger_id in ids[begin : min(begin + PAGE_LEDGERS, end - seen)]:
                    with contextlib.suppress(NoSuchLedger):  # deleted meanwhile
                        try:
                            found[ledger_id] = describe(ledger_id, await self._cluster.metadata(ledger_id))
                        except MetadataFormat as error:
                            # One ledger that cannot be read must not end the list of all others.
                            found[ledger_id] = {"ledgerId": ledger_id, "error": str(error)}
                yield found
            seen += len(ids)
            if seen >= end:
                return

    async def metadata(self, request: HttpRequest) -> HttpResponse:
        ledger_id = _ledger_id(request)
        return shown({ledger_id: metadata_bean(ledger_id, await self._cluster.metadata(ledger_id))})

    async def read(self, request: HttpRequest) -> HttpResponse:
        ledger_id = _ledger_id(request)
        first = _number(request, "start_entry_id", 0, least=0)
        last = _number(request, "end_entry_id", -1, least=-1)
        page = _page(request)
        if page:
            # first and last are ids of entries: a page may have some of them or none.
            begin = (page - 1) * PAGE_ENTRIES
            end = begin + PAGE_ENTRIES - 1
            first, last = max(first, begin), end if last < 0 else min(last, end)
        if 0 <= last < first:
            raise HttpError(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"parameter for start_entry_id: {first} and end_entry_id: {last} conflict with page={page or -1}",
            )

        async def groups() -> AsyncIterator[Members]:
            if page:
                yield {"Entries for page: ": str(page)}
            async for piece in self._cluster.entries(ledger_id, first, last):
                yield {entry_id: entry.decode("ascii", "replace") for entry_id, entry in piece.items()}

        return await shown_in_pieces(groups())

    # ---- autorecovery ----

    async def status(self, request: HttpRequest) -> HttpResponse:
        return shown({"enabled": await self._cluster.is_auto_recovery_enabled()})

    async def set_status(self, request: HttpRequest) -> HttpResponse:
        wanted = request.query.get("enabled", "").lower()
        if wanted not in ("true", "false"):
            raise HttpError(HTTPStatus.BAD_REQUEST, "Param 'enabled' not found in PUT request, or not true or false")
        await self._cluster.set_auto_recovery_enabled(wanted == "true")
        audit(request.who, f"{'enable' if wanted == 'true' else 'disable'} autorecovery", enabled=wanted)
        return shown({"enabled": await self._cluster.is_auto_recovery_enabled()})

    async def recover(self, request: HttpRequest) -> HttpResponse:
        wanted = body_of(request, HTTPStatus.NOT_FOUND)
        sources = wanted.get("bookie_src")
        if not isinstance(sources, list) or not sources or not isinstance(sources[0], str):
            raise HttpError(HTTPStatus.NOT_FOUND, 'Request body must have "bookie_src": ["BOOKIE_ID"]')
        source = usable_bookie(sources[0], HTTPStatus.NOT_FOUND)
        self._begin("recover", source, request, deletes_cookie=flag(wanted.get("delete_cookie")))
        return plain("Success send recovery request command.")

    async def decommission(self, request: HttpRequest) -> HttpResponse:
        wanted = body_of(request, HTTPStatus.NOT_FOUND)
        source = wanted.get("bookie_src")
        if not isinstance(source, str):
            raise HttpError(HTTPStatus.NOT_FOUND, 'Request body must have "bookie_src": "BOOKIE_ID"')
        usable_bookie(source, HTTPStatus.NOT_FOUND)
        self._begin("decommission", source, request, deletes_cookie=flag(wanted.get("delete_cookie")))
        return plain(f"Success send decommission Bookie command {source}")

    def _begin(self, kind: str, bookie: str, request: HttpRequest, *, deletes_cookie: bool) -> None:
        if deletes_cookie:
            request.need(Role.DESTROY)
        begin_moving(self._operations, self._cluster, kind, bookie, request.who, forgets=deletes_cookie)

    async def underreplicated(self, request: HttpRequest) -> HttpResponse:
        query = request.query
        found = await self._cluster.underreplicated(
            query.get("missingreplica", ""), query.get("excludingmissingreplica", "")
        )
        if not found:
            raise HttpError(HTTPStatus.NOT_FOUND, "No under replicated ledgers found")
        if "printmissingreplica" in query:
            return shown({each.ledger_id: list(each.missing) for each in found})
        return shown([each.ledger_id for each in found])

    async def auditor(self, request: HttpRequest) -> HttpResponse:
        auditor = await self._cluster.auditor()
        if auditor is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "No auditor elected")
        return plain(f"Auditor: {auditor}")

    async def trigger_audit(self, request: HttpRequest) -> HttpResponse:
        if not await self._cluster.is_auto_recovery_enabled():
            raise HttpError(HTTPStatus.NOT_FOUND, "Autorecovery is disabled")
        delay_s = await self._cluster.recovery_delay_s()
        if delay_s is None or await self._cluster.auditor() is None:
            # Writing a delay where there is none would override the delay that auditors are configured with.
            raise HttpError(HTTPStatus.NOT_FOUND, "No auditor elected")
        await self._cluster.set_recovery_delay_s(delay_s)
        audit(request.who, "trigger an audit")
        return plain("Success trigger audit.")

    async def delay(self, request: HttpRequest) -> HttpResponse:
        seconds = await self._cluster.recovery_delay_s()
        if seconds is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "lostBookieRecoveryDelay is not set")
        return plain(f"lostBookieRecoveryDelay value: {seconds}")

    async def set_delay(self, request: HttpRequest) -> HttpResponse:
        seconds = body_of(request, HTTPStatus.NOT_FOUND).get("delay_seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= DELAY_S_MAX:
            wanted = f'"delay_seconds", a whole number from 0 to {DELAY_S_MAX}'
            raise HttpError(HTTPStatus.NOT_FOUND, f"Request body must have {wanted}")
        await self._cluster.set_recovery_delay_s(seconds)
        audit(request.who, f"set lostBookieRecoveryDelay={seconds}", seconds=seconds)
        return plain(f"Success set lostBookieRecoveryDelay to {seconds}")


def begin_moving(
    operations: LongOperations, cluster: ClusterCommands, kind: str, bookie: str, who: str, *, forgets: bool
) -> LongOperation:
    """Begin to move everything away from a stopped bookie; return the operation that does it already, if there is one.

    Raises:
        TooManyRequests: too many operations run or wait.
    """
    # A repetition would find nothing to do, and fail because the bookie is forgotten.
    if (begun := operations.unfinished_of(kind, bookie, forgets=forgets)) is not None:
        return begun

    async def move(operation: LongOperation) -> dict[str, object]:
        return {"ledgers": await cluster.move_away(bookie, operation.progress.append, forgets=forgets)}

    operation = operations.begin(kind, bookie, who, "repair", move, forgets=forgets)
    audit(who, f"{kind} {bookie}", operation=operation.id, bookie=bookie, forgets=forgets)
    return operation


def usable_bookie(bookie: str, status: int = HTTPStatus.BAD_REQUEST) -> str:
    """Return the id of a bookie in a request. Raises HttpError with `status` if it cannot be one."""
    try:
        return check_bookie_id(bookie)
    except ValueError as error:
        raise HttpError(status, str(error)) from None


def metadata_bean(ledger_id: int, stored: Versioned) -> dict[str, Any]:
    """Return metadata with the names and the order of Apache's bean; the password is left empty.

    A ledger without a creation time gets that of its node, as with Apache's bookies.
    """
    metadata, ctime_ms = stored.metadata, stored.ctime_ms
    return {
        "ledgerId": ledger_id,
        "metadataFormatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length,
        "lastEntryId": metadata.last_entry,
        "ctime": ctime_ms if metadata.ctime is None else metadata.ctime,
        "digestType": metadata.digest.name,
        "password": "",
        "customMetadata": {name: base64.b64encode(value).decode() for name, value in metadata.custom_metadata.items()},
        "closed": metadata.is_closed,
        "allEnsembles": {
            str(each.first_entry): [{"id": bookie} for bookie in each.bookies] for each in metadata.fragments
        },
        "ctoken": metadata.ctoken,
    }


def _metadata_text(ledger_id: int, stored: Versioned) -> str:
    """Return metadata as they are stored, forced into text as by Apache's bookies; the password is left empty."""
    metadata = stored.metadata
    shown = metadata if metadata.password is None else replace(metadata, password=b"")
    return encode(shown).decode("utf-8", "replace")


def _ledger_id(request: HttpRequest) -> int:
    if "ledger_id" not in request.query:
        raise HttpError(HTTPStatus.NOT_FOUND, "Not ledger found. Should provide ledger_id=<ledger_id>")
    text = request.query["ledger_id"]
    ledger_id = ledger_id_of(text)
    if ledger_id is None:
        raise _not_a_number("ledger_id", text, 0, LEDGER_ID_MAX)
    return ledger_id


def _number(request: HttpRequest, name: str, default: int, *, least: int, most: int = LEDGER_ID_MAX) -> int:
    """Return a number of the query. Raises HttpError for one that is not usable."""
    text = request.query.get(name, str(default))
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and least <= int(text) <= most):
        raise _not_a_number(name, text, least, most)
    return int(text)


def _page(request: HttpRequest) -> int:
    """Return which page is wanted, from 1 on; 0: all. A number below 1 names no page, as with Apache's bookies."""
    return max(0, _number(request, "page", 0, least=-PAGES_MAX, most=PAGES_MAX))


def _not_a_number(name: str, text: str, least: int, most: int) -> HttpError:
    """Return an error with Apache's status."""
    why = f"{name}={text[:40]} must be a whole number from {least} to {most}"
    return HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, why)


def _space(free: int, total: int) -> str:
    return f"{{Free: {readable(free)}, Total: {readable(total)}}}"


def readable(count: int) -> str:
    """Return bytes as Apache's bookies print them, with a decimal unit, rounded down: tools take these texts apart."""
    unit, power = "", 1
    for larger in ("KB", "MB", "GB", "TB"):
        if count < power * 1000:
            break
        unit, power = larger, power * 1000
    if not unit:
        return str(count)
    whole, thousandths = divmod(count * 1000 // power, 1000)
    text = f"{whole}.{thousandths:03d}".rstrip("0").rstrip(".")
    return f"{count}({text}{unit})"
