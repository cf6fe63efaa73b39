"""SIGKILL of a real bookie under load, again and again on the same directories; nothing acknowledged may be missing.

Two writers add to several ledgers without pause and fence some of them, while checkpoints, entry logs and journals
follow each other fast. At a random moment the process is killed and started again. Then everything that was
acknowledged in the last round is read back, with a sample of what is older, and all of it at the end.

`python -m tests.crash.kills --seed S --kills N [--storage CLASS]` prints one JSON line of counts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np

from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.child import BookieChild, new_cluster
from tests.bookie.serving import KEY, Peer, adds, split, stored

_LIFE_S_MAX = 0.8
"""A process lives up to so long under load."""
_WRITERS = 2
_LEDGERS = 3
_ENTRIES_PER_SEND = 20
_FENCE_SHARE = 0.02
_OLD_LEDGERS_READ = 3
_SETTINGS = {
    "skipListSizeLimit": str(12 << 20),
    "dbStorage_writeCacheMaxSizeMb": "24",
    "flushInterval": "150",
    "logSizeLimit": str(4 << 20),
    "journalMaxSizeMB": "2",
    "journalMaxBackups": "0",
}


class Lost(AssertionError):
    """Something acknowledged is not there; the text says what."""


class Writer:
    """Adds entries to its ledgers until the bookie is gone; entries of a ledger are acknowledged in order."""

    def __init__(self, port: int, ledgers: range, seed: int) -> None:
        self._peer = Peer(port)
        self._random = Random(seed)
        self.acknowledged = dict.fromkeys(ledgers, 0)
        """Ledger to how many of its first entries were acknowledged."""
        self.fenced: set[int] = set()
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait(self) -> None:
        """Return when the bookie is gone. Raises Lost when it gave a wrong answer before."""
        self._thread.join()
        self._peer.close()
        if self.failure is not None:
            raise Lost(self.failure)

    def _run(self) -> None:
        open_ledgers = list(self.acknowledged)
        with contextlib.suppress(OSError):
            while self._add(self._random.choice(open_ledgers)):
                if self._random.random() < _FENCE_SHARE and len(open_ledgers) > 1:
                    ledger_id = self._random.choice(open_ledgers)
                    open_ledgers.remove(ledger_id)
                    self._peer.send(v2.encode_reads(ledger_id, _LAST, v2.DO_FENCING, KEY))
                    if self._peer.frame() is None:
                        return
                    self.fenced.add(ledger_id)

    def _add(self, ledger_id: int) -> bool:
        """Add some entries; return False when the bookie is gone."""
        first = self.acknowledged[ledger_id]
        self._peer.send(adds(ledger_id, first, [payload(ledger_id, first + i) for i in range(_ENTRIES_PER_SEND)]))
        for entry_id in range(first, first + _ENTRIES_PER_SEND):
            frame = self._peer.frame()
            if frame is None:
                return False
            status, answered = int.from_bytes(frame[4:8], "big"), int.from_bytes(frame[16:24], "big")
            if (status, answered) != (Status.EOK, entry_id):
                self.failure = f"ledger {ledger_id} entry {entry_id}: answered {status} for entry {answered}"
                return False
            self.acknowledged[ledger_id] = entry_id + 1
        return True


_LAST = np.array([v2.LAST_ENTRY])


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Return what is written as an entry: up to 2 KB that depend on its ids alone."""
    digest = hashlib.blake2b(b"%d %d" % (ledger_id, entry_id)).digest()
    return (digest * 32)[: int.from_bytes(digest[:2], "big") % 2048]


def run(directory: Path, uri: str, *, kills: int, seed: int, storage: str) -> Counter[str]:
    """Kill a bookie a number of times; return the counts.

    Raises:
        Lost: naming the seed and the round.
    """
    random = Random(seed)
    bookie = BookieChild(directory, uri, ledgerStorageClass=storage, **_SETTINGS)
    acknowledged: dict[int, int] = {}
    fenced: set[int] = set()
    counts: Counter[str] = Counter()
    newest: list[int] = []
    for number in range(kills + 1):
        with bookie.running() as process:
            is_last = number == kills
            older = sorted(acknowledged.keys() - set(newest))
            chosen = older if is_last else random.sample(older, min(len(older), _OLD_LEDGERS_READ))
            with bookie.connect() as peer:
                for ledger_id in [*newest, *chosen]:
                    try:
                        counts["entries read"] += _check(peer, ledger_id, acknowledged[ledger_id])
                        _check_fence(peer, ledger_id, ledger_id in fenced)
                    except Lost as error:
                        raise Lost(f"seed {seed}, after kill {number}: {error}") from error
            if is_last:
                break
            writers = [
                Writer(bookie.port, range(first, first + _LEDGERS), random.randrange(1 << 30))
                for first in range(100 * number, 100 * number + 10 * _WRITERS, 10)
            ]
            time.sleep(_LIFE_S_MAX * random.random())
            process.kill()
            newest = []
            for writer in writers:
                writer.wait()
                held = {ledger_id: count for ledger_id, count in writer.acknowledged.items() if count}
                acknowledged |= held
                newest += held
                fenced |= writer.fenced
        counts["kills"] += 1
    counts["entries"] = sum(acknowledged.values())
    counts["ledgers"] = len(acknowledged)
    counts["fences"] = len(fenced)
    return counts


def _check(peer: Peer, ledger_id: int, count: int) -> int:
    """Read the first `count` entries of a ledger back; return how many."""
    at = 0
    while at < count:
        reply = peer.batch_read(ledger_id, at)
        if reply.status != Status.EOK:
            raise Lost(f"ledger {ledger_id} entry {at} of {count}: answered {reply.status}")
        for entry in split(reply.body)[: count - at]:
            if entry != stored(ledger_id, at, payload(ledger_id, at)):
                raise Lost(f"ledger {ledger_id} entry {at} of {count}: wrong bytes")
            at += 1
    return count


def _check_fence(peer: Peer, ledger_id: int, is_fenced: bool) -> None:
    if is_fenced and (status := peer.add(ledger_id, 1 << 20, [b"late"])[0]) != Status.EFENCED:
        raise Lost(f"ledger {ledger_id}: its fence is gone, an add is answered {status}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kills", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--storage", default=StorageClass.SORTED.short_name, help="ledgerStorageClass")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with ZooKeeperProcess(directory / "zookeeper", port=free_ports(1)[0]) as zookeeper:
            uri = new_cluster(zookeeper.connect_string, "kills")
            try:
                counts = run(directory / "bookie", uri, kills=options.kills, seed=options.seed, storage=options.storage)
            except Lost as error:
                print(error, file=sys.stderr)
                return 1
    print(json.dumps({"seed": options.seed, **counts, "seconds": round(time.monotonic() - began, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
