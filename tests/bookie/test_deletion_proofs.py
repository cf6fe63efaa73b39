"""Which ledgers garbage collection may drop: two rounds of proofs by a session that has caught up (B8, Z6)."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from bkspark.wire import v2
from bkspark.wire.digest import master_key
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from bookie_service.gc import gc_policy
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.deletion_proofs import DeletionProofs
from bookie_service.gc.gc_policy import MissingLedgers
from bookie_service.storage.ledgers.base import StoreOptions
from tests.bookie.collecting import OF_OTHERS, UNLIMITED, Bench, FakeCluster
from tests.bookie.metadata_views import Follower
from tests.crash.history import History
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.twins import BookieTwin, Sent, Setup

URI = MetadataUri.parse("zk://h/ledgers")
US = "us:1"
PASSES = 12
"""As the documentation says: a ledger that the brake holds is dropped when it was missing in this many passes."""

# ---- rules ----


def unlisted(own: list[int], pages: list[list[int]]) -> list[int]:
    """Return the own ledgers that are in none of the pages of a listing."""
    found = gc_policy.UnlistedLedgers(np.array(own, np.int64))
    for page in pages:
        found.note(np.array(page, np.int64))
    assert found.listed_count == sum(map(len, pages))
    return found.ledger_ids().tolist()


def test_only_own_ledgers_that_the_listing_lacks_are_missing() -> None:
    assert unlisted([1, 5, 9], [[1, 7, 9]]) == [5]
    assert unlisted([1, 5, 9], [[1], [7, 9]]) == [5]
    assert unlisted([1, 5, 9], [[0, 2, 5], [8]]) == [1, 9]
    assert unlisted([1, 5], [[]]) == unlisted([1, 5], []) == [1, 5]
    assert unlisted([], [[1, 2]]) == []
    assert gc_policy.is_in(np.array([9, 1, 8]), np.array([1, 5, 9])).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("own", "missing", "share", "is_empty", "holds"),
    [
        (20, 20, 0.2, False, False),
        (21, 21, 0.2, False, True),
        (200, 40, 0.2, False, False),
        (200, 41, 0.2, False, True),
        (1, 1, 0.2, True, True),
        (1, 0, 0.2, True, False),
        (200, 200, 1.0, False, False),
        (200, 200, 1.0, True, False),
    ],
)
def test_brake_holds_when_a_good_part_of_many_ledgers_would_vanish_or_the_listing_is_empty(
    own: int, missing: int, share: float, is_empty: bool, holds: bool
) -> None:
    assert (gc_policy.brake(own, missing, share, is_listing_empty=is_empty) is not None) == holds


@pytest.mark.parametrize("seed", range(5))
def test_missing_ledgers_count_as_a_dictionary_would(seed: int) -> None:
    random = Random(seed)
    interval_s = 10.0
    missing = MissingLedgers(interval_s)
    passes: dict[int, int] = {}
    counted: dict[int, float] = {}
    proven: dict[int, float] = {}
    now_s = 0.0
    for _ in range(60):
        now_s += random.choice((1.0, 9.0, 10.0, 25.0))
        found = sorted(random.sample(range(12), random.randrange(12)))
        missing.note(np.array(found, np.int64), now_s)
        for known in (passes, counted, proven):
            for gone in [each for each in known if each not in found]:
                del known[gone]
        for ledger_id in found:
            if ledger_id not in passes or now_s - counted[ledger_id] >= interval_s:
                passes[ledger_id] = passes.get(ledger_id, 0) + 1
                counted[ledger_id] = now_s
        shown = [each for each in found if random.random() < 0.5]
        missing.note_proven(np.array(shown, np.int64), now_s)
        for ledger_id in shown:
            proven.setdefault(ledger_id, now_s)
        there = [each for each in found if random.random() < 0.2]
        missing.forget(np.array(there, np.int64))
        for known in (passes, counted, proven):
            for gone in there:
                known.pop(gone, None)
        for least in (1, 2, 3):
            assert missing.missing_for(least).tolist() == [each for each in sorted(passes) if passes[each] >= least]
        before = [each for each in sorted(proven) if now_s - proven[each] >= interval_s]
        assert missing.proven_before(now_s).tolist() == before


# ---- a bookie against a metadata store ----


def with_ledgers(tmp_path: Path, count: int) -> Bench:
    bench = Bench(tmp_path)
    for ledger_id in range(count):
        bench.put(ledger_id, range(1))
    bench.flush()
    return bench


def test_ledger_is_dropped_by_the_second_of_two_passes_that_lie_an_interval_apart(tmp_path: Path) -> None:
    bench = with_ledgers(tmp_path, 3)
    bench.delete(1)
    assert bench.collect_in_passes(1).dropped_ledgers == 0
    assert bench.collect_in_passes(5, interval_s=UNLIMITED.interval_s / 8).dropped_ledgers == 0
    assert bench.collect_in_passes(2).dropped_ledgers == 1
    assert bench.store.index.ledger_ids().tolist() == [0, 2]
    bench.store.close()


def test_pass_that_is_asked_for_proves_twice_and_does_not_wait(tmp_path: Path) -> None:
    bench = with_ledgers(tmp_path, 3)
    bench.delete(1)
    assert bench.collect().dropped_ledgers == 1
    assert bench.cluster.direct_reads == [1, 1]
    bench.store.close()


@pytest.mark.parametrize("is_forced", [False, True])
def test_ledger_that_comes_back_between_two_rounds_is_kept(tmp_path: Path, is_forced: bool) -> None:
    """A listing and a read that were wrong once, as of metadata that are just being restored."""
    bench = with_ledgers(tmp_path, 3)
    bench.delete(1)
    listings = 0

    def restore() -> None:
        nonlocal listings
        listings += 1
        # The first round is over when the second one lists.
        if listings == 2:
            bench.cluster.existing.add(1)

    bench.cluster.before_listing = restore
    assert (bench.collect() if is_forced else bench.collect_in_passes(4)).dropped_ledgers == 0
    bench.delete(1)
    assert (bench.collect() if is_forced else bench.collect_in_passes(2)).dropped_ledgers == 1
    bench.store.close()


class ReusedId(FakeCluster):
    """After the direct read of ledger 1 a client creates it again, and adds to it."""

    def __init__(self, create: Callable[[], None]) -> None:
        super().__init__()
        self._create = create

    async def is_deleted(self, ledger_id: int) -> bool:
        is_deleted = await super().is_deleted(ledger_id)
        if ledger_id == 1:
            self._create()
        return is_deleted


@pytest.mark.parametrize("is_forced", [False, True])
def test_ledger_that_is_created_again_with_the_same_id_after_its_direct_read_is_kept(
    tmp_path: Path, is_forced: bool
) -> None:
    """The reads of all missing ledgers may take minutes. By then its entries are flushed, and before the marks."""
    bench = with_ledgers(tmp_path, 3)
    rounds = 0

    def create() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            bench.put(1, range(3, 6))
            bench.flush()

    bench.cluster = ReusedId(create)
    bench.cluster.existing |= {0, OF_OTHERS}
    report = bench.collect() if is_forced else bench.collect_in_passes(2)
    assert report.dropped_ledgers == 1, "ledger 2 is deleted"
    bench.reopen()
    assert bench.holds(1, range(3, 6))
    assert bench.store.index.all_lost() == []
    (path,) = tmp_path.rglob("1.idx")
    path.unlink()
    assert bench.store.index.all_lost() == [1], "the loss of its index file is noticed as before"
    bench.store.close()


class RecordingMetadataView(FakeCluster):
    """Notes what it is asked, in order."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self._calls = calls

    async def catch_up(self) -> None:
        self._calls.append("catch up")

    def listed(self) -> AsyncIterator[np.ndarray]:
        self._calls.append("listing")
        return super().listed()

    async def is_deleted(self, ledger_id: int) -> bool:
        self._calls.append(f"read {ledger_id}")
        return await super().is_deleted(ledger_id)


def test_z6_session_catches_up_before_the_listing_and_before_the_direct_reads(tmp_path: Path) -> None:
    bench = with_ledgers(tmp_path, 3)
    calls: list[str] = []

    async def in_thread(function: Callable[..., object], *arguments: object) -> object:
        if function == bench.store.index.ledger_ids:
            calls.append("own")
        return function(*arguments)

    async def pace() -> None:
        return None

    metadata_view = RecordingMetadataView(calls)
    metadata_view.existing |= {2}
    proofs = DeletionProofs(bench.store.index, metadata_view, 600, 0.2, in_thread)
    assert asyncio.run(proofs.deleted(pace, lambda why: None, is_forced=True)).tolist() == [0, 1]
    assert calls == ["own", "catch up", "listing", "catch up", "read 0", "read 1"] * 2
    bench.store.close()


@pytest.mark.parametrize("is_forced", [False, True])
def test_z6_ledger_that_a_lagging_server_does_not_show_yet_is_kept(tmp_path: Path, is_forced: bool) -> None:
    """A ledger of a second ago: created at the leader, written and flushed here, and our server lags behind."""

    async def test() -> int:
        store = MemoryStore()
        leader = LedgerStore(store.session(), URI)
        await BookieRegistry(store.session(), URI).initialize_cluster()
        follower = Follower(store, store.session().session_id, 10.0)
        metadata_view = LedgerMetadataView(follower, URI, US)
        await metadata_view.open()
        for ledger_id in (*range(30), OF_OTHERS):
            await leader.create(LedgerMetadata(1, 1, 1, (Fragment(0, (US,)),)), ledger_id=ledger_id)
        bench = with_ledgers(tmp_path, 30)
        behind = copy.deepcopy(store)
        await leader.create(LedgerMetadata(1, 1, 1, (Fragment(0, (US,)),)), ledger_id=77)
        bench.put(77, range(1))
        bench.flush()
        bench.cluster = _Lagging(metadata_view, follower, behind)
        report = await bench.run_passes(1 if is_forced else 3, is_forced=is_forced)
        assert 77 in bench.store.index.ledger_ids()
        bench.store.close()
        return report.dropped_ledgers

    assert asyncio.run(test()) == 0


class _Lagging:
    """A real view whose session falls behind before each round."""

    def __init__(self, metadata_view: LedgerMetadataView, follower: Follower, behind: MemoryStore) -> None:
        self._metadata_view = metadata_view
        self._follower = follower
        self._behind = behind
        self.is_deleted = metadata_view.is_deleted
        self.elsewhere = metadata_view.elsewhere

    async def catch_up(self) -> None:
        self._follower.lagging = self._behind.session()
        await self._metadata_view.catch_up()

    def listed(self) -> AsyncIterator[np.ndarray]:
        return self._metadata_view.listed()


# ---- the brake ----


def test_fences_of_ledgers_without_entries_do_not_hold_the_brake() -> None:
    """Any client may fence ledgers that do not exist, with any key, and this bookie must remember the fences."""
    options = CollectionOptions(entries_per_s=0, bytes_per_s=0)
    setup = Setup(store=StoreOptions(cache_half_bytes=1 << 20), collection=options)
    twin = BookieTwin(setup.new_disk(), setup, History())
    for ledger_id in range(1, 101):
        twin.add(ledger_id, [(0, b"x" * 300)])
    for ledger_id in range(1_000_000, 1_000_400):
        octets, runs = twin.received(Sent(), v2.encode_reads(ledger_id, np.array([-1]), v2.DO_FENCING, b"s" * 20))
        runs.serve(octets)
    twin.settle()
    twin.checkpoint()
    report = twin.collect(DoubtfulMetadataView(set(range(16, 101))))  # 15 of the 100 were deleted
    assert report.kept_because == ""
    assert report.dropped_ledgers >= 15
    assert twin.store.index.ledger_ids().tolist() == list(range(16, 101))


def test_z10_ledgers_without_entries_do_not_loosen_the_brake(tmp_path: Path) -> None:
    """Any client can make a bookie know such ledgers, so a share of them must not allow a mass deletion."""
    bench = with_ledgers(tmp_path, 60)
    fenced = range(1000, 1400)
    for ledger_id in fenced:
        bench.store.fence(bench.store.create_ledger(ledger_id, master_key(b"")))
    bench.cluster.existing.update(fenced)
    bench.flush()
    bench.delete(*range(30))
    report = bench.collect()
    assert report.dropped_ledgers == 0
    assert "30 of 60 ledgers of this bookie with entries" in report.kept_because
    bench.store.close()


def test_z10_ledgers_that_the_brake_holds_go_when_they_are_missing_in_many_passes(tmp_path: Path) -> None:
    """A bookie that was down while most of its ledgers were deleted: the operator does not have to restart it without
    the brake."""
    bench = with_ledgers(tmp_path, 60)
    bench.delete(*range(50))
    held = bench.collect_in_passes(PASSES)
    assert held.dropped_ledgers == 0
    assert "50 of 60 ledgers of this bookie with entries are not in the metadata store" in held.kept_because
    assert bench.collect().dropped_ledgers == 0, "the brake holds for a pass that is asked for, too"
    assert bench.collect_in_passes(PASSES + 1).dropped_ledgers == 50
    assert bench.store.index.ledger_ids().tolist() == list(range(50, 60))
    bench.store.close()


@pytest.mark.parametrize(("passes", "dropped"), [(2 * PASSES, 0), (2 * PASSES + 1, 50)])
def test_z10_ledgers_that_a_direct_read_finds_get_the_whole_time_again(
    tmp_path: Path, passes: int, dropped: int
) -> None:
    """A listing misses ledgers that exist, and they are deleted just after they were found."""
    bench = with_ledgers(tmp_path, 60)
    bench.cluster.unlisted = set(range(50))
    listings = 0

    def delete_after_the_reads() -> None:
        nonlocal listings
        listings += 1
        if listings == PASSES + 1:
            assert bench.cluster.direct_reads == list(range(50))
            bench.delete(*range(50))

    bench.cluster.before_listing = delete_after_the_reads
    assert bench.collect_in_passes(passes).dropped_ledgers == dropped
    bench.store.close()


def test_z10_restart_gives_the_operator_the_whole_time_again(tmp_path: Path) -> None:
    """An operator who restores metadata restarts bookies, and may have taken the wrong backup."""
    bench = with_ledgers(tmp_path, 60)
    bench.delete(*range(50))
    for _ in range(2):
        assert bench.collect_in_passes(PASSES).dropped_ledgers == 0
        bench.reopen(cleanly=True)
    assert bench.collect_in_passes(PASSES + 1).dropped_ledgers == 50
    bench.store.close()


def test_z10_nothing_is_ever_dropped_while_the_metadata_store_lists_no_ledger(tmp_path: Path) -> None:
    bench = with_ledgers(tmp_path, 3)
    bench.cluster.existing = set()
    report = bench.collect_in_passes(3 * PASSES)
    assert report.dropped_ledgers == 0
    assert "the metadata store lists no ledger at all, and this bookie has 3 with entries" in report.kept_because
    assert bench.cluster.direct_reads == []
    assert bench.collect(replace(UNLIMITED, deleted_share_max=1.0)).dropped_ledgers == 3
    bench.store.close()


def test_one_restored_backup_drops_nothing_at_once(tmp_path: Path) -> None:
    """ZooKeeper came back with an older state, as an operator notices within the time of a few passes."""
    bench = with_ledgers(tmp_path, 100)
    newer = set(range(70, 100))
    bench.cluster.existing -= newer
    assert bench.collect_in_passes(PASSES).dropped_ledgers == 0
    bench.cluster.existing |= newer
    assert bench.collect_in_passes(3).dropped_ledgers == 0
    assert len(bench.store.index.ledger_ids()) == 100
    bench.store.close()
