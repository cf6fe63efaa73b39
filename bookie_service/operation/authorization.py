"""Authorization of a running bookie: its rules file, which is read again when it changes, and lines of the audit log.

Each refusal has a line with the principal, the right, the ledger and the reason. Peers cause refusals, so beyond a few
a second those of one principal and one kind are counted together (`log_limit`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from bkspark.errors import ConfigurationError
from bkspark.log_limit import place_of
from bkspark.security.authorization import ADMIN, ANY_RIGHT, RIGHTS, Rules
from bookie_service.engine.authorization import Authorization, RefusedRequests
from bookie_service.operation.audit import audit
from bookie_service.operation.changes import Changes

logger = logging.getLogger("bookie_service.audit")

REFUSED = "refused"
"""The name of the event in `extra`."""
LOOK_S = 1.0
"""How often the file is checked for changes."""


def log_refusal(refusal: RefusedRequests) -> None:
    """Log that requests were refused."""
    rights = "any right" if refusal.needed == ANY_RIGHT else ",".join(names_of(refusal.needed))
    where = f"ledger {refusal.ledger_id}"
    if refusal.ledger_id is None:
        where = "this bookie" if refusal.needed in (ADMIN, ANY_RIGHT) else "all ledgers"
    logger.warning(
        "audit: refused %s at %s: %s on %s (%d requests): %s",
        refusal.principal,
        refusal.address,
        rights,
        where,
        refusal.requests,
        refusal.why,
        extra={
            "event": REFUSED,
            "kind": (refusal.principal, refusal.needed, refusal.why),
            "attributes": {
                "who": str(refusal.principal),
                "address": refusal.address,
                "rights": rights,
                "ledger": refusal.ledger_id,
                "requests": refusal.requests,
                "reason": refusal.why,
            },
        },
    )


def names_of(rights: int) -> list[str]:
    """Return the names of rights."""
    return [name for name, right in RIGHTS.items() if rights & right]


class RulesSource(Protocol):
    """Where the rules come from. Its methods wait for the disk."""

    path: str

    def read(self) -> Rules:
        """Return the rules. Raises ConfigurationError."""

    def read_if_changed(self) -> Rules | None:
        """Return the rules if they may have changed since they were last read, else None. Raises ConfigurationError."""


class RulesFollower:
    """Puts the rules of a file in force whenever the file changes. For the event loop."""

    def __init__(
        self, source: RulesSource, authorization: Authorization, changes: Changes, look_s: float = LOOK_S
    ) -> None:
        """`look_s`: the pause between two checks of the file."""
        self._look_s = look_s
        self._changes = changes
        self._source = source
        self.authorization = authorization
        self._reading = asyncio.Lock()
        """Held while the file is read and its rules are put in force."""
        self._task: asyncio.Task[None] | None = None
        """Checks the file at intervals; None before `start`."""

    def start(self) -> None:
        """Check the file at intervals until `stop`."""
        self._task = asyncio.ensure_future(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def reload(self, who: str) -> None:
        """Read the file now. Raises ConfigurationError if it cannot be used; the rules then stay as they are."""
        await self._use(self._source.read, who)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            try:
                await self._use(self._source.read_if_changed, "file")
            except ConfigurationError as error:
                log_kept(error)
            except Exception as error:
                # Later changes must take effect, because they may withdraw a right.
                logger.exception(
                    "a look at %s failed: this is a defect", self._source.path, extra={"kind": place_of(error)}
                )

    async def _use(self, read: Callable[[], Rules | None], who: str) -> None:
        async with self._reading:
            rules = await asyncio.to_thread(read)
            if rules is not None:
                with self._changes.half_done():
                    self.authorization.set_rules(rules)
                    what = f"{len(rules)} authorization rules of {self._source.path} are in force"
                    audit(who, what, rules=len(rules))


def log_kept(error: ConfigurationError) -> None:
    """Log that changed rules cannot be used."""
    logger.error("authorization continues with the rules that it has: %s", error)
