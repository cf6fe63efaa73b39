"""What `bkspark cluster skip-ids` says of ids that were skipped already."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.cli.cluster_metadata import skip_to
from bkspark.client import Client
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from tests.ledger.in_process import URI


@pytest.mark.parametrize("above", [50, 2147483646, 8589934591])
def test_repetition_that_changes_nothing_says_so(above: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A second restore with the number of the first one protected nothing, and succeeded silently."""

    async def test() -> None:
        tree = MemoryStore().session()
        await BookieRegistry(tree, MetadataUri.parse(URI)).initialize_cluster()
        async with Client(URI, tree=tree) as client:
            first = await skip_to(client, above)
            assert first >= above
            assert capsys.readouterr().err == ""
            assert await skip_to(client, above) > first
            said = f"nothing was changed: new ids were above {above} already. --above must be the largest id"
            assert said in capsys.readouterr().err

    asyncio.run(test())
