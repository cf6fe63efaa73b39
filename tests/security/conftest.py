"""Certificates that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_service.network import gate
from tests.security.certificates import Authority, Leaf


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def leaf(authority: Authority) -> Leaf:
    """The key and certificate of a bookie."""
    return authority.issue("bookie")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bookie wait for START_TLS for a moment only."""
    monkeypatch.setattr(gate, "START_TLS_WAIT_S", 0.01)
    monkeypatch.setattr(gate, "REQUIRED_START_TLS_WAIT_S", 0.01)
