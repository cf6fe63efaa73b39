"""Answers on one V3 connection without sockets: of which request each is, and what it says: docs/protocol.md §2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bkspark.errors import BookieUnavailable, RequestTimeout
from bkspark.net.connection import AddListener
from bkspark.net.v3_channel import BookieV3Channel, PollResponse
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.framing import scan_frames
from bkspark.wire.status import EOK, Status
from tests.ledger.fanning import LEDGER, SILENT_S, Wire, play, receive, settled
from tests.ledger.hostile import DIGEST, PAYLOAD, sealed
from tests.net.v3_peer import response


def connected() -> tuple[BookieV3Channel, Wire]:
    """Return a new connection, and what it sends."""
    channel, wire = BookieV3Channel("a", 1 << 20, SILENT_S, v3.TxnIds()), Wire()
    channel.connection_made(wire)
    return channel, wire


def requests(wire: Wire) -> Iterator[protocol.Request]:
    """Yield what was sent."""
    table = scan_frames(wire.sent, len(wire.sent))
    for start, end in zip(table.starts, table.ends):
        yield v3.decode_request(wire.sent[start:end])


def frames(*responses: protocol.Response) -> bytes:
    return b"".join(bytes(v3.encode_message(each)) for each in responses)


def entry(request: protocol.Request, entry_id: int, **message: Any) -> protocol.Response:
    inner = protocol.ReadResponse(
        ledgerId=LEDGER, entryId=entry_id, **{"status": 0, "body": sealed(LEDGER, entry_id), **message}
    )
    return response(request, inner.status, readResponse=inner)


def forced(request: protocol.Request, status: int = 0) -> protocol.Response:
    inner = protocol.ForceLedgerResponse(ledgerId=LEDGER, status=status)
    return response(request, status, forceLedgerResponse=inner)


# ---- adds ----


def listened(channel: BookieV3Channel, ledger_id: int) -> list[tuple[list[int], list[int], int | None]]:
    """Return what a writer of a ledger hears from now on: entries, statuses, and what is synced."""
    heard: list[tuple[list[int], list[int], int | None]] = []
    channel.listen_adds(
        ledger_id,
        AddListener(
            lambda ids, statuses, synced: heard.append((ids.tolist(), statuses.tolist(), synced)), lambda _: None
        ),
    )
    return heard


def test_each_writer_hears_the_newest_that_is_synced_of_its_own_ledger() -> None:
    """§5.5: what another ledger has synced says nothing about this one's entries."""

    async def test() -> None:
        channel, _ = connected()
        one, other = listened(channel, 1), listened(channel, 2)
        txn_ids, statuses = np.arange(4), np.zeros(4, np.int64)
        ledgers, synced = np.array([1, 1, 2, 2]), np.array([3, 5, 8, 9])
        receive(channel, v3.encode_add_responses(txn_ids, statuses, ledgers, np.array([6, 7, 6, 7]), synced))
        assert (one, other) == ([([6, 7], [0, 0], 5)], [([6, 7], [0, 0], 9)])
        ledgers = np.array([1, 1, 1, 1])
        receive(channel, v3.encode_add_responses(txn_ids, statuses, ledgers, np.arange(8, 12), np.array([6, 6, 7, 8])))
        assert one[1:] == [([8, 9, 10, 11], [0, 0, 0, 0], 8)]

    play(test)


@pytest.mark.parametrize("synced", [None, 4])
def test_answer_of_an_unusual_form_that_names_nothing_synced_confirms_nothing(synced: int | None) -> None:
    async def test() -> None:
        channel, _ = connected()
        heard = listened(channel, LEDGER)
        inner = protocol.AddResponse(status=0, ledgerId=LEDGER, entryId=7)
        if synced is not None:
            inner.lastAddSynced = synced
        head = v3.header(protocol.ADD_ENTRY, 1, v3.URGENT_PRIORITY)
        receive(channel, frames(protocol.Response(header=head, status=0, addResponse=inner)))
        assert heard == [([7], [0], synced)]

    play(test)


# ---- second answers, and answers that come too late ----


def test_second_answer_to_a_request_in_one_buffer_is_passed_over() -> None:
    """An error in `buffer_updated` would end the connection, and with it what others wait for."""

    async def test() -> None:
        channel, wire = connected()
        forcing = asyncio.ensure_future(channel.force(LEDGER))
        await settled()
        (request,) = requests(wire)
        receive(channel, frames(forced(request), forced(request, 501)))
        assert await forcing == EOK
        assert channel.lost is None

    play(test)


def test_second_answer_to_a_read_never_takes_the_place_of_the_first() -> None:
    """Neither in the same buffer, nor in another form."""

    async def test() -> None:
        channel, wire = connected()
        reading = asyncio.ensure_future(channel.read_entries(LEDGER, np.array([1, 2]), DIGEST))
        await settled()
        first, second = requests(wire)
        receive(channel, frames(entry(first, 1), entry(first, 1), entry(first, 1, status=403, body=b"")))
        receive(channel, frames(response(first, 403)))
        receive(channel, frames(entry(second, 2)))
        found = await reading
        assert found.statuses.tolist() == [EOK, EOK]
        assert [at.tolist() for at, _ in found.pieces] == [[0], [1]]

    play(test)


def test_answer_in_the_turn_in_which_its_caller_goes_away_harms_no_other() -> None:
    async def test() -> None:
        channel, wire = connected()
        reading = asyncio.ensure_future(channel.read_entries(LEDGER, np.array([1]), DIGEST))
        forcing = asyncio.ensure_future(channel.force(LEDGER))
        await settled()
        read, force = requests(wire)
        reading.cancel()
        forcing.cancel()
        receive(channel, frames(entry(read, 1), forced(force)))
        await asyncio.gather(reading, forcing, return_exceptions=True)
        assert reading.cancelled()
        assert forcing.cancelled()
        assert channel.lost is None

    play(test)


def test_refusal_that_comes_after_its_caller_has_gone_harms_no_other() -> None:
    """Only the refusal of an add, or of a login, says that the bookie serves this client no more."""

    async def test() -> None:
        channel, wire = connected()
        forcing = asyncio.ensure_future(channel.force(LEDGER))
        await settled()
        (request,) = requests(wire)
        forcing.cancel()
        await asyncio.gather(forcing, return_exceptions=True)
        receive(channel, frames(response(request, protocol.EUA)))
        assert channel.lost is None

    play(test)


def test_lost_connection_fails_every_kind_of_request() -> None:
    async def test() -> None:
        channel, _ = connected()
        waiting = [
            asyncio.ensure_future(each)
            for each in (
                channel.read_entries(LEDGER, np.array([1, 2]), DIGEST),
                channel.read_last_entry(LEDGER, DIGEST),
                channel.force(LEDGER),
            )
        ]
        await settled()
        channel.connection_lost(None)
        await settled()
        assert [type(each.exception()) for each in waiting] == [BookieUnavailable] * 3

    play(test)


@pytest.mark.parametrize(
    ("inner", "outer", "expected"), [(501, 0, Status.EIO), (0, 501, EOK), (403, 402, Status.ENOENTRY)]
)
def test_status_of_the_inner_message_counts_where_there_is_one(inner: int, outer: int, expected: int) -> None:
    """§2.5: a client trusts the inner message where there is one, and the outer status otherwise."""

    async def test() -> None:
        channel, wire = connected()
        heard = listened(channel, LEDGER)
        waiting = [
            asyncio.ensure_future(each)
            for each in (channel.read_entries(LEDGER, np.array([1]), DIGEST), channel.read_last_entry(LEDGER, DIGEST))
        ]
        forcing = asyncio.ensure_future(channel.force(LEDGER))
        await settled()
        read, last, force = requests(wire)
        for request in (read, last):
            body = sealed(LEDGER, 1) if inner == 0 else b""
            message = protocol.ReadResponse(ledgerId=LEDGER, entryId=1, status=inner, body=body)
            receive(channel, frames(response(request, outer, readResponse=message)))
        done = protocol.ForceLedgerResponse(ledgerId=LEDGER, status=inner)
        receive(channel, frames(response(force, outer, forceLedgerResponse=done)))
        added = protocol.AddResponse(ledgerId=LEDGER, entryId=7, status=inner)
        head = v3.header(protocol.ADD_ENTRY, 1 << 40)
        receive(channel, frames(protocol.Response(header=head, status=outer, addResponse=added)))
        entries, newest = await asyncio.gather(*waiting)
        assert (entries.statuses.tolist(), newest.status, await forcing) == ([expected], expected, expected)
        assert heard == [([7], [expected], None)]

    play(test)


# ---- long polls ----


@pytest.mark.parametrize("status", [protocol.EIO, protocol.ENOENTRY, protocol.EUNKNOWNLEDGERSTATE])
def test_poll_that_is_refused_says_nothing_about_the_lac(status: int) -> None:
    async def test() -> None:
        channel, wire = connected()
        polling = asyncio.ensure_future(channel.poll_entry(LEDGER, 6, 1.0, DIGEST))
        await settled()
        (request,) = requests(wire)
        receive(channel, frames(entry(request, 7, status=status, maxLAC=9)))
        refused = await polling
        assert (refused.status != EOK, refused.lac, refused.entry) == (True, None, None)

    play(test)


def test_poll_without_a_lac_brings_nothing_new() -> None:
    """A field that is missing reads as 0, which is an entry."""

    async def test() -> None:
        channel, wire = connected()
        polling = asyncio.ensure_future(channel.poll_entry(LEDGER, -1, 1.0, DIGEST))
        await settled()
        (request,) = requests(wire)
        inner = protocol.ReadResponse(status=0, ledgerId=LEDGER, entryId=-1)
        receive(channel, frames(response(request, readResponse=inner)))
        assert await polling == PollResponse(EOK, None, None)

    play(test)


def test_poll_may_be_answered_until_its_wait_and_the_time_of_an_ordinary_answer_are_over() -> None:
    async def test() -> None:
        channel, wire = connected()
        for late_s, is_answered in ((SILENT_S + 59, True), (SILENT_S + 61, False)):
            wire.sent = b""
            polling = asyncio.ensure_future(channel.poll_entry(LEDGER, 6, 60.0, DIGEST))
            await asyncio.sleep(late_s)
            (request,) = requests(wire)
            receive(channel, frames(entry(request, 7, maxLAC=9)))
            if is_answered:
                found = (await polling).entry
                assert found is not None
                assert found.payload == PAYLOAD
            else:
                with pytest.raises(RequestTimeout):
                    await polling

    play(test)


# ---- other requests ----


@pytest.mark.parametrize(
    ("status", "expected"), [(402, Status.ENOLEDGER), (403, Status.ENOENTRY), (501, Status.EIO), (502, Status.EUA)]
)
def test_list_of_entries_that_is_refused_is_its_status_and_no_entries(status: int, expected: Status) -> None:
    async def test() -> None:
        channel, wire = connected()
        listing = asyncio.ensure_future(channel.entry_list(LEDGER))
        await settled()
        (request,) = requests(wire)
        inner = protocol.GetListOfEntriesOfLedgerResponse(ledgerId=LEDGER, status=status)
        receive(channel, frames(response(request, status, getListOfEntriesOfLedgerResponse=inner)))
        found, runs = await listing
        assert (found, runs.entries) == (expected, 0)

    play(test)


@pytest.mark.parametrize(("explicit", "carried", "lac"), [(41, 6, 41), (6, 41, 41), (7, 7, 7)])
def test_higher_of_the_two_lacs_that_a_bookie_sends_counts(explicit: int, carried: int, lac: int) -> None:
    """§2.8: a client takes the higher LAC after it has checked both digests."""

    async def test() -> None:
        channel, wire = connected()
        reading = asyncio.ensure_future(channel.read_lac(LEDGER, DIGEST))
        await settled()
        (request,) = requests(wire)
        inner = protocol.ReadLacResponse(
            ledgerId=LEDGER,
            status=0,
            lacBody=DIGEST.seal_lac(LEDGER, explicit),
            lastEntryBody=sealed(LEDGER, 50, lac=carried),
        )
        receive(channel, frames(response(request, readLacResponse=inner)))
        assert (await reading).lac == lac

    play(test)
