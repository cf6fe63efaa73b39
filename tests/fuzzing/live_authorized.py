"""`python -m tests.fuzzing.live_authorized`: hostile frames for a running bookie whose authorization rules change.

The arguments, and what is wrong, are those of `tests.fuzzing.live`. The metadata store has only some of the attacked
ledgers, `EXISTING`. Every second the bookie reads other rules, some of which cannot be used. It must not store a
ledger that does not exist, and must not log a defect.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bkspark.blocking import Client
from tests.bookie.child import new_cluster
from tests.bookie.serving import Peer
from tests.fuzzing.attack import LARGE_LEDGER, STATES, SYNCED_LEDGER, attack, fill
from tests.fuzzing.frames import LEDGERS
from tests.fuzzing.live import HONEST_LEDGER, STORAGES, Result, bookie, judged, parse_attack, report, show
from tests.fuzzing.live import room_with_zookeeper as new_room

EXISTING = (*range(1, LEDGERS // 2 + 1), *range(LEDGERS + 1, LEDGERS + 5), LARGE_LEDGER, SYNCED_LEDGER, HONEST_LEDGER)
"""Some of the attacked ledgers; those that `fill` and the states use beside them, and that of the honest client."""
_HONEST = f"anonymous read,write id:{HONEST_LEDGER}\n"
EVERYTHING = "anonymous read,write,fence *\n"
RULES = (
    f"{_HONEST}anonymous read,write,fence id:1-8 id:{LEDGERS + 1}-\n",
    f"{_HONEST}anonymous read *\nanonymous write id:4-18\n",
    _HONEST,
    EVERYTHING,
    f"{_HONEST}anonymous fence,write id:1-30\n",
)
"""All of them serve the honest client."""
UNUSABLE = "anonymous raed *\n"
CHANGE_S = 1.3


@contextlib.contextmanager
def changing(rules: Path) -> Iterator[None]:
    """Write other rules again and again; in the end those that allow everything."""
    stop = threading.Event()

    def put(text: str) -> None:
        new = rules.with_suffix(".new")
        new.write_text(text)
        os.replace(new, rules)

    def run() -> None:
        texts = itertools.cycle((*RULES, UNUSABLE))
        while not stop.wait(CHANGE_S):
            put(next(texts))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        put(EVERYTHING)


def stored_ledgers(directory: Path) -> set[int]:
    """Return the ledgers that have an index file."""
    return {int(path.stem, 16) for path in directory.rglob("*.idx")}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    results: list[Result] = []
    with new_room() as (room, zookeeper):
        for storage in options.storage or STORAGES:
            place = room / storage
            place.mkdir()
            uri, rules = new_cluster(zookeeper.connect_string, storage), place / "rules"
            rules.write_text(EVERYTHING)
            with bookie(storage, place, uri, authorizationRulesFile=str(rules)) as (child, process, turns):
                with Client(uri) as client:
                    for ledger_id in EXISTING:
                        client.create(ensemble=1, write_quorum=1, ack_quorum=1, ledger_id=ledger_id).abandon()
                fill(child.port)
                with changing(rules):
                    for state in options.state or STATES:
                        result = Result(f"{storage} with rules", state)
                        strike, connect = partial(attack, child.port), partial(Peer, child.port)
                        results.append(judged(result, strike, connect, process, turns, options))
                        if "Traceback" in process.log_path.read_text():
                            result.wrong.append(f"{process.log_path} has a traceback")
                        show(result)
                        if process.exit_code is not None:
                            break
            invented = stored_ledgers(child.directory) - {*EXISTING}
            if invented:
                results[-1].wrong.append(f"it stores the ledgers {sorted(invented)[:10]}, which do not exist")
    return report(results, as_json=options.json)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.live_authorized", description=__doc__.split("\n")[0])
    parser.add_argument("--storage", action="append", choices=STORAGES)
    return parse_attack(parser, list(STATES), arguments)


if __name__ == "__main__":
    sys.exit(main())
