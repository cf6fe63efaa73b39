"""Who waits for a ledger's LAC to advance. For the event loop.

A waiter is told once: when the LAC is above the one it has, when the ledger is fenced, or when its time is over. Of a
connection that is gone nobody waits any more. How many wait at most is bounded (`BookieOptions.long_polls_max`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Timer(Protocol):
    """Something that will be called."""

    def cancel(self) -> None: ...


class PollClient(Protocol):
    """A connection, as its long polls see it."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after a time, whether the connection is gone or not."""


@dataclass(eq=False, slots=True)
class _Waiter:
    client: PollClient
    ledger_id: int
    previous_lac: int
    on_end: Callable[[int | None], None]
    timer: Timer | None = None


class LongPolls:
    """All waiters of a bookie."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._count = 0
        self._by_ledger: dict[int, dict[_Waiter, None]] = {}
        self._by_client: dict[PollClient, dict[_Waiter, None]] = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._by_ledger

    def wait(
        self,
        client: PollClient,
        ledger_id: int,
        previous_lac: int,
        seconds: float,
        on_end: Callable[[int | None], None],
    ) -> bool:
        """Call on_end(the LAC) once it is above `previous_lac`, or on_end(None); False: too many wait already."""
        if self._count >= self._waiting_max:
            return False
        waiter = _Waiter(client, ledger_id, previous_lac, on_end)
        waiter.timer = client.call_later(seconds, lambda: self._end(waiter, None))
        self._count += 1
        self._by_ledger.setdefault(ledger_id, {})[waiter] = None
        self._by_client.setdefault(client, {})[waiter] = None
        return True

    def advanced(self, ledger_id: int, lac: int) -> None:
        """Tell those that have a lower LAC of a ledger."""
        for waiter in [each for each in self._by_ledger.get(ledger_id, ()) if each.previous_lac < lac]:
            self._end(waiter, lac)

    def fenced(self, ledger_id: int) -> None:
        """Tell all that wait for a ledger: its writer adds no more."""
        for waiter in list(self._by_ledger.get(ledger_id, ())):
            self._end(waiter, None)

    def forget(self, client: PollClient) -> None:
        """Forget those of a connection that is gone."""
        for waiter in list(self._by_client.get(client, ())):
            self._remove(waiter)

    def _end(self, waiter: _Waiter, lac: int | None) -> None:
        # One that was told meanwhile may have closed the connection of others.
        if waiter in self._by_client.get(waiter.client, ()):
            self._remove(waiter)
            waiter.on_end(lac)

    def _remove(self, waiter: _Waiter) -> None:
        assert waiter.timer is not None
        waiter.timer.cancel()
        self._count -= 1
        for waiters, key in ((self._by_ledger, waiter.ledger_id), (self._by_client, waiter.client)):
            del waiters[key][waiter]  # type: ignore[index]
            if not waiters[key]:  # type: ignore[index]
                del waiters[key]  # type: ignore[arg-type]
