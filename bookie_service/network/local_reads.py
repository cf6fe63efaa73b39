"""Local reads: clients on the bookie's host learn where entries lie in entry logs, and read them there. Optional.

`bkspark.wire.local_reads` defines the messages. The answer is "not here" whenever an ordinary read would need more than
an entry log. An answer stays right whatever happens next: the bytes at a position never change, and a removed log can
still be read through its file descriptor.

A descriptor gives a client access to the whole log, with entries of other ledgers and of deleted ones. So the bookie
asks the kernel for the user of each connection. It serves its own user, root and those of `permittedLocalReadUsers`.
Other users read over the network, where the bookie controls what they see.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Collection

from bkspark.errors import ProtocolError, StorageDamaged
from bkspark.wire.local_reads import (
    CREDENTIALS,
    NOT_HERE,
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    LocalRead,
    encode_found,
    socket_name,
)
from bookie_service.network.listener import Listener
from bookie_service.storage.io.files import ReadOnlyFiles
from bookie_service.storage.ledgers.interface import LedgerStorage

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 256
_REQUESTS_PER_TURN = 8
_EVERYWHERE = bytes(4)


class LocalReadServer:
    """Answers local reads from its creation until `close`. For one event loop."""

    def __init__(
        self,
        store: LedgerStorage,
        bookie_id: str,
        served: tuple[str, int],
        readers: Collection[int] = (),
        is_allowed: Callable[[int], bool] = lambda user_id: True,
    ) -> None:
        """Listen for clients of this host.

        Args:
            served: the address at which the bookie listens.
            readers: users who may read, in addition to the bookie's own user and root.
            is_allowed: `is_allowed(user)` is asked at each request; False closes the connection.

        Raises:
            OSError: the socket cannot be created here, or another process has it.
        """
        if sys.platform != "linux":
            raise OSError(f"{sys.platform} has no abstract sockets")
        self._store = store
        """The storage of the bookie's ledgers."""
        self._bookie_id = bookie_id
        self._address = socket.inet_aton(served[0])
        self._files = ReadOnlyFiles()
        self._loop = asyncio.get_running_loop()
        self._peers: dict[socket.socket, int] = {}
        """Open connections, with the user of each. Changed by `_accept` and `_drop`."""
        self._is_allowed = is_allowed
        self._readers = frozenset({0, os.geteuid(), *readers})
        self._has_refused = False
        """Whether the refusal of a user was logged. Set once."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listening.bind(socket_name(served[1]))
        except OSError:
            listening.close()
            raise
        self._listener = Listener(listening, self._accept, self._give_up)
        self._listener.start()

    def _give_up(self, error: BaseException) -> None:
        logger.warning("local reads have ended, and clients on this host read over the network: %s", error)
        self.close()

    def close(self) -> None:
        """Stop answering. A second call does nothing."""
        self._listener.close()
        for peer in list(self._peers):
            self._drop(peer)

    def _accept(self, peer: socket.socket, _: str) -> None:
        user_id = self._user_of(peer)
        if len(self._peers) >= CONNECTIONS_MAX or user_id is None:
            peer.close()
            return
        peer.setblocking(False)
        # A reply must fit, whatever the host's default is; otherwise the connection ends.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REPLY_BYTES_MAX)
        self._peers[peer] = user_id
        self._loop.add_reader(peer, self._take, peer)

    def _user_of(self, peer: socket.socket) -> int | None:
        """Return the user of a connection; None if this user may not read."""
        _, uid, _ = CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if uid in self._readers:
            return uid if self._is_allowed(uid) else None
        if not self._has_refused:
            # Logged once: a client that connects again and again must not fill the log.
            self._has_refused = True
            logger.info("user %d, and others who are not in permittedLocalReadUsers, read over the network", uid)
        return None

    def _drop(self, peer: socket.socket) -> None:
        self._peers.pop(peer, None)
        self._loop.remove_reader(peer)
        peer.close()

    def _take(self, peer: socket.socket) -> None:
        try:
            for _ in range(_REQUESTS_PER_TURN):
                message = peer.recv(REQUEST_BYTES_MAX)
                if not message or not self._is_allowed(self._peers[peer]):
                    self._drop(peer)
                    return
                self._answer(peer, LocalRead.decode(message))
        except (BlockingIOError, InterruptedError):
            pass
        except (ProtocolError, OSError):
            # This also closes the connection of a client that does not take its replies.
            self._drop(peer)
        except Exception:
            # No state is changed here. The client reads over the network instead, and gets an answer or an error there.
            logger.exception("a local read failed: this is a defect of the bookie")
            self._drop(peer)

    def _answer(self, peer: socket.socket, request: LocalRead) -> None:
        if request.bookie != self._bookie_id or self._address not in (_EVERYWHERE, request.address):
            raise ProtocolError(f"a local read of bookie {request.bookie} at {self._bookie_id}")
        try:
            ledger = self._store.ledger(request.ledger_id)
            found = None
            if ledger is not None:
                found = self._store.locate(ledger, request.first_entry, request.entries_max, request.bytes_max)
            file = None if found is None else self._files.open(found.path)
        except (StorageDamaged, OSError):
            # The error is reported and logged when the client reads over the network.
            file = None
        if file is None or found is None:
            _send(peer, NOT_HERE)
            return
        try:
            _send(peer, encode_found(found.offsets), file.descriptor)
        finally:
            file.close()


def _send(peer: socket.socket, message: bytes, *descriptors: int) -> None:
    try:
        socket.send_fds(peer, [message], descriptors)
    except BlockingIOError as error:
        raise ProtocolError("a peer that does not take its replies") from error
