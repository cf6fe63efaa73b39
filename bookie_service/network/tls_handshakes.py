"""TLS of a bookie's port: its certificates, limits for peers whose handshake is not complete, and a thread for those.

A step of a handshake takes longer than a read: its signature and its key exchange. OpenSSL computes them without the
interpreter's lock, so on a thread of their own they delay no request.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from bkspark.options import COUNT_MAX, YEARS_S, bounded, check
from bkspark.tls.contexts import TlsContext
from bkspark.tls.options import TlsOptions
from bookie_service.engine.turns import Turns
from bookie_service.network.closing import Closing
from bookie_service.network.handshake_budget import BudgetedPeer, HandshakeBudget
from bookie_service.network.tls_socket import TlsSocket
from bookie_service.network.waiting_peers import WaitingPeers

_BUDGET_S = 10.0
"""An address gets its budget of handshakes again in this time, also if a handshake may take longer."""

Compute = Callable[[], ssl.SSLError | None]
"""A step of a handshake (`TlsSocket.compute_step`)."""
OnComputed = Callable[[ssl.SSLError | None], None]
RunInThread = Callable[[Compute, OnComputed], None]


@dataclass(frozen=True, slots=True)
class ListenerTlsOptions:
    """TLS of a port.

    required: requests are served only in TLS.
    handshake_s: time for the handshake. With `required`, it begins with the connection.
    handshakes_max, handshakes_per_address_max: how many handshakes may be unfinished, in all and per address.
    """

    tls: TlsOptions = field(default_factory=TlsOptions)
    required: bool = False
    handshake_s: float = bounded(10.0, 0.001, YEARS_S, "seconds")
    handshakes_max: int = bounded(1000, 1, COUNT_MAX)
    handshakes_per_address_max: int = bounded(250, 1, COUNT_MAX)

    def __post_init__(self) -> None:
        check(self)


class HandshakeThread:
    """Computes steps of handshakes, one after the other. The event loop calls `run`, and is called back."""

    def __init__(self, post: Callable[..., None], on_failure: Callable[[BaseException], None]) -> None:
        """`post(callback, *arguments)` calls back on the event loop from a thread. `on_failure` gets an error of our
        own there, after which a handshake would never go on."""
        self._post = post
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, "handshake")

    def run(self, compute: Compute, on_computed: OnComputed) -> None:
        """Call `compute` on the thread, then `on_computed` with its result on the event loop."""
        self._thread.submit(self._run, compute, on_computed)

    def _run(self, compute: Compute, on_computed: OnComputed) -> None:
        try:
            self._post(on_computed, compute())
        except BaseException as error:
            self._post(self._on_failure, error)

    def stop(self) -> None:
        """End the thread after its present step. Others are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def at_once(compute: Compute, on_computed: OnComputed) -> None:
    """Compute a step on the event loop."""
    on_computed(compute())


class ListenerTls:
    """Contexts for new handshakes, and connections whose peer owes a message of its handshake. For one event loop.

    A connection whose handshake waits for the bookie is not counted among these: `budget` and the limits of connections
    apply to it.
    """

    def __init__(self, options: ListenerTlsOptions, run_in_thread: RunInThread = at_once) -> None:
        """Read the key and the certificates.

        `run_in_thread(compute, on_computed)` calls `compute` on any thread, then `on_computed` with its result on the
        event loop.

        Raises:
            ConfigurationError: a file cannot be used.
        """
        self.options = options
        self.run_in_thread = run_in_thread
        self._context = TlsContext(options.tls, is_server=True)
        self.owing = WaitingPeers(
            "TLS handshake",
            ("maxTlsHandshakes", options.handshakes_max),
            ("maxTlsHandshakesPerAddress", options.handshakes_per_address_max),
        )
        """Connections whose peer owes the next message of its handshake."""
        self.budget = HandshakeBudget(options.handshakes_per_address_max, min(options.handshake_s, _BUDGET_S))
        """Begins handshakes."""

    def context(self) -> ssl.SSLContext:
        """Return the context for a handshake that begins now."""
        return self._context.current()

    def forget(self, client: BudgetedPeer) -> None:
        """Forget a connection that is closed."""
        self.owing.discard(client)
        self.budget.discard(client)


class HandshakingClient(BudgetedPeer, Protocol):
    """The part of a connection that a step of its handshake uses."""

    @property
    def is_open(self) -> bool:
        """False once the connection is closed."""

    @property
    def closing(self) -> Closing:
        """How the connection is closed when it must make room."""

    def guarded(self, step: Callable[[], None]) -> None:
        """Run a part of a step. An error that the peer caused ends the connection."""

    def end_step(self) -> None:
        """Receive again, because the step has ended."""

    def end(self) -> None:
        """Handle the end of the peer's side."""


class HandshakeStep:
    """One step of a handshake: receives bytes of the peer, has a thread compute the answer, and sends it.

    The connection neither reads nor begins another step until `end_step`. It may be closed at any time.
    """

    def __init__(self, client: HandshakingClient, tls: ListenerTls, tls_socket: TlsSocket, turns: Turns) -> None:
        self._client = client
        self._tls = tls
        self._tls_socket = tls_socket
        self._turns = turns

    def take_later(self) -> None:
        """Take the step when it is the turn of the peer's address, because it costs processor time."""
        self._tls.owing.discard(self._client)
        if self._tls_socket.has_computed:
            self._take_in_turn()
        else:
            self._tls.budget.begin(self._client, self._take_in_turn, self._turns.clock)
            if self._why_spare():
                self._client.closing.offer(self._why_spare)

    def _why_spare(self) -> str:
        """Return why the connection may make room while its handshake waits for the budget; "": it does not wait."""
        why = self._tls.budget.why_held(self._client)
        return "another connection needs its place (maxConnections)" + why if why else ""

    def _take_in_turn(self) -> None:
        self._turns.go_on_with_newcomer(self._client.address, lambda _: self._take())

    def _take(self) -> None:
        self._guarded(self._begin)
        if not self._tls_socket.has_computed:
            # An AUTH message in clear came, after which the handshake begins again; or the peer is gone, or sent
            # something else.
            self._tls.budget.give_back(self._client, self._turns.clock)

    def _begin(self) -> None:
        if self._tls_socket.begin_step():
            end_turn = self._turns.extend_step()
            self._tls.run_in_thread(self._tls_socket.compute_step, lambda error: self._on_computed(end_turn, error))
        else:
            self._receive()

    def _on_computed(self, end_turn: Callable[[], None], error: ssl.SSLError | None) -> None:
        end_turn()
        self._guarded(lambda: self._end(error))

    def _end(self, error: ssl.SSLError | None) -> None:
        self._tls_socket.end_step(error)
        self._receive()

    def _receive(self) -> None:
        """Receive again: the next message of the handshake, or requests if it is complete."""
        if self._client.is_open:
            self._client.end_step()
            if not self._tls_socket.is_secured:
                self._tls.owing.add(self._client)
            else:
                self._tls.budget.give_back(self._client, self._turns.clock)

    def _guarded(self, part: Callable[[], None]) -> None:
        if self._client.is_open:
            self._client.guarded(lambda: self._unless_broken(part))

    def _unless_broken(self, part: Callable[[], None]) -> None:
        try:
            part()
        except OSError:
            self._client.end()
