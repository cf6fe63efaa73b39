"""Long work that an operator began. It runs in the background, and commands report its progress and outcome.

Operations of one lane run one after the other; those of different lanes run at the same time. A limited number of
finished operations is remembered until the process ends. An id names no operation of another process, also not of the
next one on this host.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bkspark.errors import BookKeeperError, TooManyRequests
from bkspark.tasks import end_all
from bkspark.wall_clock import wall_clock_ms

logger = logging.getLogger(__name__)

REMEMBERED_MAX = 100
"""How many finished operations are remembered."""
UNFINISHED_MAX = 16
"""How many operations may run or wait."""
PROGRESS_LINES_MAX = 100


@dataclass(slots=True)
class LongOperation:
    """An operation. state: waiting, running, done or failed. result: what it returned. error: why it failed.

    progress: the last lines that it reported.
    """

    id: str
    """The id in the HTTP interface."""
    kind: str
    """What is done, such as "decommission"."""
    subject: str
    """What it is done to, such as a bookie."""
    who: str
    """The operator who began it."""
    forgets: bool = False
    """Whether the cluster forgets the bookie at the end."""
    state: str = "waiting"
    error: str = ""
    began_ms: int = 0
    """When it began, in ms of the wall clock; 0: not yet."""
    ended_ms: int = 0
    """When it ended, in ms of the wall clock; 0: not yet."""
    result: dict[str, object] = field(default_factory=dict)
    progress: deque[str] = field(default_factory=lambda: deque(maxlen=PROGRESS_LINES_MAX))

    @property
    def is_finished(self) -> bool:
        return self.state in ("done", "failed")

    def as_json(self) -> dict[str, object]:
        """Return its fields as values for JSON."""
        return {**dataclasses.asdict(self), "progress": list(self.progress)}


Work = Callable[[LongOperation], Awaitable[dict[str, object]]]


class LongOperations:
    """The operations of one process. For one event loop, until `close`."""

    def __init__(self) -> None:
        self._operations: dict[str, LongOperation] = {}
        """Operations by id, the oldest first. The oldest finished ones are dropped when there are too many."""
        self._process = secrets.token_hex(4)
        """A part of each id."""
        self._numbers = itertools.count(1)
        """The other part of each id."""
        self._lanes: dict[str, asyncio.Lock] = {}
        """A lock for each lane, which its running operation holds."""
        self._tasks: set[asyncio.Task[None]] = set()
        """The tasks of operations that wait or run."""

    def begin(
        self, kind: str, subject: str, who: str, lane: str, work: Work, *, forgets: bool = False
    ) -> LongOperation:
        """Begin work, now or after the operations of its lane.

        Raises:
            TooManyRequests: too many operations run or wait.
        """
        self.check_room()
        operation = LongOperation(f"{kind}-{self._process}-{next(self._numbers)}", kind, subject, who, forgets)
        self._operations[operation.id] = operation
        finished = [each.id for each in self._operations.values() if each.is_finished]
        for old in finished[: max(0, len(finished) - REMEMBERED_MAX)]:
            del self._operations[old]
        task = asyncio.ensure_future(self._run(operation, lane, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return operation

    def check_room(self) -> None:
        """Raise TooManyRequests unless another operation may begin."""
        if len(self.unfinished()) >= UNFINISHED_MAX:
            raise TooManyRequests(f"{UNFINISHED_MAX} operations run or wait; begin another one when one is done")

    def all(self) -> Sequence[LongOperation]:
        """Return all known operations, in the order in which they were begun."""
        return tuple(self._operations.values())

    def unfinished(self) -> Sequence[LongOperation]:
        """Return the operations that run or wait."""
        return [each for each in self._operations.values() if not each.is_finished]

    def unfinished_of(self, kind: str, subject: str, *, forgets: bool = False) -> LongOperation | None:
        """Return the operation that does this, or will; None: there is none."""
        wanted = kind, subject, forgets
        found = (each for each in self.unfinished() if (each.kind, each.subject, each.forgets) == wanted)
        return next(found, None)

    def find(self, operation_id: str) -> LongOperation | None:
        """Return an operation; None: it is not known."""
        return self._operations.get(operation_id)

    async def close(self) -> None:
        """End the operations that run or wait."""
        await end_all(self._tasks)

    async def _run(self, operation: LongOperation, lane: str, work: Work) -> None:
        try:
            async with self._lanes.setdefault(lane, asyncio.Lock()):
                operation.state, operation.began_ms = "running", wall_clock_ms()
                operation.result = await work(operation)
            operation.state = "done"
            logger.info("%s of %s is done", operation.kind, operation.subject)
        except asyncio.CancelledError:
            operation.state, operation.error = "failed", "the process ended"
            raise
        except (BookKeeperError, OSError) as error:
            operation.state, operation.error = "failed", str(error)
            logger.warning("%s of %s failed: %s", operation.kind, operation.subject, error)
        except Exception as error:
            operation.state, operation.error = "failed", f"a defect: {error}"
            logger.exception("%s of %s failed: this is a defect", operation.kind, operation.subject)
        finally:
            operation.ended_ms = wall_clock_ms()
