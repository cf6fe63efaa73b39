"""What a writer of relaxed durability makes of the answers to its adds and forces: docs/protocol.md §5.5."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from bkspark.core.relaxed import RelaxedDurability
from bkspark.ledger.link import FORCE_PAUSE_S
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from tests.ledger.fanning import FORCE_S, SILENT_S, answer_force, confirmed, forcing, play, settled
from tests.ledger.holders import PATIENT, Holder, register
from tests.ledger.hostile import DIGEST, HostileBookie, World
from tests.ledger.hostile import play as play_on_sockets


@pytest.mark.parametrize(
    "status",
    [
        protocol.ENOLEDGER,
        protocol.EBADREQ,
        protocol.EIO,
        protocol.EUA,
        protocol.EFENCED,
        protocol.EREADONLY,
        protocol.EUNKNOWNLEDGERSTATE,
    ],
)
def test_bookie_that_refuses_a_force_confirms_nothing_and_has_failed(status: int) -> None:
    async def test() -> None:
        writer, found = await forcing()
        answer_force(*found["b"], status=status)
        await settled()
        assert (confirmed(writer), writer.failed) == ([], ["b"])

    play(test)


def test_bookie_that_does_not_answer_a_force_confirms_nothing_and_has_failed() -> None:
    """It is unknown whether it has synced: only an EOK says so."""

    async def test() -> None:
        writer, _ = await forcing()
        await asyncio.sleep(FORCE_S - 0.5)
        assert writer.failed == []
        await asyncio.sleep(1.0)
        assert (confirmed(writer), bool(writer.failed)) == ([], True)

    play(test)


def test_force_that_is_refused_because_of_load_is_repeated_after_a_pause() -> None:
    async def test() -> None:
        writer, found = await forcing()
        for _ in range(3):
            answer_force(*found["b"], status=protocol.ETOOMANYREQUESTS)
            found["b"][1].sent = b""
            await asyncio.sleep(FORCE_PAUSE_S - 0.01)
            assert found["b"][1].sent == b""
            await asyncio.sleep(0.02)
            assert found["b"][1].sent != b""
        assert (confirmed(writer), writer.failed) == ([], [])
        answer_force(*found["b"])
        await settled()
        assert (confirmed(writer), writer.failed) == ([0], [])

    play(test)


def test_force_on_a_connection_that_was_replaced_does_not_fail_the_bookie() -> None:
    """The bookie had nothing to lose: it has not failed, whatever became of the force."""

    async def test() -> None:
        writer, found = await forcing()
        channel, _ = found["a"]
        channel.close()
        writer.add()
        await writer.connected("a", BookieV3Channel("a", 1 << 20, SILENT_S, v3.TxnIds()))
        assert (confirmed(writer), writer.failed) == ([], [])

    play(test)


def test_bookie_has_the_time_of_a_force_for_it_though_its_other_answers_have_less() -> None:
    async def test() -> None:
        writer, found = await forcing(silent_s=1.0)
        await asyncio.sleep(FORCE_S - 0.5)
        assert writer.failed == []
        answer_force(*found["b"])
        await settled()
        assert (confirmed(writer), writer.failed) == ([0], [])

    play(test)


@pytest.mark.parametrize("is_many", [False, True])
def test_entries_carry_no_lac_of_entries_that_are_acknowledged_and_not_synced(is_many: bool) -> None:
    """Such adds do not move the LAC: a reader would take entries for durable that may be lost."""
    lacs: dict[int, int] = {}

    def answer(request: protocol.Request) -> Iterable[protocol.Response]:
        if request.header.operation != protocol.ADD_ENTRY:
            return []
        add = request.addRequest
        lacs[add.entryId] = DIGEST.open_entry(add.body, add.ledgerId, add.entryId).lac
        inner = protocol.AddResponse(status=protocol.EOK, ledgerId=add.ledgerId, entryId=add.entryId)
        head = v3.header(protocol.ADD_ENTRY, request.header.txnId)
        return [protocol.Response(header=head, status=protocol.EOK, addResponse=inner)]

    async def test(world: World) -> None:
        async with HostileBookie(Holder(), answer) as bookie:
            await register(world, bookie)
            client = world.client(net=PATIENT)
            never = RelaxedDurability(force_interval_s=0.0)
            quorums = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
            writer = await client.create(**quorums, ledger_type="VD_JOURNAL", relaxed=never)
            for number in range(3):
                assert await (writer.append_many([b"x"]) if is_many else writer.append(b"x")) == number
            assert (writer.last_entry, lacs) == (-1, {0: -1, 1: -1, 2: -1})
            writer.abandon()

    play_on_sockets(test, 20)
