"""What repairs log: one line a minute for each cause of failures, and one a minute about what was repaired.

A cluster may have a hundred thousand ledgers that cannot be repaired for one reason, such as too few bookies. A line
for each of them and each attempt would fill the disks. At DEBUG each ledger has its own line.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

MINUTE_S = 60.0
CAUSES_MAX = 100
"""How many causes have lines of their own. More are counted as one cause."""
_DIGITS = re.compile("[0-9]+")


@dataclass(slots=True)
class _Cause:
    """Failures of one cause since its last line."""

    since_s: float
    """When the first failure came, by `clock_s`."""
    count: int = 0
    """How many failures came."""
    ledger_id: int = 0
    """The ledger of the last failure."""
    text: str = ""
    """The message of the last failure."""


class RepairLog:
    """Counts repairs and failures. `tick` writes the lines that are due."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._causes: dict[str, _Cause] = {}
        """Failures by cause; at most CAUSES_MAX causes, and "" for all others."""
        self._repaired = self._bytes = 0
        """How many ledgers were repaired since the last line, and how many bytes were copied for them."""
        self._since_s = 0.0
        """When the first of these repairs began, by `clock_s`."""

    def failed(self, ledger_id: int, error: BaseException | None, pause_s: float) -> None:
        """Note a failed repair, which is tried again after a pause."""
        text = str(error)
        logger.debug("ledger %d is not repaired yet, again in %g s: %s", ledger_id, pause_s, text)
        name = f"{type(error).__name__} {_DIGITS.sub('', text)}"
        cause = self._causes.get(name)
        if cause is None and len(self._causes) >= CAUSES_MAX:
            cause, name = self._causes.get(""), ""
        if cause is None:
            # The first failure of a cause is logged at once; later ones are counted.
            self._causes[name] = _Cause(self._clock_s())
            attributes = {"ledger_id": ledger_id, "error": text}
            logger.warning(
                "ledger %d is not repaired yet: %s", ledger_id, text, extra={"kind": name, "attributes": attributes}
            )
            return
        cause.count += 1
        cause.ledger_id, cause.text = ledger_id, text

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
        for name, cause in list(self._causes.items()):
            if now - cause.since_s < MINUTE_S:
                continue
            if not cause.count:
                del self._causes[name]
                continue
            attributes = {"failures": cause.count, "ledger_id": cause.ledger_id, "error": cause.text}
            logger.warning(
                "%d more repairs failed in %.0f s for this cause, the last of them of ledger %d: %s",
                cause.count,
                now - cause.since_s,
                cause.ledger_id,
                cause.text,
                extra={"kind": name, "attributes": attributes},
            )
            self._causes[name] = _Cause(now)
