"""What operators see of a running bookie and change in it, by the control socket and by HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bookie_service.admin.http.access import HttpAccess
from bookie_service.admin.http.api_v1 import BookieApi
from bookie_service.admin.http.routing import Routes
from bookie_service.admin.http.server import serving
from bookie_service.admin.live_commands import LiveCommands
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.operation.audit import audit, remembered
from bookie_service.operation.bookie_operator import BookieOperator, NotServing, Refused
from bookie_service.operation.changes import Changes
from bookie_service.operation.live_keys import LiveKeys
from bookie_service.service import BookieService
from bookie_service.settings.configuration import configure
from bookie_service.settings.http_options import HttpLimits, HttpOptions
from bookie_service.storage.io.files import LocalFiles
from tests.bookie.operator_parts import URI, Registration, audited
from tests.bookie.serving import no_suspects, service_options
from tests.polling import until


class Bench:
    """An operator of a running bookie."""

    def __init__(self, service: BookieService) -> None:
        self.service = service
        self.registration = Registration()
        changes = Changes(service.fail)
        keys = LiveKeys(configure({}), None, {}, changes)
        self.operator = BookieOperator("b:1", service, keys, LocalFiles(), changes)


def run(directory: Path, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def serve() -> None:
        service = BookieService(LocalFiles(), service_options(directory))
        bench = Bench(service)
        with pytest.raises(NotServing):
            bench.operator.collection()
        await service.start(no_suspects)
        service.listen(socket.create_server(("127.0.0.1", 0)))
        tree = MemoryStore().session()
        await BookieRegistry(tree, URI).initialize_cluster()
        metadata_view = LedgerMetadataView(tree, URI, "b:1")
        await metadata_view.open()
        service.start_collecting(metadata_view)
        bench.operator.serve(bench.registration)
        try:
            await test(bench)
        finally:
            await service.stop(30.0)

    asyncio.run(serve())


def test_limbo_is_listed_in_pages_of_which_each_begins_after_the_last_id(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.service.storage.store.limbo.begin([5, 8, 9])
        assert bench.operator.limbo(-1, 2) == [5, 8]
        assert bench.operator.limbo(8, 2) == [9]
        assert bench.operator.limbo(9, 2) == []
        assert bench.operator.state().limbo_ledgers == 3

    run(tmp_path, test)


def test_change_of_the_mode_returns_when_the_cluster_knows_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bookie_service.audit")

    async def test(bench: Bench) -> None:
        operator = bench.operator
        assert await operator.set_read_only(True, "amy", "new\ndisk")
        assert bench.registration.waits == 1
        state = operator.state()
        assert (state.read_only, state.set_by_operator, state.reason) == (True, True, "new\\ndisk")
        assert await operator.set_read_only(True, "bob")
        assert operator.state().reason == "new\\ndisk", "nothing is changed"
        assert not await operator.set_read_only(False, "bob")
        assert bench.registration.waits == 3
        assert audited(caplog) == ["audit: amy: set read-only (new\\ndisk)", "audit: bob: set writable"]

    run(tmp_path, test)


def test_change_takes_effect_while_an_earlier_one_waits_for_the_cluster(tmp_path: Path) -> None:
    """While ZooKeeper hung, "writable" had no effect for ten seconds after "read-only"."""

    async def test(bench: Bench) -> None:
        operator, registration = bench.operator, bench.registration
        registration.answers.clear()
        first = asyncio.ensure_future(operator.set_read_only(True, "amy"))
        await until(lambda: operator.is_read_only, "the first change")
        second = asyncio.ensure_future(operator.set_read_only(False, "bob"))
        await until(lambda: not operator.is_read_only, "the second change")
        assert not first.done()
        assert not second.done()
        registration.answers.set()
        assert [await first, await second] == [False, False]

    run(tmp_path, test)


def test_restart_that_is_requested_twice_is_done_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bookie_service.audit")

    async def test(bench: Bench) -> None:
        requested: list[str] = []
        bench.operator.on_restart = lambda: requested.append("restart")
        bench.operator.restart("amy")
        bench.operator.restart("bob", "word")
        assert (requested, bench.operator.restart_word) == (["restart"], "")
        assert audited(caplog) == ["audit: amy: restart the bookie"]

    run(tmp_path, test)


def test_collection_leaves_out_what_is_suspended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bookie_service.audit")

    async def test(bench: Bench) -> None:
        operator = bench.operator
        operator.suspend("amy", major=True)
        await operator.collect("amy")
        operator.suspend("amy", minor=True)
        await operator.collect("amy")
        operator.resume("amy", major=True, minor=True)
        await operator.collect("amy")
        assert [line.removeprefix("audit: amy: ") for line in audited(caplog)] == [
            "suspend major compaction",
            "collect garbage, with a minor compaction",
            "suspend minor compaction",
            "collect garbage, without compaction",
            "resume minor compaction",
            "resume major compaction",
            "collect garbage, with a major compaction",
        ]
        operator.suspend("amy", collection=True)
        assert operator.state().collection_suspended
        # The console sends the state of all three, and two lines named changes that no operator had made.
        before = len(audited(caplog))
        operator.suspend("bob", collection=True)
        operator.resume("bob", minor=True, major=True)
        assert len(audited(caplog)) == before
        with pytest.raises(Refused, match="resume it first"):
            await operator.collect("amy")

    run(tmp_path, test)


def test_suspend_and_resume_without_words_mean_both_compactions(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        commands = LiveCommands(bench.operator)
        await commands({"do": "suspend"}, "amy")
        state = bench.operator.state()
        assert (state.compaction_suspended, state.collection_suspended) == (("minor", "major"), False)
        await commands({"do": "resume", "what": ["minor"]}, "amy")
        assert bench.operator.state().compaction_suspended == ("major",)
        await commands({"do": "resume"}, "amy")
        assert bench.operator.state().compaction_suspended == ()

    run(tmp_path, test)


def test_request_of_another_form_is_refused(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        commands = LiveCommands(bench.operator)
        for request in (
            {"do": "suspend", "what": [["minor"]]},
            {"do": "suspend", "what": "minor"},
            {"do": "resume", "what": [{}]},
            {"do": "limbo", "after": 1 << 70},
            {"do": "limbo", "after": True},
            {"do": "limbo", "after": -2},
            {"do": "set", "keys": {"logLevel": 1}},
            {"do": "fly"},
        ):
            with pytest.raises(Refused):
                await commands(request, "amy")

    run(tmp_path, test)


class Defect(RuntimeError):
    """A defect in the middle of a change."""


def _raise(*_: object) -> None:
    raise Defect("planted")


async def by_socket(bench: Bench, command: str, path: str, body: str) -> None:
    with pytest.raises(Defect):
        await LiveCommands(bench.operator)(json.loads(command), "amy")


async def by_http(bench: Bench, command: str, path: str, body: str) -> None:
    routes = Routes()
    BookieApi(bench.operator).add_to(routes)
    async with serving("127.0.0.1", 0, "httpServerPort", routes.answer, HttpLimits(), HttpAccess(HttpOptions())) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at)
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        assert b" 500 " in await reader.readline()
        writer.close()


def break_mode_change(bench: Bench) -> None:
    bench.service.on_mode_change = _raise


def break_second_part(bench: Bench) -> None:
    bench.operator.keys.parts += [lambda configuration: None, _raise]


@pytest.mark.parametrize("ask", [by_socket, by_http])
@pytest.mark.parametrize(
    ("break_part", "command", "path", "body"),
    [
        (break_mode_change, '{"do": "read-only"}', "/api/v1/bookie/state/readonly", '{"readOnly": true}'),
        (
            break_second_part,
            '{"do": "set", "keys": {"compactionRateByBytes": "7"}}',
            "/api/v1/config/server_config",
            '{"compactionRateByBytes": "7"}',
        ),
    ],
)
def test_unexpected_error_in_the_middle_of_a_change_ends_the_bookie_however_it_was_requested(
    tmp_path: Path,
    ask: Callable[[Bench, str, str, str], Awaitable[None]],
    break_part: Callable[[Bench], None],
    command: str,
    path: str,
    body: str,
) -> None:
    """docs/architecture.md, unexpected errors: state may be half changed."""

    async def test(bench: Bench) -> None:
        break_part(bench)
        await ask(bench, command, path, body)
        assert isinstance(bench.service.failed.result(), Defect)

    with pytest.raises(Defect):
        run(tmp_path, test)


def test_unexpected_error_of_a_restart_ends_the_bookie(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.operator.on_restart = _raise
        with pytest.raises(Defect):
            await LiveCommands(bench.operator)({"do": "restart"}, "amy")
        assert isinstance(bench.service.failed.result(), Defect)

    with pytest.raises(Defect):
        run(tmp_path, test)


def test_unexpected_error_of_a_check_before_the_change_does_not_end_the_bookie(tmp_path: Path) -> None:
    """No state is half changed: an odd request of one operator must not end the bookie of all clients."""

    class Odd:
        def __str__(self) -> str:
            raise Defect("planted")

    async def test(bench: Bench) -> None:
        with pytest.raises(Defect):
            await LiveCommands(bench.operator)({"do": "read-only", "reason": Odd()}, "amy")
        assert not bench.service.failed.done()
        assert not bench.operator.is_read_only

    run(tmp_path, test)


def test_error_of_a_command_that_reads_or_is_refused_does_not_end_the_bookie(tmp_path: Path) -> None:
    async def test() -> None:
        service = BookieService(LocalFiles(), service_options(tmp_path))
        operator = Bench(service).operator
        commands = LiveCommands(operator)
        with pytest.raises(NotServing):
            await commands({"do": "suspend"}, "amy")
        # A storage that was not opened has no list of limbo.
        operator.phase = "serving"
        with pytest.raises(AttributeError):
            await commands({"do": "limbo"}, "amy")
        assert not service.failed.done()

    asyncio.run(test())


def test_files_of_each_kind_are_found_where_they_lie(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        current = tmp_path / "ledgers" / "current"
        for folder in ("a/1", "a/2", "b/1"):
            (current / folder).mkdir(parents=True)
        for name in ("a/1/5.idx", "a/2/6.idx", "b/1/1.idx", "a/9.idx", "7.idx", "a/1/5.idx.rebuilt", "c.log"):
            (current / name).write_bytes(b"")
        assert bench.operator.disk_files("index") == ["1.idx", "5.idx", "6.idx"]
        assert "c.log" in bench.operator.disk_files("entrylog")
        assert bench.operator.disk_files("journal")

    run(tmp_path, test)


def test_changes_are_listed_in_pages_the_latest_first_and_each_once() -> None:
    for number in range(7):
        audit("amy", f"change {number}")
    (latest,) = remembered(1 << 62, 1)
    before, listed = latest.number + 1, []
    while len(listed) < 7:
        page = remembered(before, 3)
        assert all(record.number < before for record in page)
        listed += page
        before = page[-1].number
    assert [record.change for record in listed[:7]] == [f"change {number}" for number in reversed(range(7))]
    assert {record.who for record in listed[:7]} == {"amy"}
