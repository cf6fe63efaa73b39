"""A bookie as a child process of a test, and the cluster that it belongs to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from bkspark.cli.bookie import bookie_command
from bkspark.cli.child_process import ChildProcess
from bkspark.cli.ports import check_port, free_ports
from bkspark.errors import ConfigurationError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from tests.bookie.serving import Peer

START_S = 120.0
STOP_S = 120.0
T = TypeVar("T")


def ports_in_a_row(count: int) -> int:
    """Return the first of ports that are free now."""
    while True:
        first = free_ports(1)[0]
        with contextlib.suppress(ConfigurationError):
            for port in range(first, first + count):
                check_port(port)
            return first


def new_cluster(connect_string: str, name: str) -> str:
    """Make a cluster without bookies at a ZooKeeper server; return its URI."""
    text = f"zk://{connect_string}/{name}/ledgers"

    async def initialize() -> None:
        parsed = MetadataUri.parse(text)
        tree = await open_tree(parsed)
        await BookieRegistry(tree, parsed).initialize_cluster()
        await tree.close()

    asyncio.run(initialize())
    return text


class BookieChild:
    """Settings of one bookie, and the process that runs with them while `running`."""

    def __init__(self, directory: Path, uri: str, **settings: str) -> None:
        self.directory = directory
        self.uri = uri
        self.port = free_ports(1)[0]
        self.id = f"127.0.0.1:{self.port}"
        self.settings = {
            "bookiePort": str(self.port),
            "advertisedAddress": "127.0.0.1",
            "journalDirectories": str(directory / "journal"),
            "ledgerDirectories": str(directory / "ledgers"),
            "metadataServiceUri": uri,
            "zkTimeout": "4000",
            # Other programs share the disk: how full it is says nothing about the bookie.
            "diskUsageThreshold": "0.999",
            "diskUsageWarnThreshold": "0.999",
            **settings,
        }

    @contextlib.contextmanager
    def running(self, file: Path | None = None) -> Iterator[ChildProcess]:
        """Start the bookie, wait until it serves, stop it at the end unless the test did.

        Args:
            file: says all that the settings would say.
        """
        self.directory.mkdir(exist_ok=True)
        command = bookie_command(self.settings if file is None else {}, json=True)
        command += [] if file is None else ["--config", str(file)]
        process = ChildProcess(self.id, command, self.directory / "bookie.log")
        try:
            line = next(process.lines(time.monotonic() + START_S), None)
            assert line is not None, process.last_log_line()
            self.facts = json.loads(line)
            assert self.facts.items() >= {"id": self.id, "pid": process.pid}.items()
            yield process
        finally:
            process.stop(STOP_S)

    def log_text(self) -> str:
        """Return what it has logged."""
        return (self.directory / "bookie.log").read_text(errors="replace")

    def refusal(self, **settings: str) -> tuple[int, str]:
        """Start a bookie that must not start; return its exit code and its one line."""
        command = bookie_command({**self.settings, **settings}, json=True)
        result = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
        assert result.stdout == ""
        lines = [line for line in result.stderr.splitlines() if " INFO " not in line]
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("bookie: ")
        return result.returncode, lines[0]

    def connect(self) -> Peer:
        return Peer(self.port)

    def ask_registry(self, question: Callable[[BookieRegistry], Awaitable[T]]) -> T:
        async def ask() -> T:
            uri = MetadataUri.parse(self.uri)
            tree = await open_tree(uri)
            try:
                return await question(BookieRegistry(tree, uri))
            finally:
                await tree.close()

        return asyncio.run(ask())
