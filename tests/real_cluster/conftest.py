"""One cluster of hosts for the tests of this folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tests.real_cluster.machines import HOSTS, Machines
from tests.real_cluster.networks import network


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Bookies and Spark on hosts of their own, which have neither bkspark nor its packages."""
    hosts = network(HOSTS)
    if not hosts.can_cut:
        # The summary of a run shows warnings, also of tests in other processes.
        warnings.warn(f"tests/real_cluster runs on {hosts.description}", stacklevel=1)
    with Machines(tmp_path_factory.mktemp("machines"), hosts, are_bare=True) as machines:
        yield machines
