"""A cluster whose bookies have HTTP servers, and the console of it as a process, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("jinja2")

from tests.cluster import Cluster
from tests.console.process import HTTP, ConsoleProcess


@pytest.fixture(scope="session")
def console_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """ZooKeeper and three bookies with HTTP servers and autorecovery."""
    with Cluster(tmp_path_factory.mktemp("console"), settings=HTTP) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def console(console_cluster: Cluster) -> Iterator[ConsoleProcess]:
    """The console of that cluster."""
    with ConsoleProcess("--uri", console_cluster.uri) as process:
        yield process
