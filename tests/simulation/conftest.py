"""What all tests of the simulation share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet_processes() -> Iterator[None]:
    """Bookies and autorecovery log each error that they meet: nothing is logged meanwhile."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
