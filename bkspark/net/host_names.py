"""Names of hosts: what DNS or the host's own files say about an address."""

from __future__ import annotations

import ipaddress
import socket


def host_name(host: str) -> str:
    """Return the name of a host. A name stays as it is, and so does an address without a name. Waits for DNS."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    try:
        return socket.getnameinfo((host, 0), socket.NI_NAMEREQD)[0]
    except OSError:
        return host
