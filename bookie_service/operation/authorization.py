"""Authorization of a running bookie: its rules file, read again when it changes, and the lines of the audit log.

Each refusal is a line with who, which right, which ledger and why. Refusals of one principal and one kind are counted
together beyond a few each second (`log_limit`), because peers cause them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from bkspark.errors import ConfigurationError
from bkspark.security.authorization import ADMIN, ANY_RIGHT, RIGHTS, Rules
from bookie_service.engine.authorization import Authorization, RefusedRequests
from bookie_service.network.log_limit import place_of
from bookie_service.operation.audit import audit

logger = logging.getLogger("bookie_service.audit")

REFUSED = "refused"
"""The event's name in `extra`."""
LOOK_S = 1.0
"""How often the file is looked at."""


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
    """Where the rules come from; its methods wait for the disk."""

    path: str

    def read(self) -> Rules:
        """Return the rules. Raises ConfigurationError."""

    def read_if_changed(self) -> Rules | None:
        """Return the rules if they may have changed since they were read last. Raises ConfigurationError."""


class RulesFollower:
    """Puts the rules of a file in force whenever it changes. For the event loop."""

    def __init__(self, source: RulesSource, authorization: Authorization, look_s: float = LOOK_S) -> None:
        """`look_s`: the pause between two looks at the file."""
        self._look_s = look_s
        self._source = source
        self.authorization = authorization
        self._reading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        """Follows the file; None before `start`."""

    def start(self) -> None:
        """Look at the file again and again, until `stop`."""
        self._task = asyncio.ensure_future(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def reload(self, who: str) -> None:
        """Read the file now. Raises ConfigurationError: it cannot be used, and the rules stay as they are."""
        await self._use(self._source.read, who)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            try:
                await self._use(self._source.read_if_changed, "file")
            except ConfigurationError as error:
                log_kept(error)
            except Exception as error:
                # Later changes must count: they may take a right away.
                logger.exception(
                    "a look at %s failed: this is a defect", self._source.path, extra={"kind": place_of(error)}
                )

    async def _use(self, read: Callable[[], Rules | None], who: str) -> None:
        async with self._reading:
            rules = await asyncio.to_thread(read)
            if rules is not None:
                self.authorization.set_rules(rules)
                audit(who, f"{len(rules)} authorization rules of {self._source.path} are in force", rules=len(rules))


def log_kept(error: ConfigurationError) -> None:
    """Log that changed rules cannot be used."""
    logger.error("authorization continues with the rules that it has: %s", error)
