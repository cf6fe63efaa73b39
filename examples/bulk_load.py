"""Load a file's lines into a ledger, durable once at the end: nothing is worth a sync before all of it is there.

python examples/bulk_load.py zk://127.0.0.1:2181/ledgers lines.txt      # `bkspark local --bookies 3` prints the URI

Bookies acknowledge a VD_JOURNAL ledger's entries from their page caches; closing the ledger syncs them, once. If a
bookie or this program dies before, the half of a ledger is worth nothing: delete it and load again. VD_BYPASS_JOURNAL
also saves the journal's copy of every entry. docs/relaxed-durability.md tells what each type promises.
"""

import itertools
import sys
import time
from pathlib import Path

from bkspark.blocking import Client

PIECE_LINES = 1000


def bulk_load(client: Client, source: Path, ledger_type: str = "VD_JOURNAL") -> int:
    """Load a line an entry; return the ledger's id when all of it is on the disks of its bookies."""
    writer = client.create(ledger_type=ledger_type, metadata={"source": source.name})
    began = time.monotonic()
    try:
        with source.open("rb") as lines:
            while piece := list(itertools.islice(lines, PIECE_LINES)):
                writer.submit(piece)  # waits for room in the writer's window
        closed = writer.close()
    except BaseException:
        writer.abandon()
        client.delete(writer.ledger_id)
        raise
    seconds = time.monotonic() - began
    print(f"ledger {writer.ledger_id}: {closed.last_entry + 1} entries, {closed.length} bytes, {seconds:.2f} s")
    return writer.ledger_id


if __name__ == "__main__":
    with Client(sys.argv[1]) as client:
        bulk_load(client, Path(sys.argv[2]), *sys.argv[3:])
