"""Live tails as server-sent events: what comes, what ends them, and how many may run."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from bkspark.blocking import Client
from bkspark.cli.console_limits import ConsoleLimits
from tests.cluster import Cluster
from tests.console.process import ConsoleProcess
from tests.polling import wait_until

pytestmark = pytest.mark.cluster


def _events(answer: Iterator[bytes]) -> Iterator[tuple[str, dict[str, object]]]:
    name = ""
    for line in answer:
        if line.startswith(b"event: "):
            name = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


def test_a_tail_of_a_ledger_gives_each_entry_once_and_ends_with_it(
    console: ConsoleProcess, console_cluster: Cluster
) -> None:
    hostile = b"a\n\nevent: end\ndata: {}\n\n"
    with Client(console_cluster.uri) as client:
        writer = client.create(ensemble=3, write_quorum=2, ack_quorum=2)
        # Readers know these as confirmed since the next one came.
        writer.append_many([b"zero", b"one", hostile])
        writer.append(b"last")
        with urlopen(f"{console.url}ledgers/{writer.ledger_id}/tail?from=1&format=text", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            events = _events(answer)
            assert next(events)[1]["text"] == "one"
            name, entry = next(events)
            assert (name, entry["entry"], entry["text"]) == ("entry", 2, hostile.decode())
            writer.close()
            assert next(events)[1]["text"] == "last"
            assert next(events) == ("end", {"reason": "the ledger is closed"})


def test_a_tail_beyond_the_end_of_a_ledger_is_refused(console: ConsoleProcess, console_cluster: Cluster) -> None:
    with Client(console_cluster.uri) as client, client.create() as writer:
        writer.append(b"x")
    visitor = console.visitor()
    for query in ("from=900", "from=-1", "from=x", "format=exe"):
        assert visitor.get(f"/ledgers/{writer.ledger_id}/tail?{query}").status == 400, query


def test_only_some_tails_run_at_a_time_and_one_that_left_makes_room(
    console: ConsoleProcess, console_cluster: Cluster
) -> None:
    address = urlsplit(console.url)
    with Client(console_cluster.uri) as client, ExitStack() as opened:
        writer = client.create()
        writer.append(b"x")
        path = f"/ledgers/{writer.ledger_id}/tail"
        visitor = console.visitor()

        def tail() -> socket.socket:
            peer = opened.enter_context(closing(socket.create_connection((address.hostname, address.port), 30)))
            peer.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
            assert peer.recv(12) == b"HTTP/1.1 200"
            return peer

        allowed = ConsoleLimits().tails
        tails = [tail() for _ in range(allowed)]
        refused = visitor.get(path)
        assert (refused.status, f"{allowed} live tails" in refused.words) == (503, True)
        assert visitor.get("/").status == 200
        # An entry for each of them: the console notices that one has left when it sends.
        for each in tails:
            each.close()
        wait_until(lambda: writer.append(b"y") and _is_open(console, path), "room for another tail")
        writer.close()


def _is_open(console: ConsoleProcess, path: str) -> bool:
    address = urlsplit(console.url)
    with closing(socket.create_connection((address.hostname, address.port), 30)) as peer:
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        return peer.recv(12) == b"HTTP/1.1 200"
