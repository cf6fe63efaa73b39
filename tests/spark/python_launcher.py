"""Spark starts this program in place of Python; it has a server fork the process (`tests/spark/warm_python.py`).

It lives as long as that process, relays SIGTERM to it, and takes it with it when it is killed. It imports next to
nothing: Spark starts it for each stream and each kind of worker.
"""

import _socket
import marshal
import os
import signal
import sys

ADDRESS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server")


def main() -> None:
    """Run what the arguments say, if it is a program of pyspark's in the server, otherwise here."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m" or not arguments[1].startswith("pyspark"):
        os.execv(sys.executable, [sys.executable, *arguments])
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect(ADDRESS)
    # The other process has the reading end of a pipe, and ends when this one, which has the other end, is gone.
    life, _held = os.pipe()
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2, life))
    request = marshal.dumps((os.getcwd(), arguments[1:], dict(os.environ)))
    connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    os.close(life)
    pid = int(connection.recv(32))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    while connection.recv(32):
        pass


if __name__ == "__main__":
    main()
