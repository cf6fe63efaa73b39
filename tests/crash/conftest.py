"""Fixtures of the crash tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.crash.parallel import rare_collections


@pytest.fixture(autouse=True)
def cheap_garbage() -> Iterator[None]:
    """Disks and bookies by the thousand: Python looks for cyclic garbage seldom, as in the commands."""
    with rare_collections():
        yield
    # What is left stays: the collection after the next test need not look at it.
    gc.freeze()
