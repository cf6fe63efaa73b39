"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from tests.cli.console import Console
from tests.cluster import Cluster


@pytest.fixture
def console(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Console:
    """Commands on the shared cluster."""
    return Console(cluster.uri, monkeypatch, capfd)
