"""Every kind of request, by principals with every set of rights, to ledgers in every state, with right and wrong keys.

The product of the matrix of the security reference, section 13, in one process: a refused request is answered EUA and
uses neither store nor disk. An allowed one is answered byte by byte as by a bookie without authorization.
"""

from __future__ import annotations

import functools
import itertools

import pytest

from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.wire.status import Status
from bookie_service.engine.authorization import RefusedRequests
from tests.bookie.serving import KEY
from tests.bookie.simulated_connections import ServedBookie
from tests.security.authorized import (
    ABSENT,
    ALL_RIGHTS,
    CACHE_BYTES,
    FENCED,
    FOREIGN,
    NEW,
    OPERATIONS,
    OTHER_KEY,
    OWN,
    ROOT,
    USER,
    AuthorizedBookie,
    Operation,
    ask,
    metadata,
    prepared,
    statuses,
)

RIGHTS = ("read", "write", "fence")
SETS = tuple(frozenset(some) for count in range(len(RIGHTS) + 1) for some in itertools.combinations(RIGHTS, count))
LEDGERS = {
    "own": OWN,
    "fenced": FENCED,
    "of another log": FOREIGN,
    "not held": NEW,
    "not in the metadata": ABSENT,
}


def authorized(rights: frozenset[str]) -> AuthorizedBookie:
    rule = f"digest:user {','.join(sorted(rights))} log:mine" if rights else "digest:user read log:none"
    bookie = AuthorizedBookie(f"{ALL_RIGHTS}\n{rule}", metadata())
    root = bookie.connect(ROOT)
    prepared(lambda frames: bookie.ask(root, frames))
    assert not bookie.refused
    return bookie


refusing = functools.cache(authorized)
"""A bookie that is asked only what it must refuse, so that it stays as it is."""


@functools.cache
def answer_without_authorization(operation: Operation, ledger_id: int, key: bytes) -> bytes:
    served = ServedBookie(cache_half_bytes=CACHE_BYTES)
    peer = served.connect()
    prepared(lambda frames: ask(served, peer, frames))
    return ask(served, served.connect(), operation.frame(ledger_id, key))


def check_refused(bookie: AuthorizedBookie, principal: Principal, frames: bytes) -> list[RefusedRequests]:
    """Check that requests are answered EUA, and that neither store nor disk is used; return what is reported."""
    peer, before = bookie.connect(principal), bookie.uses
    answer = bookie.ask(peer, frames)
    assert set(statuses(answer)) == {Status.EUA}
    assert bookie.uses == before
    refused = list(bookie.refused)
    bookie.refused.clear()
    return refused


@pytest.mark.parametrize("rights", SETS, ids=lambda rights: " ".join(sorted(rights)) or "nothing")
@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_request_is_served_exactly_as_its_rights_say(operation: Operation, rights: frozenset[str]) -> None:
    # Every principal here has a rule, be it for a log without a ledger: that is what "any" needs.
    needs = operation.needs - {"any"}
    for ledger_id, key in itertools.product(LEDGERS.values(), (KEY, OTHER_KEY)):
        frames = operation.frame(ledger_id, key)
        is_mine = ledger_id in (OWN, FENCED, NEW) or not operation.has_ledger
        if not needs <= rights or (needs and not is_mine):
            (refused,) = check_refused(refusing(rights), USER, frames)
            assert (refused.principal, refused.ledger_id, refused.address) == (USER, ledger_id, "10.0.0.1")
            continue
        bookie = authorized(rights)
        answer = bookie.ask(bookie.connect(USER), frames)
        assert not bookie.refused
        if ledger_id == NEW and key == OTHER_KEY and needs & {"write", "fence"} and operation.name != "V3 FORCE":
            # The first key of a ledger must be that of its metadata.
            assert set(statuses(answer)) == {Status.EUA}
            assert bookie.served.twin.store.ledger(NEW) is None
        else:
            assert answer == answer_without_authorization(operation, ledger_id, key)
            assert answer


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_principal_without_a_rule_may_only_authenticate(operation: Operation) -> None:
    bookie = refusing(frozenset())
    asked = len(bookie.metadata.asked)
    for principal in (ANONYMOUS, Principal("other", "digest"), Principal("user", "token")):
        if operation.needs:
            check_refused(bookie, principal, operation.frame(OWN, KEY))
            # It costs the metadata store nothing either.
            assert len(bookie.metadata.asked) == asked
        else:
            answer = bookie.ask(bookie.connect(principal), operation.frame(OWN, KEY))
            assert answer == answer_without_authorization(operation, OWN, KEY)
