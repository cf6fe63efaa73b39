"""Half handshakes: peers that send START_TLS and their ClientHello, and nothing more.

The answer to a ClientHello has the bookie's signature, which costs as much processor time as many adds. However many
ask for one, a turn of the event loop signs once, and the addresses of those who ask take turns.
"""

from __future__ import annotations

import asyncio
import queue
import ssl
import threading
from pathlib import Path

import pytest

from bkspark.wire import v3
from bkspark.wire.framing import LENGTH_BYTES, scan_frames
from bkspark.wire.start_tls import encode_start_tls
from bookie_service.network.connection import Connection
from bookie_service.network.tls_handshakes import Compute, HandshakeThread, ListenerTls, OnComputed
from bookie_service.network.tls_socket import TlsSocket
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket, replies
from tests.floods.requests import SIGNED_BYTES, half_handshake, read
from tests.security.certificates import Authority
from tests.security.half_handshakes import AUTH, FLOOD, OTHER, begin, known, signed
from tests.security.tls_serving import listener, trusting

HELLOS = 40


@pytest.fixture
def tls(tmp_path: Path) -> ListenerTls:
    return ListenerTls(listener(Authority(tmp_path).issue("bookie")))


@pytest.mark.parametrize("between", [b"", AUTH], ids=["", "AUTH in clear"])
def test_client_may_send_its_client_hello_before_start_tls_is_answered(tmp_path: Path, between: bytes) -> None:
    authority = Authority(tmp_path)
    served = ServedBookie(tls=ListenerTls(listener(authority.issue("bookie"))))
    connected = served.connect()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")

    def take(more_than: int) -> bytes:
        """Return what the bookie has sent, once it is more than this."""
        served.turns_until(lambda: len(connected.sent) > more_than)
        taken = bytes(connected.sent)
        connected.sent.clear()
        return taken

    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    connected.received += encode_start_tls(7) + between + outgoing.read()
    taken = take(SIGNED_BYTES)
    end = LENGTH_BYTES + int.from_bytes(taken[:LENGTH_BYTES], "big")
    assert v3.decode_response(taken[LENGTH_BYTES:end]).HasField("startTLSResponse")
    incoming.write(taken[end:])
    client.do_handshake()
    client.write(adds(1, 0, [b"x"]))
    connected.received += outgoing.read()
    answers = b""
    while len(scan_frames(answers, len(answers))) < 1 + bool(between):
        incoming.write(take(0))
        answers += client.read()
    assert (b"AuthDisabledPlugin" in answers) == bool(between)
    assert served.failures == []


def test_turn_of_the_event_loop_signs_once_however_many_handshakes_begin(tls: ListenerTls) -> None:
    served = ServedBookie(tls=tls)
    known(served)
    peers = begin(served, FLOOD, HELLOS)
    most = before = 0
    while before < HELLOS:
        served.turn()
        most, before = max(most, signed(peers) - before), signed(peers)
    assert most == 1
    assert len(tls.owing) == HELLOS, "each of them owes the other half"
    assert served.failures == []


def test_known_client_waits_for_one_signature_at_most(tls: ListenerTls) -> None:
    served = ServedBookie(tls=tls)
    honest = known(served)
    peers = begin(served, FLOOD, HELLOS)
    served.turns_until(lambda: signed(peers) > 0)
    for number in range(1, 9):
        before = signed(peers)
        honest.received += read(1, 0)
        served.turns_until(lambda: replies(honest) > number)  # noqa: B023
        assert signed(peers) - before <= 1
    assert signed(peers) < HELLOS, "the others waited meanwhile"


class Thread:
    """Computes steps of handshakes when a test says so."""

    def __init__(self) -> None:
        self.steps: list[tuple[Compute, OnComputed]] = []

    def __call__(self, compute: Compute, on_computed: OnComputed) -> None:
        self.steps.append((compute, on_computed))

    def compute(self) -> None:
        """Compute a step that was begun."""
        compute, on_computed = self.steps.pop()
        on_computed(compute())


@pytest.fixture
def held(tmp_path: Path) -> tuple[ListenerTls, Thread]:
    thread = Thread()
    return ListenerTls(listener(Authority(tmp_path).issue("bookie")), thread), thread


def test_known_client_is_served_while_a_thread_computes_a_step_and_no_other_step_is_begun(
    held: tuple[ListenerTls, Thread],
) -> None:
    tls, thread = held
    served = ServedBookie(tls=tls)
    honest = known(served)
    peers = begin(served, FLOOD, HELLOS)
    served.turns_until(lambda: bool(thread.steps))
    for number in range(1, 30):
        honest.received += read(1, 0)
        assert served.turns_until(lambda: replies(honest) > number) <= 2  # noqa: B023
    assert (len(thread.steps), signed(peers)) == (1, 0)
    assert len(tls.owing) < HELLOS, "a peer whose step waits for the bookie owes nothing"
    for number in range(HELLOS):
        served.turns_until(lambda: bool(thread.steps))
        thread.compute()
        assert signed(peers) == number + 1
    assert len(tls.owing) == HELLOS
    assert served.failures == []


@pytest.mark.parametrize("is_computed", [True, False])
def test_connection_may_close_while_a_thread_computes_its_step(
    held: tuple[ListenerTls, Thread], *, is_computed: bool
) -> None:
    tls, thread = held
    served = ServedBookie(tls=tls)
    (first,) = begin(served, FLOOD, 1)
    served.turns_until(lambda: bool(thread.steps))
    if is_computed:
        compute, on_computed = thread.steps.pop()
        error = compute()
        served.connections[first].close()
        on_computed(error)
    else:
        served.connections[first].close()
        thread.compute()
    assert (signed([first]), len(tls.owing)) == (0, 0)
    (second,) = begin(served, FLOOD, 1)
    served.turns_until(lambda: bool(thread.steps))
    thread.compute()
    assert (signed([second]), len(tls.owing)) == (1, 1), "others go on"
    assert served.failures == []


def test_what_the_peer_left_unread_is_sent_while_a_thread_computes_and_its_answer_comes_after_it(
    held: tuple[ListenerTls, Thread],
) -> None:
    """The thread writes the answer where unsent ciphertext is taken from, so that is left alone meanwhile."""
    tls, thread = held
    served = ServedBookie(tls=tls)
    peer = served.connect()
    hello = half_handshake()
    answer_bytes = len(encode_start_tls(0))
    peer.received += hello[:answer_bytes]
    served.turns_until(lambda: bool(peer.sent))
    peer.takes = 1
    peer.received += hello[answer_bytes:]
    served.turns_until(lambda: bool(thread.steps))
    thread.compute()
    before = len(peer.sent)
    # A second message of the handshake, which is not a right one.
    peer.received += b"\x16\x03\x03\0\x01\0"
    served.turns_until(lambda: bool(thread.steps))
    compute, on_computed = thread.steps.pop()
    error = compute()
    peer.takes = 1 << 20
    served.turn()
    served.turn()
    first = len(peer.sent)
    assert first > before, "what was unsent"
    on_computed(error)
    assert len(peer.sent) > first, "the alert"
    assert peer.is_closed


def test_no_second_step_is_begun_while_a_thread_computes_one(held: tuple[ListenerTls, Thread]) -> None:
    """It would write where OpenSSL reads."""
    tls, thread = held
    served = ServedBookie(tls=tls)
    (peer,) = begin(served, FLOOD, 1)
    served.turns_until(lambda: bool(thread.steps))
    peer.received += b"\x16\x03\x03\0\x01\0"
    served.connections[peer].go_on_receiving()
    for _ in range(20):
        served.turn()
    assert (len(thread.steps), len(peer.received), served.failures) == (1, 6, [])
    thread.compute()
    served.turns_until(lambda: bool(thread.steps))
    assert not peer.received
    assert served.failures == []


class Resuming(SimulatedSocket):
    """Its connection is asked to go on while START_TLS is served."""

    connection: Connection

    def send(self, data: bytes | memoryview) -> int:
        self.connection.resume()
        return super().send(data)


def test_turn_that_comes_before_the_handshake_receives_nothing(held: tuple[ListenerTls, Thread]) -> None:
    tls, thread = held
    served = ServedBookie(tls=tls)
    peer = served.connect_over(Resuming(), FLOOD)
    peer.connection = served.connections[peer]
    peer.received += half_handshake()
    served.turns_until(lambda: bool(thread.steps))
    thread.compute()
    assert (signed([peer]), served.failures) == (1, [])


def test_nothing_is_received_from_tls_before_its_handshake_is_complete(tls: ListenerTls) -> None:
    served = ServedBookie(tls=tls)
    connected = SimulatedSocket()
    connected.received += half_handshake()
    loop: asyncio.AbstractEventLoop = served.loop  # type: ignore[assignment]
    tls_socket = TlsSocket(connected, tls.context, b"", loop, list)  # type: ignore[arg-type]
    with pytest.raises(BlockingIOError):
        tls_socket.recv_into(memoryview(bytearray(100)))


class Broken(SimulatedSocket):
    """A connection that the network breaks: what is received next, or sent next, fails."""

    breaks_at = ""

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self.breaks_at == "receive":
            raise ConnectionResetError
        return super().recv(size, flags)

    def send(self, data: bytes | memoryview) -> int:
        if self.breaks_at == "send":
            raise ConnectionResetError
        return super().send(data)


@pytest.mark.parametrize("where", ["receive", "send"])
def test_connection_that_breaks_in_a_step_is_closed_and_owes_nothing(
    held: tuple[ListenerTls, Thread], where: str
) -> None:
    tls, thread = held
    served = ServedBookie(tls=tls)
    broken = served.connect_over(Broken(), FLOOD)
    broken.received += encode_start_tls(0)
    served.turns_until(lambda: len(tls.owing) == 1)
    broken.received += half_handshake()[len(encode_start_tls(0)) :]
    if where == "send":
        served.turns_until(lambda: bool(thread.steps))
        broken.breaks_at = where
        thread.compute()
    else:
        broken.breaks_at = where
    served.turns_until(lambda: broken.is_closed)
    assert (len(tls.owing), thread.steps, served.failures) == (0, [], [])


def test_thread_computes_steps_one_after_the_other_and_reports_a_defect() -> None:
    posted: queue.SimpleQueue[tuple[object, ...]] = queue.SimpleQueue()
    failures: list[BaseException] = []
    threads: list[str] = []

    def compute() -> None:
        threads.append(threading.current_thread().name)

    def fail() -> None:
        raise ValueError("a defect")

    thread = HandshakeThread(lambda callback, *arguments: posted.put((callback, *arguments)), failures.append)
    for number in range(3):
        thread.run(compute, [].append)
        assert posted.get(timeout=60)[1:] == (None,)
        assert len(threads) == number + 1
    thread.run(fail, [].append)
    callback, error = posted.get(timeout=60)
    assert (callback, str(error)) == (failures.append, "a defect")
    assert len(set(threads)) == 1
    assert threading.current_thread().name not in threads
    thread.stop()


def test_addresses_take_turns_to_have_their_handshakes_signed(tls: ListenerTls) -> None:
    served = ServedBookie(tls=tls)
    known(served)
    flood = begin(served, FLOOD, HELLOS)
    served.turns_until(lambda: signed(flood) > 0)
    before = signed(flood)
    other = begin(served, OTHER, 1)
    served.turns_until(lambda: signed(other) == 1)
    # The one whose turn it is, and one before each of its two steps, that of START_TLS and that of the handshake.
    assert signed(flood) - before <= 3
