"""Long polls, their clients and timers."""

from __future__ import annotations

from collections.abc import Callable

from bkspark.wire.status import Status


class Timer:
    """What a client was asked to call."""

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds = seconds
        self.ring = callback
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class Client:
    """A connection whose timers ring when a test says so."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.timers: list[Timer] = []

    @property
    def connection(self) -> Client:
        return self

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, callback))
        return self.timers[-1]


class Poll:
    """A poll that records what became of it."""

    def __init__(self, client: Client, ledger_id: int, previous_lac: int) -> None:
        self.client, self.ledger_id, self.previous_lac = client, ledger_id, previous_lac
        self.events: list[object] = []

    def wake(self, lac: int | None) -> None:
        self.events.append(lac)

    def refuse(self, status: int) -> None:
        self.events.append(Status(status).name)
