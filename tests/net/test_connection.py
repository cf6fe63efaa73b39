"""One connection to a bookie: when it counts as silent, and to whom the answers in one receive buffer belong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from bkspark.errors import BookieUnavailable, RequestTimeout
from bkspark.net.channel import BookieChannel
from bkspark.net.connection import AddListener
from bkspark.net.responses import BAD_DIGEST
from bkspark.wire import v2
from bkspark.wire.status import Status
from tests.ledger.fanning import LEDGER, SILENT_S, Wire, answer, play, receive, settled
from tests.ledger.hostile import DIGEST, Asked, decoded, items, reply, sealed


def connected() -> tuple[BookieChannel, Wire]:
    """Return a new connection, and what it sends."""
    channel, wire = BookieChannel("a", 1 << 20, SILENT_S), Wire()
    channel.connection_made(wire)
    return channel, wire


def heard_by(channel: BookieChannel) -> list[list[int]]:
    """Return the entries of which a writer hears from now on, those of each call."""
    heard: list[list[int]] = []
    channel.listen_adds(LEDGER, AddListener(lambda ids, *_: heard.append(ids.tolist()), lambda _: None))
    return heard


def test_connection_is_silent_from_its_last_bytes_on() -> None:
    async def test() -> None:
        channel, _ = connected()
        await asyncio.sleep(SILENT_S - 1)
        answer(channel, 0)
        await asyncio.sleep(SILENT_S - 1)
        channel.close_if_silent()
        assert channel.lost is None
        await asyncio.sleep(2)
        channel.close_if_silent()
        assert isinstance(channel.lost, BookieUnavailable)

    play(test)


def test_lost_connection_is_reported_once_to_each_writer() -> None:
    async def test() -> None:
        channel, _ = connected()
        reports: list[tuple[int, str]] = []
        for ledger_id in (1, 2):
            channel.listen_adds(
                ledger_id,
                AddListener(lambda *_: None, lambda error, it=ledger_id: reports.append((it, str(error)))),  # type: ignore[misc]
            )
        channel.connection_lost(ConnectionResetError("reset"))
        channel.close()
        assert [ledger_id for ledger_id, _ in reports] == [1, 2]
        assert all("dropped the connection: reset" in error for _, error in reports)
        assert "dropped the connection: reset" in str(channel.lost), "the first reason stays"
        for ledger_id in (1, 2):
            channel.listen_adds(ledger_id, AddListener(lambda *_: None, lambda _: None))

    play(test)


def test_answers_to_one_entry_in_one_buffer_belong_to_one_read_each() -> None:
    """The reads were sent one after the other, and V2's answers do not name them."""

    async def test() -> None:
        channel, _ = connected()
        reads = [asyncio.ensure_future(channel.read_entries(LEDGER, np.array([3, 4]), DIGEST)) for _ in range(2)]
        await settled()
        found = reply(Asked(v2.READ, LEDGER, 3, b""), body=sealed(LEDGER, 3))
        lacking = reply(Asked(v2.READ, LEDGER, 4, b""), status=Status.ENOENTRY)
        receive(channel, found + found + lacking)
        await settled()
        assert [each.done() for each in reads] == [True, False]
        receive(channel, lacking)
        for each in reads:
            assert (await each).statuses.tolist() == [Status.EOK, Status.ENOENTRY]

    play(test)


def test_second_answer_to_an_entry_in_a_later_buffer_belongs_to_the_next_read() -> None:
    async def test() -> None:
        channel, _ = connected()
        reads = [asyncio.ensure_future(channel.read_entries(LEDGER, np.array([3, 4]), DIGEST)) for _ in range(2)]
        await settled()
        found = reply(Asked(v2.READ, LEDGER, 3, b""), body=sealed(LEDGER, 3))
        for answered in (found, lacking(3), lacking(4)):
            receive(channel, answered)
        await settled()
        assert [each.done() for each in reads] == [True, False]
        receive(channel, lacking(4))
        statuses = [(await each).statuses.tolist() for each in reads]
        assert statuses == [[Status.EOK, Status.ENOENTRY], [Status.ENOENTRY, Status.ENOENTRY]]

    play(test)


ITEM_BYTES = len(items(LEDGER, 0, 1))


@pytest.mark.parametrize(
    ("missing_bytes", "count"), [(0, 3), (1, 2), (ITEM_BYTES, 2), (ITEM_BYTES + 1, 1), (2 * ITEM_BYTES + 1, 1)]
)
def test_entries_that_exactly_fill_the_wanted_bytes_are_kept(missing_bytes: int, count: int) -> None:
    """docs/protocol.md §1.5: "at least one if the first one can be read"."""

    async def test() -> None:
        channel, wire = connected()
        body = items(LEDGER, 0, 3)
        bytes_max = v2.BATCH_ACCOUNT_BYTES + len(body) - missing_bytes
        reading = asyncio.ensure_future(channel.batch_read(LEDGER, 0, 5, bytes_max, DIGEST))
        await settled()
        receive(channel, reply(decoded(wire.sent[4:]), body=body))
        assert len((await reading).entries) == count

    play(test)


# ---- answers in one receive buffer ----


def test_answers_to_adds_and_reads_of_several_ledgers_in_one_buffer_reach_those_who_wait_for_them() -> None:
    """A connection is shared by all ledgers of a client, so that their answers come in any mixture."""

    async def test() -> None:
        channel, _ = connected()
        heard: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
        for ledger_id, answers in heard.items():

            def on_replies(ids: Any, statuses: Any, _: object, answers: list[tuple[int, int]] = answers) -> None:
                answers.extend(zip(ids.tolist(), statuses.tolist()))

            channel.listen_adds(ledger_id, AddListener(on_replies, lambda _: None))
        reads = [asyncio.ensure_future(channel.read_entries(ledger_id, np.array([3]), DIGEST)) for ledger_id in (1, 2)]
        await settled()
        found = [reply(Asked(v2.READ, ledger_id, 3, b""), body=sealed(ledger_id, 3)) for ledger_id in (1, 2)]
        adds = [(1, 7, Status.EOK), (2, 7, Status.EFENCED), (1, 8, Status.EIO), (2, 8, Status.EOK)]
        answers = [reply(Asked(v2.ADD, ledger_id, entry_id, b""), status) for ledger_id, entry_id, status in adds]
        receive(channel, found[1] + b"".join(answers) + found[0])
        assert [(await read).statuses.tolist() for read in reads] == [[Status.EOK], [Status.EOK]]
        assert heard == {1: [(7, Status.EOK), (8, Status.EIO)], 2: [(7, Status.EFENCED), (8, Status.EOK)]}

    play(test)


def test_answers_about_the_last_entry_belong_to_the_reads_in_their_order() -> None:
    async def test() -> None:
        channel, _ = connected()
        reads = [asyncio.ensure_future(channel.read_last_entry(LEDGER, DIGEST)) for _ in range(2)]
        await settled()
        for entry_id in (4, 5):
            receive(channel, reply(Asked(v2.READ, LEDGER, v2.LAST_ENTRY, b""), body=sealed(LEDGER, entry_id)))
        assert [last.entry is not None and last.entry.entry_id for last in await asyncio.gather(*reads)] == [4, 5]

    play(test)


def test_second_answer_to_a_batch_read_in_one_buffer_is_passed_over() -> None:
    async def test() -> None:
        channel, wire = connected()
        reading = asyncio.ensure_future(channel.batch_read(LEDGER, 0, 5, 1000, DIGEST))
        await settled()
        asked = decoded(wire.sent[4:])
        receive(channel, reply(asked, body=items(LEDGER, 0, 3)) + reply(asked, body=items(LEDGER, 0, 2)))
        assert len((await reading).entries) == 3
        assert channel.lost is None

    play(test)


def test_batch_read_that_is_refused_gives_no_entries_whatever_bytes_come_with_it() -> None:
    """§1.5: entries follow an EOK alone."""

    async def test() -> None:
        channel, wire = connected()
        reading = asyncio.ensure_future(channel.batch_read(LEDGER, 0, 5, 1000, DIGEST))
        await settled()
        receive(channel, reply(decoded(wire.sent[4:]), Status.ENOENTRY, items(LEDGER, 0, 3)))
        refused = await reading
        assert (len(refused.entries), refused.status) == (0, Status.ENOENTRY)

    play(test)


def test_batch_reply_without_an_entry_is_as_bad_as_a_damaged_one() -> None:
    """§1.5: it has at least one entry if the first one can be read. The reader would ask again and again."""

    async def test() -> None:
        channel, wire = connected()
        reading = asyncio.ensure_future(channel.batch_read(LEDGER, 0, 5, 1000, DIGEST))
        await settled()
        receive(channel, reply(decoded(wire.sent[4:])))
        empty = await reading
        assert (len(empty.entries), empty.status) == (0, BAD_DIGEST)

    play(test)


def test_answer_that_comes_in_two_parts_after_a_whole_one_is_taken_when_it_is_complete() -> None:
    async def test() -> None:
        channel, _ = connected()
        heard = heard_by(channel)
        reading = asyncio.ensure_future(channel.read_entries(LEDGER, np.array([3]), DIGEST))
        await settled()
        add = reply(Asked(v2.ADD, LEDGER, 7, b""))
        found = reply(Asked(v2.READ, LEDGER, 3, b""), body=sealed(LEDGER, 3))
        for cut in (3, len(found) - 1):
            receive(channel, add + found[:cut])
            assert heard.pop() == [7]
            assert not reading.done()
            receive(channel, found[cut:] + add)
            assert heard.pop() == [7]
            assert (await reading).statuses.tolist() == [Status.EOK]
            reading = asyncio.ensure_future(channel.read_entries(LEDGER, np.array([3]), DIGEST))
            await settled()
        reading.cancel()
        assert channel.lost is None

    play(test)


def test_each_answer_that_comes_alone_is_heard_once() -> None:
    async def test() -> None:
        channel, _ = connected()
        heard = heard_by(channel)
        for entry_id in range(4):
            answer(channel, entry_id)
        answer(channel, 4, 5)
        assert heard == [[0], [1], [2], [3], [4, 5]]

    play(test)


def test_bytes_that_the_socket_has_not_taken_are_those_of_the_connection() -> None:
    """A writer holds its callers back by them."""

    async def test() -> None:
        assert BookieChannel("a", 1 << 20, SILENT_S).unsent_bytes == 0
        channel, wire = connected()
        wire.unsent_bytes = 5
        assert channel.unsent_bytes == 5

    play(test)


# ---- requests that end otherwise ----

Request = Callable[[BookieChannel], Coroutine[Any, Any, Any]]
REQUESTS: dict[str, tuple[Request, Callable[[bytes], bytes]]] = {
    "last entry": (
        lambda channel: channel.read_last_entry(LEDGER, DIGEST),
        lambda sent: reply(Asked(v2.READ, LEDGER, v2.LAST_ENTRY, b""), body=sealed(LEDGER, 3)),
    ),
    "single reads": (
        lambda channel: channel.read_entries(LEDGER, np.array([3]), DIGEST),
        lambda sent: reply(Asked(v2.READ, LEDGER, 3, b""), body=sealed(LEDGER, 3)),
    ),
    "batch read": (
        lambda channel: channel.batch_read(LEDGER, 3, 1, 1000, DIGEST),
        lambda sent: reply(decoded(sent[4:]), body=items(LEDGER, 3, 1)),
    ),
}
"""How each request is made, and answered: it has what was sent."""


@pytest.mark.parametrize("name", REQUESTS)
def test_answer_in_the_turn_in_which_its_caller_goes_away_harms_no_other(name: str) -> None:
    """An error in `buffer_updated` would end the connection, and with it what others wait for."""
    request, answered = REQUESTS[name]

    async def test() -> None:
        channel, wire = connected()
        reading = asyncio.ensure_future(request(channel))
        await settled()
        reading.cancel()
        receive(channel, answered(wire.sent))
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert channel.lost is None

    play(test)


@pytest.mark.parametrize("name", REQUESTS)
def test_answer_that_came_before_the_connection_was_lost_counts(name: str) -> None:
    request, answered = REQUESTS[name]

    async def test() -> None:
        channel, wire = connected()
        reading, other = (
            asyncio.ensure_future(request(channel)),
            asyncio.ensure_future(channel.read_last_entry(9, DIGEST)),
        )
        await settled()
        receive(channel, answered(wire.sent))
        channel.close()
        assert (await reading) is not None
        with pytest.raises(BookieUnavailable):
            await other

    play(test)


@pytest.mark.parametrize("name", REQUESTS)
def test_request_whose_connection_is_lost_fails_at_once(name: str) -> None:
    """Otherwise its caller asks the next bookie only when its time is over."""

    async def test() -> None:
        channel, _ = connected()
        reading = asyncio.ensure_future(REQUESTS[name][0](channel))
        await settled()
        channel.connection_lost(ConnectionResetError("reset"))
        async with asyncio.timeout(1.0):
            with pytest.raises(BookieUnavailable, match="dropped the connection: reset"):
                await reading

    play(test)


@pytest.mark.parametrize("name", REQUESTS)
def test_request_on_a_lost_connection_fails_at_once(name: str) -> None:
    """Its time-out would begin otherwise, for an answer that cannot come."""

    async def test() -> None:
        channel, wire = connected()
        channel.connection_lost(ConnectionResetError("reset"))
        async with asyncio.timeout(1.0):
            with pytest.raises(BookieUnavailable, match="dropped the connection: reset"):
                await REQUESTS[name][0](channel)
        with pytest.raises(BookieUnavailable, match="dropped the connection: reset"):
            channel.send_adds(b"adds")
        assert wire.sent == b""

    play(test)


class Ended(Wire):
    """Knows whether the connection was ended, and between which addresses it is."""

    is_ended = False
    addresses: tuple[object, object] = (None, None)

    def abort(self) -> None:
        self.is_ended = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = dict(zip(("sockname", "peername"), self.addresses))
        return found[name] if name in found else super().get_extra_info(name, default)


def test_connection_that_is_closed_is_ended_at_once() -> None:
    """The bookie would go on sending answers, and this side would go on reading them."""

    async def test() -> None:
        channel, wire = BookieChannel("a", 1 << 20, SILENT_S), Ended()
        channel.connection_made(wire)
        assert not wire.is_ended
        channel.close()
        assert wire.is_ended

    play(test)


@pytest.mark.parametrize(
    ("own", "bookies", "is_here"),
    [
        (("10.0.0.1", 40001), ("10.0.0.1", 3181), True),
        (("127.0.0.1", 40001), ("127.0.0.1", 3181), True),
        (("10.0.0.1", 40001), ("10.0.0.2", 3181), False),
        (("::1", 40001, 0, 0), ("::1", 3181, 0, 0), False),
        ("/own", "/peer", False),
    ],
)
def test_bookie_is_on_this_host_if_both_ends_have_one_ipv4_address(own: object, bookies: object, is_here: bool) -> None:
    async def test() -> None:
        channel, wire = BookieChannel("a", 1 << 20, SILENT_S), Ended()
        assert channel.address_on_this_host is None
        channel.connection_made(wire)
        wire.addresses = own, bookies
        assert channel.address_on_this_host == (bookies if is_here else None)

    play(test)


def test_connection_that_ends_before_any_answer_says_what_the_bookie_may_demand() -> None:
    """A bookie that serves only TLS or authenticated clients ends it like that; one that has answered does not."""

    async def test() -> None:
        for has_answered in (False, True):
            channel, _ = connected()
            await asyncio.sleep(1)
            if has_answered:
                answer(channel, 0)
            channel.connection_lost(None)
            assert ("it may serve only TLS, or authenticated clients" in str(channel.lost)) is not has_answered

    play(test)


def lacking(*entry_ids: int) -> bytes:
    """Return the answers of a bookie that has none of these entries."""
    return b"".join(reply(Asked(v2.READ, LEDGER, entry_id, b""), Status.ENOENTRY) for entry_id in entry_ids)


def test_time_out_of_a_busy_bookie_runs_from_one_answer_to_the_next() -> None:
    async def test() -> None:
        channel, _ = connected()
        reading = asyncio.ensure_future(channel.read_entries(LEDGER, np.arange(4), DIGEST))
        for entry_id in range(4):
            await asyncio.sleep(SILENT_S - 1)
            receive(channel, lacking(entry_id))
        assert (await reading).statuses.tolist() == [Status.ENOENTRY] * 4
        reading = asyncio.ensure_future(channel.read_entries(LEDGER, np.arange(4), DIGEST))
        await settled()
        receive(channel, lacking(0, 1, 2))
        await asyncio.sleep(SILENT_S + 1)
        with pytest.raises(RequestTimeout, match="bookie a stopped answering 4 reads of ledger 5"):
            await reading

    play(test)


def test_answer_in_the_turn_in_which_the_time_ends_harms_no_other() -> None:
    async def test() -> None:
        channel, _ = connected()
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(channel.read_entries(LEDGER, np.arange(2), DIGEST))
        await asyncio.sleep(0)
        reported: list[object] = []
        loop.set_exception_handler(lambda loop, context: reported.append(context))
        # Later than the time-out, by so little that the loop handles both in one turn.
        loop.call_at(loop.time() + SILENT_S + 5e-10, receive, channel, lacking(0))
        with pytest.raises(RequestTimeout):
            await reading
        await settled()
        assert (reported, channel.lost) == ([], None)

    play(test)
