"""Fanout: when a writer connects to a bookie, what it sends there, and what the loss of a connection means."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.core import effects
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import (
    AuthenticationFailed,
    BookieUnavailable,
    ClientClosed,
    LedgerFenced,
    NoSuchLedger,
    NotEnoughBookies,
    TlsFailed,
)
from bkspark.ledger.fanout import CONFIRM_PAUSE_S, DRAIN_S
from bkspark.ledger.ownership import Ownership
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.uri import MetadataUri
from bkspark.net.channel import BookieChannel
from bkspark.wire.status import Status
from tests.ledger.away import Away
from tests.ledger.fanning import (
    FORCE_S,
    LEDGER,
    SILENT_S,
    FannedWriter,
    Wire,
    answer,
    answer_force,
    confirmed,
    entries,
    forcing,
    play,
    settled,
)
from tests.ledger.in_process import URI


def now() -> float:
    return asyncio.get_running_loop().time()


# ---- sending ----


def test_adds_before_the_connection_are_sent_in_order_when_it_is_made_and_later_ones_at_once() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        writer.add(2)
        channel, wire = await writer.connected("a")
        assert wire.sent == bytes([0, 1, 2])
        writer.add()
        assert wire.sent == bytes([0, 1, 2, 3])
        assert writer.fanout._links[0].backlog == [], "what was sent is not kept"
        assert writer.asked == ["a", "b", "c"], "one connection for each bookie"
        _, other = await writer.connected("b")
        assert other.sent == bytes([0, 1, 2, 3])
        answer(channel, 0, 1)
        assert writer.core.slots.all[0].outstanding == 2
        assert not [effect for effect in writer.done if isinstance(effect, effects.Acknowledge)]

    play(test)


def test_bookie_gets_those_entries_of_a_batch_that_it_stores() -> None:
    async def test() -> None:
        writer = FannedWriter((3, 2, 2))
        writer.add(6)
        sent = {bookie: (await writer.connected(bookie))[1].sent for bookie in "abc"}
        assert sent == {"a": bytes([0, 2, 3, 5]), "b": bytes([0, 1, 3, 4]), "c": bytes([1, 2, 4, 5])}

    play(test)


def test_replacement_has_its_own_connection_and_the_replaced_bookie_is_ignored() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        old, old_wire = await writer.connected("a")
        writer.perform(writer.core.on_bookie_failed(0, "a", writer.now_ns()))
        writer.change_to("b", "c", "d")
        _, wire = await writer.connected("d")
        assert (writer.asked, wire.sent) == (["a", "b", "c", "d"], bytes([0]))
        answer(old, 0)
        assert writer.core.slots.all[0].outstanding == 1
        writer.add()
        assert (old_wire.sent, wire.sent) == (bytes([0]), bytes([0, 1]))
        old.listen_adds(LEDGER, None)
        old.unlisten_adds(LEDGER)
        old.close()
        assert writer.failed == ["a"]

    play(test)


def test_connection_that_is_made_after_its_bookie_was_replaced_is_not_used() -> None:
    async def test() -> None:
        for fails in (True, False):
            writer = FannedWriter()
            writer.add()
            await settled()
            writer.perform(writer.core.on_bookie_failed(0, "a", writer.now_ns()))
            writer.change_to("b", "c", "d")
            await settled()
            if fails:
                await writer.refused("a", TlsFailed("no", bookie="a"))
                assert writer.fanout.handshake_error is None
            else:
                channel, wire = await writer.connected("a")
                assert wire.sent == b""
                channel.listen_adds(LEDGER, None)
            assert writer.failed == ["a"]
            _, wire = await writer.connected("d")
            assert wire.sent == bytes([0])

    play(test)


def test_bookie_that_moves_to_another_slot_is_heard_for_that_one_alone() -> None:
    """Its connection is the same: a pool keeps one for each bookie."""

    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        channel, wire = await writer.connected("a")
        writer.fanout.send(effects.SendAdds(1, "a", entries(1), None))
        await settled()
        assert writer.asked == ["a", "b", "c", "a"]
        await writer.connected("a", channel)
        assert channel._transport.sent == bytes([1])
        assert [slot for slot, link in sorted(writer.fanout._links.items()) if link.bookie == "a"] == [1]
        assert wire.sent == bytes([0])

    play(test)


def test_lost_connection_that_was_not_noticed_yet_is_made_again_for_the_next_add() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        channel, _ = await writer.connected("a")
        channel.unlisten_adds(LEDGER)
        channel.close()
        writer.add()
        await settled()
        assert writer.asked == ["a", "b", "c", "a"]
        _, wire = await writer.connected("a")
        assert wire.sent == bytes([1])

    play(test)


def test_closed_fanout_hears_no_bookie() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        channels = [(await writer.connected(bookie))[0] for bookie in "abc"]
        writer.fanout.close()
        for channel in channels:
            answer(channel, 0)
            channel.close()
        assert [slot.outstanding for slot in writer.core.slots.all] == [1, 1, 1]
        assert writer.failed == []

    play(test)


def test_connection_with_as_many_unsent_bytes_as_the_limit_is_congested() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        _, first = await writer.connected("a")
        _, second = await writer.connected("b")
        first.unsent_bytes, second.unsent_bytes = 100, 99
        assert writer.fanout.congested(100) == [0]
        assert writer.fanout.congested(99) == [0, 1]
        assert writer.fanout.congested(101) == []

    play(test)


# ---- the end of a writer ----


def test_draining_waits_for_bookies_that_are_not_connected_and_have_adds_to_get() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        await writer.connected("b")
        await writer.connected("c")
        draining = asyncio.ensure_future(writer.fanout.drain_backlogs())
        await asyncio.sleep(DRAIN_S / 2)
        assert not draining.done()
        _, wire = await writer.connected("a")
        assert (draining.done(), wire.sent) == (True, bytes([0]))
        began = now()
        await writer.fanout.drain_backlogs()
        assert now() == began

    play(test)


def test_draining_ends_in_time_and_waits_for_no_bookie_that_it_need_not_wait_for() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        await writer.connected("b")
        await writer.connected("c")
        began = now()
        await writer.fanout.drain_backlogs(excluded=["a"])
        assert now() == began
        await writer.fanout.drain_backlogs(excluded=["b"])
        assert now() == pytest.approx(began + DRAIN_S)
        writer.perform(writer.core.on_bookie_failed(0, "a", writer.now_ns()))
        writer.change_to("b", "c")
        began = now()
        await writer.fanout.drain_backlogs()
        assert now() == began, "a bookie that is left out gets its copies by a repair"

    play(test)


def test_silent_connection_is_dropped_in_a_later_turn() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        first, _ = await writer.connected("a")
        second, _ = await writer.connected("b")
        writer.fanout.drop_if_silent("a")
        await settled()
        assert first.lost is None
        await asyncio.sleep(SILENT_S + 1)
        writer.fanout.drop_if_silent("a")
        writer.fanout.drop_if_silent("c")
        assert first.lost is None
        await settled()
        assert first.lost is not None
        assert second.lost is None
        assert writer.failed == ["a"]

    play(test)


# ---- connections that fail ----


@pytest.mark.parametrize("kind", [BookieUnavailable, TlsFailed, AuthenticationFailed])
def test_bookie_that_cannot_be_connected_to_has_failed_and_a_refusal_is_kept(kind: type[BookieUnavailable]) -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        error = kind("no", bookie="a")
        await writer.refused("a", error)
        assert writer.failed == ["a"]
        assert writer.fanout.handshake_error is (None if kind is BookieUnavailable else error)
        assert writer.core.error is None

    play(test)


def test_bookie_whose_connection_is_lost_while_it_is_made_has_failed() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        channel = BookieChannel("a", 1 << 20, SILENT_S)
        channel.connection_made(Wire())
        channel.lost = BookieUnavailable("gone", bookie="a")
        await writer.connected("a", channel)
        assert writer.failed == ["a"]

    play(test)


def test_writer_that_all_bookies_refuse_ends_and_names_them() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        for bookie in "abc":
            assert writer.core.error is None
            await writer.refused(bookie, AuthenticationFailed("no", bookie=bookie))
        assert isinstance(writer.core.error, NotEnoughBookies)
        assert f"ledger {LEDGER} lost bookies a, b, c" in str(writer.core.error)

    play(test)


def test_refusal_that_names_no_bookie_counts_for_none() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        channel, _ = await writer.connected("a")
        channel.close(TlsFailed("no"))
        writer.change_to("b", "c")
        writer.fanout.send(effects.SendAdds(0, "a", entries(0), None))
        for bookie in "bca":
            assert writer.core.error is None
            await writer.refused(bookie, AuthenticationFailed("no", bookie=bookie))
        assert f"ledger {LEDGER} lost bookies a, b, c" in str(writer.core.error)

    play(test)


def test_bookie_that_has_answered_an_add_since_does_not_count_as_one_that_refuses() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        await writer.refused("a", AuthenticationFailed("no", bookie="a"))
        writer.change_to("b", "c")
        writer.fanout.send(effects.SendAdds(0, "a", entries(0), None))
        channel, _ = await writer.connected("a")
        for bookie in "bc":
            await writer.refused(bookie, AuthenticationFailed("no", bookie=bookie))
            if bookie == "b":
                answer(channel, 0)
        assert writer.core.error is None

    play(test)


def test_client_that_is_closed_ends_its_writer() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        await writer.refused("a", ClientClosed("the client is closed"))
        assert isinstance(writer.core.error, ClientClosed)
        assert f"the client was closed under the writer of ledger {LEDGER}" in str(writer.core.error)
        assert (writer.core.error.ledger_id, writer.core.error.entry_id) == (LEDGER, 0)
        _, wire = await writer.connected("b")
        assert wire.sent == b""
        writer = FannedWriter()
        writer.add()
        channel, _ = await writer.connected("a")
        channel.close(ClientClosed("the client is closed"))
        assert isinstance(writer.core.error, ClientClosed)
        assert writer.failed == []

    play(test)


def test_lost_connection_fails_the_bookie_only_if_it_owes_an_answer() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        owing, _ = await writer.connected("a")
        settled_one, _ = await writer.connected("b")
        answer(settled_one, 0)
        settled_one.close()
        assert writer.failed == []
        owing.close(TlsFailed("no", bookie="a"))
        assert writer.failed == ["a"]
        assert isinstance(writer.fanout.handshake_error, TlsFailed)
        assert [slot for slot, link in writer.fanout._links.items() if link.channel is not None] == []

    play(test)


def test_connection_of_a_writer_that_failed_meanwhile_is_not_used() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        await settled()
        writer.core.give_up(ClientClosed("over"))
        channel, wire = await writer.connected("a")
        assert wire.sent == b""
        channel.listen_adds(LEDGER, None)

    play(test)


# ---- whether the ledger is still ours ----


async def owned() -> tuple[FannedWriter, Away, LedgerStore]:
    """Return the writer of a stored ledger, the session that it asks, and the store as another client has it."""
    server = MemoryStore()
    tree, ledgers = Away(server), LedgerStore(server.session(), MetadataUri.parse(URI))
    await server.session().create("/ledgers/LAYOUT", b"2\nhierarchical:1", make_parents=True)
    await ledgers.create(LedgerMetadata(3, 3, 2, (Fragment(0, ("a", "b", "c")),)), ledger_id=LEDGER)
    ownership = Ownership(LedgerStore(tree, MetadataUri.parse(URI)), LEDGER, now)
    await asyncio.sleep(1)
    writer = FannedWriter(ownership=ownership)
    writer.add()
    return writer, tree, ledgers


def test_new_connection_is_used_once_the_store_says_that_the_ledger_is_open() -> None:
    async def test() -> None:
        writer, tree, _ = await owned()
        tree.is_away = True
        channel, wire = await writer.connected("a")
        await asyncio.sleep(4 * CONFIRM_PAUSE_S)
        assert (tree.tried, wire.sent) == (5, b"")
        tree.is_away = False
        await asyncio.sleep(CONFIRM_PAUSE_S)
        assert wire.sent == bytes([0])
        assert writer.core.error is None
        assert channel.lost is None

    play(test)


def test_connections_that_are_made_together_share_one_answer_of_the_store() -> None:
    async def test() -> None:
        writer, _, _ = await owned()
        made = await asyncio.gather(*(writer.connected(bookie) for bookie in "abc"))
        assert [wire.sent for _, wire in made] == [bytes([0])] * 3

    play(test)


def test_new_connection_to_a_ledger_that_is_recovered_or_deleted_is_not_used() -> None:
    async def test() -> None:
        for is_deleted in (False, True):
            writer, _, ledgers = await owned()
            stored = await ledgers.read(LEDGER)
            if is_deleted:
                await ledgers.delete(LEDGER)
            else:
                await ledgers.write(LEDGER, stored.metadata.in_recovery(), stored.version)
            _, wire = await writer.connected("a")
            assert isinstance(writer.core.error, NoSuchLedger if is_deleted else LedgerFenced)
            assert wire.sent == b""
            assert [type(each) for each in writer.done if not isinstance(each, effects.SendAdds)] == [effects.Fail]

    play(test)


def test_connection_that_is_lost_or_not_needed_any_more_does_not_wait_for_the_store() -> None:
    async def test() -> None:
        for what in ("lost", "replaced", "over"):
            writer, tree, _ = await owned()
            tree.is_away = True
            channel, wire = await writer.connected("a")
            if what == "lost":
                channel.close()
                await asyncio.sleep(CONFIRM_PAUSE_S)
                assert writer.failed == ["a"]
            elif what == "replaced":
                writer.fanout.send(effects.SendAdds(0, "d", entries(0), None))
            else:
                writer.core.give_up(ClientClosed("over"))
            tried = tree.tried
            await asyncio.sleep(10 * CONFIRM_PAUSE_S)
            assert (tree.tried, wire.sent) == (tried, b"")

    play(test)


# ---- forces ----


def test_entry_is_confirmed_when_enough_bookies_have_carried_out_a_force() -> None:
    async def test() -> None:
        writer, found = await forcing()
        assert confirmed(writer) == []
        answer_force(*found["b"])
        await settled()
        assert (confirmed(writer), writer.failed) == ([0], [])
        answer_force(*found["c"], status=501)
        await settled()
        assert writer.failed == ["c"]

    play(test)


def test_bookie_that_does_not_answer_a_force_in_time_has_failed() -> None:
    async def test() -> None:
        writer, found = await forcing()
        answer_force(*found["b"])
        answer_force(*found["c"])
        await asyncio.sleep(FORCE_S - 1)
        assert writer.failed == []
        await asyncio.sleep(1)
        assert writer.failed == ["a"]

    play(test)


def test_bookie_that_had_nothing_to_lose_has_not_failed_when_its_connection_is_lost_in_a_force() -> None:
    async def test() -> None:
        writer, found = await forcing()
        found["a"][0].close()
        await settled()
        assert writer.failed == []
        found["b"][0].close()
        await settled()
        assert writer.failed == ["b"]
        assert confirmed(writer) == []

    play(test)


def test_force_to_a_bookie_without_a_connection_is_carried_out_because_it_has_nothing_to_lose() -> None:
    async def test() -> None:
        writer, found = await forcing()
        answer_force(*found["b"])
        answer_force(*found["c"])
        found["a"][0].close()
        await settled()
        assert writer.core.slots.all[0].asked_to_sync is None
        for _, wire in found.values():
            wire.sent = b""
        force = effects.Force(0, "a", 1)
        writer.core.slots.all[0].asked_to_sync = 0
        assert await writer.fanout.force(force) == []
        assert writer.core.slots.all[0].asked_to_sync is None
        writer.fanout.send(effects.SendAdds(0, "a", entries(0), None))
        writer.core.slots.all[0].asked_to_sync = 0
        assert await writer.fanout.force(force) == []
        assert writer.core.slots.all[0].asked_to_sync is None, "nothing was sent on a connection that is being made"
        assert await writer.fanout.force(effects.Force(1, "d", 1)) == []
        assert found["b"][1].sent == b"", "another bookie has the slot"
        assert writer.failed == []

    play(test)


def test_statuses_of_adds_reach_the_core() -> None:
    async def test() -> None:
        writer = FannedWriter()
        writer.add()
        channel, _ = await writer.connected("a")
        answer(channel, 0, status=Status.EFENCED)
        assert isinstance(writer.core.error, LedgerFenced)
        assert writer.core.error.bookie == "a"

    play(test)
