"""Fixtures that many packages' tests share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bkspark.cli.zookeeper_process import ZooKeeperProcess
    from tests.cluster import Cluster


_SESSION_FIXTURES = {
    # Each costs seconds and processes: what uses it stays in one of the test runner's processes.
    "spark": "spark",
    "shared_cluster": "cluster",
    "shared_apache_bookies": "cluster",
    "peer": "cluster",
    "zookeeper": "cluster",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the group of each test that shares processes with others; the rest may run anywhere, in any order."""
    for item in items:
        fixtures: set[str] = set(getattr(item, "fixturenames", ()))
        groups = {group for fixture, group in _SESSION_FIXTURES.items() if fixture in fixtures}
        if "spark" in groups:
            groups = {"spark"}
        for group in groups:
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands that a test calls in this process turn logging off: the next test may read it."""
    before = logging.root.manager.disable
    yield
    logging.disable(before)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper server for the whole run; it has no cluster in it."""
    from bkspark.cli.ports import free_ports
    from bkspark.cli.zookeeper_process import ZooKeeperProcess

    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), port=free_ports(1)[0]) as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """ZooKeeper and three of our bookies, for the whole run; tests take `cluster`."""
    from tests.cluster import Cluster

    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Three of our bookies, all serving: `uri`, and `bookies` that a test may kill, pause and restart."""
    yield shared_cluster
    shared_cluster.revive()
