"""A process of another user of this host: `python -m tests.ledger.other_user UID squat|ask PORT BOOKIE LEDGER`.

    squat   listens where the bookie of PORT would for local reads, and answers with forged entries; prints "ready"
    ask     asks the bookie for an entry of LEDGER; prints the bytes of the file that it got, or "nothing"

It starts as root, and becomes the other user before it touches a socket.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.local_reads import REPLY_BYTES_MAX, REQUEST_BYTES_MAX, LocalRead, encode_found, socket_name

OTHER_UID = 65534
ENTRY_BYTES = 5_000


def start(what: str, port: int, bookie: str, ledger_id: int) -> subprocess.Popen[str]:
    """Start the process; its caller ends it."""
    command = [sys.executable, "-m", __name__, str(OTHER_UID), what, str(port), bookie, str(ledger_id)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def forged(ledger_id: int, entry_id: int) -> bytes:
    """Return an item of an entry log that passes every check: CRC32C is not authentication."""
    batch = EntryBatch.of([b"FORGED" + b"." * ENTRY_BYTES], ledger_id, entry_id)
    return bytes(EntryDigest(DigestType.CRC32C, b"").seal(batch, entry_id - 1, 0).buffer)


def squat(port: int) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(socket_name(port))
    listener.listen(10)
    print("ready", flush=True)
    while True:
        peer = listener.accept()[0]
        while message := peer.recv(REQUEST_BYTES_MAX):
            request = LocalRead.decode(message)
            items = [forged(request.ledger_id, request.first_entry + number) for number in range(10)]
            file = os.memfd_create("forged")
            os.write(file, b"".join(items))
            offsets = np.cumsum([0, *map(len, items[:-1])])
            socket.send_fds(peer, [encode_found(offsets[: request.entries_max])], [file])
            os.close(file)


def ask(port: int, bookie: str, ledger_id: int) -> None:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.connect(socket_name(port))
    try:
        connected.send(LocalRead(bookie, bytes([127, 0, 0, 1]), ledger_id, 0, 1, 1 << 20).encode())
        _, files, _, _ = socket.recv_fds(connected, REPLY_BYTES_MAX, 1)
    except ConnectionError:
        files = []
    print(os.fstat(files[0]).st_size if files else "nothing", flush=True)


def main(uid: str, what: str, port: str, bookie: str, ledger_id: str) -> None:
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    if what == "squat":
        squat(int(port))
    else:
        ask(int(port), bookie, int(ledger_id))


if __name__ == "__main__":
    main(*sys.argv[1:])
