"""How much of a log is left to read, by its list alone."""

from __future__ import annotations

import asyncio

from bkspark.log.formats import LOGS_ROOT, PAGES, SegmentFacts, encode_page
from bkspark.log.positions import Position
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.ranges import Backlog
from tests.log.paged_logs import Paged


def test_backlog_counts_whole_pages_and_parts_of_them_once() -> None:
    """Every ledger has a byte for each entry; the third page is not whole."""
    facts = [SegmentFacts(number, number % 5 - 1, number % 5) for number in range(30)]
    options = SourceOptions.parse({"uri": "zk://127.0.0.1:1/ledgers", "log": "x"}).for_batch_read()

    async def test() -> None:
        paged = Paged(3, 30, 30)
        for ref in paged.head.pages:
            path = f"{LOGS_ROOT}/x/{PAGES}/{ref.name}"
            page = encode_page(ref.first_ordinal, facts[ref.first_ordinal : ref.first_ordinal + 10])
            await paged.tree.create(path, page, make_parents=True)
        planner = ReadPlanner(None, options)
        for first in range(3, 30):
            for last in range(first, 30):
                begin, end = Position(first, first, first % 5 // 2), Position(last, last, last % 5)
                wanted = sum(each.length for each in facts[first : last + 1]) - first % 5 // 2
                assert await planner.backlog(paged.snapshot, begin, end) == Backlog(wanted, wanted)

    asyncio.run(test())
