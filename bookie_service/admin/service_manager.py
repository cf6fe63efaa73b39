"""Reports the state of the process to the service manager that started it: systemd's notify protocol, sd_notify(3).

A unit of `Type=notify` sets NOTIFY_SOCKET to a datagram socket: a path, or a name of the abstract namespace after `@`.
Each message is lines of NAME=VALUE. Without the variable nothing is sent.
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
    """What the process is doing, for the service manager. A message that cannot be sent is logged once."""

    def __init__(self) -> None:
        self._address = os.environ.get(_VARIABLE, "")
        self._has_failed = False
        """Whether a message could not be sent; logged once. Set once."""

    def starting(self, doing: str) -> None:
        """It is starting, and what it does now."""
        self._send(f"STATUS={doing}")

    def ready(self, doing: str) -> None:
        """It serves, for the first time or again after `reloading`."""
        self._send(f"READY=1\nSTATUS={doing}")

    def reloading(self) -> None:
        """It reads its configuration again; `ready` follows."""
        # systemd takes the time to tell this reload from an earlier one (Type=notify-reload).
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, why: str) -> None:
        """It has begun to stop."""
        self._send(f"STOPPING=1\nSTATUS={why}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        path = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as sender:
                # A manager that does not read must not stop the event loop.
                sender.setblocking(False)
                sender.sendto(message.encode(), path)
        except (OSError, ValueError) as error:
            if not self._has_failed:
                logger.warning("the service manager is not informed: %s=%s: %s", _VARIABLE, self._address, error)
            self._has_failed = True
