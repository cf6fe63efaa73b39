"""Hostile frames for a bookie whose authorization rules change all the time, a few in each state of a connection."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from bkspark.security.authorization import LedgerFacts, parse_rules
from bookie_service.engine.authorization import Authorization, Found, RefusedRequests, Unfound
from tests.bookie.serving import Serving, service_options
from tests.fuzzing.attack import STATES, attack, fill
from tests.fuzzing.frames import KEY, LEDGERS
from tests.fuzzing.live import HONEST_LEDGER
from tests.fuzzing.live_authorized import EVERYTHING, EXISTING, RULES

FRAMES = 100
CHANGE_S = 0.005


@pytest.fixture(scope="module")
def refused() -> list[RefusedRequests]:
    return []


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, refused: list[RefusedRequests]) -> Iterator[Serving]:
    """A bookie that all states attack; it must be there in the end."""

    def look_up(ledger_id: int, on_found: Callable[[Found], None], asker: str) -> None:
        found = LedgerFacts(ledger_id, master_key=KEY) if ledger_id in EXISTING else Unfound.ABSENT
        asyncio.get_running_loop().call_soon(on_found, found)

    authorization = Authorization(parse_rules(EVERYTHING.encode()), look_up, refused.append)
    rules = itertools.cycle([parse_rules(text.encode()) for text in RULES])

    def change() -> None:
        authorization.set_rules(next(rules))
        asyncio.get_running_loop().call_later(CHANGE_S, change)

    options = service_options(tmp_path_factory.mktemp("bookie"))
    with Serving(options, authorization=authorization) as service:
        fill(service.port)
        service.call(change)
        yield service
        assert service.failure is None


@pytest.mark.parametrize("state", STATES)
def test_bookie_whose_rules_change_survives_hostile_frames_and_invents_no_ledger(
    serving: Serving, refused: list[RefusedRequests], state: str
) -> None:
    """`python -m tests.fuzzing.live_authorized` sends many in each state."""
    assert attack(serving.port, state, FRAMES, seed=7 + len(state)).looked_at >= FRAMES
    assert refused
    with serving.connect() as peer:
        assert peer.add(HONEST_LEDGER, len(state), [b"honest"]) == [0]
        assert peer.read(HONEST_LEDGER, len(state)).status == 0
    absent = [ledger_id for ledger_id in range(LEDGERS + 1) if ledger_id not in EXISTING]
    store = serving.service.storage.store
    assert absent
    assert serving.call(lambda: [each for each in absent if store.ledger(each) is not None]) == []
