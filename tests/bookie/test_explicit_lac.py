"""Explicit LACs at the bookie (docs/protocol.md §2.8): kept as sent, journaled before the answer, never going back."""

from __future__ import annotations

import struct
from random import Random

import pytest

from bkspark.wire.status import Status
from bookie_service.engine import rules
from bookie_service.formats import index as index_format
from bookie_service.formats import journal as journal_format
from bookie_service.formats.index import STORED_ENTRY_ID_MAX, UNKNOWN_KEY, LedgerHeader
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.twins import BookieTwin, Setup, lac_packet

KEY, OTHER = b"k" * 20, b"o" * 20
LEDGER = 7


class Sent:
    """A connection that keeps the statuses it was sent."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def send(self, parts: list[bytes]) -> None:
        self.statuses += [part[0] for part in parts]

    def resume(self) -> None:
        """Explicit LACs are never kept waiting."""


def write_lac(twin: BookieTwin, packet: bytes, ledger_id: int = LEDGER, key: bytes | None = None) -> Sent:
    answers = Sent()
    key = twin.history.ledger(ledger_id).master_key if key is None else key
    twin.bookie.write_lac(answers, ledger_id, key, packet, lambda status: [bytes([status])])
    return answers


@pytest.fixture
def twin() -> BookieTwin:
    setup = Setup()
    return BookieTwin(setup.new_disk(), setup, History())


def kept(twin: BookieTwin) -> bytes:
    ledger = twin.store.ledger(LEDGER)
    assert ledger is not None
    return ledger.explicit_lac


def reopened(twin: BookieTwin, loss: Loss) -> BookieTwin:
    return BookieTwin(crash_image(twin.disk, loss, Random(1)), twin.setup, twin.history.after_crash())


def test_answer_waits_until_the_record_is_durable(twin: BookieTwin) -> None:
    answers = write_lac(twin, lac_packet(LEDGER, 3))
    assert answers.statuses == []
    twin.settle()
    assert answers.statuses == [Status.EOK]
    assert kept(reopened(twin, Loss.LOST)) == lac_packet(LEDGER, 3)


def test_answer_to_a_lower_lac_waits_for_the_higher_one_that_replaces_it(twin: BookieTwin) -> None:
    answers = [write_lac(twin, lac_packet(LEDGER, lac)) for lac in (5, 3, 5)]
    assert [each.statuses for each in answers] == [[], [], []]
    twin.settle()
    assert [each.statuses for each in answers] == [[Status.EOK]] * 3
    assert write_lac(twin, lac_packet(LEDGER, 4)).statuses == [Status.EOK]
    assert kept(twin) == lac_packet(LEDGER, 5)


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_p25_highest_lac_outlives_crashes_and_stops(twin: BookieTwin, checkpoints: int) -> None:
    """#1527, #1533: an explicit LAC that was acknowledged is journaled, and also kept by the storage."""
    for lac in (1, 9, 4):
        write_lac(twin, lac_packet(LEDGER, lac))
        twin.settle()
        if checkpoints:
            twin.checkpoint()
            checkpoints -= 1
    twin = reopened(twin, Loss.LOST)
    assert kept(twin) == lac_packet(LEDGER, 9)
    twin.stop()
    assert kept(reopened(twin, Loss.LOST)) == lac_packet(LEDGER, 9)


def test_lac_of_an_unknown_ledger_brings_its_key_and_bars_no_client(twin: BookieTwin) -> None:
    write_lac(twin, lac_packet(LEDGER, 0))
    twin.settle()
    twin = reopened(twin, Loss.LOST)
    assert write_lac(twin, lac_packet(LEDGER, 1), key=OTHER).statuses == [Status.EUA]
    twin.add(LEDGER, [(0, b"entry")])
    twin.settle()
    assert twin.history.ledgers[LEDGER].entries[0].acknowledged == 0
    assert kept(twin) == lac_packet(LEDGER, 0)


def test_fenced_ledger_takes_a_lac_and_a_dropped_one_does_not(twin: BookieTwin) -> None:
    twin.fence(LEDGER)
    write_lac(twin, lac_packet(LEDGER, 2))
    twin.checkpoint()
    assert kept(twin) == lac_packet(LEDGER, 2)
    twin.store.tombstones.remember([LEDGER], 1)
    assert twin.store.drop([LEDGER]) == [LEDGER]
    assert write_lac(twin, lac_packet(LEDGER, 3)).statuses == [Status.ENOLEDGER]
    assert twin.store.ledger(LEDGER) is None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, Status.EOK),
        ({"stored_key": None}, Status.EOK),
        ({"stored_key": UNKNOWN_KEY}, Status.EOK),
        ({"stored_key": OTHER}, Status.EUA),
        ({"given_key": b""}, Status.EUA),
        ({"stored_key": None, "given_key": b"k" * 19}, Status.EUA),
        ({"stored_key": UNKNOWN_KEY, "given_key": b"k" * 21}, Status.EUA),
        ({"read_only": True}, Status.EREADONLY),
        ({"is_deleted": True}, Status.ENOLEDGER),
        ({"packet": b""}, Status.EBADREQ),
        ({"packet": lac_packet(LEDGER, 1)[:15]}, Status.EBADREQ),
        ({"packet": lac_packet(LEDGER, 1).ljust(129)}, Status.EBADREQ),
        ({"packet": lac_packet(LEDGER + 1, 1)}, Status.EBADREQ),
        ({"packet": struct.pack(">qq", LEDGER, -1)}, Status.EBADREQ),
        ({"packet": lac_packet(LEDGER, STORED_ENTRY_ID_MAX + 1)}, Status.EBADREQ),
        ({"ledger_id": -1, "packet": struct.pack(">qq", -1, 1)}, Status.EBADREQ),
    ],
)
def test_what_may_be_kept(facts: dict[str, object], expected: Status) -> None:
    usual = {"ledger_id": LEDGER, "stored_key": KEY, "given_key": KEY, "packet": lac_packet(LEDGER, 1)}
    named = {"read_only": False, "is_deleted": False}
    chosen = {**usual, **named, **facts}
    assert rules.explicit_lac_status(**chosen) == expected


def test_header_keeps_packets_up_to_the_largest() -> None:
    for packet in (b"", lac_packet(LEDGER, 3), bytes(16) + b"\xff" * 112):
        header = LedgerHeader(LEDGER, 2, False, KEY, packet)
        slot = index_format.encode_slot(header)
        assert len(slot) == index_format.SLOT_BYTES
        assert index_format.decode_header(slot, LEDGER) == header
        for at in range(184):
            damaged = bytearray(slot)
            damaged[at] ^= 1
            assert index_format.decode_header(bytes(damaged), LEDGER) is None


def test_record_holds_many_and_refuses_what_does_not_add_up() -> None:
    lacs = [(7, lac_packet(7, 1)), (1 << 62, lac_packet(1 << 62, 5) + b"mac")]
    body = journal_format.encode_lacs(lacs)
    assert journal_format.decode_lacs(body, 2) == lacs
    damaged_length = body[:8] + b"\xff" * 4 + body[12:]
    for wrong, count in ((body, 1), (body[:-1], 2), (body + b"\0", 2), (damaged_length, 2), (b"", 1)):
        with pytest.raises(ValueError, match="does not hold"):
            journal_format.decode_lacs(wrong, count)
