"""A bookie whose `/api/v2` answers in another form: an older or a later version, or another program. Each page is
shown, with what can be used."""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import Mapping, Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from bkspark.cli.bookie_http import BookieHttpAccess
from bkspark.cli.console_limits import ConsoleLimits
from bkspark.client import Client
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark_console.connections import OpenConnections
from bkspark_console.server import ConsoleOptions, application

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")

URI = "zk://simulated:2181/ledgers"
ID = "127.0.0.1:1"
PAGES = ("/", "/bookies", f"/bookies/{ID}", "/operations", f"/operations/{ID}", "/repair", "/slow", "/audit")
HUGE = 10**400
FAILURE = {"error": {"message": "its disk is gone"}}


def stub(answers: Mapping[str, object]) -> web.Application:
    """Return an HTTP server that answers `/api/v2/NAME` with JSON, and the metrics with a line that is not finite.

    FAILURE is answered with status 503.
    """

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(text="bookie_WRITE_BYTES +Inf\nbkspark_bookie_free_bytes NaN\n")
        found = answers.get(request.path.removeprefix("/api/v2/"), {})
        return web.Response(status=503 if found is FAILURE else 200, text=json.dumps(found))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


def pages(answers: Mapping[str, object], posts: Sequence[str] = ()) -> dict[str, tuple[int, str]]:
    """Return the status and the text of each page of a console whose only bookie answers so.

    Args:
        posts: paths of further pages, which a form asks for.
    """

    async def test() -> dict[str, tuple[int, str]]:
        tree = MemoryStore().session()
        registry = BookieRegistry(tree, MetadataUri.parse(URI))
        await registry.initialize_cluster()
        async with TestServer(stub(answers)) as bookie, Client(URI, tree=tree) as client:
            await registry.register(ID, BookieAddress("127.0.0.1", 1, http=("127.0.0.1", bookie.port or 0)))
            limits = ConsoleLimits()
            options = ConsoleOptions(URI, limits=limits, sample_s=0.05)
            app = application(client, options, b"", BookieHttpAccess(None, None), OpenConnections(limits))
            async with TestClient(TestServer(app)) as visitor:
                found = {}
                for path in PAGES:
                    async with visitor.get(path) as response:
                        found[path] = response.status, await response.text()
                form = {"csrf": html.unescape(found[PAGES[4]][1].partition('name="csrf" value="')[2].partition('"')[0])}
                origin = {"Origin": str(visitor.make_url("/").origin())}
                for path in posts:
                    async with visitor.post(path, data=form, headers=origin) as response:
                        found[path] = response.status, await response.text()
                return found

    return asyncio.run(test())


STATE = {"id": ID, "phase": "serving", "version": "9.9", "pid": 7, "started_ms": 1_700_000_000_000}


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({"bookie": {"id": ID}}, id="no other member"),
        pytest.param({"bookie": {**STATE, "later": {"x": 1}}}, id="some members"),
        pytest.param(
            {"bookie": {**STATE, "started_ms": "soon", "connections": None, "compaction_suspended": "minor"}},
            id="other types",
        ),
        pytest.param(
            {"bookie": {**STATE, "started_ms": HUGE, "connections": -HUGE, "directories": [[]]}}, id="huge numbers"
        ),
        pytest.param(
            {"bookie": STATE, "bookie/keys": [], "bookie/limbo": [1], "bookie/collection": "none", "operations": []},
            id="lists for objects",
        ),
        pytest.param(
            {
                "bookie": STATE,
                "bookie/keys": {"logLevel": {"a": 1}},
                "bookie/limbo": {"ledgers": [{}, HUGE, "<b>"]},
                "operations": {
                    "operations": [{}, 7, {"kind": "drain", "began_ms": "now", "progress": 3, "result": []}]
                },
                "audit": {"records": [{}, [], {"at_ms": HUGE, "who": 1, "change": None}]},
                "repairs": {"workers": [{}, 7, {"worker": "w", "repairs": 5}]},
            },
            id="rows of another form",
        ),
        pytest.param({"bookie": STATE, "operations": {"operations": {}}, "audit": {"records": 5}}, id="no rows"),
    ],
)
def test_pages_are_shown_whatever_a_bookie_answers(
    answers: Mapping[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    found = pages(answers)
    assert {path: status for path, (status, _) in found.items() if status != 200} == {}
    assert not [record.getMessage() for record in caplog.records if "defect" in record.getMessage()]
    if "version" in json.dumps(answers):
        assert "9.9" in found[f"/bookies/{ID}"][1]


NO_LIMBO = "as far as this bookie knows, it has all entries"


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"bookie": {**STATE, "phase": "starting"}}, "unknown: the bookie is starting"),
        ({"bookie": {"id": ID}}, "unknown: the bookie does not say its phase"),
        ({"bookie": STATE, "bookie/limbo": FAILURE}, "unknown: its disk is gone"),
        ({"bookie": STATE, "bookie/limbo": {}}, "unknown: its answer has another form"),
        ({"bookie": STATE, "bookie/limbo": {"ledgers": [7, "8"]}}, "unknown: its answer has another form"),
    ],
)
def test_limbo_that_was_not_read_is_unknown(answers: Mapping[str, object], problem: str) -> None:
    """The page said that there were no such ledgers."""
    _, text = pages(answers)[f"/bookies/{ID}"]
    assert problem in text
    assert NO_LIMBO not in text


def test_limbo_that_is_empty_is_said_to_be_empty() -> None:
    _, text = pages({"bookie": STATE, "bookie/limbo": {"ledgers": [], "next": None}})[f"/bookies/{ID}"]
    assert NO_LIMBO in text


WHOLE = {
    "ledgers": 3,
    "fragments": 4,
    "bytes": 5,
    "growing": 0,
    "without_spare": 0,
    "targets": ["b"],
    "unreadable": 0,
}


@pytest.mark.parametrize(
    ("preview", "says"),
    [
        (WHOLE, "It would copy 4 fragments of 3 ledgers"),
        ({name: value for name, value in WHOLE.items() if name != "unreadable"}, "of 3 ledgers"),
        ({**WHOLE, "without_spare": "none"}, "of 3 ledgers"),
        ({**WHOLE, "ledgers": None}, "4 fragments of – ledgers"),
        ({}, "– fragments of – ledgers"),
    ],
)
def test_preview_of_a_drain_is_good_only_if_all_numbers_that_decide_are_known(
    preview: Mapping[str, object], says: str
) -> None:
    """A bookie of an older version does not count ledgers that cannot be read."""
    path = f"/operations/{ID}/preview"
    status, text = pages({"bookie": STATE, f"cluster/bookies/{ID}/drain": preview}, [path])[path]
    panel = text[: text.index("It would copy")].rpartition("<div")[2]
    assert (status, says in text) == (200, True)
    assert ("good-panel" in panel) is (preview is WHOLE)
    assert ("is not known" in text) is (preview is not WHOLE)
