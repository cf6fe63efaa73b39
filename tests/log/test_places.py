"""Where positions of a log lie, against a plain list of its entries; and how the list of ledgers is read in pages."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bkspark.errors import ConfigurationError, DataLoss, MetadataFormat
from bkspark.ledger.reader import LedgerTimes
from bkspark.log import consumers, reading
from bkspark.log.formats import LOGS_ROOT, PAGES, LogHead, PageRef, SegmentFacts, encode_head, encode_page
from bkspark.log.heads import PAGES_CACHED_MAX, HeadStore, StoredHead
from bkspark.log.positions import BEGINNING, Position
from bkspark.log.snapshot import RUN_LEDGERS_MAX, LogSegment, LogSnapshot
from bkspark.metadata.memory import MemoryStore
from tests.log.paged_logs import Paged


@dataclass
class Ledger:
    """A ledger of a log: entries [first_entry, end_entry) are the log's; `is_listed`: the list tells its end."""

    ledger_id: int
    end_entry: int
    first_entry: int = 0
    is_listed: bool = False
    is_closed: bool = True
    is_gone: bool = False
    closed_ms: int = 0


@dataclass
class Reader:
    """What the functions ask of a reader of such a ledger."""

    last_entry: int
    is_closed: bool
    times: LedgerTimes
    length: int = 0


@dataclass
class PlainLog:
    """A log whose head holds all of its ledgers; the first has ordinal `first_ordinal`."""

    ledgers: list[Ledger]
    first_ordinal: int = 0
    start: Position = BEGINNING
    opened: list[int] = field(default_factory=list)

    @property
    def snapshot(self) -> LogSnapshot:
        facts = [
            SegmentFacts(it.ledger_id, it.end_entry - 1, 10 * it.end_entry, it.first_entry)
            if it.is_listed
            else SegmentFacts(it.ledger_id, first_entry=it.first_entry)
            for it in self.ledgers
        ]
        still_open = [number for number, it in enumerate(self.ledgers, self.first_ordinal) if not it.is_closed]
        start = self.start if self.start > BEGINNING else Position.beginning(self.first_ordinal)
        head = LogHead(
            log_id="00000000000000aa",
            root="/ledgers",
            changes=("00000000000000aa",),
            first_ordinal=self.first_ordinal,
            start=start,
            tail_ordinal=self.first_ordinal,
            tail=tuple(facts),
            open_ordinals=tuple(still_open),
        )
        return LogSnapshot(HeadStore(MemoryStore().session(), "/ledgers"), "x", StoredHead(head, 3))

    async def open(self, listed: LogSegment) -> Reader | None:
        it = self.ledgers[listed.ordinal - self.first_ordinal]
        assert it.ledger_id == listed.ledger_id
        self.opened.append(listed.ordinal)
        if it.is_gone:
            return None
        return Reader(it.end_entry - 1, it.is_closed, LedgerTimes(0, it.closed_ms if it.is_closed else None))

    def entries(self) -> list[Position]:
        """The position of each entry that the log holds, those before its start too."""
        return [
            Position(ordinal, it.ledger_id, entry)
            for ordinal, it in enumerate(self.ledgers, self.first_ordinal)
            for entry in range(it.first_entry, 0 if it.is_gone else it.end_entry)
        ]

    def ends(self) -> list[Position]:
        """The points after each entry from the start on, in normal form, the start first."""
        return [self.start, *(Position(*_behind(it)) for it in self.entries() if it >= self.start)]

    def call(self, function: object, *arguments: object) -> Any:
        return asyncio.run(function(self.open, self.snapshot, *arguments))  # type: ignore[operator]


def _behind(entry: Position) -> tuple[int, int, int]:
    return entry.ordinal, entry.ledger_id, entry.entry_id + 1


def random_log(seed: int) -> PlainLog:
    """Some ledgers, empty and gone ones and slices among them, all closed; the start is anywhere before."""
    luck = random.Random(seed)
    ledgers = []
    for number in range(luck.randint(1, 7)):
        first = luck.choice((0, 0, 3))
        end = first + luck.choice((0, 1, 2, 5)) if not first else first + luck.randint(1, 4)
        is_listed = bool(first) or (end > 0 and luck.random() < 0.5)
        is_gone = not is_listed and luck.random() < 0.15
        ledgers.append(Ledger(100 + number, end, first, is_listed, is_gone=is_gone))
    log = PlainLog(ledgers, luck.choice((0, 4)))
    log.start = Position.beginning(log.first_ordinal)
    of_first = [it for it in log.entries() if it.ordinal == log.first_ordinal]
    if of_first and luck.random() < 0.5:
        log.start = Position(*_behind(luck.choice(of_first)))
    return log


# ---- positions ----


@pytest.mark.parametrize("seed", range(16))
def test_places_are_those_of_the_plain_list(seed: int) -> None:
    log = random_log(seed)
    ends = log.ends()
    assert log.call(reading.latest) == ends[-1]
    for count in (0, 1, 2, 3, 7, 1000):
        for at, end in enumerate(ends):
            expected = ends[max(0, at - count)]
            assert log.call(reading.before, end, count) == expected, (count, end)
    for ordinal in range(log.first_ordinal, log.first_ordinal + len(log.ledgers) + 1):
        expected = max([it for it in ends if it.ordinal < ordinal], default=log.start)
        assert log.call(reading.end_before, ordinal) == max(expected, log.start), ordinal


def test_place_before_the_first_entry_of_a_slice_counts_no_entry_of_it() -> None:
    log = PlainLog([Ledger(100, 4, is_listed=True), Ledger(101, 9, first_entry=5, is_listed=True)])
    for end in (Position.beginning(1), Position(1, 101, 5)):
        assert log.call(reading.before, end, 3) == Position(0, 100, 1)


@pytest.mark.parametrize("seed", range(12))
def test_lag_of_a_registered_reader_is_the_entries_that_the_plain_list_has_after_it(seed: int) -> None:
    log = random_log(seed)
    ends = log.ends()
    for at, position in enumerate(ends):
        for later, end in enumerate(ends[at:]):
            assert log.call(consumers.behind, position, end)[0] == later, (position, end)
    assert log.call(consumers.behind, Position.beginning(0), ends[-1])[0] == len(ends) - 1, "before the start"


@pytest.mark.parametrize("seed", range(12))
def test_point_between_two_entries_has_one_normal_form(seed: int) -> None:
    log = random_log(seed)
    ends = log.ends()
    entries = [it for it in log.entries() if it >= log.start]
    for at, entry in enumerate(entries):
        assert log.call(reading.normal_form, entry) == ends[at]
        assert log.call(reading.normal_form, ends[at + 1]) == ends[at + 1]
        if entry.entry_id == log.ledgers[entry.ordinal - log.first_ordinal].first_entry and not entry.entry_id:
            assert log.call(reading.normal_form, Position.beginning(entry.ordinal)) == ends[at]
    after = log.first_ordinal + len(log.ledgers)
    assert log.call(reading.normal_form, Position.beginning(after)) == ends[-1]


def test_position_after_an_open_ledger_keeps_its_form() -> None:
    """The ledger before may still grow, so its end is unknown."""
    log = PlainLog([Ledger(1, 2), Ledger(2, 5, is_closed=False), Ledger(3, 4, is_closed=False)])
    assert log.call(reading.normal_form, Position(2, 3, 0)) == Position(2, 3, 0)
    assert log.call(reading.normal_form, Position(1, 2, 0)) == Position(0, 1, 2)
    assert log.call(reading.normal_form, Position(1, 2, 4)) == Position(1, 2, 4)


def test_log_can_be_read_up_to_the_last_confirmed_entry_of_its_first_open_ledger() -> None:
    log = PlainLog([Ledger(1, 2), Ledger(2, 5, is_closed=False), Ledger(3, 4, is_closed=False)])
    assert log.call(reading.latest) == Position(1, 2, 5)
    log.ledgers[1].end_entry = 0
    assert log.call(reading.latest) == Position(0, 1, 2)
    log.ledgers[1].is_gone = True
    assert log.call(reading.latest) == Position(2, 3, 4), "a ledger that is gone counts as closed"
    log.start = Position(2, 3, 4)
    log.ledgers[2].end_entry = 3
    assert log.call(reading.latest) == Position(2, 3, 4), "never before the start"


def test_open_ledger_that_was_closed_meanwhile_is_passed() -> None:
    log = PlainLog([Ledger(1, 2), Ledger(2, 5)])
    snapshot = log.snapshot
    snapshot.head = LogHead(**{**_members(snapshot.head), "open_ordinals": (1,)})
    assert asyncio.run(reading.latest(log.open, snapshot)) == Position(1, 2, 5)  # type: ignore[arg-type]


def _members(head: LogHead) -> dict[str, object]:
    return {name: getattr(head, name) for name in head.__dataclass_fields__}


def test_time_finds_the_first_ledger_that_was_not_closed_before_it() -> None:
    """Ledgers that a job publishes together need not be in the order of their times."""
    log = PlainLog(
        [
            Ledger(1, 2, closed_ms=100),
            Ledger(2, 0, closed_ms=150),
            Ledger(3, 4, closed_ms=300),
            Ledger(4, 2, closed_ms=200),
        ]
    )
    for moment, expected in (
        (0, BEGINNING),
        (100, BEGINNING),
        (101, Position(0, 1, 2)),
        (150, Position(0, 1, 2)),
        (300, Position(0, 1, 2)),
        (301, Position(3, 4, 2)),
    ):
        assert log.call(reading.since, moment) == expected, moment
    log.ledgers[0].is_gone = True
    assert log.call(reading.since, 301) == Position(3, 4, 2)
    log.ledgers[0].is_closed = False
    log.ledgers[0].is_gone = False
    assert log.call(reading.since, 1 << 50) == BEGINNING, "an open ledger may still get entries"


def test_time_before_the_start_of_a_truncated_log_is_its_start() -> None:
    log = PlainLog([Ledger(1, 9, closed_ms=100), Ledger(2, 3, closed_ms=200)], start=Position(0, 1, 7))
    assert log.call(reading.since, 100) == Position(0, 1, 7)
    assert log.call(reading.since, 101) == Position(0, 1, 9)


# ---- the list, in pages ----


async def listed(snapshot: LogSnapshot, *bounds: int) -> list[list[int]]:
    found = []
    async for run in snapshot.runs(*bounds):
        assert all(it.ordinal == it.ledger_id for it in run)
        found.append([it.ordinal for it in run])
    return found


def test_list_comes_a_page_at_a_time_and_within_its_bounds() -> None:
    async def test() -> None:
        paged = Paged(3, 20, 25)
        await paged.write_pages()
        snapshot = paged.snapshot
        assert len(snapshot) == 22
        whole = [list(range(3, 10)), list(range(10, 20)), list(range(20, 25))]
        assert await listed(snapshot) == whole
        assert await listed(snapshot, 25) == []
        for first in range(27):
            for end in range(27):
                wanted = [it for run in whole for it in run if first <= it < end]
                runs = await listed(snapshot, first, end)
                assert [it for run in runs for it in run] == wanted
        assert [it.ordinal for it in await snapshot.ledgers(8, 12)] == [8, 9, 10, 11]
        for ordinal in (3, 10, 24):
            assert (await snapshot.ledger(ordinal)).ledger_id == ordinal
        for ordinal in (-1, 0, 2, 25):
            with pytest.raises(IndexError, match=r"holds ledgers \[3, 25\)"):
                await snapshot.ledger(ordinal)

    asyncio.run(test())


def test_list_is_read_backwards_from_any_ordinal() -> None:
    async def test() -> None:
        paged = Paged(3, 20, 25)
        await paged.write_pages()
        for ordinal in range(27):
            found = [it.ordinal async for it in paged.snapshot.last_before(ordinal)]
            assert found == [it for it in reversed(range(3, 25)) if it < ordinal]

    asyncio.run(test())


def test_amounts_of_closed_pages_are_those_of_their_ledgers() -> None:
    """The third page has a ledger whose end is not known: what it holds is not known either."""

    async def test() -> None:
        paged = Paged(3, 30, 33)
        facts = [SegmentFacts(number, number + 1, 100 * number, number % 2) for number in range(30)]
        facts[25] = SegmentFacts(25)
        for ref in paged.head.pages:
            some = facts[ref.first_ordinal : ref.first_ordinal + 10]
            path = f"{LOGS_ROOT}/x/{PAGES}/{ref.name}"
            await paged.tree.create(path, encode_page(ref.first_ordinal, some), make_parents=True)
        for first in range(33):
            for end in range(first, 34):
                found = [each async for each in paged.snapshot.closed_runs(first, end)]
                wanted = []
                for page, page_end in ((3, 10), (10, 20)):
                    some = facts[max(first, page) : min(end, page_end)]
                    if some:
                        entries = sum(each.last_entry + 1 - each.first_entry for each in some)
                        byte_count = sum(each.length for each in some)
                        wanted.append((max(first, page), min(end, page_end), entries, byte_count))
                assert found == wanted

    asyncio.run(test())


def test_a_long_page_comes_in_parts() -> None:
    async def test() -> None:
        ledgers = 3 * RUN_LEDGERS_MAX + 7
        head = LogHead("00000000000000aa", "/ledgers", ("00000000000000aa",), tail_ordinal=ledgers)
        head = replace(head, pages=(PageRef("0-00000000000000aa"),))
        tree = MemoryStore().session()
        page = encode_page(0, [SegmentFacts(number) for number in range(ledgers)])
        await tree.create(f"{LOGS_ROOT}/x/{PAGES}/{head.pages[0].name}", page, make_parents=True)
        snapshot = LogSnapshot(HeadStore(tree, "/ledgers"), "x", StoredHead(head, 3))
        runs = await listed(snapshot, 5)
        assert [it for run in runs for it in run] == list(range(5, ledgers))
        assert max(map(len, runs)) == RUN_LEDGERS_MAX

    asyncio.run(test())


def test_page_is_read_once_and_a_limited_number_is_kept() -> None:
    async def test() -> None:
        paged = Paged(0, 10 * (PAGES_CACHED_MAX + 2), 10 * (PAGES_CACHED_MAX + 2) + 1)
        await paged.write_pages()
        await listed(paged.snapshot)
        assert len(paged.heads._pages.ledgers) == PAGES_CACHED_MAX
        for ref in paged.head.pages[2:]:
            await paged.tree.delete(f"{LOGS_ROOT}/x/{PAGES}/{ref.name}")
            assert len(await paged.heads.page("x", ref)) == 10
        assert paged.head.pages[0].name not in paged.heads._pages.ledgers, "the oldest goes first"

    asyncio.run(test())


def test_page_that_is_not_what_its_name_says_is_refused() -> None:
    async def test() -> None:
        paged = Paged(0, 20, 21)
        for ref, first, count in ((paged.head.pages[0], 0, 9), (paged.head.pages[1], 11, 10)):
            path = f"{LOGS_ROOT}/x/{PAGES}/{ref.name}"
            await paged.tree.create(path, encode_page(first, [SegmentFacts(0)] * count), make_parents=True)
        with pytest.raises(MetadataFormat, match="holds 9 ledgers, not 10"):
            await listed(paged.snapshot, 0, 1)
        with pytest.raises(MetadataFormat, match="begins at ordinal 11"):
            await listed(paged.snapshot, 10, 11)

    asyncio.run(test())


def test_page_that_was_rewritten_meanwhile_is_found_under_its_new_name() -> None:
    async def test() -> None:
        paged = Paged(0, 20, 21)
        await paged.write_pages()
        snapshot = paged.snapshot
        old = paged.head.pages[1]
        newer = replace(paged.head, pages=(paged.head.pages[0], PageRef("10-00000000000000bb")))
        node = f"{LOGS_ROOT}/x/{PAGES}/10-00000000000000bb"
        await paged.tree.create(node, encode_page(10, [SegmentFacts(number) for number in range(10, 20)]))
        await paged.tree.set(f"{LOGS_ROOT}/x", encode_head(newer), -1)
        await paged.tree.delete(f"{LOGS_ROOT}/x/{PAGES}/{old.name}")
        assert await listed(snapshot, 10, 20) == [list(range(10, 20))]
        await paged.tree.delete(node)
        another = PagedAnew(paged)
        with pytest.raises(MetadataFormat, match="10-00000000000000bb does not exist, although the log names it"):
            await listed(another.snapshot, 10, 20)

    asyncio.run(test())


class PagedAnew:
    """The same log, as a client sees it that has read no page."""

    def __init__(self, paged: Paged) -> None:
        session = paged.tree.store.session()
        self.snapshot = LogSnapshot(HeadStore(session, "/ledgers"), "x", StoredHead(paged.head, 3))


# ---- what may be located ----


def locate(log: PlainLog, position: Position) -> tuple[int, int]:
    return asyncio.run(log.snapshot.locate(position))


def test_position_is_located_from_the_start_to_the_end_and_nowhere_else() -> None:
    log = PlainLog([Ledger(7, 9), Ledger(8, 3)], first_ordinal=4, start=Position(4, 7, 5))
    assert locate(log, Position(4, 7, 5)) == (4, 5)
    assert locate(log, Position(5, 8, 3)) == (5, 3)
    assert locate(log, Position(6, -1, 0)) == (6, 0)
    for position in (Position(4, 7, 4), Position(3, 6, 2), Position(6, 9, 0), Position(7, -1, 0)):
        with pytest.raises(DataLoss):
            locate(log, position)
    for position in (Position(5, 9, 0), Position(4, 8, 6)):
        with pytest.raises(ConfigurationError, match="belongs to another log"):
            locate(log, position)


def test_end_of_a_ledger_that_was_truncated_is_the_beginning_of_the_next() -> None:
    log = PlainLog([Ledger(8, 3)], first_ordinal=5, start=Position(4, 7, 9))
    assert locate(log, Position(4, 7, 9)) == (5, 0)
    assert log.call(reading.end_before, 5) == Position(4, 7, 9)
