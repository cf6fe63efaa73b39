"""Ledger metadata in the tree: ids, compare-and-set, lost connections (M1), listing."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import (
    ConfigurationError,
    LedgerExists,
    MetadataError,
    MetadataFormat,
    MetadataVersion,
    NoSuchLedger,
    NoSuchNode,
)
from bkspark.ids import LEDGER_ID_MAX
from bkspark.metadata import encoding, paths
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import DELETE_TRIES_MAX, SKIPPED_AT_ONCE, SKIPPED_IDS_MAX, LedgerStore
from bkspark.metadata.memory import Fault, MemoryStore, MemoryTree
from bkspark.metadata.tree import ANY_VERSION
from bkspark.metadata.uri import MetadataUri

METADATA = LedgerMetadata(3, 3, 2, (Fragment(0, ("b:1", "b:2", "b:3")),), custom_metadata={"k": b"v"})


async def store_of(tree, uri):
    await BookieRegistry(tree, uri).initialize_cluster()
    return LedgerStore(tree, uri)


async def listed(ledgers):
    return [ledger_id async for ledger_id in ledgers.ids()]


def test_ledger_is_read_as_it_was_created_and_changed(trees):
    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        ledger_id, created = await ledgers.create(METADATA)
        stored = await ledgers.read(ledger_id)
        assert stored.metadata == created.metadata
        assert stored.metadata.ctoken > 0
        closed = await ledgers.write(ledger_id, stored.metadata.closed(9, 90), stored.version)
        assert (await ledgers.read(ledger_id)).metadata == closed.metadata
        with pytest.raises(MetadataVersion):
            await ledgers.write(ledger_id, stored.metadata.in_recovery(), stored.version)

    trees.run(test)


@pytest.mark.parametrize("scheme", ["hierarchical", "flat", "longhierarchical"])
def test_ids_of_both_sizes_are_listed_and_deleted_without_a_trace(trees, scheme):
    async def test(tree):
        uri = MetadataUri(trees.uri.hosts, trees.uri.root, MetadataUri.parse(f"zk+{scheme}://h/l").manager)
        ledgers = await store_of(tree, uri)
        before = await tree.children(uri.root)
        ids = [0, 5, 12345, 2147483646, 2147483647, 4294967296, 4294967301]
        for ledger_id in ids:
            await ledgers.create(METADATA, ledger_id=ledger_id)
        assert sorted(await listed(ledgers)) == ids
        with pytest.raises(LedgerExists):
            await ledgers.create(METADATA, ledger_id=5)
        for ledger_id in ids:
            await ledgers.delete(ledger_id)
            with pytest.raises(NoSuchLedger):
                await ledgers.read(ledger_id)
        assert await listed(ledgers) == []
        assert await tree.children(uri.root) == before

    trees.run(test)


@pytest.mark.parametrize("scheme", ["hierarchical", "legacyhierarchical", "flat", "longhierarchical"])
def test_skipped_ids_are_not_assigned_again(trees, scheme):
    """With metadata of an older backup, a new ledger got an id of which bookies had the entries of a lost ledger."""

    async def test(tree):
        uri = MetadataUri(trees.uri.hosts, trees.uri.root, MetadataUri.parse(f"zk+{scheme}://h/l").manager)
        ledgers = await store_of(tree, uri)
        before, _ = await ledgers.create(METADATA)
        for above in (before, before + 1, before + 2 * SKIPPED_AT_ONCE + 7):
            assert await ledgers.skip_ids(above) >= above
            found, _ = await ledgers.create(METADATA)
            assert found > above
        # Nothing is to do.
        assert found < await ledgers.skip_ids(before) < found + 10
        with pytest.raises(ConfigurationError, match="at most 1000000 are skipped"):
            await ledgers.skip_ids(found + SKIPPED_IDS_MAX + 10)
        with pytest.raises(ConfigurationError, match="name one below"):
            await ledgers.skip_ids(LEDGER_ID_MAX)
        assert found < (await ledgers.create(METADATA))[0] < found + 20

    trees.run(test)


@pytest.mark.parametrize("scheme", ["hierarchical", "longhierarchical"])
def test_ids_of_31_bits_are_all_skipped_at_once(trees, scheme):
    async def test(tree):
        uri = MetadataUri(trees.uri.hosts, trees.uri.root, MetadataUri.parse(f"zk+{scheme}://h/l").manager)
        ledgers = await store_of(tree, uri)
        assert (await ledgers.create(METADATA))[0] == 0
        for above, first in ((paths.SHORT_ID_MAX, 1 << 32), (5 << 32, 6 << 32), ((7 << 32) - 1, 7 << 32)):
            assert await ledgers.skip_ids(above) == first
            assert (await ledgers.create(METADATA))[0] == first + 1
        # Another client looks up whether ids are long.
        assert (await LedgerStore(tree, uri).create(METADATA))[0] == (7 << 32) + 2

    trees.run(test)


def test_id_that_the_ledger_manager_has_no_place_for_is_refused_by_name():
    async def test():
        uri = MetadataUri.parse("zk+legacyhierarchical://h:1/ledgers")
        ledgers = await store_of(MemoryStore().session(), uri)
        assert (await ledgers.create(METADATA, ledger_id=10**10 - 1))[0] == 10**10 - 1
        with pytest.raises(ConfigurationError, match="10000000000 does not fit the legacyhierarchical scheme"):
            await ledgers.create(METADATA, ledger_id=10**10)
        with pytest.raises(NoSuchLedger):
            await ledgers.read(10**10)

    asyncio.run(test())


def test_generated_ids_are_distinct_and_go_long_where_the_cluster_has(trees):
    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        short = [(await ledgers.create(METADATA))[0] for _ in range(3)]
        await tree.create(f"{trees.uri.root}/idgen-long")
        later = LedgerStore(tree, trees.uri)
        long = [(await later.create(METADATA))[0] for _ in range(3)]
        assert len({*short, *long}) == 6
        assert all(ledger_id >> 32 == 1 for ledger_id in long)
        assert set(await listed(ledgers)) == {*short, *long}

    trees.run(test)


def test_long_ids_come_from_the_last_generator_whatever_else_is_there(trees):
    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        for name in ("", "/HOB-0000000002", "/HOB-0000000010", "/HOB-x", "/HOB-", "/other"):
            await tree.create(f"{trees.uri.root}/idgen-long{name}")
        assert [(await ledgers.create(METADATA))[0] >> 32 for _ in range(2)] == [10, 10]

    trees.run(test)


def flat(uri):
    return MetadataUri(uri.hosts, uri.root, MetadataUri.parse("zk+flat://h/l").manager)


async def apaches_ledger(tree, uri):
    """Create a ledger as Apache's FlatLedgerManagerFactory does; return its id (docs/protocol.md §4.2, §4.5)."""
    node, _ = await tree.create(f"{uri.root}/ID-", ephemeral=True, sequential=True)
    await tree.delete(node)
    ledger_id = int(node[-10:])
    await tree.create(f"{uri.root}/L{ledger_id:010d}", encoding.encode(METADATA))
    return ledger_id


def test_flat_cluster_takes_ids_from_the_counter_that_apaches_clients_use(trees):
    """With another counter, ids of Apache's deleted ledgers were given out again."""

    async def test(tree):
        uri = flat(trees.uri)
        ledgers = await store_of(tree, uri)
        given = []
        for _ in range(10):
            given += [await apaches_ledger(tree, uri), (await ledgers.create(METADATA))[0]]
            await ledgers.delete(given[-2])
            await ledgers.delete(given[-1])
        assert given == sorted(set(given))
        assert await listed(ledgers) == []
        assert await tree.exists(f"{uri.root}/idgen") is None

    trees.run(test)


def test_flat_cluster_gives_no_id_of_the_counter_before_again(trees):
    """Ids that earlier versions took from `idgen`, many of them without use, and whose ledgers were deleted."""

    async def test(tree):
        uri = flat(trees.uri)
        ledgers = await store_of(tree, uri)
        await tree.create(f"{uri.root}/idgen")
        before = []
        for number in range(40):
            node, _ = await tree.create(f"{uri.root}/idgen/ID-", ephemeral=True, sequential=True)
            await tree.delete(node)
            if number % 8 == 0:
                await ledgers.create(METADATA, ledger_id=int(node[-10:]))
                await ledgers.delete(int(node[-10:]))
            before.append(int(node[-10:]))
        new = [(await ledgers.create(METADATA))[0] for _ in range(5)]
        assert min(new) > max(before)
        assert new == sorted(set(new))

    trees.run(test)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("call", range(6))
def test_lost_connection_at_any_write_never_leaves_a_wrong_answer(fault, call):
    """M1: a creation, change or deletion whose answer was lost is found out by looking, never guessed."""

    async def test():
        store = MemoryStore()
        uri = MetadataUri.parse("zk://h:1/ledgers")
        tree = store.session()
        ledgers = await store_of(tree, uri)
        store.faults[store.writes + call] = fault
        stored = None
        try:
            ledger_id, stored = await ledgers.create(METADATA)
        except MetadataError:
            assert await listed(ledgers) == []
            return
        assert await listed(ledgers) == [ledger_id]
        written = await ledgers.write(ledger_id, stored.metadata.closed(3, 30), stored.version)
        assert await ledgers.read(ledger_id) == written
        try:
            await ledgers.delete(ledger_id)
            assert await listed(ledgers) == []
        except MetadataError:
            assert await listed(ledgers) == [ledger_id]

    asyncio.run(test())


def test_p30_creation_that_was_sent_twice_is_ours():
    """#1967: the second sending finds a node, and that is what the first one made."""

    async def test():
        tree = MemoryStore().session()
        ledgers = await store_of(tree, MetadataUri.parse("zk://h:1/ledgers"))
        create = tree.create

        async def create_twice(path, data=b"", **options):
            created = await create(path, data, **options)
            return created if options.get("sequential") else await create(path, data, **options)

        tree.create = create_twice
        ids = [(await ledgers.create(METADATA, ledger_id=5))[0], (await ledgers.create(METADATA))[0]]
        assert sorted(await listed(ledgers)) == sorted(ids)
        assert len({*ids}) == 2

    asyncio.run(test())


def test_write_ends_with_an_error_where_the_connection_is_lost_again_and_again():
    async def test():
        store = MemoryStore()
        ledgers = await store_of(store.session(), MetadataUri.parse("zk://h:1/ledgers"))
        ledger_id, stored = await ledgers.create(METADATA)
        store.faults.update(dict.fromkeys(range(store.writes, store.writes + 100), Fault.LOST_BEFORE))
        with pytest.raises(MetadataError, match="whether the write took effect is unknown"):
            await ledgers.write(ledger_id, stored.metadata.closed(3, 30), stored.version)
        assert (await ledgers.read(ledger_id)).version == stored.version

    asyncio.run(test())


@pytest.mark.parametrize("scheme", ["hierarchical", "flat", "longhierarchical"])
@pytest.mark.parametrize(
    "garbage", [b"", b"garbage", b"BookieMetadataFormatVersion\t4\nfrom the future", b"\xff" * 100], ids=repr
)
def test_metadata_that_cannot_be_parsed_are_shown_by_path_and_never_overwritten(trees, scheme, garbage):
    """A client with the old version loses the compare-and-set, and its read fails."""

    async def test(tree):
        uri = MetadataUri(trees.uri.hosts, trees.uri.root, MetadataUri.parse(f"zk+{scheme}://h/l").manager)
        ledgers = await store_of(tree, uri)
        ledger_id, stored = await ledgers.create(METADATA)
        path = uri.root + paths.ledger_path(ledger_id, uri.manager)
        version = (await tree.set(path, garbage, stored.version)).version
        for metadata in (stored.metadata.in_recovery(), stored.metadata.closed(3, 30)):
            with pytest.raises(MetadataVersion):
                await ledgers.write(ledger_id, metadata, stored.version)
        for read in (ledgers.read, ledgers.read_caught_up):
            with pytest.raises(MetadataFormat, match=path) as shown:
                await read(ledger_id)
            assert shown.value.ledger_id == ledger_id
        with pytest.raises(LedgerExists):
            await ledgers.create(METADATA, ledger_id=ledger_id)
        assert await listed(ledgers) == [ledger_id]
        data, stat = await tree.get(path)
        assert (data, stat.version) == (garbage, version)

    trees.run(test)


def no_check(metadata: LedgerMetadata) -> None:
    """Any ledger is the wanted one."""


def only_ours(metadata: LedgerMetadata) -> None:
    if metadata.custom_metadata != METADATA.custom_metadata:
        raise NoSuchLedger("another ledger")


def before_deletions(tree, others):
    """Let `others` act before each deletion of a ledger's node by this session."""
    delete = tree.delete

    async def late(path, version=ANY_VERSION):
        if path.endswith("77"):
            await others()
        await delete(path, version)

    tree.delete = late


def test_ledger_that_is_replaced_while_it_is_checked_is_not_deleted(trees):
    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        _, created = await ledgers.create(METADATA, ledger_id=77)
        await ledgers.write(77, created.metadata.closed(3, 30), created.version)
        node, delete = f"{trees.uri.root}{paths.ledger_path(77, await ledgers.manager())}", tree.delete
        other = encoding.encode(replace(METADATA, custom_metadata={"k": b"other"}))

        async def replaced():
            await delete(node)
            await tree.create(node, other)

        before_deletions(tree, replaced)
        with pytest.raises(NoSuchLedger, match="another ledger"):
            await ledgers.delete_checked(77, only_ours)
        assert (await tree.get(node))[0] == other

    trees.run(test)


def test_ledger_that_others_change_while_it_is_checked_is_checked_again_five_times_at_most(trees):
    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        for changes in (1, DELETE_TRIES_MAX - 1, DELETE_TRIES_MAX):
            await ledgers.create(METADATA, ledger_id=77)
            left, checked = [changes], []

            async def changed(left=left):
                if left[0]:
                    left[0] -= 1
                    stored = await ledgers.read(77)
                    await ledgers.write(77, stored.metadata, stored.version)

            delete = tree.delete
            before_deletions(tree, changed)
            if changes < DELETE_TRIES_MAX:
                await ledgers.delete_checked(77, checked.append)
                assert await listed(ledgers) == []
            else:
                with pytest.raises(MetadataVersion, match="77 was not deleted: others changed its metadata 5 times"):
                    await ledgers.delete_checked(77, checked.append)
                assert await listed(ledgers) == [77]
            assert len(checked) == min(changes + 1, DELETE_TRIES_MAX)
            tree.delete = delete

    trees.run(test)


def test_ledger_that_a_server_does_not_show_yet_is_deleted():
    class Lagging(MemoryTree):
        """A session whose server shows no ledger until the session catches up."""

        is_late = False

        async def get(self, path):
            if self.is_late and path.endswith("77"):
                raise NoSuchNode(path)
            return await super().get(path)

        async def catch_up(self):
            self.is_late = False
            await super().catch_up()

    async def test():
        uri = MetadataUri.parse("zk://h/ledgers")
        tree = Lagging(MemoryStore(), session_id=1, timeout_s=10.0)
        ledgers = await store_of(tree, uri)
        await ledgers.create(METADATA, ledger_id=77)
        tree.is_late = True
        await ledgers.delete_checked(77, no_check)
        assert await listed(ledgers) == []
        with pytest.raises(NoSuchLedger, match="ledger 77 does not exist"):
            await ledgers.delete_checked(77, no_check)

    asyncio.run(test())


def test_late_change_does_not_reach_another_ledger_with_the_same_id_and_version(trees):
    """docs/protocol.md §4.6: a client compares the transaction that created the node (`czxid`)."""

    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        for changes in (0, 1):
            late = []
            for _ in range(2):
                _, created = await ledgers.create(METADATA, ledger_id=77)
                stored = await ledgers.read(77) if changes else created
                if changes:
                    stored = await ledgers.write(77, stored.metadata.in_recovery(), stored.version)
                late.append(stored)
                if len(late) == 1:
                    await ledgers.delete(77)
            assert late[0].version == late[1].version == changes
            with pytest.raises(NoSuchLedger, match="another one was created under its id"):
                await ledgers.write(77, late[0].metadata.closed(3, 30), late[0].version)
            assert (await ledgers.read(77)).version == changes
            await ledgers.write(77, late[1].metadata.closed(4, 40), late[1].version)
            await ledgers.delete(77)

    trees.run(test)


def test_late_change_by_the_creator_does_not_reach_another_ledger_whatever_its_version(trees):
    """Not the creator's node: it loses the compare-and-set, but must not take the other one's metadata for its own."""

    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        for changes in range(3):
            _, created = await ledgers.create(METADATA, ledger_id=77)
            assert created == await ledgers.read(77)
            assert created.metadata.creation == (await ledgers.read(77)).metadata.creation > 0
            await ledgers.delete(77)
            _, other = await ledgers.create(METADATA, ledger_id=77)
            for number in range(changes):
                changed = replace(other.metadata, custom_metadata={"changes": b"%d" % number})
                other = await ledgers.write(77, changed, other.version)
            with pytest.raises(NoSuchLedger, match="another one was created under its id"):
                await ledgers.write(77, created.metadata.closed(3, 30), created.version)
            assert await ledgers.read(77) == other
            await ledgers.delete(77)

    trees.run(test)


def test_metadata_of_unknown_origin_are_written_on_the_version_alone(trees):
    """Such as those of a file: they name no node, and may have the token of another creation."""

    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        _, created = await ledgers.create(METADATA, ledger_id=77)
        from_file = encoding.decode(encoding.encode(created.metadata), 77)
        await ledgers.delete(77)
        await ledgers.create(METADATA, ledger_id=77)
        assert (await ledgers.write(77, from_file, 0)).version == 1
        with pytest.raises(MetadataVersion):
            await ledgers.write(77, from_file.closed(3, 30), 0)

    trees.run(test)


def test_listing_of_many_ledgers_goes_folder_by_folder(trees):
    """What is kept meanwhile are the names of one folder a level, whatever the number of ledgers."""

    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        ids = [*range(0, 2_000_000_000, 100_000_000), *range(20)]
        for ledger_id in ids:
            if ledger_id:
                await ledgers.create(METADATA, ledger_id=ledger_id)
        asked = []
        children = tree.children

        async def noting(path):
            names = await children(path)
            asked.append((path, len(names)))
            return names

        tree.children = noting
        seen = []
        async for ledger_id in ledgers.ids():
            seen.append((ledger_id, len(asked)))
        assert [ledger_id for ledger_id, _ in seen] == sorted({*ids} - {0})
        # The first came before most folders were looked at.
        assert seen[0][1] < seen[-1][1] / 3

    trees.run(test)


@pytest.mark.parametrize("folders", [4, 20])
def test_memory_for_a_listing_does_not_grow_with_the_number_of_ledgers(folders):
    """On a tree that makes the names up: 1,600 ledgers, and 40,000. A million ids alone would take 30 MiB."""

    class Many(MemoryTree):
        async def children(self, path):
            depth = path.removeprefix("/ledgers").count("/")
            if depth == 0:
                return ["LAYOUT", "available", *(f"{n:02d}" for n in range(folders))]
            return [f"{n:04d}" for n in range(folders)] if depth == 1 else [f"L{n:04d}" for n in range(100)]

    async def test():
        store = MemoryStore()
        uri = MetadataUri.parse("zk://h:1/ledgers")
        await BookieRegistry(store.session(), uri).initialize_cluster()
        ledgers = LedgerStore(Many(store, 99, 10.0), uri)
        tracemalloc.start()
        count, last = 0, -1
        async for ledger_id in ledgers.ids():
            count += 1
            assert ledger_id > last
            last = ledger_id
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == folders * folders * 100
        assert peak < 100_000

    asyncio.run(test())


def test_uri_that_names_another_manager_than_layout_is_refused(trees):
    async def test(tree):
        await store_of(tree, trees.uri)
        other = MetadataUri(trees.uri.hosts, trees.uri.root, MetadataUri.parse("zk+flat://h/l").manager)
        with pytest.raises(MetadataError, match="hierarchical"):
            await LedgerStore(tree, other).manager()

    trees.run(test)


def test_root_without_a_cluster_is_an_error_that_says_what_to_do(trees):
    async def test(tree):
        with pytest.raises(MetadataError, match="cluster init"):
            await LedgerStore(tree, trees.uri).create(METADATA)

    trees.run(test)
