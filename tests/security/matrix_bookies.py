"""Bookies of the matrix's policies, and clients that come, prove and ask as a case says."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from bkspark.security.authorization import parse_rules
from bkspark.security.digest_md5 import DigestClient
from bkspark.security.sasl import SaslServerOptions
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.auth import DISABLED_PLUGIN
from bkspark.wire.start_tls import encode_start_tls
from bkspark.wire.status import Status
from bookie_service.engine.authorization import Authorization
from bookie_service.network.authentication import ListenerAuthentication, ListenerAuthenticationOptions
from bookie_service.network.tls_handshakes import ListenerTls, ListenerTlsOptions
from tests.bookie.serving import KEY, adds
from tests.bookie.simulated_connections import ServedBookie, SteppedLoop
from tests.bookie.v3_peer import request
from tests.security.authorized import CACHE_BYTES, OTHER_KEY, Metadata, facts, statuses
from tests.security.certificates import Authority
from tests.security.links import FramedLink, Link, SimulatedLink
from tests.security.matrix import ROLE, Case, Login, Outcome, Policy, Transport, expected, status_of_start_tls
from tests.security.sasl_serving import PASSWORD, USER, USERS, SaslPeer, jaas_file, jaas_text
from tests.security.tls_serving import listener, trusting

RULES = "* read,write,fence log:mine"
_USERS = {
    Login.RIGHT: (USER, PASSWORD),
    Login.WRONG_PASSWORD: (USER, "a wrong password"),
    Login.UNKNOWN_USER: ("bookkeeper-nobody", PASSWORD),
    Login.NOT_ALLOWED: ("reader", USERS["reader"]),
}
_FOREIGN = 1 << 40
_PROBES = {
    False: v2.encode_reads(_FOREIGN, np.array([0]), 0, None),
    True: v3.encode_message(request(protocol.READ_LAC, 8, ledgerId=_FOREIGN)),
}
"""Requests that are answered on an open connection and use no storage: no rule allows this ledger."""
Tickets = Callable[[SaslPeer, Login], bool]
"""Does a login by GSSAPI; returns whether the bookie goes on with it."""


class Certificates:
    """All certificates of the matrix, and the files of bookies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.bookie = self.authority.issue("bookie")
        self._other = Authority(directory, "other")
        self.jaas = jaas_file(directory / "bookie.jaas", jaas_text())
        self._contexts: dict[Transport, ssl.SSLContext] = {}

    def listener_tls(self, policy: Policy) -> ListenerTlsOptions | None:
        if not policy.tls:
            return None
        authority = self.authority if policy.demands_certificate else None
        return listener(self.bookie, authority, required=policy.tls_required)

    def listener_authentication(self, policy: Policy) -> ListenerAuthenticationOptions | None:
        if not policy.plugin and not policy.required:
            return None
        jaas = str(self.directory / "gssapi.jaas") if policy.plugin == "gssapi" else self.jaas
        sasl = SaslServerOptions(jaas) if policy.has_login else None
        roles = (ROLE,) if policy.plugin == "roles" else ()
        return ListenerAuthenticationOptions(sasl, roles, required=policy.required)

    def context(self, transport: Transport) -> ssl.SSLContext:
        """Return a client's context."""
        if transport not in self._contexts:
            self._contexts[transport] = self._context(transport)
        return self._contexts[transport]

    def _context(self, transport: Transport) -> ssl.SSLContext:
        issuer = self._other if transport.certificate == "of another authority" else self.authority
        if not transport.certificate:
            return trusting(self.authority)
        unit = f"0:{transport.role}" if transport.role else ""
        name = f"client {transport.certificate} {transport.role}"
        days = -1 if transport.certificate == "expired" else 10
        return trusting(self.authority, issuer.issue(name, days=days, unit=unit))


class PolicyBookie:
    """A bookie of one policy, in this process. Everyone whom it serves may use the ledgers of one log."""

    def __init__(self, certificates: Certificates, policy: Policy) -> None:
        tls, authentication = certificates.listener_tls(policy), certificates.listener_authentication(policy)
        self._metadata = Metadata()
        self._ledgers = 0

        def authorization(loop: SteppedLoop) -> Authorization:
            self._metadata.loop = loop
            return Authorization(parse_rules(RULES.encode()), self._metadata.look_up, lambda refused: None)

        self.served = ServedBookie(
            cache_half_bytes=CACHE_BYTES,
            authorization=authorization,
            tls=None if tls is None else ListenerTls(tls),
            authentication=None if authentication is None else ListenerAuthentication(authentication),
        )
        self._open = ServedBookie(cache_half_bytes=CACHE_BYTES)
        """It demands nothing, and is asked the same."""

    def new_ledger(self, kind: str) -> int:
        """Return a ledger of a kind of `LEDGERS`, with three entries unless it is unknown."""
        self._ledgers += 1
        if kind != "unknown":
            log = "theirs" if kind == "another tenant's" else "mine"
            self._metadata.ledgers[self._ledgers] = facts(self._ledgers, log)
            for served in (self.served, self._open):
                fill(SimulatedLink(served, is_trusted=True), self._ledgers, is_fenced=kind == "fenced")
        return self._ledgers

    def answer_of_an_open_bookie(self, asked: bytes) -> bytes:
        """Return what a bookie answers that demands nothing and has the same ledgers."""
        frames = FramedLink(SimulatedLink(self._open))
        try:
            return answers(frames, asked)
        finally:
            frames.close()

    @property
    def uses(self) -> tuple[int, int]:
        """How often the store was used, and the disk."""
        return self.served.store.uses, self.served.twin.disk.operations


def check(cases: Iterable[Case], client: MatrixClient, bookie: PolicyBookie) -> None:
    """Compare what each client sees with what it must see; a refused request uses neither store nor disk."""
    for case in cases:
        right, asked = expected(case), asked_by(case, bookie.new_ledger(case.ledger))
        before = bookie.uses
        outcome, answer = client.observe(case, SimulatedLink(bookie.served), asked)
        assert bookie.served.failures == [], str(case)
        if right is Outcome.SERVED:
            served = bookie.answer_of_an_open_bookie(asked)
            # A wrong key is refused by every bookie; of such an answer the client looks at the first frame.
            right = Outcome.EUA if set(statuses(served)) == {Status.EUA} else right
            assert served.startswith(answer) if right is Outcome.EUA else served == answer, str(case)
        else:
            assert bookie.uses == before, f"{case}: it used the store"
        assert outcome is right, f"{case}: {outcome.value}"


def fill(link: Link, ledger_id: int, *, is_fenced: bool) -> None:
    """Add three entries to a ledger, over a link of which nothing is demanded."""
    frames = FramedLink(link)
    assert set(statuses(answers(frames, adds(ledger_id, 0, [b"a", b"b", b"c"])))) == {Status.EOK}
    if is_fenced:
        answers(frames, v2.encode_reads(ledger_id, np.array([-1]), v2.DO_FENCING, KEY))
    frames.close()


def asked_by(case: Case, ledger_id: int) -> bytes:
    """Return the frames of a case's request."""
    no_key = b"" if case.is_v3 else bytes(len(KEY))
    return case.operation.frame(ledger_id, {"right": KEY, "wrong": OTHER_KEY, "no": no_key}[case.key])


def answers(frames: FramedLink, asked: bytes) -> bytes:
    """Return the answers to some requests."""
    frames.send(asked)
    return b"".join(framed(frames.frame()) for _ in range(count_frames(asked)))


def framed(body: bytes | None) -> bytes:
    assert body is not None, "the bookie closed the connection"
    return len(body).to_bytes(4, "big") + body


def count_frames(frames: bytes) -> int:
    count = 0
    while frames:
        count, frames = count + 1, frames[4 + int.from_bytes(frames[:4], "big") :]
    return count


class MatrixClient:
    """Comes as a case says, and tells what it sees."""

    def __init__(self, certificates: Certificates, tickets: Tickets | None = None) -> None:
        self._certificates = certificates
        self._tickets = tickets

    def observe(self, case: Case, link: Link, request_frames: bytes) -> tuple[Outcome, bytes]:
        """Return the outcome, and the frames of the answer if it has no name."""
        frames = FramedLink(link)
        try:
            refused = self._come(case, frames) or self._log_in(case, frames)
            return (refused, b"") if refused else self._ask(case, frames, request_frames)
        except ssl.SSLError:
            # In TLS 1.3 a client learns from its first read that its certificate is refused.
            return Outcome.NO_TLS, b""
        finally:
            frames.close()

    def _come(self, case: Case, frames: FramedLink) -> Outcome | None:
        if not case.transport.in_tls:
            return None
        frames.send(encode_start_tls(7))
        answer = frames.frame()
        assert answer is not None
        assert v3.decode_response(answer).status == v3.StatusCode.EOK
        host = "localhost" if case.transport.host_is_right else "elsewhere.example"
        try:
            frames.secure(self._certificates.context(case.transport), host)
        except ssl.SSLCertVerificationError:
            return Outcome.LEAVES
        return None

    def _log_in(self, case: Case, frames: FramedLink) -> Outcome | None:
        if case.login is Login.NONE or not case.policy.has_login:
            return None
        sasl = SaslPeer(frames, case.is_v3)
        if case.policy.plugin == "gssapi":
            assert self._tickets is not None
            goes_on = self._tickets(sasl, case.login)
        else:
            goes_on = _log_in_by_password(sasl, case.login)
        if goes_on:
            return None
        assert frames.frame() is None, "a failed exchange closes the connection"
        return Outcome.LOGIN_REFUSED

    def _ask(self, case: Case, frames: FramedLink, request_frames: bytes) -> tuple[Outcome, bytes]:
        frames.send(request_frames)
        first = frames.frame()
        if first is None:
            return Outcome.CLOSED, b""
        if outcome := _named(first):
            return outcome, b""
        if statuses(framed(first)) != [Status.EUA] or case.is_v3 != (first[0] == v3.FIRST_BYTE):
            rest = [framed(frames.frame()) for _ in range(count_frames(request_frames) - 1)]
            return Outcome.SERVED, framed(first) + b"".join(rest)
        frames.send(_PROBES[case.is_v3])
        is_open = frames.frame() is not None
        return (Outcome.EUA if is_open else Outcome.EUA_AND_CLOSED), framed(first)


def _log_in_by_password(sasl: SaslPeer, login: Login) -> bool:
    challenge = sasl.ask(b"")
    if not isinstance(challenge, protocol.AuthMessage):
        return False
    if login is Login.HALF:
        return True
    client = DigestClient(*_USERS[login], "cnonce")
    proof = sasl.ask(client.step(challenge.payload) or b"")
    if not isinstance(proof, protocol.AuthMessage):
        return False
    client.step(proof.payload)
    return client.is_complete


def _named(body: bytes) -> Outcome | None:
    """Return the outcome of an answer to AUTH or START_TLS; None: it is another answer, or a refusal."""
    if body[0] != v3.FIRST_BYTE:
        if body[:4] != v2.header_word(v2.AUTH).to_bytes(4, "big"):
            return None
        return _of_plugin(protocol.AuthMessage.FromString(body[4:]))
    response = v3.decode_response(body)
    if response.header.operation == protocol.START_TLS:
        return status_of_start_tls(response.status)
    return _of_plugin(response.authResponse) if response.HasField("authResponse") else None


def _of_plugin(message: protocol.AuthMessage) -> Outcome:
    return Outcome.DISABLED if message.authPluginName == DISABLED_PLUGIN else Outcome.CHALLENGE
