"""Certificates that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.certificates import Authority, Leaf


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def leaf(authority: Authority) -> Leaf:
    """The key and certificate of a bookie."""
    return authority.issue("bookie")
