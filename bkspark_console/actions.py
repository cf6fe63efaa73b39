"""Changes: each is a request to a bookie's `/api/v2`, which checks its role and keeps the audit log.

A bookie takes changes only from its own host, unless it has an access file. Otherwise the console shows its refusal.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bkspark.errors import BookieUnavailable, BookKeeperError
from bkspark.log_limit import AUDIT
from bkspark.wall_clock import wall_clock_ms
from bkspark_console.bookie_http import BookieHttpError
from bkspark_console.cluster_view import API, NO_ORIGIN, ClusterView

logger = logging.getLogger("bkspark_console.audit")

RECENT_MAX = 1000
"""How many requests for changes the console remembers."""


@dataclass(frozen=True, slots=True)
class ConsoleRecord:
    """A change that a user of the console requested, and its outcome."""

    at_ms: int
    """When it was requested, in ms since 1970."""
    who: str
    """The name that the user logged in with."""
    bookie: str
    """The bookie that was asked."""
    change: str
    outcome: str


class Actions:
    """Sends changes to bookies. For one event loop."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.recent: deque[ConsoleRecord] = deque(maxlen=RECENT_MAX)
        """The last changes that this console requested."""

    async def ask(
        self, who: str, bookie: str, change: str, method: str, path: str, body: Mapping[str, Any] | None
    ) -> Any:
        """Let a bookie change something; return its response.

        Args:
            who: the user, for the record. change: what it is, in words. path: below `/api/v2`.

        Raises:
            BookieUnavailable: the bookie has no HTTP server that this host can reach, or another bookie answers there.
            BookieHttpError: it refused, with its reason, or did not answer; then it is unknown whether it did it.
        """
        origin = await self._view.origin(bookie)
        if origin is None:
            raise BookieUnavailable(f"bookie {bookie}: {NO_ORIGIN}", bookie=bookie)
        facts = await self._view.http_facts(bookie)
        if facts.is_of_another:
            raise BookieUnavailable(f"bookie {bookie}: {facts.problem}", bookie=bookie)
        try:
            answer = await self._view.http.change(method, origin, f"{API}{path}", body, f"console:{who}")
        except BookKeeperError as error:
            self._record(who, bookie, change, f"refused: {error}")
            raise
        self._record(who, bookie, change, "done")
        self._view.changed()
        return answer

    async def ask_any(self, who: str, change: str, method: str, path: str, body: Mapping[str, Any] | None) -> str:
        """Let any bookie do what concerns the whole cluster; return which one did it.

        Raises:
            BookieUnavailable: no bookie has `/api/v2`.
            BookieHttpError: as `ask`; that of the last bookie that refused because of the role.
        """
        refusal: BookieHttpError | None = None
        for bookie in await self._view.our_origins():
            try:
                await self.ask(who, bookie, change, method, path, body)
                return bookie
            except BookieHttpError as error:
                # Another bookie may be on this host, and only that one takes changes from here.
                if error.status != 403:
                    raise
                refusal = error
        if refusal is not None:
            raise refusal
        raise BookieUnavailable(
            "no bookie with /api/v2 answers: a bkspark bookie with httpServerEnabled=true does this"
        )

    def _record(self, who: str, bookie: str, change: str, outcome: str) -> None:
        self.recent.append(ConsoleRecord(wall_clock_ms(), who, bookie, change, outcome))
        logger.info("audit: console:%s: %s at bookie %s: %s", who, change, bookie, outcome, extra={"event": AUDIT})
