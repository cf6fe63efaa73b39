"""Drains that operators begin by `/api/v2`, beside other long work of the same process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bkspark.ledger import Cluster
from bkspark.metadata.bookie_plans import DRAIN, MAINTENANCE, BookiePlan, BookiePlans
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from bkspark.security.roles import Role
from bookie_service.admin.http.api_v2 import ApiV2
from bookie_service.admin.http.cluster_v1 import begin_moving
from bookie_service.admin.http.messages import JSON, HttpError, HttpRequest
from bookie_service.admin.http.routing import Routes
from bookie_service.operation.long_operations import UNFINISHED_MAX, LongOperation, LongOperations
from bookie_service.replication.cluster_commands import ClusterCommands
from bookie_service.replication.options import AutoRecoveryOptions
from tests.bookie.registered_bookies import run_with
from tests.ledger.in_process import URI
from tests.metadata.meanwhile import Meanwhile
from tests.polling import until

BOOKIES = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


class Api:
    """The API of a process in a cluster whose bookies are registered, and do not exist."""

    def __init__(self) -> None:
        self.tree = Meanwhile(MemoryStore())
        self.cluster = Cluster(URI, tree=self.tree)
        self.commands = ClusterCommands(URI, "here", AutoRecoveryOptions(), self.cluster)
        self.operations = LongOperations()
        self.routes = Routes()
        self.api = ApiV2(self.commands, self.operations)
        self.api.add_to(self.routes)

    async def drain(self, bookie: str) -> None:
        path = f"/api/v2/cluster/bookies/{bookie}/drain"
        await self.routes.answer(HttpRequest("POST", path, {}, b"{}", "amy", role=Role.OPERATE, content_type=JSON))

    def running(self) -> list[str]:
        return sorted(each.subject for each in self.operations.all() if each.state == "running")


def run(test: Callable[[Api], Awaitable[Any]]) -> None:
    run_with(Api(), BOOKIES, test)


def test_a_drain_that_waits_delays_no_drain_of_another_bookie() -> None:
    """The second drain waited until the first one had ended, which may wait for a writer for hours. Its bookie was
    read-only meanwhile, and nothing was copied."""

    async def test(api: Api) -> None:
        await api.drain(BOOKIES[0])
        await api.drain(BOOKIES[1])
        await until(lambda: api.running() == [*BOOKIES[:2]], "both drains to run")

    run(test)


async def for_ever(operation: LongOperation) -> dict[str, object]:
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


def test_a_drain_for_which_there_is_no_room_leaves_no_plan() -> None:
    """It was answered 503, and its plan was stored: the bookie became read-only, and no process copied anything."""

    async def test(api: Api) -> None:
        for number in range(UNFINISHED_MAX):
            api.operations.begin("recover", str(number), "amy", "repair", for_ever)
        with pytest.raises(HttpError) as refused:
            await api.drain(BOOKIES[0])
        assert (refused.value.status, "run or wait" in refused.value.text) == (503, True)
        assert (await api.commands.plans()).plans == []
        # A drain that this process carries out already needs no more room, for example to get another rate.
        await asyncio.sleep(0)
        await api.operations.close()
        await until(lambda: not api.operations.unfinished(), "the others to end")
        await api.drain(BOOKIES[0])
        for number in range(UNFINISHED_MAX - 1):
            api.operations.begin("recover", str(number), "amy", "repair", for_ever)
        await api.drain(BOOKIES[0])
        assert [plan.kind for plan in (await api.commands.plans()).plans] == [DRAIN]

    run(test)


async def refused_drain(api: Api) -> HttpError:
    """Drain the first bookie when another drain takes the last room while the plan is stored; return the refusal."""
    for number in range(UNFINISHED_MAX - 1):
        api.operations.begin("recover", str(number), "amy", "repair", for_ever)

    async def drain_another() -> None:
        await api.drain(BOOKIES[1])

    api.tree.before["create"] = drain_another
    with pytest.raises(HttpError) as refused:
        await api.drain(BOOKIES[0])
    return refused.value


def test_a_drain_whose_room_others_take_while_its_plan_is_stored_leaves_no_plan() -> None:
    """It was answered 503, and its plan stayed: the bookie was read-only, and no process copied anything."""

    async def test(api: Api) -> None:
        refused = await refused_drain(api)
        assert (refused.status, "run or wait" in refused.text) == (503, True)
        assert [(plan.bookie, plan.kind) for plan in (await api.commands.plans()).plans] == [(BOOKIES[1], DRAIN)]

    run(test)


def test_a_drain_that_was_begun_earlier_stays_when_there_is_no_room_to_continue_it() -> None:
    """Another process may carry it out."""

    async def test(api: Api) -> None:
        await api.commands.begin_drain(BOOKIES[0], "bob", "", 0)
        refused = await refused_drain(api)
        assert refused.status == 503
        assert sorted(plan.bookie for plan in (await api.commands.plans()).plans) == [*BOOKIES[:2]]

    run(test)


def test_a_recovery_that_is_requested_again_is_the_one_that_runs() -> None:
    """The second one failed when the first one had forgotten the bookie: there was no such bookie any more."""

    async def test(api: Api) -> None:
        registry = (await api.cluster.context()).registry
        await registry.unregister(BOOKIES[0])
        await registry.write_cookie(Cookie(BOOKIES[0], ("/journal",), ("/ledgers",)), None)
        # Another bookie is being recovered, so that this recovery waits.
        api.operations.begin("recover", "another", "amy", "repair", for_ever)
        path = f"/api/v2/cluster/bookies/{BOOKIES[0]}/recover"
        request = HttpRequest("POST", path, {}, b'{"forget": true}', "amy", role=Role.DESTROY, content_type=JSON)
        answers = [json.loads((await api.routes.answer(request)).body) for _ in range(2)]
        assert answers[0]["id"] == answers[1]["id"]
        begin_moving(api.operations, api.commands, "decommission", BOOKIES[0], "bob", forgets=True)
        assert [each.kind for each in api.operations.unfinished()] == ["recover", "decommission"]

    run(test)


def test_a_decommission_that_also_forgets_the_bookie_is_another_one_than_that_which_runs() -> None:
    """Apache's `delete_cookie`: the repeated request was answered with success, and the cookie stayed."""

    async def test(api: Api) -> None:
        api.operations.begin("recover", "another", "amy", "repair", for_ever)

        def begin(*, forgets: bool) -> LongOperation:
            return begin_moving(api.operations, api.commands, "decommission", BOOKIES[0], "bob", forgets=forgets)

        keeping, forgetting = begin(forgets=False), begin(forgets=True)
        assert keeping is not forgetting
        assert [begin(forgets=False), begin(forgets=True)] == [keeping, forgetting]
        assert [each.forgets for each in api.operations.unfinished()] == [False, False, True]

    run(test)


def test_description_requires_a_body_only_where_one_is_needed() -> None:
    async def test(api: Api) -> None:
        for endpoint in api.api.endpoints:
            if endpoint.body is None:
                continue
            described = (await describe(api))["paths"][endpoint.path][endpoint.method.lower()]["requestBody"]
            path = endpoint.path.replace("{bookie_id}", "127.0.0.1:9").replace("{ledger_id}", "1")
            try:
                await api.routes.answer(HttpRequest(endpoint.method, path, {}, role=Role.DESTROY))
                is_missed = False
            except HttpError as error:
                is_missed = "the body lacks" in error.text
            assert is_missed == described["required"], endpoint.path

    run(test)


async def describe(api: Api) -> Any:
    return json.loads((await api.routes.answer(HttpRequest("GET", "/api/v2/openapi.json", {}, role=Role.READ))).body)


def test_plans_are_listed_and_ended_when_the_layout_of_repairs_is_damaged() -> None:
    """Only repairs need it. A bookie in maintenance stayed so, as far as HTTP could tell and do."""

    async def test(api: Api) -> None:
        tree = await api.cluster.tree()
        plans = BookiePlans(tree, MetadataUri.parse(URI))
        await plans.set(BookiePlan(BOOKIES[0], MAINTENANCE, "amy", 1))
        await tree.create(f"{MetadataUri.parse(URI).root}/underreplication/LAYOUT", b"\xff")
        assert [each.bookie for each in (await api.commands.plans()).plans] == [BOOKIES[0]]
        assert await api.commands.end_plan(BOOKIES[0])

    run(test)
