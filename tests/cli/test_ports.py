"""Ports for servers on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bkspark.cli.ports import check_port, free_ports
from bkspark.errors import ConfigurationError


def test_free_ports_are_distinct_and_none_that_an_outgoing_connection_may_get():
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = free_ports(200)
    assert len(set(ports)) == 200
    assert not [port for port in ports if first <= port <= last]


def test_port_with_a_listener_is_not_free_and_is_refused_by_number():
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigurationError, match=f"port {port} on"):
        check_port(port)
    check_port(port)
