"""Fixtures of clusters for the tests of deploy/."""

from tests.bookie.conftest import uri

__all__ = ["uri"]
