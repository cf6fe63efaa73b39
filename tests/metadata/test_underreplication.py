"""The under-replication tree and the auditor's election, as Apache's peers find them (interop 4.8, 4.9)."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.errors import MetadataError, MetadataFormat
from bkspark.metadata import underreplication
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.election import UNKNOWN, AuditorElection
from bkspark.metadata.memory import Fault, MemoryStore
from bkspark.metadata.underreplication import RecoveryDelay, UnderreplicationStore
from bkspark.metadata.uri import MetadataUri


async def store_of(trees, tree):
    await BookieRegistry(tree, trees.uri).initialize_cluster()
    store = UnderreplicationStore(tree, trees.uri)
    await store.prepare()
    await store.prepare()
    return store


async def listed(store):
    return sorted([ledger_id async for ledger_id in store.ids()])


def test_nodes_are_apaches_byte_for_byte(trees):
    async def test(tree):
        store = await store_of(trees, tree)
        root = f"{trees.uri.root}/underreplication"
        assert (await tree.get(f"{root}/LAYOUT"))[0] == b'type: "BASIC"\nversion: 1\n'
        await store.mark(70_000, ["10.0.0.1:3181", "10.0.0.2:3181"], 1_700_000_000_000)
        data, _ = await tree.get(f"{root}/ledgers/0000/0000/0001/1170/urL0000070000")
        assert data == b'replica: "10.0.0.1:3181"\nreplica: "10.0.0.2:3181"\nctime: 1700000000000\n'
        assert await store.lock(70_000, "host")
        assert (await tree.get(f"{root}/locks/urL0000070000"))[0] == b'bookieId: "host"\n'
        await store.set_lost_bookie_recovery_delay_s(90)
        assert (await tree.get(f"{root}/lostBookieRecoveryDelay"))[0] == b"90"
        await store.set_all_checked_ms(300)
        assert (await tree.get(f"{root}/checkallledgersctime"))[0] == b"\x08\xac\x02"
        await store.set_enabled(False)
        assert (await tree.get(f"{root}/disable"))[0] == b""

    trees.run(test)


def test_marks_of_one_ledger_add_up_and_keep_their_time(trees):
    async def test(tree):
        store = await store_of(trees, tree)
        await store.mark(5, ["a:1"], 17)
        await store.mark(5, ["b:1", "a:1"], 18)
        found = await store.find(5)
        assert (found.missing, found.ctime_ms, found.version) == (("a:1", "b:1"), 17, 1)
        await store.mark(5, ["a:1"], 19)
        assert (await store.find(5)).version == 1

    trees.run(test)


def test_copies_of_a_bookie_that_are_reported_again_during_a_repair_keep_the_ledger_listed(trees):
    """The repair may have found the bookie's copies complete before the bookie lost them once more (A5)."""

    async def test(tree):
        store = await store_of(trees, tree)
        await store.mark(5, ["a:1", "b:1"], 17)
        assert await store.lock(5, "worker")
        work = await store.find(5)
        await store.mark(5, ["a:1"], 18)
        assert not await store.finish(work)
        await store.unlock(5)
        again = await store.find(5)
        assert (again.missing, again.ctime_ms) == (("a:1", "b:1"), 17)
        assert await store.finish(again)
        assert await listed(store) == []

    trees.run(test)


def test_a_ledger_stays_listed_when_more_of_it_was_reported_meanwhile(trees):
    async def test(tree):
        store = await store_of(trees, tree)
        await store.mark(5, ["a:1"], 17)
        work = await store.find(5)
        await store.mark(5, ["b:1"], 18)
        assert not await store.finish(work)
        assert await listed(store) == [5]
        assert await store.finish(await store.find(5))
        assert await store.finish(work)
        assert await listed(store) == []

    trees.run(test)


def test_finishing_removes_empty_parents_and_no_others(trees):
    async def test(tree):
        store = await store_of(trees, tree)
        ids = [1, 2, 1 << 40, (1 << 63) - 1]
        for ledger_id in ids:
            await store.mark(ledger_id, ["a:1"], 1)
        assert await listed(store) == ids
        for ledger_id in ids[1:]:
            await store.finish(await store.find(ledger_id))
        assert await listed(store) == [1]
        assert await tree.children(f"{trees.uri.root}/underreplication/ledgers") == ["0000"]
        await store.finish(await store.find(1))
        assert await tree.children(f"{trees.uri.root}/underreplication/ledgers") == []

    trees.run(test)


def test_a_lock_has_one_holder_and_goes_with_its_session(trees):
    async def test(one, two):
        mine = await store_of(trees, one)
        theirs = UnderreplicationStore(two, trees.uri)
        assert await mine.lock(5, "one")
        assert not await theirs.lock(5, "two")
        await theirs.unlock(5)
        assert await theirs.locked() == {5}
        await one.close()
        assert await theirs.locked() == set()
        assert await theirs.lock(5, "two")
        await theirs.unlock(5)
        assert await theirs.locked() == set()

    trees.run(test, sessions=2)


def test_switches_and_times_default_and_are_read_back(trees):
    async def test(tree):
        store = await store_of(trees, tree)
        assert await store.is_enabled()
        for _ in range(2):
            await store.set_enabled(False)
        assert not await store.is_enabled()
        for _ in range(2):
            await store.set_enabled(True)
        assert await store.is_enabled()
        assert await store.lost_bookie_recovery_delay() is None
        for version, seconds in enumerate((10, 0, 0)):
            await store.set_lost_bookie_recovery_delay_s(seconds)
            assert await store.lost_bookie_recovery_delay() == RecoveryDelay(seconds, version)
        assert await store.all_checked_ms() is None
        for moment in (1, 1 << 41):
            await store.set_all_checked_ms(moment)
            assert await store.all_checked_ms() == moment

    trees.run(test)


def test_a_tree_of_another_layout_and_a_missing_cluster_are_refused(trees):
    async def test(tree):
        store = UnderreplicationStore(tree, trees.uri)
        with pytest.raises(MetadataError, match="cluster init"):
            await store.prepare()
        await store_of(trees, tree)
        path = f"{trees.uri.root}/underreplication/LAYOUT"
        await tree.set(path, b'type: "OTHER"\nversion: 1\n', -1)
        with pytest.raises(MetadataError, match="OTHER"):
            await store.prepare()
        await tree.set(path, b"\xff", -1)
        with pytest.raises(MetadataFormat, match="LAYOUT"):
            await store.prepare()

    trees.run(test)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"replica: 5", b"nonsense", b'replica: "a', b"ctime: x"])
def test_a_damaged_node_is_named_with_its_ledger(data):
    with pytest.raises(MetadataFormat, match="ledger 77"):
        underreplication.decode(data, 77)


def test_text_is_escaped_as_protobuf_does_and_unknown_ctime_stays_unknown():
    assert underreplication.decode(b'replica: "a\\tb"\n', 1).missing == ("a\tb",)
    assert underreplication.decode(b"", 1).missing == ()
    assert underreplication.decode(b'replica: "a:1"', 1).ctime_ms is None


def test_smallest_vote_is_the_auditor_and_the_next_one_follows(trees):
    async def test(one, two):
        await store_of(trees, one)
        first, second = AuditorElection(one, trees.uri, "b-1"), AuditorElection(two, trees.uri, "b-2")
        assert await second.auditor() is None
        for candidate in (first, second):
            assert not await candidate.is_elected()
            await candidate.stand()
            await candidate.stand()
        root = f"{trees.uri.root}/underreplication/auditorelection"
        assert await two.children(root) == ["V_0000000000", "V_0000000001"]
        assert (await first.is_elected(), await second.is_elected()) == (True, False)
        assert await second.auditor() == "b-1"
        assert (await two.get(root))[0] == b'bookieId: "b-1"\n'
        await one.close()
        assert await second.is_elected()
        assert (await two.get(root))[0] == b'bookieId: "b-2"\n'

    trees.run(test, sessions=2)


def test_nodes_beside_the_votes_do_not_end_the_election():
    """Python refuses to convert more than 4300 digits: one such node ended every audit of the cluster."""

    async def test():
        tree = MemoryStore().session()
        uri = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
        root = f"{uri.root}/underreplication/auditorelection"
        for name in ("V_" + "1" * 5000, "V_\u00b2", "V_", "V_1x", "W_0000000000"):
            await tree.create(f"{root}/{name}", make_parents=True)
        candidate = AuditorElection(tree, uri, "b-1")
        await candidate.stand()
        assert await candidate.is_elected()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("vote", "auditor"),
    [
        (b"\xff{", UNKNOWN),
        (b"", UNKNOWN),
        (b"bookieId 7", UNKNOWN),
        (b'bookieId: "b-7" term: 5 later { x: 1 }', "b-7"),
    ],
)
def test_auditor_whose_vote_is_of_another_form_is_there(vote, auditor):
    """`cluster health`, `cluster info` and every page of the console failed because of such a vote."""

    async def test():
        tree = MemoryStore().session()
        await tree.create(f"{ELECTION}/V_0000000007", vote, make_parents=True)
        assert await AuditorElection(tree, MetadataUri.parse("zk://h/ledgers"), "b-1").auditor() == auditor

    asyncio.run(test())


ELECTION = "/ledgers/underreplication/auditorelection"


def candidates():
    """Return a store, two of its sessions, and a candidate for auditor of each session."""
    store = MemoryStore()
    uri = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
    sessions = store.session(), store.session()
    return store, sessions, [AuditorElection(one, uri, f"b-{number}") for number, one in enumerate(sessions, 1)]


def test_a_vote_whose_answer_was_lost_elects_its_session_and_blocks_no_other():
    async def test():
        store, (one, two), (first, second) = candidates()
        await one.create(ELECTION, make_parents=True)
        store.faults[store.writes] = Fault.LOST_AFTER
        with pytest.raises(MetadataError):
            await first.stand()
        await second.stand()
        await first.stand()
        assert len(await two.children(ELECTION)) == 3
        assert (await first.is_elected(), await second.is_elected()) == (True, False)
        await one.close()
        assert await second.is_elected()

    asyncio.run(test())


def test_votes_are_ordered_by_their_numbers_also_after_the_counter_overflowed():
    """ZooKeeper's sequence numbers are 32-bit ones, and go on below 0."""

    async def test():
        store, (one, _), (first, second) = candidates()
        await one.create(ELECTION, make_parents=True)
        store.node(ELECTION).sequence = -20
        for candidate in (first, second):
            await candidate.stand()
            store.node(ELECTION).sequence = -15
        assert (await first.is_elected(), await second.is_elected()) == (True, False)

    asyncio.run(test())


def test_vote_of_an_ended_session_elects_no_one_whatever_has_its_name_now():
    """The election's node may have been made again, and its numbers begin at 0 then."""

    async def test():
        store, (one, two), (first, second) = candidates()
        await first.stand()
        store.expire(one)
        await two.delete(ELECTION)
        await second.stand()
        assert (await first.is_elected(), await second.is_elected()) == (False, True)

    asyncio.run(test())


def test_auditor_writes_its_name_when_it_is_elected_and_not_at_each_look():
    async def test():
        store, (one, two), (first, second) = candidates()
        for candidate in (first, second):
            await candidate.stand()
        assert await first.is_elected()
        before = store.writes
        assert await first.is_elected()
        assert store.writes == before
        store.expire(one)
        assert await second.is_elected()
        await first.stand()
        await two.close()
        assert await first.is_elected()
        assert (await one.get(ELECTION))[0] == b'bookieId: "b-1"\n'

    asyncio.run(test())


def test_a_lock_whose_answer_was_lost_is_held_and_can_be_given_back():
    async def test():
        store = MemoryStore()
        uri = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
        one, two = store.session(), store.session()
        mine, theirs = UnderreplicationStore(one, uri), UnderreplicationStore(two, uri)
        await one.create(f"{uri.root}/underreplication/locks", make_parents=True)
        for fault in Fault:
            store.faults[store.writes] = fault
            with pytest.raises(MetadataError):
                await mine.lock(5, "one")
            assert await mine.lock(5, "one")
            assert not await mine.lock(5, "one")
            assert not await theirs.lock(5, "two")
            store.faults[store.writes] = fault
            with pytest.raises(MetadataError):
                await mine.unlock(5)
            assert await mine.lock(5, "one")
            await mine.unlock(5)
            assert await theirs.locked() == set()

    asyncio.run(test())


def test_node_that_nests_unknown_messages_thousands_deep_is_malformed() -> None:
    """Autorecovery reads these nodes: a client with write access must not end it with a RecursionError."""
    with pytest.raises(MetadataFormat, match="under-replication node of ledger 5 cannot be read"):
        underreplication.decode(b"a{" * 2000, 5)
