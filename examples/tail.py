"""Follow a log with the Python client while something else writes it: `tail -f` for ledgers.

python examples/tail.py zk://127.0.0.1:2181/ledgers clicks      # `bkspark local --bookies 3` prints the URI

Nothing is fenced, and nothing that is not confirmed is shown. The position printed at the end is where to go on: it
stays valid across restarts, and when the writer rolls to another ledger.
"""

import sys

from bkspark.blocking import Client
from bkspark.log import Position


def tail(client: Client, log: str, entries: int, start: Position | str = "earliest") -> Position | str:
    """Print a number of entries from `start` on; return where to continue."""
    position = start
    for batch in client.log(log).follow(start=position):
        for number, entry in enumerate(batch):
            print(
                f"ledger {batch.ledger_id} entry {batch.first_entry + number}: {bytes(entry).decode(errors='replace')}"
            )
            position = Position(batch.ordinal, batch.ledger_id, batch.first_entry + number + 1)
            entries -= 1
            if not entries:
                return position
    return position


if __name__ == "__main__":
    with Client(sys.argv[1]) as connected:
        print("go on at", tail(connected, sys.argv[2], 10))
