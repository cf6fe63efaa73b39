"""One address begins a limited number of ledgers that the bookie has never seen; all others proceed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from bkspark.blocking import Client
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.wire import v2
from bkspark.wire.status import EOK, Status
from bookie_service.engine import new_ledgers, rules
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.engine.new_ledgers import NewLedgers
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.io.files import ReadOnlyFiles
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.serving import Serving, service_options
from tests.cluster import GuestCluster
from tests.floods.requests import HELD, REQUESTS, UNKNOWN

BURST = 50
FLOOD = 2000
OTHER = "127.0.0.2"


@dataclass(frozen=True)
class At:
    """A peer at an address."""

    address: str


def limited(directory: Path, storage: StorageClass = StorageClass.SORTED) -> ServiceOptions:
    """Return options of a bookie that lets an address begin 50 ledgers, and then one every quarter of an hour or so."""
    options = service_options(directory, store=StoreOptions(storage))
    return replace(options, bookie=replace(options.bookie, new_ledgers_per_s=1, new_ledgers_burst=BURST))


# ---- the rule ----


def test_each_address_has_its_burst_and_then_its_rate() -> None:
    now = 100.0
    limits = NewLedgers(8, 3, lambda: now)
    one, other = At("one"), At("other")
    assert [limits.take(one) for _ in range(5)] == [True, True, True, False, False]
    assert [limits.take(other) for _ in range(4)] == [True, True, True, False]
    now += 0.125
    assert [limits.take(one) for _ in range(2)] == [True, False]
    now += 60.0
    assert [limits.take(one) for _ in range(4)] == [True, True, True, False], "what is unused does not add up"


def test_without_a_rate_there_is_no_limit() -> None:
    limits = NewLedgers(0, 1, lambda: 0.0)
    assert all(limits.take(At("one")) for _ in range(1000))


def test_refusals_are_logged_once_until_the_address_may_go_on(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limits = NewLedgers(1, 1, lambda: now)
    for _ in range(5):
        limits.take(At("10.0.0.9"))
    (line,) = caplog.messages
    assert line.startswith("10.0.0.9 begins more than 1 ledgers a second")
    assert "maxNewLedgersPerSecondPerAddress" in line
    now += 1.0
    for _ in range(5):
        limits.take(At("10.0.0.9"))
    assert len(caplog.messages) == 2


def test_addresses_that_have_all_their_room_again_are_forgotten() -> None:
    now = 0.0
    limits = NewLedgers(1, 2, lambda: now)
    for number in range(new_ledgers.ADDRESSES_MAX):
        limits.take(At(f"{number}"))
    now += 1.0
    limits.take(At("greedy"))
    limits.take(At("greedy"))
    now += 0.5
    assert len(limits) <= 2, "all others have been quiet for long enough"
    assert not limits.take(At("greedy"))


def test_a_peer_with_ever_new_addresses_costs_bounded_memory() -> None:
    now = 0.0
    limits = NewLedgers(1, 2, lambda: now)
    for number in range(3 * new_ledgers.ADDRESSES_MAX):
        assert limits.take(At(f"{number}"))
        assert len(limits) <= new_ledgers.ADDRESSES_MAX
    last = At(f"{3 * new_ledgers.ADDRESSES_MAX - 1}")
    assert [limits.take(last) for _ in range(2)] == [True, False], "the latest addresses are remembered"


def test_adds_that_are_refused_anyway_keep_their_answers() -> None:
    statuses = np.array([EOK, Status.EBADREQ, EOK], np.int32)
    assert np.asarray(rules.refused_if_new(statuses)).tolist() == [106, 100, 106]
    assert rules.refused_if_new(EOK) == Status.ETOOMANYREQUESTS


def test_default_leaves_room_for_a_broker_that_begins_thousands_of_ledgers_at_once() -> None:
    options, now = BookieOptions(), 0.0
    limits = NewLedgers(options.new_ledgers_per_s, options.new_ledgers_burst, lambda: now)
    assert all(limits.take(At("broker")) for _ in range(10_000))
    for _ in range(600):
        now += 1.0
        assert all(limits.take(At("broker")) for _ in range(300))


# ---- floods ----


@pytest.mark.parametrize("storage", [StorageClass.SORTED, StorageClass.DB], ids=lambda each: each.short_name)
def test_flood_of_adds_to_new_ledgers_ends_at_the_limit_and_others_proceed(
    tmp_path: Path, storage: StorageClass
) -> None:
    with (
        Serving(limited(tmp_path, storage)) as serving,
        serving.connect() as greedy,
        serving.connect(OTHER) as honest,
    ):
        assert greedy.add(HELD, 0, [b"x"]) == [Status.EOK]
        answers = [greedy.add(UNKNOWN + number, 0, [b"x"])[0] for number in range(FLOOD)]
        taken = answers.count(Status.EOK)
        assert BURST - 1 <= taken < FLOOD // 4
        assert answers.count(Status.ETOOMANYREQUESTS) == FLOOD - taken
        assert answers[: BURST - 1] == [Status.EOK] * (BURST - 1)
        # Ledgers that the bookie has, of the same peer, and new ones of another address.
        assert greedy.add(HELD, 1, [b"y"]) == greedy.add(UNKNOWN, 1, [b"y"]) == [Status.EOK]
        assert all(honest.add(number, 0, [b"z"]) == [Status.EOK] for number in range(100, 100 + BURST))
        # What was refused left no trace: the same add passes when it comes from there.
        refused = UNKNOWN + len(answers) - 1 - answers[::-1].index(Status.ETOOMANYREQUESTS)
        assert honest.read(refused, 0).status == Status.ENOLEDGER
    files = list(tmp_path.rglob("*.idx"))
    assert len(files) <= taken + BURST + 1


@pytest.mark.parametrize("name", ["V2 fences of unknown ledgers", "V3 explicit LACs of unknown ledgers"])
def test_floods_of_fences_and_lacs_end_at_the_limit(tmp_path: Path, name: str) -> None:
    options = limited(tmp_path)
    with Serving(options) as serving, serving.connect() as greedy, serving.connect(OTHER) as honest:
        greedy.send(REQUESTS[name](FLOOD))
        for _ in range(FLOOD):
            assert greedy.frame() is not None
        # A fence of a ledger that the bookie has begins none.
        assert greedy.read(UNKNOWN, -1, v2.DO_FENCING).status != Status.ETOOMANYREQUESTS
        assert greedy.read(UNKNOWN + FLOOD, -1, v2.DO_FENCING).status == Status.ETOOMANYREQUESTS
        assert honest.read(UNKNOWN + FLOOD, -1, v2.DO_FENCING).status != Status.ETOOMANYREQUESTS
    current = str(Path(options.ledger_directories[0]) / "current")
    begun = LedgerHeaders(ReadOnlyFiles(), [current], None).ledger_ids()
    assert BURST < len(begun) < FLOOD // 4


@pytest.mark.cluster
def test_a_client_that_is_refused_continues_by_itself(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    settings = {"maxNewLedgersPerSecondPerAddress": "20", "newLedgersBurstPerAddress": "2"}
    with GuestCluster(zookeeper, tmp_path, bookies=1, settings=settings) as cluster, Client(cluster.uri) as client:
        for number in range(12):
            with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                assert writer.append_many([b"%d" % number] * 3) == 2
            assert client.metadata(writer.ledger_id).last_entry == 2
