"""Apache BookKeeper's Java client, as a process that takes commands (java/src/main/java/bkspark/interop).

`payload` and `contents` describe entries the way both sides compute them: the Java program writes entries from a list
of sizes, and answers a read with the size and CRC-32 of every entry, so no payload crosses the pipe.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.interop.build import BOOKKEEPER

ANSWER_SECONDS = 300.0
NETTY_OPTIONS = (
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
)
"""What netty's direct buffers need."""
UNVERIFIED = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
"""Classes of released jars need not be verified each time."""
SMALL_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *UNVERIFIED, *NETTY_OPTIONS)
"""For a short life in little memory."""
ARCHIVE = BOOKKEEPER / "target" / "classes.jsa"
"""The classes of Apache's client and bookie, once `tests/interop/class_archive.py` has made it."""
JVM_OPTIONS = (
    *SMALL_JVM,
    "-Xshare:auto",
    f"-XX:SharedArchiveFile={ARCHIVE}",
    "-Xlog:disable",
    "-Xlog:all=warning:stderr",
)
"""Those, with the classes from the archive. What Java says of an archive that does not fit may not be on stdout, where
the answers of the client are."""


def payload(entry_id: int, size: int) -> bytes:
    """Return the payload of one entry: byte j is entry_id * 31 + j * 7 + j // 256, modulo 256."""
    position = np.arange(size, dtype=np.int64)
    return (entry_id * 31 + position * 7 + (position >> 8)).astype(np.uint8).tobytes()


def payloads(sizes: Sequence[int], first_entry: int = 0) -> list[bytes]:
    """Return the payloads of consecutive entries of the given sizes."""
    return [payload(first_entry + i, size) for i, size in enumerate(sizes)]


def contents(entries: Iterable[bytes]) -> list[list[int]]:
    """Return [size, CRC-32] of every entry: what `Peer.read` answers as `entries`."""
    return [[len(entry), zlib.crc32(entry)] for entry in entries]


class PeerError(Exception):
    """The Java side refused: `name` is its exception, `code` BKException's code (0 when it is another exception)."""

    def __init__(self, name: str, code: int, message: str) -> None:
        super().__init__(f"{name} ({code}): {message}")
        self.name = name
        self.code = code


class Peer:
    """A JVM with Apache's client, driven by lines of JSON; Commands.java says what each command takes and answers."""

    def __init__(self, classpath: str, log: Path, jvm_options: Sequence[str] = JVM_OPTIONS) -> None:
        command = ["java", *jvm_options, "-cp", classpath, "bkspark.interop.Peer"]
        self._log = log
        # The program ends with its stdin, so it never outlives pytest.
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin
        self._answers = self._process.stdout
        self._unread = b""

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to one command.

        Raises:
            PeerError: Apache's client raised.
            AssertionError: no answer in time, or the JVM ended.
        """
        _write_all(self._requests.fileno(), json.dumps({"command": command, **arguments}).encode() + b"\n")
        answer = json.loads(self._next_line(time.monotonic() + ANSWER_SECONDS, command))
        if "error" in answer:
            raise PeerError(answer["error"], answer["code"], answer["message"])
        return answer

    def _next_line(self, deadline: float, command: str) -> bytes:
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Java did not answer {command} within {ANSWER_SECONDS:g} s: {self._log_tail()}"
            received = self._answers.read(1 << 20)
            assert received, f"Java ended instead of answering {command}: {self._log_tail()}"
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _log_tail(self) -> str:
        return self._log.read_bytes()[-3000:].decode(errors="replace")

    def end(self) -> None:
        """Let the program end by itself; ledgers that it writes are left open, too."""
        self._requests.close()
        self._process.wait(ANSWER_SECONDS)
        self._answers.close()

    def kill(self) -> None:
        """End the JVM with every ledger it writes left open."""
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._answers.close()


def _write_all(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


class JavaClient:
    """Apache's client on one cluster in one protocol: `Peer.call` with the URI filled in. A context manager that
    disconnects."""

    def __init__(self, peer: Peer, uri: str, protocol: str = "v2", settings: Mapping[str, str] | None = None) -> None:
        """`settings`: keys of its ClientConfiguration."""
        self._peer = peer
        self.protocol = protocol
        """v2 or v3. Constant."""
        self._arguments: dict[str, Any] = {"uri": uri, "protocol": protocol}
        if settings:
            self._arguments["client_settings"] = dict(settings)

    def speaking(self, protocol: str) -> JavaClient:
        """Return another client on the same cluster, v2 or v3; to be disconnected by itself."""
        settings = self._arguments.get("client_settings")
        return JavaClient(self._peer, self._arguments["uri"], protocol, settings)

    def __enter__(self) -> JavaClient:
        return self

    def __exit__(self, *reason: object) -> None:
        self.call("disconnect")

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._peer.call(command, **self._arguments, **arguments)

    def create(self, quorums: tuple[int, int, int], digest: str, password: str, **arguments: Any) -> int:
        """Return the id of a new ledger that the JVM keeps open; `ledger=` chooses the id."""
        ensemble, write_quorum, ack_quorum = quorums
        answer = self.call(
            "create",
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=password,
            **arguments,
        )
        return answer["ledger"]

    def append(self, ledger: int, sizes: Sequence[int]) -> dict[str, Any]:
        """Append entries of these sizes, with contents by `payload`."""
        return self.call("append", ledger=ledger, sizes=list(sizes))

    def write(self, quorums: tuple[int, int, int], digest: str, password: str, sizes: Sequence[int]) -> int:
        """Return the id of a new ledger, written and closed."""
        ledger = self.create(quorums, digest, password)
        self.append(ledger, sizes)
        self.call("close", ledger=ledger)
        return ledger

    def read(
        self, ledger: int, digest: str, password: str, *, recover: bool = True, how: str = "single", **span: int
    ) -> dict[str, Any]:
        """Open and read all confirmed entries, or `first=` to `last=`; `how` is single, batch or unconfirmed."""
        return self.call("read", ledger=ledger, digest=digest, password=password, recover=recover, how=how, **span)
