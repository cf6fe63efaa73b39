"""What repairs log: one line a minute for each cause of failures, and one a minute about what was repaired.

A cluster may have a hundred thousand ledgers that cannot be repaired for one reason, such as too few bookies. A line
for each of them and each attempt would fill the disks. At DEBUG each ledger has its own line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bkspark.failure_log import MINUTE_S, FailureCounts
from bkspark.log_limit import no_digits

logger = logging.getLogger(__name__)

CAUSES_MAX = 100
"""How many causes have lines of their own. More are counted as one cause."""


class RepairLog:
    """Counts repairs and failures. `tick` writes the lines that are due."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._failures = FailureCounts[tuple[int, str]](CAUSES_MAX)
        """(ledger id, message) of each failure, by type of the error and message without digits."""
        self._repaired = self._bytes = 0
        """How many ledgers were repaired since the last line, and how many bytes were copied for them."""
        self._since_s = 0.0
        """When the first of these repairs began, by `clock_s`."""

    def failed(self, ledger_id: int, error: BaseException | None, pause_s: float) -> None:
        """Note a failed repair, which is tried again after a pause."""
        text = str(error)
        logger.debug("ledger %d is not repaired yet, again in %g s: %s", ledger_id, pause_s, text)
        cause = f"{type(error).__name__} {no_digits(text)}"
        if self._failures.note(cause, (ledger_id, text), self._clock_s()):
            attributes = {"ledger_id": ledger_id, "error": text}
            logger.warning(
                "ledger %d is not repaired yet: %s", ledger_id, text, extra={"kind": cause, "attributes": attributes}
            )

    def repaired(self, ledger_id: int, copied_bytes: int, began_s: float) -> None:
        """Note a ledger that was repaired or needed nothing. `began_s`: when its repair began, by `clock_s`."""
        logger.debug("ledger %d is repaired: %d bytes were copied", ledger_id, copied_bytes)
        self._since_s = min(began_s, self._since_s) if self._repaired else began_s
        self._repaired += 1
        self._bytes += copied_bytes

    def tick(self, left: int, *, is_last: bool = False) -> None:
        """Write the lines that are due. `left`: ledgers that are still listed. `is_last`: repairs are due now."""
        now = self._clock_s()
        if self._repaired and (is_last or now - self._since_s >= MINUTE_S):
            seconds = max(now - self._since_s, 0.001)
            done = {"ledgers": self._repaired, "bytes": self._bytes, "seconds": seconds, "left": left}
            logger.info(
                "repaired %d ledgers, %d bytes copied, %.1f MiB/s; %d are left",
                self._repaired,
                self._bytes,
                self._bytes / seconds / (1 << 20),
                left,
                extra={"attributes": done},
            )
            self._repaired = self._bytes = 0
        for cause, known in self._failures.due(now):
            ledger_id, text = known.last
            attributes = {"failures": known.count, "ledger_id": ledger_id, "error": text}
            logger.warning(
                "%d more repairs failed in %.0f s for this cause, the last of them of ledger %d: %s",
                known.count,
                now - known.since_s,
                ledger_id,
                text,
                extra={"kind": cause, "attributes": attributes},
            )
