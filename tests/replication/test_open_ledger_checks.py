"""Checks of an open ledger: an entry is confirmed before its last bookie has it, so one look decides nothing."""

from __future__ import annotations

import pytest

from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.replication.ledger_check import OPEN_LOOKS, LedgerCheck
from bookie_service.replication.unexpected_errors import UnexpectedErrors
from tests.ledger.holders import PATIENT, Holder, with_bookies
from tests.ledger.hostile import Asked, HostileBookie, World


@pytest.mark.parametrize("lacking_looks", [OPEN_LOOKS - 1, OPEN_LOOKS])
def test_copy_of_an_open_ledger_counts_as_missing_only_if_it_is_in_every_look(lacking_looks: int) -> None:
    looks = 0

    def refuse(asked: Asked) -> int | None:
        nonlocal looks
        if asked.opcode != v2.READ or asked.entry_id != 0:
            return None
        looks += 1
        return Status.ENOENTRY if looks <= lacking_looks else None

    async def test(world: World, whole: HostileBookie, late: HostileBookie) -> None:
        ledger_id = await world.ledger(whole, late)
        context = await world.client(net=PATIENT).context()
        check = LedgerCheck(context, 1.0, blames_silent=True, unexpected=UnexpectedErrors(), open_pause_s=0.0)
        found = await check.check(ledger_id)
        assert found is not None
        assert found.bookies == ((late.id,) if lacking_looks == OPEN_LOOKS else ())
        assert looks == OPEN_LOOKS

    with_bookies(Holder(range(3)), Holder(range(3), refuse=refuse))(test)
