"""Ports for servers on this machine, chosen so that they are still free when the server starts again.

A port is never one that the kernel assigns to outgoing connections (`ip_local_port_range`). Such a port may be taken
while its server is down for a moment. A peer on this machine that keeps trying to connect to it may even be assigned
the same port, and connect to itself.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from bkspark.cli.zookeeper_process import HOST
from bkspark.errors import ConfigurationError

_OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_HIGHEST = 65_535
_TRIES_MAX = 1_000


def free_ports(count: int) -> list[int]:
    """Return distinct TCP ports of the loopback interface without a listener.

    Raises:
        ConfigurationError: no free ones are found in 1,000 tries.
    """
    candidates = _server_ports()
    found: list[int] = []
    for port in random.SystemRandom().sample(candidates, min(_TRIES_MAX, len(candidates))):
        if len(found) == count:
            break
        if _bind(port) is None:
            found.append(port)
    if len(found) < count:
        raise ConfigurationError(f"{HOST} has no {count} free ports from {candidates[0]} to {candidates[-1]}")
    return found


def check_port(port: int) -> None:
    """Raise ConfigurationError unless a server can listen on the port now."""
    if (error := _bind(port)) is not None:
        raise ConfigurationError(
            f"port {port} on {HOST} cannot be used ({error.strerror}): free it or choose another port"
        ) from error


def _bind(port: int) -> OSError | None:
    with socket.socket() as probe:
        # Connections of a server that stopped a moment ago may linger; a listener is what matters.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error
    return None


def _server_ports() -> list[int]:
    try:
        first, last = map(int, _OUTGOING_RANGE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        first, last = 32_768, 60_999  # not Linux: use Linux's default range
    ports = [port for port in range(_LOWEST, _HIGHEST) if not first <= port <= last]
    # If the kernel may assign all ports to outgoing connections, any port must do.
    return ports or list(range(_LOWEST, _HIGHEST))
