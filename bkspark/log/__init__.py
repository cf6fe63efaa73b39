"""Named logs made of ledgers, asyncio. `bkspark.blocking` has blocking calls of the same names.

async with Client("zk://127.0.0.1:2181/ledgers") as client:
    async with await client.log("clicks").open_for_writing() as log:
        positions = await log.append_many([b"one", b"two"])
    async for batch in client.log("clicks").read(start="earliest"):
        ...
"""

from bkspark.log.consumers import ConsumerRegistration, ConsumerState
from bkspark.log.election import Election
from bkspark.log.formats import SegmentFacts, SegmentOwner
from bkspark.log.listing import own_logs
from bkspark.log.log import Log, log_names
from bkspark.log.positions import LogBatch, Position, PositionRange
from bkspark.log.publication import AppendOutcome
from bkspark.log.retention import Retention
from bkspark.log.snapshot import LogSegment, LogSnapshot
from bkspark.log.store import LogStore
from bkspark.log.writer import LedgerOptions, LogWriter

__all__ = [
    "AppendOutcome",
    "ConsumerRegistration",
    "ConsumerState",
    "Election",
    "LedgerOptions",
    "Log",
    "LogBatch",
    "LogSegment",
    "LogSnapshot",
    "LogStore",
    "LogWriter",
    "Position",
    "PositionRange",
    "Retention",
    "SegmentFacts",
    "SegmentOwner",
    "log_names",
    "own_logs",
]
