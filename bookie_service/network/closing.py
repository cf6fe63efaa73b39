"""The closing of a connection that waits: for its turn, or until another connection needs its place.

A closing costs as much as accepting a connection, so thousands that are closed together each have a turn of their own.
Meanwhile the peer may do what it was late with. So the reason is looked for again in the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bookie_service.engine.turns import Turns

FindWhy = Callable[[], str]
"""Returns why a connection is to be closed; "": it is not to be closed any more."""


class ClosableClient(Protocol):
    """The part of a connection that its closing uses."""

    def __hash__(self) -> int:
        """Return the hash of its identity."""

    def take_turn_now(self) -> None:
        """Serve what the peer has sent and waits for a turn, or for the loop to report it."""

    def give_up(self, why: str) -> None:
        """Close the connection and log the reason."""


class Closing:
    """The closing of one connection. It waits for one turn at most. For one event loop."""

    __slots__ = ("_client", "_find_why", "_is_queued", "_on_offered", "_turns")

    def __init__(self, client: ClosableClient, turns: Turns, on_offered: Callable[[], None]) -> None:
        """`on_offered()` is called when the connection can make room (`take`)."""
        self._client: ClosableClient | None = client
        """The connection; None: it is closed. Cleared by `end`."""
        self._turns = turns
        self._on_offered: Callable[[], None] | None = on_offered
        """Reports that the connection can make room; None: it is closed. Cleared by `end`."""
        self._find_why: FindWhy | None = None
        """Finds why the connection is to be closed; None: nothing waits."""
        self._is_queued = False
        """Whether a turn is planned."""

    def offer(self, find_why: FindWhy) -> None:
        """Let the connection make room for others while `find_why()` returns a reason, unless a turn is planned."""
        if not self._is_queued:
            self._wait(find_why)

    def plan(self, why: str) -> None:
        """Close the connection for this reason, in a turn of its own."""
        self._plan(lambda: why)

    def plan_while(self, find_why: FindWhy) -> None:
        """Close the connection in a turn of its own if `find_why()` returns a reason, now and in the turn."""
        if not self._is_queued and find_why():
            self._plan(lambda: self._find_after_turn(find_why))

    def take(self) -> bool:
        """Close the connection now if its closing waits and there is still a reason. Return whether it is closed."""
        find_why, self._find_why = self._find_why, None
        why = "" if find_why is None else find_why()
        if why and self._client is not None:
            self._client.give_up(why)
        return self._client is None

    def end(self) -> None:
        """Forget the connection, which is closed. Without this, the two would be garbage that refers to itself."""
        self._client = self._on_offered = self._find_why = None

    def _wait(self, find_why: FindWhy) -> None:
        if self._on_offered is not None:
            self._find_why = find_why
            self._on_offered()

    def _plan(self, find_why: FindWhy) -> None:
        self._wait(find_why)
        if self._client is not None and not self._is_queued:
            self._is_queued = True
            self._turns.close(self._client, self._take_turn)

    def _take_turn(self) -> None:
        self._is_queued = False
        self.take()

    def _find_after_turn(self, find_why: FindWhy) -> str:
        # Closings come before the turns of new connections, so what the peer has sent may still wait.
        if self._client is not None:
            self._client.take_turn_now()
        return find_why()
