"""A bookie's place in the list of bookies: taken at the start, kept over expired sessions, moved, and given back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bkspark.errors import MetadataError, NodeExists
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import Fault, MemoryTree
from bkspark.metadata.registration import INDEX_PROBLEM, REASON
from bkspark.metadata.tree import Stat
from bookie_service.cluster.registration import SETTLE_S, Registration
from tests.bookie.registrations import ADDRESS, ID, READ_ONLY, TIMEOUT_S, URI, WRITABLE, Bench, run


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("read_only", [False, True])
def test_bookie_is_known_from_enter_to_leave_with_its_address(read_only: bool) -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered(read_only=read_only)
        ours = bench.tree.session_id
        assert registration.is_registered
        assert bench.owners() == ((None, ours) if read_only else (ours, None))
        assert await BookieRegistry(bench.another(), URI).registration(ID) == ADDRESS
        await registration.leave()
        assert bench.owners() == (None, None)

    run(test)


@pytest.mark.parametrize("happens", ["the session expires", "the disks are full"])
def test_bookie_that_has_left_and_is_still_stopping_is_not_registered_again(happens: str) -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        await registration.leave()
        if happens == "the session expires":
            bench.store.expire(bench.tree)
        else:
            registration.change(read_only=True, reason="its disks are full")
        await asyncio.sleep(TIMEOUT_S)
        assert bench.owners() == (None, None)

    run(test)


def test_node_of_an_earlier_process_is_replaced_at_once_at_the_start() -> None:
    """The directories are locked, so that process is dead, and its session only has not expired yet."""

    async def test(bench: Bench) -> None:
        await bench.registry.initialize_cluster()
        earlier = BookieRegistry(bench.another(), URI)
        await earlier.register(ID, replace(ADDRESS, port=1))
        await bench.registered()
        assert bench.owners() == (bench.tree.session_id, None)
        assert await earlier.registration(ID) == ADDRESS
        assert now_s() < 0.1

    run(test)


def test_bookie_waits_until_the_registration_of_an_earlier_one_at_its_address_expires() -> None:
    """Clients would take its "no such entry" for the answer of the earlier bookie, which may have had the entry."""

    async def test(bench: Bench) -> None:
        await bench.registry.initialize_cluster()
        earlier = bench.another()
        await BookieRegistry(earlier, URI).register("b-0", ADDRESS, read_only=True)
        await BookieRegistry(bench.another(), URI).register("b-2", replace(ADDRESS, port=ADDRESS.port + 1))
        entering = asyncio.ensure_future(bench.registered())
        await asyncio.sleep(TIMEOUT_S)
        assert not entering.done()
        assert bench.owners() == (None, None)
        bench.store.expire(earlier)
        registration = await entering
        assert registration.is_registered
        assert bench.owners() == (bench.tree.session_id, None)

    run(test)


def test_two_bookies_with_one_address_are_refused_with_both_names() -> None:
    async def test(bench: Bench) -> None:
        await bench.registry.initialize_cluster()
        await BookieRegistry(bench.another(), URI).register("b-0", ADDRESS)
        with pytest.raises(
            NodeExists, match=r"b-0 is registered at 10\.0\.0\.1:3181, the address of bookie b-1: .*Addr"
        ):
            await bench.registered()
        assert 2 * TIMEOUT_S <= now_s() < 2 * TIMEOUT_S + 1
        assert bench.owners() == (None, None)

    run(test)


def test_bookie_whose_session_expired_registers_again_by_itself() -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        for _ in range(2):
            before = bench.tree.session_id
            bench.store.expire(bench.tree)
            assert bench.owners() == (None, None)
            await asyncio.sleep(0)
            assert not registration.is_registered
            await registration.settled()
            assert registration.is_registered
            assert bench.owners() == (bench.tree.session_id, None)
            assert bench.tree.session_id != before
        assert not registration.lost.done()

    run(test)


class Defective(MemoryTree):
    """A session whose next write fails with an error that no store reports."""

    fails = False

    async def create(self, path: str, *arguments: Any, **named: Any) -> tuple[str, Stat]:
        if self.fails:
            self.fails = False
            raise RuntimeError("a defect")
        return await super().create(path, *arguments, **named)


def test_defect_does_not_keep_a_bookie_from_registering_again(caplog: pytest.LogCaptureFixture) -> None:
    """An exception that changes nothing is logged with its traceback; it must not make the bookie unknown for ever."""

    async def test(bench: Bench) -> None:
        tree = bench.tree = Defective(bench.store, 77, TIMEOUT_S)
        bench.registry = BookieRegistry(tree, URI)
        registration = await bench.registered()
        tree.fails = True
        bench.store.expire(tree)
        await asyncio.sleep(1.5)
        assert registration.is_registered
        assert bench.owners() == (tree.session_id, None)

    run(test)
    assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["a defect"]


def test_bookie_tries_every_second_until_the_store_takes_its_registration() -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        bench.fail_writes(3)
        bench.store.expire(bench.tree)
        await asyncio.sleep(2.5)
        assert not registration.is_registered
        await registration.settled()
        assert registration.is_registered
        assert bench.owners() == (bench.tree.session_id, None)
        assert 3.0 <= now_s() < 3.1
        assert not registration.lost.done()

    run(test)


def test_process_whose_id_was_taken_while_its_session_was_gone_has_to_end() -> None:
    async def test(bench: Bench) -> None:
        registration, other = await bench.replaced()
        # The other process may be the remains of an earlier session, which would end in this time.
        await asyncio.sleep(2 * TIMEOUT_S - 1)
        assert not registration.lost.done()
        assert isinstance(await registration.lost, NodeExists)
        assert now_s() < 2 * TIMEOUT_S + 1
        assert not registration.is_registered
        await registration.leave()
        assert bench.owners() == (other.session_id, None), "the node of the other process stays"

    run(test)


def test_process_whose_id_was_taken_does_not_register_in_another_mode() -> None:
    """It would be registered as read-only beside the other process, until it has ended."""

    async def test(bench: Bench) -> None:
        registration, other = await bench.replaced()
        await registration.lost
        registration.change(read_only=True, reason="its disks are full")
        await registration.settled()
        assert bench.owners() == (other.session_id, None)
        await registration.leave()

    run(test)


def test_change_of_mode_is_never_without_a_registration_and_has_its_reason() -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        seen: list[tuple[int | None, int | None]] = []
        for path in (WRITABLE, READ_ONLY):
            await bench.another().watch(path, lambda: seen.append(bench.owners()))
        ours = bench.tree.session_id
        reader = BookieRegistry(bench.another(), URI)

        registration.change(read_only=True, reason="the disks are full")
        await registration.settled()
        assert bench.owners() == (None, ours)
        found = await reader.registration(ID)
        assert found is not None
        assert found.properties == {**ADDRESS.properties, REASON: "the disks are full"}

        registration.change(read_only=False)
        await registration.settled()
        assert bench.owners() == (ours, None)
        assert await reader.registration(ID) == ADDRESS
        assert seen
        assert (None, None) not in seen

    run(test)


def test_change_to_what_is_so_already_writes_nothing_and_a_new_reason_is_written() -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered(read_only=True)
        writes = bench.store.writes
        registration.change(read_only=True)
        await registration.settled()
        assert bench.store.writes == writes
        registration.change(read_only=True, reason="maintenance")
        await registration.settled()
        found = await BookieRegistry(bench.another(), URI).registration(ID)
        assert found is not None
        assert found.properties[REASON] == "maintenance"
        assert bench.owners() == (None, bench.tree.session_id)

    run(test)


def test_registration_has_what_is_wrong_with_the_index_as_long_as_it_is() -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        reader = BookieRegistry(bench.another(), URI)
        registration.change(read_only=False, index_problem="/d1: its disk fails")
        await registration.settled()
        found = await reader.registration(ID)
        assert found is not None
        assert found.properties == {**ADDRESS.properties, INDEX_PROBLEM: "/d1: its disk fails"}
        registration.change(read_only=False)
        await registration.settled()
        assert await reader.registration(ID) == ADDRESS

    run(test)


def test_last_of_several_changes_counts_also_when_it_comes_during_a_retry() -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        bench.fail_writes(2)
        registration.change(read_only=True, reason="one")
        await asyncio.sleep(0.5)
        registration.change(read_only=False)
        registration.change(read_only=True, reason="two")
        await registration.settled()
        assert bench.owners() == (None, bench.tree.session_id)
        found = await BookieRegistry(bench.another(), URI).registration(ID)
        assert found is not None
        assert found.properties[REASON] == "two"

    run(test)


def test_settled_does_not_wait_for_ever() -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        await registration.settled()
        assert now_s() < 0.1
        bench.fail_writes(1000)
        registration.change(read_only=True)
        await registration.settled()
        assert SETTLE_S <= now_s() < SETTLE_S + 1
        bench.store.faults = {}
        await registration.leave()

    run(test)


def test_leave_ends_a_retry_and_removes_both_nodes() -> None:
    """A change from one mode to the other may have been interrupted between the two."""

    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        bench.store.faults = {bench.store.writes + 1: Fault.LOST_BEFORE}
        registration.change(read_only=True)
        await asyncio.sleep(0.5)
        ours = bench.tree.session_id
        assert bench.owners() == (ours, ours)
        await registration.leave()
        assert bench.owners() == (None, None)
        await asyncio.sleep(10)
        assert bench.owners() == (None, None)

    run(test)


def test_leave_reports_a_store_that_fails_and_does_not_raise(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        registration = await bench.registered()
        bench.fail_writes(1)
        await registration.leave()
        assert "left without removing the registration" in caplog.text
        assert bench.owners() == (bench.tree.session_id, None)

    run(test)


def test_start_against_a_store_that_fails_says_so() -> None:
    async def test(bench: Bench) -> None:
        await bench.registry.initialize_cluster()
        registration = Registration(bench.registry, ID, ADDRESS, read_only=False)
        bench.fail_writes(1)
        with pytest.raises(MetadataError):
            await registration.enter()
        assert not registration.is_registered

    run(test)
