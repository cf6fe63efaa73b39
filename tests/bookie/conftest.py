"""Folders of a bookie: made once, copied for each test."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.bookie.child import new_cluster
from tests.bookie.folders import Folder, serve


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
