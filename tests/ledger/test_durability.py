"""I1 on real processes: what was acknowledged is read back after every bookie was killed.

BKSPARK_SEED and BKSPARK_KILLS repeat a run and set its length; the seed is printed.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import threading
import time

import pytest

from bkspark.blocking import Client
from bkspark.errors import BookKeeperError
from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

KILLS = 10
LOAD_S_MAX = 0.4
WAIT_S = 180.0


class Load(threading.Thread):
    """Appends to one ledger until that fails; `acknowledged` is the highest entry id whose piece was acknowledged."""

    def __init__(self, client: Client, seed: int) -> None:
        super().__init__(name="load", daemon=True)
        self._random = random.Random(seed)
        self._writer = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        self.ledger_id = self._writer.ledger_id
        self.written: list[bytes] = []
        self.acknowledged = -1
        self.first_acknowledged = threading.Event()
        self._pieces: list[concurrent.futures.Future[int]] = []

    @property
    def is_under_way(self) -> bool:
        """Whether entries were sent that are not acknowledged."""
        return any(not piece.done() for piece in list(self._pieces))

    def run(self) -> None:
        pieces = self._pieces
        try:
            while True:
                piece = [self._random.randbytes(self._random.choice((0, 1, 100, 3000))) for _ in range(20)]
                self.written += piece
                pieces.append(self._writer.submit(piece))
                if len(pieces) >= 8:
                    self._note(pieces.pop(0))
        except BookKeeperError:
            for piece_sent in pieces:
                if piece_sent.exception(WAIT_S) is None:
                    self._note(piece_sent)
            self._writer.abandon()

    def abandon(self) -> None:
        """End the load now: what is not acknowledged yet never will be."""
        self._writer.abandon()

    def _note(self, piece: concurrent.futures.Future[int]) -> None:
        self.acknowledged = max(self.acknowledged, piece.result(WAIT_S))
        self.first_acknowledged.set()


def test_three_killed_bookies_have_every_acknowledged_entry(cluster: Cluster) -> None:
    seed = int(os.environ.get("BKSPARK_SEED") or random.randrange(1 << 30))
    kills = int(os.environ.get("BKSPARK_KILLS") or KILLS)
    print(f"BKSPARK_SEED={seed} BKSPARK_KILLS={kills}")
    chance = random.Random(seed)
    struck = 0
    for kill in range(kills):
        with Client(cluster.uri) as client:
            load = Load(client, chance.randrange(1 << 30))
            load.start()
            assert load.first_acknowledged.wait(WAIT_S)
            time.sleep(LOAD_S_MAX * chance.random())  # the random moment
            for bookie in chance.sample(cluster.bookies, 3):
                bookie.kill()
            struck += load.is_under_way
            # A writer that is not abandoned fails when ZooKeeper notices that the bookies are gone. That takes long, so
            # only the first kill waits for it.
            if kill:
                load.abandon()
            load.join(WAIT_S)
            assert not load.is_alive()
        cluster.revive()
        with Client(cluster.uri) as client:
            reader = client.open(load.ledger_id, recover=True)
            assert reader.last_entry >= load.acknowledged
            batch = reader.read(0, reader.last_entry)
            found = [bytes(batch[i]) for i in range(len(batch))]
            assert found == load.written[: len(found)]
    assert struck > kills / 2, "most kills come while bookies write what they have not acknowledged"
