"""M1, M3: every call to the store of the list of under-replicated ledgers and of both elections, interrupted.

Each story runs once for every call that it makes and for each interruption: the connection is lost before or after the
server carried the call out, or the session ends. What comes out must be as if nothing had happened, and no call of
these modules may be left out: their source is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bkspark.log import election as log_election
from bkspark.log.election import Election
from bkspark.metadata import election as auditor_election
from bkspark.metadata import underreplication
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.election import AuditorElection
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from tests.metadata.interruptions import InterruptedTree, Interruption, Site, not_reached, surely

URI = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
CALLS_MAX = 200
DEADLINE_S = 120.0

Story = Callable[[InterruptedTree, MemoryTree], Awaitable[None]]


def tell_interrupted(story: Story, how: Interruption) -> set[Site]:
    """Tell a story with its first call interrupted, then its second, and so on; return the lines that made them."""
    struck: set[Site] = set()
    for at in range(CALLS_MAX):
        tree = asyncio.run(_interrupted(story, at, how))
        if tree.struck is None:
            return struck
        struck.add(tree.struck)
    raise AssertionError(f"the story makes more than {CALLS_MAX} calls")


async def _interrupted(story: Story, at: int, how: Interruption) -> InterruptedTree:
    store = MemoryStore()
    other = store.session()
    await BookieRegistry(other, URI).initialize_cluster()
    tree = InterruptedTree(store, at, how)
    async with asyncio.timeout(DEADLINE_S):
        await story(tree, other)
    return tree


@pytest.mark.parametrize("how", Interruption)
def test_list_of_underreplicated_ledgers_at_every_call(how: Interruption) -> None:
    assert not_reached(underreplication, tell_interrupted(_a_ledger_is_listed_repaired_and_taken_off, how)) == []


async def _a_ledger_is_listed_repaired_and_taken_off(tree: InterruptedTree, other: MemoryTree) -> None:
    mine, theirs = UnderreplicationStore(tree, URI), UnderreplicationStore(other, URI)
    await surely(mine.prepare)
    await surely(lambda: mine.watch(_nothing))
    for bookies in (["a:1"], ["b:1"], ["b:1"]):
        await surely(lambda bookies=bookies: mine.mark(5, bookies, 17))
    assert set((await theirs.find(5)).missing) == {"a:1", "b:1"}
    assert await surely(lambda: mine.is_listed(5))

    async def listed() -> list[int]:
        return [ledger_id async for ledger_id in mine.ids()]

    assert await surely(listed) == [5]

    # The lock: held in this session, by no other; gone with the session, and then available again.
    expired = tree.expired
    assert await surely(lambda: mine.lock(5, "me"))
    assert await surely(lambda: mine.lock_owner(5)) in ("me", None)
    taken_twice = await surely(lambda: mine.lock(5, "me"))
    assert not taken_twice or tree.expired != expired
    assert await surely(mine.locked) <= {5}
    if tree.expired == expired:
        assert await theirs.locked() == {5}
        assert not await theirs.lock(5, "they")
    await surely(lambda: mine.unlock(5))
    assert await theirs.locked() == set()
    assert await theirs.lock_owner(5) is None

    # Off the list, once.
    work = await surely(lambda: mine.find(5))
    assert await surely(lambda: mine.finish(work))
    assert await theirs.find(5) is None

    # The operator's switches.
    await surely(lambda: mine.watch_enabled(_nothing))
    for enabled in (False, False, True, True):
        await surely(lambda enabled=enabled: mine.set_enabled(enabled))
        assert await theirs.is_enabled() == await surely(mine.is_enabled) == enabled
    await surely(lambda: mine.watch_lost_bookie_recovery_delay(_nothing))
    for _ in range(2):
        await surely(lambda: mine.offer_lost_bookie_recovery_delay_s(5))
        assert (await theirs.lost_bookie_recovery_delay()).seconds == 5
    for seconds in (10, 20):
        await surely(lambda seconds=seconds: mine.set_lost_bookie_recovery_delay_s(seconds))
        assert (await surely(mine.lost_bookie_recovery_delay)).seconds == seconds
        await surely(lambda seconds=seconds: mine.set_all_checked_ms(seconds))
        assert await surely(mine.all_checked_ms) == await theirs.all_checked_ms() == seconds
    # What an operator set stays.
    await surely(lambda: mine.offer_lost_bookie_recovery_delay_s(5))
    assert (await theirs.lost_bookie_recovery_delay()).seconds == 20


def _nothing() -> None:
    """A watch without a waiting caller."""


@pytest.mark.parametrize("how", Interruption)
def test_election_of_the_auditor_at_every_call(how: Interruption) -> None:
    assert not_reached(auditor_election, tell_interrupted(_an_auditor_is_elected, how)) == []


async def _an_auditor_is_elected(tree: InterruptedTree, other: MemoryTree) -> None:
    root = f"{URI.root}/underreplication/auditorelection"
    await other.create(root, make_parents=True)
    mine, theirs = AuditorElection(tree, URI, "me"), AuditorElection(other, URI, "they")
    # A vote of this session whose answer was lost: it is ours, and the smallest.
    await surely(lambda: tree.create(f"{root}/V_", b"", ephemeral=True, sequential=True))

    async def elected() -> bool:
        await mine.stand()
        return await mine.is_elected()

    assert await surely(elected)
    await surely(lambda: mine.watch(_nothing))
    await theirs.stand()
    # Also after the session ended: exactly one of both is elected.
    assert await surely(elected) != await theirs.is_elected()
    assert await surely(mine.auditor) is not None
    await tree.close()
    assert await theirs.is_elected()
    assert (await other.get(root))[0] == b'bookieId: "they"\n'


@pytest.mark.parametrize("how", Interruption)
def test_election_of_a_logs_leader_at_every_call(how: Interruption) -> None:
    assert not_reached(log_election, tell_interrupted(_leaders_follow_each_other, how)) == []


async def _leaders_follow_each_other(tree: InterruptedTree, other: MemoryTree) -> None:
    path = f"{log_election.ELECTIONS_ROOT}/clicks"
    mine = Election(tree, path, "me", retry_pause_s=0.0)
    theirs = Election(other, path, "they", retry_pause_s=0.0)
    await theirs.win()
    waiting = asyncio.ensure_future(mine.win())
    while "me" not in await theirs.contenders():
        await asyncio.sleep(0)
    await theirs.resign()
    await waiting
    # Given up without a change of the store, and joined again: at the end of the queue, once.
    mine.lost.set()
    await mine.win()
    names = await surely(mine.contenders)
    assert names == ["me"] or (tree.expired and not names)
    # The node is deleted: the leader is notified, whatever the outcome of the look-up.
    for name in await other.children(path):
        await other.delete(f"{path}/{name}")
    await mine.lost.wait()
    await mine.win()
    # Resigning leaves the lead to the next, at once.
    await mine.resign()
    await theirs.win()
    assert await theirs.contenders() == ["they"]
    await theirs.resign()
