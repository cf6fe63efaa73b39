"""Sixty cases of the matrix with real processes: a bookie of each policy, a ZooKeeper server, and sockets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.tls.options import FACTORY_CLASS
from bookie_service.settings.authentication import KEY, ROLES_CLASS, SASL_CLASS
from tests.bookie.child import BookieChild, new_cluster
from tests.bookie.serving import KEY as MASTER_KEY
from tests.security.links import SocketLink
from tests.security.matrix import ROLE, Case, Outcome, Policy, expected, login_cases, proving, transport_cases
from tests.security.matrix_bookies import Certificates, MatrixClient

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("matrix")]

COUNT = 60


def _some(cases: list[Case]) -> list[Case]:
    """Return some of the cases, the same in each run, with the right key and a ledger of the client."""
    return [replace(case, key="right", ledger="own") for case in random.Random(13).sample(cases, COUNT // 2)]


CASES = _some(transport_cases()) + _some(login_cases())


def settings_of(policy: Policy, certificates: Certificates) -> dict[str, str]:
    key, chain = certificates.bookie.pem()
    tls = {
        "tlsProviderFactoryClass": FACTORY_CLASS,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": key,
        "tlsCertificatePath": chain,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": certificates.authority.pem,
        "tlsRequired": str(policy.tls_required).lower(),
        "tlsClientAuthentication": str(policy.demands_certificate).lower(),
    }
    plugins = {
        "sasl": {KEY: SASL_CLASS, "saslJaasConfig": certificates.jaas},
        "roles": {KEY: ROLES_CLASS, "authorizedRoles": ROLE},
        "": {},
    }
    required = {"authenticationRequired": "true"} if policy.required else {}
    return (tls if policy.tls else {}) | plugins[policy.plugin] | required


class Processes:
    """A bookie of each policy, started when it is first asked for."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._ports: dict[Policy, int] = {}
        self.certificates = Certificates(directory)
        self._zookeeper = stack.enter_context(ZooKeeperProcess(directory / "zookeeper", port=free_ports(1)[0]))

    def port(self, policy: Policy) -> int:
        if policy not in self._ports:
            name = f"bookie-{len(self._ports)}"
            uri = new_cluster(self._zookeeper.connect_string, name)
            bookie = BookieChild(self._directory / name, uri, **settings_of(policy, self.certificates))
            self._stack.enter_context(bookie.running())
            self._ports[policy] = bookie.port
        return self._ports[policy]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(tmp_path_factory.mktemp("matrix"), stack)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case) for case in CASES])
def test_client_sees_what_it_must(processes: Processes, number: int) -> None:
    """Without rules a bookie lets everyone whom it serves use every ledger; each case has one of its own."""
    case = CASES[number]
    asked = case.operation.frame(1000 + number, MASTER_KEY)
    client = MatrixClient(processes.certificates)
    outcome, _ = client.observe(case, SocketLink(processes.port(case.policy)), asked)
    assert outcome is expected(case), str(case)
    read = proving(case.policy)
    after, _ = client.observe(read, SocketLink(processes.port(case.policy)), read.operation.frame(1, MASTER_KEY))
    assert after is Outcome.SERVED, "the bookie still serves those who prove what it demands"
