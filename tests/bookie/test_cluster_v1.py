"""`/api/v1` about the cluster: statuses and odd texts of Apache's bookies (operator reference, 1.2), in one process."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.ledger import Cluster
from bkspark.metadata.election import AuditorElection
from bkspark.metadata.memory import MemoryStore
from bkspark.security.principal import Principal
from bkspark.security.roles import Role
from bookie_service.admin.http.cluster_v1 import PAGE_LEDGERS, ClusterApi
from bookie_service.admin.http.messages import HttpError, HttpRequest
from bookie_service.admin.http.routing import Routes
from bookie_service.operation.long_operations import LongOperations
from bookie_service.replication.cluster_commands import ClusterCommands
from bookie_service.replication.options import AutoRecoveryOptions
from tests.bookie.operator_parts import audited
from tests.bookie.registered_bookies import run_with
from tests.ledger.in_process import URI

BOOKIE = "127.0.0.1:1"
RECOVERY = "/api/v1/autorecovery/"


class Api:
    """The paths in a process without a bookie, in a cluster of one bookie that is registered and does not exist."""

    def __init__(self) -> None:
        self.cluster = Cluster(URI, tree=MemoryStore().session())
        self.commands = ClusterCommands(URI, "here", AutoRecoveryOptions(), self.cluster)
        self.operations = LongOperations()
        self.routes = Routes()
        ClusterApi(self.commands, self.operations).add_to(self.routes)

    async def ask(self, method: str, target: str, body: object = None, role: Role = Role.OPERATE) -> tuple[int, str]:
        """Return the status and the text of a response. `target`: a path, and perhaps one parameter."""
        path, _, parameter = target.partition("?")
        name, _, value = parameter.partition("=")
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        query = {name: value} if name else {}
        request = HttpRequest(method, path, query, data, "amy", Principal("amy", "token"), role)
        try:
            response = await self.routes.answer(request)
        except HttpError as error:
            return error.status, error.text
        pieces = [] if response.pieces is None else [piece async for piece in response.pieces]
        return response.status, (response.body + b"".join(pieces)).decode()


def run(test: Callable[[Api], Awaitable[None]]) -> None:
    run_with(Api(), [BOOKIE], test)


@pytest.mark.parametrize(
    ("method", "name", "body", "status", "text"),
    [
        ("PUT", "status", {"enabled": True}, 400, "Param 'enabled' not found"),
        ("PUT", "status?enabled=yes", None, 400, "Param 'enabled' not found"),
        ("POST", "status?enabled=true", None, 404, "answers GET, PUT"),
        ("PUT", "bookie", None, 404, "No request body."),
        ("PUT", "bookie", b"{", 404, "the body is not JSON"),
        ("PUT", "bookie", [BOOKIE], 404, "must be a JSON object"),
        ("PUT", "bookie", {"bookie_src": BOOKIE}, 404, '"bookie_src": ["BOOKIE_ID"]'),
        ("PUT", "bookie", {"bookie_src": []}, 404, '"bookie_src": ["BOOKIE_ID"]'),
        ("PUT", "bookie", {"bookie_src": [5]}, 404, '"bookie_src": ["BOOKIE_ID"]'),
        ("PUT", "bookie", {"bookie_src": ["../cookies"]}, 404, "../cookies"),
        ("GET", "bookie", None, 404, "answers PUT"),
        ("PUT", "decommission", None, 404, "No request body."),
        ("PUT", "decommission", {"bookie_src": [BOOKIE]}, 404, '"bookie_src": "BOOKIE_ID"'),
        ("PUT", "decommission", {"bookie_src": "a/b"}, 404, "a/b"),
        ("GET", "list_under_replicated_ledger", None, 404, "No under replicated ledgers found"),
        ("GET", "who_is_auditor", None, 404, "No auditor elected"),
        ("GET", "trigger_audit", None, 404, "answers PUT"),
        ("GET", "lost_bookie_recovery_delay", None, 404, "not set"),
        ("PUT", "lost_bookie_recovery_delay", None, 404, "No request body."),
        ("PUT", "lost_bookie_recovery_delay", {}, 404, '"delay_seconds"'),
        ("PUT", "lost_bookie_recovery_delay", {"delay_seconds": "17"}, 404, '"delay_seconds"'),
        ("PUT", "lost_bookie_recovery_delay", {"delay_seconds": True}, 404, '"delay_seconds"'),
        ("PUT", "lost_bookie_recovery_delay", {"delay_seconds": -1}, 404, '"delay_seconds"'),
        ("PUT", "lost_bookie_recovery_delay", {"delay_seconds": 1 << 31}, 404, '"delay_seconds"'),
    ],
)
def test_requests_that_change_nothing_have_apaches_statuses(
    method: str, name: str, body: object, status: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bookie_service.audit")

    async def test(api: Api) -> None:
        found = await api.ask(method, f"{RECOVERY}{name}", body)
        assert (found[0], text in found[1]) == (status, True), found
        assert (await api.ask("GET", f"{RECOVERY}status"))[1].split() == ["{", '"enabled"', ":", "true", "}"]
        assert (await api.ask("GET", f"{RECOVERY}lost_bookie_recovery_delay"))[0] == 404
        assert api.operations.all() == ()
        assert audited(caplog) == []

    run(test)


def test_audit_is_requested_only_from_an_auditor_that_there_is(caplog: pytest.LogCaptureFixture) -> None:
    """Writing the delay again is the request. Without a delay it would override that of the auditors' configuration."""
    caplog.set_level("INFO", "bookie_service.audit")

    async def test(api: Api) -> None:
        trigger, delay = f"{RECOVERY}trigger_audit", f"{RECOVERY}lost_bookie_recovery_delay"
        assert await api.ask("PUT", trigger) == (404, "No auditor elected")
        assert (await api.ask("GET", delay))[0] == 404, "it is not set"
        assert await api.ask("PUT", delay, {"delay_seconds": 17}) == (200, "Success set lostBookieRecoveryDelay to 17")
        assert await api.ask("GET", delay) == (200, "lostBookieRecoveryDelay value: 17")
        assert await api.ask("PUT", trigger) == (404, "No auditor elected")
        await AuditorElection(await api.cluster.tree(), api.cluster.uri, "here").stand()
        assert await api.ask("PUT", trigger) == (200, "Success trigger audit.")
        assert (await api.ask("PUT", f"{RECOVERY}status?enabled=FALSE"))[0] == 200
        assert await api.ask("PUT", trigger) == (404, "Autorecovery is disabled")
        assert audited(caplog) == [
            "audit: amy: set lostBookieRecoveryDelay=17",
            "audit: amy: trigger an audit",
            "audit: amy: disable autorecovery",
        ]

    run(test)


@pytest.mark.parametrize(("name", "source"), [("bookie", [BOOKIE, "127.0.0.1:2"]), ("decommission", BOOKIE)])
@pytest.mark.parametrize("flag", [True, "true", "TRUE"])
def test_deleting_a_cookie_needs_the_role_for_what_cannot_be_changed_back(
    name: str, source: object, flag: object
) -> None:
    """docs/security.md: to delete ledgers and give up bookies needs the role destroy."""

    async def test(api: Api) -> None:
        body = {"bookie_src": source, "delete_cookie": flag}
        status, text = await api.ask("PUT", RECOVERY + name, body)
        assert (status, "needs the role destroy" in text) == (403, True), text
        assert api.operations.all() == ()
        assert (await api.ask("PUT", RECOVERY + name, body, Role.DESTROY))[0] == 200
        (begun,) = api.operations.all()
        assert (begun.subject, begun.forgets) == (BOOKIE, True), "only the first one is done"

    run(test)


def test_first_page_of_ledgers_has_one_less_than_the_others() -> None:
    """Operator reference: page 1 gives ids no. 1 to 99, page 2 no. 100 to 199; all without a page."""

    async def test(api: Api) -> None:
        ledgers = (await api.cluster.context()).ledgers
        metadata = LedgerMetadata(1, 1, 1, (Fragment(0, (BOOKIE,)),), password=b"s3cret")
        ids = [(await ledgers.create(metadata))[0] for _ in range(2 * PAGE_LEDGERS + 10)]
        path = "/api/v1/ledger/list"
        assert list(map(int, json.loads((await api.ask("GET", path))[1]))) == ids

        async def page(number: int) -> list[int]:
            query = {"print_metadata": "true", "page": str(number), "decode_meta": "true"}
            response = await api.routes.answer(HttpRequest("GET", path, query, role=Role.READ))
            found = json.loads(response.body)
            assert all(each["password"] == "" for each in found.values())
            return list(map(int, found))

        pages = [await page(number) for number in (1, 2, 3, 4)]
        assert [len(each) for each in pages] == [PAGE_LEDGERS - 1, PAGE_LEDGERS, 11, 0]
        assert [ledger for found in pages for ledger in found] == ids

    run(test)
