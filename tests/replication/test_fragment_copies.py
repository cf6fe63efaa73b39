"""Copies of one fragment, on real sockets: when they count as done, and what is left of them."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.errors import BookieUnavailable
from bkspark.wire.status import Status
from bookie_service.replication.copying import CopyBudget, CopyFailed, FragmentCopier
from bookie_service.replication.options import RepairOptions
from bookie_service.replication.repair import CopyEntries, SlotCopy
from tests.ledger.holders import PATIENT, Holder, adds_of, with_bookies
from tests.ledger.hostile import Asked, HostileBookie, World, items, reply


def has_entry_0(asked: Asked) -> bytes:
    """Answer a batch read as the bookie that the fragment names."""
    return reply(asked, body=items(asked.ledger_id, 0, 1))


async def copy(world: World, source: HostileBookie, *targets: HostileBookie) -> None:
    """Copy entry 0 of a ledger to other bookies; whatever happens, no connection stays reserved or is listened to."""
    ledger_id = await world.ledger(source)
    context = await world.client(net=PATIENT).context()
    metadata = (await context.ledgers.read(ledger_id)).metadata
    copier = FragmentCopier(context, ledger_id, metadata, b"", CopyBudget.of(RepairOptions()))
    missing = np.array([0])
    copies = tuple(SlotCopy(0, target.id, missing) for target in targets)
    try:
        await copier.copy(CopyEntries(metadata.last_fragment, 1, copies), frozenset())
    finally:
        assert context.pool._reserved == {}
        for target in targets:
            assert (await context.pool.channel(target.id, 1))._adds == {}


def test_a_fragment_is_copied_when_every_target_has_acknowledged_it() -> None:
    async def test(world: World, source: HostileBookie, *targets: HostileBookie) -> None:
        await copy(world, source, *targets)
        assert [[asked.entry_id for asked in adds_of(target)] for target in targets] == [[0], [0]]

    with_bookies(has_entry_0, Holder(), Holder())(test)


@pytest.mark.parametrize("refuses", [0, 1])
def test_refusal_of_the_last_entry_fails_the_copy_of_a_fragment(refuses: int) -> None:
    """Otherwise the metadata would name a bookie that lacks it."""

    def refuse(asked: Asked) -> int:
        return Status.EIO

    async def test(world: World, source: HostileBookie, *targets: HostileBookie) -> None:
        with pytest.raises(CopyFailed) as failed:
            await copy(world, source, *targets)
        assert failed.value.target == targets[refuses].id
        assert isinstance(failed.value.error, BookieUnavailable)

    targets = [Holder(), Holder()]
    targets[refuses] = Holder(refuse=refuse)
    with_bookies(has_entry_0, *targets)(test)
