"""Golden frames: what Apache's client and Apache's bookies say to each other, byte for byte.

`python -m tests.interop.capture` starts three of Apache's bookies with a relay for each, lets Apache's client make
every call of Calls.java in V2 and V3, and keeps the shortest frames of each kind in tests/wire/golden/apache.json:
{"protocol side operation flags-or-status": [hex of frames, length word included]}.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections import defaultdict
from pathlib import Path

from bkspark.metadata import paths, registration
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.framing import scan_frames
from tests.interop import build
from tests.interop.apache import ApacheCluster
from tests.interop.peer import JavaClient, Peer

GOLDEN = Path(__file__).parents[1] / "wire" / "golden" / "apache.json"
KEPT = 2
"""The shortest frames of each kind: longer ones have nothing else."""


def kind_of(frame: bytes, side: str) -> str:
    """Return what a frame is: protocol, side, operation, and V2's flags or status, V3's status."""
    if frame[4] == 2 and frame[5] == v2.AUTH:
        return f"v2 {side} {v2.AUTH} AUTH"
    if frame[4] == 2 and frame[5] <= 7:
        detail = frame[7] if side == "request" else int.from_bytes(frame[8:12], "big", signed=True)
        return f"v2 {side} {frame[5]} {detail}"
    message = protocol.Request() if side == "request" else protocol.Response()
    message.ParseFromString(frame[4:])
    operation = protocol.OperationType.Name(message.header.operation)
    if side == "request":
        fields = sorted(field.name for field, _ in message.ListFields())
        inner = next((value for field, value in message.ListFields() if field.name.endswith("Request")), None)
        flags = sorted(field.name for field, _ in inner.ListFields()) if inner is not None else fields
        return f"v3 request {operation} {','.join(flags)}"
    return f"v3 response {operation} {protocol.StatusCode.Name(message.status)}"


class Relay:
    """Carries bytes between clients and a bookie, in a thread; keeps whole frames by kind."""

    def __init__(self, bookie_port: int, kept: dict[str, list[str]]) -> None:
        self._bookie_port = bookie_port
        self._kept = kept
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        async def serve() -> None:
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await server.serve_forever()

        self._loop.run_until_complete(serve())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bookie_reader, bookie_writer = await asyncio.open_connection("127.0.0.1", self._bookie_port)
        await asyncio.gather(
            self._carry(reader, bookie_writer, "request"), self._carry(bookie_reader, writer, "response")
        )

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, side: str) -> None:
        unread = bytearray()
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
            unread += data
            table = scan_frames(unread, len(unread))
            for start, end in zip(table.starts.tolist(), table.ends.tolist()):
                self._keep(bytes(unread[start - 4 : end]), side)
            del unread[: table.consumed]
        writer.close()

    def _keep(self, frame: bytes, side: str) -> None:
        kept = self._kept[kind_of(frame, side)]
        if frame.hex() not in kept:
            kept.append(frame.hex())
            kept.sort(key=len)
            del kept[KEPT:]


async def redirect(uri: str, relays: dict[str, Relay]) -> None:
    """Let the bookies' registrations name the relays."""
    parsed = MetadataUri.parse(uri)
    tree = await open_tree(parsed)
    for bookie, relay in relays.items():
        path = f"{parsed.root}/{paths.AVAILABLE}/{bookie}"
        await tree.set(path, registration.encode(BookieAddress("127.0.0.1", relay.port)), -1)
    await tree.close()


def main() -> None:
    kept: dict[str, list[str]] = defaultdict(list)
    classpath = build.classpath(build.BOOKKEEPER)
    with tempfile.TemporaryDirectory() as directory:
        peer = Peer(classpath, Path(directory) / "java.log")
        try:
            with ApacheCluster(classpath, Path(directory) / "apache", peer) as apache:
                relays = {bookie.id: Relay(int(bookie.id.rpartition(":")[2]), kept) for bookie in apache.bookies}
                asyncio.run(redirect(apache.uri, relays))
                for number, wire in enumerate(("v2", "v3"), start=1):
                    with JavaClient(peer, apache.uri, wire) as java:
                        answer = java.call("calls", first_id=(1 << 31) + 1000 * number)
                        assert answer["failed"] == {}, answer
        finally:
            peer.kill()
    GOLDEN.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    print("\n".join(f"{len(frames)} {kind}" for kind, frames in sorted(kept.items())))


if __name__ == "__main__":
    main()
