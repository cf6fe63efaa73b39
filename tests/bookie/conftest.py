"""Folders of a bookie, made once and copied for each test; and the memory of simulated connections."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bookie_service.network.memory_budget import MemoryBudget
from tests.bookie.budgets import LIMIT
from tests.bookie.child import new_cluster
from tests.bookie.folders import Folder, serve
from tests.bookie.simulated_connections import SteppedLoop


@pytest.fixture
def uri(zookeeper: ZooKeeperProcess) -> str:
    """The URI of a new cluster without bookies. Its name is new: that of a passed test's folder is used again."""
    return new_cluster(zookeeper.connect_string, uuid.uuid4().hex)


@pytest.fixture(scope="session")
def stopped_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serve(tmp_path_factory.mktemp("stopped") / "bookie")


@pytest.fixture(scope="session")
def crashed_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serve(tmp_path_factory.mktemp("crashed") / "bookie", is_stopped_cleanly=False)


@pytest.fixture
def stopped(stopped_template: Path, tmp_path: Path) -> Folder:
    """The folder of a bookie that was stopped."""
    return Folder.copy(stopped_template, tmp_path / "bookie")


@pytest.fixture
def crashed(crashed_template: Path, tmp_path: Path) -> Folder:
    """The folder of a bookie that ended without flushing: its last entries are in the journal only."""
    return Folder.copy(crashed_template, tmp_path / "bookie")


@pytest.fixture
def loop() -> SteppedLoop:
    return SteppedLoop()


@pytest.fixture
def budget(loop: SteppedLoop) -> MemoryBudget:
    """The memory of connections, with LIMIT bytes for received ones and as many for replies."""
    return MemoryBudget(loop, LIMIT, LIMIT)  # type: ignore[arg-type]
