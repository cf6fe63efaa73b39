"""The parts of authorization around the decisions: look-ups, the rules file, HTTP, the control socket, local reads."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import BookKeeperError, ConfigurationError, MetadataError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from bkspark.security.authorization import ADMIN, LedgerFacts, Rules, parse_rules
from bkspark.security.digest_md5 import DigestClient
from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.security.roles import Role
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.digest import master_key
from bkspark.wire.local_reads import NOT_HERE, LocalRead, socket_name
from bkspark.wire.status import Status
from bookie_service.admin import control, live_commands
from bookie_service.admin.http.authorization import HttpPermit
from bookie_service.admin.http.messages import HttpError, HttpRequest, HttpResponse, plain
from bookie_service.admin.http.routing import Routes
from bookie_service.cluster.ledger_lookups import LOOKUPS_AT_ONCE, LedgerLookups
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.engine.authorization import Authorization, Found, RefusedRequests, Unfound
from bookie_service.operation.authorization import RulesFollower, log_refusal
from bookie_service.settings.rules_file import RulesFile
from tests.bookie.control_reports import ledgers, report
from tests.bookie.operator_parts import STEADY
from tests.bookie.serving import KEY, Serving, adds, service_options
from tests.polling import wait_until
from tests.security.certificates import Authority
from tests.security.sasl_serving import PASSWORD, SaslPeer, by_digest
from tests.security.sasl_serving import USER as SASL_USER
from tests.security.tls_serving import TlsPeer, listener, trusting

USER = Principal("user", "token")
HOST, OTHER_HOST = "10.0.0.1", "10.0.0.2"


# ---- look-ups ----


class HeldView:
    """Answers about ledgers when a test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._answers: dict[int, asyncio.Future[LedgerFacts | None]] = {}

    async def facts(self, ledger_id: int) -> LedgerFacts | None:
        self.asked.append(ledger_id)
        self._answers[ledger_id] = asyncio.get_running_loop().create_future()
        return await self._answers[ledger_id]

    def is_cancelled(self, ledger_id: int) -> bool:
        return self._answers[ledger_id].cancelled()

    async def answer(self, ledger_id: int, found: LedgerFacts | Exception | None) -> None:
        if isinstance(found, Exception):
            self._answers[ledger_id].set_exception(found)
        else:
            self._answers[ledger_id].set_result(found)
        await settled()


async def settled() -> None:
    """Let everything that is ready have its turn."""
    for _ in range(10):
        await asyncio.sleep(0)


def with_lookups(test: Callable[[HeldView, LedgerLookups, list[tuple[int, Found]]], Awaitable[None]]) -> None:
    async def run() -> None:
        view = HeldView()
        await test(view, LedgerLookups(view), [])

    asyncio.run(run())


def test_ledger_is_looked_up_once_for_all_that_ask_together() -> None:
    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for number in range(3):
            lookups.look_up(7, lambda answer, number=number: found.append((number, answer)), HOST)  # type: ignore[misc]
        await settled()
        # This one asks while the look-up runs: that the ledger exists is true for it, too.
        lookups.look_up(7, lambda answer: found.append((9, answer)), HOST)
        facts = LedgerFacts(7)
        await view.answer(7, facts)
        assert found == [(0, facts), (1, facts), (2, facts), (9, facts)]
        assert view.asked == [7]

    with_lookups(test)


def test_request_during_a_look_up_does_not_share_the_result_that_the_ledger_is_missing() -> None:
    """The ledger may have been created after the look-up read."""

    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        lookups.look_up(7, lambda answer: found.append((0, answer)), HOST)
        await settled()
        lookups.look_up(7, lambda answer: found.append((1, answer)), HOST)
        await view.answer(7, None)
        assert found == [(0, Unfound.ABSENT)]
        assert view.asked == [7, 7]
        await view.answer(7, LedgerFacts(7))
        assert found[1:] == [(1, LedgerFacts(7))]

    with_lookups(test)


def test_few_look_ups_run_at_once() -> None:
    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for ledger_id in range(LOOKUPS_AT_ONCE + 5):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        await settled()
        assert view.asked == list(range(LOOKUPS_AT_ONCE))
        await view.answer(3, None)
        assert view.asked == list(range(LOOKUPS_AT_ONCE + 1))

    with_lookups(test)


def test_host_that_asks_for_very_many_ledgers_does_not_delay_another_one() -> None:
    """Also if the first host has asked for the ledger of the other one, to make it wait."""

    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for ledger_id in range(10 * LOOKUPS_AT_ONCE):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        theirs = (9999, 10 * LOOKUPS_AT_ONCE - 1)
        for ledger_id in theirs:
            lookups.look_up(ledger_id, lambda answer: found.append((1, answer)), OTHER_HOST)
        await settled()
        for ledger_id in range(4):
            await view.answer(ledger_id, None)
        assert set(theirs) < set(view.asked[LOOKUPS_AT_ONCE:])
        await view.answer(theirs[1], LedgerFacts(theirs[1]))
        assert found[4:] == [(0, LedgerFacts(theirs[1])), (1, LedgerFacts(theirs[1]))]

    with_lookups(test)


def test_defect_in_one_request_that_waits_is_logged_and_the_others_are_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others waited for ever, and the error was reported when Python forgot the task."""

    def fail(answer: Found) -> None:
        raise ValueError("a defect")

    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        lookups.look_up(7, fail, HOST)
        lookups.look_up(7, lambda answer: found.append((1, answer)), HOST)
        for ledger_id in range(8, LOOKUPS_AT_ONCE + 8):
            lookups.look_up(ledger_id, lambda answer: found.append((2, answer)), HOST)
        await settled()
        await view.answer(7, LedgerFacts(7))
        assert found == [(1, LedgerFacts(7))]
        assert len(view.asked) == LOOKUPS_AT_ONCE + 1

    with_lookups(test)
    (record,) = caplog.records
    assert "ledger 7" in record.getMessage()
    assert record.exc_info is not None


def test_no_request_is_answered_after_the_look_ups_are_closed() -> None:
    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for ledger_id in range(LOOKUPS_AT_ONCE + 1):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        await settled()
        lookups.close()
        for ledger_id in (3, 4):
            if not view.is_cancelled(ledger_id):
                await view.answer(ledger_id, LedgerFacts(ledger_id))
        await settled()
        assert found == []
        assert view.asked == list(range(LOOKUPS_AT_ONCE))
        assert all(map(view.is_cancelled, view.asked))

    with_lookups(test)


@pytest.mark.parametrize("error", [MetadataError("the session is gone"), ValueError("a defect")], ids=str)
def test_failed_look_up_says_that_nothing_is_known(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        lookups.look_up(7, lambda answer: found.append((0, answer)), HOST)
        await settled()
        await view.answer(7, error)
        assert found == [(0, Unfound.UNKNOWN)]

    with_lookups(test)
    assert len(caplog.records) == 1


def test_look_up_that_takes_too_long_says_that_nothing_is_known() -> None:
    async def run() -> None:
        answered: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        LedgerLookups(HeldView(), seconds_max=0.01).look_up(7, answered.set_result, HOST)
        assert await answered is Unfound.UNKNOWN

    asyncio.run(run())


class SilentView:
    """Answers after `answers` is set, and not before."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers = asyncio.Event()

    async def facts(self, ledger_id: int) -> LedgerFacts | None:
        self.asked.append(ledger_id)
        await self.answers.wait()
        return LedgerFacts(ledger_id)


def with_silent_store(test: Callable[[SilentView, Callable[[int], asyncio.Future[Found]]], Awaitable[None]]) -> None:
    """Run a test with a store that does not answer, and a function that looks a ledger up."""

    async def run() -> None:
        view = SilentView()
        lookups = LedgerLookups(view, seconds_max=0.01)

        def look_up(ledger_id: int) -> asyncio.Future[Found]:
            answered: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
            lookups.look_up(ledger_id, answered.set_result, HOST)
            assert not answered.done(), "the answer must come in a later turn"
            return answered

        await test(view, look_up)

    asyncio.run(run())


def test_requests_do_not_wait_for_a_silent_store_one_after_the_other() -> None:
    """With ZooKeeper stopped, the last of 200 reads of one connection was answered after 28 s."""

    async def test(view: SilentView, look_up: Callable[[int], asyncio.Future[Found]]) -> None:
        many = 20 * LOOKUPS_AT_ONCE
        assert set(await asyncio.gather(*map(look_up, range(many)))) == {Unfound.UNKNOWN}
        assert view.asked == list(range(LOOKUPS_AT_ONCE))
        for ledger_id in range(many, 2 * many):
            assert await look_up(ledger_id) is Unfound.UNKNOWN
        # Only one of the first ones is asked for again, so that the return of the store is noticed.
        assert set(view.asked[LOOKUPS_AT_ONCE:]) <= {view.asked[0]}

    with_silent_store(test)


def test_store_that_answers_again_is_asked_again_for_every_ledger() -> None:
    async def test(view: SilentView, look_up: Callable[[int], asyncio.Future[Found]]) -> None:
        assert await look_up(1) is Unfound.UNKNOWN
        view.answers.set()
        while await look_up(1) is Unfound.UNKNOWN:
            pass
        assert await look_up(1) == LedgerFacts(1)
        ledger_ids = range(2, 2 + 2 * LOOKUPS_AT_ONCE)
        assert await asyncio.gather(*map(look_up, ledger_ids)) == list(map(LedgerFacts, ledger_ids))

    with_silent_store(test)


def test_store_that_answers_others_meanwhile_is_not_taken_for_a_silent_one() -> None:
    """One slow look-up says nothing about the next ones."""

    async def test(view: HeldView, lookups: LedgerLookups, found: list[tuple[int, Found]]) -> None:
        for ledger_id in (1, 2):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        await settled()
        await view.answer(2, LedgerFacts(2))
        await view.answer(1, TimeoutError())
        assert found == [(0, LedgerFacts(2)), (0, Unfound.UNKNOWN)]
        for ledger_id in (3, 4):
            lookups.look_up(ledger_id, lambda answer: found.append((0, answer)), HOST)
        await settled()
        assert view.asked == [1, 2, 3, 4]

    with_lookups(test)


def test_facts_of_a_ledger_are_those_of_its_metadata() -> None:
    async def run() -> None:
        uri = MetadataUri.parse("zk://h/ledgers")
        tree = MemoryStore().session()
        await BookieRegistry(tree, uri).initialize_cluster()
        view = LedgerMetadataView(tree, uri, "us:1")
        metadata = LedgerMetadata(
            1, 1, 1, (Fragment(0, ("us:1",)),), password=b"pw", custom_metadata={"application": b"bkspark", "log": b"x"}
        )
        await LedgerStore(tree, uri).create(metadata, ledger_id=5)
        facts = await view.facts(5)
        assert facts is not None
        assert (facts.ledger_id, facts.log, facts.master_key) == (5, "x", master_key(b"pw"))
        assert await view.facts(6) is None
        assert await view.facts(-1) is None

    asyncio.run(run())


# ---- principals of connections ----


def test_rules_apply_to_the_user_of_digest_md5_and_to_requests_after_its_proof(tmp_path: Path) -> None:
    """The requests come in one buffer with the last AUTH message, as Apache's client sends them."""
    rules = f"digest:{SASL_USER} write log:mine\ndigest:reader read *"
    options = service_options(tmp_path, authentication=by_digest(tmp_path))
    known: dict[int, Found] = {1: LedgerFacts(1, "mine", master_key=KEY), 2: LedgerFacts(2, "theirs")}
    with Serving(options, authorization=authorization_with(rules, known)) as bookie, bookie.connect() as peer:
        sasl, client = SaslPeer(peer), DigestClient(SASL_USER, PASSWORD, "cnonce")
        response = client.step(sasl.payload(b""))
        assert response is not None
        read = v2.encode_reads(1, np.array([0]), 0, None)
        peer.send(sasl.frame(response) + adds(1, 0, [b"one"]) + adds(2, 0, [b"two"]) + read)
        assert isinstance(sasl.answer(), protocol.AuthMessage)
        answers = sorted((reply.opcode, reply.ledger_id, reply.status) for reply in peer.replies(3))
        assert answers == [(v2.ADD, 1, Status.EOK), (v2.ADD, 2, Status.EUA), (v2.READ, 1, Status.EUA)]


def test_rules_apply_to_the_certificate_of_a_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = service_options(tmp_path, tls=listener(authority.issue("bookie"), authority))
    known: dict[int, Found] = {1: LedgerFacts(1, "mine", master_key=KEY)}
    rules = "certificate:CN=writer read,write log:mine\ncertificate:CN=reader read log:mine"
    with Serving(options, authorization=authorization_with(rules, known)) as bookie:
        with TlsPeer(bookie.port, trusting(authority, authority.issue("writer"))) as writer:
            assert writer.add(1, 0, [b"one", b"two"]) == [Status.EOK] * 2
        with TlsPeer(bookie.port, trusting(authority, authority.issue("reader"))) as reader:
            assert reader.read(1, 1).status == Status.EOK
            assert reader.add(1, 2, [b"x"]) == [Status.EUA]
        # Clear text is served, as TLS is not required, but to a peer that has proved nothing.
        with bookie.connect() as peer:
            assert peer.read(1, 1).status == Status.EUA


# ---- the rules file ----


def test_file_that_cannot_be_used_is_named_with_line_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "rules"
    with pytest.raises(ConfigurationError, match=f"authorizationRulesFile={path}: the file cannot be read: No such"):
        RulesFile(str(path)).read()
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        RulesFile(str(tmp_path)).read()
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match=f"authorizationRulesFile={path}: it is not a file"):
        RulesFile(str(path)).read()
    path.unlink()
    path.write_text("* read *\n* raed *\n")
    with pytest.raises(ConfigurationError, match=f"={path}: line 2: 'raed' is not a right: it must be read"):
        RulesFile(str(path)).read()
    path.write_text("* read *\n")
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match=f"every user of this host can change it: run chmod o-w {path}"):
        RulesFile(str(path)).read()


def test_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "rules"
    path.write_text("* read *\n")
    file = RulesFile(str(path))
    assert len(file.read()) == 1
    assert file.read_if_changed() is None
    other = tmp_path / "other"
    other.write_text("* read *\n* write id:1\n")
    os.replace(other, path)
    changed = file.read_if_changed()
    assert changed is not None
    assert len(changed) == 2
    path.unlink()
    with pytest.raises(ConfigurationError, match="No such file"):
        file.read_if_changed()
    # It is said once.
    assert file.read_if_changed() is None


def test_bad_change_keeps_the_rules_and_is_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "rules"
    path.write_text("* read *\n")

    async def run() -> None:
        file = RulesFile(str(path))
        authorization = authorization_with(file.read())
        follower = RulesFollower(file, authorization, STEADY, look_s=0.01)
        follower.start()
        before = authorization.rules
        path.write_text("* nothing *\n")
        while not caplog.records:
            await asyncio.sleep(0.01)
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert authorization.rules is before
        with pytest.raises(ConfigurationError):
            await follower.reload("signal")
        path.write_text("* write *\n")
        while authorization.rules is before:
            await asyncio.sleep(0.01)
        await follower.stop()

    asyncio.run(run())
    kept, changed = [record.getMessage() for record in caplog.records]
    assert kept.startswith(
        f"authorization continues with the rules that it has: authorizationRulesFile={path}: line 1: "
    )
    assert changed == f"audit: file: 1 authorization rules of {path} are in force"


def test_a_look_that_fails_unexpectedly_is_logged_and_later_changes_still_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a right that is taken away later would stay for ever."""

    class FailsOnce(RulesFile):
        has_failed = False

        def read_if_changed(self) -> Rules | None:
            if not self.has_failed:
                self.has_failed = True
                raise RuntimeError("a defect")
            return super().read_if_changed()

    path = tmp_path / "rules"
    path.write_text("* read *\n")

    async def run() -> None:
        file = FailsOnce(str(path))
        authorization = authorization_with(file.read())
        before = authorization.rules
        follower = RulesFollower(file, authorization, STEADY, look_s=0.01)
        follower.start()
        async with asyncio.timeout(30):
            while not caplog.records:
                await asyncio.sleep(0.01)
            path.write_text("* write *\n")
            while authorization.rules is before:
                await asyncio.sleep(0.01)
        await follower.stop()

    asyncio.run(run())
    assert "defect" in caplog.records[0].getMessage()


def test_refusal_is_a_line_with_client_request_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    log_refusal(RefusedRequests(USER, "10.0.0.9", 3, 7, 5, "no rule allows it"))
    (record,) = caplog.records
    assert record.getMessage() == (
        "audit: refused token:user at 10.0.0.9: read,write on ledger 7 (5 requests): no rule allows it"
    )
    assert record.__dict__["attributes"]["ledger"] == 7
    assert record.__dict__["event"] == "refused"


# ---- HTTP ----


def authorization_with(rules: object, known: dict[int, Found] | None = None) -> Authorization:
    def look_up(ledger_id: int, on_found: Callable[[Found], None], asker: str) -> None:
        asyncio.get_running_loop().call_soon(on_found, (known or {}).get(ledger_id, Unfound.ABSENT))

    parsed = parse_rules(rules.encode()) if isinstance(rules, str) else rules
    return Authorization(parsed, look_up, log_refusal)  # type: ignore[arg-type]


async def answered(request: HttpRequest) -> HttpResponse:
    return plain("done")


def http_status(rules: str, method: str, path: str, principal: Principal = USER, **query: str) -> int:
    """Return the status of a request where the metadata have ledger 1 of log `mine`, and ledger 2 cannot be read."""
    known: dict[int, Found] = {1: LedgerFacts(1, "mine"), 2: Unfound.UNKNOWN}

    async def run() -> int:
        routes = Routes(HttpPermit(authorization_with(rules, known)))
        for route in (
            "/heartbeat",
            "/metrics",
            "/api/v1/ledger/read",
            "/api/v1/ledger/delete",
            "/api/v1/bookie/gc",
            "/api/v2/ledgers/{ledger_id}",
            "/api/v2/ledgers/{ledger_id}/entries",
        ):
            routes.add("GET PUT DELETE", route, answered)
        try:
            return (
                await routes.answer(HttpRequest(method, path, query, principal=principal, role=Role.DESTROY))
            ).status
        except HttpError as error:
            return error.status

    return asyncio.run(run())


def test_http_request_whose_right_is_withdrawn_while_its_ledger_is_looked_up_is_refused() -> None:
    async def run() -> None:
        asked: list[Callable[[Found], None]] = []
        authorization = Authorization(
            parse_rules(b"token:user read log:mine"), lambda _, on_found, asker: asked.append(on_found), log_refusal
        )
        request = HttpRequest("GET", "/api/v2/ledgers/1", {"ledger_id": "1"}, principal=USER, role=Role.DESTROY)
        permitted = asyncio.ensure_future(HttpPermit(authorization)("/api/v2/ledgers/{ledger_id}", request))
        await asyncio.sleep(0)
        authorization.set_rules(parse_rules(b"token:other read log:mine"))
        (on_found,) = asked
        on_found(LedgerFacts(1, "mine"))
        with pytest.raises(HttpError) as caught:
            await permitted
        assert caught.value.status == 403

    asyncio.run(run())


@pytest.mark.parametrize(
    ("rules", "method", "path", "status"),
    [
        ("token:x read *", "GET", "/heartbeat", 200),
        ("token:x read *", "GET", "/metrics", 200),
        ("token:x read *", "GET", "/api/v1/bookie/gc", 403),
        ("token:user read,write,fence *", "GET", "/api/v1/bookie/gc", 403),
        ("token:user admin", "GET", "/api/v1/bookie/gc", 200),
        ("token:user admin", "PUT", "/api/v1/bookie/gc", 200),
        ("token:user read log:mine", "GET", "/api/v2/ledgers/1", 200),
        ("token:user read log:mine", "HEAD", "/api/v2/ledgers/1", 200),
        ("token:user read log:mine", "GET", "/api/v2/ledgers/1/entries", 200),
        ("token:user read log:mine", "DELETE", "/api/v2/ledgers/1", 403),
        ("token:user read log:other", "GET", "/api/v2/ledgers/1/entries", 403),
        ("token:user write log:mine", "GET", "/api/v2/ledgers/1/entries", 403),
        ("token:user admin", "GET", "/api/v2/ledgers/1/entries", 403),
        ("token:user read log:*", "GET", "/api/v2/ledgers/2", 503),
        ("token:user read log:*", "GET", "/api/v2/ledgers/3", 403),
        ("token:user read *", "GET", "/api/v2/ledgers/3", 200),
        ("token:user read *", "GET", "/api/v2/ledgers/x", 200),
        ("token:x read *", "GET", "/api/v2/ledgers/x", 403),
    ],
)
def test_http_request_needs_read_on_its_ledger_or_admin(rules: str, method: str, path: str, status: int) -> None:
    """The handler judges what is not an id; here it answers 200."""
    assert http_status(rules, method, path) == status


def test_http_request_names_its_ledger_as_a_parameter_of_the_query() -> None:
    rules = "token:user read log:mine"
    assert http_status(rules, "GET", "/api/v1/ledger/read", ledger_id="1") == 200
    assert http_status(rules, "GET", "/api/v1/ledger/read", ledger_id="3") == 403
    assert http_status(rules, "GET", "/api/v1/ledger/read", ANONYMOUS, ledger_id="1") == 403
    # What is not exactly an id is not looked up: only who may read all ledgers learns what the handler makes of it.
    for text in ("-0", "-1", "+1", " 1", "1_0", "\u0661", "", "9" * 19, "9" * 5000):
        assert http_status(rules, "GET", "/api/v1/ledger/read", ledger_id=text) == 403, text
        assert http_status(rules, "GET", f"/api/v2/ledgers/{text or 'x'}/entries") == 403, text
        assert http_status("token:user read *", "GET", "/api/v1/ledger/read", ledger_id=text) == 200, text
    assert http_status(rules, "GET", "/api/v1/ledger/read") == 403
    # A parameter of the query does not replace that of the path.
    assert http_status(rules, "GET", "/api/v2/ledgers/3/entries", ledger_id="1") == 403


# ---- this host ----


@pytest.mark.parametrize("right", ["admin", "read"])
def test_control_socket_asks_for_admin_of_the_local_user(tmp_path: Path, right: str) -> None:
    directories = ledgers(tmp_path)
    rules = f"local:{getpass.getuser()} {right} *"
    answers: list[object] = []

    async def run() -> None:
        authorization = authorization_with(rules)
        permits: control.Permits = lambda principal, where: authorization.may(principal, where, ADMIN)  # noqa: E731
        async with control.serving(directories, report, permits):
            answers.append(await asyncio.to_thread(asked, directories))

    asyncio.run(run())
    if right == "admin":
        assert isinstance(answers[0], dict)
    else:
        assert answers == [f"no rule of authorizationRulesFile gives local:{getpass.getuser()} the right admin"]


def asked(directories: list[str]) -> object:
    try:
        return control.ask(directories, {"do": live_commands.COLLECT})
    except BookKeeperError as error:
        return str(error)


@pytest.mark.parametrize(("rule", "is_served"), [("read *", True), ("read log:*", False), ("write *", False)])
def test_local_reads_need_read_on_every_ledger(tmp_path: Path, rule: str, is_served: bool) -> None:
    """A descriptor of an entry log gives access to entries of all ledgers."""
    with authorized_serving(tmp_path, f"local:{getpass.getuser()} {rule}") as bookie:
        bookie.call(lambda: bookie.service.start_local_reads("us:1"))
        with connected_locally(bookie.port) as peer:
            assert is_dropped(bookie, peer) is not is_served


def test_local_reads_end_when_the_rules_no_longer_allow_them(tmp_path: Path) -> None:
    with authorized_serving(tmp_path, f"local:{getpass.getuser()} read *") as bookie:
        bookie.call(lambda: bookie.service.start_local_reads("us:1"))
        with connected_locally(bookie.port) as peer:
            assert not is_dropped(bookie, peer)
            asked = LocalRead("us:1", socket.inet_aton("127.0.0.1"), 1, 0, 1, 1).encode()
            peer.send(asked)
            assert peer.recv(100) == NOT_HERE
            authorization = bookie.service._authorization
            assert authorization is not None
            bookie.call(lambda: authorization.set_rules(parse_rules(b"anonymous read *")))
            peer.send(asked)
            assert peer.recv(100) == b""


def authorized_serving(directory: Path, rules: str) -> Serving:
    return Serving(service_options(directory), authorization=authorization_with(rules))


def connected_locally(port: int) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(60)
    peer.connect(socket_name(port))
    return peer


def is_dropped(bookie: Serving, peer: socket.socket) -> bool:
    """Return whether the bookie closed a connection once it had accepted it."""
    served = bookie.service._local_reads
    assert served is not None
    peer.setblocking(False)
    state: list[bool] = []

    def settled() -> bool:
        try:
            state.append(peer.recv(1) == b"")
        except BlockingIOError:
            if bookie.call(lambda: bool(served._peers)):
                state.append(False)
        return bool(state)

    wait_until(settled, "the bookie has accepted or closed it")
    peer.setblocking(True)
    return state[0]
