"""Reports the state of the process to the service manager that started it: systemd's notify protocol, sd_notify(3).

A unit of `Type=notify` sets NOTIFY_SOCKET to a datagram socket: a path, or `@` and a name of the abstract namespace.
Each message consists of lines NAME=VALUE. Without the variable nothing is sent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time

logger = logging.getLogger(__name__)

_VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """Reports what the process does to the service manager. If a message cannot be sent, this is logged once."""

    def __init__(self) -> None:
        self._address = os.environ.get(_VARIABLE, "")
        """The socket of the service manager (NOTIFY_SOCKET); "": there is none."""
        self._has_failed = False
        """Whether a message could not be sent, which was logged. Set once."""

    def starting(self, doing: str) -> None:
        """Report that the process is starting, and what it does now."""
        self._send(f"STATUS={doing}")

    def ready(self, doing: str) -> None:
        """Report that it serves, for the first time or again after `reloading`."""
        self._send(f"READY=1\nSTATUS={doing}")

    def reloading(self) -> None:
        """Report that it reads its configuration again; `ready` follows."""
        # systemd uses the time to distinguish this reload from an earlier one (Type=notify-reload).
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, why: str) -> None:
        """Report that it has begun to stop."""
        self._send(f"STOPPING=1\nSTATUS={why}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        path = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as sender:
                # A manager that does not read must not block the event loop.
                sender.setblocking(False)
                sender.sendto(message.encode(), path)
        except (OSError, ValueError) as error:
            if not self._has_failed:
                logger.warning("the service manager is not informed: %s=%s: %s", _VARIABLE, self._address, error)
            self._has_failed = True
