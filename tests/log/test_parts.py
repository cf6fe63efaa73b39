"""Small parts of a log's code by themselves: bounds of what they accept, and what they return at them."""

from __future__ import annotations

import asyncio
import json
import zlib
from dataclasses import replace

import pytest

from bkspark.client import Client
from bkspark.errors import ConfigurationError, MetadataError, MetadataFormat
from bkspark.ids import ENTRY_ID_MAX
from bkspark.log import formats, publication, schemas, times
from bkspark.log.attempts import is_superseded, with_condemned
from bkspark.log.consumer_nodes import decode_consumer
from bkspark.log.formats import PendingLedger, Publisher, SegmentFacts, SegmentOwner, log_path
from bkspark.log.heads import HeadStore
from bkspark.log.positions import parse_place
from bkspark.log.times import OPEN_MARKS_MAX, Mark, OpenTimes, TimeIndex, TimePageRef, decode_open
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.metadata.memory import MemoryStore
from tests.log.head_text import EXAMPLE
from tests.log.world import World, in_world

# ---- heads ----


def read_with(**changes: object) -> formats.LogHead:
    return formats.decode_head(json.dumps({**json.loads(EXAMPLE), **changes}).encode(), "/p")


@pytest.mark.parametrize(
    "ledger", [[5, "9", 10], [5, 9.0, 10], [True, 9, 10], ["5"], [None], [5, 9, 10, "1"], [5, 9, 10, 1.5]]
)
def test_ledger_of_a_head_has_whole_numbers(ledger: list[object]) -> None:
    with pytest.raises(MetadataFormat, match="tail has an item that is not"):
        read_with(tail=[ledger])


def test_last_entry_of_a_head_is_one_that_an_entry_can_have() -> None:
    for last_entry in (ENTRY_ID_MAX, ENTRY_ID_MAX + 1, -2):
        with pytest.raises(MetadataFormat):
            read_with(tail=[[5, last_entry, 10]])


@in_world
async def test_log_is_found_unless_it_is_missing_deleted_or_of_another_cluster(world: World) -> None:
    def heads(root: str) -> HeadStore:
        return world.another_store(root).heads

    found = await heads("/ledgers").find("x")
    assert found is not None
    assert found.head.root == "/ledgers"
    assert await heads("/ledgers").find("y") is None
    assert await heads("/others").find("x") is None
    tree = world.server.session()
    data, stat = await tree.get(log_path("x"))
    deleted = replace(formats.decode_head(data, "/p"), is_deleted=True)
    await tree.set(log_path("x"), formats.encode_head(deleted), stat.version)
    assert await heads("/ledgers").find("x") is None


# ---- what is published ----


@pytest.mark.parametrize("publisher", [("q",), ("q", 1, "id", 2), ["q", 1], "q1", 7])
def test_publisher_is_a_name_a_version_and_perhaps_a_query(publisher: object) -> None:
    with pytest.raises(ConfigurationError, match="publisher must be"):
        publication.publisher_of(publisher)  # type: ignore[arg-type]
    assert publication.publisher_of(("q", 1)) == Publisher("q", 1)
    assert publication.publisher_of(("q", 1, "id")) == Publisher("q", 1, "id")


def test_question_about_something_that_is_not_a_publisher_is_refused_before_the_log_is_read() -> None:
    async def ask() -> None:
        async with Client("zk://127.0.0.1:2181/ledgers", tree=MemoryStore().session()) as client:
            await client.log("clicks").has_published(("q",))  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match="publisher must be a query id and an epoch"):
        asyncio.run(ask())


def test_entries_are_published_once_and_of_closed_ledgers_alone() -> None:
    one, two = SegmentFacts(5, 9, 90), SegmentFacts(5, 19, 100, 10)
    publication.check_ledgers([two, one, SegmentFacts(6, 3, 4)])
    for overlapping in (SegmentFacts(5, 12, 20, 9), SegmentFacts(5, 12, 20, 1), one):
        with pytest.raises(ValueError, match="entries of ledger 5 are published twice"):
            publication.check_ledgers([one, overlapping])
    with pytest.raises(ValueError, match="published before it is closed"):
        publication.check_ledgers([SegmentFacts(7)])
    with pytest.raises(ValueError, match="entries of ledger 7 are published twice"):
        publication.check_ledgers([SegmentFacts(7), SegmentFacts(7)])
    with pytest.raises(ConfigurationError, match="SegmentFacts"):
        publication.check_ledgers([(5, 9, 90)])  # type: ignore[list-item]


def test_slices_are_joined_where_they_meet_and_their_end_is_known() -> None:
    one, two = SegmentFacts(5, 9, 90), SegmentFacts(5, 19, 100, 10)
    assert one.joined(two) == SegmentFacts(5, 19, 190)
    assert two.joined(one) is None
    assert one.joined(SegmentFacts(6, 19, 100, 10)) is None
    assert SegmentFacts(5).joined(two) is None
    assert one.joined(SegmentFacts(5)) is None


@pytest.mark.parametrize(
    "wrong", [{"ledger_type": "other"}, {"ensemble": 0}, {"ack_quorum": 0}, {"metadata": {"application": "x"}}]
)
def test_options_of_new_ledgers_are_checked_when_they_are_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        LedgerOptions(**wrong)  # type: ignore[arg-type]
    options = LedgerOptions()
    assert (options.ensemble, options.write_quorum, options.ack_quorum) == (3, 3, 2)
    assert LedgerOptions(1, 1, 1).ensemble == 1


# ---- attempts ----


def test_only_attempts_of_a_query_are_superseded_by_its_epochs() -> None:
    head = read_with()
    ((name, version),) = head.last_epochs

    def is_over(kind: str, epoch: int | None, owner: str = name) -> bool:
        return is_superseded(PendingLedger(9, SegmentOwner(kind, owner, epoch), 0), head)

    assert is_over("query", version)
    assert not is_over("query", version + 1)
    assert not is_over("query", version, "another")
    assert not is_over("query", None)
    assert not is_over("job", version)


def test_lists_of_condemned_ledgers_are_bounded() -> None:
    head = replace(read_with(), condemned=tuple(f"{number:032x}" for number in range(formats.CONDEMNED_LISTS_MAX - 1)))
    grown, nodes = with_condemned(head, "x", [1, 2, 3])
    assert len(grown.condemned) == formats.CONDEMNED_LISTS_MAX
    assert len(nodes) == 1
    with pytest.raises(MetadataError, match="vacuum the log first"):
        with_condemned(grown, "x", [4])


# ---- texts ----


@pytest.mark.parametrize("text", ["[" * 100_000, "{", '{"ordinal": 1'])
def test_position_that_is_not_json_is_an_error_that_shows_its_beginning(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not JSON") as caught:
        parse_place("{" + text if text.startswith("[") else text)
    assert len(str(caught.value)) < 600


def test_long_position_is_cut_in_its_error_and_a_short_one_is_not() -> None:
    for length, is_whole in ((200, True), (201, False)):
        text = "{" + "x" * (length - 1)
        with pytest.raises(ConfigurationError) as caught:
            parse_place(text)
        assert (repr(text) in str(caught.value)) == is_whole


@pytest.mark.parametrize("change", [{"version": 99}, {"version": None}, {"more": 1}, {"reader": 5}, {"expiry_ms": "5"}])
def test_registered_reader_of_another_form_is_refused(change: dict[str, object]) -> None:
    members = {"expiry_ms": 5, "position": [0, 1, 2], "reader": "r", "version": 1}
    assert decode_consumer(json.dumps(members).encode(), "/p/name", 0, 0).reader == "r"
    with pytest.raises(MetadataFormat):
        decode_consumer(json.dumps({**members, **change}).encode(), "/p/name", 0, 0)


@pytest.mark.parametrize("change", [{"format": 5}, {"schema": None}])
def test_schema_whose_format_or_text_is_not_text_is_refused(change: dict[str, object]) -> None:
    members = {"format": "json", "schema": "a INT", "version": 1, **change}
    with pytest.raises(MetadataFormat, match="is not text"):
        schemas.decode_schema(zlib.compress(json.dumps(members).encode()), "/p/x")


# ---- times ----


def written(noted: OpenTimes) -> tuple[Mark, ...]:
    """Return the marks in the node that a writer writes."""
    return decode_open(noted.encode(), ordinal=0).marks


def test_writer_notes_as_many_times_as_there_is_room_for_and_half_of_them_beyond() -> None:
    open_times = OpenTimes()
    for number in range(OPEN_MARKS_MAX):
        open_times.note(2 * number, 2 * number + 2, 1000 + number)
    assert len(written(open_times)) == OPEN_MARKS_MAX
    assert written(open_times)[1] == Mark(0, 2, 1001)
    open_times.note(2 * OPEN_MARKS_MAX, 2 * OPEN_MARKS_MAX + 2, 5000)
    # Every second one is left out, until no more than half of the room is taken.
    assert len(written(open_times)) == OPEN_MARKS_MAX // 4 + 1
    assert written(open_times)[0][:2] == (0, 0)
    assert open_times.until == 2 * OPEN_MARKS_MAX + 2
    # A clock that went back, and one below zero, leave ascending times that can be.
    open_times.note(10_000, 10_002, 4000)
    assert written(open_times)[-1].ms <= 5000
    early = OpenTimes()
    early.note(0, 1, -5)
    assert written(early) == (Mark(0, 0, 0),)


def test_page_of_times_begins_with_its_first_mark() -> None:
    assert TimePageRef(3, 7, 1000, 5, "token").mark == Mark(3, 7, 1000)


def test_pages_of_a_range_are_those_whose_marks_apply_there() -> None:
    refs = tuple(TimePageRef(ordinal, 0, 1000 * ordinal, 5, f"t{ordinal}") for ordinal in (1, 3, 5))
    index = TimeIndex(refs, (Mark(8, 0, 8000),))

    def ordinals(first: tuple[int, int], end: tuple[int, int]) -> list[int]:
        return [ref.ordinal for ref in times.pages_of(index, first, end)]

    assert ordinals((0, 0), (9, 0)) == [1, 3, 5]
    assert ordinals((3, 0), (4, 0)) == [3]
    assert ordinals((2, 9), (3, 0)) == [1]
    assert ordinals((2, 9), (3, 1)) == [1, 3]
    assert ordinals((5, 2), (9, 0)) == [5]
    assert ordinals((8, 0), (9, 0)) == []


def test_page_of_a_time_is_the_one_before_a_page_that_begins_at_that_time() -> None:
    """What precedes that time says which entries without a noted time may belong to it."""
    refs = tuple(TimePageRef(ordinal, 0, 1000 * ordinal, 5, f"t{ordinal}") for ordinal in (1, 3, 5))
    index = TimeIndex(refs, (Mark(8, 0, 8000),))
    found = {ms: [ref.ordinal for ref in times.page_at(index, ms)] for ms in (1000, 1001, 3000, 3001, 5000, 5001)}
    assert found == {1000: [], 1001: [1], 3000: [1], 3001: [3], 5000: [3], 5001: [5]}


def test_ledger_is_full_at_exactly_its_limits() -> None:
    limits = RollLimits(10, 5.0)
    assert [limits.reached(*each) for each in ((9, 4.9), (10, 0.0), (0, 5.0))] == [False, True, True]
    assert not RollLimits(10, None).reached(9, 1e9)
