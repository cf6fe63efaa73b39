"""The matrix of the security reference, section 13: how clients come, what they prove, and what a bookie must answer.

`expected` is the only place that says what is right. It follows section 1 of the reference (what Apache's bookies
answer before authentication) and section 12 (what `tlsRequired` and `authenticationRequired` add). Everything that it
does not find proved is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from tests.security.authorized import OPERATIONS, Operation
from tests.security.sasl_serving import auth_v3


class Outcome(Enum):
    """What a client sees."""

    LEAVES = "the client refuses the bookie's certificate"
    NO_TLS = "the bookie refuses the client's certificate"
    LOGIN_REFUSED = "the exchange fails, and the connection is closed"
    SERVED = "the answer of a bookie that demands nothing"
    EUA = "EUA, and the connection stays open"
    EUA_AND_CLOSED = "EUA, and the connection is closed"
    CLOSED = "closed without an answer"
    DISABLED = "AUTH is answered by AuthDisabledPlugin"
    CHALLENGE = "AUTH is answered by a challenge"
    TLS_BEGINS = "START_TLS is answered EOK"
    BAD_REQUEST = "START_TLS is answered EBADREQ"


@dataclass(frozen=True)
class Policy:
    """What a bookie demands. plugin: "sasl", "gssapi", "roles" or none."""

    name: str
    tls: bool = False
    tls_required: bool = False
    demands_certificate: bool = False
    plugin: str = ""
    required: bool = False

    @property
    def has_login(self) -> bool:
        return self.plugin in ("sasl", "gssapi")


@dataclass(frozen=True)
class Transport:
    """How a client connects: in clear, or inside TLS with a certificate of some kind. role: of the certificate."""

    name: str
    in_tls: bool = True
    host_is_right: bool = True
    certificate: str = ""
    role: str = ""

    @property
    def has_valid_certificate(self) -> bool:
        return self.certificate == "valid"


class Login(Enum):
    """What a client does with AUTH messages before its request."""

    NONE = "no login"
    RIGHT = "right password"
    WRONG_PASSWORD = "wrong password"
    UNKNOWN_USER = "unknown user"
    NOT_ALLOWED = "user that is not allowed"
    HALF = "half an exchange"
    TICKET = "ticket"
    EXPIRED_TICKET = "expired ticket"


ROLE = "writer"
TRANSPORTS = (
    Transport("clear", in_tls=False),
    Transport("TLS"),
    Transport("TLS, right certificate", certificate="valid", role=ROLE),
    Transport("TLS, certificate of another authority", certificate="of another authority", role=ROLE),
    Transport("TLS, expired certificate", certificate="expired", role=ROLE),
    Transport("TLS, another host's certificate", host_is_right=False, certificate="valid", role=ROLE),
    Transport("TLS, certificate without a role", certificate="valid"),
    Transport("TLS, certificate with another role", certificate="valid", role="reader"),
)
CLEAR, TLS, RIGHT_CERTIFICATE = TRANSPORTS[:3]
TRANSPORT_POLICIES = (
    Policy("TLS is offered", tls=True),
    Policy("TLS is required", tls=True, tls_required=True),
    Policy("roles, as at Apache's", tls=True, demands_certificate=True, plugin="roles"),
    Policy("roles are required", tls=True, tls_required=True, demands_certificate=True, plugin="roles", required=True),
    Policy("a certificate is required", tls=True, demands_certificate=True, required=True),
)
LOGIN_POLICIES = (
    (Policy("SASL, as at Apache's", plugin="sasl"), CLEAR),
    (Policy("SASL is required", plugin="sasl", required=True), CLEAR),
    (Policy("SASL, and TLS is offered", tls=True, plugin="sasl"), CLEAR),
    (Policy("SASL and TLS are required", tls=True, tls_required=True, plugin="sasl", required=True), CLEAR),
    (Policy("SASL and TLS are required", tls=True, tls_required=True, plugin="sasl", required=True), TLS),
)
KERBEROS_POLICIES = (
    (Policy("GSSAPI is required", plugin="gssapi", required=True), CLEAR),
    (Policy("GSSAPI and TLS are required", tls=True, tls_required=True, plugin="gssapi", required=True), TLS),
)
DIGEST_LOGINS = (*(Login.NONE, Login.RIGHT, Login.WRONG_PASSWORD, Login.UNKNOWN_USER, Login.NOT_ALLOWED, Login.HALF),)
KERBEROS_LOGINS = (Login.NONE, Login.TICKET, Login.EXPIRED_TICKET, Login.HALF)
KEYS = ("right", "wrong", "no")
LEDGERS = ("own", "fenced", "another tenant's", "unknown")
_V3_AUTH = Operation("V3 AUTH", frozenset(), lambda ledger, key: auth_v3(b"", txn_id=7), False)
REQUESTS = (*(each for each in OPERATIONS if each.name != "V3 AUTH"), _V3_AUTH)
_ANSWERED_V2 = ("ADD", "READ")
"""V2 operations that have an answer before authentication; others close the connection."""


@dataclass(frozen=True)
class Case:
    """One client, and its request."""

    policy: Policy
    transport: Transport
    operation: Operation
    login: Login = Login.NONE
    key: str = "right"
    ledger: str = "own"

    def __str__(self) -> str:
        parts = self.policy.name, self.transport.name, self.login.value, self.operation.name
        return f"{' / '.join(parts)} / {self.key} key, {self.ledger} ledger"

    @property
    def is_v3(self) -> bool:
        return self.operation.name.startswith("V3")


def transport_cases() -> list[Case]:
    """Return the full product of transports, protocols and operations, for each policy about transports."""
    return _with_keys_and_ledgers(Case(p, t, o) for p in TRANSPORT_POLICIES for t in TRANSPORTS for o in REQUESTS)


def login_cases() -> list[Case]:
    """Return the full product of logins by password, protocols and operations, for each policy about logins."""
    return _with_keys_and_ledgers(
        Case(p, t, o, login) for p, t in LOGIN_POLICIES for login in DIGEST_LOGINS for o in REQUESTS
    )


def kerberos_cases() -> list[Case]:
    """Return the full product of logins by ticket, protocols and operations."""
    return _with_keys_and_ledgers(
        Case(p, t, o, login) for p, t in KERBEROS_POLICIES for login in KERBEROS_LOGINS for o in REQUESTS
    )


def _with_keys_and_ledgers(cases: Iterable[Case]) -> list[Case]:
    """Give each case a key and a ledger, so that each pair with a value of another dimension occurs."""
    return [
        replace(case, key=KEYS[number % len(KEYS)], ledger=LEDGERS[number // len(KEYS) % len(LEDGERS)])
        for number, case in enumerate(cases)
    ]


def proving(policy: Policy) -> Case:
    """Return the read of a client that proves all that a policy demands."""
    transport = RIGHT_CERTIFICATE if policy.demands_certificate else TLS if policy.tls_required else CLEAR
    (read,) = (each for each in REQUESTS if each.name == "V2 READ")
    return Case(policy, transport, read, Login.RIGHT if policy.has_login else Login.NONE)


def expected(case: Case) -> Outcome:
    """Return what the client must see."""
    policy, transport, login = case.policy, case.transport, case.login
    if transport.in_tls and not transport.host_is_right:
        return Outcome.LEAVES
    if transport.in_tls and policy.demands_certificate and not transport.has_valid_certificate:
        return Outcome.NO_TLS
    is_safe = transport.in_tls or not policy.tls_required
    if policy.has_login and login is not Login.NONE and not (is_safe and _login_goes_on(login)):
        return Outcome.LOGIN_REFUSED
    has_proved = is_safe and _has_proved(policy, transport, login)
    if case.operation.name.endswith("START_TLS") and (policy.tls and not transport.in_tls):
        return Outcome.TLS_BEGINS
    if case.operation.name.endswith("AUTH"):
        return _expected_of_auth(case, has_proved=has_proved, is_safe=is_safe)
    if case.operation.name.endswith("START_TLS"):
        # There is no TLS, or it has begun. Apache's bookies answer so before authentication, too.
        return Outcome.BAD_REQUEST
    if not has_proved:
        return _refusal(case, is_safe=is_safe)
    return Outcome.SERVED if _is_allowed(case) else Outcome.EUA


def _is_allowed(case: Case) -> bool:
    """Authorization: everyone who is served may use the ledgers of one log, and no other."""
    return case.ledger in ("own", "fenced") or not case.operation.has_ledger


def _login_goes_on(login: Login) -> bool:
    return login in (Login.RIGHT, Login.TICKET, Login.HALF)


def _has_proved(policy: Policy, transport: Transport, login: Login) -> bool:
    if policy.has_login:
        return login in (Login.RIGHT, Login.TICKET)
    if policy.plugin == "roles":
        return transport.in_tls and transport.has_valid_certificate and transport.role == ROLE
    if policy.required:
        return transport.in_tls and transport.has_valid_certificate
    return True


def _expected_of_auth(case: Case, *, has_proved: bool, is_safe: bool) -> Outcome:
    """The request is a first, empty message of the plugin `sasl`."""
    policy = case.policy
    if has_proved or (not policy.plugin and not policy.required):
        return Outcome.DISABLED
    # DIGEST-MD5 begins with an empty message, and the second one of GSSAPI is empty.
    if is_safe and (policy.plugin, case.login) in (("sasl", Login.NONE), ("gssapi", Login.HALF)):
        return Outcome.CHALLENGE
    if policy.has_login and is_safe:
        # An empty message is neither a response nor a token.
        return Outcome.EUA_AND_CLOSED if case.is_v3 else Outcome.CLOSED
    return _refusal(case, is_safe=is_safe)


def _refusal(case: Case, *, is_safe: bool) -> Outcome:
    name = case.operation.name
    if not case.is_v3 and (name.split()[-1].rstrip("s") not in _ANSWERED_V2 and name != "V2 READ -1"):
        return Outcome.CLOSED
    return Outcome.EUA_AND_CLOSED if case.policy.required or not is_safe else Outcome.EUA


def status_of_start_tls(status: int) -> Outcome | None:
    """Return the outcome of an answer to START_TLS."""
    return {protocol.EOK: Outcome.TLS_BEGINS, protocol.EBADREQ: Outcome.BAD_REQUEST}.get(status)
