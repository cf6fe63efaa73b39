"""One cluster of hosts for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real_cluster.machines import HOSTS, Machines
from tests.real_cluster.networks import network


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Machines]:
    """Bookies and Spark on hosts of their own, which have neither bkspark nor its packages."""
    with Machines(tmp_path_factory.mktemp("machines"), network(HOSTS), are_bare=True) as machines:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\nreal cluster: {machines.network.description}")
        yield machines
