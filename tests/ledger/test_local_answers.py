"""What a socket answers to local reads, and what entry logs hold there: whatever is wrong, the network decides."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bkspark.net import local_reads
from bkspark.net.local_reads import LocalBookie, read_all
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.local_reads import (
    ENTRIES_MAX,
    NOT_HERE,
    REQUEST_BYTES_MAX,
    LocalRead,
    encode_found,
    socket_name,
)
from tests.ledger.hostile import DIGEST, sealed

LEDGER = 5
BYTES_MAX = 1 << 20
Answer = Callable[[LocalRead], tuple[bytes, Path | None]]
"""Returns a reply, and the file that goes with it, or None."""


@contextmanager
def answering(answer: Answer) -> Iterator[LocalBookie]:
    """Return the local reads of a bookie whose socket answers so."""
    family, kind = socket.AF_UNIX, socket.SOCK_SEQPACKET
    with socket.socket(family, kind) as listening, socket.create_server(("127.0.0.1", 0)) as served:
        port = served.getsockname()[1]
        listening.bind(socket_name(port))
        listening.listen()

        def serve() -> None:
            listening.settimeout(60)
            accepted, _ = listening.accept()
            with accepted:
                while message := accepted.recv(REQUEST_BYTES_MAX):
                    reply, path = answer(LocalRead.decode(message))
                    if path is None:
                        accepted.send(reply)
                        continue
                    with path.open("rb") as file:
                        socket.send_fds(accepted, [reply], [file.fileno()])

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        bookie = LocalBookie("a", ("127.0.0.1", port), 60.0)
        try:
            yield bookie
            if bookie.is_off:
                # The client has disconnected by itself.
                serving.join(60)
                assert not serving.is_alive()
        finally:
            bookie.close()
            serving.join(60)
            assert not serving.is_alive()


class EntryLog:
    """A file with items, each of one entry of the ledger from entry 0 on, and where they begin."""

    def __init__(self, path: Path, payloads: Sequence[bytes]) -> None:
        self.path = path
        self.places: list[int] = []
        octets = b"header"
        for entry_id, payload in enumerate(payloads):
            self.places.append(len(octets))
            entry = sealed(LEDGER, entry_id, payload=payload, length=len(payload))
            octets += len(entry).to_bytes(LENGTH_BYTES, "big") + entry
        self.end = len(octets)
        path.write_bytes(octets)

    def answer(self, *places: int) -> Answer:
        """Return a bookie that names these places, whatever is asked for; without any, those of all entries."""
        found = encode_found(np.array(places or self.places))
        return lambda _: (found, self.path)

    def change(self, entry_id: int, octets: bytes) -> None:
        """Write something over the beginning of an item."""
        with self.path.open("r+b") as file:
            file.seek(self.places[entry_id])
            file.write(octets)


def read(bookie: LocalBookie, count_max: int = 100, bytes_max: int = BYTES_MAX) -> list[bytes]:
    return [bytes(entry) for batch in bookie.read(LEDGER, 0, count_max, bytes_max, DIGEST) for entry in batch]


SMALL = [b"small %d" % number for number in range(6)]
LARGE = [bytes([number]) * local_reads.IN_PLACE_BYTES for number in range(6)]
BOTH = pytest.mark.parametrize("payloads", [SMALL, LARGE], ids=["small", "large"])


@BOTH
def test_last_item_counts_if_it_ends_within_the_wanted_bytes(tmp_path: Path, payloads: list[bytes]) -> None:
    """The bookie knows where it begins, and not where it ends."""
    log = EntryLog(tmp_path / "1.log", payloads)
    whole = log.end - log.places[0]
    for bytes_max, count in ((whole, 6), (whole - 1, 5), (log.places[5] - log.places[0] + 1, 5)):
        with answering(log.answer()) as bookie:
            assert read(bookie, bytes_max=bytes_max) == payloads[:count]
            assert not bookie.is_off


def test_item_that_begins_after_the_wanted_bytes_was_not_asked_for(tmp_path: Path) -> None:
    log = EntryLog(tmp_path / "1.log", SMALL)
    with answering(log.answer()) as bookie:
        assert read(bookie, bytes_max=log.places[5] - log.places[0]) == []
        assert bookie.is_off


def test_more_places_than_were_asked_for_are_no_answer(tmp_path: Path) -> None:
    log = EntryLog(tmp_path / "1.log", SMALL)
    with answering(log.answer()) as bookie:
        assert read(bookie, count_max=5) == []
        assert bookie.is_off
    with answering(log.answer()) as bookie:
        assert read(bookie, count_max=6) == SMALL


def test_places_without_a_file_are_no_answer(tmp_path: Path) -> None:
    log = EntryLog(tmp_path / "1.log", SMALL)
    with answering(lambda _: (encode_found(np.array(log.places)), None)) as bookie:
        assert read(bookie) == []
        assert bookie.is_off


@pytest.mark.parametrize("reply", [NOT_HERE, b"nonsense of 24 bytes ..."])
def test_file_that_comes_with_another_answer_is_closed(tmp_path: Path, reply: bytes) -> None:
    """Otherwise a socket could use up the descriptors of a client."""
    log = EntryLog(tmp_path / "1.log", SMALL)
    with answering(lambda _: (reply, log.path)) as bookie:
        assert read(bookie) == []
        assert bookie.is_off == (reply != NOT_HERE)
    links = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    assert str(log.path) not in [os.readlink(link) for link in links if os.path.lexists(link)]


def test_no_more_entries_are_asked_for_than_an_answer_can_name() -> None:
    asked: list[int] = []

    def not_here(request: LocalRead) -> tuple[bytes, Path | None]:
        asked.append(request.entries_max)
        return NOT_HERE, None

    with answering(not_here) as bookie:
        assert read(bookie, count_max=ENTRIES_MAX + 1) == read(bookie, count_max=7) == []
        assert not bookie.is_off
    assert asked == [ENTRIES_MAX, 7]


@BOTH
@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 0, 20])
def test_entries_before_an_item_of_a_wrong_length_are_given(tmp_path: Path, payloads: list[bytes], length: int) -> None:
    log = EntryLog(tmp_path / "1.log", payloads)
    log.change(3, length.to_bytes(LENGTH_BYTES, "big", signed=True))
    with answering(log.answer()) as bookie:
        assert read(bookie) == payloads[:3]


@BOTH
def test_log_that_ends_within_an_item_gives_no_part_of_it(tmp_path: Path, payloads: list[bytes]) -> None:
    log = EntryLog(tmp_path / "1.log", payloads)
    for cut in (1, log.end - log.places[5] - 1, log.end - log.places[5] - LENGTH_BYTES):
        os.truncate(log.path, log.end - cut)
        with answering(log.answer()) as bookie:
            found = read(bookie)
            assert found == payloads[: len(found)]
            assert len(found) <= 5


@BOTH
def test_place_of_another_entry_ends_what_is_given(tmp_path: Path, payloads: list[bytes]) -> None:
    """Its digest is right; its id is not the one that was asked for."""
    log = EntryLog(tmp_path / "1.log", payloads)
    with answering(log.answer(*log.places[:2], *log.places[3:])) as bookie:
        assert read(bookie) == payloads[:2]


def test_damage_in_a_large_entry_ends_what_is_given_also_in_a_later_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_reads, "BATCH_BYTES", 2 * local_reads.IN_PLACE_BYTES)
    log = EntryLog(tmp_path / "1.log", LARGE)
    with answering(log.answer()) as bookie:
        batches = list(bookie.read(LEDGER, 0, 100, BYTES_MAX, DIGEST))
        assert [[bytes(entry) for entry in batch] for batch in batches] == [LARGE[:2], LARGE[2:4], LARGE[4:]]
    with log.path.open("r+b") as file:
        file.seek(log.places[3] + 1000)
        file.write(b"!")
    with answering(log.answer()) as bookie:
        assert read(bookie) == LARGE[:3]


@pytest.mark.parametrize("cut", [0, 1, 300_000])
def test_read_of_a_file_that_may_be_half_in_memory_has_all_of_it(tmp_path: Path, cut: int) -> None:
    """Where the file system can tell; elsewhere all of it is read at once."""
    octets = random.Random(cut).randbytes(4 << 20)
    path = tmp_path / "1.log"
    path.write_bytes(octets)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 1 << 20, 0, os.POSIX_FADV_DONTNEED)
        memory = memoryview(bytearray(3 << 20))
        assert read_all(file.fileno(), [memory[:cut], memory[cut:]], 1000)
        assert memory == octets[1000 : 1000 + len(memory)]


@pytest.mark.parametrize("count", range(9))
def test_pieces_of_memory_without_the_octets_that_have_come(count: int) -> None:
    pieces = [memoryview(b"ab"), memoryview(b""), memoryview(b"cde"), memoryview(b"fgh")]
    assert b"".join(local_reads._after(pieces, count)) == b"abcdefgh"[count:]
