"""The products of the matrix of the security reference, section 13, in this process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.security.matrix import (
    LOGIN_POLICIES,
    TRANSPORT_POLICIES,
    TRANSPORTS,
    Case,
    Policy,
    login_cases,
    transport_cases,
)
from tests.security.matrix_bookies import Certificates, MatrixClient, PolicyBookie, check

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def check_in_process(certificates: Certificates, cases: list[Case], policy: Policy | None = None) -> None:
    """`policy`: what the bookie demands, if it is not what the cases say."""
    check(cases, MatrixClient(certificates), PolicyBookie(certificates, policy or cases[0].policy))


@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.name)
@pytest.mark.parametrize("policy", TRANSPORT_POLICIES, ids=lambda policy: policy.name)
def test_every_request_over_every_transport(certificates: Certificates, policy: Policy, transport: object) -> None:
    cases = [case for case in transport_cases() if (case.policy, case.transport) == (policy, transport)]
    check_in_process(certificates, cases)


@pytest.mark.parametrize("number", range(len(LOGIN_POLICIES)), ids=[f"{p.name} {t.name}" for p, t in LOGIN_POLICIES])
def test_every_request_after_every_login(certificates: Certificates, number: int) -> None:
    pair = LOGIN_POLICIES[number]
    check_in_process(certificates, [case for case in login_cases() if (case.policy, case.transport) == pair])


@pytest.mark.parametrize(
    ("policy", "transport", "left_out"),
    [
        ("TLS is required", "clear", {"tls_required": False}),
        ("roles are required", "TLS", {"demands_certificate": False}),
        ("roles are required", "TLS, certificate with another role", {"plugin": ""}),
        ("roles, as at Apache's", "TLS, certificate without a role", {"plugin": ""}),
        ("a certificate is required", "clear", {"required": False}),
        ("SASL is required", "clear", {"plugin": "", "required": False}),
        ("SASL is required", "clear", {"required": False}),
        ("SASL and TLS are required", "clear", {"tls_required": False}),
    ],
    ids=str,
)
def test_bookie_that_demands_less_than_it_should_is_noticed(
    certificates: Certificates, policy: str, transport: str, left_out: dict[str, object]
) -> None:
    cases = [
        case
        for case in transport_cases() + login_cases()
        if (case.policy.name, case.transport.name) == (policy, transport)
    ]
    with pytest.raises(AssertionError, match=policy):
        check_in_process(certificates, cases, replace(cases[0].policy, **left_out))
