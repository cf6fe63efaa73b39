"""LedgerStore at the ends of its counters, and where an answer is lost; in memory (M1, docs/protocol.md §4.5, §4.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import MetadataError, MetadataVersion, NoSuchLedger
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LONG_GENERATORS_KEPT, LedgerStore, Versioned
from bkspark.metadata.memory import Fault, MemoryStore
from bkspark.metadata.paths import SHORT_ID_MAX
from bkspark.metadata.tree import Check
from bkspark.metadata.uri import MetadataUri
from tests.metadata.meanwhile import Meanwhile

URI = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
FLAT = MetadataUri.parse("zk+flat://127.0.0.1:2181/ledgers")
METADATA = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),))


def run(test: Callable[[MemoryStore, LedgerStore], Awaitable[None]], uri: MetadataUri = URI) -> None:
    async def call() -> None:
        store = MemoryStore()
        tree = store.session()
        await BookieRegistry(tree, uri).initialize_cluster()
        await test(store, LedgerStore(tree, uri))

    asyncio.run(call())


# ---- ids ----


def test_last_short_id_is_given_and_long_ones_follow() -> None:
    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        await ledgers.create(METADATA)
        store.node("/ledgers/idgen").sequence = SHORT_ID_MAX
        given = [(await ledgers.create(METADATA))[0] for _ in range(3)]
        assert given == [SHORT_ID_MAX, 1 << 32, 1 << 32 | 1]

    run(test)


@pytest.mark.parametrize("sequence", [SHORT_ID_MAX + 1, -5], ids=["used up", "it has overflowed"])
def test_next_generator_follows_an_exhausted_one_of_long_ids_and_the_oldest_is_removed(sequence: int) -> None:
    """ZooKeeper's counters are 32-bit ones, and go on below 0."""

    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        root, tree = "/ledgers/idgen-long", store.session()
        for number in range(1, LONG_GENERATORS_KEPT + 2):
            await tree.create(f"{root}/HOB-{number:010d}", make_parents=True)
        last = LONG_GENERATORS_KEPT + 1
        store.node(f"{root}/HOB-{last:010d}").sequence = sequence
        assert (await ledgers.create(METADATA))[0] == last + 1 << 32
        await asyncio.sleep(0)
        assert await tree.children(root) == [f"HOB-{number:010d}" for number in range(2, last + 2)]

    run(test)


def test_flat_cluster_whose_counter_is_used_up_makes_no_ledger() -> None:
    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        store.node("/ledgers").sequence = SHORT_ID_MAX
        assert (await ledgers.create(METADATA))[0] == SHORT_ID_MAX
        with pytest.raises(MetadataError, match="has given out all its ledger ids"):
            await ledgers.create(METADATA)

    run(test, FLAT)


def test_counter_leaves_no_nodes() -> None:
    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        for _ in range(3):
            await ledgers.create(METADATA)
        await asyncio.sleep(0)
        assert await store.session().children("/ledgers/idgen") == []

    run(test)


# ---- changes ----


def test_token_is_that_of_the_creation_and_no_change_carries_it() -> None:
    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        ledger_id, created = await ledgers.create(METADATA)
        assert created.metadata.ctoken
        assert await ledgers.as_created(ledger_id) == Check("/ledgers/00/0000/L0000", 0)
        await ledgers.write(ledger_id, created.metadata.closed(3, 30), created.version)
        assert (await ledgers.read(ledger_id)).metadata.ctoken == 0

    run(test)


def test_own_bytes_with_a_later_version_than_the_next_are_those_of_another_client() -> None:
    """Two recoveries may store equal bytes. This write did not take effect, so another one decides."""

    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        ledger_id, created = await ledgers.create(METADATA)
        closed = created.metadata.closed(3, 30)

        async def lost_to_another() -> None:
            claimed = await ledgers.write(ledger_id, created.metadata.in_recovery(), created.version)
            await ledgers.write(ledger_id, closed, claimed.version)
            raise MetadataError("the connection to the metadata store was lost")

        with pytest.raises(MetadataVersion, match="has version 2, not the expected 0"):
            await LedgerStore(Meanwhile(store, set=lost_to_another), URI).write(ledger_id, closed, created.version)

    run(test)


@pytest.mark.parametrize("changes", [0, 1, 2], ids=["as created", "read once changed", "read twice changed"])
@pytest.mark.parametrize("is_in_between", [False, True], ids=["before the write", "after a lost connection"])
def test_ledger_under_the_id_of_a_deleted_one_is_not_changed_though_the_version_is_equal(
    changes: int, *, is_in_between: bool
) -> None:
    """A writer that stood still, or a repair, had read the first one. ZooKeeper compares the version alone, and each
    ledger begins with version 0."""

    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        async def new(bookie: str) -> Versioned:
            metadata = replace(METADATA, fragments=(Fragment(0, (bookie,)),))
            stored = (await ledgers.create(metadata, ledger_id=7))[1]
            for first_entry in range(1, changes + 1):
                changed = stored.metadata.with_ensemble(first_entry, (f"{bookie}{first_entry}",))
                stored = await ledgers.write(7, changed, stored.version)
            return stored

        async def replaced_by_another() -> None:
            await ledgers.delete(7)
            await new("other:1")
            if is_in_between:
                raise MetadataError("the connection to the metadata store was lost")

        before = await new("b:1")
        late = LedgerStore(Meanwhile(store, set=replaced_by_another), URI) if is_in_between else ledgers
        if not is_in_between:
            await replaced_by_another()
        with pytest.raises(NoSuchLedger, match="another one was created under its id"):
            await late.write(7, before.metadata.closed(3, 30), before.version)
        stored = await ledgers.read(7)
        assert (stored.version, stored.metadata.fragments[0].bookies) == (changes, ("other:1",))
        assert not stored.metadata.is_closed

    run(test)


def test_creator_knows_its_ledger_after_a_lost_answer() -> None:
    """The node that it then finds has its token."""

    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        await ledgers.create(METADATA, ledger_id=6)
        store.faults[store.writes] = Fault.LOST_AFTER
        _, created = await ledgers.create(METADATA, ledger_id=7)
        assert not store.faults
        assert created.metadata.creation == (await ledgers.read(7)).metadata.creation > 0

    run(test)


@pytest.mark.parametrize("is_answered", [False, True], ids=["its answer is lost", "its answer comes"])
def test_write_that_may_have_reached_another_ledger_is_not_reported_as_one_to_its_own(*, is_answered: bool) -> None:
    """The other ledger comes after the look-up. Its metadata may become equal to those that were to be written."""

    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        _, created = await ledgers.create(METADATA, ledger_id=7)
        closed = created.metadata.closed(3, 30)

        async def replaced_by_another() -> None:
            await ledgers.delete(7)
            _, other = await ledgers.create(METADATA, ledger_id=7)
            if not is_answered:
                await ledgers.write(7, other.metadata.closed(3, 30), other.version)
                raise MetadataError("the connection to the metadata store was lost")

        late = LedgerStore(Meanwhile(store, set=replaced_by_another), URI)
        with pytest.raises(NoSuchLedger, match="another one was created under its id"):
            await late.write(7, closed, created.version)

    run(test)


def test_write_that_the_store_refuses_is_not_tried_again() -> None:
    """Such as one that is too large: each further try would cost all users of the session their connection."""

    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        ledger_id, created = await ledgers.create(METADATA)

        async def refused() -> None:
            error = MetadataError("it is too large")
            error.is_outage = False
            raise error

        tree = Meanwhile(store, set=refused)
        with pytest.raises(MetadataError, match="it is too large"):
            await LedgerStore(tree, URI).write(ledger_id, created.metadata.closed(3, 30), created.version)
        assert (await ledgers.read(ledger_id)).version == created.version

    run(test)


@pytest.mark.parametrize("fault", Fault)
def test_deletion_counts_if_its_answer_was_lost_and_fails_if_it_was_not_made(fault: Fault) -> None:
    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        ledger_id, _ = await ledgers.create(METADATA)
        await asyncio.sleep(0)
        store.faults[store.writes] = fault
        if fault is Fault.LOST_BEFORE:
            with pytest.raises(MetadataError, match="connection"):
                await ledgers.delete(ledger_id)
        else:
            await ledgers.delete(ledger_id)
        assert [each async for each in ledgers.ids()] == ([ledger_id] if fault is Fault.LOST_BEFORE else [])

    run(test)


def test_read_that_must_be_caught_up_writes_before_it_reads() -> None:
    """A server answers reads from its own copy, which may lag; a write is answered after all writes before it."""

    async def test(store: MemoryStore, ledgers: LedgerStore) -> None:
        ledger_id, created = await ledgers.create(METADATA)

        async def another_change() -> None:
            await ledgers.write(ledger_id, created.metadata.in_recovery(), created.version)

        tree = Meanwhile(store, transaction=another_change)
        assert (await LedgerStore(tree, URI).read_caught_up(ledger_id)).version == created.version + 1

    run(test)


def test_missing_cluster_is_certain_and_no_outage() -> None:
    """A writer would wait for a store that is away."""
    with pytest.raises(MetadataError, match="there is no cluster") as shown:
        asyncio.run(LedgerStore(MemoryStore().session(), URI).create(METADATA))
    assert not shown.value.is_outage
