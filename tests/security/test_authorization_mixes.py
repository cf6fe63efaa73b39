"""Requests of all kinds in one burst, which comes in random pieces: each is judged by its own ledger and rights."""

from __future__ import annotations

import random

import pytest

from bkspark.wire.status import Status
from tests.bookie.serving import KEY
from tests.security.authorized import (
    ABSENT,
    ALL_RIGHTS,
    FENCED,
    FOREIGN,
    NEW,
    OPERATIONS,
    OTHER_KEY,
    OWN,
    ROOT,
    USER,
    AuthorizedBookie,
    frames_in,
    metadata,
    prepared,
    statuses,
)

BURSTS = 40
RIGHTS = ("read", "write", "fence")


@pytest.mark.parametrize("seed", range(5))
def test_each_request_of_a_burst_is_refused_or_served_by_its_own_rights(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(BURSTS):
        check_a_burst(draw)


def check_a_burst(draw: random.Random) -> None:
    """Send requests for ledgers that exist, are another's or are missing, with right and wrong keys."""
    rights = {right for right in RIGHTS if draw.random() < 0.5}
    rule = f"digest:user {','.join(sorted(rights))} log:mine" if rights else "digest:user read log:none"
    bookie = AuthorizedBookie(f"{ALL_RIGHTS}\n{rule}", metadata())
    root = bookie.connect(ROOT)
    prepared(lambda frames: bookie.ask(root, frames))
    version = draw.choice(("V2", "V3"))
    kinds = [each for each in OPERATIONS if each.has_ledger and each.name.startswith(version)]
    sent, burst = b"", []
    for _ in range(draw.randint(2, 30)):
        operation, ledger_id = draw.choice(kinds), draw.choice((OWN, OWN, FENCED, FOREIGN, NEW, ABSENT))
        frames = operation.frame(ledger_id, draw.choice((KEY, OTHER_KEY)))
        is_allowed = operation.needs - {"any"} <= rights and ledger_id in (OWN, FENCED, NEW)
        burst += [(operation.name, ledger_id, is_allowed)] * frames_in(frames)
        sent += frames
    peer = bookie.connect(USER)
    answer, at = b"", 0
    while at < len(sent):
        size = draw.randint(1, len(sent))
        answer += bookie.ask(peer, sent[at : at + size], turns=40)
        at += size
    answer += bookie.ask(peer, b"", turns=100)
    assert len(statuses(answer)) == len(burst), burst
    refused = sum(each.requests for each in bookie.refused)
    assert refused == sum(not is_allowed for _, _, is_allowed in burst), burst
    assert statuses(answer).count(Status.EUA) >= refused
    assert bookie.served.twin.store.ledger(ABSENT) is None
