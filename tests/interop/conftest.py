"""Apache's Java client and Apache's bookies, each started once a run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.interop import build
from tests.interop.apache import ApacheCluster
from tests.interop.peer import JavaClient, Peer

Bookies = Cluster | ApacheCluster


@pytest.fixture(scope="session")
def classpath() -> str:
    """Where the Java program and Apache's libraries are; without Maven the test is skipped, but never in CI."""
    if build.maven() is None:
        reason = "there is no mvn on the PATH; install Maven to run the tests against Apache's Java client"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return build.classpath(build.BOOKKEEPER)


@pytest.fixture(scope="session")
def shared_peer(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A JVM with Apache's client, for the clusters that serve a whole run."""
    peer = Peer(classpath, tmp_path_factory.mktemp("peer") / "java.log")
    yield peer
    peer.kill()


@pytest.fixture(scope="module")
def peer(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A JVM with Apache's client, for the clusters of one file.

    It ends with the file: commands of Apache's shell leave clients open, and each makes sessions with a ZooKeeper that
    has ended for as long as the JVM lives; two of them kept a processor busy.
    """
    peer = Peer(classpath, tmp_path_factory.mktemp("peer") / "java.log")
    yield peer
    peer.kill()


@pytest.fixture(scope="session")
def shared_apache_bookies(
    classpath: str, shared_peer: Peer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    with ApacheCluster(classpath, tmp_path_factory.mktemp("apache"), shared_peer) as apache:
        yield apache


@pytest.fixture
def apache_bookies(shared_apache_bookies: ApacheCluster) -> Iterator[ApacheCluster]:
    """ZooKeeper and three of Apache's bookies, all serving: `uri`, and `bookies` that a test may kill."""
    yield shared_apache_bookies
    shared_apache_bookies.revive()


@pytest.fixture(scope="session")
def java_on_ours(shared_peer: Peer, shared_cluster: Cluster) -> Iterator[JavaClient]:
    """Apache's client on our bookies."""
    with JavaClient(shared_peer, shared_cluster.uri) as java:
        yield java


@pytest.fixture(scope="session")
def java_on_apache(shared_peer: Peer, shared_apache_bookies: ApacheCluster) -> Iterator[JavaClient]:
    """Apache's client on Apache's bookies."""
    with JavaClient(shared_peer, shared_apache_bookies.uri) as java:
        yield java


@pytest.fixture(params=["our bookies", "apache's bookies"])
def bookies(request: pytest.FixtureRequest, shared_peer: Peer) -> Bookies:
    """Three bookies, ours and then Apache's: `uri`, and `bookies` that a test may kill.

    The fixtures below are looked up only when a test runs. Apache's need `shared_peer`: its name here puts these tests
    into the group of those that share Apache's processes.
    """
    return request.getfixturevalue("cluster" if request.param == "our bookies" else "apache_bookies")


@pytest.fixture
def java(request: pytest.FixtureRequest, bookies: Bookies) -> JavaClient:
    """Apache's client on `bookies`."""
    return request.getfixturevalue("java_on_ours" if isinstance(bookies, Cluster) else "java_on_apache")
