"""Which requests for polls and lists of entries count as failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.status import Status
from bookie_service.engine.entry_lists import EntryLists, StepReport
from bookie_service.engine.long_polls import LongPolls
from bookie_service.engine.reads import Reads
from bookie_service.engine.shares import ShareLimits
from bookie_service.metrics.requests import LIST_ENTRIES, LONG_POLL, RequestTimes
from bookie_service.network.v3_entry_list import EntryList
from bookie_service.network.v3_long_poll import LongPollRead
from tests.bookie import readings
from tests.bookie.readings import DAMAGED, DENSE, SPARSE, UNKNOWN, Bench, Peer
from tests.bookie.v3_peer import PIGGYBACK, request
from tests.crash.twins import BookieTwin

twin = readings.twin


class PollingPeer(Peer):
    """A connection whose time never comes."""

    @property
    def connection(self) -> PollingPeer:
        return self

    def call_later(self, seconds: float, callback: Callable[[], None]) -> PollingPeer:
        return self

    def cancel(self) -> None:
        """Do nothing."""


class Counted:
    """Readings of a bookie, among them polls and lists, whose outcomes are counted."""

    def __init__(self, twin: BookieTwin) -> None:
        self.bench, self.peer, self.times = Bench(twin), PollingPeer(), RequestTimes(lambda: 5)
        self.status = Status.EOK
        """Whether the peer may read."""
        view, turns = self.bench.view, self.bench.turns
        self.reads = Reads(view, self.bench.fetch, turns, lambda: None, self.times)
        few = ShareLimits(1, 1, 1)
        self.polls = LongPolls(few, 60.0, view.lac_at_hand, self.reads, turns, lambda *_: self.status)
        self.steps: list[tuple[Callable[[], StepReport], Callable[[StepReport], None]]] = []
        """Steps of lists that a thread is to run, and what takes their reports."""
        self.lists = EntryLists(few, lambda step, then: self.steps.append((step, then)), lambda: 0.0, self)

    def known_status_of(self, client: object, ledger_id: int) -> Status:
        return self.status

    def find(self, client: object, ledger_ids: Sequence[int], on_found: Callable[[], None]) -> None:
        raise AssertionError("every status is known")

    def poll(self, **asked: Any) -> None:
        asking = request(protocol.READ_ENTRY, 7, **asked)
        self.reads.enqueue(LongPollRead(self.polls, self.peer, asking))
        self.bench.finish()

    def ask_for_list(self, ledger_id: int) -> None:
        asking = request(protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, 7, ledgerId=ledger_id)
        self.reads.enqueue(EntryList(self.lists, self.peer, asking, self.reads.note_answered))
        self.bench.finish()

    def outcomes(self, operation: int) -> tuple[int, int]:
        """Return how many requests succeeded, and how many failed."""
        self.times.fold()
        return self.times.succeeded.count(operation), self.times.failed.count(operation)


@pytest.mark.parametrize(
    ("asked", "outcomes"),
    [
        ({"ledgerId": DENSE, "entryId": 20, "previousLAC": -1}, (1, 0)),
        ({"ledgerId": DENSE, "entryId": 10**9, "previousLAC": -1}, (0, 1)),
        ({"ledgerId": DAMAGED, "entryId": 3, "previousLAC": -1}, (0, 1)),
        ({"ledgerId": SPARSE, "entryId": -1, "previousLAC": 3, "flag": PIGGYBACK}, (1, 0)),
        ({"ledgerId": DAMAGED, "entryId": -1, "previousLAC": 2, "flag": PIGGYBACK}, (0, 1)),
    ],
    ids=["held", "absent", "damaged", "elsewhere", "next damaged"],
)
def test_long_poll_counts_as_failed_if_its_answer_is_an_error(
    twin: BookieTwin, asked: dict[str, int], outcomes: tuple[int, int]
) -> None:
    """The answer of the read of its entry was counted as a success. §2.7: With a LAC, "not here" is EOK."""
    counted = Counted(twin)
    counted.poll(**asked)
    assert counted.outcomes(LONG_POLL) == outcomes
    (frame,) = counted.peer.frames()
    status = protocol.Response.FromString(frame[4:]).readResponse.status
    assert (status == v3.StatusCode.EOK) == (outcomes == (1, 0))


def test_waiting_poll_that_changed_rights_refuse_counts_as_failed(twin: BookieTwin) -> None:
    counted = Counted(twin)
    counted.poll(ledgerId=SPARSE, entryId=-1, previousLAC=19, flag=PIGGYBACK, timeOut=1000)
    assert (len(counted.polls), counted.outcomes(LONG_POLL)) == (1, (0, 0))
    counted.status = Status.EUA
    counted.polls.review()
    counted.bench.finish()
    assert (len(counted.polls), counted.outcomes(LONG_POLL)) == (0, (0, 1))


def test_list_that_is_refused_at_once_counts_as_failed(twin: BookieTwin) -> None:
    counted = Counted(twin)
    counted.ask_for_list(UNKNOWN)
    counted.ask_for_list(DENSE)
    counted.ask_for_list(SPARSE)
    answers = [protocol.Response.FromString(frame[4:]) for frame in counted.peer.frames()]
    assert [each.getListOfEntriesOfLedgerResponse.status for each in answers] == [
        v3.StatusCode.ENOLEDGER,
        v3.StatusCode.ETOOMANYREQUESTS,
    ]
    assert counted.outcomes(LIST_ENTRIES)[1] == 2


@pytest.mark.parametrize("fails", [True, False])
def test_list_counts_when_it_is_answered_and_as_a_failure_if_that_is_an_error(twin: BookieTwin, fails: bool) -> None:
    """It was counted as a success when its turn was awaited."""
    counted = Counted(twin)
    counted.ask_for_list(DENSE)
    assert (len(counted.steps), counted.outcomes(LIST_ENTRIES)) == (1, (0, 0))
    ((step, take),) = counted.steps
    take(StepReport(0.0, is_done=True, error=OSError("the disk fails")) if fails else step())
    (frame,) = counted.peer.frames()
    status = protocol.Response.FromString(frame[4:]).getListOfEntriesOfLedgerResponse.status
    assert status == (v3.StatusCode.EIO if fails else v3.StatusCode.EOK)
    assert counted.outcomes(LIST_ENTRIES) == ((0, 1) if fails else (1, 0))


def test_list_whose_ledger_is_forbidden_when_its_turn_comes_counts_as_failed_once(twin: BookieTwin) -> None:
    counted = Counted(twin)
    counted.status = Status.EUA
    counted.ask_for_list(DENSE)
    (frame,) = counted.peer.frames()
    assert protocol.Response.FromString(frame[4:]).getListOfEntriesOfLedgerResponse.status == v3.StatusCode.EUA
    assert (counted.steps, counted.outcomes(LIST_ENTRIES)) == ([], (0, 1))
