"""C11 on real processes: what `sync` returned, and every LAC, outlives all bookies' kill.

Killing processes leaves the page cache as it is: what bypasses the journal is lost then, what is journaled is not.
Power cuts, which take that too, are simulated (tests/crash, tests/simulation).
"""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from bkspark.blocking import Client, LedgerReader, LedgerWriter
from bkspark.core.relaxed import RelaxedDurability
from bkspark.errors import BookKeeperError
from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

SYNCED, MORE, PIECE = 3000, 2000, 250
CASES = [(3, 3, 2, "VD_JOURNAL"), (3, 3, 2, "VD_BYPASS_JOURNAL"), (3, 2, 2, "VD_BYPASS_JOURNAL")]


def payloads(first: int, count: int) -> list[bytes]:
    return [b"%08d" % number * 20 for number in range(first, first + count)]


def create(client: Client, case: tuple[int, int, int, str]) -> LedgerWriter:
    ensemble, write_quorum, ack_quorum, ledger_type = case
    return client.create(
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        ledger_type=ledger_type,
        relaxed=RelaxedDurability(striped=True),
    )


def entries(reader: LedgerReader) -> list[bytes]:
    return [bytes(entry) for batch in reader.batches() for entry in batch]


def test_three_killed_bookies_have_all_that_was_synced_and_no_reader_saw_more(cluster: Cluster) -> None:
    with Client(cluster.uri) as client:
        writers = [create(client, case) for case in CASES]
        for writer in writers:
            assert writer.append_many(payloads(0, SYNCED)) == SYNCED - 1
        assert [writer.sync() for writer in writers] == [SYNCED - 1] * len(CASES)
        # Neither acknowledged nor synced, some of it, when the bookies die.
        pieces: list[Future[int]] = []
        for first in range(SYNCED, SYNCED + MORE, PIECE):
            pieces += [writer.submit(payloads(first, PIECE)) for writer in writers]
        pieces[2].result(60)
        heard = [client.open(writer.ledger_id).last_entry for writer in writers]
        for bookie in cluster.bookies:
            bookie.kill()
        for piece in pieces:
            piece.exception(180)
        for writer in writers:
            with pytest.raises(BookKeeperError):
                writer.sync()
            writer.abandon()
    cluster.revive()
    with Client(cluster.uri) as client:
        for writer, confirmed in zip(writers, heard):
            reader = client.open(writer.ledger_id, recover=True)
            assert reader.last_entry >= max(SYNCED - 1, confirmed)
            assert entries(reader) == payloads(0, reader.last_entry + 1)
