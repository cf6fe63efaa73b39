"""`/api/v2` while the metadata store does not answer: such a request may succeed later."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from bkspark.errors import MetadataError, MetadataFormat
from bkspark.ledger import Cluster
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.security.roles import Role
from bookie_service.admin.http.api_v2 import ApiV2
from bookie_service.admin.http.messages import HttpError, HttpRequest
from bookie_service.admin.http.routing import Routes
from bookie_service.operation.long_operations import LongOperations
from bookie_service.replication.cluster_commands import ClusterCommands
from bookie_service.replication.options import AutoRecoveryOptions
from tests.ledger.in_process import URI


class FailingTree(MemoryTree):
    """A session of which every read fails."""

    def __init__(self, error: MetadataError) -> None:
        session = MemoryStore().session()
        super().__init__(session.store, session.session_id, session.session_timeout_s)
        self._error = error

    async def get(self, path: str) -> NoReturn:
        raise self._error

    async def exists(self, path: str) -> NoReturn:
        raise self._error

    async def children(self, path: str) -> NoReturn:
        raise self._error


def refused(path: str, error: MetadataError) -> HttpError:
    """Return the error with which a request is answered if the metadata store fails."""

    async def ask() -> HttpError:
        cluster = Cluster(URI, tree=FailingTree(error))
        commands, routes = ClusterCommands(URI, "here", AutoRecoveryOptions(), cluster), Routes()
        ApiV2(commands, LongOperations()).add_to(routes)
        try:
            with pytest.raises(HttpError) as failed:
                await routes.answer(HttpRequest("GET", path, {}, role=Role.DESTROY))
            return failed.value
        finally:
            await commands.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "path",
    ["/plans", "/cluster/bookies", "/ledgers", "/ledgers/5", "/underreplicated", "/repairs", "/autorecovery"],
)
def test_request_that_needs_the_metadata_store_is_answered_503_while_it_is_away(path: str) -> None:
    """It was a 500, which says that the request failed and not that it may be sent again."""
    failed = refused(f"/api/v2{path}", MetadataError("ZooKeeper did not answer"))
    assert (failed.status, "ZooKeeper did not answer" in failed.text) == (503, True)


def test_metadata_that_cannot_be_read_are_a_500() -> None:
    assert refused("/api/v2/ledgers/5", MetadataFormat("ledger 5: its metadata cannot be read")).status == 500
