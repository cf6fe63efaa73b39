"""The parts of authorization around the decisions: facts, the rules file, HTTP, the control socket, local reads."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import BookKeeperError, ConfigurationError
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
