"""Accepts connections on a listening socket. Without free file descriptors it waits before it tries again.

An `Acceptor` makes accepted sockets into connections while there is room for them (`connections`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from bkspark.log_limit import no_digits
from bookie_service.engine.turns import ENDLESS, Accept, Turn
from bookie_service.network.connection import Connection, ConnectionParts
from bookie_service.network.connections import Connections

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_ACCEPTED_PER_TURN = 128
_PAUSE_S = 1.0
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Passes accepted sockets, with the address of their peer, to `on_accepted` from `start` until `close`."""

    def __init__(
        self,
        listening: socket.socket,
        on_accepted: Callable[[socket.socket, str], None],
        on_failure: Callable[[BaseException], None],
        take_turn: Callable[[Accept, Callable[[], None]], object] = lambda accept, _: accept(ENDLESS),
    ) -> None:
        """`listening` is bound; `start` makes it listen.

        `take_turn(accept, wait)` calls `accept(turn)` now; or it calls `wait()` now and `accept(turn)` later, again and
        again until that returns False: no more connections wait.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._on_accepted = on_accepted
        self._on_failure = on_failure
        """Called with an error of our own, which ends the process."""
        self._take_turn = take_turn
        self._is_watched = False
        """Whether the event loop reports that connections wait. A socket with waiting connections is always ready: the
        loop would poll without a pause until the next turn to accept one comes. So it is watched again when none
        waits."""
        self._timer: asyncio.TimerHandle | None = None
        """The timer that ends a pause; None: there is no pause."""

    def start(self) -> None:
        self._socket.setblocking(False)
        self._socket.listen(_BACKLOG)
        self._watch()

    def _watch(self) -> None:
        self._is_watched = True
        self._loop.add_reader(self._socket.fileno(), self._take_turn, self._accept, self._wait)

    def _wait(self) -> None:
        self._is_watched = False
        self._loop.remove_reader(self._socket.fileno())

    def close(self) -> None:
        """Accept no more, and close the socket. A second call does nothing."""
        if self._socket.fileno() < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wait()
        self._socket.close()

    def _accept(self, turn: Turn) -> bool:
        """Accept connections; return whether more may wait that the event loop does not report."""
        if self._socket.fileno() < 0:
            return False
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                # A peer that left before it was accepted is not an error.
                if not self._is_watched:
                    self._watch()
                return False
            except OSError as error:
                self._wait()
                if error.errno not in _SHORTAGES:
                    self._on_failure(error)
                    return False
                logger.warning("no connection can be accepted now: %s", error.strerror)
                self._timer = self._loop.call_later(_PAUSE_S, self._watch)
                return False
            turn.spend()
            self._on_accepted(accepted, address[0] if address else "")
            if turn.is_over:
                break
        return not self._is_watched


class Acceptor:
    """Makes connections from accepted sockets while there is room for them. For one event loop."""

    def __init__(self, parts: ConnectionParts, connections: Connections) -> None:
        """`connections`: the open connections."""
        self._parts = parts
        self._connections = connections
        self._loop = parts.memory_budget.loop

    def accept(self, accepted: socket.socket, address: str) -> None:
        """Add a connection to a peer on the machine with this address, or close its socket if there is no room."""
        now = self._loop.time()
        refusal = self._connections.make_room(address, now)
        if refusal:
            logger.warning("refused a connection from %s: %s", address, refusal, extra={"kind": no_digits(refusal)})
            accepted.close()
        else:
            accepted.setblocking(False)
            # Otherwise a reply after an unacknowledged one waits 40 ms for the peer's delayed acknowledgement.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(self._parts.options.no_delay))
            # Keep-alive finds peers whose machine died; otherwise their connections would occupy places for ever.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(self._parts.options.keep_alive))
            self._connections.add(Connection(accepted, address, self._parts), now)
