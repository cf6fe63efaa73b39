"""Handshakes that are begun and not completed: an address has a budget of them, however often its peers come again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bkspark.wire.start_tls import encode_start_tls
from bookie_service.network.connections import ConnectionLimits
from bookie_service.network.handshake_budget import HELD_TIMES, HandshakeBudget
from bookie_service.network.tls_handshakes import ListenerTls
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import LimitedBookie, ServedBookie, SimulatedSocket, replies
from tests.bookie.stepped_timers import SteppedTimers
from tests.floods.requests import SIGNED_BYTES, half_handshake
from tests.security.certificates import Authority
from tests.security.half_handshakes import AUTH, FLOOD, OTHER, begin, signed
from tests.security.tls_serving import listener

MOST, SECONDS = 5, 10.0
EACH_S = SECONDS / MOST


class Peer:
    """A connection whose handshake begins."""

    def __init__(self, bench: Bench, name: str, address: str) -> None:
        self._bench = bench
        self.name = name
        self.address = address

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object:
        return self._bench.timers.call_later(seconds, callback)

    def make_room(self, why: str) -> None:
        self._bench.closed[self.name] = why


class Bench:
    """A budget, and which handshakes have begun, in this order."""

    def __init__(self) -> None:
        self.timers = SteppedTimers(100.0)
        self.budget = HandshakeBudget(MOST, SECONDS)
        self.begun: list[str] = []
        self.closed: dict[str, str] = {}
        """Why which peers were to make room, in this order."""

    def begin(self, name: str, address: str = "10.0.0.9") -> Peer:
        peer = Peer(self, name, address)
        self.budget.begin(peer, lambda: self.begun.append(name), self.timers.clock)
        return peer

    def give_back(self, peer: Peer) -> None:
        self.budget.give_back(peer, self.timers.clock)


def test_an_address_begins_a_number_at_once_and_as_many_in_each_time() -> None:
    bench = Bench()
    for number in range(30):
        bench.begin(str(number))
    assert len(bench.begun) == MOST
    for count in range(1, 12):
        bench.begin(f"later {count}")
        bench.timers.run(EACH_S)
        assert len(bench.begun) == MOST + count
    bench.begin("another's", "10.0.0.2")
    assert bench.begun[-1] == "another's"


def test_the_newest_begins_first() -> None:
    """A peer that means to complete its handshake has come just now; the others were not heard of again."""
    bench = Bench()
    for number in range(MOST + 3):
        bench.begin(str(number))
    bench.timers.run(EACH_S / 2)
    bench.begin("new")
    assert len(bench.begun) == MOST
    bench.timers.run(EACH_S * 2)
    assert bench.begun[MOST:] == ["new", "7"]


def test_beyond_a_number_that_wait_the_oldest_makes_room_and_never_begins() -> None:
    """Each holds the place of a connection, so one address could take them from others."""
    bench = Bench()
    held = HELD_TIMES * MOST
    for number in range(MOST + held):
        bench.begin(str(number))
    assert bench.closed == {}
    for number in range(MOST + held, 2 * MOST + held):
        bench.begin(str(number))
    assert list(bench.closed) == [str(number) for number in range(MOST, 2 * MOST)]
    assert set(bench.closed.values()) == {
        "its TLS handshake has waited longest for the budget of its address, and 40 others wait "
        "(maxTlsHandshakesPerAddress)"
    }
    bench.begin("another's", "10.0.0.2")
    assert len(bench.closed) == MOST
    bench.timers.run(100 * SECONDS)
    # From the newest one and the oldest one on: one began and one was closed in each time, until few waited.
    newest, oldest_begun = 2 * MOST + held - 1, 28
    assert bench.begun[:MOST] == [str(number) for number in range(MOST)]
    assert bench.begun[MOST:] == ["another's", *(str(number) for number in range(newest, oldest_begun - 1, -1))]
    assert list(bench.closed) == [str(number) for number in range(MOST, oldest_begun)]


def test_more_than_a_number_wait_for_a_while_and_the_oldest_is_closed_when_time_has_passed() -> None:
    """Peers that came again when they were closed for others had 1,000 connections a second accepted and closed, and
    the bookie took 0.7 of a processor."""
    bench = Bench()
    for number in range(4 * MOST):
        bench.begin(str(number))
    for count in range(1, MOST + 1):
        assert (len(bench.closed), len(bench.begun)) == (count - 1, MOST + count - 1)
        bench.timers.run(EACH_S)
    assert list(bench.closed) == [str(number) for number in range(MOST, 2 * MOST)]
    assert bench.begun[MOST:] == [str(number) for number in range(4 * MOST - 1, 3 * MOST - 1, -1)]
    bench.timers.run(MOST * EACH_S)
    assert len(bench.closed) == MOST, "no more than the number wait"
    assert len(bench.begun) == 3 * MOST


def test_handshakes_that_are_completed_cost_nothing_and_let_others_begin() -> None:
    bench = Bench()
    peers = [bench.begin(str(number)) for number in range(MOST)]
    for name in ("waits", "waits, too"):
        bench.begin(name)
    bench.give_back(peers[0])
    assert bench.begun[MOST:] == ["waits, too"], "one for each"
    bench.give_back(peers[1])
    assert bench.begun[MOST:] == ["waits, too", "waits"]
    bench.give_back(peers[2])
    for number in range(10 * MOST):
        peer = bench.begin(f"more {number}")
        assert bench.begun[-1] == f"more {number}"
        bench.give_back(peer)


def test_a_peer_that_is_gone_does_not_begin_and_takes_nothing_from_the_budget() -> None:
    bench = Bench()
    for number in range(MOST):
        bench.begin(str(number))
    for peer in [bench.begin("gone") for _ in range(50)]:
        bench.budget.discard(peer)
    assert not any(each.waiting for each in bench.budget._addresses.values())
    bench.begin("waits")
    bench.timers.run(EACH_S)
    assert bench.begun[MOST:] == ["waits"]
    bench.budget.discard(Peer(bench, "never seen", "10.0.0.2"))


def test_one_timer_for_each_address_is_enough() -> None:
    bench = Bench()
    for number in range(100):
        bench.begin(str(number))
    for _ in range(5):
        assert bench.timers.planned == 1
        bench.timers.run(EACH_S)


def others(bench: Bench, count: int = 1500) -> None:
    """Have other addresses begin one handshake each."""
    for number in range(count):
        bench.begin("another's", f"10.1.{number // 250}.{number % 250}")


def test_addresses_whose_budget_is_whole_again_are_forgotten() -> None:
    bench = Bench()
    others(bench)
    assert len(bench.budget._addresses) == 1500, "they have begun one each"
    bench.timers.run(EACH_S)
    late = bench.begin("late")
    assert len(bench.budget._addresses) == 1
    gone = Peer(bench, "gone", "10.1.0.0")
    bench.give_back(gone)
    bench.budget.discard(gone)
    bench.give_back(late)


def test_used_budgets_and_handshakes_that_wait_are_remembered_however_many_addresses_there_are() -> None:
    bench = Bench()
    for _ in range(MOST):
        bench.begin("used", "10.0.0.8")
    peers = [bench.begin("flood") for _ in range(MOST + 1)]
    others(bench)
    bench.begin("used", "10.0.0.8")
    assert bench.begun.count("used") == bench.begun.count("flood") == MOST
    # The event loop stood still, and its timers are late.
    bench.timers.now_s += SECONDS
    others(bench)
    bench.budget.discard(peers[-1])
    bench.timers.run(0)
    assert (bench.begun.count("used"), bench.begun.count("flood")) == (MOST + 1, MOST)


@pytest.fixture
def served(tmp_path: Path) -> ServedBookie:
    few = listener(Authority(tmp_path).issue("bookie"), handshakes_per_address_max=MOST, handshake_s=SECONDS)
    return ServedBookie(tls=ListenerTls(few))


def turns(served: ServedBookie, count: int) -> None:
    for _ in range(count):
        served.turn()


def test_peers_that_come_again_when_they_are_closed_get_no_more_signatures_than_those_that_wait(
    served: ServedBookie,
) -> None:
    """The oldest unfinished handshake of an address makes room for a new one, so 2,000 connections that came again had
    500 handshakes signed a second, and the bookie took 0.64 to 0.68 of a processor."""
    peers = begin(served, FLOOD, 8 * MOST)
    turns(served, 400)
    assert signed(peers) == MOST
    for _ in range(20):
        for peer in peers[:MOST]:
            served.connections[peer].close()
        peers = peers[MOST:] + begin(served, FLOOD, MOST)
        turns(served, 20)
    assert signed(peers) == 0
    others = begin(served, OTHER, MOST)
    turns(served, 400)
    assert signed(others) == MOST
    served.loop.now += 1.5 * EACH_S
    turns(served, 20)
    assert signed(peers) == 1
    assert served.failures == []


def test_one_more_handshake_may_begin_each_two_seconds_also_where_a_handshake_may_take_hours(tmp_path: Path) -> None:
    """Clients that break their handshakes off, for a wrong certificate for example, would be refused for hours."""
    slow = listener(Authority(tmp_path).issue("bookie"), handshakes_per_address_max=MOST, handshake_s=36_000.0)
    served = ServedBookie(tls=ListenerTls(slow))
    begin(served, FLOOD, MOST)
    turns(served, 400)
    for _ in range(3 * MOST):
        late = begin(served, FLOOD, 1)
        turns(served, 20)
        assert signed(late) == 0
        served.loop.now += EACH_S
        turns(served, 20)
        assert signed(late) == 1


def test_waiting_for_the_budget_ends_with_the_connection_and_at_the_deadline(served: ServedBookie) -> None:
    peers = begin(served, FLOOD, MOST + 2)
    turns(served, 400)
    assert signed(peers) == MOST
    waiting = [served.connections[peer] for peer in peers if not signed([peer])]
    waiting[0].close()
    waiting[1].close_if_stalled(served.loop.now + SECONDS + 1)
    assert not waiting[1].is_open
    served.loop.now += 5 * EACH_S
    turns(served, 50)
    assert signed(peers) == MOST
    assert served.failures == []


def test_address_that_begins_very_many_holds_few_places_and_the_log_names_the_key(
    served: ServedBookie, caplog: pytest.LogCaptureFixture
) -> None:
    """5,000 peers of one address held half of all connections' places, and nothing said why they were not served."""
    peers = []
    for _ in range(20):
        peers += begin(served, FLOOD, MOST)
        turns(served, 40)
    waiting = [served.connections[peer] for peer in peers if not peer.is_closed]
    held = HELD_TIMES * MOST
    assert (signed(peers), len(waiting)) == (MOST, held), "those that begin made room as unfinished ones"
    assert caplog.text.count(f"{held} others wait (maxTlsHandshakesPerAddress)") == 19 * MOST - held
    caplog.clear()
    waiting[0].close_if_stalled(served.loop.now + SECONDS + 1)
    assert "is not complete after 10 s (tlsHandshakeTimeoutMs); its TLS handshake waited for the budget" in caplog.text
    assert "which others used up (maxTlsHandshakesPerAddress)" in caplog.text
    caplog.clear()
    (late,) = begin(served, OTHER, 1)
    turns(served, 20)
    served.connections[late].close_if_stalled(served.loop.now + SECONDS + 1)
    assert "tlsHandshakeTimeoutMs" in caplog.text
    assert "budget" not in caplog.text, "its peer is late"
    assert served.failures == []


def accept(served: LimitedBookie, address: str, sent: bytes) -> SimulatedSocket | None:
    """Accept a connection as far as there is room. Its peer sends these bytes."""
    peer = served.accept(address)
    if peer is not None:
        peer.received += sent
        turns(served, 20)
    return peer


@pytest.mark.parametrize("what", ["share of the address", "all places"])
def test_handshakes_that_wait_make_room_for_others_and_those_that_have_begun_do_not(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One address could hold all its places until its handshakes were late, and others that share its address, or all
    others, were refused."""
    few = listener(Authority(tmp_path).issue("bookie"), handshakes_per_address_max=MOST, handshake_s=SECONDS)
    places = 4 * MOST
    limits = ConnectionLimits(all=places if what == "all places" else 1000, per_address=places, reserved=0)
    served = LimitedBookie(limits, ListenerTls(few))
    flood = [peer for _ in range(places + 1) if (peer := accept(served, FLOOD, half_handshake()))]
    # One of those that have begun made room, because it is unfinished.
    begun = [peer for peer in flood if signed([peer]) and not peer.is_closed]
    waiting = [peer for peer in flood if not signed([peer])]
    assert (len(begun), len(waiting)) == (MOST - 1, places - len(begun))
    address = OTHER if what == "all places" else FLOOD
    for number, oldest in enumerate(waiting):
        assert not oldest.is_closed
        honest = accept(served, address, adds(1, number, [b"x"]))
        assert honest is not None
        assert (replies(honest), oldest.is_closed) == (1, True)
    assert not any(peer.is_closed for peer in begun)
    assert "another connection needs its place (maxConnections); its TLS handshake waited for the budget" in caplog.text
    assert served.accept(address) is None
    assert served.failures == []


@pytest.fixture
def strict(tmp_path: Path) -> ServedBookie:
    """A bookie that lets each address leave one handshake unfinished."""
    leaf = Authority(tmp_path).issue("bookie")
    return ServedBookie(tls=ListenerTls(listener(leaf, handshakes_per_address_max=1, handshake_s=SECONDS)))


class Leaving(SimulatedSocket):
    """A peer that sends START_TLS, and leaves once it has been answered."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        return b"" if self.sent else super().recv(size, flags)


@pytest.mark.parametrize("how", ["leaves", "sends something else", "breaks off"])
def test_peer_that_costs_no_signature_takes_nothing_from_the_budget(strict: ServedBookie, how: str) -> None:
    """Otherwise one aborted START_TLS would delay the next handshake of its address by ten seconds."""
    for _ in range(3):
        peer = strict.connect_over(Leaving() if how == "leaves" else SimulatedSocket(), FLOOD)
        peer.received += encode_start_tls(7)
        strict.turns_until(lambda: bool(peer.sent))  # noqa: B023
        if how == "breaks off":
            peer.received += half_handshake()[len(encode_start_tls(7)) :]
            # The loop sees the bytes and queues the step, and the connection is closed before the step is taken.
            strict.loop.turn()
            strict.connections[peer].close()
        else:
            peer.received += b"GET / HTTP/1.1\r\n\r\n"
        strict.turns_until(lambda: peer.is_closed)  # noqa: B023
        turns(strict, 5)
        assert signed([peer]) == 0
    honest = begin(strict, FLOOD, 1)
    turns(strict, 20)
    assert signed(honest) == 1
    late = begin(strict, FLOOD, 1)
    turns(strict, 20)
    assert signed(late) == 0, "one is all"
    assert strict.failures == []


def test_auth_messages_in_clear_before_the_handshake_take_nothing_from_the_budget(strict: ServedBookie) -> None:
    """Apache's clients with SASL send one, and only then their ClientHello."""
    peer = strict.connect(FLOOD)
    hello = half_handshake()
    at = 4 + int.from_bytes(hello[:4], "big")
    peer.received += hello[:at]
    strict.turns_until(lambda: bool(peer.sent))
    for _ in range(3):
        peer.received += AUTH
        turns(strict, 5)
    peer.received += hello[at:]
    strict.turns_until(lambda: len(peer.sent) > SIGNED_BYTES, 20)
